"""What a party does by itself, above all its part of products; and how products become shares."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from caps.basics.schemes import REP3
from caps.shares.ring import Ring, Words
from services.mpc_server.engine import guard as guards
from services.mpc_server.engine import verbs
from services.mpc_server.engine.context import Context
from services.mpc_server.engine.cost import Price
from services.mpc_server.engine.guard import Guard, Unguarded
from services.mpc_server.engine.kernels import BLOCK_ROWS, gram_of_parts, matmul_mod, subset_sums
from services.mpc_server.engine.registry import price
from services.mpc_server.engine.shares import AShare, BShare, Summands
from services.mpc_server.engine.verbs import Bilinear, BitForm, Coins

NAME = REP3.name
DIGEST_BYTES = 16
"""Bytes of the digest that an opening is checked with."""
price(NAME, Price(product=1, sums=True, opened=1, digest=DIGEST_BYTES))
PARTIES = REP3.parties


def following(party: int) -> int:
    """The party that also holds component `party + 1`, and the number of that component."""
    return (party + 1) % PARTIES


def previous(party: int) -> int:
    """The party that also holds component `party`."""
    return (party - 1) % PARTIES


@guards.guard.of(NAME)
def guard(ctx: Context) -> Guard:
    """Nothing is checked: servers are trusted to follow the protocol."""
    return Unguarded(ctx)


def masks(ctx: Context, shape: tuple[int, ...], ring: Ring) -> tuple[Words, Words]:
    """Two random arrays, each known to one of the peers too. Over all parties, first minus second adds up to zero.

    That difference, for planes of bits the XOR, is what masks a local product before it is sent.
    """
    mine, next_ = ctx.prss.replicated(ctx.path + b"#zero", shape, ring)
    return mine, next_


async def sent_back(ctx: Context, summand: Words) -> tuple[Words, Words]:
    """From one summand per party, already masked, to a replicated sharing: this party's and that of the next.

    The previous party receives this one's.
    """
    (theirs,) = await ctx.exchange([(previous(ctx.party), summand)], [(following(ctx.party), summand.nbytes)])
    return summand, np.frombuffer(theirs, summand.dtype).reshape(summand.shape)


@verbs.products.of(NAME)
def products(x: AShare, y: AShare, *, times: Bilinear = np.multiply) -> Summands:
    """x_i (y_i + y_{i+1}) + x_{i+1} y_i: over the three parties, all nine products of components."""
    (x_mine, x_next), (y_mine, y_next) = x.components, y.components
    local = np.asarray(times(x_mine, y_mine + y_next))
    local += times(x_next, y_mine)
    return Summands(x.owner, (local,))


def bit_products(x: BShare, y: BShare, form: BitForm) -> Words:
    """Like `products`, with XOR in place of +."""
    (x_mine, x_next), (y_mine, y_next) = x.components, y.components
    local = form.left(x_mine) & form.right(y_mine ^ y_next)
    local ^= form.left(x_next) & form.right(y_mine)
    return form.summed(local)


def gram_products(parts: Sequence[AShare], modulo: Ring) -> Words:
    """Gram(x_i + x_{i+1}) - Gram(x_{i+1})."""
    components = [share.components for share in parts]
    local = gram_of_parts(components, modulo=modulo)
    local -= gram_of_parts([(next_,) for _, next_ in components], modulo=modulo)
    return local


def deviations(
    mine: Words,
    next_: Words,
    *,
    spread: Callable[[Words, Words], Words],
    columns: int,
    row_coins: Callable[[int, int], Coins],
    column_coins: Coins,
) -> Words:
    """R (x_i (x_i + 2 x_{i+1} - 1)) C: a summand of R (x^2 - x) C.

    Rows are combined first, in blocks: their number is what costs time.
    """

    def excess(first: Words, second: Words) -> list[Words]:
        second <<= 1
        second += first
        second -= 1
        second *= first
        return [second]

    (combined,) = combinations_of(
        mine, next_, excess, spread=spread, columns=columns, row_coins=row_coins, column_coins=column_coins
    )
    return combined


def combinations_of(
    mine: Words,
    next_: Words,
    entries: Callable[[Words, Words], list[Words]],
    *,
    spread: Callable[[Words, Words], Words],
    columns: int,
    row_coins: Callable[[int, int], Coins],
    column_coins: Coins,
) -> list[Words]:
    """R V C for each V that `entries` makes of what both components are spread to; it may write to its arguments."""
    buffers = np.empty((2, columns, min(len(mine), BLOCK_ROWS)), mine.dtype)
    totals: list[Words] = []
    for start in range(0, len(mine), BLOCK_ROWS):
        block = slice(start, start + BLOCK_ROWS)
        found = entries(spread(mine[block], buffers[0]), spread(next_[block], buffers[1]))
        coins = row_coins(start, found[0].shape[1])
        parts = [subset_sums(one, coins) for one in found]
        totals = [total + part for total, part in zip(totals, parts, strict=True)] if totals else parts
    chosen = column_coins.astype(mine.dtype)
    return [matmul_mod(total.T, chosen) for total in totals]
