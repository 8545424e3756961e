"""The join at one server: memory of a run, and its local work with nobody to wait for.

What a server receives is recorded once, and then played back to it. So processor time is that of its own work without
TLS, by phase, and what it sends can be compared: it must be the same however many threads work at it.
"""

from __future__ import annotations

import ctypes
import hashlib
import heapq
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import coroutine
from typing import Any, TypeVar
from zlib import adler32

from bench.join_tasks import PHASES, joined, layout_of, plan_of, table
from bench.timing import barrier
from caps.errors import SessionClosed
from caps.study.memory import joining_memory
from services.mpc_server.channel import Buffers, Channel, Traffic
from services.mpc_server.engine.context import Branch, Replies, Round
from services.mpc_server.engine.runtime import Runtime
from services.mpc_server.engine.workers import IN_PROCESS, InProcess, Threads, Workers

T = TypeVar("T")

THREADS = (1, 2, 4, 8)
"""Threads for which seconds are computed from the processor time of each call; it is run with one and with two."""
CHECKS, REST = "checks", "rest"


async def measure(party: Runtime, rows: int, alone: bool) -> dict[str, Any]:
    """A join of two tables of so many rows: at each server over TLS, with its memory; and then the work of S2 alone.

    That takes as much memory as the messages that S2 receives.
    """
    layout, plan, scheme = layout_of(), plan_of(), party.context.scheme
    program = _resident("VmRSS")
    tables = [table(party, layout, holder, rows) for holder in range(2)]
    shapes = [one.rows.shape for one in tables]
    held = sum(part.nbytes for one in tables for part in one.rows.components)

    async def run(channel: Channel, name: bytes, workers: Workers = IN_PROCESS, clock: Clock | None = None) -> None:
        public = {component: hashlib.sha256(b"%d" % component).digest() for component in scheme.held[channel.party]}
        own = Runtime(
            channel,
            study=party.context.owner.study,
            scheme=scheme,
            scope=name,
            secrets=public,
            session=public,
            workers=workers,
        )
        if clock is not None:
            guard: Any = own.context.guard
            guard.check = clock.watched(CHECKS, guard.check)
        await own.execute(joined(own.context.step("join"), tables, layout, plan))

    await barrier(party, party.context.step("ready"))
    # The peak is that of what follows, without what making the tables has left behind.
    _forget_peak()
    traffic = party.channel.traffic
    rounds, sent, wall, cpu = traffic.rounds, traffic.sent, time.perf_counter(), time.process_time()
    await run(party.channel, b"whole")
    entry: dict[str, Any] = {
        "walls": [time.perf_counter() - wall],
        "cpus": [time.process_time() - cpu],
        "rounds": traffic.rounds - rounds,
        "sent": traffic.sent - sent,
        "peak": _resident("VmHWM") - program,
        "forecast": held + joining_memory([(n + 2 * plan.reach, width) for n, width in shapes], layout, scheme),
    }
    if not alone:
        return entry
    recording = _Recording(party.channel)
    await run(recording if party.context.party == 1 else party.channel, b"alone")
    if party.context.party == 1:
        found = {threads: await _alone(recording, threads, run) for threads in (1, 2)}
        if found[1]["sent"] != found[2]["sent"]:
            raise RuntimeError("what a server sends depends on the number of its threads")
        entry["alone"] = found
    await barrier(party, party.context.step("done"))
    return entry


async def _alone(recording: _Recording, threads: int, run: Callable[..., Any]) -> dict[str, Any]:
    """Processor seconds of the recorded run by phase, and the seconds it would take with more threads."""
    crew, clock = _Crew(threads), Clock()
    originals = {phase: getattr(module, name) for phase, (module, name) in PHASES.items()}
    for phase, (module, name) in PHASES.items():
        setattr(module, name, clock.watched(phase, originals[phase]))
    try:
        channel, wall, cpu = _Playback(recording), time.perf_counter(), time.process_time()
        await run(channel, b"alone", crew, clock)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    finally:
        crew.close()
        for phase, (module, name) in PHASES.items():
            setattr(module, name, originals[phase])
    phases = {**clock.spent, REST: cpu - sum(clock.spent.values())}
    own = cpu - sum(map(sum, crew.spent))
    return {
        "seconds": wall,
        "cpu_seconds": cpu,
        "phases": phases,
        "computed_seconds": {k: own + sum(makespan(calls, k) for calls in crew.spent) for k in THREADS},
        "sent": channel.digest.hexdigest(),
    }


def makespan(seconds: Sequence[float], threads: int) -> float:
    """When the last call ends, if each goes to the thread that is free first."""
    free = [0.0] * threads
    for one in seconds:
        heapq.heapreplace(free, free[0] + one)
    return max(free)


class Clock:
    """Processor seconds in each phase, without those of a phase within it."""

    def __init__(self) -> None:
        self.spent = dict.fromkeys([*PHASES, CHECKS], 0.0)
        self._since, self._within = 0.0, [""]

    def watched(self, phase: str, protocol: Any) -> Any:
        """The protocol, its time added to the phase's."""

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._timed(phase, protocol(*args, **kwargs))

        return call

    def _turn(self) -> None:
        now = time.process_time()
        if self._within[-1]:
            self.spent[self._within[-1]] += now - self._since
        self._since = now

    @coroutine
    def _timed(self, phase: str, branch: Branch[T]) -> Generator[Round, Replies, T]:
        replies: Replies | None = None
        while True:
            self._turn()
            self._within.append(phase)
            try:
                request = branch.send(replies)
            except StopIteration as finished:
                result: T = finished.value
                return result
            finally:
                self._turn()
                self._within.pop()
            replies = yield request


class _Crew(InProcess):
    """Threads, and the processor seconds of each call: a list for each time that some ran side by side."""

    def __init__(self, threads: int) -> None:
        self._threads = Threads(threads)
        self.spent: list[list[float]] = []

    def each(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        def timed(call: Callable[[], T]) -> tuple[T, float]:
            start = time.thread_time()
            result = call()
            return result, time.thread_time() - start

        results = self._threads.each([partial(timed, call) for call in calls])
        self.spent.append([seconds for _, seconds in results])
        return [result for result, _ in results]

    def close(self) -> None:
        self._threads.close()


class _Recording:
    """A channel that keeps what is received."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.received: list[Mapping[int, bytes]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.channel, name)

    async def exchange(
        self, tag: bytes, outgoing: Mapping[int, Buffers], incoming: Mapping[int, int]
    ) -> Mapping[int, memoryview]:
        found = await self.channel.exchange(tag, outgoing, incoming)
        self.received.append({peer: bytes(message) for peer, message in found.items()})
        return found


class _Playback:
    """The other ends of a recorded channel; digest: of all that is sent to them."""

    def __init__(self, recording: _Recording) -> None:
        self.party = recording.channel.party
        self.peers: Collection[int] = recording.channel.peers
        self.traffic = Traffic()
        self.digest = hashlib.blake2b(digest_size=16)
        self._received = iter(recording.received)

    def secret_with(self, peer: int) -> bytes:
        raise SessionClosed("a recorded session has no secrets")

    async def exchange(
        self, tag: bytes, outgoing: Mapping[int, Buffers], incoming: Mapping[int, int]
    ) -> Mapping[int, memoryview]:
        for peer in sorted(outgoing):
            for piece in outgoing[peer]:
                # Not a digest of all bytes, which would take as long as the work: of sums that any change changes.
                self.digest.update(b"%d %b %d %d;" % (peer, tag, len(piece), adler32(piece)))
        return {peer: memoryview(message) for peer, message in next(self._received).items()}

    async def abort(self, cause: str, blames: int | None = None) -> None:
        """Nobody is there to be told."""

    async def close(self) -> None:
        """There is nothing to close."""


def _forget_peak() -> None:
    """Have VmHWM begin anew, from what is in use."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def _resident(field: str) -> int:
    """Bytes of this process that are in memory: now (VmRSS), or at most (VmHWM)."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(lines[field].split()[0])
