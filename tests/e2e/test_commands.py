"""What a newcomer types, run as they would run it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=280, check=False
    )


def test_the_demo_makes_a_synthetic_dataset(tmp_path: Path) -> None:
    done = run("deploy.demo", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "non-collusion is NOT met" in done.stdout
    assert "differentially private with epsilon = 1 and delta = 1e-9" in " ".join(done.stdout.split())
    synthetic, hospital = ((tmp_path / name).read_text().splitlines() for name in ("synthetic.csv", "hospital-A.csv"))
    assert synthetic[0] == hospital[0]
    assert 9_000 < len(synthetic) < 11_000  # 10,000 people, estimated with noise
    quality = float(done.stdout.partition("quality")[2].split()[0])
    assert quality > 95


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
