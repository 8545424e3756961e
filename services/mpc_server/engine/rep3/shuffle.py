"""A shuffle of rows by a permutation that no party knows.

The permutation is the composition of three, each drawn by the two parties that hold one component's key; the third
party lacks that one, so to it the order of the result is uniformly random.
"""

from __future__ import annotations

import numpy as np

from caps.shares.ring import Z8, Words
from services.mpc_server.engine import size, verbs
from services.mpc_server.engine.context import Context
from services.mpc_server.engine.cost import FIRST, Cost
from services.mpc_server.engine.rep3.local import NAME
from services.mpc_server.engine.shares import Indices, RowShare


class _Pair:
    """What this party draws together with the other holder of one component; the third party knows none of it."""

    def __init__(self, ctx: Context, component: int, shape: tuple[int, int]) -> None:
        self._prss, self._component = ctx.prss, component
        self._label = b"%b#component%d/" % (ctx.path, component)
        self._shape = shape

    def octets(self, name: bytes) -> Words:
        """Uniformly random rows."""
        return self._prss.component(self._component, self._label + name, self._shape, Z8)

    def order(self) -> Indices:
        """A uniformly random permutation of the rows."""
        return self._prss.order(self._component, self._label + b"order", self._shape[0])

    def move(self, rows: Words) -> Words:
        """Mask the rows and permute them. Done to both halves of a sharing, the masks cancel."""
        return (rows ^ self.octets(b"mask")).take(self.order(), axis=0)


@verbs.shuffle.of(
    NAME,
    "Araki et al. 2021, three-party shuffle, over Z_2",
    Cost(rounds=2, sent=(1 + FIRST) * size.table_bytes),
)
async def shuffle(ctx: Context, rows: RowShare) -> RowShare:
    """S3 knows the XOR of components 2 and 0, S1 and S2 know component 1.

    Both halves are moved by the pairs of components 0, 2 and 1, in this order, and on its way each is hidden from its
    receiver by the mask of the pair that the receiver is not in. Component 1 of the result is what S1 and S2 then have,
    each masked by a fresh component: 2 or 0.
    """
    ctx.own(rows)
    mine, next_ = rows.components
    shape, octets = rows.shape, mine.nbytes
    second = ctx.step("second")

    def pair(component: int) -> _Pair:
        return _Pair(ctx, component, shape)

    def received(message: memoryview) -> Words:
        return np.frombuffer(message, Z8.dtype).reshape(shape)

    if ctx.party == 2:
        await ctx.exchange([(0, pair(2).move(pair(0).move(mine ^ next_)))], [])
        await second.exchange([], [])
        return ctx.rows(pair(2).octets(b"fresh"), pair(0).octets(b"fresh"))
    if ctx.party == 0:
        (half,) = await ctx.exchange([(1, pair(0).move(next_))], [(2, octets)])
        fresh = pair(0).octets(b"fresh")
        part = pair(1).move(received(half))
        part ^= fresh
        del half
        (rest,) = await second.exchange([(1, part)], [(1, octets)])
        return ctx.rows(fresh, part ^ received(rest))
    (half,) = await ctx.exchange([], [(0, octets)])
    fresh = pair(2).octets(b"fresh")
    part = pair(1).move(pair(2).move(received(half)))
    part ^= fresh
    del half
    (rest,) = await second.exchange([(0, part)], [(0, octets)])
    return ctx.rows(part ^ received(rest), fresh)
