"""`python -m bench.peers [--json] [PEER...]`: measures the peers alone."""

import argparse
import json
from collections.abc import Callable
from typing import Any

from bench.peers.measure import measure_blas, measure_mpyc, measure_pingpong, measure_spu

PEERS: dict[str, Callable[[], dict[str, Any]]] = {
    "spu": measure_spu,
    "mpyc": measure_mpyc,
    "asyncio_tls": measure_pingpong,
    "blas": measure_blas,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description="Measures CaPS's alternatives.")
    parser.add_argument("peers", nargs="*", metavar="PEER", help=f"one of {', '.join(PEERS)}; all if none is given")
    parser.add_argument("--json", action="store_true", help="print JSON rather than a table")
    arguments = parser.parse_args()
    unknown = set(arguments.peers) - set(PEERS)
    if unknown:
        parser.error(f"no such peer: {', '.join(sorted(unknown))}")
    results = {name: PEERS[name]() for name in arguments.peers or PEERS}
    if arguments.json:
        print(json.dumps(results, indent=2))
        return
    for peer, entries in results.items():
        for name, entry in entries.items():
            print(f"{peer:12} {name:20} {_line(entry)}")


def _line(entry: dict[str, Any]) -> str:
    if "seconds" not in entry:
        return str(entry)
    rows = f" (at {entry['measured_rows']} of {entry['rows']} rows)" if "measured_rows" in entry else ""
    return f"{entry['seconds']:.6f} s, {entry['cpu_seconds']:.6f} s of processors{rows}"


if __name__ == "__main__":
    main()
