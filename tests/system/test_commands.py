"""What a newcomer types, run as they would run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from caps.audit.verification import verify
from caps.federation.local import LocalFederation
from caps.wire import Certificate

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "160"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def environments() -> dict[int, bytes]:
    """Of all processes that may be looked at."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            found[int(path.parent.name)] = path.read_bytes()
        except OSError:
            continue  # it ended, or is somebody else's
    return found


def left_running(folder: Path) -> list[int]:
    home = f"CAPS_HOME={folder}/".encode()
    return [process for process, text in environments().items() if home in text]


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Path]:
    """Where the demo makes its federation, which does not outlive the test."""
    yield tmp_path / "federation"
    if (tmp_path / "federation").exists():
        LocalFederation.read(tmp_path / "federation").clean()


@pytest.mark.parametrize("keep", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_demo_makes_a_synthetic_dataset_and_leaves_running_what_it_is_told_to(
    tmp_path: Path, federation: Path, keep: bool
) -> None:
    done = run("deploy.demo", os.path.relpath(tmp_path, ROOT), *(["--keep"] if keep else []))
    assert done.returncode == 0, done.stdout + done.stderr
    words = " ".join(done.stdout.replace("│", " ").split())
    assert "non-collusion is NOT met" in words
    assert "signed by 3 servers and 3 owners" in words
    assert words.count("3 of 3") == 3
    assert "differentially private with epsilon = 1 and delta = 1e-9" in words
    for line in ("synthetic data", "privacy", "certificate", "quality", "time"):
        assert f" {line} " in words
    assert "estimated from the noisy answers alone" in words
    assert "compared with the invented originals, as no real federation can: " in words
    assert float(words.partition(" % of every two-way table")[0].rpartition(" ")[2]) > 80
    rows = (tmp_path / "synthetic.csv").read_text().splitlines()
    assert rows[0] == "age,smoker,systolic,diagnosis,plan,cost"
    assert 4_500 < len(rows) < 6_000  # 5,200 patients, estimated with noise
    certificate = Certificate.from_canonical((tmp_path / "certificate.json").read_bytes())
    assert all(
        check.passed
        for check in verify(
            certificate,
            transcript=tmp_path / "transcript.ndjson",
            measurements=tmp_path / "measurements.json",
            data=tmp_path / "synthetic.csv",
            now=datetime.now(UTC),
        )
    )
    assert len(left_running(federation)) == (7 if keep else 0)
    assert f". {os.path.relpath(federation, ROOT)}/env" in done.stdout
    if keep:
        listed = in_its_shell(federation, "caps release show $RELEASE --site analyst --json")
        assert json.loads(listed)["study"] == in_its_shell(federation, "echo $STUDY").strip()
        in_its_shell(federation, f"caps federation stop {federation}")
        assert left_running(federation) == []


def in_its_shell(federation: Path, line: str) -> str:
    """What a line writes in a shell that has read the federation's environment."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("CAPS_")}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    return subprocess.run(
        ["sh", "-ec", f'. "{federation}/env"; {line}'],
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout


@pytest.mark.slow
@pytest.mark.parametrize("subject", ["engine", "protocols"])
def test_a_benchmark_prints_one_json_object(subject: str) -> None:
    done = run("bench", subject, "--json", "--repeats", "1", "--without-peers")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report
    for entry in report.values():
        assert {"seconds", "bytes", "rounds", "beside"} <= entry.keys()


def test_an_unknown_benchmark_is_refused_with_the_names_there_are() -> None:
    done = run("bench", "nothing")
    assert done.returncode == 2
    assert "engine" in done.stderr
