"""An owner's table is read, checked against a study, and reported on by counts, never by values.

The holder reads a table in this way when it is loaded, and `caps table check` before that, without a service.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from caps.data.domain import Codes
from caps.data.joinkey import Ids, KeyRefused, KeyReport
from caps.data.schema import ColumnReport, Limits, Numeric, Report, Schema, TableRefused
from caps.data.schema.columns import Column, Fault
from caps.data.schema.tables import HeaderRefused, LineRefused, collected, header_of
from caps.errors import DomainError
from caps.study.manifest import Holder, Manifest

_REPORTED = 1_000_000
"""The number of rows that are counted even if the study admits fewer."""
_CLOSE = 0.75
"""How alike two names are that may be meant to be the same, from 0 to 1."""
_MOST_COMPARED, _LONGEST = 500, 128
"""Names of a file that are compared with a missing one, and the letters of a name."""


@dataclass(frozen=True)
class SlotCounts:
    """The `ColumnReport` of the column with the numbers of slots."""

    name: str
    missing: int
    out_of_range: int
    unparsable: int
    duplicate: int
    refused: int


@dataclass
class Counted:
    """What was counted in a table. The counts are exact, so only its owner may see them."""

    rows: int
    columns: tuple[ColumnReport, ...]
    alignment: SlotCounts | None = None
    join: KeyReport | None = None
    """Present if rows are joined by a key."""


class TableDoesNotFit(DomainError):
    """The study does not take the table.

    report: what was counted, if it could be read. missing: columns of the study that it lacks. extra: how many columns
    it has that the study does not have, if that is refused. rows: by column, the first that are refused; line: of the
    file, the one that cannot be read. Numbers of rows are for whoever holds the file: no document has them.
    """

    def __init__(
        self,
        detail: str,
        report: Counted | None = None,
        *,
        missing: Sequence[str] = (),
        extra: int = 0,
        rows: Mapping[str, Sequence[int]] | None = None,
        line: int | None = None,
    ) -> None:
        super().__init__(detail)
        self.report, self.missing, self.rows, self.line = report, tuple(missing), dict(rows or {}), line
        self.extra = extra


@dataclass(frozen=True, repr=False)
class Rows:
    """Codes of the rows that take part; the slot of each, unless that is its place in the file; and, if rows are joined
    by a key, the hashed identifier of each.

    given: the columns of the study as they stand in the table, if they were asked for."""

    codes: Codes
    slots: npt.NDArray[np.int64] | None = None
    ids: Ids | None = None
    given: Mapping[str, pl.Series] | None = None


def read_table(
    path: Path,
    manifest: Manifest,
    holder: Holder,
    limits: Limits,
    *,
    encoding: str | None = None,
    extra: str = "refuse",
    with_given: bool = False,
) -> tuple[Rows, Counted]:
    """The table in a file, which is read once. Raises TableDoesNotFit.

    encoding, extra: as for `Schema.encode`. with_given: whether the rows have the columns as they stand in the table.
    """
    limits = replace(limits, rows=min(limits.rows, _most_rows(manifest, holder)))
    schema = manifest.columns_of(holder)
    raw = [column.name for column in schema.columns] if with_given else []
    joined = holder.brings == "columns" and manifest.join is not None
    read = _joined if joined else _placed
    refusal = None
    try:
        return read(path, schema, manifest, holder, raw, encoding=encoding, extra=extra, limits=limits)
    except TableDoesNotFit:
        raise
    except HeaderRefused as error:
        refusal = TableDoesNotFit(str(error), missing=error.missing, extra=error.extra)
    except LineRefused as error:
        refusal = TableDoesNotFit(str(error), line=error.line)
    except DomainError as error:
        refusal = TableDoesNotFit(str(error))
    raise refusal


def columns_asked(manifest: Manifest, holder: Holder) -> list[Column]:
    """The columns that a holder's file must have: of the schema, of the key, the slot's number."""
    own = list(manifest.columns_of(holder).columns)
    names = {column.name for column in own}
    beside: list[str] = []
    if holder.brings == "columns" and manifest.join is not None:
        beside = [column.name for column in manifest.join.key.columns]
    elif holder.brings == "columns" and manifest.alignment is not None and manifest.alignment.column is not None:
        beside = [manifest.alignment.column]
    return [*own, *(Numeric(name=name, bin_edges=(0, 1)) for name in beside if name not in names)]


def other_names(path: Path, manifest: Manifest, holder: Holder, *, encoding: str | None, limits: Limits) -> list[str]:
    """Names in the file's header that the study does not ask for. They are for whoever holds the file."""
    asked = columns_asked(manifest, holder)
    names = {column.name for column in asked}
    header = header_of(path, asked, encoding=encoding, limits=limits)
    return [name for name in header if name not in names and len(name) <= _LONGEST][:_MOST_COMPARED]


def close_names(missing: Sequence[str], others: Sequence[str]) -> dict[str, list[str]]:
    """For missing columns, other names of a header that may be meant."""
    plain = {_bare(name): name for name in reversed(others)}
    found = {}
    for name in missing:
        same = plain.get(_bare(name))
        found[name] = [same] if same is not None else get_close_matches(name, others, n=3, cutoff=_CLOSE)
    return {name: near for name, near in found.items() if near}


def _bare(name: str) -> str:
    """A name without what people write differently: case, blanks, dashes, underscores."""
    return "".join(letter for letter in name.casefold() if letter.isalnum())


def _placed(
    path: Path, schema: Schema, manifest: Manifest, holder: Holder, raw: Sequence[str], **options: Any
) -> tuple[Rows, Counted]:
    """The table of a holder whose rows have their places, or are counted."""
    alignment = manifest.alignment if holder.brings == "columns" else None
    names = [] if alignment is None or alignment.column is None else [alignment.column]
    codes, found, beside = schema.encode_with(path, [*names, *raw], **options)
    report, slots = Counted(found.rows, found.columns), None
    if alignment is not None and alignment.column is not None:
        slots, report.alignment = _slots(beside[alignment.column], alignment.column, alignment.slots)
    _check_values(found, report)
    if report.alignment is not None and report.alignment.refused:
        refused, name = report.alignment.refused, report.alignment.name
        raise TableDoesNotFit(f"column {name} has {refused} slot numbers that the study does not admit", report)
    if alignment is not None and len(codes) > alignment.slots:
        raise TableDoesNotFit(f"the table has more rows than the study's {alignment.slots} slots", report)
    if holder.brings == "rows" and len(codes) > manifest.most_persons:
        most = manifest.most_persons
        raise TableDoesNotFit(f"the table has more rows than the {most} that the study can count", report)
    if not len(codes):
        raise DomainError("the table has no rows")
    return Rows(codes, slots, given={name: beside[name] for name in raw} or None), report


def _most_rows(manifest: Manifest, holder: Holder) -> int:
    """How many rows are looked at: far more than the study admits, so that an owner who is near gets a report."""
    if holder.brings == "rows":
        admitted = manifest.most_persons
    else:
        admitted = manifest.alignment.slots if manifest.alignment is not None else holder.capacity or 0
    return max(_REPORTED, 4 * admitted)


def _joined(
    path: Path, schema: Schema, manifest: Manifest, holder: Holder, raw: Sequence[str], **options: Any
) -> tuple[Rows, Counted]:
    """The table of a holder whose rows are joined by a key: the rows with a usable key, with hashed identifiers."""
    assert manifest.join is not None
    assert holder.capacity is not None
    key = manifest.join.key
    names = [column.name for column in key.columns]
    codes, found, beside = schema.encode_with(path, [*names, *raw], days=True, **options)
    report = Counted(found.rows, found.columns)
    _check_values(found, report)
    refusal = None
    try:
        keys, report.join = key.normalise({name: beside[name] for name in names})
    except KeyRefused as error:
        report.join = error.report
        refusal = TableDoesNotFit(str(error), report)
    if refusal is not None:
        raise refusal
    if len(keys) > holder.capacity:
        raise TableDoesNotFit(f"the table has more rows than the {holder.capacity} that the study has room for", report)
    if not len(keys):
        raise DomainError("the table has no rows")
    given = {name: beside[name] for name in raw} or None
    return Rows(codes[keys.rows], ids=keys.ids(manifest.study_id, key.digest), given=given), report


def _check_values(found: Report, report: Counted) -> None:
    if found.refused:
        raise TableDoesNotFit(str(TableRefused(found)), report, rows=found.refused_rows)


def _slots(given: pl.Series, name: str, slots: int) -> tuple[npt.NDArray[np.int64], SlotCounts]:
    """The slot of each row, and counts of the slot numbers that are not admitted."""
    column = Numeric(name=name, bin_edges=(0, slots), integer=True, outside="refuse")
    prepared = given.to_frame("slot").lazy().select(column.prepare(pl.col("slot"), given.dtype))
    values = collected(prepared, len(given)).to_series().cast(pl.Float64)
    kinds = column.classify(values)
    fit = kinds >= 0
    numbers = np.zeros(len(values), np.int64)
    numbers[fit] = values.to_numpy()[fit].astype(np.int64)
    count: dict[Any, int] = {fault: int((kinds == fault).sum()) for fault in Fault}
    duplicate = int(fit.sum()) - len(np.unique(numbers[fit]))
    return numbers, SlotCounts(
        name=name,
        missing=count[Fault.MISSING],
        out_of_range=count[Fault.LOW] + count[Fault.HIGH],
        unparsable=count[Fault.UNPARSABLE],
        duplicate=duplicate,
        refused=len(values) - int(fit.sum()) + duplicate,
    )
