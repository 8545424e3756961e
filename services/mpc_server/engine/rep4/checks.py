"""The comparison of what senders sent with what their backups would have sent, before anything is opened.

For every message, backup and receiver compute the same keyed digest of it: under a key that only these two have, over
the step it belongs to and its length. So the XOR of all digests of all parties is zero, and a sender that sends
anything else makes it a word that it could not foresee. This XOR is all that a check opens, and it is the same at all
honest parties: they stop together. Digests are not compared one by one, because after a first wrong message honest
parties differ in what follows from it, and whether they do may depend on secrets.

If the XOR is not zero, the first step that went wrong is looked for, by opening the XOR over fewer steps. Before that
step all honest parties agreed, so its digests tell nothing, and they show who disagrees.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import xor

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from caps.errors import CheatingDetected
from caps.shares.ring import Z64, Words
from services.mpc_server.engine import guard as guards
from services.mpc_server.engine.context import Context
from services.mpc_server.engine.guard import Guard
from services.mpc_server.engine.rep4.local import DIGEST_BYTES, NAME, PARTIES, Joint

_KEY_WORDS = 4
_PERSON = b"caps/v1/rep4"
_MOST_STEPS = 1 << 14
"""Steps after which they are checked: some megabytes of digests."""
_LARGE_BYTES = 1 << 12
"""From this size on, GMAC and a digest of its tag are faster than the digest alone."""
_NONCE = bytes(12)

Totals = dict[int, int]
"""By party, the XOR of its digests."""


def octets(words: Words) -> memoryview:
    """The bytes of a message."""
    return np.ascontiguousarray(words).reshape(-1).data.cast("B")


class Digests:
    """Keyed digests of messages. Two parties have the keys, so to the others a digest is a random word.

    A large message is first hashed by GMAC, a universal hash: its key is secret and its tag never leaves the party, so
    that the nonce need not change.
    """

    def __init__(self, secret: bytes) -> None:
        expanded = hashlib.blake2b(secret, person=_PERSON).digest()
        self._key, self._hash_key = expanded[:32], expanded[32:48]

    def of(self, label: bytes, message: memoryview) -> int:
        """The digest of a message of a step."""
        head = len(label).to_bytes(4, "little") + len(message).to_bytes(8, "little") + label
        if len(message) >= _LARGE_BYTES:
            hashing = Cipher(algorithms.AES(self._hash_key), modes.GCM(_NONCE)).encryptor()
            hashing.authenticate_additional_data(message)
            hashing.finalize()
            head += hashing.tag
        else:
            head += message
        return int.from_bytes(hashlib.blake2b(head, key=self._key, digest_size=DIGEST_BYTES).digest(), "little")


@dataclass(frozen=True, slots=True)
class _Step:
    joints: Sequence[Joint]
    digests: Mapping[int, int]
    """Of the messages that this party backs up or receives, by their number among the joints."""
    total: int
    """The XOR of all digests of the session, these included."""


class Comparisons(Guard):
    """The digests of all steps that are not checked yet."""

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        self._party = ctx.party
        self._peers = ctx.scheme.peers_of(ctx.party)
        self._digests = {peer: Digests(self._secret(ctx, peer)) for peer in self._peers}
        self._steps: list[_Step] = []
        self._total = 0
        self._agreed: Totals = dict.fromkeys(range(PARTIES), 0)
        self._order: list[int] = []
        self._checks = 0

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
        digests = {}
        for number, message in messages.items():
            joint = joints[number]
            peer = joint.receiver if joint.backup == self._party else joint.backup
            digests[number] = self._digests[peer].of(b"%b#%d" % (path, number), message)
            self._total ^= digests[number]
        self._steps.append(_Step(joints, digests, self._total))

    def digest(self, peer: int, path: bytes, words: Words) -> bytes:
        """The digest of words that this party and a peer compare at once."""
        return self._digests[peer].of(path + b"#opened", octets(words)).to_bytes(DIGEST_BYTES, "little")

    async def check(self, ctx: Context) -> None:
        """Open the XOR of all digests. Two rounds if it is zero."""
        steps, self._steps = self._steps, []
        number, self._checks = self._checks, self._checks + 1
        self._order.append(number)
        totals = await self._opened(ctx.step("all"), steps[-1].total)
        if _differ(totals):
            await self._blame(ctx, number, steps, totals)
        self._agreed = totals
        self._order.remove(number)

    async def _opened(self, ctx: Context, own: int) -> Totals:
        """All parties' XORs, the same at all honest parties."""
        told = await self._swap(ctx.step("told"), dict.fromkeys(self._peers, _bytes([own])), 1)
        totals = {self._party: own} | {peer: word for peer, (word,) in told.items()}
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

    async def _blame(self, ctx: Context, number: int, steps: Sequence[_Step], totals: Totals) -> None:
        """Find the first step that went wrong, and raise CheatingDetected with a pair of which one cheated."""
        waited = 0
        while self._order[0] != number:  # an earlier check has the first wrong step
            waited += 1
            await ctx.step(f"wait{waited}").exchange([], [])
        low, high, before, after = 0, len(steps), self._agreed, totals
        while high - low > 1:
            middle = (low + high) // 2
            found = await self._opened(ctx.step(f"first{middle}"), steps[middle - 1].total)
            if _differ(found):
                high, after = middle, found
            else:
                low, before = middle, found
        await self._judge(ctx.step("step"), steps[low], {one: before[one] ^ after[one] for one in before})

    async def _judge(self, ctx: Context, step: _Step, claimed: Totals) -> None:
        """All show their digests of the step, which must be what they claimed; then some message has two of them."""
        concerned = {
            party: [n for n, joint in enumerate(step.joints) if party in (joint.backup, joint.receiver)]
            for party in range(PARTIES)
        }
        own = _bytes([step.digests[n] for n in concerned[self._party]])
        replies = await self.exchange(
            ctx.step("shown"),
            [(peer, own) for peer in self._peers],
            [(peer, DIGEST_BYTES * len(concerned[peer])) for peer in self._peers],
        )
        heard = dict(zip(self._peers, replies, strict=True)) | {self._party: octets(own)}
        await self._confirmed(ctx.step("heard"), {party: _plain_digest(reply) for party, reply in heard.items()})
        shown = {peer: _words(heard[peer]) for peer in self._peers}
        for peer, words in shown.items():
            if reduce(xor, words, 0) != claimed[peer]:
                raise CheatingDetected((peer, self._party))
        found = {peer: dict(zip(concerned[peer], words, strict=True)) for peer, words in shown.items()}
        found[self._party] = dict(step.digests)
        for n, joint in enumerate(step.joints):
            roles = (joint.sender, joint.backup, joint.receiver)
            if self._party in roles and found[joint.backup][n] != found[joint.receiver][n]:
                one, other = (role for role in roles if role != self._party)
                self.verdict = CheatingDetected((one, other))
                break
        # Whoever gives up first must not keep the others from knowing as much.
        ready, from_all = np.zeros(1, np.uint8), [(peer, 1) for peer in self._peers]
        await self.exchange(ctx.step("judged"), [(peer, ready) for peer in self._peers], from_all)
        if self.verdict is not None:
            raise self.verdict
        # The message is one of the three others; they end the session.
        await self.exchange(ctx.step("named"), [], from_all)


@guards.guard.of(NAME)
def guard(ctx: Context) -> Guard:
    """What backups would have sent is compared with what receivers received."""
    return Comparisons(ctx)


def _differ(totals: Totals) -> bool:
    return reduce(xor, totals.values()) != 0


def _plain_digest(message: memoryview) -> int:
    return int.from_bytes(hashlib.blake2b(message, digest_size=DIGEST_BYTES, person=_PERSON).digest(), "little")


def _bytes(words: Sequence[int]) -> Words:
    return np.frombuffer(b"".join(word.to_bytes(DIGEST_BYTES, "little") for word in words), np.uint8)


def _words(reply: memoryview) -> list[int]:
    starts = range(0, len(reply), DIGEST_BYTES)
    return [int.from_bytes(reply[start : start + DIGEST_BYTES], "little") for start in starts]
