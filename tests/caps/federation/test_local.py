"""A federation in a directory: whole or not at all, refused names, private files, and what `clean` may remove."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from caps.basics.schemes import REP3, REP4
from caps.cli.connection import Given
from caps.client.sites import read_sites
from caps.data.schema import Schema
from caps.errors import DomainError
from caps.federation import local, sample
from caps.federation.local import LocalFederation, NotStarted
from caps.federation.processes import Process
from caps.study import Policy
from caps.study.authoring import examined
from caps.trust.cards import read_bundle

NOW = datetime.now(UTC)


def make(directory: Path, *holders: str) -> LocalFederation:
    return LocalFederation.create(directory, holders or ("north", "south"), scheme=REP3, now=NOW)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> LocalFederation:
    return make(tmp_path_factory.mktemp("local") / "trial")


def test_only_their_owner_can_read_keys_tokens_and_folders(made: LocalFederation) -> None:
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in [made.directory, *made.directory.rglob("*")]}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    secret = [path for path in modes if path.suffix == ".token" or "key" in path.name or path.name == "tokens.json"]
    assert len(secret) >= 4 * 3 + 3 * 3 + 1
    assert {modes[path] for path in secret} == {0o600}


def test_git_ignores_all_of_it(made: LocalFederation) -> None:
    assert (made.directory / ".gitignore").read_text() == "*\n"


def test_a_later_command_finds_the_same_places(made: LocalFederation) -> None:
    found = LocalFederation.read(made.directory)
    assert found.places == made.places
    assert found.record.study == made.record.study


def test_every_site_has_its_token_and_the_authority(made: LocalFederation) -> None:
    sites = read_sites(made.config)
    own = {"north", "north-operator", "south", "south-operator"}
    servers = {f"S{number}{suffix}" for number in (1, 2, 3) for suffix in ("", "-auditor")}
    assert set(sites) == own | servers | {"coordinator", "holder", "server", "analyst", "auditor"}
    for name in sites:
        connection = Given(site=name, config=made.config).connection("coordinator")
        assert connection.token is not None
        assert connection.token.startswith("caps_")
        assert connection.authority == made.authority
    assert sites["analyst"]["url"] == made.places["coordinator"].url


def test_names_with_dots_are_sites_of_their_own(tmp_path: Path) -> None:
    found = make(tmp_path / "trial", "north.west", "north.east")
    assert {"north.west", "north.east"} <= set(read_sites(found.config))


def test_the_sample_is_a_valid_study_whose_tables_fit(made: LocalFederation) -> None:
    folder = made.directory / local.SAMPLE
    remarks, manifest = examined((folder / sample.STUDY).read_text())
    assert [one for one in remarks if one.severity == "error"] == []
    assert manifest is not None
    assert manifest.study_id == made.record.study
    assert Policy.read(made.places["S1"].home / "policy.yaml").judge(manifest) == []
    schema = Schema.from_json((folder / sample.SCHEMA_FILE).read_bytes())
    for name in ("north", "south"):
        codes, _ = schema.encode(folder / f"{name}.csv")
        assert len(codes) == sample.PERSONS
        assert (folder / f"{name}.csv").read_text() == sample.table(name)
    assert sample.table("north") != sample.table("south")
    assert [one.name for one in read_bundle(made.directory / local.CARDS)] == list(made.places)


def test_a_scheme_of_four_has_four_servers(tmp_path: Path) -> None:
    found = LocalFederation.create(tmp_path / "four", ["north"], scheme=REP4, now=NOW)
    assert [name for name, place in found.places.items() if place.role == "mpc-server"] == list(REP4.server_names)
    document = yaml.safe_load((found.directory / local.SAMPLE / sample.STUDY).read_text())
    assert (document["scheme"], len(document["servers"])) == ("rep4", 4)


@pytest.mark.parametrize(
    ("holders", "words"),
    [
        ([], "at least one holder"),
        (["north", "north"], "two parties or sites"),
        (["../north"], "cannot be a holder's name"),
        (["nor\x1b[31mth"], "cannot be a holder's name"),
        ([".hidden"], "cannot be a holder's name"),
        (["coordinator"], "two parties or sites"),
        (["S1"], "two parties or sites"),
        (["s1"], "look alike"),
        (["h1", "hl"], "look alike"),
        (["Holder"], "look alike"),
        (["a", "a-operator"], "two parties or sites"),
    ],
)
def test_names_that_would_be_mistaken_are_refused(tmp_path: Path, holders: list[str], words: str) -> None:
    with pytest.raises(DomainError, match=words) as refused:
        LocalFederation.create(tmp_path / "trial", holders, scheme=REP3, now=NOW)
    assert str(refused.value).isprintable()
    assert list(tmp_path.iterdir()) == []


def test_a_directory_with_something_in_it_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(DomainError, match="not empty"):
        make(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_federation_that_cannot_be_finished_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sample, "write", full)
    with pytest.raises(OSError, match="No space left"):
        make(tmp_path / "trial")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [None, "", "{}", '{"version": 2}', '{"version": 1, "parties": []}'])
def test_another_directory_is_not_cleaned(tmp_path: Path, content: str | None) -> None:
    (tmp_path / "parties").mkdir()
    (tmp_path / "parties" / "mine").write_text("mine")
    if content is not None:
        (tmp_path / local.RECORD).write_text(content)
    with pytest.raises(DomainError):
        LocalFederation.read(tmp_path).clean()
    assert (tmp_path / "parties" / "mine").exists()


def test_a_record_cannot_lead_out_of_its_directory(tmp_path: Path) -> None:
    found = make(tmp_path / "trial", "north")
    path = found.directory / local.RECORD
    record = json.loads(path.read_text())
    record["parties"][-1]["name"] = "../../elsewhere"
    path.write_text(json.dumps(record))
    with pytest.raises(DomainError, match="name"):
        LocalFederation.read(found.directory)


def test_clean_removes_what_was_made_and_nothing_else(tmp_path: Path) -> None:
    found = make(tmp_path / "trial", "north")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    (found.directory / "synthetic.csv").write_text("mine")
    for path in (found.directory / "logs").iterdir():
        path.unlink()
    (found.directory / "logs").rmdir()
    (found.directory / "logs").symlink_to(outside)
    assert found.clean() == ["synthetic.csv"]
    assert [path.name for path in found.directory.iterdir()] == ["synthetic.csv"]
    assert (outside / "kept").exists()
    with pytest.raises(DomainError, match=r"no federation\.json"):
        LocalFederation.read(found.directory)


def test_clean_removes_a_directory_that_is_all_its_own(tmp_path: Path) -> None:
    assert make(tmp_path / "trial", "north").clean() == []
    assert not (tmp_path / "trial").exists()


def test_the_environment_follows_a_directory_that_was_moved(tmp_path: Path) -> None:
    make(tmp_path / "trial", "north").directory.rename(tmp_path / "it's moved")
    found = LocalFederation.read(tmp_path / "it's moved")
    found.write_environment(RELEASE="abc")
    line = '. "$1"; echo "$CAPS_CONFIG $RELEASE"'
    told = subprocess.run(["sh", "-c", line, "sh", found.directory / "env"], capture_output=True, text=True, check=True)
    assert told.stdout == f"{found.config} abc\n"


def test_a_process_of_somebody_else_is_not_ours(made: LocalFederation) -> None:
    """The id in a stale file now belongs to this very test."""
    stale = Process(pid=os.getpid(), boot="an earlier one", ticks=1, since="2030-01-01T00:00:00Z")
    path = made.directory / local.RUN / "north.json"
    stale.keep(path)
    assert made.process("north") is None
    assert made.stop() == {}
    (condition,) = (one for one in made.status() if one.place.name == "north")
    assert (condition.state, condition.since) == ("stopped", None)
    path.unlink()


def test_two_commands_do_not_start_and_stop_at_once(made: LocalFederation) -> None:
    with made._alone(), pytest.raises(DomainError, match="another command"):
        LocalFederation.read(made.directory).stop()


@pytest.mark.integration
def test_a_service_that_cannot_start_is_named_with_its_last_lines(tmp_path: Path) -> None:
    found = make(tmp_path / "trial", "north")
    (found.places["S1"].home / "policy.yaml").write_text("approval: perhaps\n")
    try:
        with pytest.raises(NotStarted, match=r"(?s)S1 ended\. Its last lines:.*policy\.yaml: approval"):
            found.start(now=lambda: NOW)
        (condition,) = (one for one in found.status() if one.place.name == "S1")
        assert condition.state == "stopped"
        assert "policy.yaml" in condition.why
    finally:
        found.clean()
    assert not (tmp_path / "trial").exists()
