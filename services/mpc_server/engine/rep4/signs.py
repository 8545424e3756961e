"""Sums of numbers with shared signs: what selections take their scores from."""

from __future__ import annotations

import numpy as np

from caps.shares.ring import Words, unpack_bits
from caps.shares.sharing import Algebra
from services.mpc_server.engine import size, verbs
from services.mpc_server.engine.context import Context
from services.mpc_server.engine.cost import Cost
from services.mpc_server.engine.rep4.conversion import CROSSED, crossed, half_of, known_half
from services.mpc_server.engine.rep4.joint import enter, held
from services.mpc_server.engine.rep4.local import NAME, Joint
from services.mpc_server.engine.shares import AShare, BShare, Indices, check_segments

_FACTORS = (Joint(3, 2, 0), Joint(2, 3, 1), Joint(1, 0, 2), Joint(0, 1, 3))
"""Who enters C and C y', which S3 and S4 know, then D and D y'', which S1 and S2 know."""


@verbs.signed_sums.of(
    NAME,
    "CaPS Protocol 7 with the sign left in bits: |y| = (1 - 2c)(1 - 2d) y",
    Cost(rounds=2, sent=(size.elements + size.sums) * size.ring_bits // 8),
)
async def signed_sums(ctx: Context, sign: BShare, y: AShare, *, starts: Indices) -> AShare:
    """The sign is c ^ d, and y = y' + y''. S3 and S4 know c and y' = y_0 + y_1, S1 and S2 know d and y'' = y_2 + y_3.

    With C = 1 - 2c and D = 1 - 2d the result is a sum of (C y') D + C (D y''), products of two halves.
    """
    ctx.own(sign, y)
    check_segments(sign, y, starts)
    ring = y.ring
    factor = 1 - 2 * unpack_bits(known_half(sign)[0], y.size).astype(ring.dtype)
    first = 2 * half_of(ctx.party)
    known = {first: factor, first + 1: factor * known_half(y)}
    c, turned_c, d, turned_d = await enter(ctx, _FACTORS, known, y.shape, ring, Algebra.ADD)

    def times(left: Words, right: Words) -> Words:
        return np.add.reduceat(left * right, starts, dtype=ring.dtype)

    terms = crossed(ctx, [(turned_c, d), (c, turned_d)], times)
    shape = starts.shape
    sums = await enter(ctx.step("sums"), CROSSED, terms, shape, ring, Algebra.ADD)
    return ctx.share(*held(ctx, sums, shape, ring, Algebra.ADD))
