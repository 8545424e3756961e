"""`caps` from a study's file to a verified release: the main path, as people type it, with exit codes and JSON."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

from caps.cli import app
from caps.wire.holder import StudyBudget
from caps.wire.server import PopulationState
from deploy.federation import COORDINATOR, ROOT, SERVERS
from tests.kit.client_wheel import build_wheel, install, run_in
from tests.kit.federation import manifest_of
from tests.kit.processes import (
    CANARIES,
    SCHEMA,
    Everybody,
    Study,
    client,
    encoded,
    horizontal,
    nobody_wrote,
    persons,
    write,
)
from tests.kit.waiting import until

pytestmark = pytest.mark.e2e

REFUSED, NOT_FOUND, NOT_VERIFIED, NOT_ALLOWED, NOT_YET = 1, 3, 5, 6, 7


class Terminal:
    """Somebody's shell: a configuration with sites, and nothing in the environment."""

    def __init__(self, federation: Everybody, folder: Path) -> None:
        self.folder = folder
        lines = []
        for site, name, scope in (
            ("coordinator", COORDINATOR, "operator"),
            ("analyst", COORDINATOR, "analyst"),
            ("north-owner", "north", "owner"),
            ("north-operator", "north", "operator"),
            ("S1-operator", "S1", "operator"),
            *((name, name, "auditor") for name in SERVERS),
        ):
            place = federation.places[name]
            lines += [
                f"[sites.{site}]",
                f'url = "{place.url}"',
                f'token_file = "{place.home / f"{scope}.token"}"',
                f'authority = "{federation.authority}"',
            ]
        (folder / "config.toml").write_text("\n".join(lines))

    def caps(self, *arguments: object, site: str | None = None) -> Any:
        """Run a command as a process; its JSON. stdout has nothing else."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("CAPS_")}
        environment |= {"CAPS_CONFIG": str(self.folder / "config.toml"), "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-m", "caps.cli", *self._line(arguments, site)],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return self._parsed(done.stdout, done.stderr)

    def fails(self, code: int, *arguments: object, site: str | None = None) -> Any:
        """Run a command in this process, for there are many of these; its JSON."""
        environment = {"CAPS_CONFIG": str(self.folder / "config.toml")}
        done = CliRunner(env=environment).invoke(app, self._line(arguments, site))
        assert done.exit_code == code, done.output
        return self._parsed(done.stdout, done.stderr)

    def _line(self, arguments: tuple[object, ...], site: str | None) -> list[str]:
        return [*map(str, arguments), "--json", *([] if site is None else ["--site", site])]

    def _parsed(self, output: str, errors: str) -> Any:
        assert not any(value in output + errors for value in CANARIES)
        return json.loads(output or errors)


def the_notebook_runs(folder: Path) -> None:
    """As analysts have it: in an environment with `caps-client[polars]` alone."""
    python = install(build_wheel(folder / "dist"), folder / "environment", "polars")
    shutil.copy(ROOT / "docs" / "examples" / "analyst.ipynb", folder)
    run_cells = """
import json, sys
names = {"__name__": "__main__"}
for cell in json.load(open(sys.argv[1]))["cells"]:
    if cell["cell_type"] == "code":
        exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
"""
    done = run_in(python, run_cells, "analyst.ipynb", folder=folder, CAPS_CONFIG=str(folder / "config.toml"))
    assert done.returncode == 0, done.stdout + done.stderr
    words = done.stdout
    assert "95 % interval" in words
    assert "measured" in words or "bounded" in words  # the noise decides which tables are measured
    assert words.rstrip().endswith("valid")


def all_say_what_is_left(budget: StudyBudget | PopulationState) -> bool:
    assert isinstance(budget, StudyBudget)
    assert [one.server for one in budget.servers] == list(SERVERS[:3])
    assert all(one.state is None or one.state.left > 0 for one in budget.servers)
    return all(one.state is not None for one in budget.servers)


def test_the_main_path(federation: Everybody, tmp_path: Path) -> None:
    rows = persons(300, 31)
    manifest = manifest_of(federation, [{"name": "north", "brings": "rows"}], schema=SCHEMA, algorithm="mst")
    study = Study(federation, manifest, {"north": write(rows, tmp_path / "north.csv")}, encoded(manifest, rows))
    terminal = Terminal(federation, tmp_path)
    caps = terminal.caps
    file = tmp_path / "study.json"
    file.write_text(json.dumps(study.manifest.to_json()))

    assert caps("study", "check", file)["study"] == study.identity
    assert caps("study", "plan", file)
    assert caps("study", "propose", file)["study"] == study.identity
    short, url = study.identity[:12], study.manifest.coordinator.url
    for name, path in study.files.items():
        owner = f"{name}-owner"
        assert caps("table", "check", path, "--study", file)["fits"]
        assert caps("study", "approve", f"{url}/{study.identity}", "--yes", site=owner)["state"] == "approved"
        assert (
            caps("study", "fetch", study.identity, "--coordinator", url, site=f"{name}-operator")["state"] == "approved"
        )
        assert caps("study", "show", f"{owner}/{short}") == study.manifest.to_json()
        packed = tmp_path / "packed.csv.gz"
        packed.write_bytes(gzip.compress(path.read_text().replace(",", ";").encode("utf-16")))
        assert caps("table", "put", short, packed, site=owner)["rows"] > 0
        assert caps("preview", short, site=owner)["loaded"] is True
        first = caps("contribute", short, site=owner)
        assert first["state"] == "complete"
        assert caps("withdraw", short, site=owner)["state"] == "withdrawn"
        second = caps("contribute", short, site=owner)
        assert (second["state"], second["contribution"] == first["contribution"]) == ("complete", False)
        assert caps("withdraw", short, site=owner)["state"] == "withdrawn"
        assert caps("contribute", short, path, site=owner)["state"] == "complete"
    assert caps("study", "approve", f"S1-operator/{short}", "--server", "--yes")["document"]["study"] == study.identity
    with client(federation, "north", "owner") as person:
        until(lambda: all_say_what_is_left(person.budget(study.identity)))  # nobody is waited for long
    until(lambda: not caps("study", "status", short)["missing"])
    ended = caps("run", "start", short, "--watch")
    assert ended["state"] == "released"
    study.run = ended["run"]

    assert study.run in [one["release"] for one in caps("release", "list", site="analyst")["releases"]]
    data, certificate, measurements, transcript = (
        tmp_path / name for name in ("data.csv", "certificate.json", "measurements.json", "transcript.ndjson")
    )
    caps("release", "get", study.run, "--out", data, site="analyst")
    caps("release", "transcript", study.run, "--out", transcript, site="analyst")
    caps("release", "certificate", study.run, "--out", certificate, site="analyst")
    caps("release", "measurements", study.run, "--out", measurements, site="analyst")
    opened = ("--transcript", transcript, "--measurements", measurements)
    verdict = caps("verify", certificate, *opened, "--data", data)
    assert verdict["verified"]
    assert all(check["passed"] for check in verdict["checks"])
    assert pl.read_csv(data).columns == ["income", "smoker", "illness"]
    assert any(one["run"] == study.run for one in caps("ledger", "show", site="S1")["records"])

    parquet = tmp_path / "data.parquet"
    caps("release", "get", study.run[:8], "--out", parquet, site="analyst")
    assert caps("verify", certificate, "--data", data, "--data", parquet)["verified"]
    assert study.run in [one["run"] for one in caps("run", "list")["runs"]]
    (counted,) = caps("release", "count", study.run[:8], "--where", "smoker=yes", site="analyst")["estimates"]
    assert counted["basis"] == "measured"
    assert abs(counted["count"] - rows["smoker"].to_list().count("yes")) < 3 * (counted["high"] - counted["low"])
    the_notebook_runs(tmp_path)

    data.write_text(data.read_text().replace("asthma", "other", 1))
    assert not terminal.fails(NOT_VERIFIED, "verify", certificate, "--data", data)["verified"]
    study.check(tmp_path)
    nobody_wrote(federation, *CANARIES)


def test_what_goes_wrong_has_its_exit_code(federation: Everybody, tmp_path: Path) -> None:
    study = horizontal(federation, tmp_path, persons(30, 32), algorithm="mst")
    fails = Terminal(federation, tmp_path).fails
    file = tmp_path / "study.json"
    file.write_text(json.dumps(study.manifest.to_json() | {"privacy": {}}))
    assert not fails(REFUSED, "study", "check", file)["valid"]
    file.write_text(json.dumps(study.manifest.to_json()))
    assert fails(NOT_ALLOWED, "study", "propose", file, site="analyst")["exit"] == NOT_ALLOWED
    assert fails(NOT_FOUND, "release", "show", "0" * 32, site="analyst")["exit"] == NOT_FOUND
    study.agree()
    assert fails(NOT_YET, "run", "start", study.identity)["missing"]
    bad = tmp_path / "bad.csv"
    bad.write_text(f"income,smoker,illness\n{CANARIES[1]},no,{CANARIES[0]}\n")
    problem = fails(REFUSED, "table", "put", study.identity, bad, site="north-owner")
    assert problem["type"] == "urn:caps:problem:table-refused"
