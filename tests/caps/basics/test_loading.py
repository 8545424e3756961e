"""What a service has loaded is not looked at by the garbage collector, and what it makes later still is.

In processes of their own: what is set apart stays so.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def run(program: str, folder: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\nsys.path.insert(0, {str(folder)!r})\n{program}"],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


@pytest.fixture
def heavy(tmp_path: Path) -> Path:
    """A module with many objects, whose loading tells of collections on the way."""
    (tmp_path / "heavy.py").write_text(
        "import gc\n"
        "seen = []\n"
        "gc.callbacks.append(lambda phase, info: seen.append(phase))\n"
        "things = [[number] for number in range(100_000)]\n"
        "gc.callbacks.pop()\n"
    )
    return tmp_path


LOOKED_AT = "sum(len(gc.get_objects(generation=generation)) for generation in range(3))"


def test_modules_are_set_apart_without_a_collection(heavy: Path) -> None:
    program = (
        "import gc\n"
        "from caps.basics.loading import keep_loaded, load\n"
        "keep_loaded()\n"
        f"before = {LOOKED_AT}\n"
        "load('heavy')\n"
        "import heavy\n"
        f"print(len(heavy.seen), {LOOKED_AT} - before < 1000, gc.isenabled())\n"
        "rubbish = [[] for _ in range(5000)]\n"
        "for one in rubbish: one.append(one)\n"
        "del rubbish, one\n"
        "load('heavy')\n"
        "print(gc.collect() >= 4999)\n"
    )
    assert run(program, heavy) == ["0", "True", "True", "True"]


def test_a_process_that_serves_nobody_is_left_alone(heavy: Path) -> None:
    program = (
        "import gc\n"
        "from caps.basics.loading import load\n"
        "load('heavy')\n"
        "import heavy\n"
        "print(len(heavy.seen) > 0, gc.get_freeze_count())\n"
    )
    assert run(program, heavy) == ["True", "0"]


def test_a_module_that_cannot_be_loaded_leaves_the_collector_on(tmp_path: Path) -> None:
    program = (
        "import gc\n"
        "from caps.basics.loading import keep_loaded, load\n"
        "keep_loaded()\n"
        "try: load('there_is_no_such_module')\n"
        "except ImportError: print(gc.isenabled())\n"
    )
    assert run(program, tmp_path) == ["True"]
