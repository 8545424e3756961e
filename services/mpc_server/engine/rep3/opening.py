"""Opening: the component that a party lacks comes from one of its holders, and a digest of it from the other."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np

from caps.errors import PeerViolation, ShareError, party_name
from caps.shares.ring import Ring, Words
from services.mpc_server.engine import size, verbs
from services.mpc_server.engine.context import Context
from services.mpc_server.engine.cost import Cost, plane
from services.mpc_server.engine.rep3.local import DIGEST_BYTES, NAME, following, previous
from services.mpc_server.engine.shares import AShare, BShare, bits_of

WORDS_OPENED = Cost(rounds=1, sent=size.elements * size.ring_bits // 8 + DIGEST_BYTES)
BITS_OPENED = Cost(rounds=1, sent=size.width * plane(size.elements) + DIGEST_BYTES)


def digest_of(words: Words, key: bytes = b"") -> bytes:
    """What tells whether two parties have the same words."""
    return hashlib.blake2b(np.ascontiguousarray(words).data, digest_size=DIGEST_BYTES, key=key).digest()


@verbs.reveal.of(NAME, "CaPS section 2; opening with a check of the replicated copy", WORDS_OPENED)
async def reveal(ctx: Context, x: AShare) -> Words:
    """A party gets the component it lacks from one holder and its digest from the other; the two must agree."""
    return await opened_words(ctx, x, _altered)


@verbs.reveal_bits.of(NAME, "as reveal, for XOR shares", BITS_OPENED)
async def reveal_bits(ctx: Context, x: BShare, *, ring: Ring) -> Words:
    """As reveal."""
    return await opened_bits(ctx, x, ring, _altered)


async def opened_words(ctx: Context, x: AShare, error: Callable[[Context], PeerViolation]) -> Words:
    """x itself; `error` is raised if the copies of the component that this party lacks differ."""
    ctx.own(x)
    mine, next_ = x.components
    return mine + next_ + await _missing(ctx, mine, next_, error)


async def opened_bits(ctx: Context, x: BShare, ring: Ring, error: Callable[[Context], PeerViolation]) -> Words:
    """The same for XOR shares."""
    ctx.own(x)
    if x.width > ring.bits:
        raise ShareError(f"{x.width} bits do not fit in {ring!r}")
    mine, next_ = x.components
    return bits_of(mine ^ next_ ^ await _missing(ctx, mine, next_, error), x.shape, ring)


async def _missing(ctx: Context, mine: Words, next_: Words, error: Callable[[Context], PeerViolation]) -> Words:
    before, after = previous(ctx.party), following(ctx.party)
    digest = np.frombuffer(digest_of(next_), np.uint8)
    words, claimed = await ctx.exchange(
        [(after, mine), (before, digest)], [(before, mine.nbytes), (after, DIGEST_BYTES)]
    )
    missing = np.frombuffer(words, mine.dtype).reshape(mine.shape)
    if digest_of(missing) != bytes(claimed):
        raise error(ctx)
    return missing


def _altered(ctx: Context) -> PeerViolation:
    return PeerViolation(
        previous(ctx.party),
        f"opened words at step {ctx.path.decode() or '/'} do not match the digest that "
        f"{party_name(following(ctx.party))} holds of them: a message of one of the two was altered",
    )
