"""`make demo`: two hospitals, three MPC servers and a coordinator make one synthetic dataset that is private.

Real processes, real mutual TLS, real CSV files; the patients are invented. Each hospital codes and counts its own table
and splits the counts into shares. The servers add them up, select and measure on shares, with noise that none of them
knows, each against a budget of its own. The coordinator, here this process, sees noisy answers only, fits a model and
writes synthetic rows.
"""

from __future__ import annotations

import secrets
import sys
import tempfile
import textwrap
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from caps.domain import Layout
from caps.errors import party_name
from caps.oracle import Measurement, Selection, request_from_json, request_to_json
from caps.privacy import UNBOUNDED, Filter, PrivacyStatement, calibrate
from caps.privacy.enforce import Enforcer
from caps.programs import Task, all_pairs, program
from caps.ring import Z16, Words
from caps.schema import Schema
from caps.sharing import Algebra, DealtShare, Explicit, Seeded, deal
from caps.uniform import Uniform
from services.coordinator.algorithms import Progress, Stage, algorithm
from services.coordinator.generate import create_estimator
from services.mpc_server.engine.compute import HorizontalInput, compute_answers
from services.mpc_server.engine.context import Party
from services.mpc_server.engine.steps import Steps
from services.mpc_server.local import LocalServers, Requests, local_servers

EPSILON, DELTA = Fraction(1), Fraction(1, 10**9)
SCHEMA = {
    "columns": [
        {"name": "age", "kind": "numeric", "integer": True, "bin_edges": [0, 18, 30, 45, 60, 75, 100]},
        {"name": "smoker", "kind": "categorical", "categories": ["no", "former", "yes"]},
        {"name": "systolic", "kind": "numeric", "integer": True, "bin_edges": [80, 110, 125, 140, 160, 220]},
        {"name": "diagnosis", "kind": "categorical", "categories": ["none", "asthma", "COPD", "diabetes", "other"]},
        {"name": "admitted", "kind": "categorical", "categories": ["no", "yes"]},
    ]
}
ROWS = {"hospital A": 6_000, "hospital B": 4_000}


def the_task() -> tuple[Schema, Task, Layout]:
    """What everybody agreed on beforehand: columns, workload, algorithm and budget."""
    schema = Schema.from_json(SCHEMA)
    domain = schema.domain()
    task = Task(domain, all_pairs(domain), UNBOUNDED, rho=calibrate(EPSILON, DELTA))
    return schema, task, Layout(domain, program("aim").cliques(task))


def write_patients(path: Path, count: int) -> None:
    """Invented patients with something to find: age, smoking, pressure and illness depend on each other."""
    uniform = Uniform()
    age = (100 * uniform.floats(count) ** 1.3).astype(int)
    smoker = np.where(uniform.floats(count) < 0.25, "yes", np.where(uniform.floats(count) < 0.4, "former", "no"))
    systolic = (95 + 0.5 * age + 20 * uniform.floats(count) + 10 * (smoker == "yes")).astype(int)
    risk = uniform.floats(count) - (age > 60) * (smoker != "no") * 0.35
    names = np.array(["COPD", "asthma", "diabetes", "other", "none"])
    diagnosis = names[np.searchsorted([0.1, 0.18, 0.28, 0.45], risk)]
    admitted = np.where(uniform.floats(count) < 0.1 + 0.5 * (diagnosis == "COPD"), "yes", "no")
    lines = zip(age, smoker, systolic, diagnosis, admitted, strict=True)
    header = ",".join(column["name"] for column in SCHEMA["columns"])  # type: ignore[index]
    path.write_text("\n".join([header, *(",".join(map(str, line)) for line in lines)]) + "\n")


def share_marginals(path: Path, schema: Schema, layout: Layout, directory: Path, holder: int) -> int:
    """A holder's part: code and count locally, hand each server its two components. Returns the bytes handed over."""
    codes, report = schema.encode(path)
    if report.rows >= 1 << 16:
        raise SystemExit("the demo counts in 16 bits: at most 65,535 rows each")
    counts = Z16.encode(layout.marginals(codes))
    for share in deal(counts, entropy=secrets.token_bytes):
        for name, part in (("mine", share.mine), ("next", share.next)):
            target = directory / party_name(share.party) / f"holder{holder}-{name}"
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(part.seed if isinstance(part, Seeded) else part.vector.tobytes())
    return sum(target.stat().st_size for target in directory.glob(f"*/holder{holder}-*"))


def read_share(directory: Path, holder: int, party: int, cells: int) -> tuple[Words, Words]:
    """A server's components of what a holder sent. Components 0 and 1 are seeds, 2 is the vector."""

    def part(name: str, component: int) -> Seeded | Explicit:
        stored = (directory / f"holder{holder}-{name}").read_bytes()
        return Seeded(stored, component) if component < 2 else Explicit(np.frombuffer(stored, Z16.dtype))

    mine, following = part("mine", party), part("next", (party + 1) % 3)
    return DealtShare(party, (cells,), Z16, Algebra.ADD, mine, following).components()


async def serve(party: Party, directory: str, requests: Requests) -> dict[str, Any]:
    """A server: add up the holders' counts, then select and measure what is due, within its own budget."""
    _, task, layout = the_task()
    budget, enforcer = Filter(task.zcdp, task.neighbouring), Enforcer.start(program("aim"), task, layout)
    context = party.context
    inputs = [
        HorizontalInput(name, context.share(*read_share(Path(directory), number, context.party, layout.cells)))
        for number, name in enumerate(ROWS)
    ]
    answers = await party.execute(compute_answers(context.step("compute"), inputs, layout=layout))
    steps = Steps(context.step("run"), layout, task.neighbouring, answers.marginals)
    await party.execute(steps.prepare())
    async for request in requests:
        if request["kind"] == "accepted":
            requests.answer([bool(flag) for flag in answers.accepted])
            continue
        asked = request_from_json(request)
        admitted = enforcer.admit(asked)
        budget.charge(admitted.entry)
        enforcer = admitted.enforcer
        if isinstance(asked, Selection):
            selected = await party.execute(steps.select(asked))
            enforcer = enforcer.answered(selected)
            requests.answer(selected)
        else:
            requests.answer((await party.execute(steps.measure(asked))).tolist())
    traffic = party.channel.traffic
    return {"rounds": traffic.rounds, "sent": traffic.sent, "ledger": budget.to_json().decode()}


class ServersOracle:
    """The Oracle of the coordinator's loop: it believes a value only if all three servers report the same."""

    def __init__(self, servers: LocalServers, layout: Layout) -> None:
        self._servers = servers
        self.layout = layout
        self.seconds = 0.0

    def answers(self) -> None:
        """COMPUTE ANSWERS is the first thing the servers do; ask whether every contribution was valid."""
        if not all(self._ask({"kind": "accepted"})):
            raise SystemExit("a contribution was refused")

    def select(self, selection: Selection) -> int:
        """SELECT on the servers."""
        return int(self._ask(request_to_json(selection)))

    def measure(self, measurement: Measurement) -> npt.NDArray[np.int64]:
        """MEASURE on the servers."""
        return np.array(self._ask(request_to_json(measurement)), np.int64)

    def _ask(self, request: dict[str, Any]) -> Any:
        started = time.perf_counter()
        first, *others = self._servers.ask(request)
        self.seconds += time.perf_counter() - started
        if any(other != first for other in others):
            raise SystemExit("the servers report different values")
        return first


def show(progress: Progress) -> None:
    """A line for every round."""
    if progress.stage is Stage.MEASURE and progress.clique:
        share = 100 * float(progress.rho_spent / progress.rho)
        print(f"    round {progress.round:2d}: measured {' x '.join(progress.clique):<24} budget used {share:5.1f} %")


def workload_error(layout: Layout, real: npt.NDArray[np.int64], synthetic: npt.NDArray[np.int64]) -> float:
    """Half the mean L1 distance between normalised two-way marginals. Only for invented data: it is not private."""
    one, other = layout.marginals(real) / len(real), layout.marginals(synthetic) / len(synthetic)
    pairs = [clique for clique in layout.cliques if len(clique) == 2]
    return float(np.mean([0.5 * np.abs(one[layout.part(c)] - other[layout.part(c)]).sum() for c in pairs]))


def main(arguments: list[str]) -> int:
    """Run the demonstration; the argument is where to put its files."""
    output = Path(arguments[0] if arguments else "demo-output")
    output.mkdir(exist_ok=True)
    print("CaPS demo: one synthetic dataset from two hospitals, nobody sees a patient.")
    print("ATTENTION: all parties on one host, so non-collusion is NOT met. The patients are invented.\n")
    schema, task, layout = the_task()
    files = [output / f"{name.replace(' ', '-')}.csv" for name in ROWS]
    for path, (name, count) in zip(files, ROWS.items(), strict=True):
        write_patients(path, count)
        print(f"  {name}: {count:,} rows in {path}")

    with tempfile.TemporaryDirectory(prefix="caps-demo-") as scratch:
        for holder, (path, name) in enumerate(zip(files, ROWS, strict=True)):
            uploaded = share_marginals(path, schema, layout, Path(scratch), holder)
            print(f"  {name}: counted {len(layout.cliques)} marginals, {uploaded / 1e3:.1f} kB of shares uploaded")
        directories = {p: {"directory": f"{scratch}/{party_name(p)}"} for p in range(3)}
        print("  S1, S2, S3 start as processes of their own, connected by mutual TLS", flush=True)
        with local_servers("deploy.demo:serve", per_party=directories) as servers:
            oracle = ServersOracle(servers, layout)
            started = time.perf_counter()
            outcome = algorithm("aim").run(task, oracle, create_estimator("kernel", task.domain), show)
            seconds = time.perf_counter() - started
            servers.end_requests()
            reports = [report.result for report in servers.wait(60)]

    synthetic = outcome.model.sample(round(outcome.model.total))
    target = output / "synthetic.csv"
    schema.write_csv(synthetic, target, uniform=Uniform().floats)

    real = np.concatenate([schema.encode(path)[0] for path in files])
    error = workload_error(layout, real, synthetic)
    ledgers = {report["ledger"] for report in reports}
    if len(ledgers) != 1:
        raise SystemExit("the servers charged different ledgers")
    statement = PrivacyStatement.of(Filter.from_json(ledgers.pop().encode()), DELTA)
    print(f"\n  synthetic data   {target}, {len(synthetic):,} rows")
    print(f"  quality          {100 * (1 - error):.1f} % of every two-way table in the right place, on average")
    print(
        f"  privacy          epsilon = {float(statement.epsilon):.3g}, delta = {float(DELTA):g}, one person = one row"
    )
    print(f"  time             {seconds:.1f} s, of it {oracle.seconds:.1f} s on the servers")
    sent = max(report["sent"] for report in reports)
    print(f"  each server      {reports[0]['rounds']} rounds, {sent / 1e3:,.0f} kB sent")
    print("\n" + textwrap.fill(statement.paragraph(), 100, initial_indent="  ", subsequent_indent="  "))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
