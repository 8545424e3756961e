"""The client's own distribution: light, whole, and of the same version as the rest."""

from __future__ import annotations

import json
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.kit.client_wheel import ROOT, SOURCE, build_wheel, install, requirements, run_in

pytestmark = pytest.mark.integration

HEAVY = ("numba", "jax", "fastapi", "uvicorn", "sqlalchemy", "polars", "pandas", "typer", "nacl", "services")
CHECK = """
import json, pkgutil, sys
from importlib import import_module
from importlib.util import find_spec
import caps, caps.client, caps.audit.verification
for one in pkgutil.iter_modules(caps.client.__path__):
    import_module(f"caps.client.{one.name}")
from caps.client import Client
from caps.errors import DomainError
try:
    Client("https://nowhere.example").frame("0" * 32)
    refused = ""
except DomainError as error:
    refused = str(error)
print(json.dumps({
    "version": caps.__version__,
    "there": [name for name in sys.argv[1:] if find_spec(name) is not None],
    "from": caps.__path__[0],
    "refused": refused,
}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("dist"))


def test_it_is_of_the_same_version() -> None:
    own, whole = (tomllib.loads((folder / "pyproject.toml").read_text())["project"] for folder in (SOURCE, ROOT))
    assert own["version"] == whole["version"]
    assert own["requires-python"] == whole["requires-python"]
    bounds = {one.partition(">")[0]: one for one in whole["dependencies"]}
    assert {one: bounds.get(one.partition(">")[0]) for one in own["dependencies"]} == {
        one: one for one in own["dependencies"]
    }


def test_it_declares_nothing_heavy(wheel: Path) -> None:
    assert not {*requirements(wheel)} & {*HEAVY}
    with zipfile.ZipFile(wheel) as archive:
        packages = {name.split("/")[1] for name in archive.namelist() if name.startswith("caps/")}
    assert not packages & {"cli", "service", "shares", "services"}


def test_it_works_with_what_it_declares_and_nothing_else(wheel: Path, tmp_path: Path) -> None:
    python = install(wheel, tmp_path / "environment")
    done = run_in(python, CHECK, *HEAVY, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["there"] == []
    assert found["from"].startswith(str(tmp_path))
    assert found["version"] == tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"]["version"]
    assert "pip install polars" in found["refused"]
