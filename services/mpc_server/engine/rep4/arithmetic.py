"""Multiplication and opening of arithmetic shares."""

from __future__ import annotations

import hmac

import numpy as np

from caps.errors import CheatingDetected, ShareError
from caps.shares.digests import DIGEST_BYTES
from caps.shares.ring import Ring, Words
from caps.shares.sharing import Algebra
from services.mpc_server.engine import size, verbs
from services.mpc_server.engine.context import Context
from services.mpc_server.engine.cost import Cost, plane
from services.mpc_server.engine.rep4.joint import enter_terms, guard_of
from services.mpc_server.engine.rep4.local import LATTER, NAME, PARTIES, components_of, product_terms
from services.mpc_server.engine.shares import AShare, BShare, bits_of


@verbs.multiply.of(
    NAME,
    "Dalskov, Escudero and Keller 2021, with one product for each pair of components",
    Cost(rounds=1, sent=(1 + LATTER) * (size.elements * size.ring_bits // 8)),
)
async def multiply(ctx: Context, x: AShare, y: AShare) -> AShare:
    """Six terms, each entered jointly by the two parties that know it."""
    ctx.own(x, y)
    if x.shape != y.shape or x.ring != y.ring:
        raise ShareError(f"{x!r} and {y!r} differ in shape or ring")
    return ctx.share(*await enter_terms(ctx, product_terms(x, y), x.shape, x.ring, Algebra.ADD))


@verbs.reveal.of(
    NAME,
    "Dalskov, Escudero and Keller 2021: the missing component and a digest of it",
    Cost(rounds=1, sent=size.elements * size.ring_bits // 8 + DIGEST_BYTES),
)
async def reveal(ctx: Context, x: AShare) -> Words:
    """A party gets the component it lacks from the next party, and a digest of it from the one after that."""
    ctx.own(x)
    missing = await _open(ctx, x)
    return np.asarray(sum(x.components[1:], start=x.components[0]) + missing)


@verbs.reveal_bits.of(
    NAME, "as reveal, for XOR shares", Cost(rounds=1, sent=size.width * plane(size.elements) + DIGEST_BYTES)
)
async def reveal_bits(ctx: Context, x: BShare, *, ring: Ring) -> Words:
    """As reveal."""
    ctx.own(x)
    if x.width > ring.bits:
        raise ShareError(f"{x.width} bits do not fit in {ring!r}")
    missing = await _open(ctx, x)
    return bits_of(np.bitwise_xor.reduce([*x.components, missing]), x.shape, ring)


async def _open(ctx: Context, x: AShare | BShare) -> Words:
    """The component that this party lacks."""
    party, held, guard = ctx.party, components_of(x), guard_of(ctx)
    like = x.components[0]
    sender, witness = (party + 1) % PARTIES, (party + 2) % PARTIES
    pupil, other_pupil = (party - 1) % PARTIES, (party - 2) % PARTIES
    digest = np.frombuffer(guard.digest(other_pupil, ctx.path, held(other_pupil)), np.uint8)
    words, claimed = await ctx.exchange(
        [(pupil, held(pupil)), (other_pupil, digest)], [(sender, like.nbytes), (witness, DIGEST_BYTES)]
    )
    missing = np.frombuffer(words, like.dtype).reshape(like.shape)
    if not hmac.compare_digest(guard.digest(witness, ctx.path, missing), bytes(claimed)):
        raise CheatingDetected((sender, witness))
    return missing
