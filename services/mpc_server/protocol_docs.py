"""Writes docs/protocols.md from the registry: `python -m services.mpc_server.protocol_docs [--check] FILE`."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from services.mpc_server.engine.registry import REGISTRY, Declaration

MODULES = (
    "arithmetic",
    "boolean",
    "conversion",
    "comparison",
    "randomness",
    "fixedpoint",
    "compute",
    "aes",
    "shuffle",
    "join",
    "sampling",
    "release",
    "steps",
    "paper",
)

_HEAD = """\
# Protocols

Written by `make docs` from the registry in `services/mpc_server/engine/`; `make check` fails when it is out of date,
and `tests/services/mpc_server/engine/test_registry.py` measures every declaration below.

Three parties S1, S2, S3, replicated secret sharing, at most one party corrupted and semi-honest. **Rounds** is the
depth of messages; protocols that run side by side share their rounds. **Sent** is the payload in bytes that each
server sends, without frame headers (32 bytes a frame) and TLS records. `n` is the number of elements, `k` the bits of
the ring, `w` the bits of an element or the columns of a matrix, `f` fractional or dropped bits; other letters are
named in the summary. `first` is 1 for S1 and 0 for the others. `log2(x)` is rounded up; `plane(n)` = 8 * ceil(n / 64)
is one bit plane of n elements; the other functions count the AND gates of a circuit and stand beside it in the
source.
"""


def render() -> str:
    """The whole page."""
    for module in MODULES:
        import_module(f"services.mpc_server.engine.{module}")
    sections = [_HEAD]
    for module in MODULES:
        chosen = [declaration for declaration in REGISTRY.values() if declaration.module == module]
        doc = (import_module(f"services.mpc_server.engine.{module}").__doc__ or "").partition("\n\n")[0]
        rows = [
            "| protocol | source | rounds | sent by each server (bytes) | leaks |",
            "|---|---|---|---|---|",
            *(_row(declaration) for declaration in chosen),
        ]
        meanings = [f"- **{d.name}**: {d.summary} Pre-conditions: {d.pre_conditions}" for d in chosen]
        sections.append("\n".join([f"## {module}", "", doc.replace("\n", " "), "", *rows, "", *meanings]))
    return "\n\n".join(section.strip() for section in sections) + "\n"


def _row(declaration: Declaration) -> str:
    cells = (
        declaration.name,
        declaration.source,
        f"`{declaration.rounds}`",
        f"`{declaration.sent}`",
        declaration.leaks,
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def main(arguments: list[str]) -> int:
    """Write the page, or with --check say whether it is up to date."""
    check = "--check" in arguments
    (path,) = (Path(argument) for argument in arguments if argument != "--check")
    page = render()
    if not check:
        path.write_text(page)
    elif not path.exists() or path.read_text() != page:
        sys.stderr.write(f"{path} is out of date: run `make docs`\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
