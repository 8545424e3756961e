"""Commands for a data owner at its own holder: load a table, see what would leave, contribute, withdraw, erase."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from caps.cli.connection import Given
from caps.cli.exits import Exit, Stop
from caps.cli.kit import command, group, matching
from caps.cli.output import Output, as_document, facts, listing
from caps.cli.study import StudyId, read_manifest, tell_warnings

if TYPE_CHECKING:
    from caps.client import Client
    from caps.wire.holder import ContributionView

FORMATS = "CSV, gzip of it, Excel (.xlsx) or Parquet"
TableFile = Annotated[Path, typer.Argument(metavar="FILE", help=f"{FORMATS}.", exists=True, dir_okay=False)]
Encoding = Annotated[
    str | None,
    typer.Option(
        "--encoding", help="Of a CSV without a byte order mark that is not UTF-8: windows-1252, iso-8859-1, ..."
    ),
]
IgnoreExtra = Annotated[bool, typer.Option("--ignore-extra", help="The file may have columns that the study has not.")]
POLL = 0.5


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    table = group(app, "table", "Owner: your table at your own holder.")

    @command(table, "check")
    def check(
        out: Output,
        file: TableFile,
        study: Annotated[
            Path, typer.Option("--study", help="The study's manifest, YAML or JSON.", exists=True, dir_okay=False)
        ],
        holder: Annotated[str | None, typer.Option("--holder", help="Whose table it is, by the study's name.")] = None,
        encoding: Encoding = None,
        ignore_extra: IgnoreExtra = False,
        show_lines: Annotated[
            int, typer.Option("--show-lines", min=0, max=1000, help="List so many of the rows that do not fit.")
        ] = 0,
    ) -> None:
        """Check a table against a study, here, before anybody signs or sends it. Exit code 1 if it does not fit."""
        from caps.cli.fitting import fit

        document, views = fit(
            file, read_manifest(study), holder, encoding=encoding, ignore_extra=ignore_extra, show_lines=show_lines
        )
        out.show(document, *views)
        if not document["fits"]:
            raise Stop(Exit.REFUSED)

    @command(table, "put", site="holder")
    def put(
        out: Output,
        client: "Client",
        study: StudyId,
        file: Annotated[
            Path | None, typer.Argument(metavar="FILE", help=f"{FORMATS}.", exists=True, dir_okay=False)
        ] = None,
        source: Annotated[
            str | None, typer.Option("--source", help="In place of a file: a source of your holder, by its name.")
        ] = None,
        encoding: Encoding = None,
        ignore_extra: IgnoreExtra = False,
    ) -> None:
        """Load a table into your holder, which checks it against the schema. Nothing leaves your site.

        With --source, the table stays where it is: `caps table sources` lists what your holder's operator declares.
        """
        if (file is None) == (source is None):
            raise typer.BadParameter("give a FILE or --source NAME")
        identity = matching(study, client.studies, "study")
        if file is None:
            out.tell(client.use_source(identity, str(source)))
            return
        with out.transfer(f"loading {file.name}") as progress:
            report = client.put_table(
                identity, file, encoding=_spelled(encoding), ignore_extra=ignore_extra, progress=progress
            )
        out.tell(report)

    @command(table, "sources", site="holder")
    def sources(out: Output, client: "Client") -> None:
        """List the sources of your holder: files and tables of databases that it can read where they are."""
        document = [as_document(one) for one in client.sources()]
        rows = [
            {"source": one["source"], "is": "a file" if one["file"] else "a table of an engine"} for one in document
        ]
        out.show(document, listing(rows, ("source", "is")) if rows else "Your holder's operator declares no source.")

    @command(table, "report", site="holder")
    def report(out: Output, client: "Client", study: StudyId) -> None:
        """Show what your holder counted when it checked your table: counts, never values."""
        out.tell(client.table_report(matching(study, client.studies, "study")))

    @command(table, "erase", site="holder")
    def erase(out: Output, client: "Client", study: StudyId) -> None:
        """Erase the table at your holder. A contribution you have made stays: see `caps withdraw`."""
        client.erase_table(matching(study, client.studies, "study"))
        out.show({}, "The table at your holder is erased.")

    @command(table, "ledger", site="holder")
    def ledger(out: Output, client: "Client") -> None:
        """Show which of your tables went to which studies, and what these cost the persons together."""
        document = as_document(client.table_ledger())
        losses = [
            *({"of": f"population {one['population']}", **one["loss"]} for one in document["populations"]),
            *({"of": f"table {one['fingerprint'][:12]}", **one["loss"]} for one in document["tables"]),
            *([{"of": "all, if they are the same persons", **document["total"]}] if document["total"] else []),
        ]
        entries = [{**one, "table": (one["fingerprint"] or "unknown")[:12]} for one in document["entries"]]
        out.show(
            document,
            listing(entries, ("study", "title", "population", "table", "state", "counted", "epsilon", "delta")),
            listing(losses, ("of", "studies", "epsilon", "delta", "rho", "relation", "multiplicity")),
            *(f"WARNING: {warning}" for warning in document["warnings"]),
        )

    @command(app, "preview", site="holder")
    def preview(
        out: Output,
        client: "Client",
        study: StudyId,
        full: Annotated[bool, typer.Option("--full", help="Show every part of the table, too.")] = False,
    ) -> None:
        """Owner: show exactly what would leave your site, to whom, and how many bytes. Nothing is sent."""
        from caps.cli.previews import preview_views

        found = client.preview(matching(study, client.studies, "study"))
        out.show(as_document(found), *preview_views(found, full=full))
        tell_warnings(out, found.key_warnings)

    @command(app, "contribute", site="holder")
    def contribute(
        out: Output,
        client: "Client",
        given: Given,
        study: StudyId,
        file: Annotated[
            Path | None,
            typer.Argument(help=f"{FORMATS}; by default the table already loaded.", exists=True, dir_okay=False),
        ] = None,
        source: Annotated[
            str | None, typer.Option("--source", help="In place of a file: a source of your holder, by its name.")
        ] = None,
        encoding: Encoding = None,
        ignore_extra: IgnoreExtra = False,
        approve: Annotated[
            bool, typer.Option("--approve", help="First check the file, show the study, ask you, and approve it.")
        ] = False,
        coordinator: Annotated[
            str | None,
            typer.Option("--coordinator", help="With --approve: let the holder fetch the study from here first."),
        ] = None,
        yes: Annotated[bool, typer.Option("--yes", "-y", help="With --approve: do not ask.")] = False,
        wait: Annotated[bool, typer.Option(help="Wait until all servers have confirmed.")] = True,
    ) -> None:
        """Owner: contribute your table to a study as shares. Done when every server has given a receipt."""
        if file is not None and source is not None:
            raise typer.BadParameter("give a FILE or --source NAME, not both")
        if approve:
            identity = _approved(
                out, client, given, study, file, coordinator, yes=yes, encoding=encoding, ignore_extra=ignore_extra
            )
        else:
            identity = matching(study, client.studies, "study")
        if source is not None:
            client.use_source(identity, source)
        with out.transfer("sending to the holder") as progress:
            found = client.contribute(
                identity, file, encoding=_spelled(encoding), ignore_extra=ignore_extra, progress=progress
            )
        loss = getattr(client.study(identity), "loss", None)
        for warning in loss.warnings if loss is not None else ():
            out.note(f"WARNING: {warning}")
        if wait:
            found = _settled(out, client, identity, found, "pushing")
        _tell(out, found)

    @command(app, "withdraw", site="holder")
    def withdraw(out: Output, client: "Client", study: StudyId) -> None:
        """Owner: take your contribution back from all servers. Possible until the study is sealed for its run."""
        identity = matching(study, client.studies, "study")
        _tell(out, _settled(out, client, identity, client.withdraw(identity), "withdrawing"))


def _approved(
    out: Output,
    client: "Client",
    given: Given,
    study: str,
    file: Path | None,
    coordinator: str | None,
    *,
    yes: bool,
    encoding: str | None,
    ignore_extra: bool,
) -> str:
    """The study, approved. A file that does not fit it is refused before anything is signed."""
    from caps.cli.approving import Approving
    from caps.cli.fitting import fit

    with Approving(out, client, given, study, coordinator=coordinator, server=False) as found:
        if file is not None:
            document, views = fit(
                file, found.manifest, found.party, encoding=encoding, ignore_extra=ignore_extra, show_lines=0
            )
            if not document["fits"]:
                out.show(document, *views)
                raise Stop(Exit.REFUSED)
        if not yes:
            found.ask()
        found.approve()
        tell_warnings(out, found.warnings)
        return found.study


def _spelled(encoding: str | None) -> str | None:
    """The name that a Content-Type gives to an encoding. Raises DomainError if it is not read."""
    from caps.data.schema import files

    return None if encoding is None else files.ENCODINGS[files.encoding_named(encoding)]


def _settled(out: Output, client: "Client", study: str, found: "ContributionView", moving: str) -> "ContributionView":
    """Wait until all servers have signed, or one refuses for good."""
    before = ("matching",) if moving == "pushing" else ()
    with out.waiting("bytes at the servers" if moving == "pushing" else "withdrawn from servers") as progress:
        while found.state in (moving, *before) and not _refusals(found):
            if moving == "pushing":
                progress(sum(one.sent for one in found.servers), max(1, sum(one.of for one in found.servers)))
            else:
                progress(sum(one.withdrawal is not None for one in found.servers), len(found.servers))
            time.sleep(POLL)
            found = client.contribution(study)
    return found


def _refusals(found: "ContributionView") -> list[str]:
    """The servers' objections that waiting will not change."""
    problems = [(one.server, one.problem) for one in found.servers if one.problem]
    return [f"{server}: {one.get('detail')}" for server, one in problems if not one.get("retryable", True)]


def _tell(out: Output, found: "ContributionView") -> None:
    """Show a contribution and its servers, without signatures."""
    document = as_document(found)
    servers = [
        {**one, "receipt": one["receipt"] is not None, "problem": (one["problem"] or {}).get("detail")}
        for one in document["servers"]
    ]
    view = listing(servers, ("server", "state", "sent", "of", "receipt", "problem"))
    out.show(document, facts({key: document[key] for key in ("contribution", "state")}), view)
    if _refusals(found):
        raise Stop(Exit.REFUSED)
