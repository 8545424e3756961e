"""From arithmetic shares to bits and back, and from a small ring to a large one.

As in `engine.rep3`, S1 knows a = x_0 + x_1, and what it deals of it makes the bits of a shared. A bit of a sum is no
simple function of what S2 knows and what S3 knows, but a carry is one of them and of the carry before: c_{j+1} is the
majority of bit j of x_0, bit j of x_1, and c_j. So S1 deals the carries, in two parts: S3 has one from the key of
component 0, S2 receives the other. The bits of a = x_0 ^ x_1 ^ c follow locally.
"""

from __future__ import annotations

import numpy as np

from caps.shares.ring import Ring, Words, unpack_bits
from services.mpc_server.engine import size, verbs
from services.mpc_server.engine.boolean import carry, carry_ands
from services.mpc_server.engine.context import Context, together
from services.mpc_server.engine.cost import FIRST, Cost, log2, plane
from services.mpc_server.engine.rep3.arithmetic import share_from
from services.mpc_server.engine.rep3.boolean import share_bits_from
from services.mpc_server.engine.rep3.conversion import Injection, bit_weights, inject
from services.mpc_server.engine.rep3_active.boolean import conjunction
from services.mpc_server.engine.rep3_active.local import NAME, claims, component
from services.mpc_server.engine.shares import AShare, BShare, component_bits, lifted_from

_DEALER = 0
_FIRST, _SECOND = (0, 1), (2,)
"""The components that a and b are made of: a is known to the dealer, b to the others."""


@verbs.addends.of(
    NAME,
    "Mohassel and Rindal 2018, with one input fewer, and carries in place of bits",
    Cost(rounds=1, sent=FIRST * (size.width - 1) * plane(size.elements)),
)
async def addends(ctx: Context, x: AShare, *, width: int) -> tuple[BShare, BShare]:
    """S1 deals all carries but the lowest, which is 0; the bits of b are known to the two that hold it."""
    ctx.own(x)
    dealt = None if ctx.party != _DEALER else _carries(x, width)[:-1]
    carries = await share_bits_from(ctx, dealt, dealer=_DEALER, width=width - 1, shape=x.shape)
    a = _sum_bits(ctx, x, carries, width)
    await ctx.guard.settle()
    return a, _component_bits(ctx, x, _SECOND, width)


@verbs.alike.of(
    NAME,
    "x = a + b is zero where a and -b have the same bits",
    Cost(rounds=1, sent=FIRST * (size.ring_bits - 1) * plane(size.elements)),
)
async def alike(ctx: Context, x: AShare) -> tuple[BShare, BShare]:
    """As addends, with the bits of -b."""
    a, _ = await addends(ctx, x, width=x.ring.bits)
    return a, _component_bits(ctx, -x, _SECOND, x.ring.bits)


def _carries(x: AShare, width: int) -> Words:
    """The planes of the carries c_1, ..., c_w of a = x_0 + x_1; the last one is that out of w bits. At S1."""
    one, other = (component_bits(words, width) for words in x.components)
    mine, next_ = x.components
    planes = np.empty_like(one)
    planes[:-1] = component_bits(mine ^ next_ ^ (mine + next_), width)[1:]
    into_top = planes[-2] if width > 1 else np.zeros_like(planes[0])
    planes[-1] = (one[-1] & other[-1]) ^ (into_top & (one[-1] ^ other[-1]))
    return planes


def _sum_bits(ctx: Context, x: AShare, carries: BShare, width: int) -> BShare:
    """[[the w lowest bits of a]] from those carries that were dealt, which are claimed.

    Bit by bit, let c = cl ^ cr be the carry, A = x_0 ^ cl on the left and B = x_1 ^ cr on the right. The next carry is
    (x_0 ^ c)(x_1 ^ c) ^ c = (A ^ cr)(B ^ cl) ^ cl ^ cr, so if it is dealt as cl' ^ cr', the claim is
    A B ^ cl cr ^ (A cl ^ cl ^ cl') ^ (B cr ^ cr ^ cr') = 0.
    """

    def from_zero(planes: Words) -> Words:
        return np.concatenate([np.zeros_like(planes, shape=(1, planes.shape[1])), planes])

    every = carries.map(from_zero)
    a = _component_bits(ctx, x, _FIRST, width) ^ every.planes(slice(0, width))

    def side(number: int) -> tuple[Words, Words, Words] | tuple[None, None, None]:
        sums, dealt = component(a, number), component(every, number)
        if sums is None or dealt is None:
            return None, None, None
        sums, before = sums[: carries.width], dealt[:-1]
        added = sums & before
        added ^= before
        added ^= dealt[1:]
        return sums, before, added

    if carries.width:
        (left, left_carries, e), (right, right_carries, f) = side(0), side(1)
        claims(ctx).bits(_DEALER, a=left, b=right, c=left_carries, d=right_carries, e=e, f=f)
    return a


def _component_bits(ctx: Context, x: AShare, numbers: tuple[int, ...], width: int) -> BShare:
    """The w lowest bits of some components, as those components of bits; the others are zero. Local."""
    held = zip(ctx.scheme.held[ctx.party], x.components, strict=True)
    kept = (words if number in numbers else np.zeros_like(words) for number, words in held)
    return ctx.bits(x.shape, *(component_bits(words, width) for words in kept))


@verbs.from_bits.of(
    NAME,
    "bit injection: Mohassel and Rindal 2018, the first product made local",
    Cost(rounds=2, sent=(FIRST * (size.width - 1) + 1) * size.elements * size.ring_bits // 8),
)
async def from_bits(ctx: Context, x: BShare, *, ring: Ring) -> AShare:
    """As in `engine.rep3`, where a bit is c ^ d: every message is a sum of products of numbers that two parties know.

    What S1 deals as c_0 + c_1 is x_0 ^ x_1 = x_0 + x_1 - 2 x_0 x_1. S3 sends the weighted sum of d c_0, and S2 that of
    c_1 d, minus a mask that S1 knows.
    """
    found = await inject(ctx, x, ring)
    _claim_injection(ctx, x, found, ring)
    await ctx.guard.settle()
    return found.result


def _claim_injection(ctx: Context, x: BShare, found: Injection, ring: Ring) -> None:
    x_0, x_1, d = (_values(component(x, number), x.size) for number in range(3))
    c_0, c_1 = (component(found.dealt, number) for number in (0, 1))
    mask_0, mask_1 = (component(found.masks, number) for number in (0, 1))
    rest_0, rest_1 = found.rests or (None, None)
    weights = bit_weights(x.width, ring)[:, None]
    file = claims(ctx).words
    file(
        0,
        bits=ring.bits,
        lefts=None if x_0 is None else (x_0.reshape(-1),),
        rights=None if x_1 is None else ((2 * x_1).astype(ring.dtype).reshape(-1),),
        e=None if c_0 is None or x_0 is None else (c_0 - x_0).reshape(-1),
        f=None if c_1 is None or x_1 is None else (c_1 - x_1).reshape(-1),
        left_bits=1,
    )
    file(
        1,
        bits=ring.bits,
        lefts=None if c_1 is None else tuple(c_1 * weights),
        rights=None if d is None else tuple(d),
        e=None if mask_1 is None else -mask_1,
        f=None if rest_1 is None else -rest_1,
    )
    file(
        2,
        bits=ring.bits,
        lefts=None if d is None else tuple(d),
        rights=None if c_0 is None else tuple(c_0 * weights),
        e=None if rest_0 is None else -rest_0,
        f=None if mask_0 is None else -mask_0,
        left_bits=1,
    )


def _values(planes: Words | None, count: int) -> Words | None:
    """Bits of a component, one byte each; None at the party that lacks it."""
    return None if planes is None else unpack_bits(planes, count)


@verbs.lift.of(
    NAME,
    "exact share conversion: carries counted, as in Dalskov, Escudero and Keller 2019",
    Cost(
        rounds=4 + log2(size.ring_bits),
        sent=(1 + FIRST) * size.elements * size.target_bits // 8
        + ((1 + FIRST) * size.ring_bits + carry_ands(size.ring_bits)) * plane(size.elements),
    ),
)
async def lift(ctx: Context, x: AShare, *, ring: Ring, modulo: Ring | None = None) -> AShare:
    """Over the integers x = x_0 + x_1 + x_2 - 2^k (carry out of x_0 + x_1, plus carry out of a + b).

    S1 deals the carries of x_0 + x_1, and the one out of the top also as a number o_0 + o_1 in the large ring:
    cl + cr - 2 cl cr for a carry in two parts. It sends as much as in `engine.rep3`, where it deals a and its bits.
    """
    ctx.own(x)
    source = lifted_from(x, ring, modulo)
    k = source.bits
    dealt, number = None, None
    if ctx.party == _DEALER:
        dealt = _carries(x, k)
        number = unpack_bits(dealt[-1], x.size).astype(ring.dtype).reshape(x.shape)
    carries, out = await together(
        share_bits_from(ctx.step("carries"), dealt, dealer=_DEALER, width=k, shape=x.shape),
        share_from(ctx.step("out"), number, dealer=_DEALER, shape=x.shape, ring=ring),
    )
    low_a, low_b = _sum_bits(ctx, x, carries, k), _component_bits(ctx, x, _SECOND, k)
    _claim_number(ctx, carries.planes(slice(k - 1, None)), out)
    await ctx.guard.settle()
    generate = await conjunction(ctx.step("generate"), low_a, low_b)
    overflow = await carry(ctx.step("carry"), generate, low_a ^ low_b)
    counted = await from_bits(ctx.step("ring"), overflow, ring=ring)
    wide = x.map(lambda words: source.reduce(words).astype(ring.dtype))
    total: AShare = wide - (out + counted) * (1 << k)
    return total


def _claim_number(ctx: Context, bit: BShare, number: AShare) -> None:
    """Claim that a number in two parts is a bit in two parts: o_0 + o_1 = cl + cr - 2 cl cr."""
    left, right = (_values(component(bit, one), bit.size) for one in (0, 1))
    o_0, o_1 = (component(number, one) for one in (0, 1))
    claims(ctx).words(
        _DEALER,
        bits=number.ring.bits,
        lefts=None if left is None else (left[0],),
        rights=None if right is None else ((2 * right[0]).astype(number.ring.dtype),),
        e=None if o_0 is None or left is None else o_0.reshape(-1) - left[0],
        f=None if o_1 is None or right is None else o_1.reshape(-1) - right[0],
        left_bits=1,
    )
