"""`make demo`: three data owners, MPC servers and a coordinator make one private synthetic dataset.

The services are real processes with mutual TLS, and the tables are real CSV files; only the patients are invented.
Everything goes through the public REST interface, as it would for people. The argument is where to put files;
`--scheme` says how values are shared, and so how many servers there are; `--keep` leaves the services running, as a
federation of `caps federation`.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from caps.audit.verification import verify
from caps.basics.schemes import REP3, SCHEMES, Scheme
from caps.client import Client
from caps.data.quality import workload_error
from caps.errors import CapsError
from caps.federation.local import ENVIRONMENT, LocalFederation
from caps.federation.parties import COORDINATOR, manifest_parties
from caps.study import Manifest
from caps.wire.coordinator import RunProgress
from caps.wire.holder import ContributionView
from caps.wire.releases import Quality
from deploy import example

CAPS = Path(sys.executable).with_name("caps")
PEOPLE = (
    ("a data owner", "insurer", "owner"),
    ("an analyst", COORDINATOR, "analyst"),
    ("a server's operator", "S1", "operator"),
)
"""Who finds pages where, and the scope of their token."""
WARNING = "All parties run on one host, so non-collusion is NOT met. The patients are invented."


class Demo:
    """One demonstration: its files, its federation, and its output."""

    def __init__(self, output: Path, console: Console, scheme: Scheme = REP3) -> None:
        self.output = output
        self.scheme = scheme
        self.console = console
        self.seconds: dict[str, float] = {}

    def run(self, *, keep: bool) -> None:
        """Run everything, from keys to the summary."""
        started = time.perf_counter()
        place = self.output / "federation"
        if place.exists():  # from the last time; perhaps it still runs
            LocalFederation.read(place).clean()
        shutil.rmtree(self.output / "tables", ignore_errors=True)
        (self.output / "tables").mkdir(parents=True)
        self.console.print(Panel(f"[bold]CaPS[/bold]: {example.DIVISION}.\n[yellow]{WARNING}[/yellow]", expand=False))
        files = example.write_tables(self.output / "tables")
        holders = [holder["name"] for holder in example.HOLDERS]
        with self.telling(
            "keys", f"{self.scheme.parties + 1 + len(holders)} parties make their keys and get certificates"
        ):
            federation = LocalFederation.create(place, holders, scheme=self.scheme, now=utc_now())
        try:
            servers = ", ".join(self.scheme.server_names)
            with self.telling("start", f"{servers}, the coordinator and three holders start as processes"):
                federation.start(now=utc_now)
            manifest = self.agree(federation)
            self.contribute(federation, manifest, files)
            run = self.compute(federation, manifest)
            self.publish(federation, run)
            self.summarise(federation, manifest, run, files, time.perf_counter() - started)
        except BaseException:
            federation.stop()
            raise
        federation.write_environment(STUDY=manifest.study_id, RELEASE=run)
        if not keep:
            federation.stop()
        self.explore(place, keep=keep)

    def agree(self, federation: LocalFederation) -> Manifest:
        """The operator proposes the study; servers check it against their policies, owners sign it at their holders."""
        manifest = Manifest.from_json(
            {
                "title": "Patients and what they cost",
                "purpose": "A demonstration with invented patients.",
                "schema": example.SCHEMA,
                "join": example.JOIN,
                "algorithm": {"name": "aim"},
                "privacy": {"epsilon": "1", "delta": "1e-9", "population": "invented-patients"},
                **manifest_parties(federation.places, self.scheme, example.HOLDERS),
            }
        )
        signers = f"{len(manifest.servers)} servers and {len(manifest.holders)} owners"
        with self.telling("agree", f"study {manifest.study_id[:12]}…, in {self.scheme.name}, is signed by {signers}"):
            with self.client(federation, COORDINATOR, "operator") as operator:
                operator.propose(manifest)
            for holder in manifest.holders:
                with self.client(federation, holder.name, "operator") as person:
                    person.fetch(manifest.coordinator.url, manifest.study_id)
                with self.client(federation, holder.name, "owner") as owner:
                    owner.approve(manifest.study_id)
        return manifest

    def contribute(self, federation: LocalFederation, manifest: Manifest, files: dict[str, Path]) -> None:
        """Each owner looks at what would leave its site, then uploads; its holder shares with the servers."""
        table = Table("owner", "table", "rows", "leaves the site", "receipts", box=None, pad_edge=False)
        with self.telling("contribute", "owners upload their tables; each holder shares with the servers"):
            for name, path in files.items():
                with self.client(federation, name, "owner") as owner:
                    report = owner.put_table(manifest.study_id, path)
                    preview = owner.preview(manifest.study_id)
                    owner.contribute(manifest.study_id)
                    state = wait_for_receipts(owner, manifest.study_id)
                signed = sum(server.receipt is not None for server in state.servers)
                sent = f"{preview.total_bytes / 1e6:.2f} MB of random words"
                table.add_row(name, path.name, f"{report.rows:,}", sent, f"{signed} of {len(manifest.servers)}")
        self.console.print(table)

    def compute(self, federation: LocalFederation, manifest: Manifest) -> str:
        """Start the run and show it live."""
        self.console.print("• the servers compute on shares")
        started = time.perf_counter()
        with self.client(federation, COORDINATOR, "operator") as operator:
            run = operator.start(manifest.study_id).run
            columns = (
                TextColumn("  budget spent"),
                BarColumn(),
                TextColumn("{task.percentage:3.0f} %"),
                TimeElapsedColumn(),
            )
            with Progress(*columns, console=self.console, transient=True) as bar:
                task = bar.add_task("run", total=1.0)
                for event in operator.watch(run):
                    if isinstance(event, RunProgress):
                        bar.update(task, completed=event.rho_spent / event.rho)
                        if event.stage == "measure" and event.clique:
                            bar.console.print(f"    round {event.round:2d}: measured {' x '.join(event.clique)}")
                    elif event.state in ("waiting", "failed"):
                        bar.console.print(f"    {event.state}: {event.reason}")
            state = operator.run(run)
        if state.state != "released":
            raise SystemExit(f"the run ended as {state.state}: {state.reason}")
        self.seconds["compute"] = time.perf_counter() - started
        return run

    def publish(self, federation: LocalFederation, run: str) -> None:
        """The analyst downloads everything and checks the certificate offline."""
        with self.telling("verify", "the analyst downloads the release and verifies its certificate offline"):
            with self.client(federation, COORDINATOR, "analyst") as analyst:
                analyst.download(run, self.output / "synthetic.csv")
                analyst.transcript(run, self.output / "transcript.ndjson")
                (self.output / "measurements.json").write_bytes(analyst.document(run, "measurements"))
                (self.output / "certificate.json").write_bytes(analyst.document(run, "certificate"))
                certificate = analyst.certificate(run)
            checks = verify(
                certificate,
                transcript=self.output / "transcript.ndjson",
                measurements=self.output / "measurements.json",
                data=self.output / "synthetic.csv",
                now=utc_now(),
            )
            failed = [check.name for check in checks if not check.passed]
            if failed:
                raise SystemExit(f"the certificate is not valid; failed checks: {', '.join(failed)}")
            self.checks = len(checks)
            self.certificate = certificate

    def summarise(
        self, federation: LocalFederation, manifest: Manifest, run: str, files: dict[str, Path], seconds: float
    ) -> None:
        """Print where the data is, its privacy cost, its quality, and how to explore it."""
        real = example.joined(files, manifest.schema_)
        synthetic, _ = manifest.schema_.encode(self.output / "synthetic.csv", lacking=manifest.lacking)
        error = workload_error(manifest.queries.layout(manifest.domain), real, synthetic)
        with self.client(federation, COORDINATOR, "analyst") as analyst:
            release = analyst.release(run)
            estimated = analyst.report(run).quality
        statement = self.certificate.attestations[0].document.statement
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(style="bold")
        table.add_row("synthetic data", f"{self.output / 'synthetic.csv'}, {release.rows:,} rows, no real person in it")
        table.add_row(
            "privacy",
            f"epsilon {manifest.privacy.epsilon}, delta {float(manifest.privacy.delta):g}; one person = one row",
        )
        table.add_row("certificate", f"{self.output / 'certificate.json'}, {self.checks} checks passed offline")
        table.add_row("quality", f"estimated from the noisy answers alone, as real federations do: {fit(estimated)}")
        table.add_row(
            "",
            f"compared with the invented originals, as no real federation can: {quality(error)}, "
            f"{100 * (1 - error):.1f} % of every two-way table is in the right place",
        )
        table.add_row("time", f"{seconds:.1f} s in total, {self.seconds['compute']:.1f} s of it for the run")
        self.console.print()
        self.console.print(Panel(table, title="one synthetic dataset, and nobody revealed a row", expand=False))
        self.console.print(f"[dim]{statement['paragraph']}[/dim]")

    def explore(self, place: Path, *, keep: bool) -> None:
        """Say how to go on with the same federation."""
        lines = [
            *([] if keep else [f"{CAPS} federation start {place}"]),
            f". {place / ENVIRONMENT}    # exports CAPS_CONFIG, STUDY and RELEASE",
            "caps release list --site analyst",
            "caps table ledger --site insurer",
            f"caps federation {'stop' if keep else 'clean'} {place}",
        ]
        self.console.print("\nThe services stay up. Explore them:" if keep else "\nExplore it:")
        for line in lines:
            self.console.print(f"  {line}", soft_wrap=True, highlight=False)
        if keep:
            self.pages(LocalFederation.read(place))

    def pages(self, federation: LocalFederation) -> None:
        """Say where people find pages, and with which token each of them signs in."""
        self.console.print(
            "\nOr in a browser: open an address, and sign in with the token in the file beside it. The browser warns "
            "of the certificate, because it does not know this federation's authority (docs/pages.md).",
            soft_wrap=True,
        )
        for who, name, scope in PEOPLE:
            place = federation.places[name]
            line = f"  {who:22}{place.url}/ui    {place.home / f'{scope}.token'}"
            self.console.print(line, soft_wrap=True, highlight=False)

    @contextmanager
    def telling(self, name: str, what: str) -> Iterator[None]:
        """Print what is being done, and how long it took."""
        started = time.perf_counter()
        with self.console.status(what):
            yield
        self.seconds[name] = time.perf_counter() - started
        self.console.print(f"• {what} [dim]({self.seconds[name]:.1f} s)[/dim]")

    def client(self, federation: LocalFederation, name: str, scope: str) -> Client:
        """A client for a person at a party."""
        place = federation.places[name]
        return Client(place.url, token=federation.token(name, scope), authority=federation.authority)


def wait_for_receipts(owner: Client, study: str) -> ContributionView:
    """Wait until all servers have signed for a contribution."""
    while True:
        state = owner.contribution(study)
        problems = [server.problem for server in state.servers if server.problem]
        if problems and not problems[0].get("retryable"):
            raise SystemExit(f"a server refused: {problems[0]['detail']}")
        if all(server.receipt for server in state.servers):
            return state
        time.sleep(0.05)


def quality(error: float) -> str:
    """The error in a word."""
    return next(
        word for limit, word in ((0.05, "very good"), (0.1, "good"), (0.2, "fair"), (2.0, "poor")) if error < limit
    )


def fit(estimated: Quality) -> str:
    """The quality in a release's report, in words."""
    mean, worst = estimated.mean_ratio, estimated.worst_ratio
    return (
        f"the model is {mean:.2f} times as far from them as noise alone would be, {worst:.2f} times in the worst "
        "table; about 1 is the best that can be seen through noise"
    )


def utc_now() -> datetime:
    """The time."""
    return datetime.now(UTC)


def main(arguments: list[str]) -> int:
    """Run the demonstration."""
    parser = argparse.ArgumentParser(prog="python -m deploy.demo", description=__doc__)
    parser.add_argument("output", nargs="?", type=Path, default=Path("demo-output"))
    parser.add_argument("--scheme", choices=SCHEMES, default=REP3.name, help="how values are shared among servers")
    parser.add_argument("--keep", action="store_true", help="leave the services up at the end")
    options = parser.parse_args(arguments)
    demo = Demo(options.output, Console(), SCHEMES[options.scheme])
    try:
        demo.run(keep=options.keep)
    except CapsError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
