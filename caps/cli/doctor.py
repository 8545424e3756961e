"""`caps doctor`: finds what is wrong with a party's set-up and says how to fix it."""

from pathlib import Path
from typing import Annotated, Any

import typer

from caps.cli.exits import Exit, Stop
from caps.cli.kit import command
from caps.cli.output import Output, listing
from caps.cli.study import read_manifest


def add_to(app: typer.Typer) -> None:
    """Add this command."""

    @command(app, "doctor")
    def doctor(
        out: Output,
        home: Annotated[Path, typer.Argument(help="The party's home, CAPS_HOME.", envvar="CAPS_HOME")],
        study: Annotated[
            Path | None, typer.Option("--study", help="A manifest: each of its parties is checked.", dir_okay=False)
        ] = None,
        cards: Annotated[
            Path | None, typer.Option("--cards", help="A folder of party cards, before there is a study.")
        ] = None,
        state: Annotated[
            Path | None, typer.Option("--state", envvar="CAPS_STATE", help="CAPS_STATE, if not HOME/state.")
        ] = None,
        database: Annotated[
            str | None, typer.Option("--database", envvar="CAPS_DATABASE", help="CAPS_DATABASE, if it is not SQLite.")
        ] = None,
        timeout: Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds to wait for an answer.")] = 5.0,
    ) -> None:
        """Check keys, expiry, database, disk, names, pins, clocks, ports and versions; say how to fix what fails.

        Exit code 0 if nothing failed, 5 if a party is not the one in the study, 4 if one cannot be reached, else 1.
        """
        from caps.service.doctor import Doctor, Status, of_cards, of_manifest
        from caps.trust.cards import read_bundle

        others, scheme = [], None
        if study is not None:
            manifest = read_manifest(study)
            others, scheme = of_manifest(manifest), manifest.scheme
        if cards is not None:
            others += of_cards(read_bundle(cards))
        found = list(Doctor(home, state, database, timeout=timeout).examine(others, scheme=scheme))
        counts = {str(status): sum(one.status is status for one in found) for status in Status}
        rows = [one.to_json() for one in found]
        views: list[Any] = [listing(rows, ("subject", "check", "status", "detail"))]
        ill = [row for one, row in zip(found, rows, strict=True) if one.status in (Status.FAILED, Status.WARNING)]
        if ill:
            views += ["", listing(ill, ("subject", "check", "fix"), "How to fix it")]
        out.show({"findings": rows, "counts": counts}, *views)
        out.note(", ".join(f"{count} {status}" for status, count in counts.items()))
        blamed = {one.blame for one in found if one.status is Status.FAILED}
        for blame, code in (("identity", Exit.NOT_VERIFIED), ("reach", Exit.UNREACHABLE), ("setting", Exit.REFUSED)):
            if blame in blamed:
                raise Stop(code)
