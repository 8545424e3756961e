"""Utility runs: which, in which order, and going on where a command ended."""

import argparse
import json
from itertools import groupby

import numpy as np
import pytest

from bench import federated, results
from bench.quality import METRICS


def options(*given):
    parser = argparse.ArgumentParser()
    federated.arguments(parser)
    return parser.parse_args(given)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("CAPS_BENCH_RESULTS", str(tmp_path))
    return tmp_path


def test_the_whole_plan():
    cases = list(federated.plan(options()))
    assert len(cases) == len(set(cases)) == 6 * 4 * 20 + 2 * 6 * 4 * 3 + 4 * 2
    parts = [key for key, _ in groupby(cases, lambda case: (case.dataset == "adult", case.epsilon == "1"))]
    assert parts == [(False, True), (False, False), (True, True)]
    assert {case.epsilon for case in cases} == {"0.1", "1", "10"}
    assert {case.algorithm for case in cases if case.dataset == "adult"} == {"aim"}


def test_central_runs_come_first_and_the_services_go_seed_by_seed():
    cases = [case for case in federated.plan(options("--seeds", "3", "--epsilons", "1")) if case.dataset != "adult"]
    kinds = [(case.setting == "central", case.seed) for case in cases]
    assert [kind for kind, _ in groupby(kinds)] == [(True, 0), (True, 1), (True, 2), (False, 0), (False, 1), (False, 2)]
    first = [case for case in cases if case.setting != "central" and case.seed == 0]
    assert len(first) == 3 * 2 * 3


def test_options_restrict_the_plan():
    given = ("--datasets", "compas-caps", "--algorithms", "aim", "--epsilons", "10", "--settings", "mixed")
    assert list(federated.plan(options(*given, "--other-seeds", "1"))) == [
        federated.Case("compas-caps", "aim", "10", "mixed", 0)
    ]


@pytest.fixture
def performed(folder, monkeypatch):
    """Runs that took place, without any taking place."""
    done = []

    def perform(case, _):
        done.append(case)
        return [0], {"seconds": 1.0}

    monkeypatch.setattr(federated, "_dataset", lambda name: name)
    monkeypatch.setattr(federated, "scores", lambda *_: dict.fromkeys(METRICS, 0.5))
    monkeypatch.setattr(federated, "_perform", perform)
    return done


def _save(report):
    results.save("federated", report, arguments=["federated", "--save"])


def test_a_command_given_again_goes_on_where_it_ended(performed):
    few = options("--seeds", "1", "--epsilons", "1", "--datasets", "compas-caps")
    report = federated.measure(few, _save)
    assert len(performed) == len(report["runs"]) == 2 * 4
    more = options("--seeds", "2", "--epsilons", "1", "--datasets", "compas-caps")
    report = federated.measure(more, _save)
    assert {case.seed for case in performed[8:]} == {1}
    assert len(performed) == len(report["runs"]) == 2 * 2 * 4
    assert json.loads((results.folder() / "federated.json").read_text())["report"] == report


def test_no_run_begins_after_its_time(performed):
    federated.measure(options("--minutes", "-1"), _save)
    assert performed == []


def test_equal_means_are_equivalent_and_distant_ones_are_not():
    base = np.linspace(-1, 1, 20)
    same, far = federated.compare(base + 0.01, base), federated.compare(base + 2, base)
    assert same["equivalent"]
    assert same["within"]
    assert not far["equivalent"]
    assert not far["within"]
    assert far["interval"][0] > federated.MARGIN
    few = federated.compare(base[[0, 10, 19]], base)
    assert few["within"]
    assert not few["equivalent"]  # too few runs to show it
