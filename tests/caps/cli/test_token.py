"""Bearer tokens: scoped, expiring, kept as digests, made and revoked by `caps token`."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from typer.testing import CliRunner

from caps.cli import Exit, app
from caps.errors import DomainError
from caps.service.tokens import Scope, Tokens

NOW = datetime(2030, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(days=1)


@pytest.fixture
def tokens(tmp_path):
    return Tokens(tmp_path / "tokens.json")


def caps(*arguments, expect=Exit.OK):
    found = CliRunner().invoke(app, [str(one) for one in arguments])
    assert found.exit_code == expect, found.output
    return found


def test_a_token_stands_for_a_person_with_scopes(tokens):
    token = tokens.create("ann", [Scope.OWNER, Scope.AUDITOR], expires=LATER)
    person = tokens.find(token, NOW)
    assert person is not None
    assert (person.name, person.scopes) == ("ann", {Scope.OWNER, Scope.AUDITOR})


def test_the_file_has_digests_only_and_is_for_its_owner(tokens, tmp_path):
    token = tokens.create("ann", [Scope.OWNER], expires=LATER)
    secret = token.rpartition("_")[2] if token.count("_") == 2 else token[18:]
    assert secret not in (tmp_path / "tokens.json").read_text()
    assert (tmp_path / "tokens.json").stat().st_mode & 0o777 == 0o600


def test_expired_altered_and_unknown_tokens_stand_for_nobody(tokens):
    token = tokens.create("ann", [Scope.OWNER], expires=LATER)
    last = "A" if token[-1] != "A" else "B"
    assert tokens.find(token, LATER) is None
    assert tokens.find(token[:-1] + last, NOW) is None
    assert tokens.find(token.replace(token[5:17], "0" * 12), NOW) is None
    for nonsense in ("", "caps_", "Bearer", token + "x", " " + token):
        assert tokens.find(nonsense, NOW) is None
        assert tokens.expired(nonsense, LATER) is None
    assert tokens.expired(token, LATER) == LATER
    assert tokens.expired(token, NOW) is None
    assert tokens.expired(token[:-1] + last, LATER) is None  # a guess learns nothing


@pytest.mark.parametrize(
    ("name", "scopes", "expires"),
    [("", [Scope.OWNER], LATER), ("ann", [], LATER), ("ann", [Scope.OWNER], LATER.replace(tzinfo=None))],
)
def test_incomplete_tokens_are_not_made(tokens, name, scopes, expires):
    with pytest.raises(DomainError):
        tokens.create(name, scopes, expires=expires)


def test_a_running_service_forgets_a_revoked_token_at_once(tmp_path):
    running = Tokens(tmp_path / "tokens.json")
    made = json.loads(caps("token", "create", tmp_path, "--name", "ann", "--scope", "owner", "--json").stdout)
    now = datetime.now(UTC)
    assert running.find(made["token"], now) is not None
    (identity,) = running.listed()
    caps("token", "revoke", tmp_path, identity)
    assert running.find(made["token"], now) is None


def test_create_shows_the_token_once(tmp_path):
    found = caps("token", "create", tmp_path, "--name", "ann", "--scope", "owner", "--scope", "operator", "--days", "2")
    token = found.stdout.strip()
    person = Tokens(tmp_path / "tokens.json").find(token, datetime.now(UTC) + timedelta(days=1))
    assert person is not None
    assert person.scopes == {Scope.OWNER, Scope.OPERATOR}
    assert Tokens(tmp_path / "tokens.json").find(token, datetime.now(UTC) + timedelta(days=2)) is None
    listed = caps("token", "list", tmp_path)
    assert "ann" in listed.stdout
    assert token not in listed.output
    assert token[18:] not in caps("token", "list", tmp_path, "--json").output


def test_an_expired_token_is_listed_as_such(tmp_path):
    past, later = datetime.now(UTC) - timedelta(days=1), datetime.now(UTC) + timedelta(days=1)
    for name, end in (("late", past), ("ann", later)):
        Tokens(tmp_path / "tokens.json").create(name, [Scope.OWNER], expires=end)
    lines = {line.split()[1]: line for line in caps("token", "list", tmp_path).stdout.splitlines()[1:]}
    assert lines["late"].endswith(f"expired on {past:%Y-%m-%d}")
    assert "expired" not in lines["ann"]


def test_what_is_not_a_scope_is_a_matter_of_usage(tmp_path):
    caps("token", "create", tmp_path, "--name", "ann", "--scope", "emperor", expect=Exit.USAGE)
    caps("token", "create", tmp_path, "--name", "ann", expect=Exit.USAGE)
    assert not (tmp_path / "tokens.json").exists()


def test_revoking_nothing_is_refused(tmp_path):
    assert "no token" in caps("token", "revoke", tmp_path, "0" * 12, expect=Exit.REFUSED).stderr
