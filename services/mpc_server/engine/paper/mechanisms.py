"""The paper's own SELECT and MEASURE, to reproduce what it measured. None of this is differentially private.

Every sampler here draws unit noise on the grid 2^-f and then multiplies it by a real scale. The noise thus takes only
about one in `scale` of the values that can be represented, while the true count is an integer: for most scales the
supports of x + noise and x + 1 + noise are disjoint, and one released cell tells the two apart with certainty. The
softmax rounds every probability to f bits, and those below half of 2^-f to zero. So no epsilon and no delta below 1
hold, whatever the parameters say; `VARIANTS` marks each of them `certified = False`, and whoever serves real data must
refuse those.

What is the paper's is the sequence of steps; loops over queries, cells and draws are arrays here. Scores are exact:
answers are integers, estimates, biases and penalties are integers too, counted in a `unit` of the caller's choice
(16 units to the count, say), and weights are integers, so nothing is rounded before the exponential.

Protocols are numbered as LaTeX numbers them, with Algorithm 1: pi_COMP is Protocol 2, pi_SELECT 3 (6 for AIM, 8 for
MWEM+PGM), pi_RC 4, pi_MEASURE 5, pi_NORM-L1 7, Box-Muller 9, Laplace 10.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial, reduce
from math import ceil, isfinite, pi
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from caps.errors import DomainError, ShareError
from caps.shares.ring import Z64, Words
from services.mpc_server.engine import size
from services.mpc_server.engine.boolean import tournament_rounds
from services.mpc_server.engine.comparison import equal, negative
from services.mpc_server.engine.context import Context, together
from services.mpc_server.engine.cost import FIRST, Cost, Expr, Sizes, formula, log2
from services.mpc_server.engine.paper.comparison import argmax, greater_equal, greater_than
from services.mpc_server.engine.paper.fixed import FRAC
from services.mpc_server.engine.paper.fixedpoint import (
    FRAC_RANGE,
    LN2,
    exponential,
    logarithm,
    multiply_fixed,
    reciprocal,
    scale_fixed,
    sine_cosine,
    square_root,
)
from services.mpc_server.engine.paper.randomness import random_bit, random_fraction
from services.mpc_server.engine.registry import REGISTRY, protocol
from services.mpc_server.engine.shares import AShare, concatenate
from services.mpc_server.engine.verbs import from_bits, multiply, products, reshare, reveal, truncate

CERTIFIED = False
"""Of everything in this module."""

UNIFORMS = 12
"""Uniform draws in one approximately normal number: their variances of 1/12 add up to 1."""

ARGUMENT = 54
"""Fractional bits of an exponent before it is rounded to f: it is above -2^7.2 then, and `truncate` takes 2^62."""

RATES = Fraction(1, 1 << 28), Fraction(1 << 7)
"""Bounds on epsilon / 2s per unit of score, between which the error stated for the probabilities holds."""

Real: TypeAlias = float | Fraction
Integers: TypeAlias = Sequence[int] | npt.NDArray[np.integer[Any]]


def _rounds(*names: str) -> Expr | int:
    """Declared rounds of protocols that run one after another."""
    return reduce(operator.add, (REGISTRY[name].costs["rep3"].rounds for name in names))


def _bytes(name: str, first: int, sizes: Sizes) -> int:
    """Declared bytes of a protocol over Z_2^64, of S1 if `first` is 1, else of another server."""
    return REGISTRY[name].costs["rep3"].sent_by(1 - first, {size.ring_bits: 64, **sizes})


ERROR_ROUNDS = _rounds("negative") + 3
NORM_ROUNDS = 4 + log2(size.ring_bits - 1) + tournament_rounds(size.queries, size.ring_bits)
PROB_ROUNDS = (
    _rounds("negative")
    + 3
    + 4
    + log2(ARGUMENT - size.fraction_bits)
    + _rounds("exponential", "reciprocal", "multiply_fixed")
)
CHOICE_ROUNDS = _rounds("random_fraction", "multiply_fixed", "greater_than", "equal", "multiply")
SELECT_ROUNDS = NORM_ROUNDS + PROB_ROUNDS + CHOICE_ROUNDS + 1


async def _l1_errors(ctx: Context, answers: AShare, estimate: Integers, sizes: Integers, unit: int) -> AShare:
    """pi_NORM-L1 for all queries at once: [[sum of |unit * answer - estimate|]] over the cells of each.

    Signs are found for all cells in one pass, and a query's sum of products is reshared as one number.
    """
    _accept_vector(ctx, answers)
    public, counts = _integers(estimate, answers.size, "cells"), _integers(sizes, len(sizes), "queries")
    if not counts.size or np.any(counts < 1) or counts.sum() != answers.size:
        raise DomainError(f"queries must have at least one cell each, and {answers.size} cells together")
    if unit < 1:
        raise DomainError(f"a count must be at least one unit, not {unit}")
    difference = answers * unit - public
    below = await from_bits(ctx.step("ring"), await negative(ctx.step("sign"), difference), ring=Z64)
    sign = 1 - below * 2
    sums = products(sign, difference).map(partial(np.add.reduceat, indices=np.cumsum(counts) - counts))
    return await reshare(ctx.step("sum"), sums)


@formula
def paper_errors_bytes(n: int, q: int, first: int) -> int:
    """Bytes of pi_ERR."""
    return (
        _bytes("negative", first, {size.elements: n})
        + _bytes("from_bits", first, {size.elements: n, size.width: 1})
        + 8 * q
    )


@protocol(
    "CaPS Protocol 6, lines 2-7: pi_ERR of AIM",
    rep3=Cost(rounds=ERROR_ROUNDS, sent=paper_errors_bytes(size.elements, size.queries, FIRST)),
)
async def paper_errors_aim(
    ctx: Context,
    answers: AShare,
    *,
    estimate: Integers,
    sizes: Integers,
    weights: Integers,
    biases: Integers,
    unit: int = 1,
) -> AShare:
    """[[w_i (||unit mu_i - estimate_i||_1 - b_i)]] of q queries, exactly, whose n cells lie one query after another.

    Deviation: the paper pads every answer to the largest domain and makes room for max(omega) errors; here queries
    keep their sizes and there are |Q| errors. Protocol 7 runs once for all of them, not once per query.

    Pre-conditions: `estimate` and `biases` count units of 1/unit; every score is below 2^61 in size (unchecked,
        because the answers are secret).
    Leaks: nothing.
    """
    w, b = _integers(weights, len(sizes), "queries"), _integers(biases, len(sizes), "queries")
    return (await _l1_errors(ctx, answers, estimate, sizes, unit) - b) * w


@protocol(
    "CaPS Protocol 8, lines 2-9: pi_ERR of MWEM+PGM",
    rep3=Cost(rounds=ERROR_ROUNDS, sent=paper_errors_bytes(size.elements, size.queries, FIRST)),
)
async def paper_errors_mwem(
    ctx: Context, answers: AShare, *, estimate: Integers, sizes: Integers, unit: int = 1
) -> AShare:
    """[[||unit mu_i - estimate_i||_1 - unit omega_i]] of q queries, exactly, laid out as for paper_errors_aim.

    Deviation: line 7 prints SUM(1 - 2 abs_diff), which falls as the error grows and would prefer the best-fitted
    query; what MWEM+PGM means, and the authors' program computes, is SUM(abs_diff). Otherwise as paper_errors_aim.

    Pre-conditions: as paper_errors_aim.
    Leaks: nothing.
    """
    return await _l1_errors(ctx, answers, estimate, sizes, unit) - np.asarray(sizes) * unit


@formula
def paper_normalise_bytes(q: int, first: int) -> int:
    """Bytes of pi_NORM."""
    return _bytes("argmax", first, {size.elements: q})


@protocol(
    "CaPS Protocol 6, lines 9-12: pi_NORM",
    rep3=Cost(rounds=NORM_ROUNDS, sent=paper_normalise_bytes(size.queries, FIRST)),
)
async def paper_normalise(ctx: Context, errors: AShare) -> AShare:
    """[[err_i - max err]] of a vector: at most 0, and 0 for the worst query.

    Pre-conditions: |err_i| < 2^61, so that a difference is above -2^62; q >= 1.
    Leaks: nothing.
    """
    largest, _ = await argmax(ctx, errors)
    return errors - largest


@formula
def paper_probabilities_bytes(q: int, f: int, first: int) -> int:
    """Bytes of pi_PROB."""
    clamp = (
        _bytes("negative", first, {size.elements: q})
        + _bytes("from_bits", first, {size.elements: q, size.width: 1})
        + _bytes("multiply", first, {size.elements: q})
    )
    scale = _bytes("truncate", first, {size.elements: q, size.dropped_bits: ARGUMENT - f})
    powers = _bytes("exponential", first, {size.elements: q, size.fraction_bits: f}) + _bytes(
        "reciprocal", first, {size.elements: 1, size.fraction_bits: f}
    )
    return clamp + scale + powers + _bytes("multiply_fixed", first, {size.elements: q, size.fraction_bits: f})


@protocol(
    "CaPS Protocol 6, line 14: pi_PROB, a softmax",
    rep3=Cost(rounds=PROB_ROUNDS, sent=paper_probabilities_bytes(size.queries, size.fraction_bits, FIRST)),
)
async def paper_probabilities(
    ctx: Context, errors: AShare, *, epsilon: Real, sensitivity: Real, frac: int = FRAC
) -> AShare:
    """[[softmax(epsilon / 2s * err)]] in fixed point, of integer errors as pi_NORM leaves them.

    An error may be as low as -2^62, which no fixed point holds once it is scaled. But e^x is 0 in f bits from
    -(f + 2) ln 2 on, so errors are raised to where that is reached; what then remains is small, is scaled with
    ARGUMENT fractional bits, and rounded once.

    Deviation: a softmax finds the maximum itself, pi_NORM has found it already, so it is not sought twice.

    Error: below 4 + p q / 2 ulp of an entry p. The second term is the sum's, of q roundings; entries below half an ulp
    of the largest are 0.

    Pre-conditions: errors is a vector with -2^62 < err_i <= 0, one of them 0; epsilon / 2s is within RATES.
    Leaks: nothing.
    """
    _accept_vector(ctx, errors, frac)
    rate = _rate(epsilon, sensitivity)
    lowest = -ceil((frac + 2) * Fraction(LN2) / rate)
    above = errors - lowest
    too_low = await from_bits(ctx.step("ring"), await negative(ctx.step("low"), above), ring=Z64)
    raised = await multiply(ctx.step("raise"), 1 - too_low, above) + lowest
    scaled = raised * round(rate * (1 << ARGUMENT))
    dropped = ARGUMENT - frac
    exponent = await truncate(ctx.step("round"), scaled + (1 << (dropped - 1)), bits=dropped)
    powers = await exponential(ctx.step("exponential"), exponent, frac=frac)
    inverse = await reciprocal(ctx.step("inverse"), powers.sum(), frac=frac)
    return await multiply_fixed(ctx.step("product"), powers, _repeated(inverse, errors.size), frac=frac)


@formula
def paper_random_index_bytes(m: int, q: int, f: int, first: int) -> int:
    """Bytes of pi_RC."""
    threshold = _bytes("random_fraction", first, {size.elements: m, size.fraction_bits: f}) + _bytes(
        "multiply_fixed", first, {size.elements: m, size.fraction_bits: f}
    )
    edge = _bytes("equal", first, {size.elements: m}) + _bytes("multiply", first, {size.elements: m})
    return threshold + _bytes("greater_than", first, {size.elements: m * q}) + edge


@protocol(
    "CaPS Protocol 4, pi_RC",
    rep3=Cost(rounds=CHOICE_ROUNDS, sent=paper_random_index_bytes(size.rows, size.queries, size.fraction_bits, FIRST)),
)
async def paper_random_index(ctx: Context, probabilities: AShare, *, frac: int = FRAC) -> AShare:
    """[[i with probability p_i over their sum]], counted from 0, for each of m rows of q probabilities.

    k running sums exceed a threshold drawn uniformly below the last, so the first that does is at q - k. If none does,
    which takes a row of zeros, then k = 0 and the last index is the answer, as in the paper.

    Deviation: the paper writes N, elsewhere the number of data holders, for |Q|; and it counts from 1.

    Error: a probability is off by less than 2 ulp, the step of the uniform number and that of the threshold.

    Pre-conditions: p_i >= 0, sums below 2^(61 - 2f); q >= 1.
    Leaks: nothing.
    """
    _accept(ctx, probabilities, frac)
    if not probabilities.shape or not probabilities.shape[-1]:
        raise ShareError(f"a choice needs at least one probability, not {probabilities!r}")
    *rows, count = probabilities.shape
    sums = probabilities.cumsum()
    uniform = await random_fraction(ctx.step("uniform"), shape=tuple(rows), ring=Z64, frac=frac)
    threshold = await multiply_fixed(ctx.step("threshold"), sums[..., -1], uniform, frac=frac)
    exceeds = await greater_than(ctx.step("exceeds"), sums, _repeated(threshold, count))
    k = exceeds.sum(-1)
    none = await equal(ctx.step("none"), k, ctx.zero(tuple(rows), Z64))
    return (count - 1) - await multiply(ctx.step("index"), k - 1, 1 - none)


@formula
def paper_select_bytes(q: int, f: int, first: int) -> int:
    """Bytes of pi_SELECT from given errors."""
    choice = paper_probabilities_bytes(q, f, first) + paper_random_index_bytes(1, q, f, first)
    return paper_normalise_bytes(q, first) + choice + _bytes("reveal", first, {size.elements: 1})


@protocol(
    "CaPS Protocol 3, pi_SELECT from line 2 on",
    rep3=Cost(rounds=SELECT_ROUNDS, sent=paper_select_bytes(size.queries, size.fraction_bits, FIRST)),
)
async def paper_select(ctx: Context, errors: AShare, *, epsilon: Real, sensitivity: Real, frac: int = FRAC) -> int:
    """The index, from 0, of the query selected by its error. NOT differentially private: see the module.

    Deviation: as the parts: paper_probabilities, paper_random_index.

    Pre-conditions: errors is a vector of integers below 2^61 in size; epsilon / 2s is within RATES.
    Leaks: the index, to every party. It is not a differentially private function of the answers.
    """
    _accept_vector(ctx, errors, frac)
    _rate(epsilon, sensitivity)
    normalised = await paper_normalise(ctx.step("norm"), errors)
    probabilities = await paper_probabilities(
        ctx.step("prob"), normalised, epsilon=epsilon, sensitivity=sensitivity, frac=frac
    )
    index = await paper_random_index(ctx.step("choice"), probabilities, frac=frac)
    return int(await reveal(ctx.step("open"), index))


@protocol(
    "CaPS Protocol 6, pi_SELECT for AIM",
    rep3=Cost(
        rounds=ERROR_ROUNDS + SELECT_ROUNDS,
        sent=paper_errors_bytes(size.elements, size.queries, FIRST)
        + paper_select_bytes(size.queries, size.fraction_bits, FIRST),
    ),
)
async def paper_select_aim(
    ctx: Context,
    answers: AShare,
    *,
    estimate: Integers,
    sizes: Integers,
    weights: Integers,
    biases: Integers,
    epsilon: Real,
    sensitivity: Real,
    unit: int = 1,
    frac: int = FRAC,
) -> int:
    """The index of the selected query, from 0. NOT differentially private: see the module.

    Deviation: as the parts: paper_errors_aim, paper_probabilities, paper_random_index.

    Pre-conditions: as paper_errors_aim; epsilon / (2 unit sensitivity) is within RATES. `sensitivity` is that of the
        scores in counts: the largest |w_i|.
    Leaks: the index, to every party. It is not a differentially private function of the answers.
    """
    _accept_vector(ctx, answers, frac)
    _rate(epsilon, unit * sensitivity)
    errors = await paper_errors_aim(
        ctx.step("err"), answers, estimate=estimate, sizes=sizes, weights=weights, biases=biases, unit=unit
    )
    return await paper_select(ctx.step("select"), errors, epsilon=epsilon, sensitivity=unit * sensitivity, frac=frac)


@protocol(
    "CaPS Protocol 8, pi_SELECT for MWEM+PGM",
    rep3=Cost(
        rounds=ERROR_ROUNDS + SELECT_ROUNDS,
        sent=paper_errors_bytes(size.elements, size.queries, FIRST)
        + paper_select_bytes(size.queries, size.fraction_bits, FIRST),
    ),
)
async def paper_select_mwem(
    ctx: Context,
    answers: AShare,
    *,
    estimate: Integers,
    sizes: Integers,
    epsilon: Real,
    sensitivity: Real = 1,
    unit: int = 1,
    frac: int = FRAC,
) -> int:
    """The index of the selected query, from 0. NOT differentially private: see the module.

    Deviation: as the parts: paper_errors_mwem, paper_probabilities, paper_random_index. The paper has no sensitivity
    here, which is right where one person is added or removed; 2 serves where one is replaced.

    Pre-conditions: as paper_errors_mwem; epsilon / (2 unit sensitivity) is within RATES.
    Leaks: the index, to every party. It is not a differentially private function of the answers.
    """
    _accept_vector(ctx, answers, frac)
    _rate(epsilon, unit * sensitivity)
    errors = await paper_errors_mwem(ctx.step("err"), answers, estimate=estimate, sizes=sizes, unit=unit)
    return await paper_select(ctx.step("select"), errors, epsilon=epsilon, sensitivity=unit * sensitivity, frac=frac)


async def irwin_hall(ctx: Context, *, count: int, frac: int) -> AShare:
    """Protocol 5, lines 2-7: [[the sum of twelve uniform numbers, less 6]], of variance 1 and at most 6 in size.

    Uniform numbers are multiples of 2^-f in [0, 1), so the mean is -6 ulp.
    """
    uniforms = await random_fraction(ctx, shape=(UNIFORMS, count), ring=Z64, frac=frac)
    return uniforms.sum(0) - (UNIFORMS // 2 << frac)


async def box_muller(ctx: Context, *, count: int, frac: int) -> AShare:
    """Protocol 9, pi_GSS: [[standard normal numbers]] of Box and Muller 1958, at most sqrt(2 f ln 2) in size.

    Logarithms are taken of 1 - u, which is in (0, 1].
    """
    pairs = -(-count // 2)
    uniforms = await random_fraction(ctx.step("uniform"), shape=(2, pairs), ring=Z64, frac=frac)

    async def radius(ctx: Context) -> AShare:
        log = await logarithm(ctx.step("log"), (1 << frac) - uniforms[0], frac=frac)
        return await square_root(ctx.step("root"), log * -2, frac=frac)

    async def direction(ctx: Context) -> AShare:
        angle = await scale_fixed(ctx.step("angle"), uniforms[1], factor=2 * pi, frac=frac)
        sine, cosine = await sine_cosine(ctx.step("turn"), angle, frac=frac)
        return concatenate([cosine, sine])

    lengths, directions = await together(radius(ctx.step("radius")), direction(ctx.step("direction")))
    both = concatenate([lengths, lengths])
    normal = await multiply_fixed(ctx.step("product"), both, directions, frac=frac)
    return normal[:count]


async def laplace(ctx: Context, *, count: int, frac: int) -> AShare:
    """Protocol 10, lines 3-7: [[ln(l) c]], l uniform and c a random sign; at most f ln 2 in size.

    Logarithms are taken of l = 1 - u, which is in (0, 1].
    """
    uniform, bit = await together(
        random_fraction(ctx.step("uniform"), shape=(count,), ring=Z64, frac=frac),
        random_bit(ctx.step("bit"), shape=(count,), ring=Z64),
    )
    log = await logarithm(ctx.step("log"), (1 << frac) - uniform, frac=frac)
    return await multiply(ctx.step("product"), log, bit * 2 - 1)


async def laplace_inverse(ctx: Context, *, count: int, frac: int) -> AShare:
    """Appendix A before Protocol 10: [[-sgn(u) ln(1 - 2|u|)]], u uniform in (-1/2, 1/2); at most f ln 2 in size.

    u is taken half an ulp above a multiple of 2^-f, so that 2u is an odd number of ulps: never 0, where it would lack
    a sign, nor -1, where its logarithm would be that of 0; and the law is symmetric.
    """
    uniform = await random_fraction(ctx.step("uniform"), shape=(count,), ring=Z64, frac=frac)
    doubled = uniform * 2 + (1 - (1 << frac))
    zero = ctx.zero((count,), Z64)
    sign = await greater_equal(ctx.step("sign"), doubled, zero) * 2 - 1
    size = await multiply(ctx.step("size"), doubled, sign)
    log = await logarithm(ctx.step("log"), (1 << frac) - size, frac=frac)
    return -await multiply(ctx.step("product"), log, sign)


Sampler: TypeAlias = Callable[..., Coroutine[Any, Any, AShare]]


async def _measure(ctx: Context, answers: AShare, sampler: Sampler, scale: float, frac: int) -> Words:
    """The last two lines of every pi_MEASURE: answers + scale * unit noise, opened."""
    _accept_vector(ctx, answers, frac)
    # Unit noise of every sampler is below f in size, and a product must be below 2^(62 - 2f).
    if not 0 < scale < 2.0 ** (62 - 2 * frac) / frac:
        raise DomainError(f"{frac} fractional bits allow a noise scale of up to 2^{62 - 2 * frac} / {frac}")
    gamma = await sampler(ctx.step("noise"), count=answers.size, frac=frac)
    noise = await scale_fixed(ctx.step("scale"), gamma, factor=scale, frac=frac)
    return await reveal(ctx.step("open"), answers * (1 << frac) + noise)


MEASURE_ROUNDS = _rounds("scale_fixed", "reveal")


@formula
def paper_release_bytes(n: int, f: int, first: int) -> int:
    """Bytes of `_measure` but for its sampler."""
    return _bytes("scale_fixed", first, {size.elements: n, size.fraction_bits: f}) + _bytes(
        "reveal", first, {size.elements: n}
    )


@formula
def paper_irwin_hall_bytes(n: int, f: int, first: int) -> int:
    """Bytes of `irwin_hall`."""
    return _bytes("random_fraction", first, {size.elements: UNIFORMS * n, size.fraction_bits: f})


@protocol(
    "CaPS Protocol 5, pi_MEASURE by Irwin-Hall",
    rep3=Cost(
        rounds=_rounds("random_fraction") + MEASURE_ROUNDS,
        sent=paper_irwin_hall_bytes(size.elements, size.fraction_bits, FIRST)
        + paper_release_bytes(size.elements, size.fraction_bits, FIRST),
    ),
)
async def paper_measure_irwin_hall(ctx: Context, answers: AShare, *, scale: float, frac: int = FRAC) -> Words:
    """Answers plus scale times approximately normal noise, in fixed point. NOT differentially private: see the module.

    The noise is at most 6 scale in size and has excess kurtosis -1/10.

    Deviation: twelve draws per cell, which give variance 1 and mean 0; "j = 0 to 12" makes thirteen.

    Pre-conditions: answers is a vector of integers below 2^(61 - f) in size; scale < 2^(62 - 2f) / f, which is checked.
    Leaks: the noisy answers, to every party, and with them in most cases the answers.
    """
    return await _measure(ctx, answers, irwin_hall, scale, frac)


@formula
def paper_box_muller_bytes(n: int, f: int, first: int) -> int:
    """Bytes of `box_muller`."""
    pairs = (n + 1) // 2
    uniforms = _bytes("random_fraction", first, {size.elements: 2 * pairs, size.fraction_bits: f})
    parts = ("logarithm", "square_root", "scale_fixed", "sine_cosine")
    return (
        uniforms
        + sum(_bytes(p, first, {size.elements: pairs, size.fraction_bits: f}) for p in parts)
        + _bytes("multiply_fixed", first, {size.elements: 2 * pairs, size.fraction_bits: f})
    )


@protocol(
    "CaPS Protocol 5 with Protocol 9, pi_MEASURE by Box-Muller",
    rep3=Cost(
        rounds=_rounds("random_fraction", "logarithm", "square_root", "multiply_fixed") + MEASURE_ROUNDS,
        sent=paper_box_muller_bytes(size.elements, size.fraction_bits, FIRST)
        + paper_release_bytes(size.elements, size.fraction_bits, FIRST),
    ),
)
async def paper_measure_box_muller(ctx: Context, answers: AShare, *, scale: float, frac: int = FRAC) -> Words:
    """Answers plus scale times normal noise, in fixed point. NOT differentially private: see the module.

    The noise is at most sqrt(2 f ln 2) scale in size: 5.3 for f = 20.

    Deviation: an odd last number is half of one more pair, drawn with the others and not by a second call; the paper
    takes the logarithm of u, which may be 0, and this of 1 - u.

    Pre-conditions: as paper_measure_irwin_hall.
    Leaks: as paper_measure_irwin_hall.
    """
    return await _measure(ctx, answers, box_muller, scale, frac)


@formula
def paper_laplace_bytes(n: int, f: int, first: int) -> int:
    """Bytes of `laplace`."""
    draws = _bytes("random_fraction", first, {size.elements: n, size.fraction_bits: f}) + _bytes(
        "random_bit", first, {size.elements: n}
    )
    return (
        draws
        + _bytes("logarithm", first, {size.elements: n, size.fraction_bits: f})
        + _bytes("multiply", first, {size.elements: n})
    )


@protocol(
    "CaPS Protocol 10, pi_MEASURE with Laplace noise",
    rep3=Cost(
        rounds=_rounds("random_fraction", "logarithm", "multiply") + MEASURE_ROUNDS,
        sent=paper_laplace_bytes(size.elements, size.fraction_bits, FIRST)
        + paper_release_bytes(size.elements, size.fraction_bits, FIRST),
    ),
)
async def paper_measure_laplace(ctx: Context, answers: AShare, *, scale: float, frac: int = FRAC) -> Words:
    """Answers plus scale times Laplace noise, in fixed point. NOT differentially private: see the module.

    The noise is at most f ln 2 scale in size.

    Deviation: the paper takes the logarithm of u, which may be 0, and this of 1 - u.

    Pre-conditions: as paper_measure_irwin_hall.
    Leaks: as paper_measure_irwin_hall.
    """
    return await _measure(ctx, answers, laplace, scale, frac)


@formula
def paper_laplace_inverse_bytes(n: int, f: int, first: int) -> int:
    """Bytes of `laplace_inverse`."""
    draws = _bytes("random_fraction", first, {size.elements: n, size.fraction_bits: f}) + _bytes(
        "greater_equal", first, {size.elements: n}
    )
    return (
        draws
        + _bytes("logarithm", first, {size.elements: n, size.fraction_bits: f})
        + 2 * _bytes("multiply", first, {size.elements: n})
    )


@protocol(
    "CaPS App. A before Protocol 10, pi_MEASURE with Laplace noise by its inverse distribution function",
    rep3=Cost(
        rounds=_rounds("random_fraction", "greater_equal", "multiply", "logarithm", "multiply") + MEASURE_ROUNDS,
        sent=paper_laplace_inverse_bytes(size.elements, size.fraction_bits, FIRST)
        + paper_release_bytes(size.elements, size.fraction_bits, FIRST),
    ),
)
async def paper_measure_laplace_inverse(ctx: Context, answers: AShare, *, scale: float, frac: int = FRAC) -> Words:
    """Answers plus scale times Laplace noise, in fixed point. NOT differentially private: see the module.

    The noise is at most f ln 2 scale in size.

    Deviation: the sign is -1 or 1. The paper's pseudocode takes the result of pi_GTE, 0 or 1, for it, which gives half
    the cells no noise at all and the others noise of one sign. And u is half an ulp off a multiple of 2^-f.

    Pre-conditions: as paper_measure_irwin_hall.
    Leaks: as paper_measure_irwin_hall.
    """
    return await _measure(ctx, answers, laplace_inverse, scale, frac)


@dataclass(frozen=True, slots=True)
class Variant:
    """A mechanism under the name a study asks for it by, and whether its privacy is proved."""

    function: Callable[..., Coroutine[Any, Any, Any]]
    certified: bool


VARIANTS: Mapping[str, Variant] = MappingProxyType(
    {
        "paper:irwin-hall": Variant(paper_measure_irwin_hall, CERTIFIED),
        "paper:box-muller": Variant(paper_measure_box_muller, CERTIFIED),
        "paper:laplace": Variant(paper_measure_laplace, CERTIFIED),
        "paper:laplace-inverse": Variant(paper_measure_laplace_inverse, CERTIFIED),
        "paper:softmax-cumsum": Variant(paper_select, CERTIFIED),
    }
)
"""Measures take (ctx, answers, scale, frac), the selection (ctx, errors, epsilon, sensitivity, frac)."""


def _rate(epsilon: Real, sensitivity: Real) -> Fraction:
    """epsilon / 2s, exactly, so that all parties scale by the same number."""
    if not (isfinite(epsilon) and isfinite(sensitivity) and sensitivity > 0):
        raise DomainError("epsilon and the sensitivity must be finite, and the sensitivity positive")
    rate = Fraction(epsilon) / (2 * Fraction(sensitivity))
    if not RATES[0] <= rate <= RATES[1]:
        raise DomainError(f"epsilon / 2s must be from {RATES[0]} to {RATES[1]} per unit of score")
    return rate


def _repeated(share: AShare, count: int) -> AShare:
    """The same elements along a new last axis."""
    return share[..., None][..., np.zeros(count, np.intp)]


def _integers(values: Integers, count: int, what: str) -> npt.NDArray[np.integer[Any]]:
    array = np.asarray(values)
    if array.dtype.kind not in "iu" or array.shape != (count,):
        raise ShareError(f"{count} {what} take as many integers, not {array.dtype} of shape {array.shape}")
    return array


def _accept(ctx: Context, share: AShare, frac: int = FRAC) -> None:
    """Refuse, before anything is sent, what the protocols here are not defined on."""
    ctx.own(share)
    if frac not in FRAC_RANGE:
        raise DomainError(f"fixed point takes {FRAC_RANGE.start} to {FRAC_RANGE.stop - 1} fractional bits, not {frac}")
    if share.ring != Z64:
        raise ShareError(f"scores and noise are computed over {Z64!r}: lift {share!r} first")


def _accept_vector(ctx: Context, share: AShare, frac: int = FRAC) -> None:
    _accept(ctx, share, frac)
    if len(share.shape) != 1 or not share.size:
        raise ShareError(f"this needs a vector with at least one element, not {share!r}")
