"""From arithmetic shares to bits."""

from __future__ import annotations

from services.mpc_server.engine import size
from services.mpc_server.engine.boolean import add_bits, adder_ands
from services.mpc_server.engine.context import Context
from services.mpc_server.engine.cost import FIRST, Cost, log2, plane
from services.mpc_server.engine.registry import protocol
from services.mpc_server.engine.shares import AShare, BShare
from services.mpc_server.engine.verbs import addends


@protocol(
    "bit decomposition: Mohassel and Rindal 2018, with one input fewer",
    rep3=Cost(
        rounds=2 + log2(size.ring_bits - 1),
        sent=(FIRST * size.ring_bits + adder_ands(size.ring_bits)) * plane(size.elements),
    ),
)
async def to_bits(ctx: Context, x: AShare) -> BShare:
    """[[the k bits of x]], lowest first.

    Pre-conditions: none.
    Leaks: nothing.
    """
    a, b = await addends(ctx.step("halves"), x, width=x.ring.bits)
    return await add_bits(ctx.step("add"), a, b)
