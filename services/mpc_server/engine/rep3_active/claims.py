"""The guard of `rep3-active`: what a party claims of its messages, and their proof before anything is opened.

Party P_i holds components i and i + 1. Whatever it sends is a sum of products of something that P_{i-1} knows as well
(component i) with something that P_{i+1} knows (component i + 1), and of terms that it has in common with one of the
two. So each message is filed by all three: the prover P_i, its left verifier P_{i-1} and its right verifier P_{i+1}.

A validation has four rounds, for all three provers at once: each party says that it has received all that is claimed,
and sends what it can prove without coins; coins are opened; provers send proofs; verifiers exchange verdicts. `proof`
says what is proved and why it can be believed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from caps.basics.loading import load
from caps.errors import CheatingDetected
from caps.shares.ring import Z64, Words
from services.mpc_server.engine.context import Context
from services.mpc_server.engine.guard import Guard
from services.mpc_server.engine.rep3_active.proof.filed import (
    Coins,
    DeviationClaim,
    Filed,
    Gates,
    MatrixClaim,
    Starts,
    WordClaims,
    known,
)
from services.mpc_server.engine.rep3_active.proof.sizes import DIGEST_BYTES, VERDICT_BYTES, Size

PARTIES = 3
PROOFS = "services.mpc_server.engine.rep3_active.proof.assembly"
"""The module with all that is compiled."""
BUDGET = 1 << 27
"""Bytes of arrays, filed about all provers, from which on they are checked at once: 5 * 10^7 products of bits."""


class Claims(Guard):
    """One party's claims. It files None for what it does not know. Arrays are kept by reference, so must not change.

    A claim is filed once its messages have been exchanged: the coins that judge it are opened afterwards.
    """

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        self.filed = [Filed() for _ in range(PARTIES)]
        self._bytes = 0
        self._pending = False

    @property
    def pending(self) -> bool:
        return self._pending

    @property
    def full(self) -> bool:
        return self._bytes > BUDGET

    def bits(
        self,
        prover: int,
        *,
        a: Words | None,
        b: Words | None,
        c: Words | None = None,
        d: Words | None = None,
        e: Words | None,
        f: Words | None,
    ) -> None:
        """a & b ^ c & d ^ e ^ f = 0, for planes of one shape: a, c, e are known on the left, b, d, f on the right."""
        self.filed[prover].gates.append(Gates(a, b, c, d, e, f))
        self._count(6 * known(e, f).size, 64)

    def words(
        self,
        prover: int,
        *,
        bits: int,
        lefts: Sequence[Words] | None,
        rights: Sequence[Words] | None,
        e: Words | None,
        f: Words | None,
        starts: Starts | None = None,
        left_bits: int | None = None,
    ) -> None:
        """The sum over t of lefts[t] * rights[t] + e + f = 0 modulo 2^bits, elementwise.

        starts: where the segments begin over which products are added up; then e and f have an element for each.
        left_bits: how many bits the left factors have, if less than `bits`; it is public, and fewer are cheaper.
        """
        key = bits, min(bits, left_bits or bits)
        claims = WordClaims(lefts, rights, e, f, starts)
        self.filed[prover].words.setdefault(key, []).append(claims)
        self._count(2 * (claims.products + claims.claims), bits)

    def gram(
        self,
        prover: int,
        *,
        bits: int,
        left: Sequence[Words] | None,
        right: Sequence[Words] | None,
        e: Words | None,
        f: Words | None,
    ) -> None:
        """left^T right + right^T left + e + f = 0 modulo 2^bits.

        left, right: matrices side by side. e, f: the upper triangles of symmetric matrices, row by row. A prover need
        not give e.
        """
        self.filed[prover].grams.append(MatrixClaim(bits, left, right, e, f))
        self._count(2 * known(e, f).size, bits)

    def matrices(
        self,
        prover: int,
        *,
        bits: int,
        lefts: tuple[Words, Words] | None,
        rights: tuple[Words, Words] | None,
        e: Words | None,
        f: Words | None,
    ) -> None:
        """A^T B + C^T D + e + f = 0 modulo 2^bits, for lefts = (A, D) and rights = (B, C). As for `gram`, of e."""
        self.filed[prover].matrices.append(MatrixClaim(bits, lefts, rights, e, f))
        self._count(2 * known(e, f).size, bits)

    def deviations(
        self,
        prover: int,
        *,
        bits: int,
        left: Words | None,
        right: Words | None,
        spread: Callable[[Words, Words], Words],
        columns: int,
        row_coins: Callable[[int, int], Coins],
        column_coins: Coins,
        e: Words | None,
        f: Words | None,
    ) -> None:
        """R (2 s(left) o s(right)) C + e + f = 0 modulo 2^bits, with s, R and C as in `verbs.bit_deviations`."""
        claim = DeviationClaim(bits, left, right, spread, columns, row_coins, column_coins, e, f)
        self.filed[prover].deviations.append(claim)
        self._count(2 * known(e, f).size, bits)

    def _count(self, elements: int, bits: int) -> None:
        """All parties count alike, whatever they know, so that all find it full at the same time."""
        self._bytes += elements * bits // 8
        self._pending = True

    def sizes(self) -> tuple[Size, Size, Size]:
        """What is public about what is filed, for the proofs of this party, the next and the previous one."""
        me = self._ctx.party
        return (
            self.filed[me].size(),
            self.filed[_following(me)].size(),
            self.filed[_previous(me)].size(),
        )

    async def check(self, ctx: Context) -> None:
        """Prove what this party sent, and check what the other two did."""
        # Compiled code is loaded by the first validation of a process, not by whoever imports the engine.
        load(PROOFS)
        from services.mpc_server.engine.rep3_active.proof.assembly import assemble, planes_of
        from services.mpc_server.engine.rep3_active.proof.protocol import (
            Verdict,
            agree,
            check_left,
            check_right,
            gate_shares,
            prove,
        )
        from services.mpc_server.engine.rep3_active.proof.source import Toss

        filed, self.filed = self.filed, [Filed() for _ in range(PARTIES)]
        self._bytes, self._pending = 0, False
        me, before, after = ctx.party, _previous(ctx.party), _following(ctx.party)
        mine, next_, last = (filed[party].size() for party in (me, after, before))

        def key(prover: int, component: int) -> bytes:
            label = b"%b#proof/%d/%d" % (ctx.path, prover, component)
            return ctx.prss.component(component, label, (4,), Z64).tobytes()

        def label(prover: int) -> bytes:
            return b"%b/%d" % (ctx.path, prover)

        left_key, right_key = key(me, me), key(me, after)
        planes = planes_of(filed[me], left=True, right=True)
        gates = gate_shares(planes, right_key, workers=ctx.workers)
        told_gates = await self._ready(ctx.step("ready"), filed, gates, next_.gate_bytes)
        toss = Toss(await self._toss(ctx.step("coins")))
        shares = challenges = b""
        if not mine.empty:
            statement = assemble(filed[me], planes, toss, label(me))
            shares, challenges = prove(statement, left_key, right_key, gates, ctx.workers)
            del statement
        told, asked = await self.exchange(
            ctx.step("proofs"),
            [(before, _octets(shares)), (after, _octets(challenges))],
            [(after, next_.share_bytes), (before, last.challenge_bytes)],
        )
        checks: dict[int, Callable[[], Verdict]] = {}
        if not next_.empty:
            planes = planes_of(filed[after], left=True, right=False)
            statement = assemble(filed[after], planes, toss, label(after))
            statement.gates(ctx.workers)
            checks[after] = partial(check_left, statement, key(after, after), told_gates, bytes(told))
        if not last.empty:
            planes = planes_of(filed[before], left=False, right=True)
            statement = assemble(filed[before], planes, toss, label(before))
            statement.gates(ctx.workers)
            checks[before] = partial(check_right, statement, key(before, me), bytes(asked))
        verdicts = dict(zip(checks, ctx.workers.each(list(checks.values())), strict=True))
        # The right verifier of the next party's proof is the previous party, and the other way round.
        peers = {after: before, before: after}
        replies = await self.exchange(
            ctx.step("verdicts"),
            [(peers[prover], _octets(own.octets())) for prover, own in verdicts.items()],
            [(peers[prover], VERDICT_BYTES) for prover in verdicts],
        )
        for (prover, own), reply in zip(verdicts.items(), replies, strict=True):
            if not agree(own, Verdict.read(bytes(reply))):
                raise CheatingDetected((prover, peers[prover]))

    async def _ready(self, ctx: Context, filed: Sequence[Filed], gates: bytes, next_gates: int) -> bytes:
        """Return when both others have filed the same, and the next party has sent the polynomial of its gates.

        Rounds alone do not say so: a party that waits for no message would open its part of the coins while a prover
        holds back a message to the other verifier, and then knows the coins that judge it.
        """
        before, after = _previous(ctx.party), _following(ctx.party)
        sizes = repr([one.size() for one in filed]).encode()
        own = hashlib.blake2b(sizes, digest_size=DIGEST_BYTES, person=b"caps/v1/ready").digest()
        previous, following = await self.exchange(
            ctx,
            [(before, _octets(own + gates)), (after, _octets(own))],
            [(before, DIGEST_BYTES), (after, DIGEST_BYTES + next_gates)],
        )
        if bytes(previous) != own or bytes(following[:DIGEST_BYTES]) != own:
            raise CheatingDetected((before, after))
        return bytes(following[DIGEST_BYTES:])

    async def _toss(self, ctx: Context) -> bytes:
        """A seed that no party knew before this round: a component of it from one holder, its digest from the other."""
        before, after = _previous(ctx.party), _following(ctx.party)
        held = ctx.fresh(b"seed", (4,), Z64).components
        digest = np.frombuffer(_digest(held[1]), np.uint8)
        words, claimed = await self.exchange(
            ctx, [(after, held[0]), (before, digest)], [(before, held[0].nbytes), (after, DIGEST_BYTES)]
        )
        missing = np.frombuffer(words, held[0].dtype)
        if _digest(missing) != bytes(claimed):
            raise CheatingDetected((before, after))
        seed: Words = held[0] + held[1] + missing
        return seed.tobytes()


def _following(party: int) -> int:
    return (party + 1) % PARTIES


def _previous(party: int) -> int:
    return (party - 1) % PARTIES


def _octets(message: bytes) -> Words:
    return np.frombuffer(message, np.uint8)


def _digest(words: Words) -> bytes:
    return hashlib.blake2b(words.tobytes(), digest_size=DIGEST_BYTES, person=b"caps/v1/coins").digest()
