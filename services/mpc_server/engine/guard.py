"""What has to be checked before anything is opened.

In a scheme that stops servers which cheat, every message is filed with the session's guard as it is sent or received:
as a claim to be proved, or as bytes to be compared. `validate` checks all that was filed, or raises, and the session is
over. Nobody has to remember it: the verbs that open values await it first, and so does `Runtime.execute` before it
hands out a result.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from types import coroutine

from caps.errors import CheatingDetected, SessionClosed
from caps.shares.ring import Words
from services.mpc_server.engine.context import Context, Replies, Round
from services.mpc_server.engine.registry import verb


class Guard(ABC):
    """One party's checks in one session. All parties file the same things in the same order."""

    def __init__(self, ctx: Context) -> None:
        """`ctx`: where checks have their messages and coins. Its path is used for nothing else."""
        self._ctx = ctx
        self._begun = self._waits = 0
        self._running: set[int] = set()
        self._over = False
        self.rounds = 0
        """Rounds of all checks so far, as far as they were not shared with other messages."""
        self.sent = 0
        """Payload bytes that this party sent in checks."""
        self.failed = False
        """Whether a check is known to have failed, while it is being found out who is in question."""
        self.verdict: CheatingDetected | None = None
        """What this party has found out, while it gives the others time to do so; then it raises this."""

    @property
    @abstractmethod
    def pending(self) -> bool:
        """Whether something was filed that is not being checked yet."""

    @property
    @abstractmethod
    def full(self) -> bool:
        """Whether what is filed takes so much memory that it should be checked now."""

    @abstractmethod
    async def check(self, ctx: Context) -> None:
        """Take all that is filed and check it, with messages by `exchange`. Raises CheatingDetected.

        What is filed must be taken before the first message: other branches file more meanwhile.
        """

    async def validate(self) -> None:
        """Return when all that has been filed so far is checked; raise if a check fails. No rounds if there is none.

        Once a check has failed, nothing is valid any more: whoever asks again is told that the session is over.
        """
        if self._over:
            raise SessionClosed("a check of this session did not come to a good end")
        if self.pending:
            number, self._begun = self._begun, self._begun + 1
            self._running.add(number)
            try:
                await self.check(self._ctx.step(f"check{number}"))
            except BaseException:
                self._over = True
                raise
            self._running.discard(number)
        # What another branch is having checked may be what this one is about to open.
        begun = self._begun
        while any(number < begun for number in self._running):
            self._waits += 1
            await self._ctx.step(f"wait{self._waits}").exchange([], [])

    async def settle(self) -> None:
        """Validate, if what is filed has become large. To be awaited by verbs after filing."""
        if self.full:
            await self.validate()

    @coroutine
    def exchange(
        self, ctx: Context, sends: list[tuple[int, Words]], awaits: list[tuple[int, int]]
    ) -> Generator[Round, Replies, Replies]:
        """One round of a check: as that of a context, and counted."""
        self.rounds += 1
        self.sent += sum(words.nbytes for _, words in sends)
        return (yield from ctx.exchange(sends, awaits))


class Unguarded(Guard):
    """For schemes in which servers are trusted to follow the protocol: there is nothing to check."""

    pending = False
    full = False

    async def check(self, ctx: Context) -> None:
        """Nothing."""


@verb
def guard(ctx: Context) -> Guard:
    """The guard of a session; `ctx` is where it has its messages. Local."""
    raise NotImplementedError
