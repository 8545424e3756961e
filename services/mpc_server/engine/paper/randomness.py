"""Random values that no party knows."""

from __future__ import annotations

from caps.errors import DomainError
from caps.shares.ring import Ring
from services.mpc_server.engine import size
from services.mpc_server.engine.context import Context
from services.mpc_server.engine.cost import FIRST, Cost
from services.mpc_server.engine.registry import protocol
from services.mpc_server.engine.shares import AShare, Shape
from services.mpc_server.engine.verbs import from_bits


@protocol("CaPS App. A, pi_GR-RNDM-BIT", rep3=Cost(rounds=2, sent=size.elements * size.ring_bits // 8))
async def random_bit(ctx: Context, *, shape: Shape, ring: Ring) -> AShare:
    """[[0 or 1, each with probability 1/2]], unknown to every party.

    Pre-conditions: none.
    Leaks: nothing.
    """
    return await from_bits(ctx, ctx.noise_bits(1, shape), ring=ring)


@protocol(
    "CaPS App. A, pi_GR-RANDOM",
    rep3=Cost(rounds=2, sent=(FIRST * (size.fraction_bits - 1) + 1) * size.elements * size.ring_bits // 8),
)
async def random_fraction(ctx: Context, *, shape: Shape, ring: Ring, frac: int) -> AShare:
    """[[a uniform multiple of 2^-f in [0, 1)]] in fixed point with f fractional bits.

    Pre-conditions: 1 <= f < k.
    Leaks: nothing.
    """
    if not 1 <= frac < ring.bits:
        raise DomainError(f"{frac} random fractional bits do not fit in {ring!r}")
    return await from_bits(ctx, ctx.noise_bits(frac, shape), ring=ring)
