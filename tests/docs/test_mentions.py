"""The pages name tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATTERNS = ("*.md", "docs/**/*.md", "deploy/**/*.md")
PAGES = sorted(path.relative_to(ROOT).as_posix() for pattern in PATTERNS for path in ROOT.glob(pattern))


def mentioned(page: str) -> set[str]:
    """Paths under tests/ that a page names, without what may follow: a test's name, or the end of a sentence."""
    text = (ROOT / page).read_text()
    return {found.rstrip("./") for found in re.findall(r"(?<![\w/])tests/[\w/.-]*", text)}


@pytest.mark.parametrize("page", PAGES)
def test_every_test_that_a_page_names_exists(page: str) -> None:
    assert [name for name in sorted(mentioned(page)) if not (ROOT / name).exists()] == []


def test_the_table_of_preconditions_names_its_tests() -> None:
    assert len([name for name in mentioned("docs/privacy.md") if name.endswith(".py")]) > 8
