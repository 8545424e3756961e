"""Conjunction of XOR shares."""

from __future__ import annotations

from math import prod

from caps.errors import ShareError
from caps.shares.ring import Z64, plane_words
from caps.shares.sharing import Algebra
from services.mpc_server.engine import size, verbs
from services.mpc_server.engine.context import Context
from services.mpc_server.engine.cost import Cost, plane
from services.mpc_server.engine.rep4.joint import enter_terms
from services.mpc_server.engine.rep4.local import LATTER, NAME, bit_terms
from services.mpc_server.engine.shares import BShare, Shape
from services.mpc_server.engine.verbs import BitForm

_AND = BitForm(left=lambda planes: planes, right=lambda planes: planes, summed=lambda planes: planes)
_OF_PLANES = Cost(rounds=1, sent=(1 + LATTER) * (size.width * plane(size.elements)))


@verbs.bilinear_bits.of(NAME, "Dalskov, Escudero and Keller 2021, over Z_2: a sum of products costs one", _OF_PLANES)
async def bilinear_bits(ctx: Context, x: BShare, y: BShare, *, form: BitForm, shape: Shape) -> BShare:
    """As multiply; terms are summed before they are sent."""
    ctx.own(x, y)
    terms = bit_terms(x, y, form)
    width = len(next(iter(terms.values())))
    extents = (width, plane_words(prod(shape)))
    return ctx.bits(shape, *await enter_terms(ctx, terms, extents, Z64, Algebra.XOR))


@verbs.conjunction.of(NAME, "Dalskov, Escudero and Keller 2021, over Z_2", _OF_PLANES)
async def conjunction(ctx: Context, x: BShare, y: BShare) -> BShare:
    """Like `multiply`, over Z_2."""
    ctx.own(x, y)
    if x.shape != y.shape or x.width != y.width:
        raise ShareError(f"{x!r} and {y!r} differ in shape or width")
    return await bilinear_bits(ctx, x, y, form=_AND, shape=x.shape)
