"""Workers that are processes of this machine. Rows and sums pass through memory that leader and worker share.

That memory has no name in any file system and goes with the processes. Tasks and news of them are lines of JSON on
pipes. A process is started when there is something for it, and ends when the leader's end of its pipe is closed.
"""

from __future__ import annotations

import json
import mmap
import os
import selectors
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from services.mpc_server.process import worker_environment
from services.mpc_server.workers.leader import Staff, WorkerLost
from services.mpc_server.workers.tasks import Octets, Task

MODULE = "services.mpc_server.workers.process"
_LONGEST_NEWS = 1 << 12


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def can_share_memory() -> bool:
    """Whether this system has memory that processes can share without a name: Linux."""
    return hasattr(os, "memfd_create")


@dataclass(slots=True, eq=False)
class _Process:
    """A worker: its process, and the memory that it shares with the leader."""

    process: subprocess.Popen[bytes]
    file: int
    memory: mmap.mmap | None = None
    result: tuple[int, int] = (0, 0)

    def room(self, size: int) -> mmap.mmap:
        """The shared memory, with room for so many bytes."""
        if self.memory is None or len(self.memory) < size:
            os.ftruncate(self.file, size)
            if self.memory is not None:
                self.memory.close()
            self.memory = mmap.mmap(self.file, size)
        return self.memory

    def end(self) -> None:
        """End it, whatever it does."""
        self.process.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with suppress(OSError):  # what was not written yet is not wanted any more
                    stream.close()
        self.process.wait()
        os.close(self.file)
        if self.memory is not None:
            self.memory.close()


class Pool(Staff):
    """So many processes, called worker 1, worker 2 and so on. One that was dismissed is replaced in the next job."""

    def __init__(self, size: int, *, module: str = MODULE) -> None:
        self._size = size
        self._module = module
        self._started = 0
        self._processes: dict[str, _Process] = {}
        self._news: deque[tuple[str, Octets | WorkerLost]] = deque()
        self._selector = selectors.DefaultSelector()

    def present(self) -> Sequence[str]:
        for name in [name for name, one in self._processes.items() if one.process.poll() is not None]:
            self.dismiss(name, "it has ended")
        while len(self._processes) < self._size:
            self._start()
        return list(self._processes)

    def _start(self) -> None:
        self._started += 1
        name = f"worker {self._started}"
        file = os.memfd_create(name, os.MFD_CLOEXEC)
        process = subprocess.Popen(
            [sys.executable, "-m", self._module, str(file)],
            env=worker_environment({name: value for name, value in os.environ.items() if name[:5] != "CAPS_"}),
            pass_fds=[file],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        self._processes[name] = _Process(process, file)
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        self._selector.register(process.stdout, selectors.EVENT_READ, name)

    def processes(self) -> dict[str, int]:
        """The numbers of the workers' processes."""
        return {name: one.process.pid for name, one in self._processes.items()}

    def give(self, worker: str, task: Task, result_bytes: int) -> None:
        one = self._processes[worker]
        sent = sum(map(len, task.sent))
        start = -(-sent // mmap.PAGESIZE) * mmap.PAGESIZE
        memory, at = one.room(start + result_bytes), 0
        for octets in task.sent:
            memory[at : at + len(octets)] = octets
            at += len(octets)
        one.result = start, start + result_bytes
        line = json.dumps({**task.header, "sent": sent, "result": one.result}).encode() + b"\n"
        assert one.process.stdin is not None
        try:
            one.process.stdin.write(line)
        except OSError:
            raise WorkerLost(_why_ended(one.process)) from None

    def returned(self, seconds: float) -> tuple[str, Octets | WorkerLost] | None:
        if not self._news:
            for key, _ in self._selector.select(seconds):
                self._news.append((key.data, self._read(self._processes[key.data])))
        return self._news.popleft() if self._news else None

    def _read(self, one: _Process) -> Octets | WorkerLost:
        assert one.process.stdout is not None
        line = os.read(one.process.stdout.fileno(), _LONGEST_NEWS)
        if not line:
            return WorkerLost(_why_ended(one.process))
        if line != b"done\n" or one.memory is None:
            return WorkerLost("it says what no worker says")
        return one.memory[slice(*one.result)]

    def dismiss(self, worker: str, reason: str) -> None:
        one = self._processes.pop(worker, None)
        if one is not None:
            assert one.process.stdout is not None
            self._selector.unregister(one.process.stdout)
            self._news = deque(news for news in self._news if news[0] != worker)
            one.end()

    def close(self) -> None:
        for name in list(self._processes):
            self.dismiss(name, "the server stops")
        self._selector.close()


def _why_ended(process: subprocess.Popen[bytes]) -> str:
    with suppress(subprocess.TimeoutExpired):
        process.wait(1)
    return f"its process {process.pid} ended with code {process.returncode}"
