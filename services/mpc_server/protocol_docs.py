"""Writes docs/protocols.md from the registry: `python -m services.mpc_server.protocol_docs [--check] FILE`."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from services.mpc_server.engine import size
from services.mpc_server.engine.registry import REGISTRY, Declaration

MODULES = (
    "verbs",
    "boolean",
    "conversion",
    "comparison",
    "validity",
    "counting",
    "compute",
    "aes",
    "alignment",
    "join",
    "sampling",
    "release",
    "steps",
    "paper.comparison",
    "paper.randomness",
    "paper.fixedpoint",
    "paper.counting",
    "paper.mechanisms",
)

_HEAD = """\
# Protocols

Written by `make docs` from the registry in `services/mpc_server/engine/`; `make check` fails when it is out of date,
and `tests/services/mpc_server/engine/test_registry.py` measures every declaration below.

**Rounds** is the depth of messages; protocols that run side by side share their rounds. **Sent** is the payload in
bytes that each server sends, without frame headers (32 bytes a frame) and TLS records. Both are declared for each
secret-sharing scheme that a study may choose; `rep3` is replicated sharing among S1, S2 and S3, against one of them
that is corrupted and semi-honest.

`first` is 1 for S1 and 0 for the others. `log2(x)` is rounded up; `plane(x)` = 8 * ceil(x / 64) is one bit plane of x
elements; the other functions count the AND gates or the bytes of a circuit and stand beside it in the source. In the
summaries, n, k, w and f stand for the elements, the bits of the ring, the bits of an element (or the columns of a
matrix) and fractional or dropped bits.

The sizes in the formulas:

"""


def render() -> str:
    """The whole page."""
    for module in MODULES:
        import_module(f"services.mpc_server.engine.{module}")
    sections = [_HEAD + "\n".join(f"- `{one.name}`: {one.meaning}" for one in size.EVERY)]
    for module in MODULES:
        chosen = [declaration for declaration in REGISTRY.values() if declaration.module == module]
        doc = (import_module(f"services.mpc_server.engine.{module}").__doc__ or "").partition("\n\n")[0]
        rows = [
            "| protocol | source | scheme | rounds | sent by each server (bytes) | leaks |",
            "|---|---|---|---|---|---|",
            *(_row(declaration, scheme) for declaration in chosen for scheme in declaration.costs),
        ]
        meanings = [f"- **{d.name}**: {d.summary} Pre-conditions: {d.pre_conditions}" for d in chosen]
        sections.append("\n".join([f"## {module}", "", doc.replace("\n", " "), "", *rows, "", *meanings]))
    return "\n\n".join(section.strip() for section in sections) + "\n"


def _row(declaration: Declaration, scheme: str) -> str:
    cost = declaration.costs[scheme]
    cells = (
        declaration.name,
        declaration.sources[scheme],
        scheme,
        f"`{cost.rounds}`",
        f"`{cost.sent}`",
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
