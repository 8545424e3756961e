"""Cases of the paper's own SELECT and MEASURE. `test_paper.py` tests their errors, edges and laws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from caps.shares.ring import Z64, Words
from services.mpc_server.engine import size
from services.mpc_server.engine.paper import mechanisms as paper
from services.mpc_server.engine.paper.fixed import decode_fixed
from tests.kit.cases.base import Call, Source, case


def _queries(s: Source) -> tuple[Words, dict[str, Any], Any]:
    """Answers, what is public about them, and the exact L1 errors; at most 20 queries of 1 to 8 cells."""
    sizes = s.sizes.integers(1, 9, s.count(1, 20))
    unit = int(s.sizes.choice([1, 16]))
    answers = s.words(Z64, (int(sizes.sum()),), 24)
    estimate = s.values.integers(0, unit << 24, len(answers))
    distance = np.abs(Z64.signed(answers) * unit - estimate)
    errors = np.add.reduceat(distance, np.cumsum(sizes) - sizes)
    return answers, {"estimate": estimate, "sizes": sizes, "unit": unit}, errors


def _weighted(s: Source) -> tuple[Words, dict[str, Any], Any]:
    answers, public, errors = _queries(s)
    weights, biases = s.values.integers(1, 19, len(errors)), s.values.integers(0, 1 << 20, len(errors))
    return answers, {**public, "weights": weights, "biases": biases}, weights * (errors - biases)


def _penalised(s: Source) -> tuple[Words, dict[str, Any], Any]:
    answers, public, errors = _queries(s)
    return answers, public, errors - public["unit"] * public["sizes"]


@case(paper.paper_errors_aim)
def _(s: Source) -> Call:
    answers, public, scores = _weighted(s)
    return Call(
        (answers,), {size.elements: len(answers), size.queries: len(scores), size.ring_bits: 64}, scores, public
    )


@case(paper.paper_errors_mwem)
def _(s: Source) -> Call:
    answers, public, scores = _penalised(s)
    return Call(
        (answers,), {size.elements: len(answers), size.queries: len(scores), size.ring_bits: 64}, scores, public
    )


@case(paper.paper_normalise)
def _(s: Source) -> Call:
    errors = s.signed(Z64, (s.count(1, 60),), 62)
    signed = Z64.signed(errors)
    return Call((errors,), {size.queries: len(errors), size.ring_bits: 64}, signed - signed.max())


def _softmax(scores: Any) -> Any:
    powers = np.exp(scores - scores.max())
    return powers / powers.sum()


@case(paper.paper_probabilities)
def _(s: Source) -> Call:
    frac, count, bits = s.count(8, 24), s.count(1, 40), s.count(4, 40)
    errors = Z64.signed(s.words(Z64, (count,), bits)).copy()
    errors -= errors.max()
    epsilon, sensitivity = float(s.sizes.uniform(0.01, 10)), float(s.sizes.uniform(1, 300))
    expected = _softmax(epsilon / (2 * sensitivity) * errors)

    def check(value: Words) -> None:
        assert np.all(np.abs(decode_fixed(value, frac=frac) - expected) <= (4 + expected * count / 2) * 2.0**-frac)

    kwargs = {"epsilon": epsilon, "sensitivity": sensitivity, "frac": frac}
    return Call(
        (errors.view(Z64.dtype),),
        {size.queries: count, size.ring_bits: 64, size.fraction_bits: frac},
        None,
        kwargs,
        check,
    )


@case(paper.paper_random_index)
def _(s: Source) -> Call:
    frac, rows, count = s.count(8, 24), s.count(1, 4), s.count(1, 20)
    # Up to one entry is not 0 in each row, so that the choice has one possible outcome.
    places = s.values.integers(0, count, rows)
    weights = s.words(Z64, (rows,), frac)
    probabilities = np.zeros((rows, count), Z64.dtype)
    probabilities[np.arange(rows), places] = weights
    expected = np.where(weights == 0, count - 1, places)
    sizes = {size.rows: rows, size.queries: count, size.ring_bits: 64, size.fraction_bits: frac}
    return Call((probabilities,), sizes, expected.astype(np.uint64), {"frac": frac})


def _choice(scores: Any, epsilon: float, sensitivity: float, frac: int) -> Callable[[Any], None]:
    likely = np.flatnonzero(_softmax(epsilon / (2 * sensitivity) * scores) > 2.0 ** -(frac + 2))

    def check(value: Any) -> None:
        assert int(value) in likely

    return check


def _selected(answers: Words, public: dict[str, Any], scores: Any, s: Source) -> Call:
    frac, epsilon, sensitivity = s.count(8, 24), float(s.sizes.uniform(0.1, 10)), float(s.sizes.integers(1, 19))
    check = _choice(scores, epsilon, sensitivity * public.get("unit", 1), frac)
    kwargs = {**public, "epsilon": epsilon, "sensitivity": sensitivity, "frac": frac}
    return Call(
        (answers,),
        {size.elements: len(answers), size.queries: len(scores), size.ring_bits: 64, size.fraction_bits: frac},
        None,
        kwargs,
        check,
    )


@case(paper.paper_select)
def _(s: Source) -> Call:
    errors = s.signed(Z64, (s.count(1, 40),), 48)
    return _selected(errors, {}, Z64.signed(errors), s)


case(paper.paper_select_aim)(lambda s: _selected(*_weighted(s), s))
case(paper.paper_select_mwem)(lambda s: _selected(*_penalised(s), s))


def _measured(s: Source) -> Call:
    frac = s.count(8, 24)
    answers = s.words(Z64, (s.count(1, 30),), 24)
    scale = float(s.sizes.uniform(0.5, 100))

    def check(value: Words) -> None:
        assert value.shape == answers.shape
        noise = decode_fixed(value - (answers << np.uint64(frac)), frac=frac)
        assert np.all(np.abs(noise) <= frac * scale)
        assert len(answers) < 4 or np.any(noise)

    kwargs = {"scale": scale, "frac": frac}
    return Call(
        (answers,), {size.elements: len(answers), size.ring_bits: 64, size.fraction_bits: frac}, None, kwargs, check
    )


case(paper.paper_measure_irwin_hall)(_measured)
case(paper.paper_measure_box_muller)(_measured)
case(paper.paper_measure_laplace)(_measured)
case(paper.paper_measure_laplace_inverse)(_measured)
