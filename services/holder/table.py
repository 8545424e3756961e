"""An owner's table is read, checked against the study, and reported on by counts, never by values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from caps.data.domain import Codes
from caps.data.joinkey import Ids, KeyRefused
from caps.data.schema import Limits, Numeric, Report, Schema, TableRefused
from caps.data.schema.columns import Fault
from caps.data.schema.tables import collected, is_parquet
from caps.errors import DomainError
from caps.service.problems import Problem
from caps.study import Holder, Manifest
from caps.wire.holder import SlotCounts, TableReport
from caps.wire.media import PARQUET
from caps.wire.problems import Kind
from services.holder.fingerprint import fingerprint

_REPORTED = 1_000_000
"""The number of rows that are counted even if the study admits fewer."""


@dataclass(frozen=True, repr=False)
class Rows:
    """Codes of the rows that take part; the slot of each, unless that is its place in the file; and, if rows are joined
    by a key, the hashed identifier of each."""

    codes: Codes
    slots: npt.NDArray[np.int64] | None = None
    ids: Ids | None = None


def read_table(
    path: Path, media_type: str, manifest: Manifest, holder: Holder, limits: Limits, *, recognise: bool = False
) -> tuple[Rows, TableReport]:
    """The table in a file, which is read once. Raises DomainError, or a Problem with a report, if the study does not
    admit it. recognise: whether the report has the fingerprint of the rows."""
    _check_format(path, media_type)
    limits = replace(limits, rows=min(limits.rows, _most_rows(manifest, holder)))
    schema = manifest.columns_of(holder)
    if holder.brings == "columns" and manifest.join is not None:
        return _joined(path, schema, manifest, holder, limits, recognise=recognise)
    alignment = manifest.alignment if holder.brings == "columns" else None
    names = [] if alignment is None or alignment.column is None else [alignment.column]
    raw = [column.name for column in schema.columns] if recognise else []
    codes, found, beside = schema.encode_with(path, [*names, *raw], limits=limits)
    report, slots = TableReport(rows=found.rows, columns=list(found.columns)), None
    if alignment is not None and alignment.column is not None:
        slots, report.alignment = _slots(beside[alignment.column], alignment.column, alignment.slots)
    _check_values(found, report)
    if report.alignment is not None and report.alignment.refused:
        refused, name = report.alignment.refused, report.alignment.name
        raise _refusal(f"column {name} has {refused} slot numbers that the study does not admit", report)
    if alignment is not None and len(codes) > alignment.slots:
        raise _refusal(f"the table has more rows than the study's {alignment.slots} slots", report)
    if holder.brings == "rows" and len(codes) > manifest.most_persons:
        raise _refusal(f"the table has more rows than the {manifest.most_persons} that the study can count", report)
    if not len(codes):
        raise DomainError("the table has no rows")
    if recognise:
        report.fingerprint = fingerprint({name: beside[name] for name in raw})
    return Rows(codes, slots), report


def _most_rows(manifest: Manifest, holder: Holder) -> int:
    """How many rows are looked at: far more than the study admits, so that an owner who is near gets a report."""
    if holder.brings == "rows":
        admitted = manifest.most_persons
    else:
        admitted = manifest.alignment.slots if manifest.alignment is not None else holder.capacity or 0
    return max(_REPORTED, 4 * admitted)


def _joined(
    path: Path, schema: Schema, manifest: Manifest, holder: Holder, limits: Limits, *, recognise: bool
) -> tuple[Rows, TableReport]:
    """The table of a holder whose rows are joined by a key: the rows with a usable key, with hashed identifiers."""
    assert manifest.join is not None
    assert holder.capacity is not None
    key = manifest.join.key
    raw = [column.name for column in schema.columns] if recognise else []
    names = [column.name for column in key.columns]
    codes, found, beside = schema.encode_with(path, [*names, *raw], days=True, limits=limits)
    report = TableReport(rows=found.rows, columns=list(found.columns))
    _check_values(found, report)
    try:
        keys, report.join = key.normalise({name: beside[name] for name in names})
    except KeyRefused as error:
        report.join = error.report
        raise _refusal(str(error), report) from None
    if len(keys) > holder.capacity:
        raise _refusal(f"the table has more rows than the {holder.capacity} that the study has room for", report)
    if not len(keys):
        raise DomainError("the table has no rows")
    if recognise:
        report.fingerprint = fingerprint({name: beside[name] for name in raw})
    return Rows(codes[keys.rows], ids=keys.ids(manifest.study_id, key.digest)), report


def _check_values(found: Report, report: TableReport) -> None:
    if found.refused:
        raise _refusal(str(TableRefused(found)), report)


def _refusal(detail: str, report: TableReport) -> Problem:
    return Problem(Kind.TABLE_REFUSED, detail, report=report.model_dump(mode="json"))


def _check_format(path: Path, media_type: str) -> None:
    if not path.stat().st_size:
        raise DomainError("the file is empty")
    if is_parquet(np.memmap(path, np.uint8, "r")) != (media_type == PARQUET):
        raise DomainError(f"the file is not {media_type}, the media type it was sent as")


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
