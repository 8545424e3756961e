"""A schema: its columns in order, conversion to and from JSON, and tables to codes and back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt

from caps.basics import canonical
from caps.basics.later import Later
from caps.basics.naming import alike, shown, text_fault
from caps.data.domain import MISSING, Codes, Domain
from caps.data.schema.columns import Column, Draws, Fault, Numeric, check_fields, fail
from caps.data.schema.limits import Limits
from caps.data.schema.spreadsheet import escaped, is_formula
from caps.errors import DomainError

if TYPE_CHECKING:
    import polars as pl

    from caps.data.schema.tables import Table
else:
    pl = Later("polars")

VERSION = 1
MOST_SHOWN = 1000
"""Rows of a column whose numbers are kept."""


@dataclass(frozen=True)
class ColumnReport:
    """How many values of a column were unusual, and how many of these make the table refused."""

    name: str
    missing: int
    low: int
    high: int
    unknown: int
    unparsable: int
    refused: int


@dataclass(frozen=True)
class Report:
    """What encode() found, as counts. They are exact, so only the table's owner may see them.

    refused_rows: the first of them, by column, as a spreadsheet counts rows: the header is row 1. They are for whoever
    holds the file, and no document has them.
    """

    rows: int
    columns: tuple[ColumnReport, ...]
    refused_rows: Mapping[str, tuple[int, ...]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def refused(self) -> int:
        """The number of values that prevent the table from being encoded."""
        return sum(column.refused for column in self.columns)

    def to_json(self) -> dict[str, object]:
        """Returns a JSON object."""
        return {"rows": self.rows, "columns": [asdict(column) for column in self.columns]}


@dataclass(frozen=True, eq=False)
class Block:
    """Some rows of a table: their codes, and other columns as they stand in it. Codes of values that are not admitted
    are negative."""

    codes: Codes
    beside: Mapping[str, pl.Series]


class Tally:
    """What was found in the blocks of a table so far."""

    def __init__(self) -> None:
        self.rows = 0
        self._columns: Sequence[Column] = ()

    def begin(self, columns: Sequence[Column]) -> None:
        """The columns of the table that is about to be read."""
        self._columns = columns
        self._counts = [dict.fromkeys(Fault, 0) for _ in columns]
        self._refused = [0] * len(columns)
        self._first: list[list[int]] = [[] for _ in columns]

    def count(self, position: int, counts: Mapping[Fault, int], lacking: bool = False) -> int:
        """Count faults of a column. Returns how many of them have no remedy."""
        remedies = self.remedies(position, lacking)
        refused = sum(number for fault, number in counts.items() if fault not in remedies)
        for fault, number in counts.items():
            self._counts[position][fault] += number
        self._refused[position] += refused
        return refused

    def remedies(self, position: int, lacking: bool) -> dict[Fault, int]:
        """The codes that replace a column's faults."""
        return ({Fault.MISSING: MISSING} if lacking else {}) | self._columns[position].remedies

    def remedy(self, position: int, codes: Codes, lacking: bool) -> None:
        """Count the faults among a column's codes of one block, and put the codes that replace them in their place."""
        faults = np.bincount(-codes[codes < 0], minlength=1 - min(Fault))
        if not faults.any():
            return
        remedies, first = self.remedies(position, lacking), self._first[position]
        counts = {fault: int(faults[-fault]) for fault in Fault}
        if self.count(position, counts, lacking) and len(first) < MOST_SHOWN:
            unremedied = [fault.value for fault in Fault if fault not in remedies]
            found = np.flatnonzero(np.isin(codes, unremedied))[: MOST_SHOWN - len(first)]
            first += (found + self.rows + 2).tolist()
        for fault, code in remedies.items():
            if counts[fault]:
                codes[codes == fault] = code

    @property
    def refused(self) -> int:
        """How many values so far prevent the table from being encoded."""
        return sum(self._refused)

    @property
    def report(self) -> Report:
        """The counts of all blocks so far."""
        columns = tuple(
            ColumnReport(column.name, **{fault.name.lower(): counts[fault] for fault in Fault}, refused=refused)
            for column, counts, refused in zip(self._columns, self._counts, self._refused, strict=True)
        )
        first = {column.name: tuple(rows) for column, rows in zip(self._columns, self._first, strict=True) if rows}
        return Report(self.rows, columns, first)


class TableRefused(DomainError):
    """The table has values that its schema does not allow; `report` counts them."""

    def __init__(self, report: Report) -> None:
        parts = [f"{column.refused} in column {column.name}" for column in report.columns if column.refused]
        super().__init__(f"the table has values that the schema does not allow: {', '.join(parts)}")
        self.report = report


@dataclass(frozen=True)
class Schema:
    """The columns of a table, in the order of the domain. The other fields inform people and are checked if possible.

    `label` names the column that a classifier should predict, and `positive` the value of interest in it; `rows` is
    the size of the table the schema was written for.
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
            fail("columns", "must have at least one column")
        by_name: dict[str, Column] = {}
        for index, column in enumerate(self.columns):
            if column.name in by_name:
                fail(f"columns[{index}].name", "is given twice")
            by_name[column.name] = column
        if pair := alike(by_name):
            fail("columns", f"has names that look alike: {shown(pair[0])} and {shown(pair[1])}")
        for remark in ("name", "label", "positive", "note", "numeric_bin_rule"):
            words = getattr(self, remark)
            if not isinstance(words, str | None):
                fail(remark, "must be text")
            if (what := text_fault(words or "")) is not None:
                fail(remark, what)
        if self.rows is not None and (isinstance(self.rows, bool) or not isinstance(self.rows, int) or self.rows < 0):
            fail("rows", "must be an integer of at least 0")
        if self.label is not None and self.label not in by_name:
            fail("label", "must be the name of a column")
        if self.positive is not None:
            if self.label is None:
                fail("positive", "needs a label")
            if (texts := by_name[self.label].texts) and self.positive not in texts:
                fail("positive", "must be a value of the label column")
        self.domain()

    @cached_property
    def _domain(self) -> Domain:
        return Domain(tuple(column.attribute for column in self.columns))

    def domain(self) -> Domain:
        """Returns the columns as the attributes of a domain."""
        return self._domain

    def select(self, names: Iterable[str]) -> Schema:
        """Returns a schema of only these columns, for example one holder's, in this schema's order."""
        kept = set(self._domain.project(names).names)
        return Schema(tuple(column for column in self.columns if column.name in kept), name=self.name, note=self.note)

    def to_json(self) -> dict[str, object]:
        """Returns a JSON object without the fields that have their default."""
        given: dict[str, object] = {"version": VERSION}
        given |= {field.name: getattr(self, field.name) for field in fields(self)}
        given["columns"] = [column.to_json() for column in self.columns]
        return {name: value for name, value in given.items() if value is not None}

    @classmethod
    def from_json(cls, value: str | bytes | Mapping[str, object]) -> Schema:
        """Returns the schema in a JSON text, or in an object parsed from one. Raises DomainError that names the place.

        `version` is 1 by default. `domain_sizes`, if given, must agree with the columns.
        """
        document = _parsed(value) if isinstance(value, str | bytes) else value
        if not isinstance(document, Mapping):
            fail("", "a schema must be a JSON object")
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
        self,
        table: Table,
        *,
        extra: str = "refuse",
        lacking: Collection[str] = (),
        encoding: str | None = None,
        limits: Limits | None = None,
    ) -> tuple[Codes, Report]:
        """Returns the codes of the table's rows and a report. Raises TableRefused if the schema forbids a value.

        The table's columns may be in any order. `extra` says what to do with columns that the schema does not have:
        "ignore" or "refuse". `encoding`: of a CSV, where its bytes do not say it. `lacking`: as for frame().
        """
        tally = Tally()
        blocks = self.blocks(table, tally, extra=extra, lacking=lacking, encoding=encoding, limits=limits)
        codes = np.concatenate([np.empty((0, len(self.columns)), np.int64), *(block.codes for block in blocks)])
        if tally.report.refused:
            raise TableRefused(tally.report)
        return codes, tally.report

    def examine(
        self, table: Table, *, extra: str = "refuse", encoding: str | None = None, limits: Limits | None = None
    ) -> Report:
        """Returns the report that encode() would return or attach to its refusal."""
        tally = Tally()
        for _ in self.blocks(table, tally, extra=extra, encoding=encoding, limits=limits):
            pass
        return tally.report

    def blocks(
        self,
        table: Table,
        tally: Tally,
        beside: Sequence[str] = (),
        *,
        days: bool = False,
        extra: str = "refuse",
        lacking: Collection[str] = (),
        encoding: str | None = None,
        limits: Limits | None = None,
    ) -> Iterator[Block]:
        """The table a block of rows at a time, in memory that does not grow with it; it is read once.

        Nothing is refused over a value: `tally.report`, complete after the last block, says how many the schema does
        not admit. A block has the columns named in `beside` as they stand in the table. They may be the schema's own;
        with `days`, others may be days, or times, of a typed table.
        """
        from caps.data.schema.tables import opened

        own = {column.name for column in self.columns}
        # Of columns that the schema does not have, only the names count: they are returned as they stand.
        others = [Numeric(name=name, bin_edges=(0, 1)) for name in beside if name not in own]
        asked, unknown = [*self.columns, *others], [column.name for column in others]
        with ExitStack() as held:
            found = opened(
                table,
                asked,
                extra=extra,
                encoding=encoding,
                limits=limits or Limits(),
                held=held,
                days=unknown if days else (),
            )
            places = {column.name: str(place) for place, column in enumerate(asked)}
            coded = [(column, places[column.name]) for column in self.columns]
            expressions = [
                *(column.prepare(pl.col(place), found.types[place]).alias(place) for column, place in coded),
                *(pl.col(places[name]).alias(f"beside {number}") for number, name in enumerate(beside)),
            ]
            tally.begin(self.columns)
            for frame in found.blocks(expressions):
                codes = np.empty((frame.height, len(coded)), np.int64, order="F")
                for position, (column, place) in enumerate(coded):
                    codes[:, position] = column.classify(frame[place])
                    tally.remedy(position, codes[:, position], column.name in lacking)
                tally.rows += frame.height
                yield Block(codes, {name: frame[f"beside {number}"] for number, name in enumerate(beside)})

    def frame(
        self, codes: npt.ArrayLike, *, uniform: Draws | None = None, lacking: Collection[str] = ()
    ) -> pl.DataFrame:
        """Returns rows of codes as a typed frame for Parquet or Arrow; missing values are null, or the number declared.

        Numbers are drawn uniformly from their bins, one draw per row and numeric column in the order of columns.
        Without `uniform` they are the middles of the bins. `lacking` names columns that may be missing although the
        schema refuses that: a person in a joint table may be in the table of another holder only.
        """
        array = self._domain.check_codes(codes)
        for column, values in zip(self.columns, array.T, strict=True):
            if column.missing != "null" and column.name not in lacking and (values == MISSING).any():
                raise DomainError(f"column {column.name} must have no missing codes")
        return pl.DataFrame(
            [
                column.restore(np.ascontiguousarray(values), uniform)
                for column, values in zip(self.columns, array.T, strict=True)
            ]
        )

    @cached_property
    def has_formulas(self) -> bool:
        """Whether a spreadsheet might take a header or a text of some column for a formula."""
        return any(is_formula(column.name) or column.formulas for column in self.columns)

    def decode(self, codes: npt.ArrayLike, *, uniform: Draws | None = None) -> dict[str, npt.NDArray[Any]]:
        """Returns rows of codes as arrays like the owners' own: the values of frame(), with tokens in place of nulls.

        Arrays are int64, float64 or bool; they are object arrays for text and where a token may be text or None.
        """
        frame = self.frame(codes, uniform=uniform)
        return {column.name: _array(column, frame[column.name]) for column in self.columns}

    def write_csv(
        self,
        codes: npt.ArrayLike,
        target: str | PathLike[str] | BinaryIO,
        *,
        uniform: Draws | None = None,
        lacking: Collection[str] = (),
        separator: str = ",",
        spreadsheet: bool = False,
    ) -> None:
        """Writes rows of codes as a CSV: with a header, in UTF-8, quoted where needed.

        encode() can read it, unless a value is missing in a column that the schema lets nobody lack. With
        `spreadsheet`, texts that look like formulas are escaped, which encode() does not undo.
        """
        frame = self.frame(codes, uniform=uniform, lacking=lacking)
        texts = pl.DataFrame([column.written(frame[column.name]).alias(column.name) for column in self.columns])
        if len(self.columns) == 1:  # an empty line would be no row at all
            texts = texts.with_columns(pl.col(pl.String).fill_null(""))
        if spreadsheet:
            texts = pl.DataFrame([_for_spreadsheet(column, texts[column.name]) for column in self.columns])
        texts.write_csv(Path(target) if isinstance(target, str | PathLike) else target, separator=separator)


def _for_spreadsheet(column: Column, written: pl.Series) -> pl.Series:
    """A column of a CSV with its formulas escaped; numbers stay as they are, whatever their sign."""
    if column.formulas:
        written = written.replace({text: escaped(text) for text in column.formulas})
    return written.alias(escaped(column.name))


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
