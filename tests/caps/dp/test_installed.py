"""Algorithms of other packages: found by entry points, never in the place of another, refused by name if not here."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

import tests.kit.study as study_kit
from caps.dp.installed import LOOPS, PROGRAMS, installed
from caps.dp.programs import base, program
from caps.errors import DomainError
from caps.study import Manifest, Policy
from services.coordinator.algorithms import algorithm
from services.coordinator.algorithms import base as loops
from services.mpc_server.build import brought, with_mechanism
from tests.kit.pages import ROOT, blocks

BUILD = "ab" * 32
PAGE = ROOT / "docs" / "adding-a-mechanism.md"
PARTS = {Path(block.detail).name: block.text for block in blocks(PAGE) if block.remark == "file"}
"""The package on the page, by the names of its files."""
Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a package for the length of a test, as pip would: modules, and metadata with entry points."""

    def one(name: str, module: str, files: dict[str, str], *, called: str = "one-ways", loop: bool = True) -> Path:
        folder = tmp_path / name
        for file, text in {"__init__.py": "", **files}.items():
            (folder / module).mkdir(parents=True, exist_ok=True)
            (folder / module / file).write_text(text)
        metadata = folder / f"{name}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        lines = [f"[{PROGRAMS}]", f"{called} = {module}.program"]
        lines += [f"[{LOOPS}]", f"{called} = {module}.loop"] if loop else []
        (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
        monkeypatch.syspath_prepend(folder)
        installed.cache_clear()
        return folder

    monkeypatch.setattr(base, "_REGISTRY", dict(base._REGISTRY))
    monkeypatch.setattr(loops, "_REGISTRY", dict(loops._REGISTRY))
    known = set(sys.modules)
    yield one
    for name in set(sys.modules) - known:
        del sys.modules[name]
    installed.cache_clear()


def study(**algorithm_: object) -> dict[str, object]:
    """A manifest that names this algorithm."""
    return {**study_kit.example_json()[0], "algorithm": algorithm_}


def test_what_a_package_brings_is_found_by_its_name(install: Install) -> None:
    with pytest.raises(
        DomainError, match="there is no algorithm 'one-ways' here; choose one of aim, gaussian, mst, mwem"
    ):
        program("one-ways")
    install("one-ways", "one_ways", PARTS)
    assert program("one-ways").name == "one-ways"
    assert "one-ways" in base.names()
    assert algorithm("one-ways").name == "one-ways"
    assert isinstance(algorithm("one-ways"), type(program("one-ways")))
    with pytest.raises(DomainError, match="one-ways has no parameter 'rounds'"):
        program("one-ways", {"rounds": 3})


def test_nothing_is_imported_before_it_is_named(install: Install) -> None:
    install("one-ways", "one_ways", {"program.py": "raise SystemExit('imported')"})
    assert program("aim").name == "aim"
    assert "one_ways" not in sys.modules


def test_a_party_without_the_package_refuses_the_manifest_by_name(install: Install) -> None:
    with pytest.raises(ValidationError, match=r"algorithm\.name: there is no algorithm 'one-ways' here"):
        Manifest.from_json(study(name="one-ways"))
    install("one-ways", "one_ways", PARTS)
    assert Manifest.from_json(study(name="one-ways")).program.name == "one-ways"


def test_a_server_admits_only_what_its_operator_lists(install: Install) -> None:
    install("one-ways", "one_ways", PARTS)
    manifest = Manifest.from_json(study(name="one-ways"))
    words = "this server does not allow the algorithm one-ways"
    assert words in Policy().judge(manifest)
    assert words not in Policy(algorithms=("aim", "one-ways")).judge(manifest)


def test_a_coordinator_needs_the_loop_too(install: Install) -> None:
    install("one-ways", "one_ways", PARTS, loop=False)
    assert program("one-ways").name == "one-ways"
    with pytest.raises(DomainError, match="there is no algorithm 'one-ways' here"):
        algorithm("one-ways")


def test_no_package_takes_the_place_of_what_comes_with_caps(install: Install) -> None:
    genuine = type(program("aim"))
    install("evil", "evil", {"program.py": "raise SystemExit('imported')"}, called="aim")
    assert type(program("aim")) is genuine
    assert "evil" not in sys.modules


def test_a_package_that_registers_another_name_is_refused(install: Install) -> None:
    genuine = type(program("aim"))
    text = PARTS["program.py"].replace('ClassVar[str] = "one-ways"', 'ClassVar[str] = "aim"')
    install("evil", "evil", {"program.py": text})
    with pytest.raises(DomainError, match=r"one-ways of evil 1\.0 is refused: two programs are called aim"):
        program("one-ways")
    assert type(program("aim")) is genuine


def test_a_package_that_registers_nothing_is_refused(install: Install) -> None:
    install("empty", "empty", {"program.py": ""})
    with pytest.raises(DomainError, match="does not register it"):
        program("one-ways")


def test_a_package_that_cannot_be_imported_is_named_without_its_words(install: Install) -> None:
    install("broken", "broken", {"program.py": "raise ValueError('Ottilie-Canary')"})
    with pytest.raises(
        DomainError, match=r"the algorithm one-ways of broken 1\.0 cannot be loaded: ValueError"
    ) as refused:
        program("one-ways")
    assert "Canary" not in str(refused.value)


def test_two_packages_with_one_name_are_refused(install: Install) -> None:
    install("first", "first", PARTS)
    install("second", "second", PARTS)
    with pytest.raises(DomainError, match=r"2 packages bring an algorithm one-ways: .*first 1\.0"):
        program("one-ways")


def test_the_build_of_a_run_has_the_sources_of_its_algorithm_and_of_no_other() -> None:
    assert not brought("aim")
    assert with_mechanism(BUILD, "aim") == BUILD


def test_another_version_of_a_package_is_another_build(tmp_path: Path, install: Install) -> None:
    """Each version in a process of its own, as at two servers."""
    line = "import sys; from caps.dp.programs import program; from services.mpc_server.build import with_mechanism; "
    line += f"program('one-ways'); print(with_mechanism('{BUILD}', 'one-ways'), with_mechanism('{BUILD}', 'aim'))"

    def builds(folder: Path) -> list[str]:
        path = {"PYTHONPATH": f"{folder}:{ROOT}", "PATH": "/usr/bin:/bin"}
        return subprocess.run(
            [sys.executable, "-c", line], env=path, capture_output=True, text=True, check=True
        ).stdout.split()

    folder = install("one-ways", "one_ways", PARTS)
    first = builds(folder)
    assert first[0] != BUILD
    assert first[1] == BUILD
    assert builds(folder) == first
    path = folder / "one_ways" / "program.py"
    path.write_text(path.read_text() + "# changed\n")
    assert builds(folder)[0] not in (BUILD, first[0])


def test_the_page_names_the_groups() -> None:
    assert f'[project.entry-points."{PROGRAMS}"]' in PARTS["pyproject.toml"]
    assert f'[project.entry-points."{LOOPS}"]' in PARTS["pyproject.toml"]
    assert json.dumps("one_ways.program") in PARTS["pyproject.toml"]
