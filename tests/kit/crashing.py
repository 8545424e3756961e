"""`python -m tests.kit.crashing MODULE`: a service that kills itself where a test says, as a power failure would.

It runs as always until there is a file CAPS_HOME/crash with a point and a number, such as "exchange 7": then the
seventh time from now that it comes to the point, the file is removed and the process ends by SIGKILL. The points:

    committing   before a commit that writes to a run, a step or the ledger
    committed    after one
    pairing      before a commit that writes what a pair of servers drew
    paired       after one
    storing      before a blob is written
    stored       after it
    exchange     before a message leaves for the peers
    waiting      after it left, while theirs are awaited
    answering    before a response to a request for a step leaves

CAPS_HOME/crash with the number 0 lists the points come to, one a line, in CAPS_HOME/points instead.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.engine.default import DefaultDialect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import services.mpc_server.storage.shares
import services.mpc_server.transport.session
from tests.kit.wrapping import add_middleware, run

POINTS = ("committing", "committed", "storing", "stored", "exchange", "waiting", "answering")
"""All that a server comes to in a run whose servers have met: what they drew is written before its first step."""
FILE, LIST = "crash", "points"
_WRITES = ("INSERT INTO runs", "INSERT INTO steps", "INSERT INTO ledger", "UPDATE runs", "UPDATE steps")
_PAIRS = ("INSERT INTO pairs", "UPDATE pairs")


def arm(home: Path, point: str, number: int) -> None:
    """Have a service end at a point."""
    half = home / f"{FILE}.new"
    half.write_text(f"{point} {number}")
    half.rename(home / FILE)


def points(home: Path) -> Counter[str]:
    """How often a service came to each point since it was armed with the number 0; it no longer lists them."""
    (home / FILE).unlink()
    found = Counter((home / LIST).read_text().split())
    (home / LIST).unlink()
    return found


class Fuse:
    """Ends the process at the point and the number that a file says, or lists the points."""

    def __init__(self, home: Path) -> None:
        self._file, self._list = home / FILE, home / LIST
        self._seen: Counter[str] = Counter()

    def reach(self, point: str) -> None:
        """Come to a point."""
        try:
            wanted, number = self._file.read_text().split()
        except FileNotFoundError:
            self._seen.clear()
            return
        if number == "0":
            with self._list.open("a") as out:
                out.write(point + "\n")
            return
        self._seen[point] += 1
        if point == wanted and self._seen[point] == int(number):
            self._file.unlink()
            os.kill(os.getpid(), signal.SIGKILL)


def install(fuse: Fuse) -> None:
    """Wrap what the service does at every point."""
    install_commits(fuse, _WRITES)
    install_commits(fuse, _PAIRS, ("pairing", "paired"))
    _install_store(fuse)
    install_exchanges(fuse)
    install_answers(fuse, lambda scope, start: start["status"] == 200 and "/steps/" in scope["path"])


def install_commits(fuse: Fuse, writes: tuple[str, ...], points: tuple[str, str] = ("committing", "committed")) -> None:
    """Come to points before and after a commit, if a statement of it begins with one of these."""
    before, after = points
    wrote: set[int] = set()

    def note(_: object, cursor: Any, statement: str, *__: object) -> None:
        if statement.startswith(writes):
            wrote.add(id(cursor.connection))

    event.listen(Engine, "before_cursor_execute", note)
    commit = DefaultDialect.do_commit

    def do_commit(self: DefaultDialect, connection: Any) -> None:
        counts = id(connection.dbapi_connection) in wrote
        wrote.discard(id(connection.dbapi_connection))
        if counts:
            fuse.reach(before)
        commit(self, connection)
        if counts:
            fuse.reach(after)

    DefaultDialect.do_commit = do_commit


def _install_store(fuse: Fuse) -> None:
    store = services.mpc_server.storage.shares.ShareStore
    put = store.put

    def wrapped(self: Any, *arguments: Any) -> None:
        fuse.reach("storing")
        put(self, *arguments)
        fuse.reach("stored")

    store.put = wrapped


def install_exchanges(fuse: Fuse) -> None:
    """Come to points in the middle of a round with the peers."""
    session = services.mpc_server.transport.session.Session
    exchange, settled = session.exchange, session._settled

    async def wrapped(self: Any, tag: bytes, outgoing: Mapping[int, Any], incoming: Mapping[int, int]) -> Any:
        fuse.reach("exchange")
        return await exchange(self, tag, outgoing, incoming)

    async def waiting(self: Any) -> None:
        fuse.reach("waiting")
        await settled(self)

    session.exchange, session._settled = wrapped, waiting


def install_answers(fuse: Fuse, counts: Callable[[Scope, Message], bool]) -> None:
    """Come to a point before an answer leaves, if its request and its head are such that it counts."""
    add_middleware(_Answering, fuse=fuse, counts=counts)


class _Answering:
    def __init__(self, app: ASGIApp, fuse: Fuse, counts: Callable[[Scope, Message], bool]) -> None:
        self.app, self.fuse, self.counts = app, fuse, counts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start" and self.counts(scope, message):
                self.fuse.reach("answering")
            await send(message)

        await self.app(scope, receive, sending)


if __name__ == "__main__":
    install(Fuse(Path(os.environ["CAPS_HOME"])))
    run()
