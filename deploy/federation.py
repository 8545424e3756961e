"""A whole federation on one host: keys, settings and processes of MPC servers, a coordinator and some holders.

It is for the demonstration and the end-to-end tests. Every party has its own home, makes its keys there, and talks to
others only over TLS; but one machine sees all of them, so the non-collusion assumption is NOT met.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

from caps.basics.schemes import REP3, Scheme
from caps.federation.local import NotStarted, wait_ready
from caps.federation.parties import (
    COORDINATOR,
    HOST,
    MODULES,
    POLICY,
    POPULATIONS,
    equip,
    make_authority,
    manifest_parties,
    mesh_of,
    places_in,
    policy_text,
)
from caps.study import Manifest
from caps.trust import home as party
from caps.trust.tls import client_context
from deploy.vitals import Vitals, vitals

__all__ = [
    "COORDINATOR",
    "HOST",
    "POLICY",
    "POPULATIONS",
    "ROOT",
    "SERVERS",
    "Federation",
    "NotStarted",
    "approve_everywhere",
]

ROOT = Path(__file__).parents[1]
SERVERS = REP3.server_names
"""The servers of a federation for which no other scheme is chosen."""
_TOKEN_DAYS = 7


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
        self.places = places_in(directory, scheme, holders)
        self._provision(policy_text(policy, populations))

    @property
    def authority(self) -> Path:
        """The certificate that everybody trusts."""
        return self.directory / "authority" / party.AUTHORITY

    def _provision(self, policy: str) -> None:
        now, authority = datetime.now(UTC), self.directory / "authority"
        make_authority(authority, now=now)
        for place in self.places.values():
            equip(
                place.home,
                place.role,
                place.name,
                ["localhost", HOST],
                authority=authority,
                tokens=place.home,
                token_days=_TOKEN_DAYS,
                policy=policy,
                now=now,
            )

    def parties(self, holders: Sequence[Mapping[str, Any]], scheme: Scheme | None = None) -> dict[str, Any]:
        """A manifest's `scheme`, `servers`, `coordinator` and `holders`; the argument says what each holder brings."""
        return manifest_parties(self.places, scheme or self.scheme, holders)

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
                **place.settings(mesh_of(self.places)),
                **self.environment,
                **(environment or {}),
            }
            with self._log(name).open("ab") as log:
                self._processes[name] = subprocess.Popen(
                    [sys.executable, "-m", *under, MODULES[place.role]],
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
        chosen = [self.places[name] for name in names or self.places]
        wait_ready(chosen, self.authority, runs=self.running, log=self._log, seconds=timeout)

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
        path = self._log(name)
        return path.read_text() if path.exists() else ""

    def _log(self, name: str) -> Path:
        return self.places[name].home / "log"

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
