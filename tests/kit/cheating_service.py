"""`python -m tests.kit.cheating_service MODULE`: an MPC server that deviates from the protocol where a test says.

It runs as always until there is a file CAPS_HOME/cheat with a lie and a part of a step's name, such as
"message /compute/": then in the next round of such a step in which it sends something it cheats once, the file is
removed and CAPS_HOME/cheated has the step's name. In that session it does not mind if its own checks fail. The lies:

    message   what it sends is altered, what it keeps is not
    copy      both alike: without a check, servers hold a consistent sharing of another value
    check     as message, in a round of a check of earlier messages
    leave     as message, and from then on every time, but it ends the session before it is judged

CAPS_TEST_SESSIONS: how many sessions of a study may end in the middle of a computation, in place of the usual number.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np

from caps.errors import CheatingDetected, PeerLost
from services.mpc_server.engine.context import Checks, Round
from services.mpc_server.engine.guard import Guard
from services.mpc_server.engine.runtime import Runtime
from services.mpc_server.runs import record
from tests.kit.wrapping import run

FILE, DONE = "cheat", "cheated"
LIES = ("message", "copy", "check", "leave")
SHIFT = 252_000
"""Added to every word of a message that is long enough."""


def arm(home: Path, lie: str, step: str) -> None:
    """Have a server cheat. `step`: a regular expression."""
    (home / DONE).unlink(missing_ok=True)
    half = home / f"{FILE}.new"
    half.write_text(f"{lie} {step}")
    half.rename(home / FILE)


def disarm(home: Path) -> None:
    """Have a server be honest again."""
    (home / FILE).unlink(missing_ok=True)


def cheated(home: Path) -> str | None:
    """The step in which a server has cheated since it was armed."""
    return (home / DONE).read_text() if (home / DONE).exists() else None


def altered(words: np.ndarray) -> np.ndarray:
    """Other words of the same kind."""
    if words.dtype == np.uint64:
        return words + np.uint64(SHIFT)
    return words ^ words.dtype.type(1)


class Liar:
    """Cheats once, when and how the file says."""

    def __init__(self, home: Path) -> None:
        self._file, self._done = home / FILE, home / DONE
        self.guard: Checks | None = None
        """The guard of the session in which it cheated last."""
        self.leaves: Checks | None = None
        """That of a session which it is going to leave."""

    def passing(self, session: Runtime, request: Round) -> Round:
        """A round of a session as it is, or with a lie in it."""
        if self.leaves is session.context.guard and any(name.startswith(b"/guard/") for name in request.names):
            raise PeerLost(next(iter(session.channel.peers)), "left before it is judged")
        if not self._file.exists() or not any(words.size for _, words in request.sends):
            return request
        lie, _, step = self._file.read_text().partition(" ")
        names = [name.decode() for name in request.names]
        checks = all(name.startswith("/guard/") for name in names)
        if checks != (lie == "check") or not any(re.search(step, name) for name in names):
            return request
        self.guard = session.context.guard
        if lie == "leave":
            self.leaves = self.guard
        else:
            self._file.unlink()
        self._done.write_text(" ".join(names))
        if lie == "copy":
            for _, words in request.sends:
                if words.flags.writeable:
                    words[...] = altered(words)
            return request
        return Round(request.names, [(peer, altered(words)) for peer, words in request.sends], request.awaits)


def install(liar: Liar) -> None:
    """Have every round of the engine pass by the liar."""
    exchange, validate = Runtime._exchange, Guard.validate

    async def wrapped(self: Runtime, request: Round) -> Any:
        return await exchange(self, liar.passing(self, request))

    async def stubborn(self: Guard) -> None:
        try:
            await validate(self)
        except CheatingDetected:
            if self is not liar.guard:
                raise
            self.verdict, self.failed = None, False
            self._running.clear()

    Runtime._exchange, Guard.validate = wrapped, stubborn


if __name__ == "__main__":
    record.MOST_SESSIONS = int(os.environ.get("CAPS_TEST_SESSIONS", record.MOST_SESSIONS))
    install(Liar(Path(os.environ["CAPS_HOME"])))
    run()
