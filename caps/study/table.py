"""An owner's table is read, checked against a study, and reported on by counts, never by values.

It is read a block of rows at a time, so memory does not grow with it but for what a row's place costs: a few bytes if
rows have numbered slots, its identifier if they are joined by a key.

The holder reads a table in this way when it is loaded, and `caps table check` before that, without a service.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from caps.data.joinkey import Ids, KeyReader, KeyRefused, KeyReport
from caps.data.kept import Keeper, SmallCodes, selected
from caps.data.schema import Block, ColumnReport, Limits, Numeric, Report, Schema, TableRefused, Tally
from caps.data.schema.columns import Column, Fault
from caps.data.schema.tables import HeaderRefused, LineRefused, Source, header_of
from caps.errors import DomainError
from caps.study.manifest import Holder, Manifest

NO_ROWS = "the table has no rows"
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
    by a key, the hashed identifier of each."""

    codes: SmallCodes
    slots: npt.NDArray[np.int64] | None = None
    ids: Ids | None = None


Given = Mapping[str, pl.Series]
"""The columns of a study as they stand in some rows of a table."""


def read_table(
    table: Path | Source,
    manifest: Manifest,
    holder: Holder,
    limits: Limits,
    *,
    encoding: str | None = None,
    extra: str = "refuse",
    folder: Path | None = None,
    watch: Callable[[Given], None] | None = None,
) -> tuple[Rows, Counted]:
    """The table in a file or a source, which is read once. Raises TableDoesNotFit.

    encoding, extra: as for `Schema.encode`. folder: where codes may be kept in a file, without a name, while the rows
    are in use. watch: is given every block of the table.
    """
    reader = _Reader(manifest, holder, folder, watch)
    limits = replace(limits, rows=min(limits.rows, _most_rows(manifest, holder)))
    refusal = None
    try:
        return reader.read(table, encoding=encoding, extra=extra, limits=limits)
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


class _Reader:
    """Reads one table for one study."""

    def __init__(
        self, manifest: Manifest, holder: Holder, folder: Path | None, watch: Callable[[Given], None] | None
    ) -> None:
        self._manifest, self._holder, self._folder, self._watch = manifest, holder, folder, watch
        self._schema: Schema = manifest.columns_of(holder)
        self._tally = Tally()

    def read(self, table: Path | Source, **options: Any) -> tuple[Rows, Counted]:
        joined = self._holder.brings == "columns" and self._manifest.join is not None
        return self._joined(table, options) if joined else self._placed(table, options)

    def _blocks(self, table: Path | Source, beside: Sequence[str], options: Mapping[str, Any]) -> Iterator[Block]:
        """The blocks, of which codes are kept as long as nothing is refused."""
        own = [column.name for column in self._schema.columns] if self._watch is not None else []
        for block in self._schema.blocks(table, self._tally, [*beside, *own], **options):
            if self._watch is not None:
                self._watch({name: block.beside[name] for name in own})
            yield block

    def _keeping(self, held: ExitStack) -> Callable[[Block], None]:
        keeper = self._keeper = held.enter_context(Keeper(self._schema.domain(), self._folder))

        def keep(block: Block) -> None:
            if not self._tally.refused:
                keeper.add(block.codes)

        return keep

    def _placed(self, table: Path | Source, options: Mapping[str, Any]) -> tuple[Rows, Counted]:
        """The table of a holder whose rows have their places, or are counted."""
        holder, manifest = self._holder, self._manifest
        alignment = manifest.alignment if holder.brings == "columns" else None
        places = None
        if alignment is not None and alignment.column is not None:
            places = _Slots(alignment.column, alignment.slots)
        with ExitStack() as held:
            keep = self._keeping(held)
            for block in self._blocks(table, [] if places is None else [places.name], options):
                if places is not None:
                    places.add(block.beside[places.name])
                keep(block)
            found = self._tally.report
            report = Counted(found.rows, found.columns, None if places is None else places.counts)
            check_values(found, report)
            if report.alignment is not None and report.alignment.refused:
                refused, name = report.alignment.refused, report.alignment.name
                raise TableDoesNotFit(f"column {name} has {refused} slot numbers that the study does not admit", report)
            if alignment is not None and found.rows > alignment.slots:
                raise TableDoesNotFit(f"the table has more rows than the study's {alignment.slots} slots", report)
            check_counted_rows(found.rows, manifest, holder, report)
            return Rows(self._keeper.codes(), None if places is None else places.numbers()), report

    def _joined(self, table: Path | Source, options: Mapping[str, Any]) -> tuple[Rows, Counted]:
        """The table of a holder whose rows are joined by a key: the rows with a usable key, with hashed identifiers."""
        assert self._manifest.join is not None
        assert self._holder.capacity is not None
        key, capacity = self._manifest.join.key, self._holder.capacity
        names = [column.name for column in key.columns]
        keys = KeyReader(key, self._manifest.study_id)
        with ExitStack() as held:
            keep = self._keeping(held)
            for block in self._blocks(table, names, {**options, "days": True}):
                keys.add({name: block.beside[name] for name in names})
                keep(block)
            found = self._tally.report
            report = Counted(found.rows, found.columns)
            check_values(found, report)
            refusal = None
            try:
                kept, ids, report.join = keys.finish()
            except KeyRefused as error:
                report.join = error.report
                refusal = TableDoesNotFit(str(error), report)
            if refusal is not None:
                raise refusal
            if len(kept) > capacity:
                detail = f"the table has more rows than the {capacity} that the study has room for"
                raise TableDoesNotFit(detail, report)
            if not len(kept):
                raise DomainError(NO_ROWS)
            codes = selected(self._keeper.codes(), kept, self._schema.domain(), self._folder)
            return Rows(codes, ids=ids), report


def check_counted_rows(rows: int, manifest: Manifest, holder: Holder, report: Counted) -> None:
    """Raises TableDoesNotFit if a study cannot count so many rows of whole persons, or there is none."""
    most = manifest.most_persons
    if holder.brings == "rows" and rows > most:
        raise TableDoesNotFit(f"the table has more rows than the {most} that the study can count", report)
    if not rows:
        raise DomainError(NO_ROWS)


def _most_rows(manifest: Manifest, holder: Holder) -> int:
    """How many rows are looked at: far more than the study admits, so that an owner who is near gets a report."""
    if holder.brings == "rows":
        admitted = manifest.most_persons
    else:
        admitted = manifest.alignment.slots if manifest.alignment is not None else holder.capacity or 0
    return max(_REPORTED, 4 * admitted)


def check_values(found: Report, report: Counted) -> None:
    """Raises TableDoesNotFit if the schema does not admit a value."""
    if found.refused:
        raise TableDoesNotFit(str(TableRefused(found)), report, rows=found.refused_rows)


class _Slots:
    """The slot of each row, and counts of the slot numbers that are not admitted."""

    def __init__(self, name: str, slots: int) -> None:
        self.name = name
        self._column = Numeric(name=name, bin_edges=(0, slots), integer=True, outside="refuse")
        self._taken = np.zeros(slots, np.bool_)
        self._parts: list[npt.NDArray[np.int32]] = []
        self._count = dict.fromkeys(Fault, 0)
        self._rows = self._fit = 0

    def add(self, given: pl.Series) -> None:
        """The numbers of some more rows."""
        prepared = given.to_frame("slot").select(self._column.prepare(pl.col("slot"), given.dtype))
        values = prepared.to_series().cast(pl.Float64)
        kinds = self._column.classify(values)
        numbers = values.to_numpy()[kinds >= 0].astype(np.int32)
        for fault in Fault:
            self._count[fault] += int((kinds == fault).sum())
        self._rows += len(values)
        self._fit += len(numbers)
        self._taken[numbers] = True
        self._parts.append(numbers)

    @property
    def counts(self) -> SlotCounts:
        """What was found."""
        duplicate = self._fit - int(np.count_nonzero(self._taken))
        return SlotCounts(
            name=self.name,
            missing=self._count[Fault.MISSING],
            out_of_range=self._count[Fault.LOW] + self._count[Fault.HIGH],
            unparsable=self._count[Fault.UNPARSABLE],
            duplicate=duplicate,
            refused=self._rows - self._fit + duplicate,
        )

    def numbers(self) -> npt.NDArray[np.int64]:
        """The slot of each row, if none is refused."""
        return np.concatenate([np.empty(0, np.int32), *self._parts]).astype(np.int64)
