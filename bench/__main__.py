"""`python -m bench NAME [--json] [--save]`: measure one subject and print it; `report` writes docs/benchmarks.md."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from bench import results
from bench.results import BY_SCHEME

SUBJECTS = {
    "engine": "the MPC engine over TLS beside spu, mpyc, bare TLS and plain BLAS",
    "protocols": "COMPUTE ANSWERS, SELECT and MEASURE over TLS beside the paper's own variants (Table 3)",
    "join": "private record alignment over TLS: rows per second, bytes, memory",
    "judge": "parsing, judging, checking and planning of large manifests",
    "coverage": "how often confidence intervals of counts contain the truth, in the clear",
    "startup": "seconds until `caps --help` and every command's --help have answered",
    "pages": "server time of each page at 100 studies and 20 attributes",
}
STUDIES = {
    "generate": "our estimator beside mbi on the paper's tables and adult; whole runs of AIM on large tables",
    "utility": "marginals, correlations and classifiers on every table, ours beside the published mechanisms",
    "federated": "classifiers and workload error of CDP, CaPS(H), CaPS(V) and mixed (Table 1)",
    "runtime": "whole studies through the services beside central runs, ours and mbi's (Table 2)",
    "scaling": "rows, holders, queries and domain: growth laws (Figure 2)",
    "network": "an AIM round between servers far apart or on thin lines",
    "apart": "whole studies of AIM and SWIFT between servers far apart: error, rounds and seconds",
    "contribute": "a large table from its file to three receipts: time, processor time and memory of every party",
    "load": "a thousand holders, two hundred event streams, ten thousand downloads: time, memory, refusals",
    "noise": "variance and utility of every sampler beside the central mechanism",
}
"""Subjects with options of their own, which are saved as they grow."""


def main(arguments: list[str]) -> int:
    """Parse the command line and run one subject."""
    options = _parser().parse_args(arguments)
    if options.subject == "report":
        print(import_module("bench.report").write())
        return 0
    by_scheme = options.subject in BY_SCHEME and options.schemes
    subject = BY_SCHEME[options.subject] if by_scheme else options.subject
    results.begin(subject)
    module = import_module(f"bench.{subject}")
    record = _recorder(subject, arguments if options.save else None)
    if options.subject in STUDIES:
        report = module.measure(options, record)
    else:
        more = {"large": options.large} if options.subject == "join" else {}
        report = module.measure(repeats=options.repeats, peers=not options.without_peers, **more)
        record(report)
    print(json.dumps(report, indent=2) if options.json else module.table(report))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    subjects = parser.add_subparsers(dest="subject", required=True)
    for name, summary in {**SUBJECTS, **STUDIES}.items():
        subject = subjects.add_parser(name, help=summary, description=summary)
        subject.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
        subject.add_argument("--save", action="store_true", help="write bench/results/NAME.json, too")
        if name in STUDIES:
            import_module(f"bench.{name}").arguments(subject)
            continue
        subject.add_argument("--repeats", type=int, default=7, help="measured repetitions of each task (default 7)")
        subject.add_argument("--without-peers", action="store_true", help="skip spu and mpyc, which take minutes")
        if name in BY_SCHEME:
            subject.add_argument("--schemes", action="store_true", help="under every scheme, side by side")
        if name == "join":
            subject.add_argument("--large", action="store_true", help="also a million rows at each holder")
    subjects.add_parser("report", help="docs/benchmarks.md and its plots from bench/results/*.json")
    return parser


def _recorder(subject: str, arguments: Sequence[str] | None) -> Callable[[Mapping[str, Any]], None]:
    """What saves a report, or forgets it if there are no arguments."""

    def record(report: Mapping[str, Any]) -> None:
        if arguments is not None:
            results.save(subject, report, arguments=arguments)

    return record


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
