"""Conjunction of XOR shares. Every AND is a claim of its own: sums of bits over Z_2 are not what a proof can add up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from caps.shares.ring import Z64, Words
from services.mpc_server.engine import size, verbs
from services.mpc_server.engine.context import Context
from services.mpc_server.engine.cost import Cost, plane
from services.mpc_server.engine.rep3.boolean import same_bits
from services.mpc_server.engine.rep3.local import masks, sent_back
from services.mpc_server.engine.rep3_active.local import NAME, by_prover, claims
from services.mpc_server.engine.shares import BShare, Shape
from services.mpc_server.engine.verbs import BitForm


@verbs.conjunction.of(NAME, "Araki et al. 2016, over Z_2", Cost(rounds=1, sent=size.width * plane(size.elements)))
async def conjunction(ctx: Context, x: BShare, y: BShare) -> BShare:
    """Like `multiply`, over Z_2."""
    ctx.own(x, y)
    same_bits(x, y)
    return ctx.bits(x.shape, *await _products(ctx, x.components, y.components))


@verbs.bilinear_bits.of(
    NAME,
    "Araki et al. 2016, over Z_2: every product is sent, and proved",
    Cost(rounds=1, sent=size.and_planes * plane(size.and_elements)),
)
async def bilinear_bits(ctx: Context, x: BShare, y: BShare, *, form: BitForm, shape: Shape) -> BShare:
    """A conjunction, whose result is summed up."""
    ctx.own(x, y)
    lefts, rights = [form.left(words) for words in x.components], [form.right(words) for words in y.components]
    return ctx.bits(shape, *map(form.summed, await _products(ctx, lefts, rights)))


class _Known(NamedTuple):
    """Component i of x and y; what is added to a claim if it is on the left of it (e), and if on the right (f)."""

    x: Words
    y: Words
    e: Words
    f: Words


async def _products(ctx: Context, x: Sequence[Words], y: Sequence[Words]) -> tuple[Words, Words]:
    """A party's components of x AND y, from those of x and y.

    It sends z_i = x_i y_i ^ x_i y_{i+1} ^ x_{i+1} y_i ^ m_i ^ m_{i+1} with masks m. With e = x_i y_i ^ m_i ^ z_i and
    f = m_{i+1}, the claim is x_i y_{i+1} ^ y_i x_{i+1} ^ e ^ f = 0.
    """
    (x_mine, x_next), (y_mine, y_next) = x, y
    mask_mine, mask_next = masks(ctx, x_mine.shape, Z64)
    e_mine = x_mine & y_next
    e_mine ^= x_next & y_mine
    e_mine ^= mask_next
    sent = x_mine & y_mine
    sent ^= e_mine
    sent ^= mask_mine
    _, received = await sent_back(ctx, sent)
    e_next = x_next & y_next
    e_next ^= mask_next
    e_next ^= received
    mine, next_ = _Known(x_mine, y_mine, e_mine, mask_mine), _Known(x_next, y_next, e_next, mask_next)
    for prover, left, right in by_prover(ctx, mine, next_):
        claims(ctx).bits(
            prover,
            a=left and left.x,
            b=right and right.y,
            c=left and left.y,
            d=right and right.x,
            e=left and left.e,
            f=right and right.f,
        )
    await ctx.guard.settle()
    return sent, received
