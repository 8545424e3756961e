"""Numbers, sizes, times and costs as people read them: filters of every template."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any


def number(value: float) -> str:
    """12345 as 12,345; fractions with three digits that count."""
    if isinstance(value, int) or float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:.3g}"


def size(count: int) -> str:
    """Bytes in the unit that suits them."""
    value, unit = float(count), "bytes"
    for larger in ("KB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{number(int(value)) if unit == 'bytes' else format(value, '.3g')} {unit}"


def when(at: str | datetime) -> str:
    """A time, to the minute, in UTC."""
    found = at if isinstance(at, datetime) else datetime.fromisoformat(at)
    return f"{found.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def chance(probability: float) -> str:
    """A small probability as one in so many."""
    return f"1 in {float(f'{1 / probability:.3g}'):,.0f}" if 0 < probability < 1 else f"{probability:g}"


def share(part: float, whole: float) -> str:
    """A part as a percentage."""
    return "0 %" if not whole else f"{100 * part / whole:.3g} %"


def count_of(count: int, one: str, several: str | None = None) -> str:
    """A number with its noun: 1 row, 2 rows."""
    return f"{number(count)} {one if count == 1 else several or one + 's'}"


def sentence(text: str) -> str:
    """A problem's words, which begin small and end without a stop, as a sentence."""
    stopped = text if text.endswith((".", "?", "!")) else f"{text}."
    return stopped[:1].upper() + stopped[1:]


FILTERS: dict[str, Callable[..., Any]] = {
    "number": number,
    "size": size,
    "when": when,
    "chance": chance,
    "share": share,
    "count_of": count_of,
    "sentence": sentence,
}
