"""The digest of a build: another for another source, registry or numpy; the same wherever it is installed."""

from __future__ import annotations

import compileall
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from services.mpc_server import build
from services.mpc_server.build import brief, build_digest, source_digests
from services.mpc_server.engine.cost import Cost
from services.mpc_server.engine.registry import REGISTRY

ROOT = Path(__file__).parents[3]


@pytest.fixture
def fresh() -> Iterator[None]:
    """A digest is computed once in a process: forget it before and after."""
    build_digest.cache_clear()
    yield
    build_digest.cache_clear()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "deep").mkdir()
    (tmp_path / "one.py").write_text("ONE = 1\n")
    (tmp_path / "deep" / "two.py").write_text("TWO = 2\n")
    return tmp_path


def test_sources_are_names_and_contents_and_nothing_else(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    before = source_digests(folder)
    assert before.keys() == {"one.py", "deep/two.py"}
    os.utime(folder / "one.py", (1, 1))
    compileall.compile_dir(folder, quiet=1)
    (folder / "notes.txt").write_text("not a source")
    assert source_digests(folder) == before
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "copy"
    shutil.copytree(folder, elsewhere)
    assert source_digests(elsewhere) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "one.py").write_text("ONE = 2\n"),
        lambda folder: (folder / "one.py").rename(folder / "three.py"),
        lambda folder: (folder / "deep" / "two.py").unlink(),
        lambda folder: (folder / "deep" / "empty.py").touch(),
    ],
)
def test_any_change_of_a_source_is_seen(folder: Path, change) -> None:
    before = source_digests(folder)
    change(folder)
    assert source_digests(folder) != before


def test_every_process_has_the_same_digest_from_wherever_it_starts(tmp_path: Path) -> None:
    """Also one that has imported nothing of the engine before it asks."""
    command = [sys.executable, "-m", "services.mpc_server.build"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "7"}
    said = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout
    assert said == f"{build_digest()}\n"
    assert len(bytes.fromhex(said)) == 32
    assert build_digest().startswith(brief(build_digest()).rstrip("."))


@pytest.mark.usefixtures("fresh")
def test_protocols_tables_and_numpy_are_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def changed() -> str:
        build_digest.cache_clear()
        return build_digest()

    seen = [changed()]
    name = next(iter(REGISTRY))
    with monkeypatch.context() as patch:
        patch.setitem(REGISTRY, name, replace(REGISTRY[name], costs={"rep3": Cost(rounds=99, sent=0)}))
        seen.append(changed())
    with monkeypatch.context() as patch:
        patch.setattr(build, "VERSION", "caps/v2/noise")
        seen.append(changed())
    with monkeypatch.context() as patch:
        patch.setattr(build, "version", lambda _: "2.0")
        seen.append(changed())
    with monkeypatch.context() as patch:
        patch.setattr(build, "source_digests", lambda _: {})
        seen.append(changed())
    assert len(set(seen)) == 5
    assert changed() == seen[0]
