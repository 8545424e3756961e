"""`caps doctor`: every fault that it knows is found, named, and comes with a way to mend it."""

import json
import re
import socket
import sqlite3
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import typer
from sqlalchemy import MetaData
from typer.testing import CliRunner

from caps.cli import app
from caps.cli.exits import Exit
from caps.federation.ports import free_ports
from caps.service import doctor as doctor_module
from caps.service.database import open_database, sqlite_url
from caps.service.doctor import Blame, Doctor, Finding, Status, Subject, _dials
from caps.service.tokens import Scope, Tokens
from caps.study.policy import policy_yaml
from caps.trust import home as party
from caps.trust import pki
from caps.trust.cards import Card
from caps.trust.denials import revoke
from caps.trust.tls import Credentials
from tests.kit.service import Sample
from tests.kit.tls import serving

pytestmark = pytest.mark.integration

NOW = datetime.now(UTC)
HOSTS = ["127.0.0.1", "localhost"]


class Homes:
    """An authority and homes of parties."""

    def __init__(self, folder):
        self.folder = folder
        self.authority = party.create_authority(folder / "authority", "test", now=NOW - timedelta(days=400))

    def home(self, role, name, *, days=365, begun=NOW):
        home = self.folder / name
        party.request_party(home, role, name, HOSTS)
        self.certify(home, role, name, days=days, begun=begun)
        return home

    def certify(self, home, role, name, *, days=365, begun=NOW, authority=None):
        asked = party.read_request(home / party.REQUEST)
        issuer = authority or self.authority
        issued = party.approve_request(issuer, asked, role, name, HOSTS, now=begun, days=days)
        pki.write_pem(home / party.CERTIFICATE, issued)
        pki.write_pem(home / party.AUTHORITY, self.authority.certificate)


@pytest.fixture
def world(tmp_path):
    return Homes(tmp_path)


@pytest.fixture
def mine(world):
    return world.home("holder", "north")


def found(findings, check, subject=None):
    (one,) = (f for f in findings if f.check == check and subject in (None, f.subject))
    return one


def failed(findings):
    return {f.check for f in findings if f.status is Status.FAILED}


def examine(home, *others, **choices):
    findings = list(Doctor(home, **choices).examine(others))
    for one in findings:
        assert isinstance(one, Finding)
        assert bool(one.fix) == (one.status in (Status.FAILED, Status.WARNING)), one
    return findings


def test_a_sound_home_has_nothing_wrong(mine):
    findings = examine(mine)
    assert {f.status for f in findings} == {Status.OK}
    keys = {"permissions", "role", "chain", "expiry", "authority", "key", "signing key", "denied keys"}
    assert {f.check for f in findings} == {*keys, "database", "disk"}


def test_the_database_is_only_looked_at(mine):
    finding = found(examine(mine), "database")
    assert (finding.status, "first start makes it" in finding.detail) == (Status.OK, True)
    assert not (mine / "state").exists()


@pytest.fixture
def database(mine):
    """A holder's, as its first start makes it."""
    (mine / "state").mkdir(mode=0o700)
    url = sqlite_url(mine / "state" / "state.db")
    open_database(url, MetaData(), migrations="services.holder.migrations").dispose()
    return mine / "state" / "state.db"


def test_a_database_of_this_version_is_good(mine, database):
    finding = found(examine(mine), "database")
    assert finding.status is Status.OK
    assert "revision holder_" in finding.detail


def test_a_database_of_another_version_says_how_to_migrate_it(mine, database):
    with sqlite3.connect(database) as connection:
        connection.execute("UPDATE alembic_version SET version_num = 'holder_0001'")
    connection.close()
    finding = found(examine(mine), "database")
    assert (finding.status, "is at revision holder_0001" in finding.detail) == (Status.FAILED, True)
    assert "python -m services.holder.migrations" in finding.fix
    with sqlite3.connect(database) as connection:
        connection.execute("UPDATE alembic_version SET version_num = 'holder_9999'")
    connection.close()
    assert "does not know" in found(examine(mine), "database").detail


def test_a_damaged_database_is_found(mine, database):
    content = bytearray(database.read_bytes())
    content[4096 : 3 * 4096] = b"\xff" * (2 * 4096)
    database.write_bytes(content)
    assert failed(examine(mine)) == {"database"}


def test_a_database_out_of_reach_is_unreachable(mine):
    (port,) = free_ports(1)
    finding = found(examine(mine, database=f"postgresql://nobody:secret-word@127.0.0.1:{port}/none"), "database")
    assert (finding.status, finding.blame) == (Status.FAILED, "reach")
    assert "secret-word" not in finding.detail
    assert failed(examine(mine, database="oracle://here")) == {"database"}


def test_a_full_disk_fails_and_little_room_warns(mine, monkeypatch):
    monkeypatch.setattr(doctor_module, "LITTLE_ROOM", 1 << 62)
    assert found(examine(mine), "disk").status is Status.WARNING
    monkeypatch.setattr(doctor_module, "LEAST_ROOM", 1 << 62)
    finding = found(examine(mine), "disk")
    assert (finding.status, finding.detail[:5]) == (Status.FAILED, "full:")


def test_what_has_expired_is_not_said_to_expire_soon(world):
    home = world.home("holder", "late", days=2, begun=NOW - timedelta(days=3))
    finding = found(examine(home, clock=lambda: NOW), "expiry")
    assert (finding.status, finding.detail[:10]) == (Status.FAILED, "expired on")


def test_others_hang_up_on_who_has_expired_and_that_is_said(world, service):
    home = world.home("holder", "late", days=2, begun=NOW - timedelta(days=3))
    findings = examine(home, service, bandwidth=False)
    assert failed(findings) == {"expiry", "rest"}
    finding = found(findings, "rest")
    assert (finding.detail[:11], finding.fix[:30]) == ("it hung up:", "renew this party's certificate")


def test_expired_tokens_are_named(mine):
    tokens, now = Tokens(mine / party.TOKENS), datetime.now(UTC)
    tokens.create("ann", [Scope.OWNER], expires=now + timedelta(days=2))
    assert found(examine(mine), "tokens").status is Status.OK
    tokens.create("bob", [Scope.OPERATOR], expires=now - timedelta(days=1))
    finding = found(examine(mine), "tokens")
    assert (finding.status, finding.detail) == (Status.WARNING, "1 of 2 expired: bob")
    late = found(examine(mine, clock=lambda: now + timedelta(days=3)), "tokens")
    assert (late.status, late.detail) == (Status.FAILED, "2 of 2 expired: ann, bob")


def test_denied_keys_are_shown(mine):
    assert found(examine(mine), "denied keys").detail == "none"
    revoke(mine / party.POLICY, "ab" * 32, since="2026-11-17T09:00:00Z", reason="laptop lost")
    finding = found(examine(mine), "denied keys")
    assert finding.status is Status.OK
    assert finding.detail == f"{'ab' * 8}... since 2026-11-17T09:00:00Z (laptop lost)"
    other = Subject("mpc-server", "S9", "ab" * 32, "00" * 32, "https://127.0.0.1:9", None)
    assert found(examine(mine, other), "denied").status is Status.FAILED
    (mine / party.POLICY).write_text("denied: [")
    assert failed(examine(mine)) == {"denied keys"}


def test_a_server_needs_a_policy_and_keeps_a_storage_key(world):
    home = world.home("mpc-server", "S1")
    assert failed(examine(home)) == {"policy"}
    (home / party.POLICY).write_text(policy_yaml())
    findings = examine(home)
    assert not failed(findings)
    assert found(findings, "storage key").status is Status.OK
    (home / "storage-key").unlink()
    assert found(examine(home), "storage key").status is Status.WARNING
    (home / "storage-key").write_bytes(b"x" * 31)
    (home / "storage-key").chmod(0o600)
    assert failed(examine(home)) == {"storage key"}


def test_a_servers_policy_must_admit_the_studys_scheme(world):
    home = world.home("mpc-server", "S1")
    (home / party.POLICY).write_text(policy_yaml())
    doctor = Doctor(home, clock=lambda: NOW)
    assert found(list(doctor.examine(scheme="rep4")), "scheme").status is Status.OK
    (home / party.POLICY).write_text("schemes: [rep3]\n")
    finding = found(list(doctor.examine(scheme="rep4")), "scheme")
    assert (finding.status, finding.detail) == (
        Status.FAILED,
        "the study's scheme is rep4, but policy.yaml only admits rep3",
    )
    assert not [one for one in doctor.examine() if one.check == "scheme"]


@pytest.mark.parametrize(("mine", "other", "dials"), [("S1", "S2", False), ("S4", "S1", True), ("S4", "S3", True)])
def test_a_server_connects_to_those_before_it(mine, other, dials):
    assert _dials(mine, other) is dials
    assert not _dials("coordinator", other)


@pytest.mark.parametrize("name", [party.PRIVATE_KEY, party.SIGNING_KEY])
def test_secrets_that_others_can_read(mine, name):
    (mine / name).chmod(0o644)
    one = found(examine(mine), "permissions")
    assert one.status is Status.FAILED
    assert name in one.detail
    assert "chmod 600" in one.fix


def test_files_that_are_missing(mine):
    (mine / party.PRIVATE_KEY).unlink()
    assert failed(examine(mine)) == {"files", "key"}
    assert failed(examine(mine / "nowhere")) == {"files"}


def test_a_certificate_near_its_end_is_a_warning_and_an_expired_one_a_failure(world):
    home = world.home("holder", "north", days=29)
    assert found(examine(home), "expiry").status is Status.WARNING
    late = examine(home, clock=lambda: NOW + timedelta(days=29))
    assert failed(late) == {"expiry"}
    assert "caps pki request" in found(late, "expiry").fix
    early = examine(home, clock=lambda: NOW - timedelta(days=1))
    assert "clock" in found(early, "expiry").fix


def test_a_key_that_is_not_the_certificates(mine):
    (mine / party.PRIVATE_KEY).unlink()
    pki.write_key(mine / party.PRIVATE_KEY, pki.generate_key())
    findings = examine(mine)
    assert failed(findings) == {"key"}
    assert found(findings, "key").blame is Blame.IDENTITY


def test_a_certificate_of_another_authority(world, mine, tmp_path):
    other = party.create_authority(tmp_path / "other", "test", now=NOW)
    world.certify(mine, "holder", "north", authority=other)
    assert failed(examine(mine)) == {"chain"}


@pytest.fixture
def service(world, tmp_path):
    """A running service of S1, and how a study describes it."""
    home = world.home("mpc-server", "S1")
    (tmp_path / "sample").mkdir()
    paths = Credentials(home / party.CERTIFICATE, home / party.PRIVATE_KEY, home / party.AUTHORITY)
    with serving(Sample(tmp_path / "sample").app, paths) as url:
        card = party.card(home, url=url, mesh="127.0.0.1:1")
        yield Subject("mpc-server", "S1", card.pin, card.signing_key, url, None)


def test_a_sound_party(mine, service):
    findings = [f for f in examine(mine, service) if f.subject == "mpc-server/S1"]
    assert not failed(findings), findings
    assert {"name", "port", "tls", "expiry", "health", "ready", "accepted", "clock", "latency", "bandwidth"} == {
        f.check for f in findings
    }


@pytest.mark.parametrize(
    ("change", "check", "blame"),
    [
        ({"pin": "00" * 32}, "pin", Blame.IDENTITY),
        ({"name": "S2"}, "role", Blame.IDENTITY),
        ({"role": "coordinator"}, "role", Blame.IDENTITY),
        ({"url": "https://nobody.invalid:8443"}, "name", Blame.REACH),
    ],
)
def test_a_party_that_is_not_who_the_study_says(mine, service, change, check, blame):
    findings = examine(mine, replace(service, **change))
    assert failed(findings) == {check}
    assert found(findings, check, str(replace(service, **change))).blame is blame
    assert "health" not in {f.check for f in findings}


def test_a_closed_port(mine, service):
    (port,) = free_ports(1)
    findings = examine(mine, replace(service, url=f"https://127.0.0.1:{port}"))
    assert failed(findings) == {"port"}
    assert "firewalls" in found(findings, "port").fix


def test_a_port_that_speaks_no_tls(mine, service):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        assert failed(examine(mine, replace(service, url=url), timeout=0.5)) == {"tls"}


@pytest.mark.parametrize(
    ("offset", "status"), [(0, Status.OK), (30, Status.WARNING), (-30, Status.WARNING), (600, Status.FAILED)]
)
def test_clocks_that_differ(mine, service, offset, status):
    findings = examine(mine, service, clock=lambda: datetime.now(UTC) + timedelta(seconds=offset))
    assert found(findings, "clock").status is status


@pytest.mark.parametrize(("days", "words"), [(1, "expired"), (None, "another authority")])
def test_a_party_whose_certificate_nobody_accepts(world, mine, tmp_path, days, words):
    home, authority = tmp_path / "S2", None
    party.request_party(home, "mpc-server", "S2", HOSTS)
    if days is None:
        authority = party.create_authority(tmp_path / "other", "test", now=NOW)
    world.certify(home, "mpc-server", "S2", days=days or 30, begun=NOW - timedelta(days=3 if days else 0),
                  authority=authority)  # fmt: skip
    (tmp_path / "two").mkdir()
    paths = Credentials(home / party.CERTIFICATE, home / party.PRIVATE_KEY, home / party.AUTHORITY)
    card = party.card(home, url="https://x.example:1", mesh="127.0.0.1:1")
    with serving(Sample(tmp_path / "two").app, paths) as url:
        findings = examine(mine, Subject("mpc-server", "S2", card.pin, card.signing_key, url, None))
    (one,) = (f for f in findings if f.status is Status.FAILED)
    assert words in one.detail
    assert one.blame is Blame.IDENTITY


def test_versions_that_differ(mine, service, monkeypatch):
    monkeypatch.setattr("caps.service.doctor.__version__", "9.9")
    assert found(examine(mine, service), "versions").status is Status.WARNING


def test_servers_of_different_versions_start_no_run(world, service, monkeypatch):
    monkeypatch.setattr("caps.service.doctor.__version__", "9.9")
    other = world.home("mpc-server", "S3")
    assert found(examine(other, service), "versions").status is Status.FAILED


def test_a_study_that_names_other_keys_of_this_party(mine):
    card = party.card(mine)
    own = Subject("holder", "north", card.pin, card.signing_key, None, None)
    assert found(examine(mine, own), "own pin").status is Status.OK
    assert failed(examine(mine, replace(own, pin="11" * 32))) == {"own pin"}
    assert failed(examine(mine, replace(own, signing_key="11" * 32))) == {"own pin"}


@pytest.mark.parametrize(
    ("me", "other", "status"),
    [
        ("S2", "S1", Status.FAILED),
        ("S3", "S2", Status.FAILED),
        ("S1", "S2", Status.SKIPPED),
        ("S2", "S3", Status.SKIPPED),
    ],
)
def test_only_those_meshes_are_tried_that_this_server_connects_to(world, me, other, status):
    home = world.home("mpc-server", me)
    (port,) = free_ports(1)
    with socket.create_server(("127.0.0.1", port)):
        peer = Subject("mpc-server", other, "00" * 32, "00" * 32, None, f"127.0.0.1:{port}")
        if status is Status.FAILED:
            assert found(examine(home, peer), "mesh").status is Status.OK
    assert found(examine(home, peer), "mesh").status is status


def doctor(*arguments):
    return CliRunner().invoke(app, ["doctor", *map(str, arguments)])


def test_the_command_shows_a_table_and_how_to_fix(mine):
    done = doctor(mine)
    assert done.exit_code == Exit.OK
    assert "How to fix it" not in done.stdout
    (mine / party.PRIVATE_KEY).chmod(0o644)
    done = doctor(mine)
    assert done.exit_code == Exit.REFUSED
    assert "chmod 600" in done.stdout


def test_the_exit_code_says_what_kind_of_trouble_it_is(mine, service, tmp_path):
    cards = tmp_path / "cards"
    cards.mkdir()
    path = cards / "s1.json"

    def write(**change):
        one = replace(service, **change)
        Card(role=one.role, name=one.name, pin=one.pin, signing_key=one.signing_key, url=one.url,
             mesh="127.0.0.1:9").write(path)  # fmt: skip

    write()
    done = doctor(mine, "--cards", cards, "--json")
    assert done.exit_code == Exit.OK
    document = json.loads(done.stdout)
    assert document["counts"]["failed"] == 0
    assert {"subject", "check", "status", "detail", "fix", "blame"} == set(document["findings"][0])
    write(pin="00" * 32)
    assert doctor(mine, "--cards", cards).exit_code == Exit.NOT_VERIFIED
    write(url="https://127.0.0.1:9")
    assert doctor(mine, "--cards", cards).exit_code == Exit.UNREACHABLE


@pytest.mark.parametrize(
    "page", ["docs/operations.md", "deploy/kubernetes/README.md", "deploy/observability/prometheus.yml"]
)
def test_what_operators_are_told_to_type_exists(page):
    text = (Path(__file__).parents[3] / page).read_text()
    known = typer.main.get_command(app).commands
    told = re.findall(r"(?:^ {4}|`|^# +)caps ([a-z-]+)(?: ([a-z-]+))?(.*)", text, re.MULTILINE)
    assert told
    for first, second, rest in told:
        command = known[first]
        if hasattr(command, "commands"):
            command = command.commands[second]
        options = {name for one in command.params for name in one.opts}
        assert set(re.findall(r" (--[a-z-]+)", rest.partition("`")[0])) <= options, (first, second)
