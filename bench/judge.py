"""What a manifest costs those who are sent it: seconds of CPU to parse, judge, check and plan large ones.

Only one process, no data and no peers. A server parses and judges whatever a coordinator proposes, before anybody has
agreed to anything; `caps study check` and `plan` do the rest.
"""

from __future__ import annotations

import json
import secrets
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from caps.basics import canonical
from caps.study import Manifest, Policy
from caps.study.account import Account
from caps.study.authoring import check
from caps.study.planning import declared_costs, plan_study

POLICY = Policy(
    largest_epsilon=10.0,
    populations={"persons": 12.0},
    largest_domain=1 << 24,
    largest_memory=10**15,
)


def document(
    *, columns: int = 4, categories: int = 2, holders: int = 2, algorithm: str = "aim", rounds: int | None = 3
) -> dict[str, Any]:
    """A study of all pairs of columns, with keys of nobody."""

    def party(name: str) -> dict[str, str]:
        return {"name": name, "pin": secrets.token_hex(32), "signing_key": secrets.token_hex(32)}

    values = [f"v{value}" for value in range(categories)]
    places = {"url": "https://s.example:8443", "mesh": "s.example:9443"}
    return {
        "title": "To be judged",
        "schema": {"columns": [{"name": f"c{i}", "kind": "categorical", "categories": values} for i in range(columns)]},
        "holders": [{**party(f"holder{i}"), "brings": "rows"} for i in range(holders)],
        "algorithm": {"name": algorithm, "parameters": {} if rounds is None else {"rounds": rounds}},
        "privacy": {"epsilon": "10", "delta": "1e-6", "population": "persons"},
        "servers": [{**party(f"S{i}"), **places} for i in (1, 2, 3)],
        "coordinator": {**party("coordinator"), "url": places["url"]},
    }


CASES: dict[str, dict[str, Any]] = {
    "4 columns": {},
    "100 columns, all pairs": {"columns": 100},
    "200 columns, all pairs": {"columns": 200},
    "400 columns, all pairs": {"columns": 400},
    "400 columns, gaussian": {"columns": 400, "algorithm": "gaussian", "rounds": None},
    "100,000 rounds of AIM": {"rounds": 100_000},
    "100,000 rounds of MWEM": {"rounds": 100_000, "algorithm": "mwem"},
    "2 columns of 1,000 categories": {"columns": 2, "categories": 1000, "algorithm": "gaussian", "rounds": None},
    "1,000 holders": {"holders": 1000},
}


def measure(*, repeats: int, peers: bool) -> dict[str, Any]:
    """By case, the median seconds of each thing."""
    return {name: _measured(json.dumps(document(**choices)), repeats) for name, choices in CASES.items()}


def _measured(text: str, repeats: int) -> dict[str, float]:
    def parsed() -> Manifest:
        value = canonical.parse(text)
        assert isinstance(value, dict)
        return Manifest.from_json(value)

    manifest = parsed()
    plan_study(manifest, declared_costs(manifest))  # noise tables are built once in a process
    tasks: dict[str, Callable[[], object]] = {
        "parse": parsed,
        "judge": lambda: POLICY.judge(manifest),
        "check": lambda: check(text),
        "plan": lambda: plan_study(manifest, declared_costs(manifest)).to_json(),
        "account": lambda: Account(manifest, [holder.name for holder in manifest.holders]),
    }
    return {task: statistics.median(_seconds(do) for _ in range(repeats)) for task, do in tasks.items()}


def _seconds(do: Callable[[], object]) -> float:
    began = time.process_time()
    do()
    return time.process_time() - began


def table(report: Mapping[str, Any]) -> str:
    """What a person reads."""
    tasks = list(next(iter(report.values())))
    lines = [f"{'seconds of CPU':<32}" + "".join(f"{task:>9}" for task in tasks)]
    lines += [f"{name:<32}" + "".join(f"{row[task]:>9.3f}" for task in tasks) for name, row in report.items()]
    return "\n".join(lines)
