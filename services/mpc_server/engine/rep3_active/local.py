"""Who knows what of a claim, and where it is filed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from caps.basics.schemes import REP3_ACTIVE
from caps.shares.ring import Words
from services.mpc_server.engine import guard as guards
from services.mpc_server.engine.context import Context
from services.mpc_server.engine.cost import Price
from services.mpc_server.engine.guard import Guard
from services.mpc_server.engine.registry import price
from services.mpc_server.engine.rep3.local import DIGEST_BYTES, PARTIES, following, previous
from services.mpc_server.engine.rep3_active.claims import Claims
from services.mpc_server.engine.shares import AShare, BShare

NAME = REP3_ACTIVE.name
price(NAME, Price(product=1, sums=False, opened=1, digest=DIGEST_BYTES))
T = TypeVar("T")


@guards.guard.of(NAME)
def guard(ctx: Context) -> Guard:
    """Every message is proved."""
    return Claims(ctx)


def claims(ctx: Context) -> Claims:
    """Where claims of this session are filed."""
    found = ctx.guard
    assert isinstance(found, Claims), "a session of this scheme has a guard of claims"
    return found


def component(share: AShare | BShare, number: int) -> Words | None:
    """A component, or None at the party that lacks it."""
    held = share.scheme.held[share.owner.party]
    return share.components[held.index(number)] if number in held else None


def by_prover(ctx: Context, mine: T, next_: T) -> Iterator[tuple[int, T | None, T | None]]:
    """For each prover, in order of filing: what this party knows on the left of its claim, and on the right.

    mine, next_: what the party knows by its two components. Component i is on the left of prover i's claim, and
    component i + 1 on the right.
    """
    for prover in range(PARTIES):
        if ctx.party == prover:
            yield prover, mine, next_
        elif ctx.party == previous(prover):
            yield prover, next_, None
        else:
            assert ctx.party == following(prover)
            yield prover, None, mine
