"""Every protocol under `rep3-active`: its result and its cost, and that claims cover every byte that is sent."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings

from caps.basics.schemes import REP3_ACTIVE
from services.mpc_server.engine import verbs
from services.mpc_server.engine.registry import REGISTRY
from services.mpc_server.testing.world import Outcome, World
from tests.kit.cases.all import CASES
from tests.kit.cases.base import Call, Source, assert_equal, sources
from tests.kit.claims import Recorded, assert_alike, recorded, violated

pytestmark = pytest.mark.property

COMPARED = {verb.__name__ for verb in verbs.COMPARED}
NAMES = sorted(name for name in CASES if not REGISTRY[name].module.startswith("paper") and name not in COMPARED)
VERBS = sorted({verb.__name__ for verb in verbs.VERBS} - {"guard"})
OTHER_BYTES = {"addends", "alike", "bilinear_bits", "cross_cells", "gram_cells", "shuffle"}
"""Verbs that send more or less than those of `rep3`."""


@pytest.fixture
def guards() -> Iterator[list[Recorded]]:
    with recorded() as found:
        yield found


def source(sizes: int, values: int, fill: str = "random") -> Source:
    return Source(np.random.default_rng(sizes), np.random.default_rng(values), fill)


def run(name: str, call: Call, world: World) -> Outcome:
    return world.run(CASES[name][0], *call.args, **call.kwargs)


def judge(call: Call, value: object) -> None:
    if call.check is not None:
        call.check(value)
    else:
        assert_equal(value, call.expect)


def test_every_verb_is_tried() -> None:
    assert set(VERBS) <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=6, deadline=None)
@given(drawn=sources())
def test_results_are_right_and_claims_hold(name: str, drawn: Source) -> None:
    with recorded() as guards:
        call = CASES[name][1](drawn)
        outcome = run(name, call, World(1, scheme=REP3_ACTIVE))
        judge(call, outcome.value)
        assert_alike(guards)
        assert violated(guards) == []
        declared = REGISTRY[name].costs[REP3_ACTIVE.name]
        assert outcome.rounds == declared.rounds_for(call.sizes)
        assert outcome.sent == tuple(declared.sent_by(party, call.sizes) for party in range(3))
