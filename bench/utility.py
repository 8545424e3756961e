"""The utility suite: every table of the data folder, three epsilons, our mechanisms beside others, paired by seed.

What was measured before is kept as long as the code it follows from is the same; a command given again goes on where
it ended. `--compare` measures nothing and shows what is there.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from itertools import product
from multiprocessing import get_context
from typing import Any

from bench import compare, datasets, results, sources
from bench.quality import ALL
from bench.utility_tasks import FAMILIES, ONE_THREAD, SLOW, Case, family, run, warm_up

EPSILONS = ("1", "0.1", "10")
LARGE = ("adult",)
"""Tables whose runs take minutes: they come last."""
MECHANISMS = tuple(name for members in FAMILIES.values() for name in members)


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    parser.add_argument("--tables", nargs="+", default=None, help="only these (default: all of the data folder)")
    parser.add_argument("--epsilons", nargs="+", default=EPSILONS, help="default: 1 0.1 10")
    parser.add_argument(
        "--mechanisms",
        nargs="+",
        default=tuple(FAMILIES),
        choices=(*FAMILIES, *MECHANISMS),
        metavar="NAME",
        help=f"mechanisms or families of them (default: all): {', '.join((*FAMILIES, *MECHANISMS))}",
    )
    parser.add_argument("--seeds", type=int, default=10, help="runs of each kind (default 10)")
    parser.add_argument("--slow-seeds", type=int, default=1, help="the same of mbi and other packages (default 1)")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for a run of those (default 600)")
    parser.add_argument("--minutes", type=float, default=600.0, help="begin no run after so many minutes (default 600)")
    parser.add_argument("--processes", type=int, default=1, choices=(1, 2), help="runs at a time (default 1)")
    parser.add_argument("--compare", action="store_true", help="measure nothing: compare what was saved")


def measure(options: argparse.Namespace, record: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
    """Every run that is not there yet; `record` is told after each."""
    code, before = _codes(), results.load("utility")
    saved = before["report"]["runs"] if before else []
    runs = [one for one in saved if one["code"] == code[family(one["mechanism"])]]
    if options.compare:
        tables = options.tables or {one["table"] for one in runs}
        return {"runs": [one for one in runs if one["table"] in tables and one["epsilon"] in options.epsilons]}
    known, deadline = {case_of(one) for one in runs}, time.monotonic() + 60 * options.minutes
    waiting = (case for case in plan(options) if case not in known)
    with (
        _environment(ONE_THREAD),
        ProcessPoolExecutor(options.processes, mp_context=get_context("spawn"), initializer=warm_up) as pool,
    ):
        going: dict[Future[dict[str, Any]], Case] = {}
        while True:
            while len(going) < options.processes and time.monotonic() < deadline and (case := next(waiting, None)):
                going[pool.submit(run, case, options.limit)] = case
            if not going:
                return {"runs": runs}
            for future in wait(going, return_when=FIRST_COMPLETED).done:
                case = going.pop(future)
                runs.append({"code": code[family(case.mechanism)], **_outcome(case, future)})
                record({"runs": runs})


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Processes started meanwhile have these variables."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _outcome(case: Case, future: Future[dict[str, Any]]) -> dict[str, Any]:
    """What a run returned. A mechanism that breaks is a result too: it does not end the others."""
    error = future.exception()
    return {**case._asdict(), "failed": f"{type(error).__name__}: {error}"} if error else future.result()


def plan(options: argparse.Namespace) -> Iterator[Case]:
    """Large tables last, slow mechanisms after the others, seed by seed: what is cut short is balanced."""
    tables = options.tables or datasets.present()
    wanted = [name for name in MECHANISMS if name in options.mechanisms or family(name) in options.mechanisms]
    quick = [name for name in wanted if family(name) not in SLOW]
    slow = [name for name in wanted if family(name) in SLOW]
    for large, (mechanisms, seeds) in product(
        (False, True), ((quick, options.seeds), (slow, min(options.seeds, options.slow_seeds)))
    ):
        those = [table for table in tables if (table in LARGE) == large]
        for seed, epsilon, table, mechanism in product(range(seeds), options.epsilons, those, mechanisms):
            yield Case(table, mechanism, epsilon, seed)


def case_of(one: Mapping[str, Any]) -> Case:
    """Which run this was."""
    return Case(one["table"], one["mechanism"], one["epsilon"], one["seed"])


def stale(report: Mapping[str, Any]) -> list[str]:
    """The mechanisms with runs of other code than this tree's."""
    code = _codes()
    return sorted({one["mechanism"] for one in report["runs"] if one["code"] != code[family(one["mechanism"])]})


def _codes() -> dict[str, str]:
    """The digest of each family in this tree."""
    return {name: sources.digest(paths) for name, paths in sources.UTILITY.items()}


def table(report: Mapping[str, Any]) -> str:
    """What a person reads: the means, then how ours compare."""
    return "\n".join([*_means(report["runs"]), "", *compare.lines(report["runs"])])


def _means(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    shown = ("rows", *ALL, "rounds", "cpu_seconds")
    found = [f"{'':<42}{'runs':>5}{'failed':>7}" + "".join(f"{_short(name):>9}" for name in shown)]
    for (name, epsilon, mechanism), group in compare.groups(runs).items():
        good = [one for one in group.values() if "failed" not in one]
        cells = "".join(f"{_mean(good, metric):>9}" for metric in shown)
        found.append(
            f"{name + ' eps=' + epsilon + ' ' + mechanism:<42}{len(group):>5}{len(group) - len(good):>7}{cells}"
        )
    return found


def _short(metric: str) -> str:
    return {"worst_pair": "worst", "correlation": "corr", "worst_correlation": "worst c", "propensity": "told"}.get(
        metric, metric.replace("cpu_seconds", "CPU s").replace("_", " ")
    )


def _mean(runs: Sequence[Mapping[str, Any]], metric: str) -> str:
    values = [one[metric] for one in runs if one.get(metric) is not None]
    if not values:
        return ""
    mean = sum(values) / len(values)
    return (
        f"{mean:.0f}" if metric == "rows" else f"{mean:.1f}" if metric in ("rounds", "cpu_seconds") else f"{mean:.4f}"
    )
