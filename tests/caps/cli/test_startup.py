"""Commands answer at once: what takes long to import is imported by the commands that need it, when they need it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from caps.cli import app, narrow

ROOT = Path(__file__).parents[3]
HEAVY = (
    "numpy",
    "scipy",
    "polars",
    "pandas",
    "numba",
    "jax",
    "fastapi",
    "uvicorn",
    "sqlalchemy",
    "httpx",
    "cryptography",
    "rich",
    "yaml",
)
HELP = """
import io, json, sys
from contextlib import redirect_stdout
import typer.main
from caps.cli import app
from caps.cli.reference import walk

after = {}
def ask(*path):
    with redirect_stdout(io.StringIO()) as shown:
        try:
            app([*path, "--help"], prog_name="caps")
        except SystemExit as ended:
            assert not ended.code, path
    assert "Usage:" in shown.getvalue(), path
    after[" ".join(path)] = [name for name in sys.argv[1:] if name in sys.modules]

ask()
root = typer.main.get_command(app)
for name, one in root.commands.items():
    ask(name)
for path, _ in walk(root, ()):
    ask(*path)
print(json.dumps(after))
"""


def test_no_help_imports_anything_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HELP, *HEAVY], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) > 50
    assert {path: heavy for path, heavy in found.items() if heavy} == {}


@pytest.mark.parametrize("module", ["caps.client", "caps.cli.release"])
def test_the_client_imports_no_server(module: str) -> None:
    heavy = ("polars", "pandas", "numba", "jax", "fastapi", "uvicorn", "sqlalchemy", "scipy")
    code = f"import sys, {module}; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


def test_only_what_is_asked_for_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("registered_groups", "registered_commands"):
        monkeypatch.setattr(app, name, getattr(app, name)[:])
    before = len(app.registered_groups), len(app.registered_commands)
    for nothing in ("nonsense", "--help", ""):
        narrow(nothing)
        assert (len(app.registered_groups), len(app.registered_commands)) == before
    narrow("study")
    assert ([one.name for one in app.registered_groups], app.registered_commands) == (["study"], [])
    done = CliRunner().invoke(app, ["study", "plan", "--help"])
    assert "--persons" in done.stdout
    assert CliRunner().invoke(app, ["verify", "--help"]).exit_code == 2
