"""Tests can be found: they lie where their subject lies, and take their helpers from the kit."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parent
ROOT = TESTS.parent
ELSEWHERE = {"adversary", "docs", "kit", "system"}
"""What has no package of the same name: rogues, pages, helpers, whole federations."""
HELPERS = ("tests.kit.", "tests.adversary.")
"""What tests may import; rogues are programs, not tests."""
COLLECTS_OTHERS = {"services/test_postgres.py"}
"""Runs tests of other modules once more, on another database."""
MODULES = sorted(path.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py"))


def test_tests_lie_where_their_subjects_lie() -> None:
    folders = {Path(module).parent for module in MODULES} - {Path()}
    subjects = [ROOT / folder for folder in sorted(folders) if folder.parts[0] not in ELSEWHERE]
    assert [one for one in subjects if not one.is_dir() and not one.with_suffix(".py").is_file()] == []


def test_no_test_imports_from_another() -> None:
    found = {
        (module, name)
        for module in {*MODULES} - COLLECTS_OTHERS
        for node in ast.walk(ast.parse((TESTS / module).read_text()))
        for name in _imported(node)
        if name.startswith("tests.") and (not name.startswith(HELPERS) or ".test_" in name)
    }
    assert found == set()


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [one.name for one in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{one.name}" for one in node.names]
    return []
