"""Comparisons of paired runs: verdicts, ratios, the floor, and the halves."""

import math

import numpy as np
import pytest

from bench import compare
from bench.quality import ALL, CLASSIFIERS


def run(mechanism, seed, table="wdbc", epsilon="1", **scores):
    return {"table": table, "mechanism": mechanism, "epsilon": epsilon, "seed": seed, **scores}


def runs(ours, original, metric="pair", **kind):
    sides = (("aim", ours), ("original-aim", original))
    return [run(name, seed, **kind, **{metric: value}) for name, side in sides for seed, value in enumerate(side)]


def only(found):
    (one,) = found
    return one


@pytest.mark.parametrize("metric", ["pair", "worst_pair", "propensity"])
def test_of_errors_less_is_better(metric):
    low, high = [0.10, 0.12, 0.11], [0.20, 0.21, 0.22]
    assert only(compare.paired(runs(low, high, metric))).verdict == "better"
    assert only(compare.paired(runs(high, low, metric))).verdict == "worse"
    assert only(compare.paired(runs([0.1, 0.3, 0.2], [0.2, 0.2, 0.2], metric))).verdict == "within noise"


@pytest.mark.parametrize("metric", CLASSIFIERS)
def test_of_classifiers_more_is_better(metric):
    assert only(compare.paired(runs([0.90, 0.91, 0.92], [0.70, 0.70, 0.71], metric))).verdict == "better"
    assert only(compare.paired(runs([0.70, 0.70, 0.71], [0.90, 0.91, 0.92], metric))).verdict == "worse"


def test_runs_are_paired_by_seed_and_the_interval_is_students():
    spread, shift = np.array([0.0, 10.0, 20.0, 30.0]), np.array([0.9, 1.0, 1.1, 1.0])
    one = only(compare.paired(runs(list(spread), list(spread + shift))))
    assert one.seeds == 4
    assert one.difference == pytest.approx(-1.0)
    assert one.half_width == pytest.approx(3.182446 * shift.std(ddof=1) / 2, rel=1e-6)
    assert one.verdict == "better"  # the spread over seeds, which both have, does not count


def test_only_seeds_that_both_have_are_compared():
    one = only(compare.paired(runs([0.1, 0.2, 0.3], [0.2, 0.3])))
    assert (one.seeds, one.ours, one.original) == (2, pytest.approx(0.15), pytest.approx(0.25))


def test_one_seed_shows_nothing():
    one = only(compare.paired(runs([0.1], [0.9])))
    assert (one.half_width, one.verdict) == (math.inf, "within noise")


def test_ours_that_fails_where_the_original_does_not_is_never_within_noise():
    good = [run("original-aim", seed, pair=0.1) for seed in range(3)]
    some = [run("aim", 0, pair=0.1), run("aim", 1, pair=0.1), run("aim", 2, failed="no plan")]
    assert only(compare.paired([*some, *good], ["pair"])).verdict == "failed"
    none = [run("aim", seed, failed="no plan") for seed in range(3)]
    one = only(compare.paired([*none, *good], ["pair"]))
    assert (one.verdict, one.seeds) == ("failed", 0)
    assert compare.ratio([one]) is None
    assert compare.lines([*none, *good])  # and can be shown


def test_a_failure_of_the_original_is_no_comparison():
    bad = [run("original-aim", seed, failed="no end") for seed in range(2)]
    assert compare.paired([*bad, run("aim", 0, pair=0.1), run("aim", 1, pair=0.1)]) == []


def test_the_ratio_is_the_geometric_mean_over_cases():
    found = compare.paired([*runs([0.1] * 2, [0.2] * 2), *runs([0.4] * 2, [0.1] * 2, table="adult")])
    assert compare.ratio(found) == pytest.approx(math.sqrt(0.5 * 4))
    assert compare.ratio(found, "triple") is None


def test_the_floor_is_the_better_baseline_and_a_twentieth():
    base = [run("uniform", 0, pair=0.30), run("columns", 0, pair=0.20)]
    at, above = (compare.floored([*base, run("aim", 0, pair=value)]) for value in (0.2099, 0.2101))
    assert (only(at).which, only(at).met) == ("columns", True)
    assert not only(above).met
    assert not only(compare.floored([*base, run("aim", 0, failed="no plan")])).met
    assert compare.floored([base[0], run("aim", 0, pair=0.1)]) == []  # one baseline is missing
    assert compare.floored([*base, run("original-aim", 0, pair=0.9)]) == []


def test_swift_is_compared_with_aim_on_the_same_table():
    given = [
        run(mechanism, seed, pair=pair + spread * seed)
        for mechanism, pair, spread in (("aim", 0.10, 0.0), ("swift", 0.11, 0.02))
        for seed in range(2)
    ]
    one = only(compare.beside_aim(given))
    assert one.ratio == pytest.approx(1.2)
    assert one.spread == pytest.approx(0.1)  # of 0.11 and 0.13: a deviation of 0.0141, of the mean 0.01, over 0.1
    assert compare.beside_aim([*given, run("swift", 2, failed="no end")]) == []
    assert compare.beside_aim(given[2:]) == []
    assert compare.beside_aim([one for one in given if one["seed"] == 0])[0].spread == math.inf


def test_halves_do_not_overlap_and_what_is_not_named_is_held_out():
    assert not {*compare.DEVELOPMENT} & {*compare.RELATIVES}
    assert {*compare.RELATIVES.values()} <= {*compare.DEVELOPMENT}
    assert [compare.half(name) for name in ("tx10s", "tx10", "adult", "wdbc", "anything")] == [
        "development",
        "relatives",
        *["held out"] * 3,
    ]


def test_what_a_person_reads_has_halves_ratios_and_the_floor():
    scores = dict.fromkeys(ALL, 0.2)
    given = [
        run(mechanism, seed, table=table, **{**scores, "pair": pair + 0.001 * seed})
        for table in ("wdbc", "tx10s")
        for mechanism, pair in (("aim", 0.2), ("original-aim", 0.4), ("uniform", 0.1), ("columns", 0.3))
        for seed in range(3)
    ]
    text = "\n".join(compare.lines(given))
    for part in ("development:", "held out:", "all tables:", "ABOVE", "1 better", "geometric mean, aim: 0.501"):
        assert part in text
    assert "relatives:" not in text
