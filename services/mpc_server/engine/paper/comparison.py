"""Order, absolute value and maximum of arithmetic shares, as the paper uses them."""

from __future__ import annotations

from services.mpc_server.engine import size
from services.mpc_server.engine.boolean import (
    adder_ands,
    carry_ands,
    tournament,
    tournament_ands,
    tournament_rounds,
    tournament_winners,
)
from services.mpc_server.engine.comparison import less_than, negative
from services.mpc_server.engine.context import Context, together
from services.mpc_server.engine.conversion import to_bits
from services.mpc_server.engine.cost import FIRST, Cost, log2, plane
from services.mpc_server.engine.registry import protocol
from services.mpc_server.engine.shares import AShare
from services.mpc_server.engine.verbs import dot, from_bits, multiply

SIGN = ((1 + FIRST) * size.ring_bits - 1 + carry_ands(size.ring_bits - 1)) * plane(size.elements)
"""Bytes of `negative`."""
LARGEST = tournament_ands(size.elements, size.ring_bits) + tournament_winners(size.elements, size.ring_bits)
"""Bytes of `tournament`."""


@protocol(
    "CaPS App. A, pi_GT",
    rep3=Cost(rounds=4 + log2(size.ring_bits - 1), sent=size.elements * size.ring_bits // 8 + SIGN),
)
async def greater_than(ctx: Context, x: AShare, y: AShare) -> AShare:
    """[[1 if x > y else 0]], elementwise, signed.

    Pre-conditions: as less_than.
    Leaks: nothing.
    """
    return await less_than(ctx, y, x)


@protocol(
    "CaPS App. A, pi_GTE",
    rep3=Cost(rounds=4 + log2(size.ring_bits - 1), sent=size.elements * size.ring_bits // 8 + SIGN),
)
async def greater_equal(ctx: Context, x: AShare, y: AShare) -> AShare:
    """[[1 if x >= y else 0]], elementwise, signed.

    Pre-conditions: as less_than.
    Leaks: nothing.
    """
    return 1 - await less_than(ctx, x, y)


@protocol(
    "CaPS Protocol 7, lines 3-4",
    rep3=Cost(rounds=5 + log2(size.ring_bits - 1), sent=2 * size.elements * size.ring_bits // 8 + SIGN),
)
async def absolute(ctx: Context, x: AShare) -> AShare:
    """[[|x|]], elementwise.

    Pre-conditions: x > -2^(k-1).
    Leaks: nothing.
    """
    sign = await negative(ctx.step("sign"), x)
    below = await from_bits(ctx.step("ring"), sign, ring=x.ring)
    return await multiply(ctx.step("product"), 1 - below * 2, x)


@protocol(
    "CaPS Protocol 7, pi_NORM-L1",
    rep3=Cost(
        rounds=5 + log2(size.ring_bits - 1),
        sent=size.sums * size.ring_bits // 8 + size.elements * size.ring_bits // 8 + SIGN,
    ),
)
async def l1_norm(ctx: Context, x: AShare) -> AShare:
    """[[sum over the last axis of |x|]]; n counts elements, m the sums.

    Pre-conditions: x > -2^(k-1), and no sum reaches 2^(k-1).
    Leaks: nothing.
    """
    sign = await negative(ctx.step("sign"), x)
    below = await from_bits(ctx.step("ring"), sign, ring=x.ring)
    return await dot(ctx.step("sum"), 1 - below * 2, x)


@protocol(
    "CaPS App. A, pi_MAX",
    rep3=Cost(
        rounds=4 + log2(size.ring_bits - 1) + tournament_rounds(size.elements, size.ring_bits),
        sent=(2 + FIRST * (size.ring_bits + log2(size.elements) - 2)) * size.ring_bits // 8
        + (FIRST * size.ring_bits + adder_ands(size.ring_bits)) * plane(size.elements)
        + LARGEST,
    ),
)
async def argmax(ctx: Context, x: AShare) -> tuple[AShare, AShare]:
    """[[max of x]] and [[its index]], x a vector of n signed numbers; the lowest index wins a tie.

    Pre-conditions: n >= 1.
    Leaks: nothing.
    """
    ctx.own(x)
    ring = x.ring
    # Adding 2^(k-1) turns the order of signed numbers into that of unsigned ones.
    values = await to_bits(ctx.step("bits"), x + (1 << (ring.bits - 1)))
    best, where = await tournament(ctx.step("tournament"), values)
    value, index = await together(
        from_bits(ctx.step("value"), best, ring=ring), from_bits(ctx.step("index"), where, ring=ring)
    )
    return value - (1 << (ring.bits - 1)), index
