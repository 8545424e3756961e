"""From arithmetic shares to bits."""

from __future__ import annotations

from services.mpc_server.engine import size
from services.mpc_server.engine.boolean import add_bits
from services.mpc_server.engine.context import Context
from services.mpc_server.engine.registry import protocol
from services.mpc_server.engine.shares import AShare, BShare
from services.mpc_server.engine.verbs import addends


@protocol(
    "bit decomposition: Mohassel and Rindal 2018, with one input fewer",
    lambda of: of(addends, {size.width: size.ring_bits}) + of(add_bits, {size.width: size.ring_bits}),
)
async def to_bits(ctx: Context, x: AShare) -> BShare:
    """[[the k bits of x]], lowest first.

    Pre-conditions: none.
    Leaks: nothing.
    """
    a, b = await addends(ctx.step("halves"), x, width=x.ring.bits)
    return await add_bits(ctx.step("add"), a, b)
