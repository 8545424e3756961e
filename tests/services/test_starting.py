"""Services that cannot start say why in one line; one whose disk is full says so, and goes on when there is room."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
import yaml

from caps.basics.files import held_alone
from caps.basics.schemes import REP3
from caps.errors import DomainError
from caps.federation import sample
from caps.federation.local import SAMPLE, LocalFederation
from caps.federation.parties import MODULES, mesh_of
from caps.service.site import Settings
from caps.trust.tls import client_context
from tests.kit.waiting import until

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
ROLES = {"holder": "north", "coordinator": "coordinator", "mpc-server": "S1"}
_IN_SMALL = 'mount -t tmpfs -o size=40m,mode=700 none "$1" && shift && exec "$@"'
"""A program of the shell: becomes a command that sees a small disk in a directory."""


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> LocalFederation:
    """Made, never started as a whole."""
    return LocalFederation.create(
        tmp_path_factory.mktemp("starting") / "trial", ["north"], scheme=REP3, now=datetime.now(UTC)
    )


def environment(federation: LocalFederation, role: str, **changes: str) -> dict[str, str]:
    settings = federation.places[ROLES[role]].settings(mesh_of(federation.places))
    return {**os.environ, **settings, **changes, "PYTHONPATH": str(ROOT)}


def line_of(role: str, settings: Mapping[str, str]) -> str:
    """The one line with which a service that cannot start ends."""
    done = subprocess.run(
        [sys.executable, "-m", MODULES[role]], env=settings, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 2, done.stderr
    lines = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith(f"caps {role}: ")
    return lines[0]


@pytest.mark.parametrize("role", ROLES)
def test_a_second_process_on_the_same_state_is_refused(federation: LocalFederation, role: str) -> None:
    state = federation.places[ROLES[role]].home / "state"
    state.mkdir(exist_ok=True)
    first = held_alone(state / "lock")
    assert first is not None
    try:
        assert "another process is using" in line_of(role, environment(federation, role))
    finally:
        os.close(first)


def test_a_home_that_is_not_there_is_named_and_not_made(tmp_path: Path) -> None:
    settings = Settings.from_environment({"CAPS_HOME": str(tmp_path / "nothing")})
    with pytest.raises(DomainError, match=r"CAPS_HOME, .*nothing, is not a directory"):
        settings.take()
    assert list(tmp_path.iterdir()) == []


def test_a_home_without_keys_says_how_to_make_them(federation: LocalFederation, tmp_path: Path) -> None:
    line = line_of("holder", environment(federation, "holder", CAPS_HOME=str(tmp_path)))
    assert "lacks certificate.pem, private-key.pem, authority.pem, signing-key.pem" in line
    assert "caps pki request" in line
    assert list(tmp_path.iterdir()) == []


def test_an_address_in_use_is_named(federation: LocalFederation, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        changes = {"CAPS_LISTEN": address, "CAPS_STATE": str(tmp_path)}
        assert f"cannot listen at {address}" in line_of(
            "coordinator", environment(federation, "coordinator", **changes)
        )


def may_mount() -> bool:
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", "mount -t tmpfs none /mnt"]
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def fill(path: Path) -> None:
    """Until nothing more can be written."""
    with path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 16))


@contextmanager
def coordinator_on_a_small_disk(federation: LocalFederation, state: Path) -> Iterator[Path]:
    """A coordinator whose CAPS_STATE is a disk of its own; yields that disk as this process sees it."""
    state.mkdir()
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", _IN_SMALL, "sh", str(state)]
    settings = environment(federation, "coordinator", CAPS_STATE=str(state))
    with (state.parent / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, sys.executable, "-m", MODULES["coordinator"]], env=settings, stdout=log, stderr=log
        )
    try:
        yield Path(f"/proc/{process.pid}/root{state}")
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.skipif(not may_mount(), reason="this user may not mount a disk of its own (unshare)")
def test_a_full_disk_is_a_507_and_makes_the_service_unready_until_there_is_room(
    federation: LocalFederation, tmp_path: Path
) -> None:
    place = federation.places["coordinator"]
    study = yaml.safe_load((federation.directory / SAMPLE / sample.STUDY).read_text())
    headers = {"Authorization": f"Bearer {federation.token('coordinator', 'operator')}"}
    context = client_context(federation.authority)
    with (
        coordinator_on_a_small_disk(federation, tmp_path / "state") as disk,
        httpx.Client(base_url=place.url, verify=context, headers=headers, trust_env=False, timeout=60) as client,
    ):

        def ready() -> httpx.Response | None:
            try:
                return client.get("/readyz")
            except httpx.TransportError:
                return None

        assert until(ready, 240).status_code == 200
        filler = disk / "filler"
        with pytest.raises(OSError, match="No space left"):
            fill(filler)
        answer = client.post("/v1/studies", json=study)
        assert answer.status_code == 507, answer.text
        assert answer.json()["request_id"] == answer.headers["x-request-id"]
        token = federation.token("coordinator", "operator")
        page = client.post("/ui/sign-in", data={"token": token}, headers={"Origin": place.url})
        assert (page.status_code, page.headers["x-request-id"] in page.text) == (507, True)
        told = client.get("/readyz")
        assert (told.status_code, "full" in told.json()["reasons"][0]) == (503, True)
        filler.unlink()
        until(lambda: client.get("/readyz").status_code == 200)
        assert client.post("/v1/studies", json=study).status_code == 201
        assert [one["study"] for one in client.get("/v1/studies").json()] == [federation.record.study]
    text = (tmp_path / "log").read_text()
    assert answer.json()["request_id"] in text
    assert "Traceback" not in text
