"""What an MPC server's operator is told: a study that awaits the operator's word, a run that waits for this server."""

from __future__ import annotations

from collections.abc import Iterator

from caps.service.news import Item, Kind
from caps.service.pages.rendering import ROOT
from services.mpc_server.intake.studies import Studies
from services.mpc_server.runs.runs import Runs
from services.mpc_server.storage import states


def news(name: str, studies: Studies, runs: Runs) -> Iterator[Item]:
    """What there is to tell at present. name: of this server."""
    for one in studies.brief():
        if one.state == states.Study.JUDGED:
            yield Item(Kind.APPROVAL, one.study, studies.manifest(one.study).title, f"{ROOT}/studies/{one.study}")
    waiting = {
        reading.labels[0]
        for reading in runs.figures()
        if reading.name == "caps_run_waiting" and reading.labels[1] == name
    }
    for run in runs.listed() if waiting else ():
        if run.run in waiting:
            title = studies.manifest(run.study).title
            yield Item(Kind.WAITING, run.study, title, f"{ROOT}/runs/{run.run}", f"{run.run} {name}")
