"""A server that cheats in a verb of `rep3-active` is caught before anything is opened, whatever it changes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from types import coroutine
from typing import Any

import numpy as np
import pytest

from caps.basics.schemes import REP3_ACTIVE
from caps.errors import CheatingDetected, PeerError
from caps.shares.prss import Prss
from caps.shares.ring import Z64
from services.mpc_server.channel import TAG_BYTES
from services.mpc_server.engine import verbs
from services.mpc_server.engine.context import Context
from services.mpc_server.engine.rep3_active.claims import Claims
from services.mpc_server.engine.shares import AShare, BShare, RowShare
from services.mpc_server.testing.world import Failed, Recorder, World
from services.mpc_server.transport.memory import DROP, Delay, Message
from services.mpc_server.transport.session import Session
from tests.kit.cases.all import CASES
from tests.kit.cases.base import Source

VERBS = sorted({verb.__name__ for verb in verbs.VERBS} - {"guard", "reveal", "reveal_bits"})
CLAIMING = [name for name in VERBS if name != "shuffle"]
PARTIES = range(3)
ONLY_S1 = ("addends", "alike")
"""Verbs in which nobody else sends anything, so nobody else can be wrong in it."""
UNSENT = {("from_bits", 1, 0), ("from_bits", 2, 1)}
"""Components that nothing depends on that a party sends in a verb."""
UNUSED = {("addends", 0, 1), ("alike", 0, 1), ("from_bits", 1, 1), ("from_bits", 2, 0)}
"""Keys that a verb draws nothing from: for a party, the place of the component."""


def call_of(name: str, seed: int = 5) -> Any:
    return CASES[name][1](Source(np.random.default_rng(seed), np.random.default_rng(seed)))


async def opened(ctx: Context, result: Any) -> Any:
    """What every server learns if nobody stops it."""
    if isinstance(result, tuple):
        return tuple([await opened(ctx.step(number), part) for number, part in enumerate(result)])
    if isinstance(result, RowShare):
        result = result.bits(slice(None), slice(0, 1))
    if isinstance(result, BShare):
        return await verbs.reveal_bits(ctx, result, ring=Z64)
    return await verbs.reveal(ctx, result)


def tried(name: str, cheat: Callable[[Context, tuple[Any, ...]], tuple[Context, tuple[Any, ...]]]) -> Any:
    """The verb, with what `cheat` makes of a party's context and arguments, and then an opening of its result."""

    async def then_open(ctx: Context, *args: Any, **kwargs: Any) -> Any:
        step, changed = cheat(ctx.step("verb"), args)
        result = await CASES[name][0](step, *changed, **kwargs)
        if isinstance(result, np.ndarray):  # a case that opens its rows itself
            return result
        return await opened(ctx.step("open"), result)

    return then_open


def tag(path: bytes) -> bytes:
    return hashlib.blake2b(path, digest_size=TAG_BYTES).digest()


COMPARE = tag(b"/test/verb/compare")
"""Digests in the shuffle's check."""
OPENINGS = {tag(b"/test/open" + part) for part in (b"", *(b"/%d" % number for number in range(8)))}


@pytest.fixture
def caught(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Run a verb that a party cheats in, and see that the others notice before they open anything.

    Where all it said wrong is a digest that one of the others compares, the third may open what is right indeed.
    """
    honest, told = Claims.check, Session.abort

    def run(name: str, protocol: Any, culprit: int, where: bytes, interceptor: Any = None) -> None:
        recorder, call = Recorder(), call_of(name)

        async def check(self: Claims, ctx: Context) -> None:
            """What a cheater knows may not fit the others' claims, but it does not mind."""
            try:
                await honest(self, ctx)
            except CheatingDetected:
                if ctx.party != culprit:
                    raise

        async def abort(self: Session, *arguments: Any) -> None:
            """Nor does it tell if it ends the run."""
            if self.party != culprit:
                await told(self, *arguments)

        def heard(message: Message) -> Any:
            recorder(message)
            return interceptor(message) if interceptor else message.payload

        monkeypatch.setattr(Claims, "check", check)
        monkeypatch.setattr(Session, "abort", abort)
        with pytest.raises(Failed) as failed:
            World(6, scheme=REP3_ACTIVE, interceptor=heard, stall=0.3).run(protocol, *call.args, **call.kwargs)
        noticed = 0
        for party, error in enumerate(failed.value.errors):
            assert error is None or isinstance(error, PeerError)
            if isinstance(error, CheatingDetected) and party != culprit:
                noticed += 1
                assert culprit in error.pair
        assert noticed, failed.value
        if where != COMPARE:
            assert not OPENINGS & {message.tag for message in recorder.messages if message.source != culprit}

    return run


def unchanged(ctx: Context, args: tuple[Any, ...]) -> tuple[Context, tuple[Any, ...]]:
    return ctx, args


@pytest.fixture
def lying(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], list[bytes]]:
    """Have a party change one of its messages and its own copy of it alike. Returns the steps in which it sends any."""
    honest = Context.exchange

    def begin(culprit: int, number: int) -> list[bytes]:
        sent: list[bytes] = []

        @coroutine
        def exchange(self: Context, sends: Any, awaits: Any) -> Any:
            if self.party == culprit and self.path.startswith(b"/test/verb"):
                for place, (peer, words) in enumerate(sends):
                    if not words.size:
                        continue
                    if len(sent) == number:
                        # A digest cannot be changed in place, but then the party has no use for it either.
                        changed = words if words.flags.writeable else words.copy()
                        # The lowest bit counts in every ring.
                        changed.reshape(-1)[changed.size // 2] ^= changed.dtype.type(1)
                        sends[place] = peer, changed
                    sent.append(self.path)
            return (yield from honest(self, sends, awaits))

        monkeypatch.setattr(Context, "exchange", exchange)
        return sent

    return begin


def sent_by(name: str, culprit: int, lying: Any) -> list[bytes]:
    sent: list[bytes] = lying(culprit, -1)
    call = call_of(name)
    World(6, scheme=REP3_ACTIVE).run(tried(name, unchanged), *call.args, **call.kwargs)
    return sent


@pytest.mark.parametrize("culprit", PARTIES)
@pytest.mark.parametrize("name", VERBS)
def test_a_changed_message_with_a_changed_copy_is_caught(name: str, culprit: int, lying: Any, caught: Any) -> None:
    for number, path in enumerate(sent_by(name, culprit, lying)):
        lying(culprit, number)
        caught(name, tried(name, unchanged), culprit, tag(path))


@pytest.mark.parametrize("name", VERBS)
def test_a_message_that_is_changed_on_its_way_is_caught(name: str, caught: Any) -> None:
    recorder, call = Recorder(), call_of(name)
    World(6, scheme=REP3_ACTIVE, interceptor=recorder).run(tried(name, unchanged), *call.args, **call.kwargs)
    own = [one for one in recorder.messages if one.tag not in CHECKS | OPENINGS]
    for chosen in own:

        def changed(message: Message, chosen: Message = chosen) -> bytes:
            payload = bytearray(message.payload)
            if (message.source, message.dest, message.round) == (chosen.source, chosen.dest, chosen.round):
                payload[0] ^= 1
            return bytes(payload)

        caught(name, tried(name, unchanged), chosen.source, chosen.tag, changed)


CHECKS = {tag(b"/guard/check0/%b" % part) for part in (b"ready", b"coins", b"proofs", b"verdicts")}


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("culprit", PARTIES)
@pytest.mark.parametrize("name", CLAIMING)
def test_a_party_that_multiplies_something_else_is_caught(name: str, culprit: int, place: int, caught: Any) -> None:
    """It takes another component than it was given, in all that it sends and proves."""

    def other(share: Any) -> Any:
        components = [words.copy() for words in share.components]
        flat = components[place].reshape(-1)
        flat[0] ^= flat.dtype.type(1)
        return (
            AShare(share.owner, *components)
            if isinstance(share, AShare)
            else BShare(share.owner, share.shape, *components)
        )

    def cheat(ctx: Context, args: tuple[Any, ...]) -> tuple[Context, tuple[Any, ...]]:
        return ctx, tuple(map(other, args)) if ctx.party == culprit else args

    if (name, culprit, place) not in UNSENT and (culprit == 0 or name not in ONLY_S1):
        caught(name, tried(name, cheat), culprit, b"")


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("culprit", PARTIES)
@pytest.mark.parametrize("name", CLAIMING)
def test_a_party_that_draws_other_masks_is_caught(name: str, culprit: int, place: int, caught: Any) -> None:
    def cheat(ctx: Context, args: tuple[Any, ...]) -> tuple[Context, tuple[Any, ...]]:
        if ctx.party != culprit:
            return ctx, args
        keys = dict(ctx.prss.keys)
        component = [*keys][place]
        keys[component] = hashlib.sha256(keys[component]).digest()
        return replace(ctx, prss=Prss(keys)), args

    if (name, culprit, place) not in UNUSED and (culprit == 0 or name not in ONLY_S1):
        caught(name, tried(name, cheat), culprit, b"")


def test_coins_are_not_opened_while_a_message_is_held_back() -> None:
    """S2 is slow with its last message to S3. S1, which waits for neither, must not tell S2 the coins before."""
    sent: list[tuple[int, int, bytes]] = []

    def late(message: Message) -> Any:
        sent.append((message.source, message.dest, message.tag))
        if message.tag == tag(b"/test/second"):
            assert (message.source, message.dest) == (1, 2)
            return Delay(200, message.payload)
        return message.payload

    call = call_of("from_bits")
    World(6, scheme=REP3_ACTIVE, interceptor=late).run(verbs.from_bits, *call.args, **call.kwargs)
    coins, ready = tag(b"/guard/check0/coins"), tag(b"/guard/check0/ready")
    assert sent.index((0, 1, coins)) > sent.index((2, 0, ready)) > sent.index((1, 2, tag(b"/test/second")))


def test_coins_are_not_opened_before_the_polynomial_of_gates_has_come() -> None:
    """S2 never sends it to S1, its left verifier. S1 alone could tell S2 the coins, and must not."""
    sent: list[tuple[int, int, bytes]] = []
    ready, coins = tag(b"/guard/check0/ready"), tag(b"/guard/check0/coins")

    def held_back(message: Message) -> Any:
        sent.append((message.source, message.dest, message.tag))
        return DROP if sent[-1] == (1, 0, ready) else message.payload

    call = call_of("conjunction")
    with pytest.raises(Failed):
        World(6, scheme=REP3_ACTIVE, interceptor=held_back, stall=0.3).run(verbs.conjunction, *call.args, **call.kwargs)
    assert (1, 0, ready) in sent
    assert (1, 2, coins) in sent, "S2 itself goes on"
    assert (0, 1, coins) not in sent
