"""Whole studies on the paper's tables through real services over TLS, and where their time goes."""

from __future__ import annotations

import json
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from itertools import cycle
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from bench.central import DELTA
from bench.datasets import Dataset, files
from caps.basics.schemes import REP3, Scheme
from caps.basics.uniform import Uniform
from caps.client import Client
from caps.federation import parties
from caps.study import Manifest
from deploy.federation import COORDINATOR, Federation

HOLDERS = ("north", "south", "west")
RECORD = "record"
SETTINGS = ("horizontal", "vertical", "mixed")
_LOOK = 0.02
POLICY = f"{parties.POLICY}most_studies: 1000\n"
POPULATIONS = {f"p{number}": 20.0 for number in range(100)}
"""Registered with the servers, each with a budget for a few studies."""
_populations = cycle(POPULATIONS)
T = TypeVar("T")


@contextmanager
def federation(*, start: Callable[[Federation], None] | None = None, scheme: Scheme = REP3) -> Iterator[Federation]:
    """A scheme's servers, a coordinator and three holders as processes of this host, for as long as needed."""
    with (
        tempfile.TemporaryDirectory(prefix="caps-bench-") as scratch,
        Federation(Path(scratch), HOLDERS, policy=POLICY, populations=POPULATIONS, scheme=scheme) as found,
    ):
        (start or Federation.start)(found)
        found.wait_ready()
        yield found


def table(dataset: Dataset) -> tuple[dict[str, Any], pl.DataFrame]:
    """The schema's document, and the rows for training with raw values."""
    description, rows = files(dataset.name)
    schema = json.loads(description.read_text())
    frame = pl.read_csv(rows, infer_schema_length=None)
    return schema, frame.select(column["name"] for column in schema["columns"])[dataset.train]


def divide(frame: pl.DataFrame, setting: str, seed: int) -> tuple[list[dict[str, Any]], dict[str, pl.DataFrame], int]:
    """Holders as a manifest has them, their tables, and slots (0 if nothing is aligned): randomly and evenly.

    Mixed: two holders have columns of two thirds of the persons, a third has all columns of the others.
    """
    uniform = Uniform(f"{setting} {seed}")
    order = uniform.permutation(len(frame))
    if setting == "horizontal":
        cut = len(frame) // 2
        return (
            [{"name": name, "brings": "rows"} for name in HOLDERS[:2]],
            {
                "north": frame[order[:cut]],
                "south": frame[order[cut:]],
            },
            0,
        )
    cut = len(frame) if setting == "vertical" else 2 * len(frame) // 3
    persons, others = frame[order[:cut]], frame[order[cut:]]
    slots = 1 << (cut - 1).bit_length()
    shuffled = [frame.columns[i] for i in uniform.permutation(len(frame.columns))]
    half = len(shuffled) // 2
    parts = {"north": shuffled[:half], "south": shuffled[half:]}
    records = pl.Series(RECORD, uniform.permutation(slots)[:cut])
    tables, holders = {}, []
    for name, chosen in parts.items():
        columns = [column for column in frame.columns if column in chosen]
        holders.append({"name": name, "brings": "columns", "columns": columns})
        tables[name] = persons.select(columns).with_columns(records)[uniform.permutation(cut)]
    if len(others):
        holders.append({"name": "west", "brings": "rows"})
        tables["west"] = others
    return holders, tables, slots


def manifest_of(
    found: Federation,
    schema: dict[str, Any],
    holders: list[dict[str, Any]],
    slots: int,
    algorithm: str,
    epsilon: str,
    scheme: Scheme | None = None,
) -> Manifest:
    """A study of all pairs of attributes."""
    return Manifest.from_json(
        {
            "title": "A benchmark",
            "purpose": f"The measurement of {secrets.token_hex(8)}",
            "schema": schema,
            "algorithm": {"name": algorithm},
            "privacy": {"epsilon": epsilon, "delta": DELTA, "population": next(_populations)},
            **found.parties(holders, scheme),
            **({"alignment": {"slots": slots, "column": RECORD}} if slots else {}),
        }
    )


def perform(
    found: Federation,
    dataset: Dataset,
    *,
    algorithm: str,
    setting: str,
    epsilon: str = "1",
    seed: int = 0,
    timeout: float = 1800.0,
    watch: Callable[[str], None] = lambda _: None,
    scheme: Scheme | None = None,
) -> tuple[npt.NDArray[np.int64], dict[str, Any]]:
    """One study from CSV files to downloaded rows: their codes, and the seconds of every part.

    `seconds` go from the upload to the published data; `agree`, the approvals before it, are people's time in practice.
    """
    schema, frame = table(dataset)
    holders, tables, slots = divide(frame, setting, seed)
    manifest = manifest_of(found, schema, holders, slots, algorithm, epsilon, scheme)
    study = manifest.study_id
    with tempfile.TemporaryDirectory(prefix="caps-study-") as scratch:
        files = {name: Path(scratch, f"{name}.csv") for name in tables}
        for name, path in files.items():
            tables[name].write_csv(path)
        clock = [time.perf_counter()]
        with client(found, COORDINATOR, "operator") as operator:
            for server in operator.propose(manifest).servers:
                if server.state == "refused":
                    raise RuntimeError(f"{server.server} refused {dataset.name}: {server.reason}")
            for name in files:
                with client(found, name, "operator") as person:
                    person.fetch(manifest.coordinator.url, study)
                with client(found, name, "owner") as owner:
                    owner.approve(study)
            until(lambda: not operator.refresh(study).missing, timeout)
            clock.append(time.perf_counter())
            with ThreadPoolExecutor(len(files)) as owners:  # each in an organisation of its own
                list(owners.map(lambda name: _contribute(found, name, study, files[name], timeout), files))
            clock.append(time.perf_counter())
            run = operator.start(study).run
            for _ in operator.watch(run):  # events, for every question would take the coordinator's time
                watch(run)
            state = operator.run(run)
            if state.state != "released":
                raise RuntimeError(f"the study of {dataset.name} is {state.state}: {state.reason}")
            clock.append(time.perf_counter())
        with client(found, COORDINATOR, "analyst") as analyst:
            analyst.download(run, Path(scratch, "data.csv"))
        codes, _ = manifest.schema_.encode(Path(scratch, "data.csv"), lacking=manifest.lacking)
    agree, upload, ran = np.diff(clock).tolist()
    return codes, {"seconds": upload + ran, "agree": agree, "upload": upload, "run": ran, **split(found, run)}


def _contribute(found: Federation, name: str, study: str, path: Path, timeout: float) -> None:
    with client(found, name, "owner") as owner:
        owner.put_table(study, path)
        owner.contribute(study)
        until(lambda: owner.contribution(study).state == "complete", timeout)


def split(found: Federation, run: str) -> dict[str, Any]:
    """Where a run's time went, from the logs.

    compute, select, measure, and compare if there was any: at the slowest server. waiting: between coordinator and
    servers, beyond that. generate: between steps at the coordinator. begin, publish: before the first step and after
    the last.
    """
    lines = [line for line in _lines(found, COORDINATOR) if line.get("run") == run]
    steps = {line["step"]: line for line in lines if line.get("event") == "answered"}
    servers: dict[int, float] = {}
    for name in found.servers:
        for line in _lines(found, name):
            if line.get("run") == run and line.get("event") == "answered":
                servers[line["step"]] = max(servers.get(line["step"], 0.0), line["seconds"])
    taken = next(line for line in lines if line.get("event") == "run taken up")
    released = next(line for line in lines if line.get("event") == "released")
    parts = dict.fromkeys(("begin", "compute", "select", "measure", "waiting", "generate", "publish"), 0.0)
    last = _at(taken)
    for number in sorted(steps):
        line = steps[number]
        parts["begin" if number == 0 else "generate"] += max(0.0, _at(line) - line["seconds"] - last)
        kind = "measure" if line["kind"] == "batch" else line["kind"]
        computed = servers.get(number, 0.0)  # none computed it for this answer: it was on record
        parts[kind] = parts.get(kind, 0.0) + computed
        parts["waiting"] += max(0.0, line["seconds"] - computed)
        last = _at(line)
    parts["publish"] = _at(released) - last
    return {
        "parts": parts,
        "steps": len(steps),
        "rounds": sum(line["kind"] == "select" for line in steps.values()),
        "loop": last - _at(steps[0]),
    }


def client(found: Federation, name: str, scope: str) -> Client:
    """A person at a party."""
    return Client(found.places[name].url, token=found.token(name, scope), authority=found.authority)


def _lines(found: Federation, name: str) -> Iterator[dict[str, Any]]:
    for line in found.log(name).splitlines():
        if line.startswith("{"):
            yield json.loads(line)


def _at(line: dict[str, Any]) -> float:
    return datetime.fromisoformat(line["at"]).timestamp()


def until(attempt: Callable[[], bool], timeout: float) -> None:
    """Wait for something to hold, for at most so many seconds."""
    deadline = time.monotonic() + timeout
    while not attempt():
        if time.monotonic() > deadline:
            raise TimeoutError("a study waits for ever")
        time.sleep(_LOOK)
