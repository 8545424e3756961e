"""The code blocks of a page, and how they are run as printed.

An indented block, or one fenced as `sh`, is shell; one fenced as `python` is Python; other fences must say what they
are, and are not run. An HTML comment right above a block says more about it:

    <!-- skip: why -->          it is not run, for this reason
    <!-- file: PATH -->         it is written to this file
    <!-- each: S1 S2 S3 -->     it is run for each of these, as NAME, in a folder of that name, as on a machine of its
                                own; `values` there is read first
    <!-- last: why -->          it is run after all other pages
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"(\s*)(```+)(\S*)\s*")
_REMARK = re.compile(r"<!-- (skip|file|each|last): (.+) -->")
_SHELL = frozenset({"sh", "bash"})
_MARK = "@@ block in line "
_AT = re.compile(rf"^{_MARK}(\d+) at (\d+\.\d+)$", re.MULTILINE)
_ON_ITS_OWN = """\
(
NAME={name}
mkdir -p $NAME && cd $NAME
if [ -e values ]; then . ./values; fi
{text}
)"""


class Unclear(Exception):
    """A block does not say what it is."""


@dataclass(frozen=True)
class Block:
    """A block: the page, its first line there, its language, its text, and the remark above it."""

    page: Path
    line: int
    language: str
    text: str
    remark: str = ""
    detail: str = ""

    @property
    def runs(self) -> bool:
        """Whether it is to be run or written now."""
        return self.remark not in ("skip", "last") and (self.language in ("sh", "python") or self.remark == "file")


def blocks(page: Path) -> list[Block]:
    """All blocks of a page, in order. Raises Unclear if a fence has no language."""
    lines = page.read_text().splitlines()
    found: list[Block] = []
    number = 0
    while number < len(lines):
        fence = _FENCE.fullmatch(lines[number])
        begin = number
        if fence is not None:
            indent, ticks, language = fence.groups()
            if not language:
                raise Unclear(f"{page.name}:{number + 1}: a fenced block must say its language")
            number += 1
            while lines[number].strip() != ticks:
                number += 1
            text = "\n".join(line.removeprefix(indent) for line in lines[begin + 1 : number])
            found.append(Block(page, begin + 2, "sh" if language in _SHELL else language, text, *_above(lines, begin)))
        elif lines[number].startswith("    ") and _begins_block(lines, number):
            while number + 1 < len(lines) and (lines[number + 1].startswith("    ") or _goes_on(lines, number + 1)):
                number += 1
            text = "\n".join(line.removeprefix("    ") for line in lines[begin : number + 1])
            found.append(Block(page, begin + 1, "sh", text, *_above(lines, begin)))
        number += 1
    return found


def _begins_block(lines: list[str], number: int) -> bool:
    """Indented code follows a blank line; within a list item, an indented line goes on with the item."""
    if number and lines[number - 1].strip():
        return False
    before = next((line for line in reversed(lines[:number]) if line.strip()), "")
    return not re.match(r"\s*([-*]|\d+\.)\s", before)


def _goes_on(lines: list[str], number: int) -> bool:
    """A blank line between two indented ones belongs to the block."""
    return not lines[number].strip() and number + 1 < len(lines) and lines[number + 1].startswith("    ")


def _above(lines: list[str], number: int) -> tuple[str, str]:
    before = next((line for line in reversed(lines[:number]) if line.strip()), "")
    found = _REMARK.fullmatch(before.strip())
    return (found[1], found[2]) if found else ("", "")


def script_of(found: Iterable[Block]) -> str:
    """One script for bash that runs blocks in order, in one shell, and says which one it is at."""
    parts = ["set -euo pipefail"]
    for block in found:
        parts.append(f'echo "{_MARK}{block.line} at $EPOCHREALTIME" >&2')
        if block.remark == "file":
            parts.append(f"mkdir -p {shlex.quote(str(Path(block.detail).parent))}")
            parts.append(f"cat > {shlex.quote(block.detail)} <<'END OF BLOCK'\n{block.text}\nEND OF BLOCK")
        elif block.language == "python":
            parts.append(f"python - <<'END OF BLOCK'\n{block.text}\nEND OF BLOCK")
        elif block.remark == "each":
            parts += [_ON_ITS_OWN.format(name=shlex.quote(name), text=block.text) for name in block.detail.split()]
        else:
            parts.append(block.text)
    return "\n".join(parts) + "\n"


def run(found: Iterable[Block], folder: Path, environment: Mapping[str, str], *, seconds: float = 280) -> str:
    """Run blocks in a folder, as somebody with this environment; what they wrote. Fails with the block's place."""
    return _run(found, folder, environment, seconds)[0]


def time(found: Iterable[Block], folder: Path, environment: Mapping[str, str], *, seconds: float) -> dict[int, float]:
    """The same; by the line of each block, the seconds that it took."""
    told = _run(found, folder, environment, seconds)[1]
    marks = [(int(line), float(at)) for line, at in _AT.findall(told)]
    return {line: after - at for (line, at), (_, after) in pairwise(marks)}


def _run(found: Iterable[Block], folder: Path, environment: Mapping[str, str], seconds: float) -> tuple[str, str]:
    chosen = [block for block in found if block.runs]
    done = subprocess.run(
        ["bash", "-c", script_of(chosen) + f'echo "{_MARK}0 at $EPOCHREALTIME" >&2\n'],
        cwd=folder,
        env={**shell_environment(), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    if done.returncode:
        last = done.stderr.rpartition(_MARK)[2]
        line, _, wrote = last.partition("\n")
        line = line.partition(" ")[0]
        place = f"{chosen[0].page.relative_to(ROOT)}:{line}"
        raise AssertionError(f"{place} ended with {done.returncode}:\n{done.stdout[-1500:]}\n{wrote[-3000:]}")
    return done.stdout, done.stderr


def shell_environment() -> dict[str, str]:
    """That of somebody who has set up the repository: `caps` and `python` are its own, and nothing else is set."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CAPS_")}
    return {
        **kept,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "100",
    }
