"""Tables in any order, joined by tags over real processes: the release is that of one party with the joint table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from deploy.federation import COORDINATOR, SERVERS, Federation
from tests.kit.federation import manifest_of
from tests.kit.processes import CANARIES, SCHEMA, Study, client, encoded, nobody_wrote, persons, write
from tests.kit.waiting import until

pytestmark = pytest.mark.e2e

PARTS = {"north": ["income"], "south": ["smoker", "illness"], "west": ["smoker"]}
JOIN = {"key": {"columns": [{"name": "number", "kind": "text"}]}, "protocol": "oprf"}


def joined(federation: Federation, folder: Path) -> Study:
    """North has no smoking habits, south has not everybody, and west knows the habits of some whom south lacks."""
    everybody, draws = persons(120, 5), np.random.default_rng(6)
    has = {"north": np.arange(120), "south": np.arange(90), "west": np.r_[0:5, 60:110]}
    split = [{"name": name, "brings": "columns", "columns": part, "capacity": 140} for name, part in PARTS.items()]
    manifest = manifest_of(federation, split, schema=SCHEMA, join=JOIN, algorithm="mst")
    codes, numbers = encoded(manifest, everybody), pl.Series("number", [f"P-{31 * n % 1009}" for n in range(120)])
    known = np.full_like(codes, -1)
    files = {}
    for name, columns in PARTS.items():
        places = [manifest.domain.names.index(column) for column in columns]
        known[np.ix_(has[name], places)] = codes[np.ix_(has[name], places)]
        frame = everybody.select(columns).with_columns(numbers)[draws.permutation(has[name])]
        files[name] = write(frame, folder / f"{name}.csv")
    return Study(federation, manifest, files, known)


def test_a_join_by_tags_from_csv_to_release_with_holders_killed_on_the_way(
    federation: Federation, tmp_path: Path
) -> None:
    study = joined(federation, tmp_path)
    study.agree()
    for name, path in study.files.items():
        with client(federation, name, "owner") as owner:
            owner.put_table(study.identity, path)
            told = owner.contribute(study.identity)
        assert (told.state, told.contribution) == ("matching", None)
        federation.kill(name)
        federation.start(name)
        federation.wait_ready(name)
    for name in study.files:
        study.contributed(name)
    study.start()
    study.released()
    study.check(tmp_path)
    with client(federation, COORDINATOR, "analyst") as analyst:
        report = analyst.report(study.run)
    assert "S1 learns which holders have each pseudonym" in str(report)
    for server in SERVERS:
        blobs = federation.places[server].home / "state" / "shares" / "blobs" / study.identity
        until(lambda blobs=blobs: not (blobs / "join").exists())
    nobody_wrote(federation, *CANARIES, "P-31")
