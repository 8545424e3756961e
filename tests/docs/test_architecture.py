"""docs/architecture.md names what exists, and its map is the code's."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from deploy import architecture

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
NAMES = sorted(set(re.findall(r"`((?:caps|services|deploy|bench)(?:\.\w+)+)`", PAGE.read_text())))
PATHS = sorted(set(re.findall(r"`((?:caps|services|deploy|bench|tests|docs)/[\w./-]*)`", PAGE.read_text())))


def resolved(name: str) -> object:
    """The module, or what a module has by that name. Raises AttributeError if there is none."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return found
    raise AttributeError(name)


@pytest.mark.parametrize("name", NAMES)
def test_what_the_page_names_exists(name: str) -> None:
    assert resolved(name) is not None


@pytest.mark.parametrize("path", PATHS)
def test_paths_on_the_page_exist(path: str) -> None:
    assert (PAGE.parents[1] / path).exists()


def test_the_page_names_the_hops_and_the_layers() -> None:
    assert len(NAMES) > 50
    assert {f"caps.{one.name}" for one in (PAGE.parents[1] / "caps").iterdir() if (one / "__init__.py").exists()} <= {
        *NAMES
    }


def test_the_map_is_the_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PAGE.parents[1])
    assert architecture.main(["--check", str(PAGE)]) == 0


def test_a_circle_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(PAGE.parents[1])
    monkeypatch.setattr(architecture, "SEAMS", ())  # the engine and what runs it meet in a module of their own
    assert architecture.main(["--check", str(PAGE)]) == 1
    assert "in a circle" in capsys.readouterr().err


def test_a_name_that_is_gone_is_found() -> None:
    with pytest.raises(AttributeError):
        resolved("caps.wire.documents.Nothing")
