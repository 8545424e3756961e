"""docs/benchmarks.md and its plots, from bench/results/*.json alone: nothing is measured here."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench import (
    apart,
    compare,
    contribute,
    federated,
    generate,
    load,
    pages,
    results,
    runtime,
    schemes,
    schemes_runtime,
    sources,
    utility,
)
from bench.quality import ALL, METRICS, MOST_TRIPLES
from bench.results import BY_SCHEME
from bench.utility_tasks import family
from caps.study.manifest import columns_bits
from deploy.federation import COORDINATOR
from services.mpc_server.engine.counting import GROUP_ROWS, WIDE_GROUP_ROWS

DOCS = Path(__file__).resolve().parents[1] / "docs"
TITLES = {"breast-cancer.caps": "breast-cancer", "compas-caps": "COMPAS", "diabetes.caps": "diabetes"}
ALGORITHMS = {"aim": "AIM", "mwem": "MWEM+PGM"}
SETTINGS = {"central": "CDP", "horizontal": "CaPS(H)", "vertical": "CaPS(V)", "mixed": "mixed"}
COLUMNS = {"lr_auc": "LR AUC", "rf_auc": "RF AUC", "lr_f1": "LR F1", "rf_f1": "RF F1", "error": "workload error"}
SCORES = {
    "pair": "pair",
    "worst_pair": "worst pair",
    "triple": "triple",
    "correlation": "correlation",
    "worst_correlation": "worst",
    "propensity": "told apart",
} | COLUMNS
JOINED = 20_000
"""Rows a second that the default join is to align."""
AT_LATEST = 0.1
"""Seconds within which a service says whether it lives and is ready."""
Lines = list[str]
Verdict = tuple[str, str, str]
"""A goal, what was measured, and whether it is met."""


def docs() -> Path:
    """CAPS_BENCH_DOCS, or `docs`."""
    return Path(os.environ.get("CAPS_BENCH_DOCS", DOCS))


def write() -> Path:
    """Write everything; where the page is. Nothing is written if a result is of other code than this tree's."""
    refuse_other_code()
    (docs() / "benchmarks").mkdir(parents=True, exist_ok=True)
    body: Lines = []
    verdicts: list[Verdict] = []
    for subject, (title, section, judge) in SECTIONS.items():
        found = results.load(subject)
        body += [f"## {title}", ""]
        if found is None:
            body += [f"Not run: `python -m bench {command(subject)} --save`.", ""]
            verdicts += [(title, "", _mark(None))] if judge else []
            continue
        if not _has_digest(subject, found):
            again = "To be measured again: what was saved does not say from which code."
            body += [f"{again} `python -m bench {command(subject)} --save`.", ""]
            verdicts += [(title, "", "to be measured again")] if judge else []
            continue
        body += [_origin(found), "", *section(found["report"]), ""]
        verdicts += judge(found["report"]) if judge else []
    lines = [
        "# Benchmarks",
        "",
        "Written by `python -m bench report` from `bench/results/*.json`; do not edit. Every section names the command",
        "that measured it (`make bench` runs them all), the machine and the date. All parties ran on one host. All",
        "figures are of the code of this tree: each section has the digest of the sources that they follow from, and",
        "results of other code are refused.",
        "",
        "## Goals",
        "",
        *_table(["goal", "measured", "verdict"], verdicts),
        "",
        *body,
    ]
    page = docs() / "benchmarks.md"
    page.write_text("\n".join(lines).rstrip() + "\n")
    return page


def refuse_other_code() -> None:
    """Raises SystemExit that names every result of other code than this tree's."""
    other = []
    for subject in SECTIONS:
        found = results.load(subject)
        if found is None or not _has_digest(subject, found):
            continue
        if subject == results.BY_RUN:
            mechanisms = utility.stale(found["report"])
            other += [f"{subject} ({', '.join(mechanisms)})"] if mechanisms else []
        elif found["code"] != sources.digest_of(subject):
            other.append(f"{subject} ({found['code']}, commit {found['commit']}; now {sources.digest_of(subject)})")
    if other:
        raise SystemExit(
            f"results of other code than this tree's: {'; '.join(other)}. Measure them again with --save, or remove "
            f"them from {results.folder()}."
        )


def _has_digest(subject: str, found: Mapping[str, Any]) -> bool:
    if subject == results.BY_RUN:
        return all("code" in one for one in found["report"]["runs"])
    return bool(found.get("code"))


def command(subject: str) -> str:
    """What measures a subject, after `python -m bench`."""
    return {saved: f"{asked} --schemes" for asked, saved in BY_SCHEME.items()}.get(subject, subject)


def _origin(found: Mapping[str, Any]) -> str:
    at = found["machine"]
    commands = ", ".join(f"`{command}`" for command in found["commands"])
    code = f"code {found['code']}, " if found["code"] else ""
    return (
        f"{commands}, {code}commit {found['commit'] or 'unknown'}, {found['date'][:16].replace('T', ' ')} UTC, "
        f"{at['processor']}, {at['cores']} cores, "
        f"{at['memory_gb']:g} GB, {at['system']}, Python {at['python']}, NumPy {at['numpy']}; "
        f"load average at the end {at['load']:g}."
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> Lines:
    if not rows:
        return ["Nothing was measured."]
    return [
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
        *("| " + " | ".join(str(cell) for cell in row) + " |" for row in rows),
    ]


def _mark(met: bool | None) -> str:
    return "not run" if met is None else "met" if met else "**missed**"


def _title(name: str) -> str:
    return TITLES.get(name, name)


def _utility(report: Mapping[str, Any]) -> Lines:
    runs = report["runs"]
    codes = sorted({(family(one["mechanism"]), one["code"]) for one in runs})
    relatives = ", ".join(f"{one} with {other}" for one, other in compare.RELATIVES.items())
    lines = [
        "Central runs of all pairs of attributes, on every table of the data folder. `pair`, `worst pair` and",
        "`triple` are half the L1 distance of normalised marginals to those of the training rows: mean and largest",
        f"over pairs, mean over triples (all, or {MOST_TRIPLES} chosen by a hash of their names). `correlation` is",
        "the mean, and `worst` the largest, difference of Cramer's V corrected for bias. `told apart` is the AUC of",
        "a random forest that tells real from synthetic rows it was not trained on. LR and RF are trained on",
        "synthetic rows and tested on real ones that no mechanism saw. `original`: private-pgm's loops as",
        "published, on our kernel, without a prior. `uniform` and `columns`, the floor: uniform rows, and",
        "independent columns shrunk to uniform ones. `mbi`: the published loops on `mbi` 2. All others are packages",
        "of their own.",
        "",
        "Constants of mechanisms are chosen on the development tables alone: " + ", ".join(compare.DEVELOPMENT) + ".",
        f"Relatives share persons with one of them: {relatives}. All other tables are held out.",
        "Code: " + ", ".join(f"{name} {code}" for name, code in codes) + ".",
        "",
    ]
    comparisons = compare.paired(runs)
    for half in compare.HALVES:
        own = [one for one in runs if compare.half(one["table"]) == half]
        if own:
            lines += [f"### {half.capitalize()} tables", "", *_utility_means(own), ""]
            lines += [*_utility_paired([one for one in comparisons if compare.half(one.table) == half]), ""]
    beside = compare.beside_aim(runs)
    if beside:
        rows = [
            [one.table, one.epsilon, f"{one.swift:.4f}", f"{one.aim:.4f}", f"{one.ratio:.2f} +- {one.spread:.2f}"]
            for one in beside
        ]
        lines += ["### SWIFT beside AIM", "", "Mean pair errors; the ratio with its standard error.", ""]
        lines += [*_table(["table", "epsilon", "SWIFT", "AIM", "ratio"], rows), ""]
    return lines[:-1]


def _utility_means(runs: Sequence[Mapping[str, Any]]) -> Lines:
    rows = []
    for (name, epsilon, mechanism), group in compare.groups(runs).items():
        good = [one for one in group.values() if "failed" not in one]
        if not good:
            reason = next(one["failed"] for one in group.values())
            rows.append([name, epsilon, mechanism, len(group), f"failed: {reason}", *[""] * (len(ALL) + 2)])
            continue
        cells = [_mean(good, metric, 3) for metric in ALL]
        costs = [_mean(good, name, 1) for name in ("rounds", "cpu_seconds")]
        failures = f"{len(good)} of {len(group)}" if len(good) < len(group) else len(group)
        rows.append([name, epsilon, mechanism, failures, _mean(good, "rows", 0), *cells, *costs])
    head = ["table", "epsilon", "mechanism", "runs", "rows", *(SCORES[metric] for metric in ALL), "rounds", "CPU s"]
    return _table(head, rows)


def _mean(runs: Sequence[Mapping[str, Any]], metric: str, digits: int) -> str:
    values = [one[metric] for one in runs if one.get(metric) is not None]
    return f"{sum(values) / len(values):.{digits}f}" if values else ""


def _utility_paired(comparisons: Sequence[compare.Paired]) -> Lines:
    """Ours less the original, with intervals, in the metrics that are judged."""
    kinds = dict.fromkeys((one.table, one.epsilon, one.algorithm) for one in comparisons)
    known = {(one.table, one.epsilon, one.algorithm, one.metric): one for one in comparisons}
    rows = []
    for kind in kinds:
        found = [known.get((*kind, metric)) for metric in compare.JUDGED]
        seeds = min(one.seeds for one in found if one)
        rows.append([*kind, seeds, *(_paired_cell(one) if one else "" for one in found)])
    lines = [
        "Ours less the original in runs of equal seed: mean difference +- half the width of its 95 % interval (t).",
        "",
        *_table(["table", "epsilon", "", "seeds", *(SCORES[metric] for metric in compare.JUDGED)], rows),
    ]
    ratio = compare.ratio(comparisons)
    if ratio is not None:
        lines += ["", f"Mean pair error, ours / original: {ratio:.3f} in the geometric mean."]
    return lines


def _paired_cell(one: compare.Paired) -> str:
    if not one.seeds:
        return one.verdict
    text = f"{one.difference:+.3f} +- {one.half_width:.3f}"
    return text if one.verdict == "within noise" else f"{text} {one.verdict}"


def _utility_verdicts(report: Mapping[str, Any]) -> list[Verdict]:
    comparisons, found = compare.paired(report["runs"], compare.JUDGED), []
    for half in compare.HALVES:
        those = [one for one in comparisons if compare.half(one.table) == half]
        goal = f"{half}: pair error, worst pair and both AUCs not worse than the original's beyond noise"
        if not those:
            found.append((goal, "", _mark(None)))
            continue
        worse = [
            f"{one.table} eps={one.epsilon} {one.algorithm}, {SCORES[one.metric]} {_paired_cell(one)}"
            for one in those
            if one.verdict in ("worse", "failed")
        ]
        text = f"{len(those) - len(worse)} of {len(those)} cases, {min(one.seeds for one in those)} seeds or more each"
        found.append((goal, _but(text, "worse", worse), _mark(not worse)))
    ratio = compare.ratio(comparisons)
    goal = f"mean pair error at most {compare.GAIN:g} x the original's, all tables and epsilons"
    found.append(
        (goal, "" if ratio is None else f"{ratio:.3f} x", _mark(None if ratio is None else ratio <= compare.GAIN))
    )
    floors = compare.floored(report["runs"])
    above = [
        f"{one.table} eps={one.epsilon} {one.algorithm} {one.ours / one.floor:.2f} x" for one in floors if not one.met
    ]
    goal = f"mean pair error at most {compare.FLOOR_MARGIN:g} x the better of uniform and shrunk columns"
    text = f"{len(floors) - len(above)} of {len(floors)} cases" if floors else ""
    found.append((goal, _but(text, "above", above), _mark(not above if floors else None)))
    beside = [one for one in compare.beside_aim(report["runs"]) if one.epsilon == compare.SWIFT_EPSILON]
    above = [f"{one.table} {one.ratio:.2f} +- {one.spread:.2f} x" for one in beside if one.ratio > compare.SWIFT_MARGIN]
    goal = f"SWIFT: mean pair error at most {compare.SWIFT_MARGIN:g} x AIM's at epsilon {compare.SWIFT_EPSILON}"
    text = f"{len(beside) - len(above)} of {len(beside)} tables" if beside else ""
    return [*found, (goal, _but(text, "above", above), _mark(not above if beside else None))]


def _federated(report: Mapping[str, Any]) -> Lines:
    lines = [
        "Mean +- spread (standard deviation over seeds), in brackets the paper's. Trained on synthetic rows, tested on",
        "real ones; F1 is macro; LR one-hot, RF on codes. CDP is the clear twin; CaPS runs are whole studies through",
        "the services. *d* is the difference of mean workload errors to CDP in spreads of CDP, with its 90 % interval:",
        "two one-sided Welch tests at 5 % call it equivalent within a spread if the interval lies in [-1, 1]. The",
        "paper's figures are means of three runs, without a spread.",
        "",
    ]
    summary = sorted(federated.summarise(report), key=_place)
    for epsilon in sorted({row["epsilon"] for row in summary}, key=float):
        rows = []
        for row in summary:
            if row["epsilon"] != epsilon:
                continue
            published = federated.PAPER.get((row["dataset"], row["algorithm"]), {}).get(row["setting"])
            cells = []
            for i, metric in enumerate(METRICS):
                digits = 3 if metric == "error" else 2
                text = f"{row[metric]['mean']:.{digits}f} +- {row[metric]['spread']:.{digits}f}"
                cells.append(f"{text} ({published[i]:g})" if published and epsilon == "1" else text)
            compared = row["error"]
            d = "" if "interval" not in compared else f"{compared['difference']:+.2f} {_interval(compared)}"
            rows.append([_case(row), SETTINGS[row["setting"]], row["runs"], *cells, d])
        lines += [f"### epsilon = {epsilon}", ""]
        lines += [*_table(["dataset", "data", "runs", *(COLUMNS[m] for m in METRICS), "d"], rows), ""]
    rows = []
    for setting in ("horizontal", "vertical", "mixed"):
        for metric in METRICS:
            found = federated.pooled(report, setting, metric)
            if found:
                verdict = "equivalent" if found["equivalent"] else "not shown"
                rows.append(
                    [SETTINGS[setting], COLUMNS[metric], f"{found['difference']:+.2f}", _interval(found), verdict]
                )
    lines += ["### Equivalence, all datasets and algorithms together (epsilon = 1)", ""]
    lines += ["Each run in units of its own dataset's and algorithm's CDP spread; equivalent: within one spread.", ""]
    lines += _table(["data", "metric", "difference / spread", "90 % interval", "verdict"], rows)
    _plot_federated(summary)
    return [*lines, "", "![workload error](benchmarks/federated.svg)"]


def _place(row: Mapping[str, Any]) -> tuple[int, int, int]:
    """Rows as the paper has them, adult last."""
    dataset, setting = (*federated.NAMES, federated.ADULT).index(row["dataset"]), list(SETTINGS).index(row["setting"])
    return dataset, federated.ALGORITHMS.index(row["algorithm"]), setting


def _case(row: Mapping[str, Any]) -> str:
    return f"{_title(row['dataset'])}, {ALGORITHMS[row['algorithm']]}"


def _interval(found: Mapping[str, Any]) -> str:
    return f"[{found['interval'][0]:+.2f}, {found['interval'][1]:+.2f}]"


def _federated_verdicts(report: Mapping[str, Any]) -> list[Verdict]:
    """On the paper's tables at epsilon 1."""
    summary = sorted(federated.summarise(report), key=_place)
    rows = [row for row in summary if row["epsilon"] == "1" and row["dataset"] in federated.NAMES]
    found = []
    for setting in ("horizontal", "vertical", "mixed"):
        those = [row for row in rows if row["setting"] == setting]
        for what, metrics in (("workload error", ("error",)), ("AUC and F1", METRICS[:-1])):
            found.append(_within_spread(those, f"{SETTINGS[setting]} within the spread of CDP: {what}", metrics))
        found.append(_equivalence(report, setting))
    return [*found, *(_against_paper(rows, setting) for setting in ("horizontal", "vertical"))]


def _within_spread(rows: Sequence[Mapping[str, Any]], goal: str, metrics: Sequence[str]) -> Verdict:
    cases = [(row, metric) for row in rows for metric in metrics if "within" in row[metric]]
    if not cases:
        return goal, "", _mark(None)
    outside = [f"{_case(row)}, {COLUMNS[m]} {row[m]['difference']:+.2f}" for row, m in cases if not row[m]["within"]]
    runs = min(row["runs"] for row, _ in cases)
    text = f"mean in {len(cases) - len(outside)} of {len(cases)} cases, {runs} runs or more each"
    return goal, _but(text, "outside, in spreads", outside), _mark(not outside)


def _equivalence(report: Mapping[str, Any], setting: str) -> Verdict:
    """By the pooled tests."""
    pooled = {metric: federated.pooled(report, setting, metric) for metric in METRICS}
    known = {metric: found for metric, found in pooled.items() if found}
    goal = f"{SETTINGS[setting]} equivalent to CDP within one spread, all cases together"
    if not known:
        return goal, "", _mark(None)
    open_ = [f"{COLUMNS[metric]} {_interval(found)}" for metric, found in known.items() if not found["equivalent"]]
    text = f"shown for {len(known) - len(open_)} of {len(known)} metrics"
    return goal, _but(text, "not shown for", open_), _mark(not open_)


def _against_paper(rows: Sequence[Mapping[str, Any]], setting: str) -> Verdict:
    """Workload errors beside the published ones, to as many digits as those have."""
    goal = f"{SETTINGS[setting]} workload error at or below the paper's"
    above, count = [], 0
    central = {_case(row): f", CDP {row['error']['mean']:.3f}" for row in rows if row["setting"] == federated.CENTRAL}
    for row in rows:
        if row["setting"] == setting:
            published = federated.PAPER[row["dataset"], row["algorithm"]][setting][-1]
            mean, count = row["error"]["mean"], count + 1
            if round(mean, 2 if published >= 0.1 else 3) > published:
                case = _case(row)
                above.append(
                    f"{case} {mean:.3f} +- {row['error']['spread']:.3f} ({published:g}{central.get(case, '')})"
                )
    text = f"{count - len(above)} of {count} cases"
    return (goal, _but(text, "above", above), _mark(not above)) if count else (goal, "", _mark(None))


def _but(text: str, what: str, exceptions: Sequence[str]) -> str:
    return f"{text}; {what}: {'; '.join(exceptions)}" if exceptions else text


def _runtime(report: Mapping[str, Any]) -> Lines:
    lines = [
        "Seconds of whole studies over TLS on loopback, from the upload to the release, beside central runs in the",
        "same command. In brackets the paper's (8 vCPUs, MP-SPDZ simulated on one machine).",
        "",
    ]
    rows, split = [], []
    for key, entry in report.items():
        name, _, chosen = key.partition("/")
        label = _case({"dataset": name, "algorithm": chosen})
        paper = runtime.PAPER.get((name, chosen), (0.0, 0.0, 0.0))
        cells = [f"{entry['central']['seconds']:.2f} ({paper[0]:.0f})"]
        cells.append(f"{entry['mbi']['seconds']:.1f}" if "mbi" in entry else "not run")
        cells += [
            f"{entry[s]['seconds']:.2f} ({p:.0f})" for s, p in zip(("horizontal", "vertical"), paper[1:], strict=True)
        ]
        cells += [_mark(met) for met in runtime.goals(entry).values()]
        rows.append([label, *cells])
        for kind in ("central", "mbi", "horizontal", "vertical"):
            if kind in entry:
                flat = {**entry[kind], **entry[kind]["parts"]}
                title = {"central": "CDP, ours", "mbi": "CDP, mbi"}.get(kind) or SETTINGS[kind]
                times = [f"{flat[part]:.2f}" if part in flat else "" for part in runtime.PARTS]
                split.append([label, title, entry[kind]["rounds"], *times])
    head = ["", "CDP, our estimator", "CDP, mbi 2", "CaPS(H)", "CaPS(V)"]
    head += ["H faster than mbi", "H <= 2 CDP + 3 s", "V faster than mbi", "V <= 2 CDP + 3 s"]
    lines += [*_table(head, rows), "", "### Where the time goes", ""]
    lines += [
        "Seconds. compute, select, measure: at the slowest server; waiting: between coordinator and servers beyond",
        "that; generate: fits and estimates between steps; begin: seal and session; publish: last fit, attestations,",
        "rows.",
        "",
        *_table(["", "", "rounds", *runtime.PARTS], split),
    ]
    _plot_runtime(report)
    return [*lines, "", "![run time](benchmarks/runtime.svg)"]


def _runtime_verdicts(report: Mapping[str, Any]) -> list[Verdict]:
    aim = {key.partition("/")[0]: entry for key, entry in report.items() if key.endswith("/aim")}
    return [
        _in_time(aim, setting, goal, f"{SETTINGS[setting]} AIM {text}")
        for goal, text in (("beats mbi", "faster than central AIM with mbi 2"), ("within 2x + 3 s", "<= 2 CDP + 3 s"))
        for setting in ("horizontal", "vertical")
    ]


def _in_time(aim: Mapping[str, Any], setting: str, goal: str, text: str) -> Verdict:
    known = {name: entry for name, entry in aim.items() if runtime.allowed(entry)[goal] is not None}
    if not known:
        return text, "", _mark(None)
    late = [
        f"{_title(name)} {entry[setting]['seconds']:.2f} s, allowed {runtime.allowed(entry)[goal]:.2f} s, of it "
        + _profile({**entry[setting], **entry[setting]["parts"]}, runtime.PARTS)
        for name, entry in known.items()
        if not runtime.goals(entry)[f"{setting} {goal}"]
    ]
    return text, _but(f"{len(known) - len(late)} of {len(known)} datasets", "late", late), _mark(not late)


def _profile(seconds: Mapping[str, float], parts: Sequence[str]) -> str:
    """Where most of the time goes."""
    longest = sorted((part for part in parts if part in seconds), key=lambda part: -seconds[part])[:3]
    return ", ".join(f"{part} {seconds[part]:.2f}" for part in longest)


def _protocols(report: Mapping[str, Any]) -> Lines:
    rows = []
    for name, ours in report.items():
        rows.append([name, f"{ours['seconds']:.4f}", f"{ours['bytes'] / 1e3:,.1f}", ours["rounds"], "", ""])
        extras = {"noise drawn beforehand": ours["offline"]} if "offline" in ours else {}
        for label, entry in {**extras, **ours["beside"]}.items():
            ratios = [f"{entry[f'{k}_ratio']:.1f}" if f"{k}_ratio" in entry else "" for k in ("seconds", "bytes")]
            cells = ["", "", entry.get("skipped") or entry.get("failed")]
            if "seconds" in entry:
                cells = [f"{entry['seconds']:.4f}", f"{entry['bytes'] / 1e3:,.1f}", entry.get("rounds", "")]
            rows.append([f"&nbsp;&nbsp;{label}", *cells, *ratios])
    head = ["protocol", "seconds", "kB sent by all", "rounds", "times our seconds", "times our bytes"]
    return [
        "Ours online, with the noise drawn beforehand; then the drawing; the paper's variants on our engine; what the",
        "paper published (MP-SPDZ on its authors' machines); and spu on what it can do of the same task: the products,",
        "without lifting counts; scores and their maximum, without bias, weights and noise. It has no sampler.",
        "",
        *_table(head, rows),
    ]


def _schemes(report: Mapping[str, Any]) -> Lines:
    rows = []
    for task, entries in report.items():
        for scheme, entry in entries.items():
            ratios = [f"{entry[f'{key}_ratio']:.2f}" for key in ("seconds", "cpu_seconds", "bytes")]
            paper = schemes.published(task, scheme)
            rows.append(
                [
                    task,
                    scheme,
                    f"{entry['seconds']:.4f}",
                    f"{entry['cpu_seconds']:.4f}",
                    f"{entry['bytes'] / 1e3:,.1f}",
                    entry["rounds"],
                    *ratios,
                    *([f"{paper[0]:g}", f"{paper[1] / 1e6:,.3f}"] if paper else ["", ""]),
                ]
            )
    head = ["task", "scheme", "seconds", "CPU s of all", "kB sent by all", "rounds"]
    head += ["times passive: seconds", "CPU", "bytes", "the paper's seconds", "the paper's MB"]
    return [
        "The servers of all schemes ran at the same time and were asked in turn; noise was drawn beforehand. w counts",
        "one-hot columns, q marginals, n rows (of a join: at each of two holders). The paper's figures are of MP-SPDZ",
        "with as many servers and the same adversary, on its authors' machines.",
        "",
        *_table(head, rows),
    ]


def _schemes_verdicts(report: Mapping[str, Any]) -> list[Verdict]:
    return [(goal, text, _mark(met)) for goal, text, met in schemes.goals(report)]


def _schemes_runtime(report: Mapping[str, Any]) -> Lines:
    rows = []
    for key, entry in report.items():
        name, chosen, setting = key.split("/")
        label = f"{_case({'dataset': name, 'algorithm': chosen})}, {SETTINGS[setting]}"
        for scheme, one in entry.items():
            flat = {**one, **one["parts"]}
            times = [f"{flat[part]:.2f}" if part in flat else "" for part in runtime.PARTS]
            compared = [f"{one['even_seconds']:.2f}", f"{one['seconds_ratio']:.2f}"]
            rounds = ", ".join(map(str, one["every_rounds"]))
            rows.append([label, scheme, rounds, f"{one['seconds']:.2f}", *compared, *times])
    return [
        "Seconds of whole studies over TLS on loopback, from the upload to the release, under each scheme in turn;",
        "`rounds` of each repeat, and the repeat of median time with its parts. AIM takes as many rounds as its noise",
        "leads it to, so two runs of a study do different work. `even`: the median of what the repeats would have",
        "taken for the same number of selections and of measurements, the median of all schemes' runs of this study:",
        "the parts `select` and `measure` are scaled by their steps, `generate` and `waiting` by all steps, the others",
        "are as they are. `times passive` compares these.",
        "",
        *_table(["", "scheme", "rounds", "seconds", "even", "times passive", *runtime.PARTS], rows),
    ]


def _schemes_runtime_verdicts(report: Mapping[str, Any]) -> list[Verdict]:
    return [(goal, text, _mark(met)) for goal, text, met in schemes_runtime.goals(report)]


def _scaling(report: Mapping[str, Any]) -> Lines:
    titles = {
        "rows": "Rows, vertical, W = 200 columns (40 attributes of 5)",
        "holders": "Holders, horizontal, nine attributes",
        "queries": "Queries: a selection and a measurement, attributes of 5 categories",
        "domains": "Categories of each of nine attributes: a selection and a measurement",
    }
    tables, lines = {"workers": _workers, "join": _joins}, Lines()
    for part, found in report.items():
        if part in tables:
            lines += tables[part](found["sizes"])
            continue
        rows = []
        for size, entry in found["sizes"].items():
            row = [f"{int(size):,}", f"{entry['seconds']:.3f}", f"{entry['cpu_seconds']:.3f}"]
            row += [f"{entry['bytes'] / 1e6:.3f}", str(entry["rounds"])]
            if part == "rows":
                row += [
                    f"{entry['gemm']['seconds']:.3f}",
                    f"{entry['gemm_ratio']:.2f}",
                    f"{entry['gemm_cpu_ratio']:.2f}",
                ]
                row += [f"{entry[p]['cpu_seconds']:.2f}" if p in entry else "" for p in ("check", "count")]
                row += [f"{entry['share_bytes'] / 1e6:.0f}", f"{entry['working_memory'] / 1e6:.0f}"]
            if "offline" in entry:
                row += [f"{entry['offline']['seconds']:.3f}", f"{entry['cells']:,}"]
            rows.append(row)
        head = [part, "seconds", "CPU s of all servers", "MB sent by all", "rounds"]
        if part == "rows":
            head += [
                "float64 products, s",
                "ratio",
                "ratio of CPU",
                "check, CPU s",
                "count, CPU s",
                "shares, MB",
                "memory beside them, MB",
            ]
        if part in ("queries", "domains"):
            head += ["noise beforehand, s", "cells"]
        lines += [f"### {titles[part]}", "", *_table(head, rows), ""]
        lines += _rows_profile(found["sizes"]) if part == "rows" else []
        if found["law"]:
            law, unit = found["law"], "cell" if part in ("queries", "domains") else part[:-1]
            lines += [
                f"Fitted: {law['fixed']:.3g} s + {law['each'] * 1e6:.3g} µs per {unit}; exponent between the two "
                f"largest {law['exponent']:.2f}.",
                "",
            ]
    drawn = {part: found for part, found in report.items() if part not in tables}
    if drawn:
        _plot_scaling(drawn)
        lines.append("![scaling](benchmarks/scaling.svg)")
    return lines


def _workers(sizes: Mapping[str, Any]) -> Lines:
    head = ["rows, workers", "seconds", "CPU s of servers", "CPU s of workers", "MB sent by all", "server, MB"]
    head += ["worker, MB", "S2 alone: check, s", "count, s"]
    rows = []
    for size, entry in sizes.items():
        count, _, crew = size.partition(" x ")
        row = [f"{int(count):,}, {crew}", f"{entry['seconds']:.1f}", f"{entry['cpu_seconds']:.1f}"]
        row += [f"{entry['workers_cpu_seconds']:.1f}", f"{entry['bytes'] / 1e6:.3f}", f"{entry['peak'] / 1e6:.0f}"]
        row += [f"{entry['workers_peak'] / 1e6:.0f}"]
        row += [f"{entry['alone'][name]['seconds']:.1f}" for name in ("check", "count")]
        rows.append(row)
    title = "### Workers at each server, on columns that no server holds in memory, W = 200"
    return [title, "", *_table(head, rows), ""]


def _joins(sizes: Mapping[str, Any]) -> Lines:
    head = ["scheme, rows of each table", "seconds", "CPU s of all servers", "MB sent by all", "rounds"]
    head += ["largest server, MB", "forecast, MB", "S2 alone: CPU s", "of which checks", "computed, 2 threads, s"]
    rows = []
    for size, entry in sizes.items():
        row = [size, f"{entry['seconds']:.1f}", f"{entry['cpu_seconds']:.1f}", f"{entry['bytes'] / 1e6:.0f}"]
        row += [str(entry["rounds"]), f"{entry['peak'] / 1e6:.0f}", f"{entry['forecast'] / 1e6:.0f}"]
        alone = entry["alone"].get("1")
        if alone is not None:
            row += [f"{alone['cpu_seconds']:.2f}", f"{alone['phases']['checks']:.2f}"]
            row += [f"{alone['computed_seconds']['2']:.2f}"]
        rows.append(row + [""] * (len(head) - len(row)))
    return ["### Join of two tables, half of whose persons are the same", "", *_table(head, rows), ""]


def _rows_profile(sizes: Mapping[str, Any]) -> Lines:
    """Where the processor time of COMPUTE ANSWERS goes, at the largest size for which that is known."""
    known = [size for size, entry in sizes.items() if "check" in entry]
    if not known:
        return []
    entry = sizes[max(known, key=int)]
    check, counting, whole = (part["cpu_seconds"] for part in (entry["check"], entry["count"], entry))
    return [
        f"At n = {int(max(known, key=int)):,}, checking the columns takes {check:.1f} s of processor time when done "
        f"alone, counting {counting:.1f} s ({counting / entry['gemm']['cpu_seconds']:.2f} x the float64 products); "
        f"both together {whole:.1f} s.",
        "",
        f"Columns of up to {GROUP_ROWS:,} rows are shared in words of 16 bits, larger ones in words of 24, which are "
        "held in 32 bits and counted in 22. Larger words send more; further rows send nothing more, up to "
        f"{WIDE_GROUP_ROWS:,}. Beyond, each further group of so many rows sends its counts.",
        "",
    ]


def _bytes_by_words(sizes: Mapping[str, Any]) -> tuple[str, bool]:
    """What is sent at the fewest and most rows of each word size; and whether it depends on nothing else, and little.

    That is: not more at the most rows than at the fewest in the same words, and less than 1.5 x in larger words.
    """
    by_bits: dict[int, list[int]] = {}
    for n in sorted(map(int, sizes)):
        by_bits.setdefault(columns_bits(n), []).append(n)
    sent = {n: sizes[str(n)]["bytes"] for found in by_bits.values() for n in (found[0], found[-1])}
    factor = max(sent.values()) / min(sent.values())
    told = []
    for bits, found in by_bits.items():
        amounts = [f"{sent[n] / 1e6:.3f} MB at n = {n:,}" for n in dict.fromkeys((found[0], found[-1]))]
        told.append(f"in words of {bits} bits {', '.join(amounts)}")
    constant = all(sent[found[-1]] <= sent[found[0]] for found in by_bits.values())
    return f"{'; '.join(told)}: {factor:.2f} x between them", constant and factor < 1.5


def _scaling_verdicts(report: Mapping[str, Any]) -> list[Verdict]:
    sizes = report.get("rows", {}).get("sizes", {})
    name = "COMP vertical, n = 1,000,000, W = 200"
    if "1000000" not in sizes:
        return [(name, "", _mark(None))]
    million = sizes["1000000"]
    working, shares, estimate = (million[key] / 1e6 for key in ("working_memory", "share_bytes", "estimate"))
    ratio = f"{million['gemm_ratio']:.2f} x in wall time, {million['gemm_cpu_ratio']:.2f} x in processor time"
    if "check" in million:
        ratio += f" (checking alone {million['check']['cpu_seconds'] / million['gemm']['cpu_seconds']:.2f} x, "
        ratio += f"counting alone {million['count']['cpu_seconds'] / million['gemm']['cpu_seconds']:.2f} x)"
    sent, independent = _bytes_by_words(sizes)
    return [
        (f"{name}: server time <= 3 x float64 products", ratio, _mark(million["gemm_cpu_ratio"] <= 3)),
        (f"{name}: bytes independent of n", sent, _mark(independent)),
        (
            f"{name}: memory bounded by a server's policy (`largest_memory`, on this estimate)",
            f"{working:.0f} MB beside {shares:.0f} MB of shares; estimated {estimate:.0f} MB",
            _mark(working <= estimate),
        ),
    ]


_ROUND = ("select", "measure", "waiting", "generate")
"""Parts of an AIM round."""


def _network(report: Mapping[str, Any]) -> Lines:
    first = next(iter(report.values()))
    lines = [
        f"AIM on {_title(first['dataset'])}, {SETTINGS[first['setting']]}, through the services. The servers' lines",
        "pass relays that hold every byte back (`bench/delays.py`; not netem: no TCP slow start, no loss). A line's",
        "rate is of each direction of each of the three connections. The goal for a round: 1.3 x MPC rounds x round",
        "trip, plus the time on loopback.",
        "",
    ]
    rows = []
    for name, entry in report.items():
        per = entry["mpc_bytes"] / entry["rounds"] / 1e3
        times = [f"{entry['parts'][part] / entry['rounds']:.3f}" for part in _ROUND]
        rows.append(
            [
                name,
                f"{entry['seconds_per_round']:.3f}",
                f"{entry['mpc_rounds_per_round']:.1f}",
                f"{entry['mpc_rounds_per_round'] * entry['round_trip']:.3f}",
                f"{per:.0f}",
                f"{entry.get('goal', float('nan')):.3f}",
                _mark(entry.get("met")),
                *times,
                f"{entry['seconds']:.1f}",
            ]
        )
    head = ["line", "s per AIM round", "MPC rounds", "rounds x RTT, s", "kB per server", "goal, s", "verdict"]
    head += [*_ROUND, "whole study, s"]
    _plot_network(report)
    return [*lines, *_table(head, rows), "", "![network](benchmarks/network.svg)"]


def _network_verdicts(report: Mapping[str, Any]) -> list[Verdict]:
    entry = report.get("80 ms")
    name = "80 ms: an AIM round <= 1.3 x rounds x RTT + LAN time"
    if entry is None:
        return [(name, "", _mark(None))]
    text = f"{entry['seconds_per_round']:.2f} s, allowed {entry.get('goal', float('nan')):.2f} s"
    if entry.get("met") is False:
        each = {part: seconds / entry["rounds"] for part, seconds in entry["parts"].items()}
        text += f", of it {_profile(each, _ROUND)}"
    return [(name, text, _mark(entry.get("met")))]


def _apart(report: Mapping[str, Any]) -> Lines:
    first = next(iter(report.values()))
    rows = []
    for name, entry in report.items():
        line, _, algorithm = name.rpartition(", ")
        times = apart.faster(report, line) if algorithm != apart.ALGORITHMS[0] else None
        rows.append(
            [
                line,
                algorithm.upper(),
                f"{entry['error']:.4f}",
                f"{entry['steps']:.0f}",
                f"{entry['mpc_rounds']:.0f}",
                f"{entry['mpc_bytes'] / 1e3:.1f}",
                f"{entry['run']:.2f}",
                f"{entry['seconds']:.2f}",
                "" if times is None else f"{times:.1f} x",
            ]
        )
    head = ["line", "", "workload error", "steps", "MPC rounds", "kB per server", "run, s", "whole study, s", "faster"]
    return [
        f"{_title(first['dataset'])}, {SETTINGS[first['setting']]}, epsilon 1, through the services, over the relays",
        "of the section before. The error is the mean, all else the median of the studies.",
        "",
        *_table(head, rows),
    ]


def _apart_verdicts(report: Mapping[str, Any]) -> list[Verdict]:
    times = apart.faster(report, apart.GOAL_LINE)
    return [
        (
            f"{apart.GOAL_LINE}: a whole study with SWIFT at least {apart.GOAL:.0f} x faster than with AIM",
            "" if times is None else f"{times:.1f} x",
            _mark(None if times is None else times >= apart.GOAL),
        )
    ]


def _noise(report: Mapping[str, Any]) -> Lines:
    sigma = report["sigma"]
    rows = [
        [
            name,
            f"{entry['variance']:.0f}",
            f"{entry['ratio']:.3f} +- {entry['error']:.3f}",
            f"{entry['kurtosis']:.2f}",
            f"{entry['largest'] / sigma:.2f}",
            f"{1e6 * entry['seconds'] / report['cells']:.1f}",
            f"{entry['bytes'] / report['cells']:.0f}",
            "no" if name.startswith("paper:") else "yes",
        ]
        for name, entry in report["variance"].items()
    ]
    lines = [
        f"{report['cells']:,} cells opened by three servers, sigma = {sigma:g}; noise drawn within the time. The ratio",
        "is to the central mechanism's variance: sigma^2, or 2 sigma^2 of Laplace noise.",
        "",
        *_table(
            [
                "sampler",
                "variance",
                "of the central one",
                "kurtosis",
                "largest / sigma",
                "µs a cell",
                "bytes a cell",
                "DP",
            ],
            rows,
        ),
        "",
        "Workload error of AIM at epsilon = 1, and its difference to central noise in float64, in spreads:",
        "",
    ]
    found = []
    for name, samplers in report["utility"].items():
        for sampler, entry in samplers.items():
            d = "" if "interval" not in entry else f"{entry['difference']:+.2f} {_interval(entry)}"
            text = f"{entry['mean']:.4f} +- {entry['spread']:.4f}"
            found.append([_title(name), sampler, len(entry["errors"]), text, d])
    return [*lines, *_table(["dataset", "noise", "runs", "workload error", "d"], found)]


def _noise_verdicts(report: Mapping[str, Any]) -> list[Verdict]:
    default = report["variance"]["default"]
    met = abs(default["ratio"] - 1) <= 3 * default["error"]
    return [("the default sampler's variance is the central mechanism's", f"{default['ratio']:.3f} x", _mark(met))]


def _join(report: Mapping[str, Any]) -> Lines:
    default = [
        [
            _size(name),
            f"{entry['seconds']:.2f}",
            f"{entry['rows_per_second']:,.0f}",
            f"{entry['bytes_per_row']:.0f}",
            entry["rounds"],
            f"{entry['peak_memory'] / 1e6:.0f}",
            ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in entry["phases"].items()),
        ]
        for name, entry in report.items()
        if name != "light"
    ]
    light = [
        [
            _size(name),
            f"{entry['matching']:.2f}",
            f"{entry['rows_per_second']:,.0f}",
            f"{entry['sent_per_row']:.0f}",
            f"{entry['received_per_row']:.0f}",
            f"{entry['seconds']:.2f}",
        ]
        for name, entry in report.get("light", {}).items()
    ]
    rows = ["rows at each of two holders", "seconds", "rows per second"]
    return [
        "Rows per second are those of both holders, half of them of the same persons.",
        "",
        "### Default: shuffled and matched by the servers",
        "",
        *_table([*rows, "bytes a row between servers", "rounds", "MB peak", "seconds by phase"], default),
        "",
        "### Light: tags by an oblivious PRF, with the holders' help",
        "",
        *_table([*rows, "bytes a row sent by a holder", "received", "seconds to the last receipt"], light),
    ]


def _size(name: str) -> str:
    return f"{int(name.rpartition('_n')[2]):,}"


def _join_verdicts(report: Mapping[str, Any]) -> list[Verdict]:
    goal, linear = f"default join >= {JOINED:,} rows per second", "default join linear in rows"
    sizes = sorted((name for name in report if name != "light"), key=lambda name: int(name.rpartition("_n")[2]))
    if not sizes:
        return [(goal, "", _mark(None)), (linear, "", _mark(None))]
    last, met = report[sizes[-1]], report[sizes[-1]]["rows_per_second"] >= JOINED
    text = f"{last['rows_per_second']:,.0f} with {_size(sizes[-1])} rows at each holder"
    text += "" if met else f", of {last['seconds']:.2f} s {_profile(last['phases'], list(last['phases']))}"
    if len(sizes) < 2:
        return [(goal, text, _mark(met)), (linear, "", _mark(None))]
    growth = last["seconds"] / report[sizes[-2]]["seconds"]
    more = int(sizes[-1].rpartition("_n")[2]) / int(sizes[-2].rpartition("_n")[2])
    return [
        (goal, text, _mark(met)),
        (linear, f"{growth:.1f} x the time for {more:.1f} x the rows", _mark(growth <= 1.25 * more)),
    ]


def _generate(report: Mapping[str, Any]) -> Lines:
    rows, whole = [], []
    for name, ours in report["rounds"].items():
        theirs = ours.get("beside", {}).get("mbi")
        cells = [f"{theirs['cpu_seconds']:.1f}", f"{theirs['cpu_ratio']:.0f}"] if theirs else ["not run", ""]
        rows.append(
            [_title(name), ours["rounds"], f"{ours['cpu_seconds']:.2f}", *cells, f"{ours['workload_error']:.4f}"]
        )
    for name, runs in report["whole"].items():
        seconds = [one["cpu_seconds"] for one in runs]
        whole.append(
            [
                _title(name),
                len(runs),
                f"{median(seconds):.1f}",
                f"{max(seconds):.1f}",
                f"{max(one['peak_bytes'] for one in runs) / 2**20:.0f}",
                f"{median(one['iterations'] / one['fits'] for one in runs):.0f}",
                f"{max(one['loss_gap'] for one in runs):.3%}",
                f"{median(one['error'] for one in runs):.4f}",
            ]
        )
    return [
        *_table(["dataset", "rounds", "CPU s, ours", "CPU s, mbi 2", "times ours", "workload error"], rows),
        "",
        "Whole central runs of AIM at epsilon 1. Tables named by columns x categories are invented, of 500,000 rows.",
        "`above least`: by how much the loss of a run's last fit exceeds that of a fit of ten times as many iterations",
        "to a tolerance 500 times as small, at most.",
        "",
        *_table(
            ["table", "runs", "CPU s", "at most", "peak MB", "iterations a fit", "above least", "workload error"], whole
        ),
    ]


ESTIMATOR_GAIN = 5
DESCENT = {
    "breast-cancer.caps": (0.0634, 48.1325),
    "compas-caps": (0.271, 78.7956),
    "diabetes.caps": (0.0976, 61.4197),
    "adult": (59.9, 1089.677),
}
"""CPU seconds, on a core of 2.8 GHz, and loss of mirror descent with momentum, 1,000 iterations at most: this estimator
at commit 9a64b43, by the same command."""
DESCENT_RUNS = (
    *(25.1, 27.9, 28.0, 28.9, 30.8, 32.3, 33.4, 45.3, 50.5, 54.4),
    *(55.4, 57.5, 58.2, 64.6, 66.2, 67.3, 73.7, 76.2, 82.6, 86.8),
)
"""CPU seconds of 20 whole runs on adult at that commit, which had no seeds, with other runs beside them, by `python -m
bench.central kernel adult aim 1`."""


def _generate_verdicts(report: Mapping[str, Any]) -> list[Verdict]:
    found: list[Verdict] = []
    for name, most in generate.MOST_SECONDS.items():
        runs = report["whole"].get(name, [])
        slowest = max((one["cpu_seconds"] for one in runs), default=0.0)
        goal = f"{_title(name)}: a whole run of AIM takes at most {most:g} CPU s"
        text = f"at most {slowest:.1f} s in {len(runs)} runs" if runs else ""
        found.append((goal, text, _mark(slowest <= most if runs else None)))
    goal = f"adult: whole runs of AIM take {ESTIMATOR_GAIN} x less CPU time than with mirror descent, by rank of ten"
    gains = _gains([one["cpu_seconds"] for one in report["whole"].get("adult", [])])
    text = f"{min(gains):.1f} to {max(gains):.1f} x" if gains else ""
    found.append((goal, text, _mark(min(gains) >= ESTIMATOR_GAIN if gains else None)))
    goal = f"adult, round by round: {ESTIMATOR_GAIN} x less CPU time than mirror descent on the same measurements"
    ours = report["rounds"].get("adult")
    times = DESCENT["adult"][0] / ours["cpu_seconds"] if ours else 0.0
    found.append((goal, f"{times:.1f} x" if ours else "", _mark(times >= ESTIMATOR_GAIN if ours else None)))
    losses = {name: one["loss"] / DESCENT[name][1] - 1 for name, one in report["rounds"].items() if name in DESCENT}
    goal = f"the loss is at most {generate.LOSS_GAP:.1%} above that of mirror descent"
    text = ", ".join(f"{_title(name)} {more:+.2%}" for name, more in losses.items())
    return [*found, (goal, text, _mark(max(losses.values()) <= generate.LOSS_GAP if losses else None))]


def _gains(seconds: Sequence[float]) -> list[float]:
    """How many times faster than with mirror descent the fastest run is, the next one, and so on, if there are ten.

    Of mirror descent the mean of two neighbours, since there are 20 runs.
    """
    before = [(one + other) / 2 for one, other in zip(DESCENT_RUNS[::2], DESCENT_RUNS[1::2], strict=True)]
    if len(seconds) != len(before):
        return []
    return [slow / fast for slow, fast in zip(before, sorted(seconds), strict=True)]


def _engine(report: Mapping[str, Any]) -> Lines:
    rows = []
    for name, ours in report.items():
        rows.append([name, f"{ours['seconds']:.4f}", f"{ours['bytes'] / 1e6:.2f}", ours["rounds"], ""])
        for peer, entry in ours["beside"].items():
            rows.append(_peer(peer, entry))
            if "to_ring" in entry:
                rows.append(_peer(f"{peer}, result as ring shares", entry["to_ring"]))
    return _table(["task", "seconds", "MB sent by all", "rounds", "times our seconds"], rows)


def _peer(name: str, entry: Mapping[str, Any]) -> list[Any]:
    seconds = entry.get("seconds_scaled", entry.get("seconds"))
    if seconds is None:
        reason = next((f"{why}: {entry[why]}" for why in ("skipped", "failed") if why in entry), "not measured")
        return [f"&nbsp;&nbsp;{name}", reason, "", "", ""]
    sent = entry.get("bytes_scaled", entry.get("bytes"))
    ratio = f"{entry['seconds_ratio']:.2f}" if "seconds_ratio" in entry else ""
    scaled = f" (scaled from {entry['measured_rows']:,} rows)" if "seconds_scaled" in entry else ""
    megabytes = f"{sent / 1e6:.2f}" if sent is not None else ""
    return [f"&nbsp;&nbsp;{name}{scaled}", f"{seconds:.4f}", megabytes, entry.get("rounds", ""), ratio]


Section = Callable[[Mapping[str, Any]], Lines]
Judge = Callable[[Mapping[str, Any]], list[Verdict]]


def _load(report: Mapping[str, Any]) -> Lines:
    studies, health = report["studies"], report["health"]
    lines = [
        "Holders are light clients of one process on the same two cores, each with a certificate and an address of its",
        "own, all at once, with real shares over TLS. Refused or lost requests are made again, as a holder does.",
        *([f"Load average of others before it began: {report['others']:.1f}."] if "others" in report else []),
        "",
        *_table(
            [
                "holders",
                "manifest kB",
                "propose s",
                "contribute s",
                "requests",
                "refused or lost",
                "p99 ms",
                "run s",
                "CPU s of servers",
                "of the coordinator",
            ],
            [
                [
                    size,
                    f"{one['bytes'] / 1e3:.0f}",
                    f"{one['propose']:.1f}",
                    f"{one['contribute']['seconds']:.1f}",
                    one["contribute"]["requests"],
                    _refused(one["contribute"]),
                    _ms(one["contribute"]["latency"]["p99"]),
                    f"{one['run']:.1f}",
                    f"{_computed(one['cpu'], coordinator=False):.1f}",
                    f"{_computed(one['cpu'], coordinator=True):.1f}",
                ]
                for size, one in studies.items()
            ],
        ),
        "",
    ]
    for one in studies.values():
        if "streams" in one:
            seen = one["streams"]
            lines += [
                f"{seen['streams']} event streams of that run at once, {seen['ended']} of them to its end: "
                f"{seen['events']} events; refused or lost {_refused(seen)}.",
                "",
            ]
    got = report["downloads"]
    lines += [
        f"{got['downloads']} downloads of the release, {got['bytes'] / 1e6:.1f} MB, in {got['seconds']:.1f} s: "
        f"p50 {_ms(got['latency']['p50'])} ms, p99 {_ms(got['latency']['p99'])} ms; refused or lost {_refused(got)}.",
        "",
        "Liveness and readiness meanwhile, asked of all services in turn by another process:",
        "",
        *_table(
            ["under", "", "asked", "p50 ms", "p99 ms", "max ms", "not answered with 200"],
            [
                [
                    phase,
                    f"`{path}`",
                    seen[path]["count"],
                    *(_ms(seen[path][name]) for name in ("p50", "p99", "max")),
                    sum(number for what, number in seen["lost"].items() if what.startswith(path)),
                ]
                for phase, seen in health.items()
                for path in load.PATHS
            ],
        ),
        "",
        *_table(
            ["service", "MB at first", "MB at most", "descriptors", "threads"],
            [
                [name, f"{one['before'] / 1e6:.0f}", f"{one['peak'] / 1e6:.0f}", one["descriptors"], one["threads"]]
                for name, one in report["services"].items()
            ],
        ),
    ]
    return lines


def _contribute(report: Mapping[str, Any]) -> Lines:
    return [
        f"One holder of {len(contribute.KINDS)} columns in a Parquet file that stays where it is, real services over",
        "TLS on the same cores. `push` sends the vector to two servers; the third gets seeds. Bytes of the vector per",
        "second of one core are the limit, unless a disk or the network is slower.",
        "",
        *_table(
            [
                "rows",
                "file MB",
                "vector MB",
                *(f"{part} s (CPU s of the holder)" for part in ("check", "share", "push")),
                "CPU s of S2 in push",
                "MB/s of a holder's core, sent twice",
                "MB/s of a server's core",
                "holder MB at most",
                "servers",
            ],
            [
                [
                    f"{int(rows):,}",
                    f"{one['file'] / 1e6:.0f}",
                    f"{one['vector'] / 1e6:.0f}",
                    *(
                        f"{one['parts'][part]['seconds']:.1f} ({one['parts'][part]['north']:.1f})"
                        for part in ("check", "share", "push")
                    ),
                    f"{one['parts']['push']['S2']:.1f}",
                    f"{2 * one['vector'] / 1e6 / one['parts']['push']['north']:.0f}",
                    f"{one['vector'] / 1e6 / one['parts']['push']['S2']:.0f}",
                    f"{one['peak']['north'] / 1e6:.0f}",
                    f"{max(size for name, size in one['peak'].items() if name != 'north') / 1e6:.0f}",
                ]
                for rows, one in report["rows"].items()
            ],
        ),
    ]


def _contribute_verdicts(report: Mapping[str, Any]) -> list[Verdict]:
    rows, largest = max(report["rows"].items(), key=lambda item: int(item[0]))
    peak = largest["peak"]["north"]
    return [
        (
            f"A holder contributes {int(rows):,} rows within {contribute.MOST_MEMORY / 1e9:.0f} GB of memory",
            f"{peak / 1e6:.0f} MB",
            _mark(peak <= contribute.MOST_MEMORY),
        )
    ]


def _computed(cpu: Mapping[str, Mapping[str, float]], *, coordinator: bool) -> float:
    return sum(
        seconds for spent in cpu.values() for name, seconds in spent.items() if (name == COORDINATOR) == coordinator
    )


def _refused(found: Mapping[str, Any]) -> str:
    return ", ".join(f"{number} x {what}" for what, number in sorted(found["refusals"].items())) or "0"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.0f}"


def _load_verdicts(report: Mapping[str, Any]) -> list[Verdict]:
    seen = {(phase, path): found[path] for phase, found in report["health"].items() for path in load.PATHS}
    lost = sum(sum(found["lost"].values()) for found in report["health"].values())
    (phase, path), worst = max(seen.items(), key=lambda item: item[1]["p99"])
    most = max(one["max"] for one in seen.values())
    measured = f"worst p99 {_ms(worst['p99'])} ms ({path}, {phase}), max {_ms(most)} ms, {lost} not answered"
    sizes = list(report["studies"])
    first, last = (
        sum(report["studies"][size]["cpu"]["contribute"].values()) / int(size) for size in (sizes[0], sizes[-1])
    )
    each = f"{1e3 * first:.0f} ms each of {sizes[0]}, {1e3 * last:.0f} ms each of {sizes[-1]}"
    return [
        (
            f"{sizes[-1]} holders cost services processor time linear in their number (at most 1.25 x each)",
            each,
            _mark(last <= 1.25 * first),
        ),
        (
            f"Liveness and readiness within {_ms(AT_LATEST)} ms under load (p99)",
            measured,
            _mark(worst["p99"] <= AT_LATEST and not lost),
        ),
    ]


def _pages(report: Mapping[str, Any]) -> Lines:
    return [
        f"At {pages.STUDIES} studies of {pages.ATTRIBUTES} columns, one of them released, beside a release of "
        f"{pages.WIDE} columns: every page",
        "that a person finds by links, over TLS, on the clock and of the service's processor; of several pages of a",
        "kind, the slowest. `first` is after the service was restarted; `then` is the median of the following.",
        "",
        *_table(
            ["person", "page", "first ms", "CPU ms", "then ms", "CPU ms", "kB"],
            [
                [
                    person,
                    f"`{kind}`",
                    *(_ms(one[name]) for name in ("first_seconds", "first_cpu_seconds", "seconds", "cpu_seconds")),
                    f"{one['bytes'] / 1e3:.0f}",
                ]
                for person, kinds in report.items()
                for kind, one in kinds.items()
            ],
        ),
    ]


def _pages_verdicts(report: Mapping[str, Any]) -> list[Verdict]:
    return [
        (f"Pages within {words}", f"{count - slow} of {count}", _mark(not slow))
        for words, slow, count in pages.slow_ones(report)
    ]


SECTIONS: dict[str, tuple[str, Section, Judge | None]] = {
    "utility": ("Utility", _utility, _utility_verdicts),
    "federated": ("Federated beside central (the paper's Table 1)", _federated, _federated_verdicts),
    "runtime": ("Run time (the paper's Table 2)", _runtime, _runtime_verdicts),
    "protocols": ("MPC protocols (the paper's Table 3)", _protocols, None),
    "schemes": ("Active security: Table 3 under each scheme", _schemes, _schemes_verdicts),
    "schemes_runtime": ("Active security: whole studies", _schemes_runtime, _schemes_runtime_verdicts),
    "schemes_join": ("Active security: record alignment", _schemes, None),
    "scaling": ("Scaling (the paper's Figure 2)", _scaling, _scaling_verdicts),
    "contribute": ("Contributing a large table", _contribute, _contribute_verdicts),
    "load": ("Load", _load, _load_verdicts),
    "pages": ("Pages", _pages, _pages_verdicts),
    "network": ("Network", _network, _network_verdicts),
    "apart": ("Servers far apart: SWIFT beside AIM", _apart, _apart_verdicts),
    "noise": ("Noise", _noise, _noise_verdicts),
    "join": ("Record alignment", _join, _join_verdicts),
    "generate": ("Estimator", _generate, _generate_verdicts),
    "engine": ("Engine", _engine, None),
}
"""In the order of the page: title, tables and plots, goals."""


def _figure(width: float, height: float, panels: int = 1) -> tuple[Any, Any]:
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "caps"  # the same bytes from the same results
    mpl.rcParams["font.size"] = 8
    from matplotlib import pyplot

    return pyplot.subplots(1, panels, figsize=(width, height), squeeze=False, layout="constrained")


def _save(figure: Any, name: str) -> None:
    from matplotlib import pyplot

    figure.savefig(docs() / "benchmarks" / f"{name}.svg", metadata={"Date": None})
    pyplot.close(figure)


def _plot_federated(summary: Sequence[Mapping[str, Any]]) -> None:
    rows = [row for row in summary if row["epsilon"] == "1"]
    cases = list(dict.fromkeys((row["dataset"], row["algorithm"]) for row in rows))
    figure, ((axes,),) = _figure(7, 3)
    for i, setting in enumerate(SETTINGS):
        found = {(row["dataset"], row["algorithm"]): row["error"] for row in rows if row["setting"] == setting}
        chosen = [case for case in cases if case in found]
        axes.errorbar(
            [cases.index(case) + 0.15 * (i - 1.5) for case in chosen],
            [found[case]["mean"] for case in chosen],
            yerr=[found[case]["spread"] for case in chosen],
            fmt="o",
            capsize=3,
            markersize=3,
            label=SETTINGS[setting],
        )
    axes.set_xticks(range(len(cases)), [f"{_title(name)}\n{ALGORITHMS[chosen]}" for name, chosen in cases])
    axes.set_yscale("log")
    axes.set_ylabel("workload error, mean and spread")
    axes.legend()
    _save(figure, "federated")


def _plot_runtime(report: Mapping[str, Any]) -> None:
    figure, ((axes,),) = _figure(7, 3.2)
    kinds = {"central": "CDP, ours", "horizontal": "CaPS(H)", "vertical": "CaPS(V)", "mbi": "CDP, mbi 2"}
    for i, (kind, label) in enumerate(kinds.items()):
        places = [k for k, entry in enumerate(report.values()) if kind in entry]
        seconds = [entry[kind]["seconds"] for entry in report.values() if kind in entry]
        axes.bar([place + 0.2 * (i - 1.5) for place in places], seconds, 0.2, label=label)
    names = [key.partition("/") for key in report]
    axes.set_xticks(range(len(names)), [f"{_title(name)}\n{ALGORITHMS[chosen]}" for name, _, chosen in names])
    axes.set_yscale("log")
    axes.set_ylabel("seconds")
    axes.legend()
    _save(figure, "runtime")


def _plot_scaling(report: Mapping[str, Any]) -> None:
    figure, (panels,) = _figure(9, 2.6, len(report))
    for axes, (part, found) in zip(panels, report.items(), strict=True):
        sizes = [int(size) for size in found["sizes"]]
        axes.loglog(sizes, [entry["seconds"] for entry in found["sizes"].values()], "o-", label="CaPS")
        if part == "rows":
            products = [entry["gemm"]["seconds"] for entry in found["sizes"].values()]
            axes.loglog(sizes, products, "s--", label="float64 products")
            axes.legend()
        axes.set_xticks(sizes, [_short(size) for size in sizes])
        axes.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
        axes.set_xlabel(part)
        axes.set_ylabel("seconds")
    _save(figure, "scaling")


def _short(number: int) -> str:
    """As on an axis: 300k, 1M."""
    for unit, letter in ((1_000_000, "M"), (1_000, "k")):
        if number >= unit:
            return f"{number / unit:g}{letter}"
    return str(number)


def _plot_network(report: Mapping[str, Any]) -> None:
    figure, ((axes,),) = _figure(6, 2.8)
    names = list(report)
    axes.bar(names, [entry["seconds_per_round"] for entry in report.values()], 0.5, label="an AIM round")
    goals = [entry.get("goal", 0.0) for entry in report.values()]
    axes.plot(names, goals, "k_", markersize=24, label="goal")
    axes.set_ylabel("seconds")
    axes.tick_params(axis="x", labelsize=6)
    axes.legend()
    _save(figure, "network")
