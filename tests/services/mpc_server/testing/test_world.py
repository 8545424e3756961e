"""The world that protocol authors test in: its example holds, its seed decides everything, and failures name it."""

from __future__ import annotations

import doctest

import numpy as np
import pytest

from caps.errors import ShareError
from services.mpc_server.engine.verbs import multiply
from services.mpc_server.testing import world
from services.mpc_server.testing.world import Message, PerParty, Recorder, World

X = np.array([2, 3], np.uint64)


def test_the_example_of_its_docstring() -> None:
    found = doctest.testmod(world, optionflags=doctest.ELLIPSIS)
    assert (found.failed, found.attempted > 5) == (0, True)


def transcript(**choices: int) -> list[Message]:
    recorder = Recorder()
    World(interceptor=recorder, **choices).run(multiply, X, X)
    return sorted(recorder.messages)


def test_a_seed_decides_every_byte() -> None:
    assert transcript(seed=4) == transcript(seed=4)
    assert transcript(seed=4) != transcript(seed=5)
    assert transcript(seed=4) != transcript(seed=4, keys=5)


def test_an_error_names_the_seed_and_other_keys() -> None:
    def corrupt(message: Message) -> bytes:
        return bytes(len(message.payload)) if message.source == 0 else message.payload

    with pytest.raises(ShareError) as caught:
        World(7, keys=8, interceptor=corrupt).run(multiply, X, X)
    assert caught.value.__notes__ == ["World(seed=7, keys=8)"]


def test_every_party_has_an_argument_of_its_own() -> None:
    async def told(ctx, argument):
        return ctx.party

    with pytest.raises(AssertionError, match="for each party"):
        World(1).run(told, PerParty(1, 2))
