"""What somebody agrees to who approves a study, on one screen: who, what for, what leaves, what it costs, what leaks.

Nearly all of it was written by others. A line's foreign text stands at its end, is cut to the screen's width, and has
no letter that a terminal acts on; letters that are written from right to left can only move what is theirs.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size

from caps.wire import agreement

if TYPE_CHECKING:
    from caps.study import Holder, Manifest
    from caps.wire.holder import StudyBudget
    from caps.wire.server import PopulationState

WIDTH, HEIGHT = 80, 24
_LABEL = 12
_MOST_MARKS = 2
"""Marks on one letter that are shown: towers of them reach into other lines."""


def harmless(text: str, width: int) -> str:
    """Foreign text on one line of at most so many columns."""
    kept: list[str] = []
    marks = 0
    for letter in " ".join(text[: 8 * width].split()):
        marks = marks + 1 if unicodedata.category(letter).startswith("M") else 0
        if marks <= _MOST_MARKS:
            kept.append(letter if letter.isprintable() else "?")
    line = "".join(kept)
    if cell_len(line) <= width and len(text) <= 8 * width:
        return line
    return set_cell_size(line, max(0, width - 3)).rstrip() + "..."


def wrapped(text: str, lines: int) -> list[str]:
    """Foreign text on at most so many lines."""
    width, line = WIDTH - _LABEL, ""
    found: list[str] = []
    words = harmless(text, width * lines).split(" ")
    for word in words:
        rest = word
        while cell_len(rest) > width:  # one that is longer than a line
            head = rest[: max(1, width - cell_len(line) - 1)]
            found, line, rest = [*found, f"{line} {head}".strip()], "", rest[len(head) :]
        if line and cell_len(line) + 1 + cell_len(rest) > width:
            found, line = [*found, line], rest
        else:
            line = f"{line} {rest}".strip()
    found = [*found, line] if line else found
    if len(found) > lines:
        found = [*found[: lines - 1], harmless(" ".join(found[lines - 1 :]), width)]
    return [set_cell_size(one, width).rstrip() if cell_len(one) > width else one for one in found]


def holder_screen(
    manifest: Manifest, holder: Holder, budget: StudyBudget, warnings: Sequence[str], sent: int
) -> list[str]:
    """What an owner agrees to. sent: bytes that would leave the site."""
    names, loss = agreement.brought(manifest, holder), budget.loss
    return _screen(
        manifest,
        f"holder {holder.name}",
        [
            *_field("You bring", f"{len(names)} columns: {', '.join(names)}", 2),
            *_field(
                "Leaves you",
                f"random shares of {agreement.shared(manifest, holder)}: {_size(sent)} to "
                f"{manifest.sharing.parties} servers; no row, value or count in the clear",
                2,
            ),
        ],
        [
            *_field(
                "Population",
                f"cost at your site: {agreement.cost(loss.before)}; with this study "
                f"{agreement.epsilon_of(loss.after.epsilon)}; {loss.population}",
                2,
            ),
            *_field("Left", "; ".join(map(agreement.left_at, budget.servers)), 2),
        ],
        [*warnings, *loss.warnings],
    )


def server_screen(manifest: Manifest, budget: PopulationState, objections: Sequence[str]) -> list[str]:
    """What an MPC server's operator agrees to."""
    used = "nothing" if not budget.used else f"epsilon {budget.used:.3g}"
    return _screen(
        manifest,
        f"server {budget.server}",
        _field(
            "You do",
            f"keep shares for {manifest.retention_days} days; compute on them with the other servers; "
            "enforce the budget",
            2,
        ),
        [
            *_field("Population", f"on this server: {used} set aside; {budget.population}", 1),
            *_field("Left", agreement.left(budget.server, budget, None), 1),
        ],
        objections,
    )


def _screen(
    manifest: Manifest, place: str, duties: Sequence[str], budget: Sequence[str], warnings: Sequence[str]
) -> list[str]:
    holders = [one.name for one in manifest.holders]
    first = [f"Study {manifest.study_id}", *_field("Title", manifest.title, 1)]
    rest = [
        *_field("Asked by", f"coordinator {manifest.coordinator.name}, {manifest.coordinator.url}", 1),
        *_field("Servers", ", ".join(f"{one.name} {one.url.removeprefix('https://')}" for one in manifest.servers), 2),
        *_field("Scheme", f"{manifest.scheme}: {agreement.trust(manifest)}", 1),
        *_field("Takes part", f"as {place}; {len(holders)} holders: {', '.join(holders)}", 1),
        *duties,
        *_field("Published", agreement.published(manifest), 1),
        *_field("Privacy", agreement.protection(manifest), 2),
        *budget,
        *_field("Leaks", "; ".join(agreement.leaks(manifest)), 3),
    ]
    room = HEIGHT - 2 - len(first) - len(rest)  # below are a line on where to read all of it, and the question
    told = [line for words in warnings for line in _field("WARNING", words, 2)]
    purpose = _field("Purpose", manifest.purpose or "not stated", max(1, min(3, room - min(len(told), 2))))
    room -= len(purpose)
    if len(told) > room:
        told = [*told[: max(0, room - 1)], f"{'WARNING':{_LABEL}}there is more: caps preview {manifest.study_id[:12]}"]
    return [*first, *purpose, *rest, *told, f"All of it:  caps study show {manifest.study_id[:12]}"]


def _field(label: str, text: str, lines: int) -> list[str]:
    return [f"{label if not number else '':{_LABEL}}{line}" for number, line in enumerate(wrapped(text, lines))]


def _size(count: int) -> str:
    units: Iterator[str] = iter(("bytes", "KB", "MB", "GB"))
    size, unit = float(count), next(units)
    for larger in units:
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{size:.3g} {unit}"
