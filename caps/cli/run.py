"""`caps run`: start a study's run, list runs, watch one."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from caps.cli.exits import Exit, Stop
from caps.cli.kit import command, group, matching, matching_id
from caps.cli.output import Output, as_document, clock, facts, listing, minute, plain, short, words_of
from caps.cli.study import StudyId

if TYPE_CHECKING:
    from rich.progress import Progress

    from caps.client import Client
    from caps.wire.coordinator import RunChanged, RunProgress, RunView

RunId = Annotated[str, typer.Argument(metavar="RUN", help="The run's id, or its beginning.")]
DIGITS = 32
_WIDTH = 80
_LEAST_PART = 0.02
"""Of the budget, before the time left is guessed."""
_LONG = 10.0
"""Seconds of a fit that has a line of its own, before it begins."""


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
            _tell(out, client, found)

    @command(run, "list", site="coordinator")
    def listed(out: Output, client: "Client") -> None:
        """List the runs of all studies, the oldest first."""
        found = [client.run(run) for run in _known(client)]
        rows = [
            {
                "run": short(one.run),
                "study": short(one.study),
                "state": one.state,
                "budget spent": f"{one.percent:.0f} %",
                "holders": len(one.holders),
                "started": minute(one.created_at),
            }
            for one in found
        ]
        columns = ("run", "study", "state", "budget spent", "holders", "started")
        view = listing(rows, columns, right=("budget spent", "holders")) if rows else "No run has been started yet."
        out.show({"runs": [as_document(one) for one in found]}, view)

    @command(run, "watch", site="coordinator")
    def watch(out: Output, client: "Client", run: RunId) -> None:
        """Watch a run until it has ended: a line for each round. Exit code 1 if it fails."""
        _follow(out, client, _whole(client, run))

    @command(run, "show", site="coordinator")
    def show(out: Output, client: "Client", run: RunId) -> None:
        """Show a run's state, why it waits or failed, and the evidence if servers aborted it."""
        _tell(out, client, client.run(_whole(client, run)))


def _known(client: "Client") -> Iterator[str]:
    for study in client.studies():
        yield from getattr(study, "runs", ())


def _whole(client: "Client", run: str) -> str:
    return run if len(run) == DIGITS else matching_id(run, _known(client), "run")


def _tell(out: Output, client: "Client", run: "RunView") -> None:
    """Print a run. Servers' evidence is shown with the verdict on its signatures, by the study's manifest."""
    document = as_document(run)
    view: list[Any] = [facts(_essentials(run))]
    if run.evidence:
        from caps.audit.evidence import examined

        found = [asdict(one) for one in examined(client.manifest(run.study), run.run, run.evidence)]
        document["evidence"] = [
            {**one, "signed": given} for one, given in zip(found, document["evidence"], strict=True)
        ]
        view += ["", listing(found, ("server", "pair", "step", "check", "signature"), "evidence")]
    if run.release is not None:
        view += ["", f"Its rows: caps release get {short(run.release)} -o synthetic.csv"]
    out.show(document, *view)


def _essentials(run: "RunView") -> dict[str, object]:
    why = ": ".join(filter(None, (run.party, run.reason)))
    return {
        "run": run.run,
        "study": run.study,
        "state": run.state,
        **({"why": why} if why else {}),
        "budget spent": f"{run.percent:.0f} %",
        "holders": run.holders,
        **({"left out": run.refused} if run.refused else {}),
        **({"round": f"{run.round}, {run.stage}"} if run.round is not None else {}),
        "tables measured": len(run.measured),
        "started": minute(run.created_at),
    }


class Rounds:
    """A run's events as lines: one for each round, and one for each change of its state.

    A line has the part of the budget that is spent, the time since the run began, and a guess of the time left. Times
    are those of the events, so that no clocks are compared.
    """

    def __init__(self) -> None:
        self.part = 0.0
        self.elapsed = 0.0
        self.fitting = 0.0
        """About how many seconds the fit takes that has begun, if one has."""
        self._began: datetime | None = None
        self._round: int | None = None
        self._measured: list[str] = []
        self._error: float | None = None

    @property
    def left(self) -> float | None:
        """Seconds to go, as far as can be guessed: rounds take about as long as the budget that they spend."""
        return self.elapsed * (1 - self.part) / self.part if self.part >= _LEAST_PART else None

    def add(self, event: "RunChanged | RunProgress") -> list[str]:
        """The lines that are complete with this event."""
        if event.at is not None:
            at = datetime.fromisoformat(event.at)
            self._began = self._began or at
            self.elapsed = (at - self._began).total_seconds()
        state = getattr(event, "state", None)
        if state is not None:
            why = "".join(f": {words_of(one)}" for one in (event.party, event.reason) if one)  # type: ignore[union-attr]
            return [*self._finished(), self._line(f"{words_of(state)}{why}")]
        return self._progress(event)  # type: ignore[arg-type]

    def _progress(self, event: "RunProgress") -> list[str]:
        lines = self._finished() if event.round != self._round else []
        self._round = event.round
        self.fitting = event.fit_seconds or 0.0
        if event.rho > 0:
            self.part = min(1.0, event.rho_spent / event.rho)
        if event.stage in ("initial", "measure") and event.clique:
            self._measured.append(" x ".join(map(words_of, event.clique)))
            self._error = event.error
        if event.stage == "generate":
            lines += self._finished()
        if self.fitting >= _LONG:
            which = "the last model" if event.stage == "generate" else "a model"
            lines.append(self._line(f"round {event.round}: fitting {which}, in about {clock(self.fitting)}"))
        return lines

    def _finished(self) -> list[str]:
        """The line of the round so far, if anything was measured in it."""
        measured, error, self._measured, self._error = self._measured, self._error, [], None
        if not measured:
            return []
        what = measured[0] if len(measured) == 1 else f"{len(measured)} tables measured"
        off = "" if error is None else f", off by {error:,.0f}"
        return [self._line(f"round {self._round}: {what}{off}")]

    def _line(self, words: str) -> str:
        left = self.left
        guess = "" if left is None or self.part >= 1 else f"{clock(left)} left"
        line = f"{self.part:4.0%} {clock(self.elapsed):>7}  {guess:>12}  {words}"
        return line if len(line) <= _WIDTH or "\n" in line else f"{line[: _WIDTH - 1]}…"


def _bar(out: Output) -> "Progress | None":
    """What moves at the bottom of a terminal."""
    if out.as_json or not out.screen.is_terminal:
        return None
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (BarColumn(bar_width=40), TextColumn("{task.percentage:3.0f} %"), TextColumn("{task.description}"))
    return Progress(*columns, console=out.screen, transient=True)


def _follow(out: Output, client: "Client", run: str) -> None:
    rounds, bar = Rounds(), _bar(out)
    with bar or nullcontext():
        task = None if bar is None else bar.add_task("", total=1.0)
        for event in client.watch(run):
            for line in rounds.add(event):
                if bar is None:
                    out.show_line(line)
                else:
                    bar.console.print(plain(line))
            if bar is not None and task is not None:
                left = rounds.left
                words = f"{clock(rounds.elapsed)} elapsed" + ("" if left is None else f", about {clock(left)} left")
                words += f", fitting in about {clock(rounds.fitting)}" if rounds.fitting >= 1 else ""
                bar.update(task, completed=rounds.part, description=words)
    found = client.run(run)
    _tell(out, client, found)
    if found.state == "failed":
        raise Stop(Exit.REFUSED)
