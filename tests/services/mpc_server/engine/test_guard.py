"""The guard of a session: what is filed is checked before anything is opened, and a failed check is for good."""

from __future__ import annotations

import numpy as np
import pytest

from caps.errors import CheatingDetected, SessionClosed
from caps.shares.ring import Z64
from services.mpc_server.engine import guard as guards
from services.mpc_server.engine.context import Context, together
from services.mpc_server.engine.guard import Guard
from services.mpc_server.engine.verbs import reveal
from services.mpc_server.testing.world import World


class Slow(Guard):
    """Checks take three rounds; they fail if told so."""

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        self.filed = 0
        self.fails = False
        self.log: list[str] = []

    @property
    def pending(self) -> bool:
        return self.filed > 0

    @property
    def full(self) -> bool:
        return self.filed > 2

    async def check(self, ctx: Context) -> None:
        self.filed = 0
        self.log.append("begun")
        for number in range(3):
            await self.exchange(ctx.step(number), [], [])
        if self.fails:
            raise CheatingDetected((0, 1))
        self.log.append("done")


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(guards.guard._implementations, "rep3", Slow)


def guard_of(ctx: Context) -> Slow:
    assert isinstance(ctx.guard, Slow)
    return ctx.guard


@pytest.mark.usefixtures("slow")
def test_an_opening_waits_for_checks_that_another_branch_began() -> None:
    """The second branch has nothing to file, but what it opens may be what the first is having checked."""
    logs = []

    async def opened(ctx: Context, x) -> int:
        value = await reveal(ctx, x)
        logs.append([*guard_of(ctx).log])
        return value

    async def both(ctx: Context, x):
        guard_of(ctx).filed = 1
        found = await together(guard_of(ctx).validate(), opened(ctx.step("open"), x))
        return found[1]

    value = World(1).run(both, np.arange(4, dtype=Z64.dtype)).value
    assert value.tolist() == [0, 1, 2, 3]
    assert logs == [["begun", "done"]] * 3


@pytest.mark.usefixtures("slow")
def test_a_failed_check_opens_nothing_and_is_for_good() -> None:
    seen = []

    async def stubborn(ctx: Context, x):
        guard = guard_of(ctx)
        guard.filed, guard.fails = 1, True
        for _ in range(2):
            with pytest.raises((CheatingDetected, SessionClosed)) as caught:
                await reveal(ctx.step("open"), x)
            seen.append(type(caught.value))
        guard.fails = False
        with pytest.raises(SessionClosed):
            await guard.validate()
        guard._over = False  # the world itself validates at the end
        guard._running.clear()
        return 0

    World(1).run(stubborn, np.arange(4, dtype=Z64.dtype))
    assert seen.count(CheatingDetected) == seen.count(SessionClosed) == 3


@pytest.mark.usefixtures("slow")
def test_what_takes_much_memory_is_checked_at_once() -> None:
    async def filing(ctx: Context):
        guard = guard_of(ctx)
        guard.filed = 2
        await guard.settle()
        assert guard.log == []
        guard.filed = 3
        await guard.settle()
        assert guard.log == ["begun", "done"]
        return guard.rounds

    outcome = World(1).run(filing)
    assert outcome.value == 3
    assert outcome.check_rounds == 3


@pytest.mark.usefixtures("slow")
def test_results_leave_an_execution_checked() -> None:
    async def product(ctx: Context, x):
        guard_of(ctx).filed = 1
        return x

    outcome = World(1).run(product, np.arange(4, dtype=Z64.dtype))
    assert outcome.check_rounds == 3
