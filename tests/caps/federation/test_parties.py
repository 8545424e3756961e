"""Homes of parties on one machine: complete, private, with tokens of the right people; containers get the same."""

from __future__ import annotations

import json
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from caps.basics.schemes import REP3, REP4, SCHEMES, Scheme
from caps.federation.parties import PEOPLE, equip, make_authority, mesh_of, places_in, policy_text
from caps.service.doctor import Doctor, Status
from caps.service.tokens import Scope, Tokens
from caps.study import Policy
from caps.trust import home as party
from caps.trust.cards import Card
from deploy.compose import provision

NOW = datetime.now(UTC)


def make(folder: Path, role: str, name: str) -> Path:
    make_authority(folder / "authority", now=NOW)
    equip(
        folder / name,
        role,
        name,
        ["localhost"],
        authority=folder / "authority",
        tokens=folder / "people" / name,
        token_days=3,
        policy=policy_text(),
        now=NOW,
    )
    return folder / name


@pytest.mark.parametrize("role", PEOPLE)
def test_a_home_is_complete_and_private(tmp_path: Path, role: str) -> None:
    home = make(tmp_path, role, "S1")
    findings = list(Doctor(home).examine_home())
    assert [one for one in findings if one.status is Status.FAILED] == []
    assert (home / party.POLICY).exists() == (role == "mpc-server")
    secret = [*home.glob("*key*"), home / party.TOKENS, *(tmp_path / "people" / "S1").iterdir()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in secret} == {0o600}
    folders = (home, tmp_path / "authority", tmp_path / "people" / "S1")
    assert {stat.S_IMODE(path.stat().st_mode) for path in folders} == {0o700}


@pytest.mark.parametrize("role", PEOPLE)
def test_people_have_one_scope_each_for_some_days(tmp_path: Path, role: str) -> None:
    home = make(tmp_path, role, "S1")
    for scope in Scope:
        path = tmp_path / "people" / "S1" / f"{scope}.token"
        assert path.exists() == (scope in PEOPLE[role])
        if path.exists():
            token = path.read_text().strip()
            person = Tokens(home / party.TOKENS).find(token, NOW)
            assert person is not None
            assert person.scopes == {scope}
            assert Tokens(home / party.TOKENS).find(token, NOW + timedelta(days=3, seconds=1)) is None


def test_an_authority_that_is_there_stays(tmp_path: Path) -> None:
    make_authority(tmp_path, now=NOW)
    before = (tmp_path / party.AUTHORITY).read_bytes()
    make_authority(tmp_path, now=NOW)
    assert (tmp_path / party.AUTHORITY).read_bytes() == before


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
def test_every_party_has_ports_of_its_own(tmp_path: Path, scheme: Scheme) -> None:
    places = places_in(tmp_path, scheme, ["north", "south"])
    assert list(places) == [*scheme.server_names, "coordinator", "north", "south"]
    ports = [port for one in places.values() for port in (one.port, one.mesh_port) if port is not None]
    assert len(set(ports)) == len(ports) == 2 * scheme.parties + 3
    assert len(mesh_of(places)) == scheme.parties


def test_the_policy_is_valid_and_knows_the_populations(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(policy_text(populations={"some": 2.5, "others": 1.0}))
    assert Policy.read(tmp_path / "policy.yaml").populations == {"some": 2.5, "others": 1.0}


def test_containers_get_homes_once(tmp_path: Path) -> None:
    for name in ("authority", "people", *(service for _, service in provision.parties_of(REP4.parties).values())):
        (tmp_path / name).mkdir()
    policy = Path(provision.__file__).with_name("policy.yaml")
    made = provision.provision(tmp_path, policy, now=NOW, servers=REP3.parties)
    assert len(made) == REP3.parties + 1 + len(provision.HOLDERS)
    key = (tmp_path / "s1" / party.PRIVATE_KEY).read_bytes()
    assert provision.provision(tmp_path, policy, now=NOW, servers=REP4.parties) == ["S4"]
    assert (tmp_path / "s1" / party.PRIVATE_KEY).read_bytes() == key
    assert [one for one in Doctor(tmp_path / "s4").examine_home() if one.status is Status.FAILED] == []
    cards = json.loads((tmp_path / "people" / "cards.json").read_text())
    (tmp_path / "card.json").write_text(json.dumps(cards["S4"]))
    assert Card.read(tmp_path / "card.json").mesh == "s4-mesh:9443"
    assert (tmp_path / "people" / "insurer" / "owner.token").stat().st_mode & 0o777 == 0o600
