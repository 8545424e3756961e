"""The paper's SELECT and MEASURE at their edges, and with its slips: each correction fails with the literal text."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from caps.errors import DomainError, ShareError
from caps.shares.ring import Z32, Z64
from services.mpc_server.engine.paper import mechanisms as paper
from services.mpc_server.engine.paper.fixed import decode_fixed
from services.mpc_server.engine.registry import REGISTRY
from services.mpc_server.testing.world import Failed, Recorder, World

pytestmark = pytest.mark.property

FRACS = [8, 16, 20, 24]
MEASURES = [
    paper.paper_measure_irwin_hall,
    paper.paper_measure_box_muller,
    paper.paper_measure_laplace,
    paper.paper_measure_laplace_inverse,
]


def words(integers: Any) -> Any:
    return np.asarray(integers, np.int64).astype(Z64.dtype)


def run(protocol: Any, integers: Any, **kwargs: Any) -> Any:
    return World(6).run(protocol, words(integers), **kwargs).value


def softmax(scores: Any) -> Any:
    powers = np.exp(scores - scores.max())
    return powers / powers.sum()


def test_mwem_prefers_the_query_that_fits_worst() -> None:
    answers, estimate, sizes = [10, 10, 10, 10, 10], [10, 11, 40, 90, 50], [2, 3]
    scores = Z64.signed(run(paper.paper_errors_mwem, answers, estimate=np.array(estimate), sizes=np.array(sizes)))
    assert scores.tolist() == [1 - 2, 150 - 3]
    printed = [sum(1 - 2 * abs(a - e) for a, e in cells) - len(cells) for cells in ([(10, 10), (10, 11)], [(10, 40)])]
    assert np.argmax(printed) == 0
    assert np.argmax(scores) == 1


def test_there_is_one_error_for_each_query_however_large_their_domains() -> None:
    sizes = np.array([1, 40, 2, 1])
    public = {"estimate": np.zeros(44, int), "sizes": sizes, "weights": [1, 2, 3, 4], "biases": [0, 40, 0, 5]}
    assert Z64.signed(run(paper.paper_errors_aim, np.ones(44), **public)).tolist() == [1, 0, 6, -16]


def test_the_sum_of_a_query_ends_where_the_next_begins() -> None:
    answers = 10 ** np.arange(6)
    got = run(paper.paper_errors_mwem, answers, estimate=np.full(6, 5), sizes=[1, 3, 2], unit=10)
    distances = np.abs(10 * answers - 5)
    assert Z64.signed(got).tolist() == [
        distances[0] - 10,
        distances[1:4].sum() - 30,
        distances[4:].sum() - 20,
    ]


@pytest.mark.parametrize("frac", FRACS)
@pytest.mark.parametrize("rate", [2.0**-28, 1e-6, 0.0003, 0.05, 1.0, 17.3, 128.0])
def test_probabilities_are_those_of_float64_however_low_the_errors(frac: int, rate: float) -> None:
    reach = (frac + 2) * np.log(2) / rate
    near = np.rint(-reach + np.arange(-3, 4))
    inside = -np.rint(np.linspace(0, 1, 40) ** 2 * reach)
    below = -(2.0 ** np.arange(30, 62))
    errors = np.concatenate([[0.0], inside, near[near <= 0], below[below < -reach], [1 - 2.0**62]])
    got = decode_fixed(
        run(paper.paper_probabilities, errors, epsilon=2 * Fraction(rate) * 3, sensitivity=3, frac=frac), frac=frac
    )
    expected = softmax(rate * errors)
    assert np.all(np.abs(got - expected) <= (4 + expected * len(errors) / 2) * 2.0**-frac)
    assert not np.any(got[errors < -reach])


def test_a_query_without_probability_is_never_chosen() -> None:
    """With 8 bits the threshold is 0 in one row of 256, where >= in place of > would choose the first query."""
    row = np.array([0, 0, 3, 0, 200, 53, 0])
    chosen = run(paper.paper_random_index, np.tile(row, (4096, 1)), frac=8)
    assert set(chosen.tolist()) == {2, 4, 5}


def test_the_index_counts_queries_and_not_data_holders() -> None:
    """The paper's example: of 10 sums the 7th is the first above the threshold."""
    probabilities = np.zeros((3, 10), int)
    probabilities[0, 6] = probabilities[1, 9] = probabilities[2, 0] = 1 << 20
    assert run(paper.paper_random_index, probabilities).tolist() == [6, 9, 0]


def test_without_any_probability_the_last_query_is_chosen() -> None:
    assert run(paper.paper_random_index, np.zeros((2, 10))).tolist() == [9, 9]
    assert run(paper.paper_random_index, np.zeros(1)) == 0


SELECT = {"estimate": np.zeros(6, int), "sizes": np.array([2, 3, 1]), "epsilon": 0.5}
AIM = {**SELECT, "weights": [1, 2, 3], "biases": [0, 0, 0], "sensitivity": 3}


@pytest.mark.parametrize(
    ("protocol", "wrong", "error"),
    [
        (paper.paper_select_aim, {"epsilon": 0.0}, DomainError),
        (paper.paper_select_aim, {"epsilon": float("nan")}, DomainError),
        (paper.paper_select_aim, {"epsilon": 1e4}, DomainError),
        (paper.paper_select_aim, {"sensitivity": 0}, DomainError),
        (paper.paper_select_aim, {"sensitivity": 2**30}, DomainError),
        (paper.paper_select_aim, {"frac": 25}, DomainError),
        (paper.paper_select_aim, {"unit": 0}, DomainError),
        (paper.paper_select_aim, {"sizes": np.array([2, 4, 1])}, DomainError),
        (paper.paper_select_aim, {"sizes": np.array([0, 5, 1])}, DomainError),
        (paper.paper_select_aim, {"estimate": np.zeros(6)}, ShareError),
        (paper.paper_select_aim, {"estimate": np.zeros(5, int)}, ShareError),
        (paper.paper_select_aim, {"weights": [1, 2]}, ShareError),
        (paper.paper_select_aim, {"biases": [1.5, 2.0, 3.0]}, ShareError),
        (paper.paper_measure_laplace, {"scale": 0.0}, DomainError),
        (paper.paper_measure_laplace, {"scale": float("nan")}, DomainError),
        (paper.paper_measure_laplace, {"scale": 2.0**22 / 20}, DomainError),
        (paper.paper_measure_laplace, {"frac": 7}, DomainError),
    ],
)
def test_what_is_not_defined_is_refused_before_anything_is_sent(protocol: Any, wrong: Any, error: type) -> None:
    right: dict[str, Any] = AIM if protocol is paper.paper_select_aim else {"scale": 5.0}
    recorder = Recorder()
    with pytest.raises(Failed) as caught:
        World(6, interceptor=recorder).run(protocol, words(np.arange(6)), **{**right, **wrong})
    assert [type(e) for e in caught.value.errors] == [error] * 3
    assert not recorder.messages


@pytest.mark.parametrize("answers", [np.zeros(6, Z32.dtype), np.zeros((2, 3), Z64.dtype), np.zeros(0, Z64.dtype)])
def test_answers_are_a_vector_over_the_large_ring(answers: Any) -> None:
    for protocol, public in [(paper.paper_select_aim, AIM), (paper.paper_measure_irwin_hall, {"scale": 5.0})]:
        with pytest.raises(Failed) as caught:
            World(6).run(protocol, answers, **public)
        assert [type(e) for e in caught.value.errors] == [ShareError] * 3


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("count", [1, 2, 7])
def test_every_cell_has_noise_of_its_own_on_top_of_its_answer(measure: Any, count: int) -> None:
    answers = 1000 * np.arange(count)
    noise = decode_fixed(run(measure, answers, scale=2.0)) - answers
    assert len(set(noise.tolist())) == count
    assert np.all(np.abs(noise) < 40)


def test_no_variant_is_certified_and_each_says_so() -> None:
    assert list(paper.VARIANTS) == [
        "paper:irwin-hall",
        "paper:box-muller",
        "paper:laplace",
        "paper:laplace-inverse",
        "paper:softmax-cumsum",
    ]
    openings = {
        name for name, d in REGISTRY.items() if d.module.startswith("paper.") and not d.leaks.startswith("nothing")
    }
    assert {variant.function.__name__ for variant in paper.VARIANTS.values()} <= openings
    for variant in paper.VARIANTS.values():
        assert variant.certified is False
    for name in openings:
        assert "NOT differentially private" in (getattr(paper, name).__doc__ or "")
