"""`caps pki`: a party from its keys to its kit, and what is refused on the way."""

import json
import tarfile
from datetime import UTC, datetime, timedelta

import pytest
from typer.testing import CliRunner

from caps.cli import Exit, app
from caps.errors import DomainError
from caps.service.site import Settings, Site
from caps.study import Policy
from caps.study.policy import policy_yaml
from caps.trust import home as party
from caps.trust import pki
from caps.trust.cards import Card
from caps.trust.denials import read_denials
from tests.kit.client import make_home

NOW = datetime.now(UTC)
HOSTS = ["--host", "localhost", "--host", "127.0.0.1"]


def caps(*arguments, expect=Exit.OK):
    found = CliRunner().invoke(app, [str(one) for one in arguments])
    assert found.exit_code == expect, found.output
    return found


def as_json(*arguments):
    return json.loads(caps(*arguments, "--json").stdout)


@pytest.fixture
def authority(tmp_path):
    as_json("pki", "init", tmp_path / "authority", "--name", "Our federation")
    return tmp_path / "authority"


@pytest.fixture
def home(tmp_path, authority):
    """S1, asked for and not yet approved."""
    as_json("pki", "request", tmp_path / "S1", "--role", "mpc-server", "--name", "S1", *HOSTS)
    return tmp_path / "S1"


def approve(authority, home, *changes, name="S1", expect=Exit.OK):
    given = ["--role", "mpc-server", "--name", name, *(changes or HOSTS)]
    return caps("pki", "approve", authority, home / party.REQUEST, *given, "--json", expect=expect)


def test_from_keys_to_a_kit(tmp_path, authority, home):
    issued = json.loads(approve(authority, home).stdout)
    assert issued["certificate"] == str(home / "mpc-server-S1.pem")
    as_json("pki", "install", home, issued["certificate"], authority / party.AUTHORITY)
    address = ("--url", "https://localhost:8443", "--mesh", "localhost:9443")
    card = as_json("pki", "card", home, *address)
    assert (card["role"], card["name"], card["pin"]) == ("mpc-server", "S1", issued["pin"])
    assert Card.read(home / party.CARD).pin == card["pin"]
    kit = as_json("pki", "package", home, "--out", tmp_path / "kit.tar.gz")
    with tarfile.open(tmp_path / "kit.tar.gz") as tar:
        names = {entry.name.removeprefix("caps-mpc-server-S1/"): entry for entry in tar}
    assert sorted(names) == kit["files"]
    home_files = {"certificate.pem", "authority.pem", "card.json", "policy.yaml", "README.md"}
    compose = {"docker-compose.yml", ".env.example", "README.md"}
    assert {*(f"home/{name}" for name in home_files), *compose} == set(names)


def test_a_home_made_so_is_a_site(tmp_path):
    home = make_home(tmp_path, "holder", "clinic-a")
    site = Site(Settings.from_environment({"CAPS_HOME": str(home)}), role="holder")
    assert (site.name, site.pin) == ("clinic-a", as_json("pki", "show", home / "certificate.pem")["pin"])
    card = party.card(home)
    assert (card.pin, card.signing_key) == (site.pin, Card.of_site(home).signing_key)


def test_private_keys_are_for_their_owner_alone(authority, home):
    keys = [authority / party.AUTHORITY_KEY, home / party.PRIVATE_KEY, home / party.SIGNING_KEY]
    assert [key.stat().st_mode & 0o777 for key in keys] == [0o600] * 3
    assert home.stat().st_mode & 0o077 == 0


def test_an_authority_is_never_replaced(authority):
    before = (authority / party.AUTHORITY_KEY).read_bytes()
    found = caps("pki", "init", authority, "--name", "Another", expect=Exit.REFUSED)
    assert "not replaced" in found.stderr
    assert (authority / party.AUTHORITY_KEY).read_bytes() == before


def test_a_second_request_renews_with_the_same_keys(home):
    before = party.names_of(party.read_request(home / party.REQUEST)), (home / party.SIGNING_KEY).read_bytes()
    again = as_json("pki", "request", home, "--role", "mpc-server", "--name", "S1", "--host", "s1.example")
    assert again["hosts"] == ["s1.example"]
    assert (again["pin"], (home / party.SIGNING_KEY).read_bytes()) == (before[0].pin, before[1])


@pytest.mark.parametrize(
    "given",
    [
        ("--host", "localhost"),
        (*HOSTS, "--host", "evil.example"),
        (*HOSTS, "--role", "coordinator"),
        (*HOSTS, "--name", "S2"),
        (*HOSTS, "--role", "emperor"),
        (*HOSTS, "--days", "100000"),
    ],
)
def test_only_what_the_operator_states_is_approved(authority, home, given):
    approve(authority, home, *given, expect=Exit.REFUSED)
    assert not list(home.glob("*.pem.*")) + list(home.glob("mpc-server-*"))


def test_the_operator_sees_what_is_asked(authority, home):
    given = ["--role", "mpc-server", "--name", "S1", *HOSTS]
    words = caps("pki", "approve", authority, home / party.REQUEST, *given).stdout
    assert "caps:mpc-server/S1" in words
    assert party.names_of(party.read_request(home / party.REQUEST)).pin in words


def test_a_certificate_for_another_key_is_not_installed(tmp_path, authority, home):
    other = tmp_path / "other"
    as_json("pki", "request", other, "--role", "mpc-server", "--name", "S1", *HOSTS)
    issued = json.loads(approve(authority, other).stdout)["certificate"]
    found = caps("pki", "install", home, issued, authority / party.AUTHORITY, expect=Exit.REFUSED)
    assert "not for the key in this home" in found.stderr
    assert not (home / party.CERTIFICATE).exists()


def test_a_certificate_of_another_authority_is_not_installed(tmp_path, authority, home):
    as_json("pki", "init", tmp_path / "stranger", "--name", "Our federation")
    issued = json.loads(approve(tmp_path / "stranger", home).stdout)["certificate"]
    found = caps("pki", "install", home, issued, authority / party.AUTHORITY, expect=Exit.REFUSED)
    assert "not issued by this authority" in found.stderr


def test_a_certificate_with_other_names_than_asked_for_is_not_installed(tmp_path, authority, home):
    key = pki.read_key(home / party.PRIVATE_KEY)
    uris = [pki.role_uri("coordinator", "S1")]
    until = NOW + timedelta(days=9)
    root = party.read_authority(authority)
    issued = root.issue(key.public_key(), subject="S1", uris=uris, hosts=["x"], not_before=NOW, not_after=until)
    party.write_certificate(tmp_path / "odd.pem", issued)
    with pytest.raises(DomainError, match="names differ"):
        party.install(home, tmp_path / "odd.pem", authority / party.AUTHORITY, now=NOW)


def test_a_certificate_that_has_ended_is_not_installed(authority, home):
    issued = json.loads(approve(authority, home).stdout)["certificate"]
    late = NOW + timedelta(days=party.PARTY_DAYS + 1)
    with pytest.raises(DomainError, match="only valid from"):
        party.install(home, authority.parent / issued, authority / party.AUTHORITY, now=late)


@pytest.mark.parametrize(
    "address", [[], ["--url", "https://h:1"], ["--mesh", "h:1"], ["--url", "http://h:1", "--mesh", "h:1"]]
)
def test_the_card_of_a_server_says_where_it_is(tmp_path, address):
    home = make_home(tmp_path, "mpc-server", "S1")
    caps("pki", "card", home, *address, expect=Exit.REFUSED)
    assert not (home / party.CARD).exists()


def test_a_kit_has_keys_only_where_the_owner_says_so(tmp_path):
    home = make_home(tmp_path, "holder", "clinic-a")
    caps("pki", "package", home, "--out", tmp_path / "early", expect=Exit.REFUSED)
    as_json("pki", "card", home)
    public, private = tmp_path / "public", tmp_path / "private"
    as_json("pki", "package", home, "--out", public)
    assert not any("PRIVATE KEY" in path.read_text() for path in public.rglob("*") if path.is_file())
    assert (public / "docker-compose.yml").exists()
    as_json("pki", "package", home, "--out", private, "--with-keys")
    assert (private / "home" / party.PRIVATE_KEY).stat().st_mode & 0o777 == 0o600
    assert Site(Settings.from_environment({"CAPS_HOME": str(private / "home")}), role="holder").name == "clinic-a"
    caps("pki", "package", home, "--out", public, expect=Exit.REFUSED)


def test_the_policy_of_a_kit_is_the_careful_default(tmp_path):
    (tmp_path / "policy.yaml").write_text(policy_yaml())
    assert Policy.read(tmp_path / "policy.yaml") == Policy()
    assert policy_yaml().count(":") >= len(Policy.model_fields)


def test_show_tells_certificates_requests_and_cards_apart(tmp_path):
    home = make_home(tmp_path, "holder", "clinic-a")
    as_json("pki", "card", home)
    found = {name: as_json("pki", "show", home / name) for name in (party.CERTIFICATE, party.REQUEST, party.CARD)}
    assert [one["kind"] for one in found.values()] == ["certificate", "request", "card"]
    assert len({one["pin"] for one in found.values()}) == 1
    (tmp_path / "other").write_text("hello")
    caps("pki", "show", tmp_path / "other", expect=Exit.REFUSED)
    caps("pki", "show", home / party.PRIVATE_KEY, expect=Exit.REFUSED)


def test_a_key_is_revoked_by_certificate_card_or_pin_and_once(tmp_path, authority, home):
    issued = json.loads(approve(authority, home).stdout)
    as_json("pki", "install", home, issued["certificate"], authority / party.AUTHORITY)
    as_json("pki", "card", home, "--url", "https://localhost:8443", "--mesh", "localhost:9443")
    mine = tmp_path / "mine"
    mine.mkdir()
    first = as_json("pki", "revoke", mine, issued["certificate"], "--reason", "stolen")
    assert first == {"policy": str(mine / "policy.yaml"), "pin": issued["pin"], "new": True, "denied": 1}
    for again in (home / party.CARD, issued["pin"]):
        assert as_json("pki", "revoke", mine / "policy.yaml", again) == first | {"new": False}
    (denied,) = read_denials(mine / "policy.yaml")
    assert denied.reason == "stolen"
    assert as_json("pki", "revoke", mine, "ab" * 32)["denied"] == 2
    caps("pki", "revoke", mine, "xy" * 32, expect=Exit.REFUSED)
    caps("pki", "revoke", mine, tmp_path / "absent", expect=Exit.REFUSED)
    (mine / "policy.yaml").write_text("denied: [")
    caps("pki", "revoke", mine, "cd" * 32, expect=Exit.REFUSED)
