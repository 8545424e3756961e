"""Services as processes of their own session, found again later by their id and start.

A process id is used again by others after its process has ended. So what is kept of a process says when it started, by
the kernel's clock of this boot, and a signal goes to a descriptor of the process that was compared with it: whoever has
the id later is never signalled.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from caps.basics.document import Document
from caps.basics.files import replace_private
from caps.errors import DomainError

_PROC = Path("/proc")
_IN_DIRECTORY = 'cd "$1" && shift && exec "$@"'
"""A program of the shell: becomes a command, in a directory."""


class Process(Document):
    """A process that was started here. boot: which run of the kernel. ticks: its start, on the kernel's clock.

    since: the same, as people read it.
    """

    pid: int
    boot: str
    ticks: int
    since: str

    @classmethod
    def read(cls, path: Path) -> Process | None:
        """What was kept of a process; None if nothing was, or it cannot be read, for then it proves nothing."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except (OSError, ValidationError):
            return None

    def keep(self, path: Path) -> None:
        """Write it down."""
        replace_private(path, self.model_dump_json().encode() + b"\n")

    def lives(self) -> bool:
        """Whether this very process still runs."""
        return self.boot == _boot() and _ticks(self.pid) == self.ticks

    def stop(self, seconds: float) -> bool:
        """End it in an orderly way, and at once after so many seconds. Returns whether it ended by itself."""
        with self._descriptor() as descriptor:
            if descriptor is None:
                return True
            signal.pidfd_send_signal(descriptor, signal.SIGTERM)
            orderly = _ended(descriptor, seconds)
            if not orderly:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                _ended(descriptor, seconds)
            _reap(self.pid)
            return orderly

    @contextmanager
    def _descriptor(self) -> Iterator[int | None]:
        """Stands for this process even if its id is given to another meanwhile; None if it has ended."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            yield None
            return
        try:
            yield descriptor if self.lives() else None
        finally:
            os.close(descriptor)


def begin(command: Sequence[str], *, directory: Path, environment: Mapping[str, str], log: Path, since: str) -> Process:
    """Start a command that outlives this process and its terminal; its output is added to the log."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    try:
        pid = os.posix_spawn(
            "/bin/sh",
            ["sh", "-c", _IN_DIRECTORY, "sh", str(directory), *command],
            dict(environment),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(log), flags, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )
    except OSError as error:
        raise DomainError(f"{command[0]} cannot be started: {error.strerror}") from None
    ticks = _ticks(pid)
    return Process(pid=pid, boot=_boot(), ticks=-1 if ticks is None else ticks, since=since)


def _boot() -> str:
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def _ticks(pid: int) -> int | None:
    """When a process started, in ticks since the boot; None if there is none, or only its exit status is left."""
    _reap(pid)
    try:
        line = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *fields = line.rpartition(")")[2].split()  # the name in parentheses may contain anything
    return None if state in "ZX" else int(fields[18])


def _reap(pid: int) -> None:
    """Take the exit status of a process that this one started; the system does it for those of others."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return


def _ended(descriptor: int, seconds: float) -> bool:
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(1000 * seconds))
