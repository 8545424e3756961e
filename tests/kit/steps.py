"""How many commands each person types, counted in the pages that say so: `python -m tests.kit.steps`.

A command is a line of a shell block that is run. README's are those of the person in bold above them; a party's, of
docs/first-federation.md, are those of the blocks that name it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from tests.kit.pages import ROOT, Block, blocks

README, BY_HAND = ROOT / "README.md", ROOT / "docs" / "first-federation.md"
_PERSON = re.compile(r"\*\*(.+?)\.\*\*")
ESSENTIAL = (
    *("caps federation new", "caps federation start", ". trial/env"),
    *("caps study propose", "caps study approve", "caps contribute", "caps run start", "caps release get"),
)
"""What it takes to get from nothing to data; the rest of README looks before, and checks after."""


def commands(block: Block) -> list[str]:
    """The commands of a block, without what is said about them."""
    lines = (line.partition("  #")[0].strip() for line in block.text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def of_readme() -> Iterator[tuple[str, str]]:
    """Each command of README with the person who types it."""
    lines = README.read_text().splitlines()
    for block in blocks(README):
        if block.language == "sh" and block.remark not in ("skip", "last"):
            above = (_PERSON.match(line) for line in reversed(lines[: block.line]))
            person = next((found[1] for found in above if found), "Anybody")
            yield from ((person, command) for command in commands(block))


def by_hand() -> Counter[str]:
    """The commands of each party, each at its own machine."""
    count: Counter[str] = Counter()
    for block in blocks(BY_HAND):
        if block.remark == "each":
            count.update({party: len(commands(block)) for party in block.detail.split()})
    return count


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


def main() -> None:
    """Print the counts."""
    found = list(of_readme())
    for person, number in Counter(person for person, _ in found).items():
        print(f"README, {person}: {number}")
    print(f"README, from nothing to data: {len(shortest(command for _, command in found))}")
    for party, number in by_hand().items():
        print(f"by hand, {party}: {number}")


if __name__ == "__main__":
    main()
