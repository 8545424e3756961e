"""The coordinator's pages: what each route shows, and to whom. docs/pages.md says how to add one."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, Request, Response

from caps.service.app import MANIFEST_LIMIT, Limit
from caps.service.health import PATH as FEDERATION
from caps.service.pages.entrance import ROOT
from caps.service.pages.rendering import Door, Link, Pages
from caps.service.pages.routes import Signed
from caps.service.pages.words import count_of
from caps.service.site import Site
from services.coordinator.authoring.drafts import Drafts
from services.coordinator.findings import AllFindings
from services.coordinator.pages import author, operate, releases
from services.coordinator.publish import Publisher
from services.coordinator.runs import Runs
from services.coordinator.states import ENDED, State, StudyState, study_state
from services.coordinator.store import Store
from services.coordinator.streams import Streams
from services.coordinator.studies import Studies

TEMPLATES, STATIC = Path(__file__).parent / "templates", Path(__file__).parent / "static"
LINKS = (Link.to("Overview", ROOT), *author.LINKS, *operate.LINKS, *releases.LINKS)
LIMITS = (Limit(author.SAVING, MANIFEST_LIMIT),)
ABOUT = "The coordinator takes studies from their manifest to a release. It sees opened, noisy values only."


def router(
    pages: Pages,
    site: Site,
    store: Store,
    studies: Studies,
    runs: Runs,
    streams: Streams,
    publisher: Publisher,
    found: AllFindings,
) -> APIRouter:
    """The routes of one coordinator."""
    routes = APIRouter(prefix=ROOT, include_in_schema=False)

    @routes.get("")
    def home(request: Request, caller: Signed) -> Response:
        """What this service is, and whether it is ready."""
        return pages.home(request, ABOUT, [*site.expired(), *site.room.reasons()], _doors(store))

    author.add_to(routes, pages, site, store, studies, Drafts(site.settings.data / "drafts.db", site.clock))
    operate.add_to(routes, pages, site, store, studies, runs, streams)
    releases.add_to(routes, pages, store, publisher, found)
    return routes


def _doors(store: Store) -> dict[str, Door]:
    """What is behind each entry of the navigation, with how things stand: people see those of their own entries."""
    studies = [study_state(judged, ran) for _, judged, ran in store.standing()]
    runs = [run.state for run in store.runs() if run.state not in ENDED]
    undecided, waiting = studies.count(StudyState.PROPOSED), runs.count(State.WAITING)
    going = f"{count_of(waiting, 'run waits', 'runs wait')}" if waiting else f"{len(runs)} going"
    return {
        author.PATH: Door("Seven steps from a question to an agreement that everybody can sign."),
        f"{ROOT}/studies": Door(
            "What was proposed, who has approved it, and who is missing.",
            f"{undecided} await a server" if undecided else count_of(len(studies), "study", "studies"),
            undecided > 0,
        ),
        f"{ROOT}/runs": Door("Who computes, who is waited for and why, and what was spent.", going, waiting > 0),
        f"{ROOT}{FEDERATION}": Door("Versions, clocks, certificates and round trips, as seen from here."),
        f"{ROOT}/ledgers": Door("What the servers signed of their ledgers, release by release, side by side."),
        releases.PATH: Door(
            "Synthetic data to download, their privacy, how good they are, and counts with intervals.",
            count_of(studies.count(StudyState.RELEASED), "released study", "released studies"),
        ),
    }
