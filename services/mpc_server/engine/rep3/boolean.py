"""Input and conjunction of XOR shares."""

from __future__ import annotations

from math import prod

import numpy as np

from caps.errors import ShareError, party_name
from caps.shares.ring import PLANE, Z64, Words, plane_words
from services.mpc_server.engine import size, verbs
from services.mpc_server.engine.context import Context
from services.mpc_server.engine.cost import FIRST, Cost, plane
from services.mpc_server.engine.rep3.local import NAME, bit_products, following, masks, previous, sent_back
from services.mpc_server.engine.shares import BShare, Shape
from services.mpc_server.engine.verbs import BitForm

_AND = BitForm(left=lambda planes: planes, right=lambda planes: planes, summed=lambda planes: planes)
_OF_PLANES = Cost(rounds=1, sent=size.width * plane(size.elements))


@verbs.bilinear_bits.of(NAME, "Araki et al. 2016, section 3.3, over Z_2: a sum of products costs one", _OF_PLANES)
async def bilinear_bits(ctx: Context, x: BShare, y: BShare, *, form: BitForm, shape: Shape) -> BShare:
    """As reshare."""
    ctx.own(x, y)
    local = bit_products(x, y, form)
    mine, next_ = masks(ctx, local.shape, Z64)
    return ctx.bits(shape, *await sent_back(ctx, local ^ mine ^ next_))


@verbs.share_bits_from.of(
    NAME, "as share_from, for XOR shares", Cost(rounds=1, sent=FIRST * size.width * plane(size.elements))
)
async def share_bits_from(ctx: Context, planes: Words | None, *, dealer: int, width: int, shape: Shape) -> BShare:
    """As share_from."""
    extents = (width, plane_words(prod(shape)))
    zero = np.zeros(extents, PLANE)
    if ctx.party == dealer:
        if planes is None or planes.shape != extents:
            raise ShareError(f"the dealer {party_name(dealer)} must give {width} bit planes of {shape}")
        mine = ctx.prss.component(dealer, ctx.path + b"#input", extents, Z64)
        rest = planes ^ mine
        await ctx.exchange([(following(ctx.party), rest)], [])
        return ctx.bits(shape, mine, rest)
    if previous(ctx.party) == dealer:
        (rest_bytes,) = await ctx.exchange([], [(dealer, zero.nbytes)])
        return ctx.bits(shape, np.frombuffer(rest_bytes, PLANE).reshape(extents), zero)
    await ctx.exchange([], [])
    return ctx.bits(shape, zero, ctx.prss.component(dealer, ctx.path + b"#input", extents, Z64))


def bits_known_to_two(ctx: Context, component: int, planes: Words, shape: Shape) -> BShare:
    """The sharing whose one component holds the bits and whose others are 0. Local; third parties pass zeros."""
    zero = np.zeros_like(planes)
    held = (ctx.party, following(ctx.party))
    return ctx.bits(shape, *(planes if component == one else zero for one in held))


@verbs.conjunction.of(NAME, "Araki et al. 2016, over Z_2", _OF_PLANES)
async def conjunction(ctx: Context, x: BShare, y: BShare) -> BShare:
    """Like `multiply`, over Z_2."""
    ctx.own(x, y)
    same_bits(x, y)
    return await bilinear_bits(ctx, x, y, form=_AND, shape=x.shape)


def same_bits(x: BShare, y: BShare) -> None:
    """Refuse bits that cannot be combined element by element."""
    if x.shape != y.shape or x.width != y.width:
        raise ShareError(f"{x!r} and {y!r} differ in shape or width")
