"""The suite's runs: which, in which order, going on where a command ended; one of each kind on an invented table."""

import argparse
import json

import numpy as np
import pytest

from bench import datasets, results, sources, utility
from bench.quality import ALL
from bench.utility_tasks import FAMILIES, Case, family, run
from caps.basics.uniform import Uniform

TABLE = "invented"


def options(*given):
    parser = argparse.ArgumentParser()
    utility.arguments(parser)
    return parser.parse_args(given)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A data folder with one table of four columns, and a folder for results."""
    uniform, rows = Uniform("table"), 400
    a, b, c = uniform.integers(rows, 2), uniform.integers(rows, 3), uniform.integers(rows, 2)
    label = np.where(uniform.floats(rows) < 0.9, a, 1 - a)
    lines = [f"v{p},v{q},v{r},v{s}" for p, q, r, s in zip(a, b, c, label, strict=True)]
    (tmp_path / f"{TABLE}.csv").write_text("\n".join(["a,b,c,label", *lines]) + "\n")
    columns = [
        {"name": name, "kind": "categorical", "categories": [f"v{i}" for i in range(size)]}
        for name, size in (("a", 2), ("b", 3), ("c", 2), ("label", 2))
    ]
    schema = {"name": TABLE, "label": "label", "positive": "v1", "columns": columns}
    (tmp_path / f"{TABLE}.schema.json").write_text(json.dumps(schema))
    monkeypatch.setenv("CAPS_DATA", str(tmp_path))
    monkeypatch.setenv("CAPS_BENCH_RESULTS", str(tmp_path / "results"))
    return tmp_path


def save(report):
    results.save("utility", report, arguments=["utility", "--save"])


def test_the_plan_is_balanced_with_large_tables_and_slow_mechanisms_last():
    cases = list(utility.plan(options("--tables", "adult", "wdbc", "--seeds", "3", "--epsilons", "1", "10")))
    assert len(cases) == len(set(cases)) == 2 * 2 * (3 * 9 + 1 * (3 + 5))
    kinds = [(case.table == "adult", family(case.mechanism) in ("mbi", "packages"), case.seed) for case in cases]
    assert kinds == sorted(kinds)


def test_mechanisms_are_named_one_by_one_or_by_family():
    given = options("--tables", "wdbc", "--seeds", "1", "--epsilons", "1", "--mechanisms", "floor", "mst")
    assert {case.mechanism for case in utility.plan(given)} == {"uniform", "columns", "mst"}
    with pytest.raises(SystemExit):
        options("--mechanisms", "magic")


def test_all_tables_of_the_folder_unless_some_are_named(folder):
    assert {case.table for case in utility.plan(options())} == {TABLE}


@pytest.mark.parametrize("mechanism", ["aim", "original-aim", "original-mwem", "original-mst", "uniform", "columns"])
def test_a_run_of_a_seed_is_the_same_again(folder, mechanism):
    first, again = (run(Case(TABLE, mechanism, "5", 1), 60) for _ in range(2))
    other = run(Case(TABLE, mechanism, "5", 2), 60)
    assert set(first) >= {*ALL, "rows", "rounds", "seconds", "cpu_seconds"}
    assert [first[name] for name in ALL] == [again[name] for name in ALL]
    assert [first[name] for name in ALL] != [other[name] for name in ALL]


def test_what_a_mechanism_refuses_is_a_result(folder):
    column = {"name": "a", "kind": "categorical", "categories": ["v0", "v1"]}
    (folder / "narrow.schema.json").write_text(json.dumps({"name": "narrow", "columns": [column]}))
    (folder / "narrow.csv").write_text("a\n" + "v0\n" * 50)
    found = run(Case("narrow", "mst", "1", 0), 60)
    assert found["failed"] == "a spanning tree needs at least two columns"
    assert "pair" not in found


def test_a_process_of_its_own_that_does_not_end_is_a_result(folder):
    assert run(Case(TABLE, "mbi-aim", "1", 0), 0.2)["failed"] == "no end within 0.2 s"


def test_runs_in_a_pool_are_saved_as_they_end_and_not_made_again(folder):
    given = ("--tables", TABLE, "--epsilons", "5", "--mechanisms", "uniform", "original-mst", "--seeds")
    saved = []

    def record(report):
        saved.append(len(report["runs"]))
        save(report)

    first = utility.measure(options(*given, "1"), record)
    assert saved == [1, 2]
    assert {one["mechanism"] for one in first["runs"]} == {"uniform", "original-mst"}
    assert all(one["code"] == sources.digest(sources.UTILITY[family(one["mechanism"])]) for one in first["runs"])
    assert utility.measure(options(*given, "1"), lambda _: pytest.fail("measured again")) == first
    text = utility.table(first)
    assert f"{TABLE} eps=5 original-mst" in text


def known(mechanism, code, seed=0):
    return {**Case(TABLE, mechanism, "1", seed)._asdict(), "code": code, "pair": 0.1}


def test_runs_of_other_code_are_dropped_and_the_rest_is_kept(folder):
    now = sources.digest(sources.UTILITY["floor"])
    save({"runs": [known("uniform", now), known("uniform", "0" * 16, 1), known("aim", "0" * 16)]})
    assert utility.stale(results.load("utility")["report"]) == ["aim", "uniform"]
    kept = utility.measure(options("--compare"), lambda _: pytest.fail("measured"))
    assert kept["runs"] == [known("uniform", now)]
    for elsewhere in (("--tables", "wdbc"), ("--epsilons", "10")):
        assert utility.measure(options("--compare", *elsewhere), lambda _: None) == {"runs": []}
    assert utility.stale(kept) == []


def test_no_run_begins_after_its_time(folder):
    report = utility.measure(options("--minutes", "-1"), lambda _: pytest.fail("measured"))
    assert report == {"runs": []}


def test_a_mechanism_that_breaks_does_not_end_the_others():
    class Broken:
        def exception(self):
            return KeyError("lost")

    found = utility._outcome(Case(TABLE, "aim", "1", 0), Broken())
    assert found["failed"] == "KeyError: 'lost'"
    assert found["mechanism"] == "aim"


def test_every_family_has_sources():
    assert set(FAMILIES) == set(sources.UTILITY)


def test_a_table_without_a_label_is_scored_without_classifiers(folder):
    path = folder / f"{TABLE}.schema.json"
    schema = json.loads(path.read_text())
    del schema["label"], schema["positive"]
    path.write_text(json.dumps(schema))
    (folder / "plain.schema.json").write_text(path.read_text())
    (folder / f"{TABLE}.csv").rename(folder / "plain.csv")
    assert datasets.load("plain").label is None
    assert "lr_auc" not in run(Case("plain", "uniform", "1", 0), 60)
