"""The coordinator as a process of its own, over TLS, killed while a run goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path

import httpx
import pytest

from caps.federation.ports import free_ports
from caps.service.site import Settings
from caps.service.site import Site as Party
from caps.service.tokens import Scope, Tokens
from caps.study import Manifest
from caps.trust.tls import Credentials, client_context, server_context
from caps.wire import Certificate
from caps.wire.coordinator import Judged
from services.coordinator.service import Coordinator
from tests.kit.coordinator_servers import SMALL, ClearServers, serve_tls
from tests.kit.study import ROWS, SERVERS, example_json, make_keys, write_site
from tests.kit.tls import make_authority
from tests.kit.waiting import until

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]


class Site:
    """A coordinator's home and three servers with ports of their own."""

    def __init__(self, folder: Path) -> None:
        now = datetime.now(UTC)
        authority = make_authority(now)
        keys = make_keys([*SERVERS, "coordinator", *(name for name, _ in ROWS)])
        self.home = folder / "coordinator"
        write_site(self.home, authority, keys["coordinator"], "coordinator", now=now)
        self.servers, urls = [], {}
        for name in SERVERS:
            home = folder / name
            write_site(home, authority, keys[name], "mpc-server", now=now)
            files = ("certificate.pem", "private-key.pem", "authority.pem")
            context = server_context(Credentials(*(home / file for file in files)))
            server = serve_tls(lambda *call, name=name: self.federation.handle(name, *call), context)
            self.servers.append(server)
            urls[name] = f"https://127.0.0.1:{server.server_address[1]}"
        (self.port,) = free_ports(1)
        self.keys, self.urls = keys, urls
        document, _ = example_json(keys=keys, urls=urls, algorithm=SMALL)
        self.manifest = Manifest.from_json(document)
        self.federation = ClearServers(self.manifest, keys)
        expires = now + timedelta(hours=1)
        scopes = (Scope.OPERATOR, Scope.ANALYST)
        token = Tokens(self.home / "tokens.json").create("somebody", scopes, expires=expires)
        self.person = httpx.Client(
            base_url=f"https://127.0.0.1:{self.port}",
            verify=client_context(self.home / "authority.pem", role="caps:coordinator/coordinator"),
            headers={"Authorization": f"Bearer {token}"},
            timeout=20,
            trust_env=False,
        )
        self.holders = [
            httpx.Client(base_url=self.person.base_url, verify=self._holder_context(folder, authority, keys[name], now))
            for name, _ in ROWS
        ]

    def _holder_context(self, folder, authority, keys, now):
        home = folder / keys.name
        write_site(home, authority, keys, "holder", now=now)
        return client_context(
            home / "authority.pem", certificate=home / "certificate.pem", private_key=home / "private-key.pem"
        )

    @contextmanager
    def process(self):
        """The coordinator, killed at the end by SIGKILL: it never gets to put anything in order."""
        environment = {
            **os.environ,
            "CAPS_HOME": str(self.home),
            "CAPS_LISTEN": f"127.0.0.1:{self.port}",
            "PYTHONPATH": str(ROOT),
        }
        command = [sys.executable, "-m", "services.coordinator"]
        with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL) as process:
            try:
                until(self.answers)
                yield
            finally:
                process.send_signal(signal.SIGKILL)

    def answers(self) -> bool:
        try:
            return self.person.get("/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def close(self) -> None:
        for client in (self.person, *self.holders):
            client.close()
        for server in self.servers:
            server.shutdown()
            server.server_close()


@pytest.fixture
def site(tmp_path):
    site = Site(tmp_path)
    yield site
    site.close()


def test_a_server_behind_another_ones_key_is_not_talked_to(site, tmp_path):
    settings = Settings(site.home, tmp_path / "state", "127.0.0.1", 0, f"sqlite:///{tmp_path / 'state' / 'state.db'}")
    coordinator = Coordinator.of(Party(settings, role="coordinator"))
    document, _ = example_json(keys=site.keys, urls=site.urls | {"S1": site.urls["S2"]}, algorithm=SMALL)
    manifest, _ = coordinator.studies.propose(document)
    judged = coordinator.store.judgements(manifest.study_id)
    coordinator.close()
    assert [one.state for one in judged.values()] == [Judged.PENDING, Judged.APPROVED, Judged.APPROVED]
    assert judged["S1"].reason == "cannot be reached: the peer is not caps:mpc-server/S1"


def test_killed_again_and_again_the_run_completes(site):
    study, federation = site.manifest.study_id, site.federation
    federation.faults.delay = 0.03
    with site.process():
        assert site.person.post("/v1/studies", json=site.manifest.to_json()).json()["state"] == "approved"
        for client, (name, approval) in zip(site.holders, federation.approvals_of_holders().items(), strict=True):
            sent = client.put(f"/v1/studies/{study}/approvals/{name}", json=approval.to_json())
            assert sent.status_code == 200
        run = site.person.post(f"/v1/studies/{study}/runs").json()["run"]
        until(lambda: len(federation.answered) >= 2)
    for answered in (4, 7):
        with site.process():
            until(lambda answered=answered: len(federation.answered) >= answered)
    federation.faults.delay = 0.0
    with site.process():
        until(lambda: site.person.get(f"/v1/runs/{run}").json()["state"] in ("released", "failed"))
        view = site.person.get(f"/v1/runs/{run}").json()
        assert (view["state"], view["reason"], view["percent"]) == ("released", None, 100)
        certificate = Certificate.model_validate(site.person.get(f"/v1/releases/{run}/certificate").json())
        body = certificate.release.verify(site.manifest.coordinator)
        assert body.files["data.csv"] == sha256(site.person.get(f"/v1/releases/{run}/data").content).hexdigest()
