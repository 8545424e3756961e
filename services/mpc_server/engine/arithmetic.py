"""Protocols on arithmetic shares: input, multiplication and its matrix forms, opening."""

from __future__ import annotations

import hashlib

import numpy as np

from caps.errors import PeerViolation, ShareError, party_name
from caps.shares.ring import Ring, Words
from services.mpc_server.engine import size
from services.mpc_server.engine.context import Context
from services.mpc_server.engine.cost import FIRST, Cost, plane
from services.mpc_server.engine.kernels import gram_mod, matmul_mod
from services.mpc_server.engine.registry import protocol
from services.mpc_server.engine.shares import AShare, BShare, Shape, bits_of

DIGEST_BYTES = 16


async def reshare(ctx: Context, summand: Words) -> AShare:
    """From one summand per party to a replicated sharing. The summand must already carry a share of zero."""
    (theirs,) = await ctx.exchange([(ctx.previous, summand)], [(ctx.next, summand.nbytes)])
    return ctx.share(summand, np.frombuffer(theirs, summand.dtype).reshape(summand.shape))


@protocol(
    "Araki et al. 2016, PRSS input by one party", rep3=Cost(rounds=1, sent=FIRST * size.elements * size.ring_bits // 8)
)
async def share_from(ctx: Context, values: Words | None, *, dealer: int, shape: Shape, ring: Ring) -> AShare:
    """[[values]], where `values` is known to party `dealer` (and is None elsewhere).

    The dealer's component comes from a key it shares with the previous party; what is left goes to the next.
    The declared bytes are the dealer's; here the dealer is S1.

    Pre-conditions: shape and ring are public and equal at all parties.
    Leaks: nothing.
    """
    zero = np.zeros(shape, ring.dtype)
    if ctx.party == dealer:
        if values is None or values.shape != shape or values.dtype != ring.dtype:
            raise ShareError(f"the dealer {party_name(dealer)} must give {shape} elements of {ring!r}")
        mine = ctx.prss.mine_only(ctx.path + b"#input", shape, ring)
        rest = values - mine
        await ctx.exchange([(ctx.next, rest)], [])
        return ctx.share(mine, rest)
    if ctx.previous == dealer:
        (rest_bytes,) = await ctx.exchange([], [(dealer, zero.nbytes)])
        return ctx.share(np.frombuffer(rest_bytes, ring.dtype).reshape(shape), zero)
    await ctx.exchange([], [])
    return ctx.share(zero, ctx.prss.next_only(ctx.path + b"#input", shape, ring))


@protocol("CaPS App. A, pi_MUL; Araki et al. 2016", rep3=Cost(rounds=1, sent=size.elements * size.ring_bits // 8))
async def multiply(ctx: Context, x: AShare, y: AShare) -> AShare:
    """[[x * y]], elementwise, modulo 2^k.

    Pre-conditions: x and y have one shape and one ring.
    Leaks: nothing.
    """
    ctx.own(x, y)
    _same(x, y)
    local = x.mine * (y.mine + y.next)
    local += x.next * y.mine
    local += ctx.zeros(x.shape, x.ring)
    return await reshare(ctx, local)


@protocol(
    "Araki et al. 2016, section 3.3: a sum of products costs one",
    rep3=Cost(rounds=1, sent=size.elements * size.ring_bits // 8),
)
async def dot(ctx: Context, x: AShare, y: AShare) -> AShare:
    """[[sum over the last axis of x * y]], modulo 2^k; n counts the sums, however long they are.

    Pre-conditions: x and y have one shape and one ring.
    Leaks: nothing.
    """
    ctx.own(x, y)
    _same(x, y)
    dtype = x.mine.dtype
    local = np.einsum("...i,...i->...", x.mine, y.mine + y.next, dtype=dtype)
    local = np.asarray(local + np.einsum("...i,...i->...", x.next, y.mine, dtype=dtype))
    return await reshare(ctx, local + ctx.zeros(local.shape, x.ring))


@protocol("CaPS section 3; Araki et al. 2016", rep3=Cost(rounds=1, sent=size.rows * size.columns * size.ring_bits // 8))
async def matmul(ctx: Context, x: AShare, y: AShare) -> AShare:
    """[[x @ y]] of matrices, modulo 2^k; only the r x c result crosses the network.

    Pre-conditions: x is r x m and y is m x c, in one ring.
    Leaks: nothing.
    """
    ctx.own(x, y)
    if len(x.shape) != 2 or len(y.shape) != 2 or x.shape[1] != y.shape[0] or x.ring != y.ring:
        raise ShareError(f"{x!r} and {y!r} cannot be multiplied as matrices")
    local = matmul_mod(x.mine, y.mine + y.next)
    local += matmul_mod(x.next, y.mine)
    return await reshare(ctx, local + ctx.zeros(local.shape, x.ring))


@protocol(
    "CaPS Protocol 2, as a product of one-hot columns (docs/adr/0003)",
    rep3=Cost(rounds=1, sent=size.columns * (size.columns + 1) // 2 * size.ring_bits // 8),
)
async def gram(ctx: Context, x: AShare) -> AShare:
    """[[x^T x]] of a matrix with w columns, modulo 2^k: for one-hot columns, every two-way marginal at once.

    Each party's summand is Gram(x_i + x_{i+1}) - Gram(x_{i+1}); of the symmetric result one triangle is sent.

    Pre-conditions: x is a matrix. Counts are exact while they are below 2^k; `lift` then takes them to Z_2^64.
    Leaks: nothing.
    """
    ctx.own(x)
    if len(x.shape) != 2:
        raise ShareError(f"gram takes a matrix, not {x!r}")
    width = x.shape[1]
    local = gram_mod(x.mine, x.next) - gram_mod(x.next)
    upper = np.triu_indices(width)
    triangle = await reshare(ctx, local[upper] + ctx.zeros((len(upper[0]),), x.ring))
    both = np.empty((width, width), np.intp)
    both[upper] = both.T[upper] = np.arange(len(upper[0]))
    return triangle[both]


@protocol(
    "CaPS section 2; opening with a check of the replicated copy",
    rep3=Cost(rounds=1, sent=size.elements * size.ring_bits // 8 + 16),
)
async def reveal(ctx: Context, x: AShare) -> Words:
    """x itself, at every party. The component a party lacks comes from one holder, its digest from the other.

    A message that was changed on its way, here or in the multiplication that made x, is noticed: the two holders
    then disagree.

    Pre-conditions: x may be known to all parties: it is public, or it carries its differential-privacy noise.
    Leaks: x, to every party. That is its purpose.
    """
    ctx.own(x)
    missing = await _open(ctx, x.mine, x.next)
    return x.mine + x.next + missing


@protocol("as reveal, for XOR shares", rep3=Cost(rounds=1, sent=size.width * plane(size.elements) + 16))
async def reveal_bits(ctx: Context, x: BShare, *, ring: Ring) -> Words:
    """The w-bit elements of x as words of `ring`, at every party.

    Pre-conditions: x may be known to all parties, and w <= k.
    Leaks: x, to every party. That is its purpose.
    """
    ctx.own(x)
    if x.width > ring.bits:
        raise ShareError(f"{x.width} bits do not fit in {ring!r}")
    missing = await _open(ctx, x.mine, x.next)
    return bits_of(x.mine ^ x.next ^ missing, x.shape, ring)


async def _open(ctx: Context, mine: Words, next_: Words) -> Words:
    digest = np.frombuffer(_digest(next_), np.uint8)
    words, claimed = await ctx.exchange(
        [(ctx.next, mine), (ctx.previous, digest)], [(ctx.previous, mine.nbytes), (ctx.next, DIGEST_BYTES)]
    )
    missing = np.frombuffer(words, mine.dtype).reshape(mine.shape)
    if _digest(missing) != bytes(claimed):
        raise PeerViolation(
            ctx.previous,
            f"opened words at step {ctx.path.decode() or '/'} do not match the digest that {party_name(ctx.next)} "
            "holds of them: a message of one of the two was altered",
        )
    return missing


def _digest(words: Words) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(words).data, digest_size=DIGEST_BYTES).digest()


def _same(x: AShare, y: AShare) -> None:
    if x.mine.shape != y.mine.shape or x.mine.dtype != y.mine.dtype:
        raise ShareError(f"{x!r} and {y!r} differ in shape or ring")
