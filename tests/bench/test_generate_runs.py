"""Whole runs of `python -m bench generate`: the invented tables, and what a run reports."""

import numpy as np
import pytest

from bench import generate, generate_runs


def test_an_invented_table_is_the_same_everywhere_and_has_structure():
    table = generate_runs.invented(6, 4, 3000)
    assert np.array_equal(table.codes, generate_runs.invented(6, 4, 3000).codes)
    assert table.codes.shape == (3000, 6)
    assert table.domain.sizes == (4,) * 6
    assert set(np.unique(table.codes)) == {0, 1, 2, 3}
    counts = np.zeros((4, 4))
    contingencies = []
    for a in range(6):
        for b in range(a):
            np.add.at(counts := np.zeros((4, 4)), (table.codes[:, a], table.codes[:, b]), 1)
            expected = np.outer(counts.sum(axis=1), counts.sum(axis=0)) / 3000
            contingencies.append(float(((counts - expected) ** 2 / np.maximum(expected, 1)).sum()) / 3000)
    assert sorted(contingencies)[-5] > 0.05  # a tree of six columns has five edges; 9 / 3000 is what chance makes


def test_a_run_reports_its_parts_and_repeats_itself(monkeypatch):
    monkeypatch.setattr(generate_runs, "ROWS", 2000)
    entry, again = (generate_runs.run("4x3", "1", "0") for _ in range(2))
    assert sum(entry["parts"].values()) == pytest.approx(entry["cpu_seconds"])
    assert entry["fits"] >= entry["rounds"] + 2  # the columns' fit, and the one with a prior
    for key in ("rounds", "fits", "iterations", "model_bytes", "loss", "error"):
        assert entry[key] == again[key]
        assert entry[key] > 0
    assert 0 <= entry["loss_gap"] < 0.001
    assert generate_runs.run("4x3", "1", "1")["loss"] != entry["loss"]
    text = generate.table({"rounds": {}, "whole": {"4x3": [entry]}})
    assert f"{entry['iterations']:,}" in text
