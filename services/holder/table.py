"""An owner's table: read, checked against the study, and reported on by counts, never by values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from caps.data.domain import Codes
from caps.data.joinkey import Ids, KeyRefused
from caps.data.schema import Limits, Numeric, Report, Schema, TableRefused
from caps.data.schema.columns import Fault
from caps.data.schema.tables import collected, is_parquet, lazy_frame
from caps.errors import DomainError
from caps.service.problems import Problem
from caps.study import Alignment, Holder, Manifest
from caps.wire.holder import SlotCounts, TableReport
from caps.wire.media import PARQUET
from caps.wire.problems import Kind


@dataclass(frozen=True, repr=False)
class Rows:
    """Codes of the rows that take part; the slot of each, unless it is its place in the file; its hashed identifier,
    where rows are joined by a key."""

    codes: Codes
    slots: npt.NDArray[np.int64] | None = None
    ids: Ids | None = None


def read_table(
    path: Path, media_type: str, manifest: Manifest, holder: Holder, limits: Limits
) -> tuple[Rows, TableReport]:
    """The table of a file. Raises DomainError, or a Problem with a report, unless the study admits it."""
    _check_format(path, media_type)
    schema = manifest.columns_of(holder)
    if holder.brings == "columns" and manifest.join is not None:
        return _joined(path, schema, manifest, holder, limits)
    alignment = manifest.alignment if holder.brings == "columns" else None
    slots, found = None, None
    if alignment is not None and alignment.column is not None:
        slots, found = _slots(path, schema, alignment, limits)
    codes, report = _encoded(path, schema, "refuse" if found is None else "ignore", limits, found)
    if found is not None and found.refused:
        raise _refusal(f"slot numbers that the study does not admit: {found.refused} in column {found.name}", report)
    if alignment is not None and len(codes) > alignment.slots:
        raise _refusal(f"the table has more rows than the {alignment.slots} slots of the study", report)
    if holder.brings == "rows" and len(codes) > manifest.most_persons:
        raise _refusal(f"the table has more rows than the {manifest.most_persons} that the study can count", report)
    if not len(codes):
        raise DomainError("the table has no rows")
    return Rows(codes, slots), report


def _joined(path: Path, schema: Schema, manifest: Manifest, holder: Holder, limits: Limits) -> tuple[Rows, TableReport]:
    """The table of a holder whose rows are joined by a key: the rows that the key admits, with hashed identifiers."""
    assert manifest.join is not None
    assert holder.capacity is not None
    key = manifest.join.key
    names = [column.name for column in schema.columns]
    extra = [column.name for column in key.columns if column.name not in names]
    # Only the names count here: the key reads its columns as they stand in the file.
    asked = [*schema.columns, *(Numeric(name=name, bin_edges=(0, 1)) for name in extra)]
    lazy, rows = lazy_frame(path, asked, extra="refuse", separator=",", limits=limits, days=extra)
    codes, report = _encoded(path, schema, "ignore", limits)
    numbers = {name: str(number) for number, name in enumerate([*names, *extra])}
    places = {column.name: numbers[column.name] for column in key.columns}
    frame = collected(lazy.select(list(places.values())), rows)
    try:
        keys, found = key.normalise({name: frame[place] for name, place in places.items()})
    except KeyRefused as error:
        report.join = error.report
        raise _refusal(str(error), report) from None
    report.join = found
    if len(keys) > holder.capacity:
        raise _refusal(f"the table has more rows than the {holder.capacity} that the study has room for", report)
    if not len(keys):
        raise DomainError("the table has no rows")
    return Rows(codes[keys.rows], ids=keys.ids(manifest.study_id, key.digest)), report


def _encoded(
    path: Path, schema: Schema, extra: str, limits: Limits, slots: SlotCounts | None = None
) -> tuple[Codes, TableReport]:
    """The codes of the rows, and a report; `slots` goes into it. Raises a Problem with the report."""

    def told(report: Report) -> TableReport:
        return TableReport(rows=report.rows, columns=list(report.columns), alignment=slots)

    try:
        codes, report = schema.encode(path, extra=extra, limits=limits)
    except TableRefused as error:
        raise _refusal(str(error), told(error.report)) from None
    return codes, told(report)


def _refusal(detail: str, report: TableReport) -> Problem:
    return Problem(Kind.TABLE_REFUSED, detail, report=report.model_dump(mode="json"))


def _check_format(path: Path, media_type: str) -> None:
    if not path.stat().st_size:
        raise DomainError("the file is empty")
    if is_parquet(np.memmap(path, np.uint8, "r")) != (media_type == PARQUET):
        raise DomainError(f"the table is not what its media type says, {media_type}")


def _slots(
    path: Path, schema: Schema, alignment: Alignment, limits: Limits
) -> tuple[npt.NDArray[np.int64], SlotCounts]:
    """The slot of each row, and counts of those that cannot be."""
    assert alignment.column is not None
    column = Numeric(name=alignment.column, bin_edges=(0, alignment.slots), integer=True, outside="refuse")
    lazy, rows = lazy_frame(path, [*schema.columns, column], extra="refuse", separator=",", limits=limits)
    place = str(len(schema.columns))
    prepared = lazy.select(column.prepare(pl.col(place), lazy.collect_schema()[place]))
    values = collected(prepared, rows).to_series().cast(pl.Float64)
    kinds = column.classify(values)
    fit = kinds >= 0
    numbers = np.zeros(rows, np.int64)
    numbers[fit] = values.to_numpy()[fit].astype(np.int64)
    count: dict[Any, int] = {fault: int((kinds == fault).sum()) for fault in Fault}
    duplicate = int(fit.sum()) - len(np.unique(numbers[fit]))
    return numbers, SlotCounts(
        name=column.name,
        missing=count[Fault.MISSING],
        out_of_range=count[Fault.LOW] + count[Fault.HIGH],
        unparsable=count[Fault.UNPARSABLE],
        duplicate=duplicate,
        refused=rows - int(fit.sum()) + duplicate,
    )
