"""What a coordinator's operators and analysts are told: a run that waits for somebody, a release that is out."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from caps.service.news import Item, Kind
from caps.service.pages.rendering import ROOT
from caps.service.site import Site
from services.coordinator.states import State
from services.coordinator.store import Store
from services.coordinator.studies import Studies

PATIENCE = timedelta(minutes=1)
"""A party that was away for less is no news."""


def news(site: Site, store: Store, studies: Studies) -> Iterator[Item]:
    """What there is to tell at present."""
    for run in store.runs():
        page = f"{ROOT}/runs/{run.run}"
        if run.state is State.RELEASED:
            yield Item(Kind.RELEASE, run.study, studies.manifest(run.study).title, page, run.run)
        elif run.state is State.WAITING:
            since = [event.at for event in store.events(run.run) if event.kind == "state"][-1]
            if site.now() - datetime.fromisoformat(since) >= PATIENCE:
                about = f"{run.run} {run.party or 'a party'}"
                yield Item(Kind.WAITING, run.study, studies.manifest(run.study).title, page, about)
