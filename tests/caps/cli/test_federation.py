"""`caps federation`, from a new directory to none, as somebody types it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from caps.cli import Exit, app
from caps.federation.local import LocalFederation
from tests.kit.waiting import until

pytestmark = pytest.mark.integration


def caps(*arguments: object, expect: int = Exit.OK) -> Result:
    found = CliRunner().invoke(app, [str(one) for one in arguments])
    assert found.exit_code == expect, found.output
    return found


def as_json(*arguments: object, expect: int = Exit.OK) -> Any:
    return json.loads(caps(*arguments, "--json", expect=expect).stdout)


def states(folder: Path, expect: int) -> dict[str, str]:
    services = as_json("federation", "status", folder, expect=expect)["services"]
    return {one["name"]: one["state"] for one in services}


@pytest.mark.slow  # README, which tests/docs runs, goes the same way without faults
def test_from_a_new_directory_to_none(tmp_path: Path) -> None:
    folder = tmp_path / "trial"
    made = as_json("federation", "new", folder, "--holders", "north, south")
    assert made["parties"] == ["S1", "S2", "S3", "coordinator", "north", "south"]
    assert set(states(folder, Exit.NOT_YET).values()) == {"stopped"}
    try:
        begun = as_json("federation", "start", folder)
        assert begun["started"] == made["parties"]
        assert {one["state"] for one in begun["services"]} == {"ready"}
        again = as_json("federation", "start", folder)
        assert again["started"] == []
        assert [one["since"] for one in again["services"]] == [one["since"] for one in begun["services"]]

        process = LocalFederation.read(folder).process("north")
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        until(lambda: not process.lives())
        assert states(folder, Exit.NOT_YET) == {**dict.fromkeys(made["parties"], "ready"), "north": "stopped"}
        assert "ended by itself" in caps("federation", "status", folder, expect=Exit.NOT_YET).stdout
        assert as_json("federation", "start", folder)["started"] == ["north"]

        assert as_json("federation", "stop", folder)["stopped"] == made["parties"]
        assert as_json("federation", "stop", folder)["stopped"] == []
    finally:
        caps("federation", "clean", folder)
    assert list(tmp_path.iterdir()) == []


def test_people_are_warned_that_one_machine_sees_everything(tmp_path: Path) -> None:
    assert "non-collusion is NOT met" in caps("federation", "new", tmp_path / "trial", "--holders", "north").stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["new", "TRIAL"], Exit.USAGE),
        (["new", "TRIAL", "--holders", "north", "--scheme", "rep5"], Exit.USAGE),
        (["new", "TRIAL", "--holders", ","], Exit.REFUSED),
        (["new", "TRIAL", "--holders", "../north"], Exit.REFUSED),
        (["start", "TRIAL"], Exit.REFUSED),
        (["status", "TRIAL"], Exit.REFUSED),
        (["stop", "TRIAL"], Exit.REFUSED),
        (["clean", "TRIAL"], Exit.REFUSED),
    ],
)
def test_what_cannot_be_done_is_refused_and_makes_nothing(tmp_path: Path, arguments: list[str], code: int) -> None:
    folder = tmp_path / "trial"
    done = caps("federation", *(str(folder) if one == "TRIAL" else one for one in arguments), expect=code)
    assert "Traceback" not in done.output
    assert not folder.exists()
