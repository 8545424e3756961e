"""A coordinator that answers anything to a holder: a clear problem, in bounded memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from caps.service.problems import Problem
from tests.kit.attacks import ANSWERS, answering, peak
from tests.kit.holder import HolderBench

pytestmark = pytest.mark.integration


def test_no_answer_of_a_coordinator_swells_or_stops_a_holder(tmp_path: Path) -> None:
    world = HolderBench(tmp_path, "clinic-a")
    holder = world.holder()
    credentials = world.site("coordinator", "coordinator").credentials
    answers = {name: make() for name, make in ANSWERS.items()}
    current = [b""]
    before = peak("self")
    try:
        with answering(credentials, lambda _: current[0], world.sockets["coordinator"]):
            for name, found in answers.items():
                current[0] = found
                with pytest.raises(Problem):
                    holder.know(world.urls["coordinator"], world.study)
                assert peak("self") - before < 150 << 20, name
    finally:
        holder.close()
        for one in world.sockets.values():
            one.close()
