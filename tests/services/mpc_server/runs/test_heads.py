"""Servers exchange the heads of their ledgers before they compute: three in one process, some of which lie."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import Engine

from caps.errors import PeerViolation
from caps.study import Manifest
from services.mpc_server.runs.heads import _HEAD, exchange_heads
from services.mpc_server.storage.heads import Heads
from services.mpc_server.storage.ledger import Ledger, LedgerBroken
from services.mpc_server.transport.memory import Interceptor, Message, memory_channels
from tests.kit.federation import opened
from tests.kit.ledger import LIMIT, RUNS, back_up, reserve
from tests.kit.study import AT, SERVERS, Keys, example_manifest

Study = tuple[Manifest, Keys]


@pytest.fixture(scope="module")
def study() -> Study:
    return example_manifest()


@pytest.fixture
def databases(tmp_path: Path) -> Iterator[list[Engine]]:
    with ExitStack() as stack:
        yield [stack.enter_context(opened(tmp_path / f"{name}.db")) for name in SERVERS]


def heads_of(study: Study, databases: Sequence[Engine]) -> list[Heads]:
    return [
        Heads(database, Ledger(database), name, study[1][name].signing)
        for name, database in zip(SERVERS, databases, strict=True)
    ]


def exchanged(
    study: Study, heads: Sequence[Heads], run: str, interceptor: Interceptor | None = None
) -> list[BaseException | None]:
    """One exchange among all; what became of it at each server."""

    async def meet() -> list[BaseException | None]:
        channels = memory_channels(interceptor=interceptor, stall=0.5)

        async def one(party: int) -> None:
            try:
                await exchange_heads(channels[party], heads[party], study[0], run, AT)
            except BaseException as error:
                await channels[party].abort(type(error).__name__)
                raise

        return await asyncio.gather(*(one(party) for party in range(3)), return_exceptions=True)

    return asyncio.run(meet())


def test_heads_of_all_are_kept_by_all(study: Study, databases: list[Engine]) -> None:
    heads = heads_of(study, databases)
    for run in RUNS[:2]:
        for database in databases:
            reserve(database, study[0], run, LIMIT / 4)
        assert exchanged(study, heads, run) == [None] * 3
    for kept in heads:
        found = {(one.document.server, one.document.run, one.document.number) for one in kept.all()}
        assert found == {(name, run, number) for name in SERVERS for number, run in enumerate(RUNS[:2])}
        for one in kept.all():
            one.verify(study[0].server(one.signer))


def test_a_server_that_was_rolled_back_refuses_and_is_refused(
    study: Study, databases: list[Engine], tmp_path: Path
) -> None:
    for database in databases:
        reserve(database, study[0], RUNS[0], LIMIT / 4)
    back_up(databases[1], tmp_path / "backup.db")
    for database in databases:
        reserve(database, study[0], RUNS[1], LIMIT / 4)
    assert exchanged(study, heads_of(study, databases), RUNS[1]) == [None] * 3
    with opened(tmp_path / "backup.db") as backup:
        again = [databases[0], backup, databases[2]]
        found = exchanged(study, heads_of(study, again), RUNS[0])
        assert isinstance(found[1], LedgerBroken)
        assert [str(found[party]) for party in (0, 2)] == ["S2: aborted: LedgerBroken"] * 2
        with pytest.raises(LedgerBroken):
            heads_of(study, again)[1].verify()


def test_a_server_that_was_rolled_back_and_says_nothing_is_refused_by_its_peers(
    study: Study, databases: list[Engine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve(databases[1], study[0], RUNS[0], LIMIT / 4)
    back_up(databases[1], tmp_path / "backup.db")
    for database in databases:
        reserve(database, study[0], RUNS[1], LIMIT / 4)
    assert exchanged(study, heads_of(study, databases), RUNS[1]) == [None] * 3
    with opened(tmp_path / "backup.db") as backup:
        heads = heads_of(study, [databases[0], backup, databases[2]])
        monkeypatch.setattr(heads[1], "told", lambda _: None)
        found = exchanged(study, heads, RUNS[1])
        said = [str(found[party]) for party in (0, 2)]  # whoever sees it first ends the session for the other
        assert any("ends with record 0, but lacks record 1 as it has signed it" in words for words in said)
        assert None not in (found[0], found[2])


def altered(payload: bytes, at: int) -> bytes:
    return payload[:at] + bytes([payload[at] ^ 1]) + payload[at + 1 :]


@pytest.mark.parametrize("at", [0, 10, 40, 60, _HEAD.size - 1], ids=["number", "hash", "run", "time", "signature"])
def test_a_head_that_was_altered_is_refused(study: Study, databases: list[Engine], at: int) -> None:
    for database in databases:
        reserve(database, study[0], RUNS[0], LIMIT / 4)

    def interceptor(message: Message) -> bytes:
        lies = (message.source, message.dest, message.round) == (2, 0, 1)
        return altered(message.payload, at) if lies else message.payload

    heads = heads_of(study, databases)
    found = exchanged(study, heads, RUNS[0], interceptor)[0]
    assert isinstance(found, PeerViolation)
    assert found.party == 2
    assert heads[0].latest(study[0].servers[2]) is None


@pytest.mark.parametrize("at", [0, 10, 40, 60, _HEAD.size - 1], ids=["number", "hash", "run", "time", "signature"])
def test_a_peer_that_lies_about_my_head_changes_nothing(study: Study, databases: list[Engine], at: int) -> None:
    heads = heads_of(study, databases)
    for run in RUNS[:2]:
        for database in databases:
            reserve(database, study[0], run, LIMIT / 4)

        def interceptor(message: Message) -> bytes:
            lies = (message.source, message.dest, message.round) == (2, 0, 0)
            return altered(message.payload, at) if lies else message.payload

        assert exchanged(study, heads, run, interceptor) == [None] * 3
    for kept in heads:
        kept.verify()
