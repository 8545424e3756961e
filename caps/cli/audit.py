"""Commands for auditors and operators: certificates, ledgers, shares, health."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from caps.cli.exits import Exit, Stop
from caps.cli.kit import command, group, matching, matching_id
from caps.cli.output import Output, as_document, facts, listing, minute, plain, short
from caps.cli.study import StudyId
from caps.errors import DomainError

if TYPE_CHECKING:
    from rich.table import Table

    from caps.client import Client

RunId = Annotated[str, typer.Argument(metavar="RUN", help="The run's id, or its beginning.")]
RUN_DIGITS = 32
_LEDGER = ("number", "on", "kind", "run", "what", "rho")
_EVIDENCE = ("server", "pair", "step", "check", "signature")
_WORDS = {True: ("holds", "green"), False: ("FAILS", "bold red"), None: ("not checked", "yellow")}
_KEYS = {True: "same", False: "DIFFERS", None: "-"}


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    _add_verify(app)
    _add_ledger(group(app, "ledger", "Auditor: an MPC server's privacy ledger."))

    @command(app, "audit", site="server")
    def audit(out: Output, client: "Client", run: RunId) -> None:
        """Auditor: check what an MPC server records of a run: its ledger's chain, its charges, evidence of an abort.

        Exit code 5 if the ledger's chain is broken or evidence proves nothing.
        """
        document = _audited(client, run)
        words = "The ledger's chain holds." if document["ledger"] else "THE LEDGER'S CHAIN IS BROKEN."
        tables = [listing(map(_entry, document["records"]), _LEDGER, "ledger", right=("number", "rho"))]
        if document["evidence"]:
            tables.append(listing(document["evidence"], _EVIDENCE, "evidence"))
        state = {name: document[name] for name in ("run", "study", "state", "reason", "position", "interrupted")}
        out.show(document, facts(state), "", *tables, words)
        if not document["ledger"] or any(one["signature"] != "valid" for one in document["evidence"]):
            raise Stop(Exit.NOT_VERIFIED)

    @command(app, "ready", site="coordinator")
    def ready(out: Output, client: "Client") -> None:
        """Show whether a service is ready to work and, if it is not, why. Exit code 7 if it is not."""
        found = client.ready()
        document = as_document(found)
        out.show(document, facts(document))
        if found.status != "ready":
            raise Stop(Exit.NOT_YET)

    shares = group(app, "shares", "Operator: the shares that an MPC server holds.")

    @command(shares, "list", site="server")
    def listed(out: Output, client: "Client", study: StudyId) -> None:
        """List the complete contributions of a study."""
        items = [as_document(one) for one in client.contributions(matching(study, client.studies, "study"))]
        rows = [{**one, "contribution": short(one["contribution"])} for one in items]
        view = listing(rows, ("contribution", "holder", "state")) if rows else "No holder has contributed yet."
        out.show({"contributions": items}, view)

    @command(shares, "erase", site="server")
    def erase(out: Output, client: "Client", study: StudyId) -> None:
        """Erase all shares of a study on this server. The receipts say what was erased."""
        receipts = client.erase_shares(matching(study, client.studies, "study"))
        rows = [
            {**one.document.to_json(), "contribution": short(one.document.contribution), "at": minute(one.document.at)}
            for one in receipts
        ]
        view = listing(rows, ("holder", "contribution", "event", "at")) if rows else "There was nothing to erase."
        out.show({"receipts": [one.to_json() for one in receipts]}, view)


def _add_verify(app: typer.Typer) -> None:
    @command(app, "verify")
    def verify(
        out: Output,
        certificate: Annotated[Path, typer.Argument(help="A release's certificate.", exists=True, dir_okay=False)],
        transcript: Annotated[
            Path | None,
            typer.Option(
                "--transcript", help="The signed answers, to recompute all charges.", exists=True, dir_okay=False
            ),
        ] = None,
        measurements: Annotated[
            Path | None, typer.Option("--measurements", help="The released measurements.", exists=True, dir_okay=False)
        ] = None,
        data: Annotated[
            list[Path] | None,
            typer.Option(
                "--data",
                help="The released rows, in any format that is published; repeat for more.",
                exists=True,
                dir_okay=False,
            ),
        ] = None,
        cards: Annotated[
            Path | None,
            typer.Option(
                "--cards",
                help="A folder with the organisations' cards, which their keys must match.",
                exists=True,
                file_okay=False,
            ),
        ] = None,
        authority: Annotated[
            Path | None,
            typer.Option(
                "--authority",
                help="PEM file of the federation's authority, which must have issued the certificates beside cards.",
                exists=True,
                dir_okay=False,
            ),
        ] = None,
        full: Annotated[bool, typer.Option("--full", help="Show all digits of pins and keys.")] = False,
    ) -> None:
        """Check a release offline: its signatures, charges and files, and whose keys they are. Exit code 5 if not."""
        document = _verified(certificate, transcript, measurements, data or [], cards, authority)
        words = "The certificate is valid." if document["verified"] else "THE CERTIFICATE IS NOT VALID."
        out.show(document, _verdicts(document["checks"]), *_parties(document.get("parties", []), full=full), "", words)
        if not document["verified"]:
            raise Stop(Exit.NOT_VERIFIED)


def _add_ledger(ledger: typer.Typer) -> None:
    @command(ledger, "show", site="server")
    def show(out: Output, client: "Client") -> None:
        """Show every record."""
        records = [as_document(one) for one in client.ledger()]
        view = listing(map(_entry, records), _LEDGER, right=("number", "rho")) if records else "There is no record yet."
        out.show({"records": records}, view)

    @command(ledger, "heads", site="server")
    def heads(out: Output, client: "Client") -> None:
        """Show the signed heads of ledgers that the server keeps, its own and its peers'. `verify` reads the JSON."""
        found = [one.to_json() for one in client.ledger_heads()]
        rows = [
            {**one["document"], "hash": short(one["document"]["hash"]), "run": short(one["document"]["run"])}
            for one in found
        ]
        view = listing(rows, ("server", "number", "hash", "run", "at")) if rows else "The server keeps no heads yet."
        out.show({"heads": found}, view)

    @command(ledger, "verify", site="server")
    def verify(
        out: Output,
        client: "Client",
        card: Annotated[Path, typer.Option("--card", help="The server's card, with its key.", exists=True)],
        heads: Annotated[
            list[Path] | None,
            typer.Option(
                "--heads",
                help="What a peer keeps, from `caps ledger heads --url PEER --json`; repeat for more.",
                exists=True,
                dir_okay=False,
            ),
        ] = None,
        policy: Annotated[
            Path | None,
            typer.Option(
                "--policy",
                help="The server's policy.yaml, to say what each population has left.",
                exists=True,
                dir_okay=False,
            ),
        ] = None,
        summary: Annotated[
            bool, typer.Option("--summary", help="Show the verdict and the populations, not every head.")
        ] = False,
    ) -> None:
        """Check the chain, and that it contains every head that the server has signed. Exit code 5 if it does not.

        It also says, in epsilon, what each population has used and, with the server's policy, what it has left.
        """
        document = _ledger_verified(client, card, heads or [], policy)
        words = "The ledger holds." if document["verified"] else "THE LEDGER IS NOT THE ONE THAT THE SERVER HAS SIGNED."
        if not document["compared"]:
            words += " No peer's heads were given: whether its end is missing cannot be told."
        view: list[Any] = [facts({name: document[name] for name in ("server", "records", "broken_at")})]
        if document["heads"] and not summary:
            rows = [{**one, "run": short(one["run"]), "at": minute(one["at"])} for one in document["heads"]]
            view += ["", listing(rows, ("kept_by", "number", "at", "run", "verdict"), "heads")]
        if document["populations"]:
            view += ["", *_populations(document["populations"])]
        out.show(document, *view, "", words)
        if not document["verified"]:
            raise Stop(Exit.NOT_VERIFIED)


def _ledger_verified(client: "Client", card: Path, files: list[Path], policy: Path | None) -> dict[str, Any]:
    from pydantic import ValidationError

    from caps.audit.ledger import broken_at, compared, spending
    from caps.basics import canonical
    from caps.basics.document import first_mistake
    from caps.study import Policy
    from caps.trust.cards import Card
    from caps.wire import LedgerHead, Signed

    def kept(path: Path) -> list[Signed[LedgerHead]]:
        found = canonical.parse(path.read_bytes())
        listed = found.get("heads") if isinstance(found, dict) else None
        if not isinstance(listed, list):
            raise DomainError(f"{path}: not what `caps ledger heads --json` writes")
        try:
            return [Signed[LedgerHead].model_validate_json(canonical.dump(one)) for one in listed]
        except ValidationError as error:
            raise DomainError(f"{path}: {first_mistake(error)}") from None

    party = Card.read(card)
    records = [as_document(one) for one in client.ledger()]
    sources = {str(path): kept(path) for path in files} | {"the server itself": client.ledger_heads()}
    verdicts, broken = compared(records, party.name, party.signing_key, sources), broken_at(records)
    populations = spending(records, None if policy is None else Policy.read(policy)) if broken is None else []
    return {
        "server": party.name,
        "records": len(records),
        "broken_at": broken,
        "compared": len(files),
        "heads": [asdict(one) for one in verdicts],
        "populations": [asdict(one) for one in populations],
        "verified": broken is None and not any(one.holds is False for one in verdicts),
    }


def _populations(found: list[dict[str, Any]]) -> Iterator[Any]:
    def epsilon(value: float | None) -> str:
        return "-" if value is None else f"{value:.3g}"

    rows = [
        {
            "population": one["population"],
            "runs": one["runs"],
            "used": epsilon(one["used"]),
            "of": epsilon(one["limit"]),
            "left": epsilon(one["left"]),
            "at delta": f"{one['delta']:.2g}",
        }
        for one in found
    ]
    columns = ("population", "runs", "used", "of", "left", "at delta")
    yield listing(rows, columns, "epsilon of each population", right=columns[1:])
    if all(one["limit"] is None for one in found):
        yield "What is left follows from the server's policy: --policy"


def _audited(client: "Client", run: str) -> dict[str, Any]:
    from caps.audit.evidence import examined
    from caps.audit.ledger import broken_at

    records = [as_document(one) for one in client.ledger()]
    if len(run) != RUN_DIGITS:
        run = matching_id(run, (str(record["run"]) for record in records), "run")
    status = client.run_here(run)
    evidence = examined(client.manifest(status.study), run, status.evidence) if status.evidence else []
    return {
        **as_document(status),
        "evidence": [asdict(one) for one in evidence],
        "records": [record for record in records if record.get("run") == run],
        "ledger": broken_at(records) is None,
    }


def _verified(
    certificate: Path,
    transcript: Path | None,
    measurements: Path | None,
    data: list[Path],
    cards: Path | None,
    authority: Path | None,
) -> dict[str, Any]:
    from datetime import UTC, datetime

    from caps.audit.parties import parties
    from caps.audit.verification import Check, accepted, verify
    from caps.wire import Certificate

    try:
        found = Certificate.from_canonical(certificate.read_bytes())
    except DomainError as error:
        broken = Check("certificate", False, f"{certificate} is not a certificate: {error}")
        return {"verified": False, "checks": [asdict(broken)]}
    checks = verify(
        found,
        transcript=transcript,
        measurements=measurements,
        data=data,
        cards=cards,
        authority=authority,
        now=datetime.now(UTC),
    )
    try:
        keys = parties(found.manifest, cards=cards, authority=authority)
    except DomainError:  # the checks say so
        keys = parties(found.manifest)
    return {
        "verified": accepted(checks),
        "study": found.manifest.study_id,
        "release": found.release.document.run,
        "checks": [asdict(check) for check in checks],
        "parties": [asdict(one) for one in keys],
    }


def _verdicts(checks: list[dict[str, Any]]) -> "Table":
    """One line for each check."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in checks:
        word, style = _WORDS[check["passed"]]
        table.add_row(Text(word, style), plain(check["name"]), plain(check["explanation"]))
    return table


def _parties(found: list[dict[str, Any]], *, full: bool) -> Iterator[Any]:
    """Whose keys the signatures are of, to be compared with what the organisations publish."""
    if not found:
        return
    rows = [
        {
            "party": f"{one['role']} {one['name']}",
            "pin": one["pin"][:16],
            "signing key": one["signing_key"][:16],
            "card": _KEYS[one["card"]],
            "authority": _KEYS[one["certified"]],
        }
        for one in found
    ]
    compared = [name for name in ("card", "authority") if any(one[name] != "-" for one in rows)]
    yield ""
    yield listing(rows, ("party", "pin", "signing key", *compared))
    if full:
        for row, one in zip(rows, found, strict=True):
            yield f"{row['party']}\n  pin          {one['pin']}\n  signing key  {one['signing_key']}"
    if "card" not in compared:
        yield "Compare these with what the organisations publish, or give their cards: --cards"


def _entry(record: Mapping[str, Any]) -> dict[str, Any]:
    """A ledger record for display: what it is about in words, and its exact fraction as a decimal."""
    charged = record.get("entry")
    entry = {**(charged if isinstance(charged, dict) else {}), **record}
    parts = [
        f"population {entry['population']}" if entry.get("population") is not None else None,
        f"step {entry['step']}" if entry.get("step") is not None else None,
        entry.get("sampler"),
        "in all" if entry.get("spent") is not None else None,
    ]
    return {
        "number": entry.get("number"),
        "on": str(entry.get("at", ""))[:10],
        "kind": entry.get("kind"),
        "run": short(entry.get("run")),
        "what": ", ".join(str(part) for part in parts if part is not None),
        "rho": _decimal(entry.get("rho", entry.get("spent"))),
    }


def _decimal(value: object) -> str:
    from fractions import Fraction  # with decimal, a part of the time that every command takes to begin

    try:
        return f"{float(Fraction(str(value))):.4g}"
    except (ValueError, ZeroDivisionError):
        return "-"
