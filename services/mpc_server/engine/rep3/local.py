"""What a party does by itself, above all its part of products; and how products become shares."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from caps.basics.schemes import REP3
from caps.shares.ring import Ring, Words
from services.mpc_server.engine import guard as guards
from services.mpc_server.engine import verbs
from services.mpc_server.engine.context import Context
from services.mpc_server.engine.cost import Price
from services.mpc_server.engine.guard import Guard, Unguarded
from services.mpc_server.engine.jobs import Mix, Quadratic
from services.mpc_server.engine.products import gram_mixes
from services.mpc_server.engine.registry import price
from services.mpc_server.engine.shares import AShare, BShare, Summands
from services.mpc_server.engine.verbs import Bilinear, BitForm
from services.mpc_server.engine.workers import Workers

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


def grams(workers: Workers, parts: Sequence[AShare], modulo: Ring) -> tuple[Words, Words]:
    """Gram(x_i + x_{i+1}) and Gram(x_{i+1}): their difference is a summand of Gram(x)."""
    return gram_mixes(workers, parts, (Mix(0, 1), Mix(1)), modulo)  # type: ignore[return-value]


DEVIATIONS = (Quadratic((1, 0), (1, 2), -1),)
"""x_i (x_i + 2 x_{i+1} - 1): a summand of x^2 - x."""
