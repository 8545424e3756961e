"""What was found in a table, in words for its owner: by column, the worst first, with what to do about it.

Row numbers are for whoever holds the file; no value is repeated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from caps.data.schema import Categorical, Column, ColumnReport, Numeric, Schema
from caps.data.schema.columns import Fault
from services.holder.table import TableRefusal

MOST_ROWS = 10
"""Row numbers that are listed for a column."""
_MOST_CATEGORIES = 12
_COUNTS = {
    Fault.MISSING: "missing",
    Fault.LOW: "low",
    Fault.HIGH: "high",
    Fault.UNKNOWN: "unknown",
    Fault.UNPARSABLE: "unparsable",
}
_WORDS = {
    Fault.MISSING: "empty",
    Fault.LOW: "below the range",
    Fault.HIGH: "above the range",
    Fault.UNKNOWN: "not among the categories",
    Fault.UNPARSABLE: "unreadable",
}


@dataclass(frozen=True)
class Finding:
    """A column: what the study expects of it, what was found, whether that is refused, and what to do."""

    name: str
    expected: str
    found: Sequence[tuple[str, int, bool]]
    refused: int
    rows: Sequence[int]
    more_rows: bool
    advice: Sequence[str]


def findings(
    schema: Schema, reports: Sequence[ColumnReport], rows: Mapping[str, Sequence[int]] | None = None
) -> list[Finding]:
    """Every column, those with most refused values first."""
    columns = {column.name: column for column in schema.columns}
    found = [_finding(columns[one.name], one, (rows or {}).get(one.name, ())) for one in reports]
    return sorted(found, key=lambda one: (-one.refused, -sum(count for _, count, _ in one.found)))


def missing_columns(refusal: TableRefusal) -> list[tuple[str, list[str]]]:
    """Columns of the study that the file lacks, each with names in the file that may be meant."""
    return [(name, list(refusal.near.get(name, []))) for name in refusal.error.missing]


def expected_of(column: Column) -> str:
    """What a column's values must be."""
    if isinstance(column, Numeric):
        whole = "whole numbers" if column.integer else "numbers"
        return f"{whole} from {column.bin_edges[0]:g} to {column.bin_edges[-1]:g}"
    if isinstance(column, Categorical):
        shown = ", ".join(column.categories[:_MOST_CATEGORIES])
        return f"one of {shown}" + (", ..." if len(column.categories) > _MOST_CATEGORIES else "")
    texts = list(column.texts)
    return f"one of {', '.join(texts[:_MOST_CATEGORIES])}" if texts else str(column.to_json()["kind"])


def _finding(column: Column, report: ColumnReport, rows: Sequence[int]) -> Finding:
    counts = [(fault, int(getattr(report, _COUNTS[fault]))) for fault in _COUNTS]
    found = [(_WORDS[fault], count, fault not in column.remedies) for fault, count in counts if count]
    advice = [_advice(column, fault) for fault, count in counts if count and fault not in column.remedies]
    shown = list(rows[:MOST_ROWS])
    return Finding(
        column.name, expected_of(column), found, report.refused, shown, report.refused > len(shown) > 0, advice
    )


def _advice(column: Column, fault: Fault) -> str:
    expected = expected_of(column)
    return {
        Fault.MISSING: "The study takes no empty values here: fill them in, or leave these rows out.",
        Fault.LOW: f"The study takes {expected}: correct these values, or leave these rows out.",
        Fault.HIGH: f"The study takes {expected}: correct these values, or leave these rows out.",
        Fault.UNKNOWN: f"Write each of these as {expected}; spelling and case count.",
        Fault.UNPARSABLE: f"The study takes {expected}: remove units and remarks, and check the decimal sign.",
    }[fault]
