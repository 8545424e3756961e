"""`caps run`: start a study's run and watch it."""

from contextlib import nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from caps.cli.exits import Exit, Stop
from caps.cli.kit import command, group, matching
from caps.cli.output import Output, as_document, facts, listing, plain, views
from caps.cli.study import StudyId

if TYPE_CHECKING:
    from caps.client import Client
    from caps.wire.coordinator import RunChanged, RunProgress, RunView

RunId = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")]
_SHOWN = 10


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    run = group(app, "run", "Runs: executions of a study's algorithm.")

    @command(run, "start", site="coordinator")
    def start(
        out: Output,
        client: "Client",
        study: StudyId,
        watch: Annotated[bool, typer.Option("--watch", help="Wait until it has ended.")] = False,
        holder: Annotated[
            list[str] | None, typer.Option("--holder", help="Use only this holder's contribution; repeat for more.")
        ] = None,
    ) -> None:
        """Operator: seal a study's inputs and start its run. If a run is in progress, show that one."""
        found = client.start(matching(study, client.studies, "study"), holders=holder)
        if watch:
            _follow(out, client, found.run)
        else:
            out.tell(found)

    @command(run, "watch", site="coordinator")
    def watch(out: Output, client: "Client", run: RunId) -> None:
        """Watch a run until it has ended. Exit code 1 if it fails."""
        _follow(out, client, run)

    @command(run, "show", site="coordinator")
    def show(out: Output, client: "Client", run: RunId) -> None:
        """Show a run's state, why it waits or failed, and the evidence if servers aborted it."""
        _tell(out, client, client.run(run))


def _tell(out: Output, client: "Client", run: "RunView") -> None:
    """Print a run. Servers' evidence is shown with the verdict on its signatures, by the study's manifest."""
    if not run.evidence:
        return out.tell(run)
    from caps.audit.evidence import examined

    document = as_document(run)
    found = examined(client.manifest(run.study), run.run, run.evidence)
    document["evidence"] = [
        {**asdict(one), "signed": given} for one, given in zip(found, document["evidence"], strict=True)
    ]
    shown = document | {"evidence": [asdict(one) for one in found]}
    return out.show(document, *views(shown))


class _View:
    """The display of a run: its state, the part of the budget that is spent, and the latest steps."""

    def __init__(self, run: str) -> None:
        self._state: dict[str, Any] = {"run": run, "state": "-"}
        self._steps: list[dict[str, Any]] = []
        self._part: float | None = None

    def add(self, event: "RunChanged | RunProgress") -> str:
        """Add an event; returns it as a line."""
        body = event.model_dump(mode="json", exclude={"at"}, exclude_none=True)
        if "state" in body:
            self._state = {"run": self._state["run"], **body}
            return " ".join(str(plain(value)) for key, value in self._state.items() if key != "run")
        self._steps = [*self._steps[-_SHOWN + 1 :], body]
        if body.get("rho"):
            self._part = min(1.0, float(body.get("rho_spent") or 0) / float(body["rho"]))
        return str(plain(body))

    def __rich__(self) -> Group:
        bar = Text() if self._part is None else ProgressBar(total=1.0, completed=self._part, width=60)
        columns = list(dict.fromkeys(key for step in self._steps for key in step if not key.startswith("rho")))
        return Group(facts(self._state), bar, listing(self._steps, columns))


def _follow(out: Output, client: "Client", run: str) -> None:
    view = _View(run)
    live = Live(view, console=out.aside, refresh_per_second=8, transient=True) if out.lively else None
    with live or nullcontext():
        for event in client.watch(run):
            line = view.add(event)
            if live is None:
                out.note(line)
    found = client.run(run)
    _tell(out, client, found)
    if found.state == "failed":
        raise Stop(Exit.REFUSED)
