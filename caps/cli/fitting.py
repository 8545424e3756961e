"""`caps table check`: whether a table fits a study, found out at its owner's desk by what the holder reads it with.

Numbers of rows and names of a file's own columns are shown here, to whoever holds the file, and go nowhere else.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from caps.cli.output import listing
from caps.data.schema import Limits
from caps.errors import DomainError
from caps.study import Holder, Manifest
from caps.study.table import Counted, TableDoesNotFit, close_names, other_names, read_table

TITLE = "The table does not fit the study"
_COUNTS = ("name", "missing", "low", "high", "unknown", "unparsable", "refused")


def fit(
    path: Path,
    manifest: Manifest,
    name: str | None,
    *,
    encoding: str | None = None,
    ignore_extra: bool = False,
    show_lines: int = 0,
) -> tuple[dict[str, Any], list[Any]]:
    """Whether the table fits: a document, and views of it. Raises DomainError if it is not clear whose table it is."""
    holder, limits = _holder(manifest, name), Limits()
    extra = "ignore" if ignore_extra else "refuse"
    try:
        _, counted = read_table(path, manifest, holder, limits, encoding=encoding, extra=extra)
    except TableDoesNotFit as error:
        others: list[str] = []
        if error.missing or error.extra:
            others = other_names(path, manifest, holder, encoding=encoding, limits=limits)
        return _refusal(error, others, show_lines)
    return {"fits": True, "report": asdict(counted)}, [
        f"The table fits the study: {counted.rows:,} rows.",
        *_counts(counted),
    ]


def _refusal(error: TableDoesNotFit, others: list[str], show_lines: int) -> tuple[dict[str, Any], list[Any]]:
    near = close_names(error.missing, others)
    document: dict[str, Any] = {"fits": False, "title": TITLE, "detail": str(error)}
    views: list[Any] = [TITLE, str(error)]
    if error.report is not None:
        document["report"] = asdict(error.report)
        views += _counts(error.report)
    if error.missing:
        document["missing"] = [{"column": name, "close": near.get(name, [])} for name in error.missing]
        views += [f"  {name}: is it {' or '.join(near[name])}?" for name in error.missing if name in near]
    if error.extra:
        if show_lines:  # without a header, these are data
            document["extra"] = others[:show_lines]
            more = ", ..." if error.extra > show_lines else ""
            views.append(f"  not in the study: {', '.join(others[:show_lines])}{more}")
        views.append("--ignore-extra leaves such columns unread; they stay in your file.")
    if show_lines:
        document["rows"] = {name: list(rows)[:show_lines] for name, rows in error.rows.items()}
        document["line"] = error.line
        views += [
            f"  {name}: rows {', '.join(map(str, rows[:show_lines]))}{', ...' if len(rows) > show_lines else ''}"
            for name, rows in error.rows.items()
        ]
        views += [f"  line {error.line} of the file"] if error.line is not None else []
        views += ["Rows are counted as in a spreadsheet: the header is row 1."] if error.rows else []
    elif error.rows or error.extra or error.line is not None:
        views.append("caps table check --show-lines 20 lists such rows and columns, to you and nobody else.")
    return document, views


def _holder(manifest: Manifest, name: str | None) -> Holder:
    """Whose table it is. If nobody says so, all holders must bring the same."""
    if name is not None:
        return manifest.holder(name)
    first = manifest.holders[0]
    if any(
        (one.brings, one.columns, one.capacity) != (first.brings, first.columns, first.capacity)
        for one in manifest.holders
    ):
        names = ", ".join(one.name for one in manifest.holders[:20])
        raise DomainError(f"the study's holders bring different columns: say whose table it is, --holder; {names}")
    return first


def _counts(counted: Counted) -> list[Any]:
    """The columns in which anything was unusual."""
    rows = [asdict(column) for column in counted.columns]
    unusual = [row for row in rows if any(row[key] for key in _COUNTS[1:])]
    return [listing(unusual, _COUNTS)] if unusual else []
