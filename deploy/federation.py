"""A whole federation on one host: keys, settings and processes of MPC servers, a coordinator and some holders.

It is for the demonstration and the end-to-end tests. Every party has its own home, makes its keys there, and talks to
others only over TLS; but one machine sees all of them, so the non-collusion assumption is NOT met.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx

from caps.basics.schemes import REP3, Scheme
from caps.service.tokens import Scope, Tokens
from caps.study import Manifest
from caps.trust import home as party
from caps.trust.tls import client_context
from deploy.ports import free_ports
from deploy.vitals import Vitals, vitals

ROOT = Path(__file__).parents[1]
SERVERS = REP3.server_names
"""The servers of a federation for which no other scheme is chosen."""
COORDINATOR = "coordinator"
HOST = "127.0.0.1"
POLICY = """\
approval: automatic
largest_epsilon: 10
largest_delta: 1.0e-5
least_holders: 1
certified_only: true
"""
POPULATIONS = {"invented-patients": 20.0}
"""The populations of studies, with epsilon over all studies: invented persons have nothing to lose."""
_MODULES = {"mpc-server": "services.mpc_server", "coordinator": "services.coordinator", "holder": "services.holder"}
_PEOPLE = {
    "mpc-server": (Scope.OPERATOR, Scope.AUDITOR),
    "coordinator": (Scope.OPERATOR, Scope.ANALYST, Scope.AUDITOR),
    "holder": (Scope.OWNER, Scope.OPERATOR),
}


class NotStarted(Exception):
    """A service ended, or was not ready in time; the message contains its output."""


@dataclass(frozen=True)
class Place:
    """A party: its role and name, its home, and its ports for REST and for MPC peers."""

    role: str
    name: str
    home: Path
    port: int
    mesh_port: int | None

    @property
    def url(self) -> str:
        """The URL of its REST interface."""
        return f"https://{HOST}:{self.port}"

    @property
    def mesh(self) -> str | None:
        """The address where its MPC peers connect."""
        return None if self.mesh_port is None else f"{HOST}:{self.mesh_port}"


class Federation:
    """Provisions all parties in `directory`; starts, stops and kills services; knows everybody's tokens."""

    def __init__(
        self,
        directory: Path,
        holders: Sequence[str],
        *,
        policy: str = POLICY,
        populations: Mapping[str, float] = POPULATIONS,
        environment: Mapping[str, str] | None = None,
        scheme: Scheme = REP3,
    ) -> None:
        """`scheme`: of studies for which no other is named; there are as many servers as it needs."""
        self.directory = directory
        self.scheme = scheme
        self.servers = scheme.server_names
        self.environment = dict(environment or {})
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        ports = iter(free_ports(2 * len(self.servers) + 1 + len(holders)))
        roles = [
            *(("mpc-server", name) for name in self.servers),
            ("coordinator", COORDINATOR),
            *(("holder", name) for name in holders),
        ]
        self.places = {
            name: Place(role, name, directory / name, next(ports), next(ports) if role == "mpc-server" else None)
            for role, name in roles
        }
        budgets = ", ".join(f"{name}: {epsilon}" for name, epsilon in populations.items())
        self._provision(f"{policy}populations: {{{budgets}}}\n")

    @property
    def authority(self) -> Path:
        """The certificate that everybody trusts."""
        return self.directory / "authority" / party.AUTHORITY

    def _provision(self, policy: str) -> None:
        now = datetime.now(UTC)
        authority = party.create_authority(self.directory / "authority", "CaPS on one host", now=now)
        for place in self.places.values():
            hosts = ["localhost", HOST]
            party.request_party(place.home, place.role, place.name, hosts)
            asked = party.read_request(place.home / party.REQUEST)
            issued = party.approve_request(authority, asked, place.role, place.name, hosts, now=now)
            certificate = self.directory / "authority" / f"{place.name}.pem"
            party.write_certificate(certificate, issued)
            party.install(place.home, certificate, self.authority, now=now)
            tokens = Tokens(place.home / party.TOKENS)
            for scope in _PEOPLE[place.role]:
                token = tokens.create(f"{scope} of {place.name}", [scope], expires=now + timedelta(days=7))
                path = place.home / f"{scope}.token"
                path.touch(0o600)
                path.write_text(token + "\n")
            if place.role == "mpc-server":
                (place.home / party.POLICY).write_text(policy)

    def parties(self, holders: Sequence[Mapping[str, Any]], scheme: Scheme | None = None) -> dict[str, Any]:
        """A manifest's `scheme`, `servers`, `coordinator` and `holders`; the argument says what each holder brings."""

        def keys(name: str) -> dict[str, Any]:
            place = self.places[name]
            url = None if place.role == "holder" else place.url
            card = party.card(place.home, url=url, mesh=place.mesh).to_json()
            return {key: value for key, value in card.items() if key != "role" and value is not None}

        chosen = scheme or self.scheme
        return {
            "scheme": chosen.name,
            "servers": [keys(name) for name in chosen.server_names],
            "coordinator": keys(COORDINATOR),
            "holders": [{**keys(str(holder["name"])), **holder} for holder in holders],
        }

    def token(self, name: str, scope: str) -> str:
        """The token of a person at a party."""
        return (self.places[name].home / f"{scope}.token").read_text().strip()

    def client(self, name: str, scope: str | None, *, timeout: float = 60.0) -> httpx.Client:
        """How a person calls a service; nobody in particular without a scope."""
        headers = {} if scope is None else {"Authorization": f"Bearer {self.token(name, scope)}"}
        context = client_context(self.authority)
        return httpx.Client(
            base_url=self.places[name].url, verify=context, headers=headers, timeout=timeout, trust_env=False
        )

    def machine(self, name: str, as_party: str, *, timeout: float = 60.0) -> httpx.Client:
        """How one party's machine calls another's service."""
        home = self.places[as_party].home
        context = client_context(
            self.authority, certificate=home / party.CERTIFICATE, private_key=home / party.PRIVATE_KEY
        )
        return httpx.Client(base_url=self.places[name].url, verify=context, timeout=timeout, trust_env=False)

    def start(self, *names: str, environment: Mapping[str, str] | None = None, under: Sequence[str] = ()) -> None:
        """Start services; all that do not run if none is named. `under`: a module that starts a service's module."""
        for name in names or [name for name in self.places if not self.running(name)]:
            place = self.places[name]
            settings = {
                "CAPS_HOME": str(place.home),
                "CAPS_LISTEN": f"{HOST}:{place.port}",
                "CAPS_MESH": " ".join(str(self.places[server].mesh) for server in self.servers),
                **self.environment,
                **(environment or {}),
            }
            with (place.home / "log").open("ab") as log:
                self._processes[name] = subprocess.Popen(
                    [sys.executable, "-m", *under, _MODULES[place.role]],
                    cwd=ROOT,
                    env={**os.environ, **settings},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )

    def wait_ready(self, *names: str, timeout: float = 180.0) -> None:
        """Wait until services are ready; all if none is named. Raises NotStarted.

        The first start after a change of the engine compiles it, at every server.
        """
        deadline = time.monotonic() + timeout
        for name in names or self.places:
            with self.client(name, None, timeout=5) as client:
                while True:
                    if not self.running(name):
                        raise NotStarted(f"{name} ended:\n{self.log(name)[-2000:]}")
                    try:
                        if client.get("/readyz").status_code == 200:
                            break
                    except httpx.TransportError:
                        pass
                    if time.monotonic() > deadline:
                        raise NotStarted(f"{name} is not ready after {timeout:g} s:\n{self.log(name)[-2000:]}")
                    time.sleep(0.05)

    def running(self, name: str) -> bool:
        """Whether a service's process lives."""
        return name in self._processes and self._processes[name].poll() is None

    def pid(self, name: str) -> int:
        """The id of a service's process."""
        return self._processes[name].pid

    def vitals(self, name: str) -> Vitals:
        """What a running service holds of the machine."""
        return vitals(self.pid(name))

    def log(self, name: str) -> str:
        """All that a service wrote."""
        path = self.places[name].home / "log"
        return path.read_text() if path.exists() else ""

    def send(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a service."""
        self._processes[name].send_signal(number)

    def kill(self, *names: str) -> None:
        """End services at once, as a power failure would; all if none is named."""
        for name in names or tuple(self._processes):
            if self.running(name):
                self._processes[name].kill()
            if name in self._processes:
                self._processes[name].wait()

    def stop(self, *names: str, timeout: float = 20.0) -> None:
        """End services in an orderly way; all if none is named."""
        chosen = [name for name in names or tuple(self._processes) if self.running(name)]
        for name in chosen:
            self._processes[name].terminate()
        for name in chosen:
            try:
                self._processes[name].wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill(name)

    def __enter__(self) -> Federation:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def approve_everywhere(federation: Federation, manifest: Manifest) -> None:
    """What people do before data moves: the operator proposes a study, and every holder's owner approves it."""
    with federation.client(COORDINATOR, "operator") as operator:
        operator.post("/v1/studies", json=manifest.to_json()).raise_for_status()
    url = federation.places[COORDINATOR].url
    for holder in manifest.holders:
        with federation.client(holder.name, "operator") as person:
            told = {"coordinator": url, "study": manifest.study_id}
            person.post("/v1/studies", json=told).raise_for_status()
        with federation.client(holder.name, "owner") as owner:
            owner.post(f"/v1/studies/{manifest.study_id}/approval").raise_for_status()
