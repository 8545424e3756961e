"""Runs on three real MPC servers whose holders have rows in no common order: every released value is that of the joint
table as dictionaries make it, under the same noise, so every marginal is equal, exactly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caps.study import Holder, Manifest
from caps.study.table import Rows
from caps.wire import Attestation, Signed
from deploy.federation import POLICY, SERVERS, Federation
from services.holder import sharing
from tests.kit.federation import POPULATIONS, ServerStores, manifest_of, same_release, spent_once
from tests.kit.join import KEY, SCHEMA, JoinDriver, Owner, Record, drawn_records, joined

pytestmark = pytest.mark.integration

HOLDERS = ("north", "south", "west", "east")
ALL = tuple(column["name"] for column in SCHEMA["columns"])
MEDICAL, FURTHER = ALL[:2], ALL[2:]
OVERLAPPING = (("north", ALL[:3]), ("south", ALL[1:]), ("west", ("smoker", "plan")))
"""Three holders, every column but one at two of them or three."""
SPLIT = (("north", MEDICAL), ("south", MEDICAL), ("west", FURTHER))
"""Two share columns and split rows; the third adds columns for some persons of both."""
PAIR = (("north", MEDICAL), ("south", FURTHER))

Division = Sequence[tuple[str, tuple[str, ...]]]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with Federation(
        tmp_path_factory.mktemp("federation"),
        HOLDERS,
        policy=POLICY + "least_capacity: 1\n",
        populations=POPULATIONS,
        environment={"CAPS_STALL": "20"},
    ) as found:
        found.start(*SERVERS)
        found.wait_ready(*SERVERS)
        yield found


def study(
    federation: Federation,
    division: Division,
    *,
    capacity: int = 70,
    rows: Sequence[str] = (),
    key: dict[str, Any] | None = None,
    join: dict[str, Any] | None = None,
    **choices: Any,
) -> Manifest:
    """A study that joins the division's holders by the key; those of `rows` count persons of their own."""
    holders: list[dict[str, Any]] = [
        {"name": name, "brings": "columns", "columns": list(columns), "capacity": capacity + place}
        for place, (name, columns) in enumerate(division)
    ]
    holders[1:1] = [{"name": name, "brings": "rows"} for name in rows]
    members = {"algorithm": "gaussian", "join": {"key": KEY | (key or {})} | (join or {})} | choices
    return manifest_of(federation, holders, schema=SCHEMA, **members)


def owners_of(division: Division, seed: int, *, population: int = 60, **mishaps: int) -> list[Owner]:
    """Owners with parts of one population each; the last have most of it."""
    draws = np.random.default_rng(seed)
    found = []
    for place, (name, columns) in enumerate(division):
        persons = draws.permutation(population)[: draws.integers(population // 3, population * 4 // 5)].tolist()
        found.append(Owner(name, columns, drawn_records(draws, columns, persons, **mishaps), spelling=place))
    return found


def released_is_central(
    federation: Federation, manifest: Manifest, owners: Sequence[Owner], folder: Path, others: np.ndarray | None = None
) -> None:
    """Run it; the release is that of the joint table, and the servers' attestations name what the join tells them."""
    brought: dict[str, Any] = {owner.name: owner.read(manifest, folder) for owner in owners}
    codes = joined(manifest, owners)
    if others is not None:
        brought["east"] = manifest.layout.marginals(others)
        codes = np.concatenate([codes, others])
    with JoinDriver(federation, manifest, folder) as driver:
        driver.ready(brought)
        distributed, _ = driver.finish()
        same_release(distributed, driver.twin(codes))
        spent_once(federation, driver)
        words = [Signed[Attestation].model_validate_json(found.content).document for found in driver.attest()]
        for word in words:
            assert word.statement["views"] == list(manifest.views)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("mode", ["union", "inner"])
@pytest.mark.parametrize("division", [PAIR, SPLIT, OVERLAPPING], ids=["pair", "split", "overlapping"])
def test_the_release_is_that_of_the_joint_table(
    federation: Federation, tmp_path: Path, division: Division, mode: str
) -> None:
    manifest = study(federation, division, join={"mode": mode})
    released_is_central(federation, manifest, owners_of(division, 11), tmp_path)


@pytest.mark.parametrize(
    ("rules", "mishaps"),
    [
        ({"duplicates": "first", "missing": "drop"}, {"twice": 6, "keyless": 3}),
        ({"duplicates": "last", "missing": "alone"}, {"twice": 6, "keyless": 3}),
    ],
    ids=["first-drop", "last-alone"],
)
def test_rows_named_badly_are_treated_by_the_rules(
    federation: Federation, tmp_path: Path, rules: dict[str, str], mishaps: dict[str, int]
) -> None:
    manifest = study(federation, SPLIT, key=rules)
    released_is_central(federation, manifest, owners_of(SPLIT, 12, **mishaps), tmp_path)


def test_beside_a_holder_of_whole_rows(federation: Federation, tmp_path: Path) -> None:
    """The holder of rows stands between the others in the manifest."""
    manifest = study(federation, SPLIT, rows=["east"], algorithm="aim", parameters={"rounds": 5})
    others = np.random.default_rng(3).integers(-1, manifest.domain.sizes, (200, 4))
    released_is_central(federation, manifest, owners_of(SPLIT, 13), tmp_path, others)


@pytest.mark.parametrize("seed", range(4))
def test_drawn_studies(federation: Federation, tmp_path: Path, seed: int) -> None:
    """Who brings what, who is where, the rules and the mode are drawn."""
    draws = np.random.default_rng(1000 + seed)
    names = HOLDERS[: draws.integers(2, 5)]
    has = draws.random((len(names), len(ALL))) < 0.6
    has[draws.integers(len(names), size=len(ALL)), np.arange(len(ALL))] = True  # somebody has each column
    has[~has.any(axis=1), draws.integers(len(ALL))] = True
    division = [(name, tuple(np.array(ALL)[row].tolist())) for name, row in zip(names, has, strict=True)]
    rules = {"duplicates": str(draws.choice(["first", "last"])), "missing": str(draws.choice(["drop", "alone"]))}
    mode = {"mode": str(draws.choice(["union", "inner"]))}
    manifest = study(federation, division, key=rules, join=mode, capacity=90)
    owners = owners_of(division, seed, population=int(draws.integers(5, 70)), twice=2, keyless=int(draws.integers(3)))
    released_is_central(federation, manifest, owners, tmp_path)


def test_without_anybody_in_common(federation: Federation, tmp_path: Path) -> None:
    """Nobody has all columns: an inner join of no rows is a table of zeros."""
    manifest = study(federation, PAIR, join={"mode": "inner"})
    owners = owners_of(PAIR, 14)
    owners[1].records = [replace(one, person=(one.person or 0) + 1000) for one in owners[1].records]
    assert not len(joined(manifest, owners))
    released_is_central(federation, manifest, owners, tmp_path)


@pytest.mark.parametrize("wrong", ["repeats a person", "is in another order"])
def test_a_table_that_could_show_a_person_is_named_and_takes_no_part(
    federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    """A holder that does not run its own check, or does not sort: servers find it on shares, before they open tags."""
    manifest = study(federation, SPLIT, rows=["east"], inputs={"refused": "leave-out"})
    owners = owners_of(SPLIT, 15)
    brought: dict[str, Any] = {owner.name: owner.read(manifest, tmp_path) for owner in owners}
    rows, pieces = brought["south"], sharing.record_pieces

    def unsorted(manifest: Manifest, holder: Holder, rows: Rows) -> Any:
        packed = np.concatenate(list(pieces(manifest, holder, rows)))
        return iter([packed if holder.name != "south" else packed[np.r_[1, 0, 2 : len(packed)]]])

    if wrong == "repeats a person":
        ids = rows.ids.copy()
        ids[1] = ids[0]
        brought["south"] = Rows(rows.codes, ids=ids)
    else:
        monkeypatch.setattr(sharing, "record_pieces", unsorted)
    others = np.random.default_rng(4).integers(-1, manifest.domain.sizes, (50, 4))
    brought["east"] = manifest.layout.marginals(others)
    with JoinDriver(federation, manifest, tmp_path) as driver:
        driver.ready(brought)
        driver.expected = (1, 1, 0, 1)
        distributed, _ = driver.finish()
        honest = [owner for owner in owners if owner.name != "south"]
        same_release(distributed, driver.twin(np.concatenate([joined(manifest, honest), others])))


def test_what_servers_saw_of_a_join_stays_charged_if_the_run_stops(federation: Federation, tmp_path: Path) -> None:
    manifest = study(federation, PAIR)
    brought: dict[str, Any] = {owner.name: owner.read(manifest, tmp_path) for owner in owners_of(PAIR, 18)}
    name, rows = next(iter(brought.items()))
    ids = rows.ids.copy()
    ids[1] = ids[0]
    brought[name] = Rows(rows.codes, ids=ids)
    with JoinDriver(federation, manifest, tmp_path) as driver:
        driver.ready(brought)
        assert driver.verdicts() == (0, 1)
        for server, client in driver.clients.items():
            said = client.get(f"/v1/runs/{driver.run}").json()
            assert said["state"] == "failed"
            assert f"the contribution of {name} failed the servers' checks" in said["reason"]
            client.delete(f"/v1/runs/{driver.run}").raise_for_status()
            records = [one for one in ServerStores(federation, server).ledger() if one["run"] == driver.run]
            assert [one["kind"] for one in records] == ["reserve", "charge"]


def test_a_holder_that_stays_away_leaves_the_others(federation: Federation, tmp_path: Path) -> None:
    manifest = study(federation, SPLIT)
    owners = [owner for owner in owners_of(SPLIT, 16) if owner.name != "south"]
    released_is_central(federation, manifest, owners, tmp_path)


def test_contributions_of_another_form_are_refused(federation: Federation, tmp_path: Path) -> None:
    """Rows for another capacity, one-hot columns, and counts."""
    manifest, wider = study(federation, PAIR), study(federation, PAIR, capacity=71)
    owner = Owner("north", MEDICAL, [Record(1, (0, 1))])
    with JoinDriver(federation, manifest, tmp_path) as driver, JoinDriver(federation, wider, tmp_path) as other:
        for response in driver.propose():
            response.raise_for_status()
        statement, offers, _ = other.offer("north", owner.read(wider, tmp_path))
        wrong = driver.offer("north", np.zeros((70, 5), np.uint16))
        for contribution, offered in ((statement, offers), (wrong[0], wrong[1])):
            path = f"/v1/studies/{driver.study}/contributions/{contribution.digest()}"
            with federation.machine("S2", "north") as client:
                response = client.put(path, json=offered[1].to_json())
            assert response.status_code in (403, 422), response.text
            assert response.headers["content-type"] == "application/problem+json"


def test_servers_are_told_no_key_and_no_hashed_key(federation: Federation, tmp_path: Path) -> None:
    """What servers store and log of a whole run; test_join_views.py has what they receive, too."""
    manifest = study(federation, PAIR)
    owners = owners_of(PAIR, 17)
    brought: dict[str, Any] = {owner.name: owner.read(manifest, tmp_path) for owner in owners}
    with JoinDriver(federation, manifest, tmp_path) as driver:
        driver.ready(brought)
        driver.finish()
    for name in SERVERS:
        stores = ServerStores(federation, name)
        kept = b"".join(path.read_bytes() for path in sorted(stores.home.rglob("*")) if path.is_file())
        kept += federation.log(name).encode()
        for owner in owners:
            for record in owner.records:
                assert record.person is not None
                assert owner.key(record.person)[0].encode() not in kept
            for one in brought[owner.name].ids:
                assert one.tobytes() not in kept
                assert one.tobytes().hex().encode() not in kept
