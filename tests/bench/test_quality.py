"""Scores of synthetic rows, against values by hand and against extremes."""

import numpy as np
import pytest

from bench import quality
from bench.datasets import Dataset, Label
from caps.basics.uniform import Uniform
from caps.data.domain import Attribute, Domain


def domain(*sizes):
    return Domain(tuple(Attribute(f"c{i}", size) for i, size in enumerate(sizes)))


def dataset(codes, sizes, label=None):
    every = np.arange(len(codes))
    return Dataset("invented", domain(*sizes), codes, every, every, label)


def random_codes(rows, sizes, seed="codes"):
    uniform = Uniform(seed)
    return np.stack([uniform.integers(rows, size) for size in sizes], axis=1)


def test_real_rows_have_no_error():
    codes = random_codes(400, (2, 3, 4))
    found = quality.all_scores(dataset(codes, (2, 3, 4), Label("c0", frozenset({1}))), codes)
    assert set(found) == set(quality.ALL)
    assert [found[name] for name in quality.ERRORS[:-1]] == [0.0] * 5


def test_errors_by_hand():
    real, synthetic = np.array([[0, 0, 0], [0, 1, 0]]), np.array([[0, 0, 0], [0, 0, 1], [0, 1, 0], [0, 1, 1]])
    found = quality.all_scores(dataset(real, (2, 2, 2)), synthetic)
    assert found["pair"] == pytest.approx((0 + 0.5 + 0.5) / 3)
    assert found["worst_pair"] == found["triple"] == 0.5
    assert "lr_auc" not in found


def test_rows_that_lack_a_value_do_not_count():
    real, synthetic = np.array([[0, 0], [1, 1], [-1, 0]]), np.array([[0, 0], [1, 1]])
    assert quality._distances(domain(2, 2), real, synthetic, [("c0", "c1")]).tolist() == [0.0]


def test_few_triples_are_all_taken_and_many_by_their_names_alone():
    assert len(quality.triples(domain(2, 2, 2, 2))) == 4
    chosen = quality.triples(domain(*[2] * 16))
    assert len(chosen) == len(set(chosen)) == quality.MOST_TRIPLES
    assert set(quality.triples(domain(*[3] * 16))) == set(chosen)


def test_associations_from_none_to_all():
    assert quality.cramers_v(np.eye(3) / 3, 1000) == pytest.approx(1.0, abs=0.01)
    assert quality.cramers_v(np.full((3, 4), 1 / 12), 1000) == 0.0
    assert quality.cramers_v(np.array([[0.5, 0.5], [0.0, 0.0]]), 1000) == 0.0  # one value
    weak = quality.cramers_v(np.array([[0.3, 0.2], [0.2, 0.3]]), 1_000_000)
    assert weak == pytest.approx(0.2, abs=1e-3)


def test_few_rows_do_not_make_independent_columns_look_associated():
    values = [
        quality.cramers_v(np.histogram2d(*random_codes(60, (4, 4), f"few {i}").T, bins=[4, 4])[0] / 60, 60)
        for i in range(40)
    ]
    assert np.mean(values) < 0.09  # without the correction it is 0.22


def test_real_rows_cannot_be_told_from_others_like_them_but_from_constants_they_can():
    sizes = (3, 3, 3, 3)
    real, alike = random_codes(2000, sizes), random_codes(2000, sizes, "others")
    assert abs(quality.propensity(domain(*sizes), real, alike) - 0.5) < 0.06
    assert quality.propensity(domain(*sizes), real, np.zeros((500, 4), np.int64)) > 0.95
    assert quality.propensity(domain(*sizes), real, alike[:2]) == 1.0


def test_a_label_may_be_several_codes_of_a_column():
    sizes = (4, 2)
    codes = random_codes(600, sizes)
    codes[:, 1] = np.isin(codes[:, 0], [1, 2])
    right = quality.classifier_scores(domain(*sizes), Label("c0", frozenset({1, 2})), codes, codes)
    assert right == dict.fromkeys(quality.CLASSIFIERS, 1.0)
    wrong = quality.classifier_scores(domain(*sizes), Label("c0", frozenset({1, 3})), codes, codes)
    assert max(wrong["lr_auc"], wrong["rf_auc"]) < 0.6


def test_rows_of_one_class_teach_nothing():
    codes = random_codes(200, (2, 2))
    found = quality.classifier_scores(domain(2, 2), Label("c0", frozenset({1})), codes[codes[:, 0] == 1], codes)
    assert found["lr_auc"] == found["rf_auc"] == 0.5


def test_a_table_without_a_label_has_nothing_to_classify():
    with pytest.raises(ValueError, match="without a label"):
        quality.classifier_scores(domain(2, 2), None, random_codes(4, (2, 2)), random_codes(4, (2, 2)))
