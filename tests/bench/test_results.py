"""Results as files: the code they are of, commands, runs as lines, and the machine."""

import json
import os
import socket

import pytest

from bench import results, sources


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("CAPS_BENCH_RESULTS", str(tmp_path))
    return tmp_path


def test_a_result_says_of_which_code_and_commit_it_is():
    results.save("network", {"a": 1}, arguments=["network", "--save"])
    found = results.load("network")
    assert found["code"] == sources.digest_of("network")
    assert found["commit"].rstrip("+") == sources.commit().rstrip("+")
    assert results.current("network") == found


@pytest.mark.parametrize("code", [None, "0" * 16])
def test_what_is_of_other_code_or_does_not_say_is_not_added_to(folder, code):
    results.save("scaling", {"rows": 1}, arguments=["scaling", "rows"])
    path = folder / "scaling.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "code": code}))
    assert results.current("scaling") is None
    results.save("scaling", {"rows": 2}, arguments=["scaling", "again"])
    assert results.load("scaling")["commands"] == ["python -m bench scaling again"]


def test_runs_are_lines(folder):
    runs = [{"seed": 1, "text": '"runs": []'}, {"seed": 2}]
    results.save("utility", {"runs": runs}, arguments=["utility"])
    assert results.load("utility")["report"]["runs"] == runs
    assert sum('"seed"' in line for line in (folder / "utility.json").read_text().splitlines()) == 2


def test_a_command_is_saved_as_a_person_types_it():
    results.save("network", {}, arguments=["network", "--lines", "20 ms", "--save"])
    assert results.load("network")["commands"] == ["python -m bench network --lines '20 ms' --save"]


def test_commands_add_up_only_where_results_do():
    for subject, expected in (("federated", 2), ("runtime", 1)):
        for more in ([], ["--save"], ["--save"]):
            results.save(subject, {}, arguments=[subject, *more])
        assert len(results.load(subject)["commands"]) == expected


def test_a_machine_is_described_without_telling_whose_it_is():
    text = json.dumps(results.machine())
    assert socket.gethostname() not in text
    assert os.getcwd() not in text
    assert os.path.expanduser("~") not in text or os.path.expanduser("~") == "/"
    assert "/" not in results.machine()["system"]
