"""`caps policy`: what is written is valid, has every member, and is never written over another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from caps.cli import Exit, app
from caps.study import Policy


def caps(*arguments: object, expect: int = Exit.OK) -> Result:
    found = CliRunner().invoke(app, [str(one) for one in arguments])
    assert found.exit_code == expect, found.output
    return found


def test_a_new_policy_has_the_defaults_and_says_what_each_member_means(tmp_path: Path) -> None:
    caps("policy", "new", tmp_path)
    assert Policy.read(tmp_path / "policy.yaml") == Policy()
    lines = (tmp_path / "policy.yaml").read_text().splitlines()[2:]
    assert [line.partition(":")[0] for line in lines] == list(Policy.model_fields)
    assert all(line.partition(" # ")[2] for line in lines)


def test_members_and_populations_are_chosen(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    chosen = ("--set", "approval=automatic", "--set", "largest_delta=1e-7", "--set", "joins=[shuffle]")
    caps("policy", "new", path, *chosen, "--population", "county-patients=3", "--population", "insured=2.5")
    found = Policy.read(path)
    assert (found.approval, found.largest_delta, found.joins) == ("automatic", 1e-7, ("shuffle",))
    assert found.populations == {"county-patients": 3.0, "insured": 2.5}
    assert json.loads(caps("policy", "check", path, "--json").stdout)["approval"] == "automatic"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--set", "approval=perhaps"], Exit.REFUSED, "approval"),
        (["--set", "aproval=manual"], Exit.REFUSED, "aproval"),
        (["--set", "largest_epsilon=0"], Exit.REFUSED, "largest_epsilon"),
        (["--set", "approval"], Exit.USAGE, "NAME=VALUE"),
        (["--set", "joins=[shuffle"], Exit.USAGE, "NAME=VALUE"),
        (["--population", "county-patients"], Exit.USAGE, "NAME=VALUE"),
        (["--population", "h1=1", "--population", "hl=1"], Exit.REFUSED, "look alike"),
    ],
)
def test_what_is_no_policy_is_refused_and_not_written(
    tmp_path: Path, arguments: list[str], code: int, words: str
) -> None:
    assert words in caps("policy", "new", tmp_path, *arguments, expect=code).output
    assert list(tmp_path.iterdir()) == []


def test_a_policy_that_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("approval: automatic\n")
    caps("policy", "new", tmp_path, expect=Exit.REFUSED)
    assert Policy.read(tmp_path / "policy.yaml").approval == "automatic"


def test_a_broken_policy_is_found(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("least_holders: 0\n")
    assert "least_holders" in caps("policy", "check", tmp_path, expect=Exit.REFUSED).output
