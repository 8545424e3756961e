"""Schema: columns in order, JSON both ways, tables to codes and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import polars as pl

from caps.basics import canonical
from caps.data.domain import MISSING, Codes, Domain
from caps.data.schema.columns import Column, Draws, Fault, Numeric, check_fields, fail
from caps.data.schema.tables import Limits, Table, collected, lazy_frame
from caps.errors import DomainError

VERSION = 1


@dataclass(frozen=True)
class ColumnReport:
    """How many values of a column were unusual, and how many of them are the reason to refuse the table."""

    name: str
    missing: int
    low: int
    high: int
    unknown: int
    unparsable: int
    refused: int


@dataclass(frozen=True)
class Report:
    """What encode() met: counts only. They are exact, hence for the owner of the table alone."""

    rows: int
    columns: tuple[ColumnReport, ...]

    @property
    def refused(self) -> int:
        """Values that stand in the way of coding the table."""
        return sum(column.refused for column in self.columns)

    def to_json(self) -> dict[str, object]:
        """As an object of JSON."""
        return asdict(self)


class TableRefused(DomainError):
    """Values of a table that its schema does not admit; `report` counts them."""

    def __init__(self, report: Report) -> None:
        parts = [f"{column.refused} in column {column.name}" for column in report.columns if column.refused]
        super().__init__(f"values that the schema does not admit: {', '.join(parts)}")
        self.report = report


@dataclass(frozen=True)
class Schema:
    """Columns of a table, in the order of the domain. The other fields are remarks for people, checked if they can be.

    `label` names the column a classifier is to predict and `positive` the value of interest in it; `rows` is the size
    of the table the schema was written for.
    """

    columns: tuple[Column, ...]
    name: str | None = None
    label: str | None = None
    positive: str | None = None
    note: str | None = None
    rows: int | None = None
    numeric_bin_rule: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        if not self.columns or not all(isinstance(column, Column) for column in self.columns):
            fail("columns", "must be one column or more")
        by_name: dict[str, Column] = {}
        for index, column in enumerate(self.columns):
            if column.name in by_name:
                fail(f"columns[{index}].name", "is given twice")
            by_name[column.name] = column
        for remark in ("name", "label", "positive", "note", "numeric_bin_rule"):
            if not isinstance(getattr(self, remark), str | None):
                fail(remark, "must be text")
        if self.rows is not None and (isinstance(self.rows, bool) or not isinstance(self.rows, int) or self.rows < 0):
            fail("rows", "must be a count")
        if self.label is not None and self.label not in by_name:
            fail("label", "must name a column")
        if self.positive is not None:
            if self.label is None:
                fail("positive", "needs a label")
            if (texts := by_name[self.label].texts) and self.positive not in texts:
                fail("positive", "must be a value of the label")
        self.domain()

    @cached_property
    def _domain(self) -> Domain:
        return Domain(tuple(column.attribute for column in self.columns))

    def domain(self) -> Domain:
        """The attributes that the columns become."""
        return self._domain

    def select(self, names: Iterable[str]) -> Schema:
        """The schema of only these columns, such as those one holder brings, in this schema's order."""
        kept = set(self._domain.project(names).names)
        return Schema(tuple(column for column in self.columns if column.name in kept), name=self.name, note=self.note)

    def to_json(self) -> dict[str, object]:
        """As an object of JSON; fields that have their default are left out."""
        given: dict[str, object] = {"version": VERSION}
        given |= {field.name: getattr(self, field.name) for field in fields(self)}
        given["columns"] = [column.to_json() for column in self.columns]
        return {name: value for name, value in given.items() if value is not None}

    @classmethod
    def from_json(cls, value: str | bytes | Mapping[str, object]) -> Schema:
        """The schema of a JSON text, or of an object parsed from one. Raises DomainError with the place of the error.

        A `version` not given is 1. `domain_sizes`, if given, must be the sizes of the domain.
        """
        document = _parsed(value) if isinstance(value, str | bytes) else value
        if not isinstance(document, Mapping):
            fail("", "a schema must be an object")
        given: dict[str, Any] = dict(document)
        version, sizes = given.pop("version", VERSION), given.pop("domain_sizes", None)
        if version != VERSION or isinstance(version, bool):
            fail("version", f"must be {VERSION}")
        check_fields(cls, given)
        if not isinstance(given["columns"], list | tuple):
            fail("columns", "must be a list")
        columns = []
        for index, column in enumerate(given["columns"]):
            try:
                columns.append(Column.from_json(column))
            except DomainError as error:
                place = f"columns[{index}]"
                what = str(error)
                raise DomainError(f"{place}.{what}" if isinstance(column, Mapping) else f"{place}: {what}") from None
        schema = cls(**{**given, "columns": columns})
        if sizes is not None and sizes != dict(zip(schema._domain.names, schema._domain.sizes, strict=True)):
            fail("domain_sizes", "must be the number of categories of each column")
        return schema

    def encode(
        self, table: Table, *, extra: str = "refuse", separator: str = ",", limits: Limits | None = None
    ) -> tuple[Codes, Report]:
        """The codes of the table's rows and a report. Raises TableRefused if the schema does not admit a value.

        The columns of the table may stand in any order; those the schema does not know are to "ignore" or "refuse".
        """
        codes, report, _ = self.encode_with(table, (), extra=extra, separator=separator, limits=limits)
        if report.refused:
            raise TableRefused(report)
        return codes, report

    def examine(
        self, table: Table, *, extra: str = "refuse", separator: str = ",", limits: Limits | None = None
    ) -> Report:
        """The report that encode() would give or refuse with."""
        return self.encode_with(table, (), extra=extra, separator=separator, limits=limits)[1]

    def encode_with(
        self,
        table: Table,
        beside: Sequence[str],
        *,
        days: bool = False,
        extra: str = "refuse",
        separator: str = ",",
        limits: Limits | None = None,
    ) -> tuple[Codes, Report, dict[str, pl.Series]]:
        """Codes, a report, and the columns named in `beside` as they stand in the table, which is read once for all.

        Nothing is refused over a value: `report.refused` says how many the schema does not admit. Columns beside may be
        the schema's own; with `days`, others may be days, or times, of Parquet.
        """
        own = {column.name for column in self.columns}
        # Of columns that the schema does not have, only the names count: they are returned as they stand.
        others = [Numeric(name=name, bin_edges=(0, 1)) for name in beside if name not in own]
        asked, unknown = [*self.columns, *others], [column.name for column in others]
        lazy, rows = lazy_frame(
            table, asked, extra=extra, separator=separator, limits=limits or Limits(), days=unknown if days else ()
        )
        types, places = lazy.collect_schema(), {column.name: str(place) for place, column in enumerate(asked)}
        coded = [(column, places[column.name]) for column in self.columns]
        frame = collected(
            lazy.select(
                *(column.prepare(pl.col(place), types[place]).alias(place) for column, place in coded),
                *(pl.col(places[name]).alias(f"beside {number}") for number, name in enumerate(beside)),
            ),
            rows,
        )
        codes = np.empty((frame.height, len(coded)), np.int64, order="F")
        reports = []
        for position, (column, place) in enumerate(coded):
            codes[:, position], report = _coded(column, frame[place])
            reports.append(report)
        kept = {name: frame[f"beside {number}"] for number, name in enumerate(beside)}
        return codes, Report(len(codes), tuple(reports)), kept

    def frame(self, codes: npt.ArrayLike, *, uniform: Draws | None = None) -> pl.DataFrame:
        """Rows of codes as a typed frame, fit for Parquet or Arrow; missing values are null, or the number declared.

        Numbers are drawn uniformly from their bins, one draw per row and numeric column in the order of columns, or are
        the middles of the bins if there is no `uniform`.
        """
        array = self._domain.check_codes(codes)
        for column, values in zip(self.columns, array.T, strict=True):
            if column.missing != "null" and (values == MISSING).any():
                raise DomainError(f"codes of column {column.name} must not be missing")
        return pl.DataFrame(
            [
                column.restore(np.ascontiguousarray(values), uniform)
                for column, values in zip(self.columns, array.T, strict=True)
            ]
        )

    def decode(self, codes: npt.ArrayLike, *, uniform: Draws | None = None) -> dict[str, npt.NDArray[Any]]:
        """Rows of codes as arrays like those owners send: what frame() holds, with tokens where that has null.

        Arrays are int64, float64 or bool, and of objects for text and wherever a token of text (or None) may stand.
        """
        frame = self.frame(codes, uniform=uniform)
        return {column.name: _array(column, frame[column.name]) for column in self.columns}

    def write_csv(
        self,
        codes: npt.ArrayLike,
        target: str | PathLike[str] | BinaryIO,
        *,
        uniform: Draws | None = None,
        separator: str = ",",
    ) -> None:
        """Rows of codes as a CSV with a header, in UTF-8, quoted where need be: what encode() reads."""
        frame = self.frame(codes, uniform=uniform)
        texts = pl.DataFrame([column.written(frame[column.name]).alias(column.name) for column in self.columns])
        texts.write_csv(Path(target) if isinstance(target, str | PathLike) else target, separator=separator)


def _coded(column: Column, prepared: pl.Series) -> tuple[Codes, ColumnReport]:
    codes = column.classify(prepared)
    counts = np.bincount(-codes[codes < 0], minlength=1 - min(Fault))
    count = {fault: int(counts[-fault]) for fault in Fault}
    for fault, code in column.remedies.items():
        if count[fault]:
            codes[codes == fault] = code
    refused = sum(number for fault, number in count.items() if fault not in column.remedies)
    return codes, ColumnReport(column.name, **{fault.name.lower(): count[fault] for fault in Fault}, refused=refused)


def _array(column: Column, values: pl.Series) -> npt.NDArray[Any]:
    if column.missing_code is None or isinstance(column.token, int | float):
        return values.to_numpy()
    gone = values.is_null().to_numpy()
    array = np.empty(len(values), object)
    array[:] = values.to_list()
    array[gone] = column.token
    return array


def _parsed(text: str | bytes) -> object:
    try:
        return canonical.parse(text)
    except DomainError as error:
        raise DomainError(f"the schema cannot be read: {error}") from None
