"""How servers come to the secrets of their pairs: the same after a crash at any point, refused with the peer's name
if anything is not what was signed or sent before, and erased with the shares."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import count, product

import pytest
from sqlalchemy import delete, event, select

from caps.errors import LocalError, PeerAborted, PeerDisagrees, PeerError, PeerViolation
from caps.service.tokens import Scope
from caps.trust.exchange import ExchangeKey, public_digest
from services.mpc_server.runs.pairs import Pairs, agree, scope_of
from services.mpc_server.storage import tables
from services.mpc_server.transport.memory import Message, memory_channels
from tests.kit.mpc_server import Parties, approvals
from tests.kit.study import SERVERS

SCOPE = b"a run"
KEYS, CIPHERTEXTS = 1216, 1120
"""Lengths of the messages, by which they are known."""


class Crash(BaseException):
    """A process ends."""


class Trio:
    """Three servers that have approved a study."""

    def __init__(self, folder) -> None:
        self.federation = Parties(folder)
        self.study = self.federation.study
        self.desks = [self.federation.desk(name) for name in SERVERS]
        given = approvals(self.federation, dict(zip(SERVERS, self.desks, strict=True)))
        self.digests = {one.signer: one.document.exchange_digest for one in given[:3]}

    def restart(self, party: int) -> None:
        self.desks[party].database.dispose()
        self.desks[party] = self.federation.desk(SERVERS[party])

    def pairs(self, party: int) -> Pairs:
        desk = self.desks[party]
        return Pairs(desk.studies, desk.database, desk.store.vault, self.study, self.digests)

    def meet(self, interceptor: Callable[[Message], object] | None = None, scope: bytes = SCOPE) -> list[object]:
        """What each comes to, or the error that it ends with."""

        async def one(channel) -> object:
            try:
                return await agree(channel, self.pairs(channel.party), scope)
            except PeerError as error:
                await channel.abort(str(error), error.party)
                return error
            except Crash as crash:
                await channel.close()
                return crash

        async def scenario() -> list[object]:
            return await asyncio.gather(*map(one, memory_channels(interceptor=interceptor, stall=5.0)))

        return asyncio.run(scenario())

    def rows(self, party: int) -> dict[str, tuple[bytes, bytes | None]]:
        with self.desks[party].database.begin() as connection:
            return {row.peer: (row.drawn, row.received) for row in connection.execute(select(tables.pairs))}


@pytest.fixture
def trio(tmp_path) -> Trio:
    return Trio(tmp_path)


def altered(
    size: int, source: int, change: Callable[[bytes], bytes], dests: Sequence[int] = (0,)
) -> Callable[[Message], bytes]:
    """Changes messages of one length from one party, to S1 if nobody else is named."""

    def intercept(message: Message) -> bytes:
        mine = (message.source, len(message.payload)) == (source, size) and message.dest in dests
        return change(message.payload) if mine else message.payload

    return intercept


def flipped(payload: bytes) -> bytes:
    return payload[:-1] + bytes([payload[-1] ^ 1])


def culprit(error: object) -> int | None:
    """Who is to blame: who is named by the error, or by a peer that gave up."""
    assert isinstance(error, PeerError), error
    return error.blames if isinstance(error, PeerAborted) else error.party


def consistent(found: list[object]) -> dict[tuple[int, int], bytes]:
    """Every pair has one secret, of its own."""
    assert all(isinstance(one, dict) for one in found), found
    secrets = {(party, peer): secret for party, one in enumerate(found) for peer, secret in one.items()}
    assert all(secrets[a, b] == secrets[b, a] for a, b in secrets)
    assert (len(secrets), len(set(secrets.values()))) == (6, 3)
    return secrets


def test_the_secrets_are_the_same_in_every_session_and_after_a_restart(trio: Trio) -> None:
    first, kept = consistent(trio.meet()), [trio.rows(party) for party in range(3)]
    for party in range(3):
        trio.restart(party)
    assert consistent(trio.meet()) == first
    assert [trio.rows(party) for party in range(3)] == kept


def test_another_run_and_another_build_have_other_secrets(trio: Trio) -> None:
    inputs, run, build = "11" * 32, "22" * 16, "33" * 32
    scopes = [
        scope_of(trio.study, inputs, run, build),
        scope_of(trio.study, inputs, run, "34" * 32),
        scope_of(trio.study, inputs, "23" * 16, build),
        scope_of(trio.study, "12" * 32, run, build),
    ]
    secrets = [consistent(trio.meet(scope=scope))[0, 1] for scope in scopes]
    assert len(set(secrets)) == len(scopes)


def test_what_is_kept_is_encrypted(trio: Trio) -> None:
    """Neither a secret nor anything that was sent stands in the database as it is."""
    seen: list[bytes] = []

    def listen(message: Message) -> bytes:
        seen.append(message.payload)
        return message.payload

    secrets = set(consistent(trio.meet(listen)).values())
    drawn = {one.secret for party in range(3) for one in trio.pairs(party).drawn(publics(trio, party)).values()}
    for desk in trio.desks:
        state = desk.home / "state"
        raw = b"".join(path.read_bytes() for path in state.iterdir() if path.is_file())
        assert not any(value in raw for value in (*secrets, *drawn, *seen))


def publics(trio: Trio, party: int) -> dict[int, bytes]:
    return {peer: trio.pairs(peer).public for peer in range(3) if peer != party}


# A server commits what it drew, then what it got.
@pytest.mark.drawn(4)
@pytest.mark.parametrize(("victim", "number", "after"), list(product(range(3), (1, 2), (False, True))))
def test_a_crash_before_or_after_each_write_changes_nothing(trio: Trio, victim: int, number: int, after: bool) -> None:
    commits = count(1)

    def commit(_: object) -> None:
        if next(commits) == number:
            raise Crash

    method = "drawn" if number == 1 else "keep"
    genuine = getattr(Pairs, method)

    def written(self: Pairs, *arguments: object) -> object:
        done = genuine(self, *arguments)
        if self._party == victim:
            raise Crash
        return done

    with pytest.MonkeyPatch.context() as patch:
        if after:
            patch.setattr(Pairs, method, written)
        else:
            event.listen(trio.desks[victim].database, "commit", commit)
        found = trio.meet()
    assert isinstance(found[victim], Crash)
    survivors = {party: one for party, one in enumerate(found) if isinstance(one, dict)}
    assert len(survivors) == (0 if number == 1 else 2), "once they have what it drew, the others need it no more"
    trio.restart(victim)
    sent = trio.rows(victim)
    assert len(sent) == (0 if number == 1 and not after else 2)
    secrets = consistent(trio.meet())
    for party, one in survivors.items():
        assert all(secrets[party, peer] == secret for peer, secret in one.items())
    assert all(trio.rows(victim)[peer][0] == drawn for peer, (drawn, _) in sent.items())


@pytest.mark.parametrize(
    ("size", "change", "kind", "said"),
    [
        pytest.param(KEYS, flipped, PeerDisagrees, "disagrees on its exchange key", id="public key"),
        pytest.param(CIPHERTEXTS, flipped, PeerViolation, "what it sent is a ciphertext that was altered", id="check"),
        pytest.param(
            CIPHERTEXTS, lambda payload: flipped(payload[:9]) + payload[9:], PeerViolation, "altered", id="ciphertext"
        ),
        pytest.param(KEYS, lambda payload: payload[:-1], PeerViolation, "", id="short key"),
        pytest.param(CIPHERTEXTS, lambda payload: payload + b"0", PeerViolation, "", id="long ciphertext"),
    ],
)
@pytest.mark.parametrize("source", [1, 2])
def test_what_was_altered_is_refused_and_named_and_not_kept(
    trio: Trio, source: int, size: int, change: Callable[[bytes], bytes], kind: type[PeerError], said: str
) -> None:
    error = trio.meet(altered(size, source, change))[0]
    assert isinstance(error, kind), error
    assert error.party == source
    assert said in str(error)
    assert all(received is None for _, received in trio.rows(0).values())
    consistent(trio.meet())


def test_the_others_learn_whose_key_was_refused(trio: Trio) -> None:
    _, guilty, third = trio.meet(altered(KEYS, 1, flipped))
    assert isinstance(guilty, PeerAborted)
    assert isinstance(third, PeerAborted)
    assert (guilty.blames, third.blames) == (1, 1)


def test_a_key_that_nobody_signed_is_refused(trio: Trio) -> None:
    trio.digests |= {"S3": public_digest(ExchangeKey.generate().public)}
    errors = trio.meet()[:2]
    assert [culprit(error) for error in errors] == [2, 2]
    assert any(isinstance(error, PeerDisagrees) and error.field == "its exchange key" for error in errors)
    assert not trio.rows(0)


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(lambda public: bytes(32) + public[32:], id="a point of small order"),
        pytest.param(lambda public: public[:32] + b"\xff" * 1184, id="no ML-KEM key"),
    ],
)
def test_a_signed_key_that_is_none_is_the_peers_fault(trio: Trio, bad: Callable[[bytes], bytes]) -> None:
    """It approved with the digest of what it sends."""
    sent = bad(trio.pairs(1).public)
    trio.digests |= {"S2": public_digest(sent)}
    first, _, third = trio.meet(altered(KEYS, 1, lambda _: sent, dests=(0, 2)))
    assert [culprit(first), culprit(third)] == [1, 1]
    assert any(isinstance(error, PeerViolation) for error in (first, third))
    assert "S2: what it sent is not an exchange key" in str(first)


def test_a_peer_that_lost_what_it_drew_is_refused(trio: Trio) -> None:
    """As one restored from an old backup: other randomness would be a second noise for one charge."""
    consistent(trio.meet())
    with trio.desks[1].database.begin() as connection:
        connection.execute(delete(tables.pairs))
    before = [trio.rows(0), trio.rows(2)]
    found = trio.meet()
    assert [culprit(found[0]), culprit(found[2])] == [1, 1]
    assert "disagrees on what it drew for this study" in str(found[0])
    assert [trio.rows(0), trio.rows(2)] == before


def test_erasing_the_shares_erases_all_of_it(trio: Trio) -> None:
    consistent(trio.meet())
    desk = trio.desks[0]
    wrapped = [value for pair in trio.rows(0).values() for value in pair]
    assert len(wrapped) == 4
    assert desk.call(Scope.OPERATOR, "DELETE", "/shares").status_code == 200
    assert trio.rows(0) == {}
    files = [path.read_bytes() for path in (desk.home / "state").rglob("*") if path.is_file()]
    assert not any(value in content for value in wrapped for content in files)
    pairs = trio.pairs(0)
    for act in (lambda: pairs.public, lambda: pairs.drawn(publics(trio, 0)), lambda: pairs.keep({})):
        with pytest.raises(LocalError, match="are erased"):
            act()
    assert trio.rows(0) == {}, "a session that was under way brings nothing back"
