"""The owner's table beside a release, column by column. It is exact about the owner's persons: for this site only."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from caps.audit.measurements import labels
from caps.data.schema import Column, Numeric, Schema
from caps.errors import DomainError
from caps.service.problems import Problem
from caps.wire.problems import Kind
from services.holder.counting import count_columns
from services.holder.service import HolderService
from services.holder.table import Sent


@dataclass(frozen=True)
class ColumnCounts:
    """How many rows have each value of a column."""

    name: str
    labels: list[str]
    counts: list[int]


@dataclass(frozen=True)
class ColumnComparison:
    """A column's values in per cent of the rows, here and in a release. distance: the share of rows that would have to
    change their value to make both the same, from 0 to 1."""

    name: str
    labels: list[str]
    own: list[float]
    released: list[float]
    distance: float


@dataclass(frozen=True)
class Comparison:
    """All columns that both have, the most different first."""

    own_rows: int
    released_rows: int
    columns: list[ColumnComparison]


def cells_of(schema: Schema, column: Column) -> list[str]:
    """The names of a column's cells; bins of numbers in words, with what is counted in the outermost ones."""
    names = labels(schema, column.name)
    if not isinstance(column, Numeric):
        return names
    edges = column.bin_edges
    right, clamped = column.side == "right", column.outside == "clamp"
    whole = column.integer and right and all(edge.is_integer() for edge in map(float, edges))
    told = []
    for place, (low, high) in enumerate(pairwise(edges)):
        last = high - 1 if whole else high
        until = f"{'' if whole or not right else 'below '}{last:,.10g}"
        if clamped and place == len(edges) - 2 and place:
            told.append(f"{low:,.10g} and more" if right else f"above {low:,.10g}")
        elif clamped and place == 0 and len(edges) > 2:
            told.append(until if until.startswith("below") else f"up to {until}")
        else:
            told.append(until if whole and low == last else f"{'' if right else 'above '}{low:,.10g} to {until}")
    return told + names[len(told) :]


def own_counts(service: HolderService, study: str) -> list[ColumnCounts]:
    """The counts of the owner's table by column."""
    manifest = service.store.study(study).manifest
    schema = manifest.columns_of(service.me(manifest))
    return [
        ColumnCounts(column.name, cells_of(schema, column), counts.tolist())
        for column, counts in zip(schema.columns, service.column_counts(study), strict=True)
    ]


def compare(service: HolderService, study: str, release: Path) -> Comparison:
    """The study's table beside a release in a file. Raises a problem if the file is not of the study's columns."""
    manifest = service.store.study(study).manifest
    schema = manifest.columns_of(service.me(manifest))
    try:
        sent = Sent.recognised(release)
        # Persons whom this holder does not have lack its columns in the release.
        released, _ = schema.encode(
            release, extra="ignore", lacking=manifest.lacking, encoding=sent.encoding, limits=service.limits
        )
    except DomainError as error:
        raise Problem(Kind.TABLE_REFUSED, f"this is not a release of this study: {error}") from None
    released_counts = count_columns((column.size for column in schema.columns), released)
    own, rows = service.column_counts(study), service.report(study).rows
    if not rows or not len(released):
        raise Problem(Kind.TABLE_REFUSED, "there are no rows to compare")
    found = []
    for column, mine, theirs in zip(schema.columns, own, released_counts, strict=True):
        here, there = (part / max(1, part.sum()) for part in (mine, theirs))  # of those whose value is known
        distance = float(np.abs(here - there).sum() / 2)
        own_shares, released_shares = (np.round(100 * part, 1).tolist() for part in (here, there))
        found.append(ColumnComparison(column.name, cells_of(schema, column), own_shares, released_shares, distance))
    return Comparison(rows, len(released), sorted(found, key=lambda one: (-one.distance, one.name)))
