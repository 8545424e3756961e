"""Rogues against a real federation: whatever they do, the oracle of `tests.adversary.stage` holds after every sequence.

Hypothesis draws lists of moves. What once broke a service is kept as a literal list.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.adversary import coordinator, holder, outsider, peer, server, visitor
from tests.adversary.lies import LIES
from tests.adversary.stage import Catalogue, Sequence_, Stage, finish, play
from tests.kit.attacks import BODIES

pytestmark = [pytest.mark.e2e, pytest.mark.property, pytest.mark.timeout(900)]

ROGUES: Mapping[str, Catalogue] = {
    "outsider": outsider.MOVES,
    "holder": holder.MOVES,
    "coordinator": coordinator.MOVES,
    "server": server.MOVES,
    "peer": peer.MOVES,
    "visitor": visitor.MOVES,
}
ALL: Catalogue = {
    f"{rogue}.{name}": move
    for rogue, moves in {
        **ROGUES,
        "outsider": {**outsider.MOVES, **outsider.HEAVY},
        "holder": {**holder.MOVES, **holder.HEAVY},
        "coordinator": {**coordinator.MOVES, **coordinator.HEAVY},
        "server": {**server.MOVES, **server.HEAVY},
        "peer": {**peer.MOVES, **peer.HEAVY},
        "visitor": {**visitor.MOVES, **visitor.HEAVY},
    }.items()
    for name, move in moves.items()
}


def lies(move: str, word: str) -> Sequence_:
    """A move with every answer whose name has the word."""
    return [(move, number) for number, name in enumerate(sorted(LIES)) if word in name]


BREAKS: Mapping[str, Sequence_] = {
    "a body is read before the role is looked at": [("coordinator.dear_bodies", 0), ("coordinator.dear_bodies", 1)],
    "every unknown member is told of": [("coordinator.proposals", list(BODIES).index("members"))],
    "a frame that is only announced swells a peer": [("peer.in_its_place", 86)],
    "a step of its own coordinator swells a server": [("coordinator.dear_bodies", 2)],
    "idle connections shut everybody out": [("outsider.crowd", 0), ("outsider.crowd", 3)],
    "steps that wait take all threads": [("coordinator.many_steps", 0)],
    "a bomb of gzip at a holder": [*lies("coordinator.to_a_holder", "gzip"), *lies("server.to_a_holder", "gzip")],
    "brackets end the coordinator's attendant": lies("server.to_the_coordinator", "nested"),
    "half a surrogate pair in a server's words": lies("server.to_the_coordinator", "surrogate"),
    "another coordinator reads answers": [("coordinator.anothers_run", n) for n in range(3)],
    "400 columns take hours to judge": [("coordinator.odd_manifest", 23), ("coordinator.odd_manifest", 27)],
    "runs are begun and given up for ever": [("coordinator.given_up", 0)],
    "studies are proposed without end": [("coordinator.studies_without_end", 0)],
    "contributions are begun without end": [("holder.contributions_without_end", 0)],
    "batches of elements cost before they are counted": [("holder.oprf", n) for n in range(6)],
    "samples fill the disk": [("outsider.samples_without_end", 0)],
    "event streams take every thread": [("outsider.streams_without_end", 0)],
    "a contribution that was not sealed stays": [("holder.withdraw_what_was_not_sealed", 0)],
}  # fmt: skip


def moves_of(catalogue: Catalogue, most: int) -> st.SearchStrategy[Sequence_]:
    """Lists of moves."""
    return st.lists(st.tuples(st.sampled_from(sorted(catalogue)), st.integers(0, 999)), min_size=1, max_size=most)


def relaxed(examples: int) -> settings:
    return settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
    )


@pytest.mark.parametrize("case", BREAKS)
def test_what_once_broke(stage: Stage, case: str) -> None:
    play(stage, ALL, BREAKS[case])


@pytest.mark.parametrize("rogue", ROGUES)
def test_a_rogue(stage: Stage, rogue: str) -> None:
    @relaxed(3)
    @given(moves_of(ROGUES[rogue], 3))
    def against(moves: Sequence_) -> None:
        play(stage, ROGUES[rogue], moves)

    against()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_rogues_for_long(stage: Stage) -> None:
    @relaxed(150)
    @given(moves_of(ALL, 10))
    def against(moves: Sequence_) -> None:
        play(stage, ALL, moves)

    against()
    finish(stage)
