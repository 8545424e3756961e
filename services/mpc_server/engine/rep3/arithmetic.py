"""Input of arithmetic shares, multiplication and its matrix forms."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from caps.errors import ShareError, party_name
from caps.shares.ring import Ring, Words, ring_of
from services.mpc_server.engine import size, verbs
from services.mpc_server.engine.context import Context
from services.mpc_server.engine.cost import FIRST, Cost
from services.mpc_server.engine.kernels import matmul_mod
from services.mpc_server.engine.products import combinations
from services.mpc_server.engine.rep3.local import (
    DEVIATIONS,
    NAME,
    following,
    grams,
    masks,
    previous,
    products,
    sent_back,
)
from services.mpc_server.engine.shares import AShare, Indices, Shape, Summands
from services.mpc_server.engine.verbs import Coins

_OF_ELEMENTS = Cost(rounds=1, sent=size.elements * size.ring_bits // 8)


@verbs.reshare.of(NAME, "Araki et al. 2016, section 3.3: a sum of products costs one", _OF_ELEMENTS)
async def reshare(ctx: Context, summands: Summands) -> AShare:
    """Each party's summand, masked with its part of zero, is its new component; the previous party receives it too."""
    (local,) = summands.parts
    return await masked(ctx, local)


async def masked(ctx: Context, local: Words) -> AShare:
    """The same for this party's summand as words."""
    mine, next_ = masks(ctx, local.shape, ring_of(local))
    return ctx.share(*await sent_back(ctx, np.asarray(local + (mine - next_))))


@verbs.gram_cells.of(NAME, "CaPS Protocol 2, as a product of one-hot columns (docs/adr/0003)", _OF_ELEMENTS)
async def gram_cells(
    ctx: Context, first: AShare, *others: AShare, cells: tuple[Indices, Indices], modulo: Ring
) -> AShare:
    """Each party's summand is Gram(x_i + x_{i+1}) - Gram(x_{i+1}); only the entries that are wanted are sent."""
    ctx.own(first, *others)
    both, theirs = grams(ctx.workers, (first, *others), modulo)
    return await masked(ctx, both[cells] - theirs[cells])


@verbs.cross_cells.of(NAME, "CaPS Protocol 11, as a product of columns (docs/adr/0003)", _OF_ELEMENTS)
async def cross_cells(ctx: Context, x: AShare, y: AShare, *, cells: tuple[Indices, Indices], modulo: Ring) -> AShare:
    """Like `multiply`, with products of matrices; only the entries that are wanted are sent."""
    ctx.own(x, y)

    def times(left: Words, right: Words) -> Words:
        return matmul_mod(left.T, right, modulo=modulo)

    return await reshare(ctx, products(x, y, times=times).map(lambda product: product[cells]))


@verbs.bit_deviations.of(NAME, "squares as in Prio (2017), combined as by Freivalds 1977", _OF_ELEMENTS)
async def bit_deviations(
    ctx: Context,
    x: AShare,
    *,
    spread: Callable[[Words, Words], Words],
    columns: int,
    row_coins: Callable[[int, int], Coins],
    column_coins: Coins,
    modulo: Ring,
) -> AShare:
    """Squares are sums of products, so the combinations alone are reshared."""
    ctx.own(x)
    (local,) = combinations(
        ctx.workers,
        x,
        DEVIATIONS,
        spread=spread,
        columns=columns,
        row_coins=row_coins,
        column_coins=column_coins,
    )
    local <<= modulo.spare
    return await masked(ctx, local)


@verbs.share_from.of(
    NAME,
    "Araki et al. 2016, PRSS input by one party",
    Cost(rounds=1, sent=FIRST * size.elements * size.ring_bits // 8),
)
async def share_from(ctx: Context, values: Words | None, *, dealer: int, shape: Shape, ring: Ring) -> AShare:
    """The dealer's component comes from a key it shares with the previous party; what is left goes to the next."""
    zero = np.zeros(shape, ring.dtype)
    if ctx.party == dealer:
        if values is None or values.shape != shape or values.dtype != ring.dtype:
            raise ShareError(f"the dealer {party_name(dealer)} must give {shape} elements of {ring!r}")
        mine = ctx.prss.component(dealer, ctx.path + b"#input", shape, ring)
        rest = values - mine
        await ctx.exchange([(following(ctx.party), rest)], [])
        return ctx.share(mine, rest)
    if previous(ctx.party) == dealer:
        (rest_bytes,) = await ctx.exchange([], [(dealer, zero.nbytes)])
        return ctx.share(np.frombuffer(rest_bytes, ring.dtype).reshape(shape), zero)
    await ctx.exchange([], [])
    return ctx.share(zero, ctx.prss.component(dealer, ctx.path + b"#input", shape, ring))


@verbs.multiply.of(NAME, "CaPS App. A, pi_MUL; Araki et al. 2016", _OF_ELEMENTS)
async def multiply(ctx: Context, x: AShare, y: AShare) -> AShare:
    """Each party multiplies its components, masks the result and sends it back."""
    ctx.own(x, y)
    same(x, y)
    return await reshare(ctx, products(x, y))


@verbs.dot.of(NAME, "Araki et al. 2016, section 3.3: a sum of products costs one", _OF_ELEMENTS)
async def dot(ctx: Context, x: AShare, y: AShare) -> AShare:
    """Like `multiply`, but summed before it is sent."""
    ctx.own(x, y)
    same(x, y)
    dtype = x.ring.dtype

    def inner(left: Words, right: Words) -> Words:
        return np.asarray(np.einsum("...i,...i->...", left, right, dtype=dtype))

    return await reshare(ctx, products(x, y, times=inner))


@verbs.matmul.of(
    NAME, "CaPS section 3; Araki et al. 2016", Cost(rounds=1, sent=size.rows * size.columns * size.ring_bits // 8)
)
async def matmul(ctx: Context, x: AShare, y: AShare) -> AShare:
    """Like `multiply`, with exact products of integer matrices."""
    ctx.own(x, y)
    if len(x.shape) != 2 or len(y.shape) != 2 or x.shape[1] != y.shape[0] or x.ring != y.ring:
        raise ShareError(f"{x!r} and {y!r} cannot be multiplied as matrices")
    return await reshare(ctx, products(x, y, times=matmul_mod))


@verbs.gram.of(
    NAME,
    "CaPS Protocol 2, as a product of one-hot columns (docs/adr/0003)",
    Cost(rounds=1, sent=size.columns * (size.columns + 1) // 2 * size.ring_bits // 8),
)
async def gram(ctx: Context, x: AShare) -> AShare:
    """Each party's summand is Gram(x_i + x_{i+1}) - Gram(x_{i+1}); of the symmetric result one triangle is sent."""
    ctx.own(x)
    if len(x.shape) != 2:
        raise ShareError(f"gram needs a matrix, not {x!r}")
    width = x.shape[1]
    both, theirs = grams(ctx.workers, [x], x.ring)
    upper = np.triu_indices(width)
    triangle = await masked(ctx, both[upper] - theirs[upper])
    both = np.empty((width, width), np.intp)
    both[upper] = both.T[upper] = np.arange(len(upper[0]))
    return triangle[both]


def same(x: AShare, y: AShare) -> None:
    """Refuse arrays that cannot be multiplied element by element."""
    if x.shape != y.shape or x.ring != y.ring:
        raise ShareError(f"{x!r} and {y!r} differ in shape or ring")
