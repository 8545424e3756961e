"""Opening: as in `engine.rep3`. All claims are validated first, whatever is opened (`engine.verbs`)."""

from __future__ import annotations

from caps.errors import CheatingDetected, PeerViolation
from caps.shares.ring import Ring, Words
from services.mpc_server.engine import verbs
from services.mpc_server.engine.context import Context
from services.mpc_server.engine.rep3.opening import BITS_OPENED, WORDS_OPENED, opened_bits, opened_words
from services.mpc_server.engine.rep3_active.local import NAME
from services.mpc_server.engine.shares import AShare, BShare


@verbs.reveal.of(NAME, "CaPS section 2; opening with a check of the replicated copy", WORDS_OPENED)
async def reveal(ctx: Context, x: AShare) -> Words:
    """A party gets the component it lacks from one holder and its digest from the other; the two must agree."""
    return await opened_words(ctx, x, others_differ)


@verbs.reveal_bits.of(NAME, "as reveal, for XOR shares", BITS_OPENED)
async def reveal_bits(ctx: Context, x: BShare, *, ring: Ring) -> Words:
    """As reveal."""
    return await opened_bits(ctx, x, ring, others_differ)


def others_differ(ctx: Context) -> PeerViolation:
    """What a party concludes that is itself honest: of the two others, one is not."""
    first, second = ctx.scheme.peers_of(ctx.party)
    return CheatingDetected((first, second))
