"""Commands for auditors and operators: certificates, ledgers, shares, health."""

from dataclasses import asdict
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from caps.cli.exits import Exit, Stop
from caps.cli.kit import command, group, matching
from caps.cli.output import Output, as_document, facts, listing, plain
from caps.cli.study import StudyId
from caps.errors import DomainError

if TYPE_CHECKING:
    from caps.client import Client

_LEDGER = ("number", "at", "kind", "population", "run", "step", "sampler", "rho", "spent")
_EVIDENCE = ("server", "pair", "step", "check", "at", "signature")
_WORDS = {True: ("holds", "green"), False: ("FAILS", "bold red"), None: ("not checked", "yellow")}


def add_to(app: typer.Typer) -> None:
    """Add these commands."""

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
            Path | None, typer.Option("--data", help="The released rows, in any format.", exists=True, dir_okay=False)
        ] = None,
    ) -> None:
        """Check a release offline: its signatures, charges and files. Exit code 5 if a check fails."""
        document = _verified(certificate, transcript, measurements, data)
        words = "The certificate is valid." if document["verified"] else "THE CERTIFICATE IS NOT VALID."
        out.show(document, _verdicts(document["checks"]), words)
        if not document["verified"]:
            raise Stop(Exit.NOT_VERIFIED)

    @command(app, "ledger", site="server")
    def ledger(out: Output, client: "Client") -> None:
        """Auditor: show every record of an MPC server's privacy ledger."""
        records = [as_document(one) for one in client.ledger()]
        out.show({"records": records}, listing(map(_entry, records), _LEDGER))

    @command(app, "audit", site="server")
    def audit(
        out: Output,
        client: "Client",
        run: Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")],
    ) -> None:
        """Auditor: check what an MPC server records of a run: its ledger's chain, its charges, evidence of an abort.

        Exit code 5 if the ledger's chain is broken or evidence proves nothing.
        """
        document = _audited(client, run)
        words = "The ledger's chain holds." if document["ledger"] else "THE LEDGER'S CHAIN IS BROKEN."
        tables = [listing(map(_entry, document["records"]), _LEDGER, "ledger")]
        if document["evidence"]:
            tables.append(listing(document["evidence"], _EVIDENCE, "evidence"))
        state = {name: document[name] for name in ("run", "study", "state", "reason", "position", "interrupted")}
        out.show(document, facts(state), *tables, words)
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
        out.show({"contributions": items}, listing(items, ("contribution", "holder", "state")))

    @command(shares, "erase", site="server")
    def erase(out: Output, client: "Client", study: StudyId) -> None:
        """Erase all shares of a study on this server. The receipts say what was erased."""
        receipts = client.erase_shares(matching(study, client.studies, "study"))
        documents = [one.document.to_json() for one in receipts]
        out.show(
            {"receipts": [one.to_json() for one in receipts]},
            listing(documents, ("holder", "contribution", "event", "at")),
        )


def _audited(client: "Client", run: str) -> dict[str, Any]:
    from caps.audit.evidence import broken_at, examined

    status = client.run_here(run)
    records = [as_document(one) for one in client.ledger()]
    evidence = examined(client.manifest(status.study), run, status.evidence) if status.evidence else []
    return {
        **as_document(status),
        "evidence": [asdict(one) for one in evidence],
        "records": [record for record in records if record.get("run") == run],
        "ledger": broken_at(records) is None,
    }


def _verified(
    certificate: Path, transcript: Path | None, measurements: Path | None, data: Path | None
) -> dict[str, Any]:
    from caps.audit.verification import Check, accepted, verify
    from caps.wire import Certificate

    try:
        found = Certificate.from_canonical(certificate.read_bytes())
    except DomainError as error:
        broken = Check("certificate", False, f"{certificate} is not a certificate: {error}")
        return {"verified": False, "checks": [asdict(broken)]}
    checks = verify(found, transcript=transcript, measurements=measurements, data=data, now=datetime.now(UTC))
    return {
        "verified": accepted(checks),
        "study": found.manifest.study_id,
        "release": found.release.document.run,
        "checks": [asdict(check) for check in checks],
    }


def _verdicts(checks: list[dict[str, Any]]) -> Table:
    """One line for each check."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for check in checks:
        word, style = _WORDS[check["passed"]]
        table.add_row(Text(word, style), plain(check["name"]), plain(check["explanation"]))
    return table


def _entry(record: dict[str, Any]) -> dict[str, Any]:
    """A ledger record for display: the charge is included, and exact fractions are decimals."""
    charged = record.get("entry")
    flat = {**(charged if isinstance(charged, dict) else {}), **record}
    return {key: _decimal(value) if key in {"rho", "spent"} else value for key, value in flat.items()}


def _decimal(value: object) -> object:
    try:
        return float(Fraction(str(value)))
    except (ValueError, ZeroDivisionError):
        return value
