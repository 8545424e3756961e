"""`caps federation`: all parties on this machine, to try things out: made, started, looked at, stopped, removed."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from caps.basics.schemes import REP3, SCHEMES
from caps.cli.exits import Exit, Stop
from caps.cli.kit import command, group
from caps.cli.output import Output, facts, listing

if TYPE_CHECKING:
    from caps.federation.local import LocalFederation

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The federation's directory.", file_okay=False)]
WARNING = "All parties run on one machine, so non-collusion is NOT met: use invented data only."


def _now() -> datetime:
    return datetime.now(UTC)


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    federation = group(app, "federation", "All parties on this machine, to try things out with invented data.")

    @command(federation, "new")
    def new(
        out: Output,
        directory: Directory,
        holders: Annotated[str, typer.Option("--holders", help="The data owners, separated by commas.")],
        scheme: Annotated[
            str, typer.Option("--scheme", help="rep3, rep3-active or rep4: how many servers, and what they may do.")
        ] = REP3.name,
        days: Annotated[int, typer.Option("--days", min=1, max=365, help="Days until people's tokens expire.")] = 90,
    ) -> None:
        """Make keys, cards, policies and tokens of all parties, a configuration with all sites, and a sample study."""
        from caps.federation.local import SAMPLE, LocalFederation

        if scheme not in SCHEMES:
            raise typer.BadParameter(f"no such scheme; choose {', '.join(SCHEMES)}", param_hint="--scheme")
        names = [name.strip() for name in holders.split(",") if name.strip()]
        found = LocalFederation.create(directory, names, scheme=SCHEMES[scheme], now=_now(), token_days=days)
        document = {
            "federation": str(directory),
            "config": str(found.config),
            "parties": list(found.places),
            "sample": str(directory / SAMPLE),
            "study": found.record.study,
        }
        out.show(document, facts(document))
        out.note(f"{WARNING} Next: caps federation start {directory}")

    @command(federation, "start")
    def start(
        out: Output,
        directory: Directory,
        timeout: Annotated[float, typer.Option("--timeout", min=1, help="Seconds until all must be ready.")] = 180.0,
    ) -> None:
        """Start all services that do not run, and wait until they are ready. They outlive the terminal."""
        from caps.federation.local import ENVIRONMENT

        found = _read(directory)
        out.note(f"The {len(found.places)} services start, unless they run ...")
        started = found.start(now=_now, seconds=timeout)
        _tell(out, found, started=started)
        out.note(f"{WARNING} For the sites of all its people: . {directory / ENVIRONMENT}")

    @command(federation, "status")
    def status(out: Output, directory: Directory) -> None:
        """Show each service: its address, since when it runs, whether it is ready or why not. Exit code 7 if not."""
        if not _tell(out, _read(directory)):
            raise Stop(Exit.NOT_YET)

    @command(federation, "stop")
    def stop(out: Output, directory: Directory) -> None:
        """Stop all services in an orderly way. Runs wait, lose nothing, and go on after the next start."""
        ended = _read(directory).stop()
        out.show({"stopped": list(ended)}, f"stopped: {', '.join(ended) or 'nothing was running'}")
        for name in (name for name, orderly in ended.items() if not orderly):
            out.note(f"WARNING: {name} did not end by itself and was killed")

    @command(federation, "clean")
    def clean(out: Output, directory: Directory) -> None:
        """Stop all services and remove keys, data, logs and sample. Other files in DIR stay."""
        left = _read(directory).clean()
        words = f"{directory} is removed." if not left else f"Left in {directory}: {', '.join(left)}"
        out.show({"removed": not left, "left": left}, words)


def _read(directory: Path) -> "LocalFederation":
    from caps.federation.local import LocalFederation

    return LocalFederation.read(directory)


def _tell(out: Output, federation: "LocalFederation", **further: Any) -> bool:
    """Show all services; whether all are ready."""
    rows = [
        {
            "name": one.place.name,
            "role": one.place.role,
            "address": one.place.url,
            "since": one.since,
            "state": one.state,
            "why": one.why or None,
        }
        for one in federation.status()
    ]
    reasons = [f"{row['name']}: {row['why']}" for row in rows if row["why"]]
    document = {"services": rows, "config": str(federation.config), **further}
    out.show(document, listing(rows, ("name", "role", "address", "since", "state")), *reasons)
    return all(row["state"] == "ready" for row in rows)
