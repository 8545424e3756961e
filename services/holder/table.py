"""An owner's table: read, checked against the study, and reported on by counts, never by values."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
from pydantic import BaseModel

from caps.domain import Codes
from caps.errors import DomainError
from caps.joinkey import Ids, KeyRefused
from caps.schema import Limits, Numeric, Schema, TableRefused
from caps.schema.columns import Fault
from caps.schema.tables import POLARS_ERRORS, is_parquet, lazy_frame
from caps.service.problems import Kind, Problem
from caps.study import Alignment, Holder, Manifest

CSV, PARQUET = "text/csv", "application/vnd.apache.parquet"


class ColumnCounts(BaseModel):
    """How many values of a column were unusual, and how many of them make the table unfit."""

    name: str
    missing: int
    low: int
    high: int
    unknown: int
    unparsable: int
    refused: int


class SlotCounts(BaseModel):
    """The same for the column with the numbers of slots."""

    name: str
    missing: int
    out_of_range: int
    unparsable: int
    duplicate: int
    refused: int


class TableReport(BaseModel):
    """What was found in a table. The counts are exact, hence for its owner alone."""

    rows: int
    columns: list[ColumnCounts]
    alignment: SlotCounts | None = None
    join: dict[str, Any] | None = None
    """`caps.joinkey.KeyReport`, where rows are joined by a key."""


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
    try:
        codes, report = schema.encode(path, extra="refuse" if found is None else "ignore", limits=limits)
    except TableRefused as error:
        told = TableReport.model_validate(error.report.to_json() | {"alignment": found})
        raise Problem(Kind.TABLE_REFUSED, str(error), report=told.model_dump()) from None
    told = TableReport.model_validate(report.to_json() | {"alignment": found})
    if found is not None and found.refused:
        detail = f"slot numbers that the study does not admit: {found.refused} in column {found.name}"
        raise Problem(Kind.TABLE_REFUSED, detail, report=told.model_dump())
    if alignment is not None and len(codes) > alignment.slots:
        detail = f"the table has more rows than the {alignment.slots} slots of the study"
        raise Problem(Kind.TABLE_REFUSED, detail, report=told.model_dump())
    if not len(codes):
        raise DomainError("the table has no rows")
    return Rows(codes, slots), told


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
    places = {name: str(place) for place, name in enumerate([*names, *extra])}
    try:
        codes, report = schema.encode(path, extra="ignore", limits=limits)
    except TableRefused as error:
        told = TableReport.model_validate(error.report.to_json())
        raise Problem(Kind.TABLE_REFUSED, str(error), report=told.model_dump()) from None
    values = _raw(lazy, {column.name: places[column.name] for column in key.columns}, rows)
    try:
        keys, found = key.normalise(values)
    except KeyRefused as error:
        told = TableReport.model_validate(report.to_json() | {"join": error.report.to_json()})
        raise Problem(Kind.TABLE_REFUSED, str(error), report=told.model_dump()) from None
    told = TableReport.model_validate(report.to_json() | {"join": found.to_json()})
    room = holder.capacity - manifest.join.decoys
    if len(keys) > room:
        detail = f"the table has more rows than the {room} that the study has room for"
        raise Problem(Kind.TABLE_REFUSED, detail, report=told.model_dump())
    if not len(keys):
        raise DomainError("the table has no rows")
    return Rows(codes[keys.rows], ids=keys.ids(manifest.study_id, key.digest)), told


def _raw(lazy: pl.LazyFrame, places: dict[str, str], rows: int) -> dict[str, pl.Series]:
    with suppress(*POLARS_ERRORS):
        frame = lazy.select(list(places.values())).collect(engine="streaming")
        if frame.height == rows:
            return {name: frame[place] for name, place in places.items()}
    raise DomainError("the table could not be read")


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
    values = _collected(lazy, column, str(len(schema.columns)), rows)
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


def _collected(lazy: pl.LazyFrame, column: Numeric, name: str, rows: int) -> pl.Series:
    with suppress(*POLARS_ERRORS):
        dtype = lazy.collect_schema()[name]
        values = lazy.select(column.prepare(pl.col(name), dtype)).collect(engine="streaming").to_series()
        if len(values) == rows:
            return values.cast(pl.Float64)
    raise DomainError("the table could not be read")
