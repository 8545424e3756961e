"""What a party does by itself: who its peers are, its keys, masks that add up to zero, and its part of products."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from caps.basics.schemes import REP3
from caps.shares.ring import Z64, Ring, Words, plane_words
from services.mpc_server.engine import keys, verbs
from services.mpc_server.engine.context import Context
from services.mpc_server.engine.guard import Guard, Unguarded
from services.mpc_server.engine.kernels import BLOCK_ROWS, gram_of_parts, matmul_mod, subset_sums
from services.mpc_server.engine.shares import AShare, BShare, Summands
from services.mpc_server.engine.verbs import Bilinear, BitForm, Coins

NAME = REP3.name
PARTIES = REP3.parties


def following(party: int) -> int:
    """The party that also holds component `party + 1`, and the number of that component."""
    return (party + 1) % PARTIES


def previous(party: int) -> int:
    """The party that also holds component `party`."""
    return (party - 1) % PARTIES


@keys.guard.of(NAME)
def guard(ctx: Context) -> Guard:
    """Nothing is checked: servers are trusted to follow the protocol."""
    return Unguarded(ctx)


def zeros(ctx: Context, shape: tuple[int, ...], ring: Ring) -> Words:
    """This party's summand of a fresh additive sharing of zero: what masks a local product before it is sent."""
    mine, next_ = ctx.prss.replicated(ctx.path + b"#zero", shape, ring)
    return mine - next_


def zero_planes(ctx: Context, width: int, size: int) -> Words:
    """The same for XOR shares."""
    mine, next_ = ctx.prss.replicated(ctx.path + b"#zero", (width, plane_words(size)), Z64)
    return mine ^ next_


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
    x: AShare,
    *,
    spread: Callable[[Words, Words], Words],
    columns: int,
    row_coins: Callable[[int, int], Coins],
    column_coins: Coins,
    modulo: Ring,
) -> Words:
    """R (x_i (x_i + 2 x_{i+1} - 1)) C: a summand of R (x^2 - x) C.

    Rows are combined first, in blocks: their number is what costs time.
    """
    x_mine, x_next = x.components
    buffers = np.empty((2, columns, min(len(x), BLOCK_ROWS)), x.ring.dtype)
    total: Words | None = None
    for start in range(0, len(x), BLOCK_ROWS):
        block = slice(start, start + BLOCK_ROWS)
        mine, excess = spread(x_mine[block], buffers[0]), spread(x_next[block], buffers[1])
        excess <<= 1
        excess += mine
        excess -= 1
        excess *= mine
        part = subset_sums(excess, row_coins(start, excess.shape[1]))
        total = part if total is None else total + part
    assert total is not None
    product = matmul_mod(total.T, column_coins.astype(x.ring.dtype))
    product <<= modulo.spare
    return product
