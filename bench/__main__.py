"""`python -m bench NAME [--json]`: measure one subject and print it, as a table or as one JSON object."""

from __future__ import annotations

import argparse
import json
import sys
from importlib import import_module

SUBJECTS = {
    "engine": "the MPC engine over TLS beside spu, mpyc, bare TLS and plain BLAS",
    "protocols": "COMPUTE ANSWERS, SELECT and MEASURE over TLS beside the paper's own variants",
    "join": "private record alignment over TLS: rows per second, bytes, memory",
    "generate": "our estimator beside mbi on the paper's tables and adult",
}


def main(arguments: list[str]) -> int:
    """Parse the command line and run one subject."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    subjects = parser.add_subparsers(dest="subject", required=True)
    for name, summary in SUBJECTS.items():
        subject = subjects.add_parser(name, help=summary, description=summary)
        subject.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
        subject.add_argument("--repeats", type=int, default=7, help="measured repetitions of each task (default 7)")
        subject.add_argument("--without-peers", action="store_true", help="skip spu and mpyc, which take minutes")
        if name == "join":
            subject.add_argument("--large", action="store_true", help="also a million rows at each holder")
    options = parser.parse_args(arguments)
    module = import_module(f"bench.{options.subject}")
    more = {"large": options.large} if options.subject == "join" else {}
    report = module.measure(repeats=options.repeats, peers=not options.without_peers, **more)
    print(json.dumps(report, indent=2) if options.json else module.table(report))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
