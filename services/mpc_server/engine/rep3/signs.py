"""Sums of numbers with shared signs: what selections take their scores from."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from caps.shares.ring import Words, unpack_bits
from services.mpc_server.engine import size, verbs
from services.mpc_server.engine.context import Context, together
from services.mpc_server.engine.cost import Cost
from services.mpc_server.engine.rep3.arithmetic import reshare, share_from
from services.mpc_server.engine.rep3.local import NAME, products
from services.mpc_server.engine.shares import AShare, BShare, Indices, check_segments


@verbs.signed_sums.of(
    NAME,
    "CaPS Protocol 7 with the sign left in bits: |y| = (1 - 2c)(1 - 2d) y",
    Cost(rounds=2, sent=size.elements * size.ring_bits // 8 + size.sums * size.ring_bits // 8),
)
async def signed_sums(ctx: Context, sign: BShare, y: AShare, *, starts: Indices) -> AShare:
    """The sign is c ^ d with c = s_0 ^ s_1 known to S1 and d = s_2 known to S2 and S3.

    These two multiply their components of y by 1 - 2d themselves and reshare; S1 shares 1 - 2c in the same round; then
    one inner product per segment.
    """
    factors = await signed_factors(ctx, sign, y, starts)
    return await reshare(ctx, products(factors.turned, factors.factor).map(partial(summed, starts=starts)))


def summed(words: Words, starts: Indices) -> Words:
    """The sums over segments."""
    return np.asarray(np.add.reduceat(words, starts, dtype=words.dtype))


class Factors(NamedTuple):
    """[[(1 - 2d) y]] and [[1 - 2c]]; and what S3 and S2 sent to each other for the first, which S1 does not know."""

    turned: AShare
    factor: AShare
    rests: tuple[Words, Words] | None


async def signed_factors(ctx: Context, sign: BShare, y: AShare, starts: Indices) -> Factors:
    """What is multiplied by `signed_sums`. One round."""
    ctx.own(sign, y)
    check_segments(sign, y, starts)
    (turned, rests), factor = await together(
        _turned(ctx.step("turned"), sign, y), _first_factor(ctx.step("factor"), sign, y)
    )
    return Factors(turned, factor, rests)


async def _first_factor(ctx: Context, sign: BShare, y: AShare) -> AShare:
    """[[1 - 2c]], dealt by S1."""
    known = None
    if ctx.party == 0:
        mine, next_ = sign.components
        known = 1 - 2 * unpack_bits((mine ^ next_)[0], y.size).astype(y.ring.dtype)
    return await share_from(ctx, known, dealer=0, shape=y.shape, ring=y.ring)


async def _turned(ctx: Context, sign: BShare, y: AShare) -> tuple[AShare, tuple[Words, Words] | None]:
    """[[(1 - 2d) y]]: S2 turns component 1, S3 component 0, and both component 2. They reshare with masks S1 knows.

    Masks are components 0 and 1 of the result. Returned too: what S3 sends, and S2.
    """
    (s_mine, s_next), (y_mine, y_next) = sign.components, y.components
    ring, count, word_bytes = y.ring, y.size, y_mine.nbytes
    if ctx.party == 0:
        mask_0 = ctx.prss.component(0, ctx.path + b"#mask0", (count,), ring)
        mask_1 = ctx.prss.component(1, ctx.path + b"#mask1", (count,), ring)
        await ctx.exchange([], [])
        return ctx.share(mask_0, mask_1), None
    d = unpack_bits((s_next if ctx.party == 1 else s_mine)[0], count).astype(ring.dtype)
    factor = 1 - 2 * d
    if ctx.party == 1:
        mask = ctx.prss.component(1, ctx.path + b"#mask1", (count,), ring)
        rest = y_mine * factor - mask
        (theirs,) = await ctx.exchange([(2, rest)], [(2, word_bytes)])
        other = np.frombuffer(theirs, ring.dtype)
        return ctx.share(mask, y_next * factor + rest + other), (other, rest)
    mask = ctx.prss.component(0, ctx.path + b"#mask0", (count,), ring)
    rest = y_next * factor - mask
    (theirs,) = await ctx.exchange([(1, rest)], [(1, word_bytes)])
    other = np.frombuffer(theirs, ring.dtype)
    return ctx.share(y_mine * factor + rest + other, mask), (rest, other)
