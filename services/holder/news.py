"""What a data owner is told: a study to approve, one that waits for the owner's table, a release that is out.

A holder only makes calls, so it asks the coordinators of its studies what there is; nobody can push anything to it.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import TypeAdapter, ValidationError

from caps.basics import canonical
from caps.client import ClientError, calls
from caps.errors import CapsError
from caps.service.news import Item, Kind
from caps.service.pages.rendering import ROOT
from caps.service.site import Site
from caps.study import Coordinator
from caps.wire.coordinator import StudyView
from caps.wire.holder import State
from services.holder.peers import SHORT_TIMEOUT
from services.holder.store import Store, StudyRecord

_VIEWS = TypeAdapter(list[StudyView])
_UNGIVEN = frozenset({State.APPROVED, State.LOADED, State.WITHDRAWN})


def news(site: Site, store: Store) -> Iterator[Item]:
    """What there is to tell at present."""
    records = {record.study: record for record in store.studies()}
    for record in records.values():
        if record.state is State.KNOWN:
            yield Item(Kind.APPROVAL, record.study, record.title, _page(record.study))
    coordinators = {(one.url, one.pin): one for one in (record.manifest.coordinator for record in records.values())}
    for coordinator in coordinators.values():
        for view in _asked(site, coordinator):
            yield from _of(site.name, view, records.get(view.study))


def _of(name: str, view: StudyView, record: StudyRecord | None) -> Iterator[Item]:
    if record is None:
        if any(one.holder == name and not one.approved and one.declined is None for one in view.holders):
            yield Item(Kind.APPROVAL, view.study, view.title, ROOT)
        return
    for release in view.releases:
        yield Item(Kind.RELEASE, view.study, record.title, _page(view.study), release)
    waits_for_servers = any(one.server in view.missing for one in view.servers)
    if not view.runs and not waits_for_servers and record.state in _UNGIVEN:
        yield Item(Kind.CONTRIBUTION, view.study, record.title, _page(view.study))


def _asked(site: Site, coordinator: Coordinator) -> list[StudyView]:
    """The studies of a coordinator in which this holder takes part; none if it cannot be asked at the moment."""
    try:
        with site.calls(coordinator, timeout=SHORT_TIMEOUT) as client:
            content = calls.send(client, coordinator.name, "GET", "/v1/studies").content
        canonical.bound(content)
        return _VIEWS.validate_json(content)
    except (ClientError, CapsError, OSError, ValidationError):
        return []


def _page(study: str) -> str:
    return f"{ROOT}/studies/{study}"
