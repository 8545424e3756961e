"""From arithmetic shares to bits and back, and from a small ring to a large one.

Of x = x_0 + x_1 + x_2 + x_3, S3 and S4 know a = x_0 + x_1, and S1 and S2 know b = x_2 + x_3. So x is a sum of two
numbers that are each entered jointly. Entered so, a has components 0 and 1 only, and b components 2 and 3; the product
of two such values has four terms, and every party sends one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from caps.shares.ring import Z64, Ring, Words, plane_words, unpack_bits
from caps.shares.sharing import Algebra
from services.mpc_server.engine import size, verbs
from services.mpc_server.engine.boolean import carry, carry_ands
from services.mpc_server.engine.context import Context, together
from services.mpc_server.engine.cost import Cost, OfParty, log2, plane
from services.mpc_server.engine.rep4.joint import Entered, enter, held
from services.mpc_server.engine.rep4.local import LATTER, NAME, PARTIES, Joint, components_of
from services.mpc_server.engine.shares import AShare, BShare, Shape, component_bits, lifted_from

ENTERS = OfParty("enters", lambda party: party % 2)
"""1 for S2 and S4, which send the two halves of what is converted, and 0 for the others, which back them up."""
HALVES = (Joint(3, 2, 0), Joint(1, 0, 2))
"""Who enters a, which S3 and S4 know, and b, which S1 and S2 know."""
CROSSED = (Joint(1, 3, 2), Joint(2, 1, 0), Joint(3, 0, 1), Joint(0, 2, 3))
"""Who enters the products of components (0, 2), (0, 3), (1, 2) and (1, 3) of two halves."""


def half_of(party: int) -> int:
    """Which half a party knows: 0 for a, 1 for b."""
    return int(party < PARTIES // 2)


def known_half(share: AShare | BShare) -> Words:
    """The half that this party knows: a at S3 and S4, b at S1 and S2."""
    component, half = components_of(share), half_of(share.owner.party)
    one, two = component(2 * half), component(2 * half + 1)
    return one + two if isinstance(share, AShare) else one ^ two


def crossed(
    ctx: Context, pairs: Sequence[tuple[Entered, Entered]], times: Callable[[Words, Words], Words]
) -> dict[int, Words]:
    """What this party knows of the four terms of a sum of products of two halves."""
    terms = {}
    for number, joint in enumerate(CROSSED):
        if joint.knows(ctx.party):
            low, high = sorted((joint.receiver, joint.other))
            parts = [times(_part(a, low), _part(b, high)) for a, b in pairs]
            terms[number] = np.asarray(sum(parts[1:], start=parts[0]))
    return terms


def _part(entered: Entered, number: int) -> Words:
    words = entered.component(number)
    assert words is not None, "a half has this component"
    return words


async def _enter_halves(
    ctx: Context, half: Words, shape: Shape, ring: Ring, algebra: Algebra
) -> tuple[Entered, Entered]:
    a, b = await enter(ctx, HALVES, {half_of(ctx.party): half}, shape, ring, algebra)
    return a, b


def _bits_of(ctx: Context, entered: Entered, shape: Shape, width: int) -> BShare:
    extents = (width, plane_words(int(np.prod(shape, dtype=int))))
    return ctx.bits(shape, *held(ctx, [entered], extents, Z64, Algebra.XOR))


@verbs.addends.of(
    NAME,
    "Dalskov, Escudero and Keller 2021: two numbers that two parties each know",
    Cost(rounds=1, sent=ENTERS * size.width * plane(size.elements)),
)
async def addends(ctx: Context, x: AShare, *, width: int) -> tuple[BShare, BShare]:
    """The bits of both halves are entered jointly."""
    ctx.own(x)
    return await _bits_of_halves(ctx, x.shape, known_half(x), width)


@verbs.alike.of(
    NAME,
    "x = a + b is zero where a and -b have the same bits",
    Cost(rounds=1, sent=ENTERS * size.ring_bits * plane(size.elements)),
)
async def alike(ctx: Context, x: AShare) -> tuple[BShare, BShare]:
    """As addends, with the bits of -b."""
    ctx.own(x)
    half = known_half(x)
    return await _bits_of_halves(ctx, x.shape, np.negative(half) if half_of(ctx.party) else half, x.ring.bits)


async def _bits_of_halves(ctx: Context, shape: Shape, half: Words, width: int) -> tuple[BShare, BShare]:
    planes = component_bits(half, width)
    a, b = await _enter_halves(ctx, planes, planes.shape, Z64, Algebra.XOR)
    return _bits_of(ctx, a, shape, width), _bits_of(ctx, b, shape, width)


@verbs.from_bits.of(
    NAME,
    "bit injection: Mohassel and Rindal 2018, between two halves",
    Cost(rounds=2, sent=(ENTERS * size.width + 1) * (size.elements * size.ring_bits // 8)),
)
async def from_bits(ctx: Context, x: BShare, *, ring: Ring) -> AShare:
    """A bit is c ^ d = c + d - 2cd with c = x_0 ^ x_1 and d = x_2 ^ x_3: enter both, then the weighted sum of cd."""
    ctx.own(x)
    count, width = x.size, x.width
    weights = np.left_shift(1, np.arange(width, dtype=np.uint64), dtype=np.uint64).astype(ring.dtype)
    bits = unpack_bits(known_half(x), count).astype(ring.dtype)
    c, d = await _enter_halves(ctx, bits, bits.shape, ring, Algebra.ADD)

    def weighed(words: Words) -> Words:
        return words[0] if width == 1 else np.asarray(weights @ words)

    def times(left: Words, right: Words) -> Words:
        return weighed(left * right)

    terms = crossed(ctx, [(c, d)], times)
    both = ctx.share(*await _enter_crossed(ctx.step("second"), terms, (count,), ring, Algebra.ADD))
    either = ctx.share(*held(ctx, [c, d], bits.shape, ring, Algebra.ADD)).map(weighed)
    result: AShare = either - both * 2
    return result.reshape(*x.shape)


async def _enter_crossed(
    ctx: Context, terms: Mapping[int, Words], shape: Shape, ring: Ring, algebra: Algebra
) -> tuple[Words, ...]:
    return held(ctx, await enter(ctx, CROSSED, terms, shape, ring, algebra), shape, ring, algebra)


@verbs.lift.of(
    NAME,
    "exact share conversion: carries counted, as in Dalskov, Escudero and Keller 2019",
    Cost(
        rounds=4 + log2(size.ring_bits),
        sent=(2 * ENTERS + 1) * (size.elements * size.target_bits // 8)
        + ((1 + ENTERS) * size.ring_bits + (1 + LATTER) * carry_ands(size.ring_bits)) * plane(size.elements),
    ),
)
async def lift(ctx: Context, x: AShare, *, ring: Ring, modulo: Ring | None = None) -> AShare:
    """Over the integers x = a + b - 2^k (carry out of a + b), with a and b read as they stand."""
    ctx.own(x)
    source = lifted_from(x, ring, modulo)
    k = source.bits
    half = source.reduce(known_half(x))
    planes = component_bits(half, k)
    low, wide = await together(
        _enter_halves(ctx.step("halves"), planes, planes.shape, Z64, Algebra.XOR),
        _enter_halves(ctx.step("wide"), half.astype(ring.dtype), x.shape, ring, Algebra.ADD),
    )
    terms = crossed(ctx, [low], np.bitwise_and)
    both = ctx.bits(x.shape, *await _enter_crossed(ctx.step("generate"), terms, planes.shape, Z64, Algebra.XOR))
    either = ctx.bits(x.shape, *held(ctx, low, planes.shape, Z64, Algebra.XOR))
    overflow = await carry(ctx.step("carry"), both, either)
    counted = await from_bits(ctx.step("ring"), overflow, ring=ring)
    total: AShare = ctx.share(*held(ctx, wide, x.shape, ring, Algebra.ADD)) - counted * (1 << k)
    return total
