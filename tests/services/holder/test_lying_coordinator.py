"""A coordinator that answers anything to a holder: a clear problem, in bounded memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from caps.service.problems import Problem
from caps.wire.coordinator import StudyView
from tests.kit.attacks import ANSWERS, answer, answering, peak
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


def test_no_release_swells_or_stops_a_holder(tmp_path: Path) -> None:
    world = HolderBench(tmp_path, "clinic-a")
    holder = world.holder(max_upload=1 << 20)
    holder.store.add_study(world.manifest)
    credentials = world.site("coordinator", "coordinator").credentials
    honest = StudyView(
        study=world.study,
        title="",
        state="released",
        proposed_at="",
        servers=[],
        holders=[],
        missing=[],
        runs=[],
        releases=["ab" * 16],
    )
    said = {"view": b"", "rows": b""}

    def viewed(view: StudyView) -> bytes:
        return answer(view.model_dump_json().encode(), Connection="close")

    def answers(head: bytes) -> bytes:
        return said["rows" if b"/data" in head.partition(b"\r\n")[0] else "view"]

    def fetched(**answers: bytes) -> bool:
        said.update(answers)
        path = tmp_path / "rows"
        path.unlink(missing_ok=True)
        return holder.fetch_release(world.study, path)

    lies = {name: make() for name, make in ANSWERS.items()}
    before = peak("self")
    try:
        with answering(credentials, answers, world.sockets["coordinator"]):
            for lie in lies.values():
                with pytest.raises(Problem):
                    fetched(view=lie)
            assert not fetched(view=viewed(honest.model_copy(update={"releases": []})))
            assert fetched(view=viewed(honest), rows=answer(b"a,b\n1,2\n"))
            assert (tmp_path / "rows").read_bytes() == b"a,b\n1,2\n"
            too_many = answer(b"x" * ((1 << 20) + 1))
            for lie in (
                too_many,
                *(lies[name] for name in ("gzip bomb", "gzip problem", "cut short", "no HTTP", "redirect")),
            ):
                with pytest.raises(Problem):
                    fetched(rows=lie)
            assert peak("self") - before < 150 << 20
    finally:
        holder.close()
        for one in world.sockets.values():
            one.close()
