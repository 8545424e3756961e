"""Tokens of people: what the file holds, and that changes of it count at once."""

import json
import os
import stat
import threading
from datetime import UTC, datetime, timedelta

import pytest

from caps.errors import DomainError
from caps.service.tokens import Person, Scope, Tokens

NOW = datetime(2030, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(days=1)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "tokens.json"


def test_a_token_is_found_until_it_expires(path):
    token = Tokens(path).create("ada", [Scope.OWNER, Scope.ANALYST], expires=LATER)
    assert Tokens(path).find(token, NOW) == Person("ada", frozenset({Scope.OWNER, Scope.ANALYST}), token.split("_")[1])
    assert Tokens(path).find(token, LATER) is None


def test_only_a_digest_is_kept_and_only_the_owner_reads_it(path):
    old = os.umask(0)
    try:
        token = Tokens(path).create("ada", [Scope.OWNER], expires=LATER)
    finally:
        os.umask(old)
    secret = token.split("_", 2)[2]
    assert secret not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()} == {0o600}


def test_an_altered_token_is_unknown(path):
    tokens = Tokens(path)
    first, second = (tokens.create(name, [Scope.OWNER], expires=LATER) for name in ("ada", "bob"))
    mixed = "_".join([*first.split("_")[:2], second.split("_", 2)[2]])
    for wrong in (mixed, first.upper(), first + "\n", f" {first}", first[:-1], "", first.replace("caps", "caps2")):
        assert tokens.find(wrong, NOW) is None


def test_a_revoked_token_is_unknown_to_a_running_service(path):
    service, command = Tokens(path), Tokens(path)
    token = command.create("ada", [Scope.OWNER], expires=LATER)
    other = command.create("bob", [Scope.OWNER], expires=LATER)
    assert service.find(token, NOW) is not None
    command.revoke(token.split("_")[1])
    assert service.find(token, NOW) is None
    assert service.find(other, NOW) is not None
    with pytest.raises(DomainError, match="no token"):
        command.revoke(token.split("_")[1])


def test_without_the_file_there_are_no_tokens(path):
    tokens = Tokens(path)
    token = tokens.create("ada", [Scope.OWNER], expires=LATER)
    path.unlink()
    assert tokens.find(token, NOW) is None
    assert tokens.listed() == {}


def test_a_list_has_no_digests(path):
    tokens = Tokens(path)
    token = tokens.create("ada", {Scope.OWNER}, expires=LATER)
    assert tokens.listed() == {
        token.split("_")[1]: {"name": "ada", "scopes": ["owner"], "expires": LATER.isoformat()},
    }


@pytest.mark.parametrize(
    ("name", "scopes", "expires"),
    [("", [Scope.OWNER], LATER), ("ada", [], LATER), ("ada", [Scope.OWNER], datetime(2030, 1, 1))],
)
def test_a_token_has_name_scope_and_a_definite_end(path, name, scopes, expires):
    with pytest.raises(DomainError):
        Tokens(path).create(name, scopes, expires=expires)
    assert not path.exists()


def test_a_damaged_file_is_refused(path):
    path.write_text("[")
    with pytest.raises(DomainError, match="not valid JSON"):
        Tokens(path).find("caps_" + "0" * 12 + "_" + "a" * 43, NOW)


def test_none_is_lost_when_several_write(path):
    def create(number):
        for i in range(10):
            Tokens(path).create(f"{number}-{i}", [Scope.OWNER], expires=LATER)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(json.loads(path.read_text())) == 40
