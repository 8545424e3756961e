"""How many commands each person types, and how many files they handle, counted in the pages that say so:
`python -m tests.kit.steps`. With `--time`, README is run once, and each person's seconds are those of the machine.

A command is a line of a shell block that is run. README's are those of the person in bold above them; a party's, of
docs/first-federation.md, are those of the blocks that name it. A file is of a person's own if they must have written it
before: README's samples stand for it, and so do a page's blocks that are files. A file is moved if a person copies it,
or keeps in it what a command printed, such as a token or an id.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from caps.federation.local import LocalFederation
from tests.kit.pages import ROOT, Block, blocks, time

README, BY_HAND = ROOT / "README.md", ROOT / "docs" / "first-federation.md"
_PERSON = re.compile(r"\*\*(.+?)\.\*\*")
_OWN = re.compile(r"\btrial/sample/[\w.-]+|\bpatients\.csv")
_KEPT = re.compile(r"(?<!\d)> *(\S+)")
_OF_SERVICES = ("log", "pid", "ready.txt")
ESSENTIAL = (
    *("caps federation new", "caps federation start", ". trial/env"),
    *("caps study propose", "caps study approve", "caps contribute", "caps run start", "caps release get"),
)
"""What it takes to get from nothing to data; the rest of README looks before, and checks after."""


def commands(block: Block) -> list[str]:
    """The commands of a block, without what is said about them."""
    lines = (line.partition("  #")[0].strip() for line in block.text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def persons() -> Iterator[tuple[str, Block]]:
    """Each block of README that is run, with the person whose it is."""
    lines = README.read_text().splitlines()
    for block in blocks(README):
        if block.language == "sh" and block.remark not in ("skip", "last"):
            above = (_PERSON.match(line) for line in reversed(lines[: block.line]))
            yield next((found[1] for found in above if found), "Anybody"), block


def of_readme() -> Iterator[tuple[str, str]]:
    """Each command of README with the person who types it."""
    for person, block in persons():
        yield from ((person, command) for command in commands(block))


def by_hand() -> Counter[str]:
    """The commands of each party, each at its own machine."""
    count: Counter[str] = Counter()
    for block in blocks(BY_HAND):
        if block.remark == "each":
            count.update({party: len(commands(block)) for party in block.detail.split()})
    return count


def own(found: Iterable[str]) -> set[str]:
    """The files that a person must have before: the tables and studies that commands are given."""
    return {name for command in found for name in _OWN.findall(command)}


def moved(found: Iterable[str]) -> int:
    """How many files a person copies, or makes of what a command prints. What a service writes is none."""
    kept = (name for command in found for name in _KEPT.findall(command))
    return sum(name not in _OF_SERVICES for name in kept) + sum(command.startswith("cp ") for command in found)


def files_by_hand() -> dict[str, tuple[int, int]]:
    """For each party of the page: files of its own, and files moved."""
    lines: dict[str, list[str]] = {party: [] for party in by_hand()}
    written: Counter[str] = Counter()
    for block in blocks(BY_HAND):
        if block.remark == "each":
            for party in block.detail.split():
                lines[party] += commands(block)
        elif block.remark == "file":
            written[block.detail.partition("/")[0]] += 1
    return {party: (written[party] + len(own(mine)), moved(mine)) for party, mine in lines.items()}


def shortest(found: Iterable[str]) -> list[str]:
    """The commands of the shortest way, once for each owner where a site is named."""
    kept, seen = [], set()
    for command in found:
        start = next((one for one in ESSENTIAL if command.startswith(one)), None)
        site = re.search(r"--site (\S+)", command)
        if start is not None and (start, site and site[1]) not in seen:
            seen.add((start, site and site[1]))
            kept.append(command)
    return kept


def seconds() -> Counter[str]:
    """Run README once, in a folder of its own: the machine's seconds for each person."""
    spent: Counter[str] = Counter()
    with TemporaryDirectory(prefix="caps-steps-") as folder:
        try:
            took = time(blocks(README), Path(folder), {}, seconds=1200)
            for person, block in persons():
                spent[person] += took[block.line]  # type: ignore[assignment]
        finally:
            if (Path(folder) / "trial" / "federation.json").exists():
                LocalFederation.read(Path(folder) / "trial").clean()
    return spent


def main() -> None:
    """Print the counts."""
    found = list(of_readme())
    spent = seconds() if "--time" in sys.argv[1:] else {}
    for person in dict.fromkeys(person for person, _ in found):
        mine = [command for one, command in found if one == person]
        took = f", {spent[person]:.0f} s" if person in spent else ""
        print(f"README, {person}: {len(mine)} commands, {len(own(mine))} own files, {moved(mine)} moved{took}")
    print(f"README, from nothing to data: {len(shortest(command for _, command in found))} commands")
    files = files_by_hand()
    for party, number in by_hand().items():
        print(f"by hand, {party}: {number} commands, {files[party][0]} own files, {files[party][1]} moved")


if __name__ == "__main__":
    main()
