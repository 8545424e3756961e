"""`caps release`: find, read and download published synthetic data."""

import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from caps.cli.kit import command, group, matching, matching_id
from caps.cli.output import Output, as_document, facts, heading, listing, minute, short, words_of
from caps.errors import DomainError

if TYPE_CHECKING:
    from caps.client import Client, Download, Estimate
    from caps.wire.coordinator import FileView

Conditions = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        help="COLUMN=VALUE, or COLUMN=FROM..TO between edges of bins. The same column again: or; another: and.",
    ),
]
ReleaseId = Annotated[str, typer.Argument(metavar="RELEASE", help="The release's id, or its beginning.")]
To = Annotated[Path | None, typer.Option("--out", "-o", help="Write the JSON document here.")]
ToFile = Annotated[Path | None, typer.Option("--out", "-o", help="The file; by default named after the release.")]
DIGITS = 32
_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_SHOWN = 12
"""Cells of a measured table that are shown unless all are asked for."""


class Format(StrEnum):
    """The formats of a release's rows."""

    CSV = "csv"
    RAW = "raw.csv"
    PARQUET = "parquet"
    ARROW = "arrow"
    NDJSON = "ndjson"


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    release = group(app, "release", "Releases: synthetic data with its report and certificate.")
    _add_rows(release)
    _add_documents(release)
    _add_samples(release)


def _add_rows(release: typer.Typer) -> None:
    @command(release, "list", site="coordinator")
    def listed(out: Output, client: "Client") -> None:
        """List the published releases."""
        found = client.releases()
        rows = [
            {
                "release": short(one.release),
                "title": one.title,
                "rows": f"{one.rows:,}",
                "epsilon": one.epsilon,
                "published": minute(one.created_at),
            }
            for one in found
        ]
        columns = ("release", "title", "rows", "epsilon", "published")
        view = listing(rows, columns, right=("rows", "epsilon")) if rows else "Nothing has been published yet."
        out.show({"releases": [as_document(one) for one in found]}, view)

    @command(release, "show", site="coordinator")
    def show(out: Output, client: "Client", release: ReleaseId) -> None:
        """Show a release: its study, its files and their digests."""
        found = client.release(_whole(client, release))
        essentials = {
            "release": found.release,
            "title": found.title,
            "study": short(found.study),
            "rows": f"{found.rows:,}",
            "guarantee": f"epsilon {found.epsilon} at delta {found.delta}",
            "noise": "proven" if found.certified else "NO PROVEN GUARANTEE",
            "noisy counts": "published" if found.measurements else "not published",
            "samples": [short(one) for one in found.samples],
            "published": minute(found.created_at),
        }
        out.show(as_document(found), facts(essentials), "", _files(found.data))

    @command(release, "get", site="coordinator")
    def get(
        out: Output,
        client: "Client",
        release: ReleaseId,
        kind: Annotated[
            Format | None,
            typer.Option(
                "--format",
                help="The format of the rows; by default that of the file's suffix, or csv. In csv, what spreadsheets "
                "take for formulas is escaped.",
            ),
        ] = None,
        to: ToFile = None,
        sample: Annotated[
            str | None, typer.Option("--sample", help="Fetch the rows of this sample instead; its id's beginning.")
        ] = None,
    ) -> None:
        """Fetch a release's rows. An interrupted download resumes; the file appears once its digest is verified."""
        identity = _whole(client, release)
        if sample is not None:
            sample = _sample(client, identity, sample)
        target = to or Path(f"{short(sample or identity)}.{kind or Format.CSV}")
        with out.transfer(f"fetching {target.name}") as progress:
            found = client.download(identity, target, format=kind, sample=sample, progress=progress)
        _fetched(out, found)

    @command(release, "count", site="coordinator")
    def count(
        out: Output,
        client: "Client",
        release: ReleaseId,
        where: Conditions = None,
        by: Annotated[list[str] | None, typer.Option("--by", help="Group by this column; repeat for more.")] = None,
        level: Annotated[float, typer.Option("--level", help="Of the confidence intervals, 0.8 to 0.999.")] = 0.95,
    ) -> None:
        """Analyst: count persons, with confidence intervals from the noisy answers, not from the synthetic rows."""
        identity = _whole(client, release)
        found = client.estimate(identity, _conditions(where or []), by or [], level=level)
        out.show({"release": identity, "estimates": [asdict(one) for one in found]}, *_estimates(found, level))


def _add_documents(release: typer.Typer) -> None:
    @command(release, "report", site="coordinator")
    def report(out: Output, client: "Client", release: ReleaseId, to: To = None) -> None:
        """Show the report: the privacy guarantee in words, and quality estimated from the noisy answers."""
        identity = _whole(client, release)
        if out.as_json or to is not None:
            _document(out, client.document(identity, "report"), to)
        else:
            from rich.markdown import Markdown

            from caps.wire.media import MARKDOWN

            text = client.document(identity, "report", accept=MARKDOWN).decode(errors="replace")
            out.show(text, Markdown(words_of(text)))

    @command(release, "measurements", site="coordinator")
    def measurements(
        out: Output,
        client: "Client",
        release: ReleaseId,
        to: To = None,
        full: Annotated[bool, typer.Option("--full", help="Show every cell.")] = False,
    ) -> None:
        """Show the noisy counts with their error bars, or fetch them."""
        content = client.document(_whole(client, release), "measurements")
        _document(out, content, to, lambda: _measured(content, full=full))

    @command(release, "certificate", site="coordinator")
    def certificate(out: Output, client: "Client", release: ReleaseId, to: To = None) -> None:
        """Fetch the certificate, for `caps verify`; without a file, show who signed it."""
        content = client.document(_whole(client, release), "certificate")
        _document(out, content, to, lambda: _certified(content))

    @command(release, "transcript", site="coordinator")
    def transcript(out: Output, client: "Client", release: ReleaseId, to: ToFile = None) -> None:
        """Fetch every request with the answer that the servers signed, for `caps verify`. Resumes like `get`."""
        identity = _whole(client, release)
        target = to or Path(f"{short(identity)}.transcript.ndjson")
        with out.transfer(f"fetching {target.name}") as progress:
            found = client.transcript(identity, target, progress=progress)
        _fetched(out, found)


def _add_samples(release: typer.Typer) -> None:
    @command(release, "sample", site="coordinator")
    def sample(
        out: Output,
        client: "Client",
        release: ReleaseId,
        rows: Annotated[
            int | None, typer.Option("--rows", min=1, help="How many rows; by default as many as released.")
        ] = None,
        seed: Annotated[str | None, typer.Option("--seed", help="64 hexadecimal digits; random by default.")] = None,
        where: Conditions = None,
    ) -> None:
        """Draw another sample from a release's model, also of some persons only. It costs no privacy budget."""
        found = client.sample(_whole(client, release), rows=rows, seed=seed, where=_conditions(where or []))
        essentials = {"sample": found.sample, "rows": f"{found.rows:,}", "seed": found.seed}
        if found.where:
            essentials["where"] = "; ".join(f"{name}: {', '.join(values)}" for name, values in found.where.items())
        next_step = f"Its rows: caps release get {short(found.release)} --sample {short(found.sample)}"
        out.show(as_document(found), facts(essentials), found.privacy, next_step)

    @command(release, "delete-sample", site="coordinator")
    def delete_sample(
        out: Output,
        client: "Client",
        release: ReleaseId,
        sample: Annotated[str, typer.Argument(metavar="SAMPLE", help="The sample's id, or its beginning.")],
    ) -> None:
        """Delete a sample, to make room for another. The same rows and seed give it again."""
        identity = _whole(client, release)
        whole = _sample(client, identity, sample)
        client.delete_sample(identity, whole)
        out.show({"release": identity, "deleted": whole}, f"Sample {whole} is deleted.")


def _whole(client: "Client", release: str) -> str:
    return matching(release, client.releases, "release", digits=DIGITS)


def _sample(client: "Client", release: str, sample: str) -> str:
    return sample if len(sample) == DIGITS else matching_id(sample, client.release(release).samples, "sample")


def _files(data: "list[FileView]") -> Any:
    from caps.study.memory import size_shown

    rows = [{"format": one.format, "size": size_shown(one.bytes), "sha256": f"{one.sha256[:16]}..."} for one in data]
    return listing(rows, ("format", "size", "sha256"), right=("size",))


def _fetched(out: Output, found: "Download") -> None:
    document = {
        "file": str(found.path),
        "bytes": found.bytes,
        "sha256": found.sha256,
        "resumed_from": found.resumed_from,
    }
    resumed = {"resumed_from": found.resumed_from} if found.resumed_from else {}
    out.show(document, facts({name: document[name] for name in ("file", "bytes", "sha256")} | resumed))


def _document(out: Output, content: bytes, to: Path | None, view: Any = None) -> None:
    """Show a document, or save its exact bytes, because certificates contain digests of them."""
    if to is None:
        out.show(json.loads(content), *(() if out.as_json or view is None else view()))
        return
    to.write_bytes(content)
    out.show({"file": str(to), "sha256": sha256(content).hexdigest()}, f"{to} is written.")


def _measured(content: bytes, *, full: bool) -> Iterator[Any]:
    """Each table with its error bar, and some of its cells."""
    from caps.wire.releases import Measurements

    found: Measurements = Measurements.model_validate_json(content)
    hidden = 0
    for one in found.measurements:
        names = [" x ".join(cell) for cell in _cells(one.categories)]
        shown = names if full else names[:_SHOWN]
        hidden += len(names) - len(shown)
        yield heading(f"{' x '.join(one.attributes)}: each count is ± {one.half_width_95:,.0f} (95 %)")
        yield listing(
            [{"cell": cell, "count": f"{value:,}"} for cell, value in zip(shown, one.values, strict=False)],
            ("cell", "count"),
            right=("count",),
        )
        yield ""
    yield f"{len(found.measurements)} tables" + (f"; {hidden:,} cells are not shown: --full" if hidden else "")


def _cells(categories: tuple[tuple[str, ...], ...]) -> Iterator[tuple[str, ...]]:
    from itertools import product

    return product(*categories)


def _certified(content: bytes) -> Iterator[Any]:
    from caps.wire import Certificate

    found = Certificate.from_canonical(content)
    manifest, body = found.manifest, found.release.document
    yield facts(
        {
            "release": body.run,
            "study": manifest.study_id,
            "title": manifest.title,
            "guarantee": f"epsilon {manifest.privacy.epsilon} at delta {manifest.privacy.delta}",
            "rows": f"{body.rows:,}",
            "approved by": [one.signer for one in found.approvals],
            "attested by": [one.signer for one in found.attestations],
            "published by": f"{found.release.signer}, {minute(body.at)}",
            "files": list(body.files),
        }
    )
    yield "Nothing is checked here. Save it with -o, then: caps verify FILE"


def _conditions(given: list[str]) -> dict[str, Any]:
    """`--where` as `Client.estimate` takes it. Raises DomainError."""
    found: dict[str, Any] = {}
    for one in given:
        name, sign, value = one.partition("=")
        if not sign or not name:
            raise DomainError(f"--where must be COLUMN=VALUE or COLUMN=FROM..TO, not {one}")
        ends = _ends(value)
        if ends is not None or isinstance(found.get(name), tuple):
            if name in found:
                raise DomainError(f"--where: {name} has a range and something else; a column has one range, or values")
            found[name] = ends
        else:
            found.setdefault(name, []).append(value)
    return found


def _ends(text: str) -> tuple[float | str | None, float | str | None] | None:
    """The two ends of FROM..TO, numbers or days; None if it is not a range."""
    first, dots, last = text.partition("..")
    try:
        ends = tuple(_end(end.strip()) for end in (first, last))
    except ValueError:
        return None
    return (ends[0], ends[1]) if dots and ends != (None, None) else None


def _end(text: str) -> float | str | None:
    if _DAY.fullmatch(text):
        return text
    return float(text) if text else None


def _estimates(found: "list[Estimate]", level: float) -> Iterator[Any]:
    groups = list(found[0].group) if found else []
    rows = [
        {
            **one.group,
            "persons": f"{one.count:,.0f}",
            "from": "-" if one.low is None else f"{one.low:,.0f}",
            "to": "-" if one.high is None else f"{one.high:,.0f}",
            "basis": one.basis,
            "in the rows": "-" if one.rows is None else f"{one.rows:,.0f}",
        }
        for one in found
    ]
    columns = (*groups, "persons", "from", "to", "basis", "in the rows")
    yield listing(rows, columns, right=("persons", "from", "to", "in the rows"))
    yield ""
    for basis in dict.fromkeys(one.basis for one in found):
        yield _BASES[basis].format(level=f"{level:.1%}".replace(".0%", "%"))


_BASES = {
    "measured": "measured: the noise was drawn so that {level} of such intervals contain the true number.",
    "bounded": "bounded: no measured table has all these columns. The interval is what tables with some of them allow, "
    "whatever the data are; the number between is the model's.",
    "rows": "rows: this study publishes no noisy counts, so there is no interval.",
}
