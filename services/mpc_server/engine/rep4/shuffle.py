"""A shuffle of rows by a permutation that no party knows.

The permutation is the composition of four, each drawn by the three parties that hold one component's key; the fourth
lacks it, so to it the order of the result is uniformly random.
"""

from __future__ import annotations

from functools import reduce

import numpy as np

from caps.shares.ring import Z8
from caps.shares.sharing import Algebra
from services.mpc_server.engine import size, verbs
from services.mpc_server.engine.context import Context
from services.mpc_server.engine.cost import Cost
from services.mpc_server.engine.rep4.joint import enter
from services.mpc_server.engine.rep4.local import NAME, PARTIES, Joint, components_of
from services.mpc_server.engine.shares import RowShare


def _movers(mover: int) -> tuple[Joint, ...]:
    """Who enters each other component when rows are moved by the key of component `mover`; its receiver is `mover`."""
    joints = []
    for component in range(PARTIES):
        if component != mover:
            knowing = [party for party in range(PARTIES) if party not in (mover, component)]
            sender, backup = knowing if mover < component else reversed(knowing)
            joints.append(Joint(sender, backup, mover))
    return tuple(joints)


_MOVES = tuple(map(_movers, range(PARTIES)))
"""In all four moves together, every party sends three of twelve components."""


@verbs.shuffle.of(
    NAME,
    "as Araki et al. 2021, with moves by three parties of four",
    Cost(rounds=PARTIES, sent=3 * size.table_bytes),
)
async def shuffle(ctx: Context, rows: RowShare) -> RowShare:
    """Four moves. In each, three parties move the rows, and enter the components that the fourth must have, masked.

    The component whose key they draw from is theirs alone, and takes up the masks.
    """
    ctx.own(rows)
    for mover in range(PARTIES):
        rows = await _move(ctx.step(f"move{mover}"), rows, mover)
    return rows


async def _move(ctx: Context, rows: RowShare, mover: int) -> RowShare:
    joints, component = _MOVES[mover], components_of(rows)
    if ctx.party == mover:
        entered = await enter(ctx, joints, {}, rows.shape, Z8, Algebra.XOR)
        moved = {}
    else:
        order = ctx.prss.order(mover, ctx.path + b"#order", len(rows))
        known = {n: component(one.other).take(order, axis=0) for n, one in enumerate(joints) if one.knows(ctx.party)}
        entered = await enter(ctx, joints, known, rows.shape, Z8, Algebra.XOR)
        masks = [one.mask for one in entered if one.mask is not None]
        moved = {mover: reduce(np.bitwise_xor, masks, component(mover).take(order, axis=0))}
    moved |= {one.joint.other: one.rest for one in entered if one.rest is not None}
    return ctx.rows(*(moved[number] for number in ctx.scheme.held[ctx.party]))
