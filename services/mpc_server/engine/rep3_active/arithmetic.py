"""Multiplication and its matrix forms.

A party sends z_i = x_i y_i + x_i y_{i+1} + x_{i+1} y_i + m_i - m_{i+1} with masks m, for products of any kind. With
e = x_i y_i + m_i - z_i and f = -m_{i+1}, the claim is x_i y_{i+1} + x_{i+1} y_i + e + f = 0. What is sent is what is
claimed: of a product of matrices all entries, of which some are then taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from caps.errors import DomainError
from caps.shares.ring import Ring, Words, ring_of
from services.mpc_server.engine import size, verbs
from services.mpc_server.engine.context import Context
from services.mpc_server.engine.cost import Cost
from services.mpc_server.engine.jobs import Quadratic
from services.mpc_server.engine.kernels import matmul_mod
from services.mpc_server.engine.products import combinations
from services.mpc_server.engine.rep3.arithmetic import same
from services.mpc_server.engine.rep3.local import grams, masks, sent_back
from services.mpc_server.engine.rep3_active.local import NAME, by_prover, claims
from services.mpc_server.engine.rep3_active.proof.sizes import COMBINATIONS
from services.mpc_server.engine.shares import AShare, Indices
from services.mpc_server.engine.verbs import Coins

_OF_ELEMENTS = Cost(rounds=1, sent=size.elements * size.ring_bits // 8)
_DEVIATIONS = (Quadratic((1, 0), (1, 0), -1), Quadratic((0, 1), (0, 1), -1), Quadratic((2, 0), (0, 1)))
"""What each component adds to x^2 - x by itself, and twice their product."""


class Products(NamedTuple):
    """[[sums of products]], and for each of a party's components what is added to claims on them.

    e: where the component is on the left; None for the own claim, if it was left out. f: where it is on the right.
    """

    share: AShare
    e: tuple[Words | None, Words]
    f: tuple[Words, Words]


async def reshared(ctx: Context, local: Words, mine: Words | None, next_: Words) -> Products:
    """From a party's summand of a sum of products; mine, next_: that of its two components alone, x_i y_i.

    mine: may be left out for products of matrices, of which a prover need not know e.
    """
    mask_mine, mask_next = masks(ctx, local.shape, ring_of(local))
    sent, received = await sent_back(ctx, np.asarray(local + (mask_mine - mask_next)))
    # For the prover, z_i takes its mask out again.
    own = None if mine is None else np.asarray(mine - local + mask_next)
    e = own, np.asarray(next_ + mask_next - received)
    return Products(ctx.share(sent, received), e, (np.negative(mask_mine), np.negative(mask_next)))


@verbs.multiply.of(NAME, "CaPS App. A, pi_MUL; Araki et al. 2016", _OF_ELEMENTS)
async def multiply(ctx: Context, x: AShare, y: AShare) -> AShare:
    """Each party multiplies its components, masks the result and sends it back."""
    ctx.own(x, y)
    same(x, y)
    product = await multiplied(ctx, x.reshape(-1), y.reshape(-1))
    return product.reshape(*x.shape)


async def multiplied(ctx: Context, x: AShare, y: AShare, starts: Indices | None = None) -> AShare:
    """[[x * y]] of vectors, or its sums over the segments that begin at `starts`."""
    (x_mine, x_next), (y_mine, y_next) = x.components, y.components

    def summed(words: Words) -> Words:
        return words if starts is None else np.add.reduceat(words, starts, dtype=words.dtype)

    squares = summed(x_mine * y_mine), summed(x_next * y_next)
    local = x_mine * y_next
    local += x_next * y_mine
    found = await reshared(ctx, summed(local) + squares[0], *squares)
    mine, next_ = ((x_mine, y_mine), found.e[0], found.f[0]), ((x_next, y_next), found.e[1], found.f[1])
    for prover, left, right in by_prover(ctx, mine, next_):
        claims(ctx).words(
            prover,
            bits=x.ring.bits,
            lefts=left and left[0],
            rights=right and right[0][::-1],
            e=left and left[1],
            f=right and right[2],
            starts=starts,
        )
    await ctx.guard.settle()
    return found.share


@verbs.gram_cells.of(
    NAME,
    "CaPS Protocol 2, as a product of one-hot columns (docs/adr/0003)",
    Cost(rounds=1, sent=size.columns * (size.columns + 1) // 2 * size.ring_bits // 8),
)
async def gram_cells(
    ctx: Context, first: AShare, *others: AShare, cells: tuple[Indices, Indices], modulo: Ring
) -> AShare:
    """Each party's summand is Gram(x_i + x_{i+1}) - Gram(x_{i+1}), of which the upper triangle is sent."""
    parts = (first, *others)
    ctx.own(*parts)
    components = [part.components for part in parts]
    mine, next_ = ([pair[place] for pair in components] for place in (0, 1))
    width = sum(part.shape[1] for part in parts)
    upper = np.triu_indices(width)
    both, theirs = (gram[upper] for gram in grams(ctx.workers, parts, modulo))
    found = await reshared(ctx, both - theirs, None, theirs)
    for prover, left, right in by_prover(ctx, (mine, found.e[0], found.f[0]), (next_, found.e[1], found.f[1])):
        claims(ctx).gram(
            prover,
            bits=modulo.bits,
            left=left and left[0],
            right=right and right[0],
            e=left and left[1],
            f=right and right[2],
        )
    await ctx.guard.settle()
    rows, columns = cells
    return found.share[rows * width - rows * (rows + 1) // 2 + columns]


@verbs.cross_cells.of(
    NAME,
    "CaPS Protocol 11, as a product of columns (docs/adr/0003)",
    Cost(rounds=1, sent=size.rows * size.columns * size.ring_bits // 8),
)
async def cross_cells(ctx: Context, x: AShare, y: AShare, *, cells: tuple[Indices, Indices], modulo: Ring) -> AShare:
    """Each party's summand is (x_i + x_{i+1})^T (y_i + y_{i+1}) - x_{i+1}^T y_{i+1}; the whole product is sent."""
    ctx.own(x, y)
    (x_mine, x_next), (y_mine, y_next) = x.components, y.components

    def times(left: Words, right: Words) -> Words:
        return matmul_mod(left.T, right, modulo=modulo)

    theirs = times(x_next, y_next)
    found = await reshared(ctx, times(x_mine + x_next, y_mine + y_next) - theirs, None, theirs)
    mine, next_ = ((x_mine, y_mine), found.e[0], found.f[0]), ((x_next, y_next), found.e[1], found.f[1])
    for prover, left, right in by_prover(ctx, mine, next_):
        claims(ctx).matrices(
            prover,
            bits=modulo.bits,
            lefts=left and left[0],
            rights=right and right[0][::-1],
            e=left and left[1],
            f=right and right[2],
        )
    await ctx.guard.settle()
    return found.share[cells]


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
    """Squares are sums of products, so the combinations alone are reshared. They are shifted once they are shares."""
    ctx.own(x)
    x_mine, x_next = x.components
    if column_coins.shape[1] != COMBINATIONS:
        raise DomainError(f"{column_coins.shape[1]} combinations cannot be proved, but {COMBINATIONS}")
    own, theirs, cross = combinations(
        ctx.workers, x, _DEVIATIONS, spread=spread, columns=columns, row_coins=row_coins, column_coins=column_coins
    )
    found = await reshared(ctx, own + cross, own, theirs)
    for prover, left, right in by_prover(ctx, (x_mine, found.e[0], found.f[0]), (x_next, found.e[1], found.f[1])):
        claims(ctx).deviations(
            prover,
            bits=modulo.bits,
            left=None if left is None else left[0],
            right=None if right is None else right[0],
            spread=spread,
            columns=columns,
            row_coins=row_coins,
            column_coins=column_coins,
            e=left and left[1],
            f=right and right[2],
        )
    await ctx.guard.settle()
    return found.share.map(lambda words: words << words.dtype.type(modulo.spare))
