"""Threads of the leader: nobody can tell how many there are, and an error in one of them ends the run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
import pytest

from caps.basics.schemes import REP3, REP3_ACTIVE, REP4, Scheme
from caps.data.domain import Attribute, Domain, Layout
from caps.errors import ShareError
from services.mpc_server.engine import alignment, join
from services.mpc_server.engine.join import Mode, join_answers
from services.mpc_server.engine.rep3_active import claims
from services.mpc_server.engine.rep3_active.proof import bits, protocol
from services.mpc_server.engine.workers import IN_PROCESS, Threads, Workers
from services.mpc_server.testing.world import Recorder, World
from services.mpc_server.workers.leader import Crew
from services.mpc_server.workers.pool import Pool
from services.mpc_server.workers.settings import WorkersSettings
from tests.kit.cases.join import Table, dealt, joined_in_the_clear, person_id, table_input, with_inputs

T = TypeVar("T")
DOMAIN = Domain((Attribute("a", 3), Attribute("b", 2), Attribute("c", 4)))
LAYOUT = Layout(DOMAIN, DOMAIN.downward_closure([("a", "b"), ("b", "c"), ("a", "c")]))
TABLES = [
    Table(names, [person_id(i) for i in people], np.random.default_rng(len(people)).integers(0, 2, (len(people), 2)))
    for names, people in ((("a", "b"), range(150)), (("b", "c"), range(100, 230)))
]


class Busy(Crew):
    """Counts what was not done by the thread that calls."""

    def __init__(self, threads: int) -> None:
        super().__init__(Pool(1), threads=threads)
        self.elsewhere = 0

    def each(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        caller = threading.get_ident()

        def noted(call: Callable[[], T]) -> T:
            self.elsewhere += threading.get_ident() != caller
            return call()

        return super().each([lambda call=call: noted(call) for call in calls])


@pytest.fixture
def crew() -> Iterator[Busy]:
    found = Busy(3)
    yield found
    found.close()


@pytest.fixture
def in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks, batches, groups and validations of a small join, all halvings side by side."""
    monkeypatch.setattr(alignment, "CACHED_BLOCKS", 64)
    monkeypatch.setattr(alignment, "BLOCKS_AT_ONCE", 3)
    monkeypatch.setattr(join, "GROUP_WORDS", 1)
    monkeypatch.setattr(claims, "BUDGET", 1 << 20)
    monkeypatch.setattr(protocol, "_LONG", 1)


def transcript(scheme: Scheme, workers: Workers) -> tuple[dict[tuple[int, int], list[bytes]], np.ndarray]:
    """What servers say to each other in a join, and the marginals."""
    recorder = Recorder()
    world = World(5, scheme=scheme, interceptor=recorder, workers=workers, stall=60)
    inputs = [table_input(f"H{i}", table.attributes) for i, table in enumerate(TABLES)]
    rows = [dealt(table.rows(DOMAIN)) for table in TABLES]
    outcome = world.run(with_inputs(join_answers), *rows, inputs=inputs, layout=LAYOUT, mode=Mode.UNION)
    said: dict[tuple[int, int], list[bytes]] = {}
    for message in recorder.messages:
        said.setdefault((message.source, message.dest), []).append(message.tag + message.payload)
    return said, outcome.value[0]


@pytest.mark.parametrize("scheme", [REP3, REP3_ACTIVE, REP4], ids=lambda scheme: scheme.name)
def test_peers_hear_the_same_of_a_join_however_many_threads_there_are(
    scheme: Scheme, crew: Busy, in_pieces: None
) -> None:
    alone, with_threads = transcript(scheme, IN_PROCESS), transcript(scheme, crew)
    assert alone[0] == with_threads[0]
    assert np.array_equal(alone[1], LAYOUT.marginals(joined_in_the_clear(DOMAIN, TABLES, Mode.UNION)))
    assert np.array_equal(alone[1], with_threads[1])
    assert bool(crew.elsewhere) == (scheme is REP3_ACTIVE), "proofs are what threads do"


def test_an_error_in_a_thread_ends_the_run_with_its_reason(crew: Busy, monkeypatch: pytest.MonkeyPatch) -> None:
    true_fold = bits.fold_signs

    def fails(*arguments: object) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise ShareError("no memory is left for this")
        true_fold(*arguments)

    monkeypatch.setattr(bits, "fold_signs", fails)
    with pytest.raises(Exception, match="no memory is left for this"):
        transcript(REP3_ACTIVE, crew)


def test_results_come_in_order_and_the_first_error_when_all_have_ended() -> None:
    threads, ended = Threads(2), []

    def slow(number: int) -> int:
        time.sleep(0.05 / (1 + number))
        ended.append(number)
        if number % 2:
            raise ShareError(f"call {number}")
        return number

    assert threads.each([lambda: slow(0), lambda: slow(2), lambda: slow(4)]) == [0, 2, 4]
    ended.clear()
    with pytest.raises(ShareError, match="call 1"):
        threads.each([lambda: slow(1), lambda: slow(3), lambda: slow(0)])
    assert sorted(ended) == [0, 1, 3]
    threads.close()


@pytest.mark.filterwarnings("error")
def test_arithmetic_wraps_in_threads_as_it_does_where_it_is_asked_for() -> None:
    threads = Threads(2)
    with np.errstate(over="ignore"):
        assert threads.each([lambda: np.uint64(1 << 63) * np.uint64(2)]) == [0]
    threads.close()


def test_as_many_threads_as_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    for count in (1, 4):
        workers = WorkersSettings.from_environment({"CAPS_WORKERS": str(count)}).workers()
        gate = threading.Barrier(count)
        workers.each([partial(gate.wait, 5)] * count)
        workers.close()
    assert WorkersSettings.from_environment({"CAPS_WORKERS": "0"}).workers() is IN_PROCESS
