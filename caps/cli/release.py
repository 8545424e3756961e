"""`caps release`: find, read and download published synthetic data."""

import json
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markdown import Markdown

from caps.cli.kit import command, group, matching
from caps.cli.output import Output, as_document, facts, listing, plain, views

if TYPE_CHECKING:
    from caps.client import Client, Download

ReleaseId = Annotated[str, typer.Argument(metavar="RELEASE", help="The release's id, or its beginning.")]
To = Annotated[Path | None, typer.Option("--out", "-o", help="Write the JSON document here.")]
ToFile = Annotated[Path | None, typer.Option("--out", "-o", help="The file; by default named after the release.")]
DIGITS = 32


class Format(StrEnum):
    """The formats of a release's rows."""

    CSV = "csv"
    PARQUET = "parquet"
    ARROW = "arrow"
    NDJSON = "ndjson"


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    release = group(app, "release", "Releases: synthetic data with its report and certificate.")

    @command(release, "list", site="coordinator")
    def listed(out: Output, client: "Client") -> None:
        """List the published releases."""
        items = [as_document(one) for one in client.releases()]
        out.show({"releases": items}, listing(items, ("release", "title", "rows", "epsilon", "created_at")))

    @command(release, "show", site="coordinator")
    def show(out: Output, client: "Client", release: ReleaseId) -> None:
        """Show a release: its study, its files and their digests."""
        out.tell(client.release(_whole(client, release)))

    @command(release, "get", site="coordinator")
    def get(
        out: Output,
        client: "Client",
        release: ReleaseId,
        kind: Annotated[Format, typer.Option("--format", help="The format of the rows.")] = Format.CSV,
        to: ToFile = None,
        sample: Annotated[str | None, typer.Option("--sample", help="Fetch the rows of this sample instead.")] = None,
    ) -> None:
        """Fetch a release's rows. An interrupted download resumes; the file appears once its digest is verified."""
        identity = _whole(client, release)
        target = to or Path(f"{sample or identity}.{kind}")
        with out.transfer(f"fetching {target.name}") as progress:
            found = client.download(identity, target, format=kind, sample=sample, progress=progress)
        _fetched(out, found)

    @command(release, "sample", site="coordinator")
    def sample(
        out: Output,
        client: "Client",
        release: ReleaseId,
        rows: Annotated[
            int | None, typer.Option("--rows", min=1, help="How many rows; by default as many as released.")
        ] = None,
        seed: Annotated[str | None, typer.Option("--seed", help="64 hexadecimal digits; random by default.")] = None,
    ) -> None:
        """Draw another sample from a release's model. It costs no privacy budget."""
        out.tell(client.sample(_whole(client, release), rows=rows, seed=seed))

    @command(release, "delete-sample", site="coordinator")
    def delete_sample(
        out: Output,
        client: "Client",
        release: ReleaseId,
        sample: Annotated[str, typer.Argument(metavar="SAMPLE", help="The sample's id.")],
    ) -> None:
        """Delete a sample, to make room for another. The same rows and seed give it again."""
        identity = _whole(client, release)
        client.delete_sample(identity, sample)
        out.show({"release": identity, "deleted": sample}, f"Sample {sample} is deleted.")

    @command(release, "report", site="coordinator")
    def report(out: Output, client: "Client", release: ReleaseId, to: To = None) -> None:
        """Show the report: the privacy guarantee in words, and quality estimated from the noisy answers."""
        identity = _whole(client, release)
        if out.as_json or to is not None:
            _document(out, client.document(identity, "report"), to)
        else:
            from caps.wire.media import MARKDOWN

            text = client.document(identity, "report", accept=MARKDOWN).decode(errors="replace")
            out.show(text, Markdown(str(plain(text))))

    @command(release, "measurements", site="coordinator")
    def measurements(out: Output, client: "Client", release: ReleaseId, to: To = None) -> None:
        """Fetch the noisy counts with their error bars."""
        _document(out, client.document(_whole(client, release), "measurements"), to)

    @command(release, "certificate", site="coordinator")
    def certificate(out: Output, client: "Client", release: ReleaseId, to: To = None) -> None:
        """Fetch the certificate, for `caps verify`."""
        _document(out, client.document(_whole(client, release), "certificate"), to)

    @command(release, "transcript", site="coordinator")
    def transcript(out: Output, client: "Client", release: ReleaseId, to: ToFile = None) -> None:
        """Fetch every request with the answer that the servers signed, for `caps verify`. Resumes like `get`."""
        identity = _whole(client, release)
        target = to or Path(f"{identity}.transcript.ndjson")
        with out.transfer(f"fetching {target.name}") as progress:
            found = client.transcript(identity, target, progress=progress)
        _fetched(out, found)


def _whole(client: "Client", release: str) -> str:
    return matching(release, client.releases, "release", digits=DIGITS)


def _fetched(out: Output, found: "Download") -> None:
    document = {
        "file": str(found.path),
        "bytes": found.bytes,
        "sha256": found.sha256,
        "resumed_from": found.resumed_from,
    }
    out.show(document, facts(document))


def _document(out: Output, content: bytes, to: Path | None) -> None:
    """Show a document, or save its exact bytes, because certificates contain digests of them."""
    if to is None:
        document = json.loads(content)
        out.show(document, *views(document))
        return
    to.write_bytes(content)
    out.show({"file": str(to), "sha256": sha256(content).hexdigest()}, f"{to} is written.")
