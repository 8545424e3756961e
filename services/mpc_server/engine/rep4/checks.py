"""The comparison of what senders sent with what their backups would have sent, before anything is opened.

For every message, backup and receiver compute the same keyed digest of it: under a key that only these two have, over
the step it belongs to and its length. So the XOR of all digests of all parties is zero, and a sender that sends
anything else makes it a word that it could not foresee. This XOR is all that a check opens, and it is the same at all
honest parties: they stop together. Digests are not compared one by one, because after a first wrong message honest
parties differ in what follows from it, and whether they do may depend on secrets.

If the XOR is not zero, the first step that went wrong is looked for, by opening XORs over fewer steps. Digests are then
digested anew under a label of their own: by the first XOR a sender knows what its wrong message changed, and could make
the next ones zero. Before the first wrong step all honest parties agree, so its digests tell nothing, and they show who
disagrees. If nobody does, somebody has not told the XOR of its digests, and the XOR for each pair shows who.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import xor

import numpy as np

from caps.errors import CheatingDetected
from caps.shares.digests import DIGEST_BYTES, Digests
from caps.shares.ring import Z64, Words
from services.mpc_server.engine import guard as guards
from services.mpc_server.engine.context import Context
from services.mpc_server.engine.guard import Guard
from services.mpc_server.engine.rep4.local import NAME, PARTIES, Joint

_KEY_WORDS = 4
_PERSON = b"caps/v1/rep4"
_MOST_STEPS = 1 << 14
"""Steps after which they are checked: some megabytes of digests."""

Totals = dict[int, int]
"""By party, the XOR of its digests."""


def octets(words: Words) -> memoryview:
    """The bytes of a message."""
    return np.ascontiguousarray(words).reshape(-1).data.cast("B")


@dataclass(frozen=True, slots=True)
class _Step:
    joints: Sequence[Joint]
    digests: Mapping[int, int]
    """Of the messages that this party backs up or receives, by their number among the joints."""


@dataclass(frozen=True, slots=True)
class _Claim:
    """What parties say of some first steps of those that are checked."""

    ctx: Context
    count: int
    totals: Totals

    @property
    def fails(self) -> bool:
        return reduce(xor, self.totals.values()) != 0


class Comparisons(Guard):
    """The digests of all steps that are not checked yet."""

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        self._party = ctx.party
        self._peers = ctx.scheme.peers_of(ctx.party)
        self._digests = {peer: Digests(self._secret(ctx, peer)) for peer in self._peers}
        self._steps: list[_Step] = []
        self._begun_checks = self._ended_checks = 0

    def _secret(self, ctx: Context, peer: int) -> bytes:
        """What this party and a peer know, and each of the others does not: they lack one of the two components."""
        one, two = min(ctx.party, peer), max(ctx.party, peer)
        return b"".join(
            ctx.prss.component(number, b"%b#%d%d/%d" % (ctx.path, one, two, number), (_KEY_WORDS,), Z64).tobytes()
            for number in ctx.scheme.held[ctx.party]
            if number != peer
        )

    @property
    def pending(self) -> bool:
        return bool(self._steps)

    @property
    def full(self) -> bool:
        return len(self._steps) >= _MOST_STEPS

    def file(self, path: bytes, joints: Sequence[Joint], messages: Mapping[int, memoryview]) -> None:
        """A step's messages: those that this party backs up as it computed them, those it receives as they came.

        All parties file all steps, in the same order, when the messages have arrived.
        """
        digests = {
            number: self._digests[self._partner(joints[number])].of(b"%b#%d" % (path, number), message)
            for number, message in messages.items()
        }
        self._steps.append(_Step(joints, digests))

    def _partner(self, joint: Joint) -> int:
        """The other party that has a digest."""
        return joint.receiver if joint.backup == self._party else joint.backup

    def digest(self, peer: int, path: bytes, words: Words) -> bytes:
        """The digest of words that this party and a peer compare at once."""
        return self._digests[peer].of(path + b"#opened", octets(words)).to_bytes(DIGEST_BYTES, "little")

    async def check(self, ctx: Context) -> None:
        """Open the XOR of all digests. Two rounds if it is zero.

        One check at a time: what is told in a check must not depend on a wrong message of an earlier one.
        """
        steps, self._steps = self._steps, []
        number, self._begun_checks = self._begun_checks, self._begun_checks + 1
        waited = 0
        while self._ended_checks != number:
            waited += 1
            await ctx.step(f"wait{waited}").exchange([], [])
        claim = await self._claimed(ctx.step("all"), steps, len(steps))
        if claim.fails:
            await self._blame(ctx, steps, claim)
        self._ended_checks += 1

    async def _claimed(self, ctx: Context, steps: Sequence[_Step], count: int) -> _Claim:
        """All parties' XORs of digests of the first steps, the same at all honest parties."""
        own = reduce(xor, self._by_peer(ctx, steps, count).values())
        return _Claim(ctx, count, await self._told(ctx, own))

    def _by_peer(self, ctx: Context, steps: Sequence[_Step], count: int) -> Totals:
        """The XOR of the digests that this party has together with each peer; anew for each label, except for all."""
        totals = dict.fromkeys(self._peers, 0)
        for position, step in enumerate(steps[:count]):
            for number, digest in step.digests.items():
                peer = self._partner(step.joints[number])
                totals[peer] ^= digest if count == len(steps) else self._anew(ctx, position, number, peer, digest)
        return totals

    def _anew(self, ctx: Context, position: int, number: int, peer: int, digest: int) -> int:
        label = b"%b#%d/%d" % (ctx.path, position, number)
        return self._digests[peer].of(label, digest.to_bytes(DIGEST_BYTES, "little"))

    async def _told(self, ctx: Context, own: int) -> Totals:
        told = await self._swap(ctx.step("told"), dict.fromkeys(self._peers, _bytes([own])), 1)
        totals = {self._party: own} | {peer: word for peer, (word,) in told.items()}
        # No server can undo this by leaving now: the run is over, whoever may be named.
        self.failed = self.failed or reduce(xor, totals.values()) != 0
        await self._confirmed(ctx.step("heard"), totals)
        return totals

    async def _confirmed(self, ctx: Context, heard: Totals) -> None:
        """Compare what was heard of each party with what the others heard of it: who says two things is named."""
        others = {peer: [one for one in range(PARTIES) if one not in (peer, self._party)] for peer in self._peers}
        echoes = await self._swap(
            ctx, {peer: _bytes([heard[one] for one in others[peer]]) for peer in self._peers}, PARTIES - 2
        )
        for peer, words in echoes.items():
            for one, word in zip(others[peer], words, strict=True):
                if word != heard[one]:
                    raise CheatingDetected((one, peer))

    async def _swap(self, ctx: Context, messages: Mapping[int, Words], words: int) -> dict[int, list[int]]:
        replies = await self.exchange(
            ctx, list(messages.items()), [(peer, words * DIGEST_BYTES) for peer in self._peers]
        )
        return {peer: _words(reply) for peer, reply in zip(self._peers, replies, strict=True)}

    async def _blame(self, ctx: Context, steps: Sequence[_Step], wrong: _Claim) -> None:
        """Find the first step that went wrong, and raise CheatingDetected with a pair of which one cheated."""
        right = 0
        while wrong.count - right > 1:
            middle = (right + wrong.count) // 2
            claim = await self._claimed(ctx.step(f"first{middle}"), steps, middle)
            if claim.fails:
                wrong = claim
            else:
                right = middle
        disputed = await self._disputed(ctx.step("step"), right, steps[right])
        if disputed:
            self.verdict = self._accused(disputed)
        else:
            self.verdict = await self._lied(ctx.step("pairs"), steps, wrong)
        # Whoever gives up first must not keep the others from knowing as much.
        ready, from_all = np.zeros(1, np.uint8), [(peer, 1) for peer in self._peers]
        await self.exchange(ctx.step("judged"), [(peer, ready) for peer in self._peers], from_all)
        if self.verdict is not None:
            raise self.verdict
        # The message is one of the three others, who know which two to suspect; they end the session.
        await self.exchange(ctx.step("named"), [], from_all)

    async def _disputed(self, ctx: Context, position: int, step: _Step) -> list[Joint]:
        """All show their digests of the step. The messages that have two of them."""
        concerned = {
            party: [n for n, joint in enumerate(step.joints) if party in (joint.backup, joint.receiver)]
            for party in range(PARTIES)
        }
        own = [
            self._anew(ctx, position, n, self._partner(step.joints[n]), step.digests[n]) for n in concerned[self._party]
        ]
        shown = await self._shown(ctx, own, {party: len(numbers) for party, numbers in concerned.items()})
        found = {party: dict(zip(concerned[party], words, strict=True)) for party, words in shown.items()}
        return [joint for n, joint in enumerate(step.joints) if found[joint.backup][n] != found[joint.receiver][n]]

    def _accused(self, disputed: Sequence[Joint]) -> CheatingDetected | None:
        """The two others that have to do with a disputed message, if this party has; else it cannot tell."""
        for joint in disputed:
            roles = [joint.sender, joint.backup, joint.receiver]
            if self._party in roles:
                roles.remove(self._party)
                return CheatingDetected((roles[0], roles[1]))
        return None

    async def _lied(self, ctx: Context, steps: Sequence[_Step], claim: _Claim) -> CheatingDetected:
        """No message is disputed, so somebody claims what its digests are not: its claim must be that of its pairs."""
        own = self._by_peer(claim.ctx, steps, claim.count)
        words = [own[peer] for peer in sorted(self._peers)]
        shown = await self._shown(ctx, words, dict.fromkeys(range(PARTIES), len(words)))
        by_pair: dict[tuple[int, int], int] = {}
        for party, told in shown.items():
            if reduce(xor, told) != claim.totals[party]:
                return CheatingDetected((party, self._party))
            others = [one for one in range(PARTIES) if one != party]
            by_pair |= {(party, other): word for other, word in zip(others, told, strict=True)}
        return next(CheatingDetected(pair) for pair in by_pair if by_pair[pair] != by_pair[pair[::-1]])

    async def _shown(self, ctx: Context, own: Sequence[int], counts: Mapping[int, int]) -> dict[int, list[int]]:
        """What all parties show, so many words each, the same at all honest parties."""
        message = _bytes(own)
        replies = await self.exchange(
            ctx.step("shown"),
            [(peer, message) for peer in self._peers],
            [(peer, DIGEST_BYTES * counts[peer]) for peer in self._peers],
        )
        heard = dict(zip(self._peers, replies, strict=True)) | {self._party: octets(message)}
        await self._confirmed(ctx.step("heard"), {party: _plain_digest(reply) for party, reply in heard.items()})
        return {party: _words(reply) for party, reply in heard.items()}


@guards.guard.of(NAME)
def guard(ctx: Context) -> Guard:
    """What backups would have sent is compared with what receivers received."""
    return Comparisons(ctx)


def _plain_digest(message: memoryview) -> int:
    return int.from_bytes(hashlib.blake2b(message, digest_size=DIGEST_BYTES, person=_PERSON).digest(), "little")


def _bytes(words: Sequence[int]) -> Words:
    return np.frombuffer(b"".join(word.to_bytes(DIGEST_BYTES, "little") for word in words), np.uint8)


def _words(reply: memoryview) -> list[int]:
    starts = range(0, len(reply), DIGEST_BYTES)
    return [int.from_bytes(reply[start : start + DIGEST_BYTES], "little") for start in starts]
