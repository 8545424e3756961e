"""A large table from its file to three receipts: what the holder and the servers take for it, and what limits it.

Real services on this host, over TLS. A holder of columns contributes a Parquet file that stays where it is: the file is
read and checked, encoded and shared, and vectors are pushed to the servers.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl

from bench.central import DELTA
from bench.studies import RECORD, client, until
from caps.basics.uniform import Uniform
from caps.study import Manifest
from deploy.federation import COORDINATOR, POLICY, POPULATIONS, Federation

ROWS = (1_000_000, 10_000_000)
KINDS = ("text",) * 15 + ("integer",) * 9 + ("float",) * 5
"""Of the columns, beside the one with the numbers of slots."""
LETTERS = ("a", "b", "c", "d")
ROW_GROUP = 1 << 18
MOST_MEMORY = 1_000_000_000
"""Bytes of a holder, whatever the rows."""
PATIENCE = 3600.0


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS), help="a contribution for each")


def measure(options: argparse.Namespace, record: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
    """One contribution for each number of rows, in a federation of its own."""
    report: dict[str, Any] = {"others": os.getloadavg()[1], "rows": {}}
    for rows in options.rows:
        report["rows"][str(rows)] = contributed(rows)
        record(report)
    return report


def contributed(rows: int) -> dict[str, Any]:
    """What one contribution takes: seconds and processor time of each part, bytes, and the largest memory."""
    with tempfile.TemporaryDirectory(prefix="caps-contribute-") as scratch:
        table = Path(scratch, "table.parquet")
        write(table, rows)
        policy = f"{POLICY}largest_slots: {rows}\nlargest_memory: {1 << 40}\n"
        with Federation(Path(scratch, "parties"), ("north", "south"), policy=policy) as found:
            (found.places["north"].home / "sources.toml").write_text(f'[table]\nfile = "{table}"\n')
            found.start()
            found.wait_ready()
            manifest = manifest_of(found, rows)
            with client(found, COORDINATOR, "operator") as operator:
                for server in operator.propose(manifest).servers:
                    if server.state == "refused":
                        raise RuntimeError(f"{server.server} refused: {server.reason}")
            with client(found, "north", "operator") as person:
                person.fetch(manifest.coordinator.url, manifest.study_id)
            return {"file": table.stat().st_size, **_performed(found, manifest.study_id)}


def _performed(found: Federation, study: str) -> dict[str, Any]:
    clock = [_clock(found)]
    with client(found, "north", "owner") as owner:
        owner.approve(study)
        owner.use_source(study, "table")
        clock.append(_clock(found))
        statement = owner.contribute(study).statement
        clock.append(_clock(found))
        until(lambda: owner.contribution(study).state == "complete", PATIENCE)
        clock.append(_clock(found))
    assert statement is not None
    parts = {
        part: {name: after[name] - before[name] for name in after}
        for part, (before, after) in zip(("check", "share", "push"), pairwise(clock), strict=True)
    }
    peaks = {name: found.vitals(name).peak for name in ("north", *found.servers)}
    return {"vector": statement.document.vector_bytes, "parts": parts, "peak": peaks}


def _clock(found: Federation) -> dict[str, float]:
    return {"seconds": time.perf_counter()} | {name: found.vitals(name).cpu for name in ("north", *found.servers)}


def manifest_of(found: Federation, rows: int) -> Manifest:
    """A study of all pairs of columns, of which one holder brings all but one."""
    categories: dict[str, dict[str, Any]] = {
        "text": {"kind": "categorical", "categories": list(LETTERS)},
        "integer": {"kind": "numeric", "integer": True, "bin_edges": [0, 1, 2, 3, 4]},
        "float": {"kind": "numeric", "bin_edges": [0, 1, 2, 3, 4]},
    }
    columns = [{"name": name, **categories[kind]} for name, kind in zip(_names(), KINDS, strict=True)]
    other = {"name": "other", "kind": "categorical", "categories": ["no", "yes"]}
    (population,) = POPULATIONS
    return Manifest.from_json(
        {
            "title": "A benchmark",
            "purpose": "Measuring a contribution",
            "schema": {"columns": [*columns, other]},
            "algorithm": {"name": "aim"},
            "privacy": {"epsilon": "1", "delta": DELTA, "population": population},
            **found.parties(
                [
                    {"name": "north", "brings": "columns", "columns": _names()},
                    {"name": "south", "brings": "columns", "columns": ["other"]},
                ]
            ),
            "alignment": {"slots": rows, "column": RECORD},
        }
    )


def _names() -> list[str]:
    return [f"{kind}_{number}" for number, kind in enumerate(KINDS)]


def write(path: Path, rows: int) -> None:
    """A table with the numbers of slots, in row groups; one block of random rows again and again."""
    uniform = Uniform("contribute")
    block = pl.DataFrame({name: uniform.integers(ROW_GROUP, len(LETTERS)) for name in _names()}).with_columns(
        pl.col("^text_.*$").replace_strict(list(range(len(LETTERS))), list(LETTERS), return_dtype=pl.String),
        pl.col("^float_.*$") + 0.5,
    )
    whole = pl.concat([block.lazy()] * -(-rows // ROW_GROUP)).head(rows).with_row_index(RECORD)
    whole.sink_parquet(path, row_group_size=ROW_GROUP)


def table(report: Mapping[str, Any]) -> str:
    """The report for people."""
    lines = []
    for rows, one in report["rows"].items():
        lines.append(f"{int(rows):,} rows: file {one['file'] / 1e6:.0f} MB, vector {one['vector'] / 1e6:.0f} MB")
        for part, spent in one["parts"].items():
            cpu = ", ".join(f"{name} {value:.1f}" for name, value in spent.items() if name != "seconds")
            lines.append(f"  {part:6} {spent['seconds']:8.1f} s; CPU s: {cpu}")
        lines.append("  peak   " + ", ".join(f"{name} {value / 1e6:.0f} MB" for name, value in one["peak"].items()))
    return "\n".join(lines)
