"""Writes docs/protocols.md from the registry: `python -m services.mpc_server.protocol_docs [--check] FILE`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from caps.basics.schemes import SCHEMES
from services.mpc_server.engine import size
from services.mpc_server.engine.cost import Cost
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

**Rounds** is the depth of messages; protocols that run side by side share their rounds. **Bytes** is the payload that
each server sends, without frame headers (32 bytes a frame) and TLS records. Both are declared for each secret-sharing
scheme that a study may choose:

- `rep3`: three servers, of which one may be corrupted, and follows the protocol;
- `rep3-active`: the same three, of which one may do anything; each proves its messages before anything is opened;
- `rep4`: four servers, of which one may do anything; everything is sent by one server and vouched for by another.

Protocols are written once; what differs are the verbs. What is declared are a protocol's own messages; the checks
before openings in `rep3-active` and `rep4` come on top, and protocols that follow each other share them.

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
        schemes = [scheme for scheme in SCHEMES if any(scheme in declaration.costs for declaration in chosen)]
        rows = [
            "| protocol | leaks | " + " | ".join(f"`{scheme}`: rounds, bytes" for scheme in schemes) + " |",
            "|---" * (2 + len(schemes)) + "|",
            *(_row(declaration, schemes) for declaration in chosen),
        ]
        meanings = [f"- **{d.name}**: {d.summary} Pre-conditions: {d.pre_conditions} {_sources(d)}" for d in chosen]
        sections.append("\n".join([f"## {module}", "", doc.replace("\n", " "), "", *rows, "", *meanings]))
    return "\n\n".join(section.strip() for section in sections) + "\n"


def _row(declaration: Declaration, schemes: Sequence[str]) -> str:
    cells = [declaration.name, declaration.leaks, *(_cost(declaration.costs.get(scheme)) for scheme in schemes)]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _cost(cost: Cost | None) -> str:
    return "" if cost is None else f"`{cost.rounds}`, `{cost.sent}`"


def _sources(declaration: Declaration) -> str:
    """Where a protocol is from; by scheme, if that makes a difference."""
    sources = declaration.sources
    if len(set(sources.values())) == 1:
        return f"Source: {next(iter(sources.values()))}."
    return "Sources: " + "; ".join(f"{scheme}: {source}" for scheme, source in sources.items()) + "."


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
