"""From CSV files to a release over real processes and TLS: the same release as one party with all data would make."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from caps.audit.verification import verify
from caps.client import ProblemError
from caps.dp.privacy.rational import decode_ratio
from caps.trust.exchange import public_digest
from caps.wire import Certificate
from deploy.federation import COORDINATOR, SERVERS, Federation
from tests.kit.federation import ServerStores
from tests.kit.processes import (
    CANARIES,
    NUMBER,
    Study,
    client,
    horizontal,
    ledgers,
    mixed,
    nobody_wrote,
    persons,
    vertical,
)

pytestmark = pytest.mark.e2e

READERS = {
    "csv": lambda path: pl.read_csv(path, schema_overrides={"income": pl.Float64}),
    "parquet": pl.read_parquet,
    "arrow": pl.read_ipc_stream,
    "ndjson": pl.read_ndjson,
}


def horizontal_aim(federation: Federation, folder: Path) -> Study:
    return horizontal(federation, folder, persons(600, 1), algorithm="aim", parameters={"rounds": 5})


def vertical_mst(federation: Federation, folder: Path) -> Study:
    return vertical(federation, folder, persons(200, 2), algorithm="mst")


def mixed_mwem(federation: Federation, folder: Path) -> Study:
    return mixed(federation, folder, persons(120, 3), persons(333, 4), algorithm="mwem", parameters={"rounds": 2})


def vertical_of_many(federation: Federation, folder: Path) -> Study:
    """More persons than 16 bits count: columns are shared in three bytes an entry."""
    return vertical(federation, folder, persons(70_000, 5), slots=70_000, unmatched=0, algorithm="mst")


@pytest.mark.parametrize("arrangement", [horizontal_aim, vertical_mst, vertical_of_many, mixed_mwem])
def test_the_distributed_release_is_the_central_one(
    federation: Federation, tmp_path: Path, arrangement: Callable[[Federation, Path], Study]
) -> None:
    study = arrangement(federation, tmp_path)
    study.go()
    certificate = study.check(tmp_path)
    outcome, _ = study.twin(certificate, tmp_path / "twin")
    released = json.loads((tmp_path / "release" / "measurements.json").read_text())["measurements"]
    assert [(tuple(one["attributes"]), one["values"]) for one in released] == [
        (one.clique, one.values.tolist()) for one in outcome.measurements
    ]
    every_format_has_the_same_rows(study, tmp_path / "formats", certificate.release.document.rows)
    samples_repeat(study, tmp_path / "samples")
    ledgers_agree(study)
    only_digests_of_exchange_keys_leave_the_servers(study, certificate)
    nobody_wrote(federation, *CANARIES)


def only_digests_of_exchange_keys_leave_the_servers(study: Study, certificate: Certificate) -> None:
    """Neither the certificate nor anything at the coordinator holds what masks and noise follow from."""
    digests = {one.signer: one.document.exchange_digest for one in certificate.approvals}
    home = study.federation.places[COORDINATOR].home
    published = [
        certificate.model_dump_json().encode(),
        *(path.read_bytes() for path in home.rglob("*") if path.is_file()),
    ]
    for name in SERVERS:
        key, drawn, received = ServerStores(study.federation, name).exchange(study.manifest.study_id)
        assert public_digest(key.public) == digests[name]
        parts = [key.public[:32], key.public[32:], *(one.ciphertext for one in (*drawn.values(), *received.values()))]
        assert len(parts) == 6
        assert not any(one in content or one.hex().encode() in content for one in parts for content in published)


def every_format_has_the_same_rows(study: Study, folder: Path, rows: int) -> None:
    folder.mkdir()
    with client(study.federation, COORDINATOR, "analyst") as analyst:
        view = analyst.release(study.run)
        digests = {one.format: one.sha256 for one in view.data}
        frames = {}
        for name, read in READERS.items():
            found = analyst.download(study.run, folder / name, format=name)
            assert found.sha256 == digests[name] == sha256((folder / name).read_bytes()).hexdigest()
            frames[name] = read(folder / name)
        assert "epsilon = 1 and delta = 1e-9" in analyst.report(study.run).privacy.paragraph
        paths = [folder / name for name in READERS]
        checks = verify(analyst.certificate(study.run), data=paths, now=datetime.now(UTC))
        assert [check.passed for check in checks if check.name == "data"] == [True] * len(READERS)
        for library in ("polars", "pandas"):
            assert list(analyst.frame(study.run, library=library).columns) == frames["csv"].columns
        assert len(analyst.frame(study.run, library="pandas")) == rows
    assert view.rows == rows == len(frames["csv"])
    assert frames["csv"].columns == [column["name"] for column in study.manifest.table["columns"]]
    for frame in frames.values():
        assert_frame_equal(frame.cast(frames["csv"].schema), frames["csv"], check_exact=True)
    assert NUMBER not in (folder / "csv").read_text()


def samples_repeat(study: Study, folder: Path) -> None:
    folder.mkdir()
    with client(study.federation, COORDINATOR, "analyst") as analyst:
        one = analyst.sample(study.run, rows=40, seed="ab" * 32)
        again = analyst.sample(study.run, rows=40, seed="ab" * 32)
        other = analyst.sample(study.run, rows=40, seed="cd" * 32)
        assert one.sample == again.sample != other.sample
        texts = []
        for number, sample in enumerate((one, again, other)):
            analyst.download(study.run, folder / str(number), sample=sample.sample)
            texts.append((folder / str(number)).read_bytes())
    assert texts[0] == texts[1] != texts[2]
    assert len(texts[0].splitlines()) == 41


def ledgers_agree(study: Study) -> None:
    """The three servers charged the same, within the budget, and say so to auditors."""
    told = []
    for records in ledgers(study.federation):
        mine = [one for one in records if one["run"] == study.run]
        spent = [decode_ratio(one["spent"]) for one in mine if one["kind"] == "close"]
        reserved = [decode_ratio(one["rho"]) for one in mine if one["kind"] == "reserve"]
        assert len(spent) == len(reserved) == 1
        assert 0 < spent[0] <= reserved[0]
        told.append(
            [{key: one.get(key) for key in ("kind", "step", "request", "entry", "rho", "spent")} for one in mine]
        )
    assert len(told) == len(SERVERS)
    assert told[0] == told[1] == told[2]


def test_a_run_is_one_run_and_a_release_is_final(federation: Federation, tmp_path: Path) -> None:
    study = horizontal(federation, tmp_path, persons(50, 5), algorithm="mst")
    study.agree()
    study.contribute()
    first = study.start()
    with client(federation, COORDINATOR, "operator") as operator:
        state = operator.study(study.identity)
        assert state.runs == [first]
    study.released()
    with client(federation, COORDINATOR, "operator") as operator, pytest.raises(ProblemError) as caught:
        operator.start(study.identity)
    assert caught.value.type == "urn:caps:problem:conflict"
