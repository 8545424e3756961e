"""What each service has to tell: from its own record, and at a holder from what its coordinators say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from caps.service.news import Kind
from caps.service.site import Settings, Site
from caps.wire.coordinator import HolderView, Judged, ServerView, StudyView
from services.coordinator.news import PATIENCE
from services.coordinator.news import news as of_coordinator
from services.coordinator.states import RunEvent
from services.holder.news import news as of_holder
from services.holder.store import Store
from tests.kit.coordinator_servers import Bench
from tests.kit.study import NOW, example_manifest, write_site
from tests.kit.tls import make_authority

pytestmark = pytest.mark.integration


def test_a_coordinator_tells_of_a_wait_that_lasts_and_of_a_release(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    made, run = bench.started()
    with closing(made):
        made.store.change_state(run, RunEvent.PROCEED)
        made.store.change_state(run, RunEvent.WAIT, party="S2", reason="is <b>away</b>")
        assert list(of_coordinator(made.site, made.store, made.studies)) == []
        made.site.clock = lambda: NOW + PATIENCE
        (item,) = of_coordinator(made.site, made.store, made.studies)
        assert (item.kind, item.about, item.path) == (Kind.WAITING, f"{run} S2", f"/ui/runs/{run}")
        assert "away" not in repr(item)  # a reason is another party's words
        made.site.clock = lambda: NOW + timedelta(minutes=5)
        made.runs.perform(run)
        (item,) = of_coordinator(made.site, made.store, made.studies)
        assert (item.kind, item.about) == (Kind.RELEASE, run)


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[tuple[Site, Store]]:
    _, keys = example_manifest()
    write_site(tmp_path / "clinic-a", make_authority(NOW), keys["clinic-a"], "holder")
    home = tmp_path / "clinic-a"
    place = Settings(home, home / "state", "127.0.0.1", 0, f"sqlite:///{home / 'state' / 'state.db'}")
    site = Site(place, role="holder", clock=lambda: NOW)
    store = Store(place.database)
    yield site, store
    store.close()


def view(study: str, *, missing: list[str], releases: tuple[str, ...] = ()) -> StudyView:
    servers = [ServerView(server="S1", state=Judged.APPROVED, reason=None, objections=[])]
    return StudyView(
        study=study,
        title="Costs",
        state="approved",
        proposed_at="2026-01-01T00:00:00Z",
        servers=servers,
        holders=[HolderView(holder="clinic-a", approved=False)],
        missing=missing,
        runs=list(releases),
        releases=list(releases),
    )


def test_an_owner_is_told_of_studies_here_and_of_those_the_coordinator_has(
    holder: tuple[Site, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    site, store = holder
    manifest, _ = example_manifest()
    store.add_study(manifest)
    assert [(one.kind, one.study) for one in of_holder(site, store)] == [
        (Kind.APPROVAL, manifest.study_id)
    ]  # it is away
    told = [view(manifest.study_id, missing=["clinic-a"], releases=("ab" * 16,)), view("cd" * 32, missing=["clinic-a"])]
    monkeypatch.setattr("services.holder.news._asked", lambda *_: told)
    assert [(one.kind, one.study) for one in of_holder(site, store)] == [
        (Kind.APPROVAL, manifest.study_id),
        (Kind.RELEASE, manifest.study_id),
        (Kind.APPROVAL, "cd" * 32),
    ]
