"""Sums of numbers with shared signs: what selections take their scores from."""

from __future__ import annotations

import numpy as np

from caps.shares.ring import unpack_bits
from services.mpc_server.engine import size, verbs
from services.mpc_server.engine.context import Context
from services.mpc_server.engine.cost import Cost
from services.mpc_server.engine.rep3.signs import Factors, signed_factors
from services.mpc_server.engine.rep3_active.arithmetic import multiplied
from services.mpc_server.engine.rep3_active.local import NAME, claims, component
from services.mpc_server.engine.shares import AShare, BShare, Indices


@verbs.signed_sums.of(
    NAME,
    "CaPS Protocol 7 with the sign left in bits: |y| = (1 - 2c)(1 - 2d) y",
    Cost(rounds=2, sent=size.elements * size.ring_bits // 8 + size.sums * size.ring_bits // 8),
)
async def signed_sums(ctx: Context, sign: BShare, y: AShare, *, starts: Indices) -> AShare:
    """As in `engine.rep3`: (1 - 2d) y by S2 and S3, 1 - 2c by S1, then an inner product per segment. All is claimed."""
    factors = await signed_factors(ctx, sign, y, starts)
    _claim_factors(ctx, sign, y, factors)
    return await multiplied(ctx, factors.turned, factors.factor, starts)


def _claim_factors(ctx: Context, sign: BShare, y: AShare, factors: Factors) -> None:
    """S1 deals 1 - 2c as r_0 + r_1, which is 1 - 2 s_0 - 2 s_1 + 4 s_0 s_1 for a sign in components.

    S2 sends (1 - 2d) y_1 minus a mask that S1 knows, and S3 (1 - 2d) y_0; these masks are components of the product.
    """
    bits, dtype = y.ring.bits, y.ring.dtype
    s_0, s_1, d = (
        None if planes is None else unpack_bits(planes[0], y.size)
        for planes in (component(sign, number) for number in range(3))
    )
    r_0, r_1 = (component(factors.factor, number) for number in (0, 1))
    (y_0, y_1), (mask_0, mask_1) = ([component(one, number) for number in (0, 1)] for one in (y, factors.turned))
    rest_0, rest_1 = factors.rests or (None, None)
    file = claims(ctx).words
    file(
        0,
        bits=bits,
        lefts=None if s_0 is None else (s_0,),
        rights=None if s_1 is None else ((4 * s_1).astype(dtype),),
        e=None if s_0 is None or r_0 is None else 1 - 2 * s_0.astype(dtype) - r_0,
        f=None if s_1 is None or r_1 is None else -(2 * s_1.astype(dtype)) - r_1,
        left_bits=1,
    )
    file(
        1,
        bits=bits,
        lefts=None if y_1 is None else (np.negative(2 * y_1),),
        rights=None if d is None else (d,),
        e=None if y_1 is None or mask_1 is None else y_1 - mask_1,
        f=None if rest_1 is None else -rest_1,
    )
    file(
        2,
        bits=bits,
        lefts=None if d is None else (d,),
        rights=None if y_0 is None else (np.negative(2 * y_0),),
        e=None if rest_0 is None else -rest_0,
        f=None if y_0 is None or mask_0 is None else y_0 - mask_0,
        left_bits=1,
    )
