"""Comparing, pi_SELECT and pi_MEASURE on integers: exact scores, noise drawn in MPC, nothing opened but the release.

Counts and scores are integers throughout, so that neither rounding nor the grid of a fixed-point number can carry
information (docs/privacy.md). Noise does not depend on the data: it comes in as shares, drawn ahead.
"""

from __future__ import annotations

import numpy as np

from caps.dp.bounds import UNIT_BITS
from caps.dp.oracle import Integers
from caps.errors import DomainError, ShareError
from caps.shares.ring import Z32, Z64, Words, pack_bits
from services.mpc_server.engine import size
from services.mpc_server.engine.boolean import (
    carry,
    tournament,
)
from services.mpc_server.engine.context import Context
from services.mpc_server.engine.conversion import to_bits
from services.mpc_server.engine.cost import log2
from services.mpc_server.engine.registry import protocol
from services.mpc_server.engine.shares import AShare, BShare, Indices
from services.mpc_server.engine.verbs import reveal, reveal_bits, signed_sums


@protocol(
    "bit decomposition of counts, once for all selections of a run",
    lambda of: of(to_bits, {size.ring_bits: 32}),
)
async def count_bits(ctx: Context, counts: AShare) -> BShare:
    """[[the 32 bits of each count]].

    Reducing every component modulo 2^32 shares the counts modulo 2^32, which is what they are.

    Pre-conditions: 0 <= count < 2^32, in Z_2^64; `caps.dp.bounds` says why that is so.
    Leaks: nothing.
    """
    ctx.own(counts)
    return await to_bits(ctx, counts.narrow(Z32))


@protocol(
    "less-than with a public bound: the first AND of each bit is local",
    lambda of: of(carry),
)
async def bits_below(ctx: Context, x: BShare, *, bound: Words) -> BShare:
    """[[1 if x < bound else 0]] of unsigned w-bit elements, for a public bound per element.

    Pre-conditions: bound has the shape of x; bounds of 2^w and more are not below any x and must be capped.
    Leaks: nothing.
    """
    ctx.own(x)
    if bound.shape != x.shape or (bound.size and int(bound.max()) >> x.width):
        raise DomainError(f"bounds must have the shape {x.shape} and at most {x.width} bits")
    flat = bound.reshape(-1).astype(np.uint64)
    bits = (flat[None] >> np.arange(x.width, dtype=np.uint64)[:, None] & np.uint64(1)).astype(np.uint8)
    mask = pack_bits(bits)
    opposite = ~x
    return await carry(ctx, opposite.mask(mask), opposite.flip(bits))


@protocol(
    "CaPS Protocols 6 and 8, pi_ERR, in integers",
    lambda of: of(bits_below, {size.width: 32}) + of(signed_sums, {size.ring_bits: 64}),
)
async def error_scores(
    ctx: Context,
    counts: AShare,
    bits: BShare,
    *,
    estimate: Integers,
    starts: Indices,
    bias: Integers,
    weights: Integers,
) -> AShare:
    """[[w_c (sum over the cells of candidate c of |2^8 x - estimate| - bias_c)]] for m candidates with n cells in all.

    One formula serves all algorithms: AIM has weights and the expected noise as bias, MWEM+PGM the number of cells as
    bias, MST neither. Estimate and bias are in units of 2^-8. Adding or removing one person changes one cell of each
    candidate by 2^8, so a score by at most 2^8 |w_c|, exactly.

    Deviation: the paper prints sum(1 - 2 abs_diff) in Protocol 8; the sum of abs_diff is meant.

    Pre-conditions: bits are those of `count_bits`; the request passed `caps.dp.oracle.Selection.check`,
        so that bounds have 32 bits and |score| < 2^61.
    Leaks: nothing.
    """
    ctx.own(counts, bits)
    if counts.shape != bits.shape or estimate.shape != counts.shape or not bias.shape == weights.shape == starts.shape:
        raise ShareError("there must be one estimate for each cell, and one bias and one weight for each candidate")
    # 2^8 x < estimate exactly when x < ceil(estimate / 2^8), which has 32 bits because an estimate is below 2^40.
    bound = (-(-estimate >> UNIT_BITS)).astype(np.uint64)
    sign = await bits_below(ctx.step("sign"), bits, bound=bound)
    distance = counts * (1 << UNIT_BITS) - estimate
    sums = await signed_sums(ctx.step("sums"), sign, distance, starts=starts)
    return (sums - bias) * weights


@protocol(
    "report noisy max; McSherry and Talwar 2007 with Gumbel noise, Ding et al. 2021 with geometric",
    lambda of: (
        of(to_bits, {size.ring_bits: 64})
        + of(tournament, {size.width: 64})
        + of(reveal_bits, {size.width: log2(size.elements), size.elements: 1})
    ),
)
async def noisy_argmax(ctx: Context, scores: AShare, noise: AShare) -> int:
    """The index of the largest score + noise, opened; the lowest index wins a tie.

    With integer Gumbel noise this is the exponential mechanism up to the factor proved in docs/privacy.md; with
    geometric noise it is permute-and-flip, exactly.

    Pre-conditions: |score + noise| < 2^63; the noise is fresh, drawn for this step, and used nowhere else.
    Leaks: the index, to every party. That is the release.
    """
    ctx.own(scores, noise)
    if scores.shape != noise.shape or len(scores.shape) != 1:
        raise ShareError(f"{noise!r} must have one noise value for each score of {scores!r}")
    # Adding 2^63 turns the order of signed numbers into that of unsigned ones.
    values = await to_bits(ctx.step("bits"), scores + noise + (1 << 63))
    _, where = await tournament(ctx.step("tournament"), values)
    return int(await reveal_bits(ctx.step("index"), where, ring=Z64))


@protocol(
    "google/dpsynth, SWIFT: noisy errors of all candidates, in integers",
    lambda of: of(error_scores) + of(reveal, {size.ring_bits: 64, size.elements: size.sums}),
)
async def noisy_errors(
    ctx: Context, counts: AShare, bits: BShare, noise: AShare, *, estimate: Integers, starts: Indices
) -> Integers:
    """The sum over the cells of each candidate of |2^8 x - estimate|, plus noise, opened for all candidates at once.

    Pre-conditions: as `error_scores`, with weights of 1 and no bias; the noise is fresh, drawn for this step, and used
        nowhere else; |error + noise| < 2^63.
    Leaks: the sums, to every party. That is the release.
    """
    ctx.own(counts, bits, noise)
    if noise.shape != starts.shape:
        raise ShareError(f"{noise!r} must have one noise value for each candidate")
    ones = np.ones(len(starts), np.int64)
    scores = await error_scores(
        ctx.step("scores"), counts, bits, estimate=estimate, starts=starts, bias=0 * ones, weights=ones
    )
    return Z64.signed(await reveal(ctx.step("open"), scores + noise)).astype(np.int64)


@protocol("CaPS Protocol 5, pi_MEASURE, in integers", lambda of: of(reveal, {size.ring_bits: 64}))
async def noisy_counts(ctx: Context, counts: AShare, noise: AShare) -> Integers:
    """counts + noise, opened.

    Pre-conditions: the noise is fresh, drawn for this step, and used nowhere else.
    Leaks: the sum, to every party. That is the release.
    """
    ctx.own(counts, noise)
    if counts.shape != noise.shape:
        raise ShareError(f"{noise!r} must have one noise value for each count of {counts!r}")
    return Z64.signed(await reveal(ctx, counts + noise)).astype(np.int64)
