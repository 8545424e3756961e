"""Three processes measured together: starts them, gives them commands in step, and always kills them.

A repetition is timed from the first party's start to the last party's end, by the clock all processes of a host share.
"""

import json
import os
import queue
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.peers.certificates import Credentials, make_credentials
from bench.peers.tasks import Task
from caps.federation.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
PARTIES = 3
STDERR_TAIL = 600


class PartyFailed(Exception):
    """A measured process ended, fell silent or was wrong."""


class Party:
    """One measured process and the pipe to it."""

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        rank: int,
        environment: Mapping[str, str],
        replies: "queue.Queue[tuple[int, str]]",
    ) -> None:
        self.rank = rank
        self._replies = replies
        self._stderr_path = folder / f"stderr-{rank}"
        with self._stderr_path.open("wb") as stderr:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
                text=True,
            )
        threading.Thread(target=self._pump, daemon=True).start()

    def _pump(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._replies.put((self.rank, line))
        self._replies.put((self.rank, ""))

    def tell(self, message: Mapping[str, Any]) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError as error:
            raise PartyFailed(self.obituary()) from error

    def obituary(self) -> str:
        try:
            status: int | str = self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            status = "none yet"
        tail = self._stderr_path.read_text(errors="replace")[-STDERR_TAIL:].strip()
        return f"party {self.rank} ended with status {status}: {tail}"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue


class Parties:
    """A peer's processes, connected to one another; a context manager.

    `configure(rank, ports, credentials, folder)` gives each party its first message.
    """

    def __init__(
        self,
        command: Sequence[str],
        configure: Callable[[int, list[int], Credentials, Path], Mapping[str, Any]],
        *,
        environment: Mapping[str, str],
        seconds: float,
        count: int = PARTIES,
    ) -> None:
        self._command = command
        self._configure = configure
        self._environment = environment
        self._deadline = time.monotonic() + seconds
        self._count = count
        self._parties: list[Party] = []
        self._replies: queue.Queue[tuple[int, str]] = queue.Queue()
        self._folder = tempfile.TemporaryDirectory(prefix="caps-bench-")

    def __enter__(self) -> Self:
        try:
            folder = Path(self._folder.name)
            config = folder / ".config"
            config.mkdir()
            # MPyC insists on these subjects, on the folder's name and on the files' names; the others do not mind.
            credentials = make_credentials(config, tuple(f"MPyC party {rank}" for rank in range(self._count)))
            ports = free_ports(self._count)
            for rank in range(self._count):
                self._parties.append(Party(self._command, folder, rank, self._environment, self._replies))
                self._parties[rank].tell(self._configure(rank, ports, credentials[rank], folder))
            self._hear_all()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for party in self._parties:
            party.kill()
        self._folder.cleanup()

    def measure(self, task: Task, *, repetitions: int) -> dict[str, Any]:
        """One warm-up, which is also what is verified first; the repetitions; a run that counts; a last check."""
        self.ask("prepare", task=asdict(task))
        self.ask("run")
        self._check()
        walls, processors = [], []
        for _ in range(repetitions):
            runs = self.ask("run")
            walls.append(max(run["end"] for run in runs) - min(run["start"] for run in runs))
            processors.append(sum(usage["cpu"] for usage in self.ask("usage")))
        self._check()
        costs = self.ask("cost")
        return {
            "seconds": statistics.median(walls),
            "seconds_best": min(walls),
            "cpu_seconds": statistics.median(processors),
            "bytes": sum(cost["bytes"] for cost in costs),
            "rounds": max(cost["messages"] for cost in costs),
            "repetitions": repetitions,
        }

    def ask(self, command: str, **fields: Any) -> list[dict[str, Any]]:
        for party in self._parties:
            party.tell({"command": command, **fields})
        return self._hear_all()

    def _hear_all(self) -> list[dict[str, Any]]:
        """One reply of each party, in order; the first to die, or the deadline, ends the wait for all."""
        replies: dict[int, dict[str, Any]] = {}
        while len(replies) < self._count:
            try:
                rank, line = self._replies.get(timeout=max(0.0, self._deadline - time.monotonic()))
            except queue.Empty:
                silent = sorted(set(range(self._count)) - set(replies))
                raise PartyFailed(f"no answer in time from {silent}") from None
            if not line:
                raise PartyFailed(self._parties[rank].obituary())
            replies[rank] = json.loads(line)
        return [replies[rank] for rank in range(self._count)]

    def _check(self) -> None:
        if not all(reply["correct"] for reply in self.ask("verify")):
            raise PartyFailed("the result is wrong")
