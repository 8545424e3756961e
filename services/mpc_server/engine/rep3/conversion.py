"""From arithmetic shares to bits and back, from a small ring to a large one, and division by powers of two.

All rest on one observation: of x = x_0 + x_1 + x_2, party S1 knows a = x_0 + x_1 and the others both know b = x_2. So x
is a sum of two numbers, and one party's message makes its bits shared.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from caps.errors import DomainError
from caps.shares.ring import PLANE, Ring, Words, plane_words, unpack_bits
from services.mpc_server.engine import size, verbs
from services.mpc_server.engine.boolean import carry, carry_ands
from services.mpc_server.engine.context import Context, together
from services.mpc_server.engine.cost import FIRST, Cost, log2, plane
from services.mpc_server.engine.rep3.arithmetic import share_from
from services.mpc_server.engine.rep3.boolean import bits_known_to_two, conjunction, share_bits_from
from services.mpc_server.engine.rep3.local import NAME
from services.mpc_server.engine.shares import AShare, BShare, Shape, component_bits, lifted_from, stack_planes


def halves(ctx: Context, x: AShare) -> tuple[Words | None, Words | None]:
    """x = a + b: a = x_0 + x_1 at S1 (None elsewhere), b = x_2 at S2 and S3 (None at S1)."""
    mine, next_ = x.components
    if ctx.party == 0:
        return mine + next_, None
    return None, next_ if ctx.party == 1 else mine


def second_half(ctx: Context, b: Words) -> AShare:
    """[[b]] of a number that S2 and S3 know, as component 2; S1 passes zeros."""
    zero = np.zeros_like(b)
    return ctx.share(b if ctx.party == 2 else zero, b if ctx.party == 1 else zero)


@verbs.addends.of(
    NAME,
    "Mohassel and Rindal 2018, with one input fewer",
    Cost(rounds=1, sent=FIRST * size.width * plane(size.elements)),
)
async def addends(ctx: Context, x: AShare, *, width: int) -> tuple[BShare, BShare]:
    """S1 sends the bits of a; those of b are known to the two that hold it."""
    ctx.own(x)
    return await _bits_ofhalves(ctx, x, width, opposite=False)


@verbs.alike.of(
    NAME,
    "x = a + b is zero where a and -b have the same bits",
    Cost(rounds=1, sent=FIRST * size.ring_bits * plane(size.elements)),
)
async def alike(ctx: Context, x: AShare) -> tuple[BShare, BShare]:
    """As addends, with the bits of -b."""
    ctx.own(x)
    return await _bits_ofhalves(ctx, x, x.ring.bits, opposite=True)


async def _bits_ofhalves(ctx: Context, x: AShare, width: int, *, opposite: bool) -> tuple[BShare, BShare]:
    a, b = halves(ctx, x)
    if b is not None and opposite:
        b = np.negative(b)
    empty = np.zeros((width, plane_words(x.size)), PLANE)
    shared_a = await share_bits_from(
        ctx, None if a is None else component_bits(a, width), dealer=0, width=width, shape=x.shape
    )
    shared_b = bits_known_to_two(ctx, 2, empty if b is None else component_bits(b, width), x.shape)
    return shared_a, shared_b


@verbs.from_bits.of(
    NAME,
    "bit injection: Mohassel and Rindal 2018, the first product made local",
    Cost(rounds=2, sent=(FIRST * (size.width - 1) + 1) * size.elements * size.ring_bits // 8),
)
async def from_bits(ctx: Context, x: BShare, *, ring: Ring) -> AShare:
    """A bit is c ^ d = c + d - 2cd with c = x_0 ^ x_1 known to S1 and d = x_2 known to S2 and S3.

    S1 shares c; the products with d are then local, and the weighted sum over the bits is reshared once.
    """
    return (await inject(ctx, x, ring)).result


class Injection(NamedTuple):
    """What a party knows of the messages of `from_bits`, and its share of the result.

    dealt: [[c]], bit by bit. masks: of the weighted sums over the bits of c_0 d, which S3 sends to S2, and of c_1 d,
    which S2 sends to S3; as components 0 and 1. rests: what they send, each masked; S1 knows neither.
    """

    result: AShare
    dealt: AShare
    masks: AShare
    rests: tuple[Words, Words] | None


def bit_weights(width: int, ring: Ring) -> Words:
    """What bits count, lowest first."""
    return np.left_shift(1, np.arange(width, dtype=np.uint64), dtype=np.uint64).astype(ring.dtype)


async def inject(ctx: Context, x: BShare, ring: Ring) -> Injection:
    """`from_bits`, with what was sent."""
    ctx.own(x)
    x_mine, x_next = x.components
    shape, count, width = x.shape, x.size, x.width
    extents = (width, count)
    weights = bit_weights(width, ring)
    word_bytes = count * ring.itemsize

    def drawn(component: int, name: bytes, drawn_shape: Shape) -> Words:
        """A mask that the two holders of a component know."""
        return ctx.prss.component(component, ctx.path + name, drawn_shape, ring)

    def weigh(values: Words) -> Words:
        return np.asarray(weights @ values)

    def values_of(planes: Words) -> Words:
        return unpack_bits(planes, count).astype(ring.dtype)

    second = ctx.step("second")
    # Zeros that are never touched take no memory.
    none, no_sum = np.zeros(extents, ring.dtype), np.zeros(count, ring.dtype)
    rests = None
    if ctx.party == 0:
        c_0 = drawn(0, b"#c", extents)
        c_1 = values_of(x_mine ^ x_next) - c_0
        mask_0, mask_1 = drawn(0, b"#product0", (count,)), drawn(1, b"#product1", (count,))
        await ctx.exchange([(1, c_1)], [])
        await second.exchange([], [])
        dealt, masks = ctx.share(c_0, c_1), ctx.share(mask_0, mask_1)
        result = ctx.share(weigh(c_0) - 2 * mask_0, weigh(c_1) - 2 * mask_1)
    elif ctx.party == 1:
        d = values_of(x_next)
        mask_1 = drawn(1, b"#product1", (count,))
        c_bytes, rest_bytes = await ctx.exchange([], [(0, width * word_bytes), (2, word_bytes)])
        c_1 = np.frombuffer(c_bytes, ring.dtype).reshape(extents)
        rests = np.frombuffer(rest_bytes, ring.dtype), weigh(c_1 * d) - mask_1
        await second.exchange([(2, rests[1])], [])
        dealt, masks = ctx.share(c_1, none), ctx.share(mask_1, no_sum)
        result = ctx.share(weigh(c_1) - 2 * mask_1, weigh(d) - 2 * (rests[0] + rests[1]))
    else:
        d = values_of(x_mine)
        c_0, mask_0 = drawn(0, b"#c", extents), drawn(0, b"#product0", (count,))
        rest_0 = weigh(c_0 * d) - mask_0
        await ctx.exchange([(1, rest_0)], [])
        (rest_bytes,) = await second.exchange([], [(1, word_bytes)])
        rests = rest_0, np.frombuffer(rest_bytes, ring.dtype)
        dealt, masks = ctx.share(none, c_0), ctx.share(no_sum, mask_0)
        result = ctx.share(weigh(d) - 2 * (rests[0] + rests[1]), weigh(c_0) - 2 * mask_0)
    return Injection(result.reshape(*shape), dealt, masks, rests)


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
    """Over the integers x = a + b - 2^k (carry out of a + b), with a and b of `halves` read as they stand."""
    ctx.own(x)
    source = lifted_from(x, ring, modulo)
    k = source.bits
    a, b = halves(ctx, x)
    wide_a = None if a is None else source.reduce(a).astype(ring.dtype)
    (low_a, low_b), shared_a = await together(
        addends(ctx.step("halves"), x, width=k),
        share_from(ctx.step("a"), wide_a, dealer=0, shape=x.shape, ring=ring),
    )
    generate = await conjunction(ctx.step("generate"), low_a, low_b)
    overflow = await carry(ctx.step("carry"), generate, low_a ^ low_b)
    counted = await from_bits(ctx.step("ring"), overflow, ring=ring)
    zero = np.zeros(x.shape, ring.dtype)
    shared_b = second_half(ctx, zero if b is None else source.reduce(b).astype(ring.dtype))
    total: AShare = shared_a + shared_b - counted * (1 << k)
    return total


@verbs.truncate.of(
    NAME,
    "CaPS section 2: deterministic truncation of Dalskov, Escudero and Keller 2019",
    Cost(
        rounds=4 + log2(size.dropped_bits),
        sent=(2 + FIRST) * size.elements * size.ring_bits // 8
        + ((1 + FIRST) * (size.dropped_bits + 1) + carry_ands(size.dropped_bits)) * plane(size.elements),
    ),
)
async def truncate(ctx: Context, x: AShare, *, bits: int) -> AShare:
    """With x + 2^(k-2) = a + b modulo 2^k, the quotient is a >> f plus b >> f plus a carry minus an overflow.

    The carry is that out of the f low bits; the overflow, of the whole sum, is the OR of the top bits because the sum
    is below 2^(k-1).
    """
    ctx.own(x)
    ring, k = x.ring, x.ring.bits
    if not 1 <= bits <= k - 2:
        raise DomainError(f"a number of {k} bits cannot be truncated by {bits}")
    offset = x + (1 << (k - 2))
    a, b = halves(ctx, offset)

    def dropped_and_top(half: Words | None) -> Words | None:
        if half is None:
            return None
        planes = component_bits(half, k)
        return np.concatenate([planes[:bits], planes[k - 1 :]])

    shift = ring.dtype.type(bits)
    planes_a, planes_b = dropped_and_top(a), dropped_and_top(b)
    empty = np.zeros((bits + 1, plane_words(x.size)), PLANE)
    bits_a, quotient_a = await together(
        share_bits_from(ctx.step("halves"), planes_a, dealer=0, width=bits + 1, shape=x.shape),
        share_from(ctx.step("quotient"), None if a is None else a >> shift, dealer=0, shape=x.shape, ring=ring),
    )
    bits_b = bits_known_to_two(ctx, 2, empty if planes_b is None else planes_b, x.shape)
    both = await conjunction(ctx.step("generate"), bits_a, bits_b)
    either = bits_a ^ bits_b
    low, top = slice(0, bits), slice(bits, None)
    carried = await carry(ctx.step("carry"), both.planes(low), either.planes(low))
    overflowed = both.planes(top) ^ either.planes(top)
    carries = stack_planes([carried, overflowed])
    carried_in_ring, overflowed_in_ring = await together(
        from_bits(ctx.step("carried"), carries.planes(slice(0, 1)), ring=ring),
        from_bits(ctx.step("overflowed"), carries.planes(slice(1, 2)), ring=ring),
    )
    quotient_b = second_half(ctx, np.zeros(x.shape, ring.dtype) if b is None else np.asarray(b >> shift))
    total: AShare = quotient_a + quotient_b + carried_in_ring - overflowed_in_ring * (1 << (k - bits))
    return total - (1 << (k - 2 - bits))
