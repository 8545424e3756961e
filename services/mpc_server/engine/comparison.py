"""Sign, order and equality of arithmetic shares."""

from __future__ import annotations

from caps.errors import ShareError
from services.mpc_server.engine import size
from services.mpc_server.engine.boolean import all_of, carry
from services.mpc_server.engine.context import Context
from services.mpc_server.engine.registry import protocol
from services.mpc_server.engine.shares import AShare, BShare
from services.mpc_server.engine.verbs import addends, alike, conjunction, from_bits


@protocol(
    "top bit of a sum of two halves: Mohassel and Rindal 2018, with one input fewer",
    lambda of: (
        of(addends, {size.width: size.ring_bits})
        + of(conjunction, {size.width: size.ring_bits - 1})
        + of(carry, {size.width: size.ring_bits - 1})
    ),
)
async def negative(ctx: Context, x: AShare) -> BShare:
    """[[1 if x < 0 else 0]] as a shared bit, x signed.

    Pre-conditions: none.
    Leaks: nothing.
    """
    ctx.own(x)
    a, b = await addends(ctx.step("halves"), x, width=x.ring.bits)
    low, top = slice(0, x.ring.bits - 1), slice(x.ring.bits - 1, None)
    generate = await conjunction(ctx.step("generate"), a.planes(low), b.planes(low))
    into_top = await carry(ctx.step("carry"), generate, (a ^ b).planes(low))
    return (a ^ b).planes(top) ^ into_top


@protocol(
    "CaPS App. A, pi_LT",
    lambda of: of(negative) + of(from_bits, {size.width: 1}),
)
async def less_than(ctx: Context, x: AShare, y: AShare) -> AShare:
    """[[1 if x < y else 0]], elementwise, signed.

    Pre-conditions: x - y does not overflow: |x - y| < 2^(k-1). Unchecked, because the values are secret.
    Leaks: nothing.
    """
    ctx.own(x, y)
    _same_shape(x, y)
    sign = await negative(ctx.step("sign"), x - y)
    return await from_bits(ctx.step("ring"), sign, ring=x.ring)


@protocol(
    "CaPS App. A, pi_EQ",
    lambda of: of(alike) + of(all_of, {size.width: size.ring_bits}) + of(from_bits, {size.width: 1}),
)
async def equal(ctx: Context, x: AShare, y: AShare) -> AShare:
    """[[1 if x = y else 0]], elementwise.

    Pre-conditions: none.
    Leaks: nothing.
    """
    ctx.own(x, y)
    _same_shape(x, y)
    left, right = await alike(ctx.step("halves"), x - y)
    same = await all_of(ctx.step("all"), ~(left ^ right))
    return await from_bits(ctx.step("ring"), same, ring=x.ring)


def _same_shape(x: AShare, y: AShare) -> None:
    if x.shape != y.shape or x.ring != y.ring:
        raise ShareError(f"{x!r} and {y!r} differ in shape or ring")
