"""Kits of single parties and units of systemd: what they run, how they are confined, and that Compose reads them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from configparser import RawConfigParser
from pathlib import Path

import pytest
import yaml

from caps.federation.parties import MODULES
from deploy.compose_command import compose_command

DEPLOY = Path(__file__).parents[2] / "deploy"
KITS = {"holder": "holder", "mpc-server": "server", "coordinator": "coordinator"}
UNITS = {role: DEPLOY / "systemd" / f"caps-{role}.service" for role in MODULES}


@pytest.mark.parametrize("role", KITS)
def test_a_kit_runs_one_confined_service(role: str) -> None:
    folder = DEPLOY / "party" / KITS[role]
    services = yaml.safe_load((folder / "docker-compose.yml").read_text())["services"]
    assert set(services) == {role, "caps"}
    for service in services.values():
        assert service["read_only"]
        assert service["user"] == "10001:10001"
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["image"] == f"${{CAPS_IMAGE:-caps-{role}}}"
    assert "./home:/etc/caps:ro" in services[role]["volumes"]
    assert services["caps"]["network_mode"] == "none"


@pytest.mark.parametrize("role", KITS)
def test_a_kit_says_where_its_image_comes_from_and_gives_an_operator_a_token(role: str) -> None:
    text = (DEPLOY / "party" / KITS[role] / "README.md").read_text()
    (target,) = re.findall(rf"docker build -t caps-{role} --target (\w+) -f deploy/images/Dockerfile", text)
    dockerfile = (DEPLOY / "images" / "Dockerfile").read_text()
    assert re.search(rf"^FROM \w+ AS {target}$", dockerfile, re.MULTILINE)
    assert "--scope operator" in text
    assert f"--role {role}" in text
    assert "docker-compose" in text
    variables = set(re.findall(r"\$\{(CAPS_\w+)", (DEPLOY / "party" / KITS[role] / "docker-compose.yml").read_text()))
    settings = set(re.findall(r"^(CAPS_\w+)=", (DEPLOY / "party" / KITS[role] / ".env.example").read_text(), re.M))
    assert variables == settings


@pytest.mark.parametrize("role", KITS)
def test_compose_reads_a_kit(role: str, tmp_path: Path) -> None:
    try:
        command = compose_command()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    shutil.copytree(DEPLOY / "party" / KITS[role], tmp_path / "kit")
    shutil.copy(tmp_path / "kit" / ".env.example", tmp_path / "kit" / ".env")
    done = subprocess.run([*command, "config"], cwd=tmp_path / "kit", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"caps-{role}" in done.stdout


def tool(folder: Path, name: str, status: int) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\nexit {status}\n")
    path.chmod(0o700)


def test_compose_is_found_as_v2_or_as_1_29(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="neither"):
        compose_command(str(tmp_path))
    tool(tmp_path, "docker-compose", 0)
    assert compose_command(str(tmp_path)) == (str(tmp_path / "docker-compose"),)
    tool(tmp_path, "docker", 1)  # without the plugin
    assert compose_command(str(tmp_path)) == (str(tmp_path / "docker-compose"),)
    tool(tmp_path, "docker", 0)
    assert compose_command(str(tmp_path)) == (str(tmp_path / "docker"), "compose")


def unit(role: str) -> RawConfigParser:
    parser = RawConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[method-assign,assignment]
    parser.read_string(UNITS[role].read_text())
    return parser


@pytest.mark.parametrize("role", UNITS)
def test_a_unit_runs_its_service_confined(role: str) -> None:
    service = unit(role)["Service"]
    assert service["ExecStart"] == f"/opt/caps/bin/python -m {MODULES[role]}"
    assert service["RestartPreventExitStatus"] == "2"  # what `caps.service.serve.begin` returns for wrong settings
    expected = {"ProtectSystem": "strict", "CapabilityBoundingSet": "", "User": "caps", "UMask": "0077"}
    yes = ("NoNewPrivileges", "PrivateTmp", "PrivateDevices", "ProtectHome", "ProtectKernelModules", "RestrictSUIDSGID")
    assert {name: service[name] for name in (*expected, *yes)} == expected | dict.fromkeys(yes, "yes")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("role", UNITS)
def test_systemd_accepts_a_unit_and_finds_little_exposed(role: str, tmp_path: Path) -> None:
    path = tmp_path / UNITS[role].name
    path.write_text(UNITS[role].read_text().replace("/opt/caps/bin/python", sys.executable))
    environment = {**os.environ, "SYSTEMD_LOG_LEVEL": "warning"}
    for command in (["verify", "--man=no"], ["security", "--offline=true", "--threshold=25"]):
        done = subprocess.run(
            ["systemd-analyze", *command, path], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Unknown key" not in done.stderr
