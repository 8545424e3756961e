"""`make test-compose`: runs docker-compose.yml from scratch to a verified release, with the faults it must survive.

deploy/scripts/test-compose provides root, an engine and the base images. Everything is done as people would do it:
tables go to holders by curl, data comes back by curl, certificates are verified offline. At the end only images are
left; `--keep` leaves the federation running.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from caps.audit.verification import verify
from caps.client import Client
from caps.federation.ports import free_ports
from caps.study import Manifest
from caps.wire import Certificate
from caps.wire.coordinator import RunView
from deploy import example
from deploy.compose_command import compose_command

ROOT = Path(__file__).parents[1]
PROJECT = "caps-test"
SERVERS = ("s1", "s2", "s3")
HOLDERS = ("north-hospital", "south-hospital", "insurer")
SERVICES = (*SERVERS, "coordinator", *HOLDERS)
PORTS = {"coordinator": "COORDINATOR_PORT", "north-hospital": "NORTH_PORT", "south-hospital": "SOUTH_PORT"} | {
    "insurer": "INSURER_PORT"
}
GUEST = "clinic"
GUEST_ROWS = 600
WITH_ENGINES = "caps-holder-sql"
LARGEST = {"caps-holder": 450, "caps-holder-sql": 800, "caps-mpc-server": 650, "caps-coordinator": 900}
"""The most megabytes of an image. Servers and coordinators have a compiler (numba and LLVM, 175 MB); holders do not."""
PATIENCE = 900.0
_SCAN = """
import concurrent.futures, json, socket, sys

def answers(target):
    try:
        socket.create_connection(target, 2).close()
    except OSError:
        return False
    return True

targets = [tuple(target) for target in json.load(sys.stdin)]
with concurrent.futures.ThreadPoolExecutor(32) as pool:
    print(json.dumps([target for target, open in zip(targets, pool.map(answers, targets)) if open]))
"""
_LISTENING = """
import json, socket, struct
found = []
for line in list(open("/proc/net/tcp"))[1:] + list(open("/proc/net/tcp6"))[1:]:
    local, state = line.split()[1], line.split()[3]
    address, port = local.split(":")
    if state == "0A" and len(address) == 8:
        found.append([socket.inet_ntoa(struct.pack("=I", int(address, 16))), int(port, 16)])
    elif state == "0A":
        found.append(["::" if set(address) == {"0"} else address, int(port, 16)])
print(json.dumps(found))
"""


class Failed(Exception):
    """A check failed."""


@dataclass
class Federation:
    """The containers of one compose project, and the tokens of their people."""

    directory: Path
    ports: dict[str, int]
    images: str = "caps"
    measured: dict[str, float] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """The environment for docker-compose.yml."""
        chosen = {variable: str(self.ports[service]) for service, variable in PORTS.items()}
        builder = {"DOCKER_BUILDKIT": "1", "COMPOSE_DOCKER_CLI_BUILD": "1"}
        path = f"/usr/bin:{os.environ.get('PATH', '')}"  # Debian's own client, which builds with its engine
        return {**os.environ, **chosen, **builder, "PATH": path, "CAPS_REQUESTS": str(self.directory / "requests")}

    def compose(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
        """Run Compose on the project."""
        return self.call(
            *compose_command(self.environment["PATH"]),
            "-p",
            PROJECT,
            "-f",
            str(ROOT / "docker-compose.yml"),
            *arguments,
            **options,
        )

    def call(
        self, *command: str, stdin: bytes | None = None, env: Mapping[str, str] | None = None, timeout: float = PATIENCE
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command. Raises Failed with its output."""
        done = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            env={**self.environment, **(env or {})},
            timeout=timeout,
            check=False,
        )
        if done.returncode:
            wrote = (done.stdout + done.stderr).decode(errors="replace")
            raise Failed(f"{' '.join(command)}: status {done.returncode}\n{wrote[-3000:]}")
        return done

    def container(self, service: str) -> str:
        """The id of a service's container."""
        project, name = (GUEST, "holder") if service == GUEST else (PROJECT, service)
        labels = [f"label=com.docker.compose.project={project}", f"label=com.docker.compose.service={name}"]
        filters = [part for label in labels for part in ("--filter", label)]
        return self.call("docker", "ps", "-a", "-q", "--no-trunc", *filters).stdout.decode().split()[0]

    def inspect(self, service: str) -> dict[str, Any]:
        """What the engine knows of a container."""
        found: dict[str, Any] = json.loads(self.call("docker", "inspect", self.container(service)).stdout)[0]
        return found

    def python(self, service: str, program: str, stdin: bytes | None = None) -> Any:
        """Run a program in a container; its output as JSON."""
        interactive = [] if stdin is None else ["-i"]
        command = ["docker", "exec", *interactive, self.container(service), "python3", "-c", program]
        return json.loads(self.call(*command, stdin=stdin).stdout)

    def wait_ready(self, *services: str) -> float:
        """Wait until services say that they are ready; seconds it took."""
        started = time.perf_counter()
        for service in services:
            while True:
                try:
                    self.call("docker", "exec", self.container(service), "python3", "/opt/caps/healthcheck.py")
                    break
                except Failed as error:
                    if time.perf_counter() - started > PATIENCE:
                        raise Failed(f"{service} is not ready: {error}") from None
                time.sleep(0.2)
        return time.perf_counter() - started

    def token(self, service: str, scope: str) -> str:
        """A person's token."""
        return (self.directory / "people" / service / f"{scope}.token").read_text().strip()

    def url(self, service: str) -> str:
        """Where people reach a service."""
        return f"https://localhost:{self.ports[service]}"

    @property
    def authority(self) -> Path:
        """The certificate that everybody trusts."""
        return self.directory / "people" / "authority.pem"

    def client(self, service: str, scope: str) -> Client:
        """A person at a service."""
        return Client(self.url(service), token=self.token(service, scope), authority=self.authority, timeout=120)

    def curl(self, service: str, scope: str, path: str, *options: str) -> bytes:
        """The same by curl."""
        header = f"Authorization: Bearer {self.token(service, scope)}"
        command = ["curl", "-sS", "--fail-with-body", "--cacert", str(self.authority), "-H", header, *options]
        return self.call(*command, self.url(service) + path).stdout


class Test:
    """The steps, each told with the time it took."""

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self.files = example.write_tables(self._folder("tables"))
        self.seconds: dict[str, float] = {}

    def run(self) -> None:
        """All of it."""
        federation = self.federation
        with self.telling("build the images"):
            federation.compose("build", timeout=3 * PATIENCE)
            self.build_with_engines()
        self.sizes()
        with self.telling("compose up, from nothing to healthy"):
            federation.compose("up", "-d", "--no-build")
        print(self.welcome())
        self.fetch_people()
        self.scan()
        with self.telling("a first study: three CSV files by curl, a run, its data by curl, its certificate verified"):
            self.finish(self.begin("first"))
        with self.telling("(a) s2 is stopped in the middle of a run and started again"):
            self.stop_one()
        with self.telling("(b) s3 is cut off the network in the middle of a run, and healed"):
            self.cut_one()
        with self.telling("(c) every service is restarted, one after the other, between runs"):
            self.roll(SERVICES)
        with self.telling("(c) the same during a run"):
            self.roll_during()
        with self.telling("(d) a fourth holder joins a new study with a kit of its own"):
            self.join()

    @contextmanager
    def telling(self, what: str) -> Iterator[None]:
        """Say what is done, and how long it took."""
        print(f"• {what} ...", flush=True)
        started = time.perf_counter()
        yield
        self.seconds[what] = time.perf_counter() - started
        print(f"  done in {self.seconds[what]:.1f} s", flush=True)

    def build_with_engines(self) -> None:
        """The image of a holder whose table is in a database, which the guest's kit runs."""
        base = {
            "BASE": self.federation.environment.get("CAPS_BASE"),
            "BUILDER": self.federation.environment.get("CAPS_BUILDER"),
        }
        chosen = [option for name, value in base.items() if value for option in ("--build-arg", f"{name}={value}")]
        source = ("-f", str(ROOT / "deploy" / "images" / "Dockerfile"), str(ROOT))
        build = ("docker", "build", "-q", "-t", WITH_ENGINES, "--target", "holder_sql")
        self.federation.call(*build, *chosen, *source, timeout=3 * PATIENCE)
        asked = "import ibis, psycopg; assert ibis.duckdb.connect().sql('SELECT 42 AS x').execute()['x'][0] == 42"
        alone = ("docker", "run", "--rm", "--read-only", "--network", "none", "--entrypoint", "python3")
        self.federation.call(*alone, WITH_ENGINES, "-c", asked)

    def sizes(self) -> None:
        """No image is larger than allowed."""
        for image, limit in LARGEST.items():
            found = int(self.federation.call("docker", "image", "inspect", "-f", "{{.Size}}", image).stdout) / 1e6
            print(f"    {image:<18} {found:4.0f} MB of at most {limit}")
            if found > limit:
                raise Failed(f"{image} has {found:.0f} MB")

    def welcome(self) -> str:
        """What `up` says at the end."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            wrote = self.federation.compose("logs", "--no-color", "welcome").stdout.decode()
            if "README.md" in wrote:
                return wrote
            time.sleep(0.5)
        raise Failed("there was no welcome")

    def fetch_people(self) -> None:
        """Authority and tokens, as the welcome says."""
        archive = self.federation.compose("run", "--rm", "-T", "people").stdout
        self.federation.call("tar", "-x", "-C", str(self._folder("people")), stdin=archive)

    def scan(self) -> None:
        """Which ports answer to whom: every listening socket of every container, tried from every other one."""
        federation = self.federation
        listening = {one: federation.python(one, _LISTENING) for one in SERVICES}
        addresses = {one: _addresses(federation.inspect(one)) for one in SERVICES}
        owner = {address: one for one in SERVICES for address in addresses[one]}
        targets = [
            [address, port]
            for one in SERVICES
            for address in addresses[one]
            for port in sorted({port for bound, port in listening[one] if not bound.startswith("127.")})
        ]
        print("    which ports answer to whom, from inside each container:")
        found: dict[str, set[tuple[str, int]]] = {}
        for one in SERVICES:
            asked = [target for target in targets if owner[target[0]] != one]
            answers = federation.python(one, _SCAN, json.dumps(asked).encode())
            found[one] = {(owner[address], port) for address, port in answers}
            print(f"      {one:<15} reaches {', '.join(f'{to}:{port}' for to, port in sorted(found[one])) or 'nobody'}")
        for one in SERVICES:
            extra = found[one] - _may_reach(one)
            if extra:
                raise Failed(f"{one} reaches {extra}")
            missing = _must_reach(one) - found[one]
            if missing:
                raise Failed(f"{one} does not reach {missing}")

    def study(self, title: str, holders: Sequence[Mapping[str, Any]], cards: Mapping[str, Any]) -> Manifest:
        """A manifest of this federation."""

        def keys(name: str) -> dict[str, Any]:
            return {key: value for key, value in cards[name].items() if key != "role"}

        return Manifest.from_json(
            {
                "title": f"Patients and what they cost: {title}",
                "purpose": "A test with invented patients.",
                "schema": example.SCHEMA,
                "join": example.JOIN,
                "algorithm": {"name": "aim"},
                "privacy": {"epsilon": "1", "delta": "1e-9", "population": "invented-patients"},
                "servers": [keys(name) for name in ("S1", "S2", "S3")],
                "coordinator": keys("coordinator"),
                "holders": [{**keys(str(holder["name"])), **holder} for holder in holders],
            }
        )

    def cards(self) -> dict[str, Any]:
        """The parties' public cards."""
        found: dict[str, Any] = json.loads((self.federation.directory / "people" / "cards.json").read_text())
        return found

    def begin(self, title: str, manifest: Manifest | None = None, files: Mapping[str, Path] | None = None) -> str:
        """Agree on a study, upload all tables by curl, start the run. Returns the run."""
        federation = self.federation
        manifest = manifest or self.study(title, example.HOLDERS, self.cards())
        study = manifest.study_id
        with federation.client("coordinator", "operator") as operator:
            refused = [one.reason for one in operator.propose(manifest).servers if one.state == "refused"]
            if refused:
                raise Failed(f"a server refuses the study: {refused[0]}")
        for name, file in (files or self.files).items():
            with federation.client(name, "operator") as person:
                person.fetch(manifest.coordinator.url, study)
            with federation.client(name, "owner") as owner:
                owner.approve(study)
                path, kind = f"/v1/studies/{study}/contribution", "Content-Type: text/csv"
                federation.curl(name, "owner", path, "-X", "POST", "-H", kind, "--data-binary", f"@{file}")
                self._wait_receipts(owner, study)
        with federation.client("coordinator", "operator") as operator:
            return operator.start(study).run

    def progress(self, run: str, *, until: float) -> None:
        """Wait until so many percent of a run's budget are spent. Raises Failed if it has ended."""
        deadline = time.monotonic() + PATIENCE
        with self.federation.client("coordinator", "operator") as operator:
            while time.monotonic() < deadline:
                state = operator.run(run)
                if state.state in ("released", "failed"):
                    raise Failed(f"the run is {state.state} already: {state.reason}")
                if state.percent >= until:
                    return
                time.sleep(0.1)
        raise Failed("the run does not go on")

    def wait_state(self, run: str, *wanted: str) -> RunView:
        """Wait until a run is in one of these states."""
        deadline = time.monotonic() + PATIENCE
        with self.federation.client("coordinator", "operator") as operator:
            while time.monotonic() < deadline:
                state = operator.run(run)
                if state.state in wanted:
                    return state
                if state.state in ("released", "failed"):
                    break
                time.sleep(0.2)
        raise Failed(f"the run is {state.state}, not {' or '.join(wanted)}: {state.reason}")

    def finish(self, run: str) -> None:
        """Wait for the release, download it by curl, verify its certificate offline."""
        federation = self.federation
        self.wait_state(run, "released")
        folder = self._folder(f"releases/{run}")
        data = folder / "synthetic.csv"
        for path, accept, target in (
            ("data", "text/csv", data),
            ("transcript", "application/x-ndjson", folder / "transcript.ndjson"),
            ("measurements", "application/json", folder / "measurements.json"),
            ("certificate", "application/json", folder / "certificate.json"),
        ):
            federation.curl(
                "coordinator", "analyst", f"/v1/releases/{run}/{path}", "-H", f"Accept: {accept}", "-o", str(target)
            )
        checks = verify(
            Certificate.from_canonical((folder / "certificate.json").read_bytes()),
            transcript=folder / "transcript.ndjson",
            measurements=folder / "measurements.json",
            data=data,
            now=datetime.now(UTC),
        )
        failed = [check.name for check in checks if not check.passed]
        if failed:
            raise Failed(f"the certificate does not hold: {', '.join(failed)}")
        rows = data.read_bytes().count(b"\n") - 1
        print(f"    {rows:,} rows of synthetic data; {len(checks)} checks of the certificate passed")

    def stop_one(self) -> None:
        """A server goes away in the middle of a run and comes back."""
        federation = self.federation
        run = self.begin("a server stops")
        self.progress(run, until=10.0)
        federation.call("docker", "stop", "-t", "20", federation.container("s2"))
        state = self.wait_state(run, "waiting")
        print(f"    stopped: the run is waiting: {state.reason}")
        federation.call("docker", "start", federation.container("s2"))
        took = federation.wait_ready(*SERVERS)
        print(f"    started: the three servers are ready after {took:.1f} s")
        self.finish(run)

    def cut_one(self) -> None:
        """A server's cables are pulled in the middle of a run, and put back."""
        run = self.begin("a server is cut off")
        self.progress(run, until=10.0)
        links = _links(self.federation, "s3")
        for link in links:
            self.federation.call("ip", "link", "set", link, "down")
        started = time.perf_counter()
        try:
            state = self.wait_state(run, "waiting")
            print(f"    cut: {time.perf_counter() - started:.1f} s later the run is waiting: {state.reason}")
        finally:
            for link in links:
                self.federation.call("ip", "link", "set", link, "up")
        started = time.perf_counter()
        self.federation.wait_ready(*SERVERS)
        print(f"    healed: the three servers are ready after {time.perf_counter() - started:.1f} s")
        self.finish(run)

    def roll(self, services: Sequence[str]) -> None:
        """Restart services one after the other; each must be ready before the next."""
        for service in services:
            started = time.perf_counter()
            self.federation.call("docker", "restart", "-t", "20", self.federation.container(service))
            stopped = time.perf_counter()
            self.federation.wait_ready(service, *SERVERS)
            now = time.perf_counter()
            print(
                f"    {service:<15} stopped in {stopped - started:.1f} s, ready {now - stopped:.1f} s after its start"
            )

    def roll_during(self) -> None:
        """The same while a run goes on; the run must end well."""
        run = self.begin("rolling")
        self.progress(run, until=1.0)
        during = []
        for service in (*SERVERS, "coordinator", *HOLDERS):
            with self.federation.client("coordinator", "operator") as operator:
                if operator.run(run).state != "released":
                    during.append(service)
            self.roll([service])
        print(f"    while the run went on: {', '.join(during)}")
        if not set(during) >= {*SERVERS, "coordinator"}:
            raise Failed("the run was over before the servers and the coordinator had been restarted")
        self.finish(run)

    def join(self) -> None:
        """A further holder: its kit, its keys, the authority's approval, a study with all four."""
        federation = self.federation
        before = {one: federation.inspect(one)["State"]["StartedAt"] for one in SERVICES}
        kit, requests = federation.directory / GUEST, self._folder("requests")
        shutil.copytree(ROOT / "deploy" / "party" / "holder", kit)
        home = kit / "home"
        for folder in (home, requests):
            folder.mkdir(exist_ok=True, mode=0o700)
            os.chown(folder, 10001, 10001)

        def compose(*arguments: str) -> bytes:
            files = ("-f", str(kit / "docker-compose.yml"), "-f", str(ROOT / "deploy" / "compose" / "guest.yml"))
            env = {"CAPS_PUBLISH": f"127.0.0.1:{federation.ports[GUEST]}", "CAPS_OUTSIDE": f"{PROJECT}_outside"}
            env["CAPS_IMAGE"] = WITH_ENGINES
            command = (
                *compose_command(federation.environment["PATH"]),
                "-p",
                GUEST,
                "--project-directory",
                str(kit),
                *files,
                *arguments,
            )
            return federation.call(*command, env=env).stdout

        who = ("--role", "holder", "--name", GUEST, "--host", "localhost", "--host", "127.0.0.1")
        compose("run", "--rm", "-T", "caps", "pki", "request", "/etc/caps", *who)
        shutil.copy(home / "request.csr", requests)
        federation.compose(
            "run", "--rm", "-T", "authority", "approve", "/parties/authority", "/requests/request.csr", *who
        )
        for file in (requests / f"holder-{GUEST}.pem", federation.authority):
            shutil.copy(file, home)
            os.chown(home / file.name, 10001, 10001)
        issued, authority = f"/etc/caps/holder-{GUEST}.pem", "/etc/caps/authority.pem"
        compose("run", "--rm", "-T", "caps", "pki", "install", "/etc/caps", issued, authority)
        compose("run", "--rm", "-T", "caps", "pki", "card", "/etc/caps")
        for scope in ("owner", "operator"):
            made = compose(
                "run", "--rm", "-T", "caps", "token", "create", "/etc/caps", "--name", scope, "--scope", scope, "--json"
            )
            path = self._folder(f"people/{GUEST}") / f"{scope}.token"
            path.write_text(json.loads(made)["token"])
        compose("up", "-d")
        federation.wait_ready(GUEST)
        files = self._with_guest()
        cards = self.cards() | {GUEST: json.loads((home / "card.json").read_text())}
        brings = {"name": GUEST, "brings": "columns", "columns": list(example.MEDICAL), "capacity": 1_000}
        run = self.begin("a guest", self.study("with a guest", [*example.HOLDERS, brings], cards), files)
        self.finish(run)
        touched = [one for one in SERVICES if federation.inspect(one)["State"]["StartedAt"] != before[one]]
        if touched:
            raise Failed(f"restarted meanwhile: {touched}")
        print("    no other container was changed or restarted")

    def _with_guest(self) -> dict[str, Path]:
        """The tables, some patients of the south hospital being the clinic's."""
        folder = self._folder("tables-with-guest")
        lines = self.files["south-hospital"].read_text().splitlines()
        moved = {"south-hospital": lines[:-GUEST_ROWS], GUEST: [lines[0], *lines[-GUEST_ROWS:]]}
        for name, content in moved.items():
            (folder / f"{name}.csv").write_text("\n".join(content) + "\n")
        return self.files | {name: folder / f"{name}.csv" for name in moved}

    def _wait_receipts(self, owner: Client, study: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            servers = owner.contribution(study).servers
            if all(server.receipt for server in servers):
                return
            refused = [one.problem for one in servers if one.problem and not one.problem.get("retryable")]
            if refused:
                raise Failed(f"a server refused: {refused[0]['detail']}")
            time.sleep(0.1)
        raise Failed("receipts are missing")

    def _folder(self, name: str) -> Path:
        folder = self.federation.directory / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def take_down(federation: Federation) -> None:
    """Remove containers, networks and volumes of the project, and of the guest's."""
    for project in (GUEST, PROJECT):
        label = ("--filter", f"label=com.docker.compose.project={project}")
        for kind, listing, removal in (
            ("container", ("ps", "-a", "-q"), ("rm", "-f")),
            ("network", ("network", "ls", "-q"), ("network", "rm")),
            ("volume", ("volume", "ls", "-q"), ("volume", "rm")),
        ):
            found = federation.call("docker", *listing, *label).stdout.decode().split()
            if found:
                federation.call("docker", *removal, *found)
                print(f"    {project}: removed {len(found)} {kind}s")


def _may_reach(service: str) -> set[tuple[str, int]]:
    """What the networks let a service reach. REST listens on all of a server's or the coordinator's networks."""
    if service in SERVERS:
        rest = {(one, 8443) for one in (*SERVERS, "coordinator") if one != service}
        return rest | {(one, 9443) for one in ("s1", "s2") if one != service}
    return {(one, 8443) for one in (*SERVERS, "coordinator") if one != service}


def _must_reach(service: str) -> set[tuple[str, int]]:
    """What it needs: S2 dials S1, S3 dials both; the coordinator calls the servers; holders call all of these."""
    if service in SERVERS:
        return {(one, 9443) for one in SERVERS[: SERVERS.index(service)]}
    return _may_reach(service)


def _addresses(inspected: Mapping[str, Any]) -> list[str]:
    return [one["IPAddress"] for one in inspected["NetworkSettings"]["Networks"].values() if one["IPAddress"]]


def _links(federation: Federation, service: str) -> list[str]:
    """The host's ends of a container's cables."""
    paths = "glob.glob('/sys/class/net/eth*/iflink')"
    program = f"import glob, json; print(json.dumps([open(path).read().strip() for path in {paths}]))"
    numbers = set(federation.python(service, program))
    interfaces = Path("/sys/class/net").iterdir()
    return [one.name for one in interfaces if (one / "ifindex").read_text().strip() in numbers]


def main(arguments: list[str]) -> int:
    """Run the test; 1 if anything is not as it must be."""
    parser = argparse.ArgumentParser(prog="python -m deploy.compose_test", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the federation up")
    options = parser.parse_args(arguments)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="caps-compose-") as directory:
        names = (*PORTS, GUEST)
        federation = Federation(Path(directory), dict(zip(names, free_ports(len(names)), strict=True)))
        take_down(federation)
        try:
            Test(federation).run()
        except Failed as error:
            print(f"FAILED: {error}", file=sys.stderr)
            print(federation.compose("logs", "--no-color", "--tail", "40").stdout.decode(), file=sys.stderr)
            return 1
        finally:
            if not options.keep:
                print("• take everything down")
                take_down(federation)
    print(f"All of it in {time.perf_counter() - started:.0f} s.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
