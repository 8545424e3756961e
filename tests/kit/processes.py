"""A study taken from CSV files to a release as people take it: through the REST interfaces of real processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars as pl

from caps.audit.verification import verify
from caps.client import Client, ClientError, ProblemError
from caps.study import Manifest
from caps.wire import Certificate
from caps.wire.coordinator import RunView
from caps.wire.holder import ContributionView
from deploy.federation import COORDINATOR, SERVERS, Federation
from services.coordinator.algorithms import Outcome
from services.coordinator.publish import DATA, released_rows, sized, write_rows
from tests.kit.federation import Driver, manifest_of, spent_once
from tests.kit.waiting import until

HOLDERS = ("north", "south", "west")
LARGEST_UPLOAD = 4 << 20
"""Bytes of a table at these holders."""
NAME, NUMBER = "Xanthippe-7351", "2718.281828459"
CANARIES = (NAME, NUMBER)
"""Values of one person in every private table. The schema does not list them: nobody but the holder may see them."""
RECORD = "record"
SCHEMA: dict[str, Any] = {
    "columns": [
        {"name": "income", "kind": "numeric", "bin_edges": [0, 1000, 2500, 10000]},
        {"name": "smoker", "kind": "categorical", "categories": ["no", "yes", "unknown"], "other": "unknown"},
        {"name": "illness", "kind": "categorical", "categories": ["none", "asthma", "other"], "missing": "null"},
    ]
}
SLOTS = 256
T = TypeVar("T")
T = TypeVar("T")


def persons(count: int, seed: int) -> pl.DataFrame:
    """Invented persons, far from uniform; the first has the canaries, and some have no illness written down."""
    draws = np.random.default_rng(seed)
    income = np.round(9000 * draws.random(count) ** 2, 3)
    smoker = np.array(["no", "yes", "?"])[np.searchsorted([0.6, 0.95], draws.random(count))]
    illness = np.array(["none", "asthma", "other"])[(income < 1500).astype(int) + (draws.random(count) < 0.2)]
    frame = pl.DataFrame({"income": income, "smoker": smoker, "illness": illness}).with_columns(
        pl.when(pl.Series(draws.random(count) < 0.05)).then(None).otherwise(pl.col("illness")).alias("illness")
    )
    first = pl.DataFrame({"income": [float(NUMBER)], "smoker": [NAME], "illness": ["none"]}, schema=frame.schema)
    return pl.concat([first, frame[1:]])


class Everybody(Federation):
    """A federation whose services may all run under another module, which they are started with again."""

    under: Sequence[str] = ()

    def start(
        self, *names: str, environment: Mapping[str, str] | None = None, under: Sequence[str] | None = None
    ) -> None:
        """As the base class."""
        super().start(*names, environment=environment, under=self.under if under is None else under)

    def restart(self, *names: str, under: Sequence[str]) -> None:
        """Stop services, all if none is named, and start them under a module."""
        self.stop(*names)
        self.start(*names, under=under)
        self.wait_ready(*names)


@dataclass
class Study:
    """A manifest, every holder's file, and the codes of all persons as nobody in the study sees them."""

    federation: Federation
    manifest: Manifest
    files: dict[str, Path]
    codes: np.ndarray = field(repr=False)
    run: str = ""
    patience: float = 0.0
    """Seconds for which people try again when a service is away."""

    @property
    def identity(self) -> str:
        """The study's id."""
        return self.manifest.study_id

    def as_person(self, name: str, scope: str, act: Callable[[Client], T]) -> T:
        """Do something at a service, again and again if it is away or asks to wait, while there is patience."""
        deadline = time.monotonic() + self.patience
        while True:
            try:
                with client(self.federation, name, scope) as found:
                    return act(found)
            except ClientError as error:
                final = isinstance(error, ProblemError) and not error.retryable
                if final or time.monotonic() > deadline:
                    raise
            time.sleep(0.1)

    def agree(self) -> None:
        """The operator proposes, every holder's owner approves."""
        self.as_person(COORDINATOR, "operator", lambda it: it.propose(self.manifest))
        url = self.manifest.coordinator.url
        for name in self.files:
            self.as_person(name, "operator", lambda it: it.fetch(url, self.identity))
            self.as_person(name, "owner", lambda it: it.approve(self.identity))

    def contribute(self) -> dict[str, str]:
        """Every owner loads its table and contributes it; the contributions' ids, when all receipts are there."""
        for name, path in self.files.items():
            self.as_person(name, "owner", lambda it, path=path: it.put_table(self.identity, path))
            self.as_person(name, "owner", lambda it: it.contribute(self.identity))
        return {name: self.contributed(name) for name in self.files}

    def contributed(self, name: str, timeout: float = 60.0) -> str:
        """Wait for a holder's receipts; the contribution's id."""

        def receipts(it: Client) -> ContributionView | None:
            state = it.contribution(self.identity)
            for server in state.servers:
                assert server.problem is None or server.problem["retryable"], server.problem
            return state if state.state == "complete" else None

        found = until(lambda: self.as_person(name, "owner", receipts), timeout)
        assert all(server.receipt for server in found.servers)
        return str(found.contribution)

    def start(self) -> str:
        """The operator starts the run once every approval has come; one run, however often it has to ask."""

        def begin(it: Client) -> str:
            runs = it.study(self.identity).runs
            return runs[-1] if runs else it.start(self.identity).run

        until(lambda: not self.as_person(COORDINATOR, "operator", lambda it: it.study(self.identity)).missing)
        self.run = self.as_person(COORDINATOR, "operator", begin)
        return self.run

    def state(self) -> RunView:
        """Of the run."""
        return self.as_person(COORDINATOR, "analyst", lambda it: it.run(self.run))

    def released(self, timeout: float = 120.0) -> None:
        """Wait for the release."""

        def ended() -> bool:
            state = self.state()
            assert state.state != "failed", (state.party, state.reason)
            return state.state == "released"

        until(ended, timeout)

    def go(self, timeout: float = 120.0) -> None:
        """All of it."""
        self.agree()
        self.contribute()
        self.start()
        self.released(timeout)

    def fetch(self, folder: Path) -> Certificate:
        """The analyst downloads rows, measurements, transcript and certificate, and verifies them offline."""
        folder.mkdir(parents=True, exist_ok=True)

        def download(it: Client) -> Certificate:
            it.download(self.run, folder / DATA)
            it.transcript(self.run, folder / "transcript.ndjson")
            (folder / "measurements.json").write_bytes(it.document(self.run, "measurements"))
            return it.certificate(self.run)

        certificate = self.as_person(COORDINATOR, "analyst", download)
        checks = verify(
            certificate,
            transcript=folder / "transcript.ndjson",
            measurements=folder / "measurements.json",
            data=folder / DATA,
            now=datetime.now(UTC),
        )
        assert all(check.passed for check in checks), [check for check in checks if not check.passed]
        return certificate

    def driver(self, certificate: Certificate) -> Driver:
        """What looks into the servers of this run."""
        driver = Driver(self.federation, self.manifest)
        driver.run = self.run
        driver.inputs = certificate.attestations[0].document.inputs
        return driver

    def twin(self, certificate: Certificate, folder: Path) -> tuple[Outcome, bytes]:
        """The release as one party with all data makes it, from the servers' bits and the release's seed."""
        folder.mkdir(parents=True, exist_ok=True)
        with self.driver(certificate) as driver:
            outcome = driver.twin(self.codes)
        rows = released_rows(self.manifest, sized(self.manifest, outcome))
        write_rows(self.manifest, outcome.model, rows, certificate.release.document.seed, folder)
        return outcome, (folder / DATA).read_bytes()

    def check(self, folder: Path) -> Certificate:
        """The certificate holds; the rows are the central ones, byte by byte; each step was charged once everywhere."""
        certificate = self.fetch(folder / "release")
        _, expected = self.twin(certificate, folder / "twin")
        assert (folder / "release" / DATA).read_bytes() == expected
        with self.driver(certificate) as driver:
            spent_once(self.federation, driver)
        return certificate


def client(federation: Federation, name: str, scope: str) -> Client:
    """A person at a party."""
    return Client(federation.places[name].url, token=federation.token(name, scope), authority=federation.authority)


def write(frame: pl.DataFrame, path: Path) -> Path:
    """As CSV."""
    frame.write_csv(path)
    return path


def encoded(manifest: Manifest, frame: pl.DataFrame) -> np.ndarray:
    """The codes of persons."""
    return manifest.schema_.encode({name: frame[name] for name in manifest.domain.names})[0]


def horizontal(federation: Federation, folder: Path, persons: pl.DataFrame, **choices: Any) -> Study:
    """North and south have persons of their own."""
    schema = choices.pop("schema", SCHEMA)
    split = [{"name": name, "brings": "rows"} for name in ("north", "south")]
    manifest = manifest_of(federation, split, schema=schema, **choices)
    cut = len(persons) // 3
    files = {
        "north": write(persons[:cut], folder / "north.csv"),
        "south": write(persons[cut:], folder / "south.csv"),
    }
    return Study(federation, manifest, files, encoded(manifest, persons))


def vertical(
    federation: Federation,
    folder: Path,
    persons: pl.DataFrame,
    *,
    slots: int = SLOTS,
    unmatched: int = 4,
    **choices: Any,
) -> Study:
    """North and south have columns of the same persons, each in its own order; some persons are known to one only."""
    manifest, files, codes = _columns(federation, folder, persons, [], slots, unmatched, choices)
    return Study(federation, manifest, files, codes)


def mixed(
    federation: Federation,
    folder: Path,
    persons: pl.DataFrame,
    others: pl.DataFrame,
    *,
    slots: int = SLOTS,
    unmatched: int = 4,
    **choices: Any,
) -> Study:
    """The same, and west has persons of its own."""
    west = [{"name": "west", "brings": "rows"}]
    manifest, files, codes = _columns(federation, folder, persons, west, slots, unmatched, choices)
    files["west"] = write(others, folder / "west.csv")
    return Study(federation, manifest, files, np.concatenate([codes, encoded(manifest, others)]))


def _columns(
    federation: Federation,
    folder: Path,
    persons: pl.DataFrame,
    others: list[dict[str, Any]],
    slots: int,
    unmatched: int,
    choices: dict[str, Any],
) -> tuple[Manifest, dict[str, Path], np.ndarray]:
    schema = choices.pop("schema", SCHEMA)
    names = [column["name"] for column in schema["columns"]]
    cut = max(1, len(names) // 3)
    parts = {"north": names[:cut], "south": names[cut:]}
    split = [{"name": name, "brings": "columns", "columns": columns} for name, columns in parts.items()] + others
    manifest = manifest_of(federation, split, schema=schema, slots=slots, alignment={"column": RECORD}, **choices)
    draws = np.random.default_rng(len(persons))
    records = pl.Series(RECORD, draws.permutation(slots)[: len(persons)])
    # Neither the first person, with the canaries, nor most others are missing anywhere.
    absent = {"north": slice(len(persons) - unmatched, None), "south": slice(1, 1 + unmatched)}
    codes, files = encoded(manifest, persons), {}
    for name, columns in parts.items():
        kept = np.delete(np.arange(len(persons)), absent[name])
        codes[absent[name], [[names.index(column)] for column in columns]] = -1
        frame = persons.select(columns).with_columns(records)[draws.permutation(kept)]
        files[name] = write(frame, folder / f"{name}.csv")
    return manifest, files, codes


def secrets_of(federation: Federation) -> list[str]:
    """Every token of every person."""
    return [path.read_text().strip() for place in federation.places.values() for path in place.home.glob("*.token")]


def nobody_wrote(federation: Federation, *values: str) -> None:
    """No service's log has any of these, nor a token."""
    for name in federation.places:
        text = federation.log(name)
        for value in (*values, *secrets_of(federation)):
            assert value not in text, f"the log of {name} has a value it must not have"


def ledgers(federation: Federation) -> list[list[dict[str, Any]]]:
    """The three ledgers, as auditors read them."""
    found = []
    for name in SERVERS:
        with client(federation, name, "auditor") as auditor:
            found.append([record.model_dump() for record in auditor.ledger()])
    return found
