"""How many persons meet some conditions, with a confidence interval: from a release's noisy counts, not from its rows.

docs/analyst.md derives what is computed here. In short: if a measured table has all columns of a question, its noisy
counts answer it without bias and with a known variance. If none has, no interval of the model's can be trusted, because
the error of a model where nothing was measured is unknown; but measured tables with some of the columns still bound the
answer (Fréchet), whatever the data are. The synthetic rows only say where between the bounds the model puts it.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import product
from math import inf, isnan, log, sqrt
from statistics import NormalDist
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from caps.audit.measurements import labels
from caps.data.domain import MISSING, Clique, Codes
from caps.data.schema import Boolean, Column, Date, Numeric, Schema
from caps.dp.privacy import Laplace
from caps.errors import DomainError
from caps.study import Manifest
from caps.wire.releases import Measurements

Value: TypeAlias = str | int | float | bool | date | None
Condition: TypeAlias = (
    Value | Sequence[Value] | tuple[float | None, float | None] | tuple[date | str | None, date | str | None]
)
"""A value or a list of values that a column may have; for a column of numbers, a pair (from, to) of edges of its bins,
None for an open end. A label of the column's cells, as measurements have it, is a value too."""
Where: TypeAlias = Mapping[str, Condition]
Basis: TypeAlias = Literal["measured", "bounded", "rows"]
_Cells: TypeAlias = dict[str, tuple[int, ...]]

MOST_GROUPS = 10_000
LEAST_LEVEL, LARGEST_LEVEL = 0.8, 0.999


@dataclass(frozen=True, slots=True)
class Estimate:
    """How many persons are in a group.

    count: the estimate. low, high: the interval that contains the true number with probability `level` over the noise,
    for each estimate by itself; None where nothing is known. basis: `measured` if the interval follows from noise in
    tables with all columns of the question; `bounded` if it follows from tables with some of them, and `count` is what
    the model says between the bounds; `rows` if there are no measurements, so there is no interval. rows: what the
    synthetic rows say, as a number of persons. tables: the measured tables that were used.
    """

    group: Mapping[str, str]
    count: float
    low: float | None
    high: float | None
    level: float
    basis: Basis
    rows: float | None
    tables: tuple[Clique, ...]


class _Statistic(NamedTuple):
    """An unbiased estimate of a number of persons, with the standard deviation of its noise."""

    value: float
    deviation: float
    tables: tuple[Clique, ...]


class _Table(NamedTuple):
    """A measured table."""

    attributes: Clique
    counts: npt.NDArray[np.float64]
    variance: float


class Release:
    """What an analyst has of a release: its study, its noisy counts if they are published, and its synthetic rows.

    rows: codes, one column for each of the schema's. persons: what the rows stand for.
    """

    def __init__(
        self, manifest: Manifest, measurements: Measurements | None, rows: Codes | None = None, *, persons: float = 0.0
    ) -> None:
        self.manifest = manifest
        self._columns = {column.name: column for column in manifest.schema_.columns}
        self._names = {name: labels(manifest.schema_, name) for name in self._columns}
        self._nullable = {one.name for one in manifest.domain.attributes if one.nullable}
        self._groups = {name: number for number, group in enumerate(manifest.absent_together) for name in group}
        self._rows = rows
        self._scale = 0.0 if rows is None or not len(rows) else persons / len(rows)
        found = () if measurements is None else measurements.measurements
        self._tables = [
            _Table(one.attributes, np.array(one.values, np.float64).reshape(one.shape), one.sigma**2) for one in found
        ]
        self._heavy_tails = any(one.noise == Laplace.kind for one in found)

    def estimate(
        self, where: Where | None = None, group_by: Sequence[str] | str = (), *, level: float = 0.95
    ) -> list[Estimate]:
        """One estimate for each combination of the groups' categories. Raises DomainError for a mistaken question.

        Each interval holds by itself: of 100 intervals at 0.95, about 5 miss. `level` is from 0.8 to 0.999.
        """
        if not LEAST_LEVEL <= level <= LARGEST_LEVEL:
            raise DomainError(f"the level must be from {LEAST_LEVEL} to {LARGEST_LEVEL}, not {level}")
        groups = [group_by] if isinstance(group_by, str) else list(group_by)
        conditions = cells_of(self.manifest.schema_, where or {})
        for name in groups:
            self._column(name)
            if name in conditions:
                raise DomainError(f"{name}: a column is either a condition or a group, not both")
        if len(set(groups)) < len(groups):
            raise DomainError("a column is named twice in the groups")
        sizes = [len(self._names[name]) for name in groups]
        if np.prod(sizes, dtype=float) > MOST_GROUPS:
            raise DomainError(f"more than {MOST_GROUPS:,} groups; group by fewer columns")
        found = []
        for codes in product(*map(range, sizes)):
            cells: _Cells = conditions | {name: (code,) for name, code in zip(groups, codes, strict=True)}
            group = {name: self._names[name][code] for name, code in zip(groups, codes, strict=True)}
            found.append(self._estimated(group, cells, level))
        return found

    def _estimated(self, group: Mapping[str, str], cells: _Cells, level: float) -> Estimate:
        rows = self._counted(cells)
        statistic = self._measured(cells)
        if statistic is None and not cells:
            statistic = self._everybody()
        if statistic is not None:
            width = self._factor((1 - level) / 2) * statistic.deviation
            low, high = max(0.0, statistic.value - width), max(0.0, statistic.value + width)
            count = max(0.0, statistic.value)
            return Estimate(group, count, low, high, level, "measured", rows, statistic.tables)
        low, high, tables = self._bounds(cells, level)
        if not tables:
            return Estimate(group, rows or 0.0, None, None, level, "rows", rows, ())
        middle = (low + high) / 2 if rows is None else min(max(rows, low), high)
        return Estimate(group, middle, low, None if high == inf else high, level, "bounded", rows, tables)

    def _measured(self, cells: _Cells, having: Collection[int] = ()) -> _Statistic | None:
        """The mean of what each measured table with these columns says, weighted by the inverse of its variance.

        having: groups of columns that the persons have, besides those of `cells`. A table in which some of these
        persons may be missing, for another of its columns, counts too few, and is passed over.
        """
        weights, weighted, tables = 0.0, 0.0, []
        for table in self._usable(cells, having):
            index = tuple(np.array(cells.get(name, range(size))) for name, size in zip(*_axes(table), strict=True))
            part = table.counts[np.ix_(*index)]
            weight = 1 / (part.size * table.variance)
            weights, weighted = weights + weight, weighted + weight * float(part.sum())
            tables.append(table.attributes)
        return _Statistic(weighted / weights, 1 / sqrt(weights), tuple(tables)) if tables else None

    def _usable(self, names: Iterable[str], having: Collection[int]) -> Iterator[_Table]:
        """The measured tables with these columns, in which nobody is missing because of their other columns."""
        wanted = set(names)
        present = {self._groups[name] for name in wanted if name in self._groups} | set(having)
        for table in self._tables:
            own = set(table.attributes)
            needed = {self._groups[name] for name in own if name in self._groups}
            if wanted <= own and self._nullable.isdisjoint(own - wanted) and needed == present:
                yield table

    def _everybody(self) -> _Statistic | None:
        """The number of persons, if all have one of two groups of columns: those of each, less those of both.

        The three numbers come from different tables, so their noise is independent.
        """
        if set(self._groups) != set(self._columns) or set(self._groups.values()) != {0, 1}:
            return None
        parts = [self._measured({}, having) for having in ((0,), (1,), (0, 1))]
        first, second, both = parts
        if first is None or second is None or both is None:
            return None
        deviation = sqrt(sum(part.deviation**2 for part in (first, second, both)))
        tables = (*first.tables, *second.tables, *both.tables)
        return _Statistic(first.value + second.value - both.value, deviation, tables)

    def _bounds(self, cells: _Cells, level: float) -> tuple[float, float, tuple[Clique, ...]]:
        """Limits of the number of persons, from measured tables that have some of the columns."""
        if not cells:
            return self._bounds_of_everybody(level)
        wanted = set(cells)
        parts = {frozenset(wanted.intersection(table.attributes)) for table in self._tables}
        pieces = [(part, self._measured(_only(cells, part))) for part in parts if part]
        known = {part: found for part, found in pieces if found is not None}
        largest = sorted(
            (part for part in known if not any(part < other for other in known)),
            key=lambda part: (-len(part), known[part].deviation, sorted(part)),
        )
        if not largest:
            return 0.0, inf, ()
        # Those who meet all conditions are among those who meet some. All tails together are (1 - level) / 2.
        factor = self._factor((1 - level) / 2 / len(largest))
        high = min(max(0.0, known[part].value + factor * known[part].deviation) for part in largest)
        low = self._least(cells, largest, known, level)
        tables = tuple(dict.fromkeys(table for part in largest for table in known[part].tables))
        return min(low, high), high, tables

    def _bounds_of_everybody(self, level: float) -> tuple[float, float, tuple[Clique, ...]]:
        """At least as many as have any group of columns; at most all groups together, if nobody lacks all of them."""
        groups = sorted(set(self._groups.values()))
        found = {group: self._measured({}, (group,)) for group in groups}
        known = [one for one in found.values() if one is not None]
        if not known:
            return 0.0, inf, ()
        factor = self._factor((1 - level) / 2 / len(known))
        low = max(0.0, *(one.value - factor * one.deviation for one in known))
        high = inf
        if len(known) == len(groups) and set(self._groups) == set(self._columns):
            width = self._factor((1 - level) / 2) * sum(one.deviation for one in known)
            high = max(low, sum(one.value for one in known) + width)
        return low, high, tuple(dict.fromkeys(table for one in known for table in one.tables))

    def _least(
        self,
        cells: _Cells,
        parts: Sequence[frozenset[str]],
        known: Mapping[frozenset[str], _Statistic],
        level: float,
    ) -> float:
        """|A and B| >= |A| + |B| - |C|, if C contains A and B: here, those who meet the conditions that A and B share.

        One after another until all columns are covered, in an order that does not depend on any count. Deviations are
        added, because the noise of terms may be the same.
        """
        value = deviation = 0.0
        covered: frozenset[str] = frozenset()
        for part in parts:
            if part <= covered:
                continue
            value, deviation = value + known[part].value, deviation + known[part].deviation
            if covered:
                shared = self._measured(_only(cells, covered & part))
                if shared is None:
                    return 0.0
                value, deviation = value - shared.value, deviation + shared.deviation
            covered |= part
        if covered != set(cells):
            return 0.0
        return max(0.0, value - self._factor((1 - level) / 2) * deviation)

    def _factor(self, tail: float) -> float:
        """How many standard deviations noise exceeds with this probability, on one side.

        Sums of Laplace noise have lighter tails than one value of it, and heavier ones than normal noise.
        """
        normal = NormalDist().inv_cdf(1 - tail)
        return max(normal, log(1 / (2 * tail)) / sqrt(2)) if self._heavy_tails else normal

    def _counted(self, cells: _Cells) -> float | None:
        """What the synthetic rows say, as a number of persons."""
        if self._rows is None:
            return None
        order = list(self._columns)
        chosen = np.ones(len(self._rows), bool)
        for name, codes in cells.items():
            chosen &= np.isin(self._rows[:, order.index(name)], codes)
        return self._scale * int(np.count_nonzero(chosen))

    def _column(self, name: str) -> Column:
        return _column_of(self.manifest.schema_, name)


def _column_of(schema: Schema, name: str) -> Column:
    """A column by its name. Raises DomainError with the names there are."""
    for column in schema.columns:
        if column.name == name:
            return column
    raise DomainError(f"there is no column {name}; the release has {', '.join(one.name for one in schema.columns)}")


def cells_of(schema: Schema, where: Where) -> _Cells:
    """The cells of each column that meet its condition. Raises DomainError with what could be meant."""
    return {name: _matching(_column_of(schema, name), labels(schema, name), given) for name, given in where.items()}


def names_of(schema: Schema, cells: Mapping[str, Sequence[int]]) -> dict[str, list[str]]:
    """The public names of these cells."""
    return {name: [labels(schema, name)[code] for code in codes] for name, codes in cells.items()}


def _matching(column: Column, names: Sequence[str], given: Condition) -> tuple[int, ...]:
    if isinstance(column, Numeric | Date) and isinstance(given, tuple):
        return _between(column, given)
    values: Iterable[Any] = given if isinstance(given, list | tuple | set | frozenset) else [given]
    codes = sorted({_code(column, names, one) for one in values})
    if not codes:
        raise DomainError(f"{column.name}: name at least one value")
    return tuple(codes)


def _axes(table: _Table) -> tuple[Clique, tuple[int, ...]]:
    return table.attributes, table.counts.shape


def _only(cells: _Cells, names: Iterable[str]) -> _Cells:
    return {name: cells[name] for name in names}


def _between(column: Numeric | Date, given: tuple[Any, ...]) -> tuple[int, ...]:
    """The bins between two edges; of days, from the first day of one to the last day of another."""
    if len(given) != 2:
        raise DomainError(f"{column.name}: a range has two ends, (from, to); None leaves one open")
    if isinstance(column, Date):
        firsts, lasts = column.first_days, column.last_days
        given = tuple(_day(column, end) for end in given)
        shown = f"{firsts[0]} to {lasts[-1]}, by {column.by}" if column.by else ", ".join(column.texts)
        what = ("the first day of a bin", "the last day of a bin")
        places = [_place(column, given[0], firsts, 0, what[0], shown)]
        places += [_place(column, given[1], lasts, column.cells - 1, what[1], shown) + 1]
    else:
        shown = ", ".join(f"{edge:g}" for edge in column.bin_edges)
        what = ("an edge of its bins", "an edge of its bins")
        ends = zip(given, (0, column.cells), what, strict=True)
        places = [_place(column, end, column.bin_edges, open_end, words, shown) for end, open_end, words in ends]
    if places[0] >= places[1]:
        raise DomainError(f"{column.name}: the range is empty")
    return tuple(range(*places))


def _place(column: Column, end: Any, edges: Sequence[Any], open_end: int, what: str, shown: str) -> int:
    if end is not None and end not in edges:
        raise DomainError(f"{column.name}: {end} is not {what}, which are counted whole: {shown}")
    return open_end if end is None else edges.index(end)


def _day(column: Date, end: date | str | None) -> date | None:
    try:
        return date.fromisoformat(end) if isinstance(end, str) else end
    except ValueError:
        raise DomainError(f"{column.name}: a range goes from a day to a day, as 2025-01-01 and 2025-12-31") from None


def _code(column: Column, names: Sequence[str], value: Value) -> int:
    """The cell of a value. Raises DomainError with what could be meant."""
    if value is None or (isinstance(value, float) and isnan(value)):
        value = "missing"
        if column.missing_code is None or column.missing_code == MISSING:
            raise DomainError(f"{column.name}: missing values are not counted in this study")
    if isinstance(value, bool) and isinstance(column, Boolean):
        return int(value)
    if isinstance(column, Numeric) and not isinstance(value, str):
        raise DomainError(f"{column.name}: its values are counted in bins; give a range (from, to) of edges")
    if str(value) not in names:
        raise DomainError(f"{column.name}: there is no such value; it has {', '.join(names)}")
    return list(names).index(str(value))


def read_rows(manifest: Manifest, lines: Iterable[bytes | str]) -> Codes:
    """The codes of synthetic rows in NDJSON. Raises DomainError with the row and the column if one does not fit."""
    columns = manifest.schema_.columns
    readers = [_reader(column) for column in columns]
    found = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        row = json.loads(line)
        try:
            found.append([read(row[column.name]) for column, read in zip(columns, readers, strict=True)])
        except (KeyError, ValueError, TypeError):
            raise DomainError(f"row {number} is not one of this study's schema") from None
    return np.array(found, np.int64).reshape(-1, len(columns))


def _reader(column: Column) -> Any:
    missing = MISSING if column.missing_code is None else column.missing_code
    if isinstance(column, Numeric):
        place = bisect_right if column.side == "right" else bisect_left
        numbers = {token for token in column.missing_values if not isinstance(token, str)}

        def number(value: Any) -> int:
            if value is None or value in numbers:
                return missing
            return min(max(place(column.bin_edges, value) - 1, 0), column.cells - 1)

        return number
    if isinstance(column, Date) and column.publish == "day":
        return lambda value: missing if value is None else column.bin_of(date.fromisoformat(value))
    codes: dict[Any, int] = {text: code for code, text in enumerate(column.texts)}
    if isinstance(column, Boolean):
        codes |= {False: 0, True: 1}
    codes |= dict.fromkeys((None, *column.missing_values), missing)
    return codes.__getitem__
