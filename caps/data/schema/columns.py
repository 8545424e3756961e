"""The kinds of columns. Each knows its fields, how to turn a value into a code, and how to turn a code into a value.

An error in a declaration begins with its place, for example `bin_edges[2]`.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import dataclass, fields
from datetime import date
from enum import IntEnum
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from caps.basics.later import Later
from caps.basics.naming import alike, fault, shown, text_fault
from caps.data.domain import MAX_SIZE, MISSING, Attribute, Codes
from caps.data.schema.calendar import EPOCH, ISO, PERIODS, Spelling, day_of, spans
from caps.data.schema.spreadsheet import is_formula
from caps.errors import DomainError

if TYPE_CHECKING:
    import polars as pl
else:
    pl = Later("polars")

Draws: TypeAlias = Callable[[int], npt.NDArray[np.float64]]
"""Returns n independent draws, uniform on [0, 1)."""

MAX_TEXT = 1024
"""The most characters in a category or token."""
MAX_TOKENS = 1000
"""The most ways in which a missing value may be written."""
_INTEGER = re.compile(r"-?[0-9]{1,15}")
_EXACT = (1 << 53) - 1
"""Integers up to here are exact as float64, and so are their neighbours."""


_NO_DAY = -(1 << 30)
"""In place of the number of a day: what stands there is none."""


class Fault(IntEnum):
    """What classify() returns in place of a category."""

    MISSING = MISSING
    UNPARSABLE = -2
    UNKNOWN = -3
    LOW = -4
    HIGH = -5


@dataclass(frozen=True, kw_only=True)
class Column(ABC):
    """What all kinds have in common: a name, and a rule for missing values.

    None, NaN, the empty field (unless it is a category) and `missing_values` count as missing. Missing values form an
    extra, last category ("category": the default if missing_values are given), have the code -1 ("null"), or are
    refused ("refuse": the default otherwise).
    """

    kind: ClassVar[str]
    takes_days: ClassVar[bool] = False
    """Whether values may be days, or times, of Parquet and of arrays."""

    name: str
    missing: str = ""
    missing_values: tuple[str | int | float, ...] = ()
    note: str = ""

    def __post_init__(self) -> None:
        try:
            Attribute(self.name, 1)
        except DomainError as error:
            fail("name", str(error))
        _check_letters("name", self.name)
        if not isinstance(self.note, str):
            fail("note", "must be text")
        if (what := text_fault(self.note)) is not None:
            fail("note", what)
        self._set("missing_values", _listed("missing_values", self.missing_values))
        if self.missing == "":
            self._set("missing", "category" if self.missing_values else "refuse")
        if self.missing not in ("category", "null", "refuse"):
            fail("missing", 'must be "category", "null" or "refuse"')
        if len(self.missing_values) > MAX_TOKENS:
            fail("missing_values", f"must be at most {MAX_TOKENS}, not {len(self.missing_values)}")
        for place, token in _places("missing_values", self.missing_values):
            self._check_token(place, token)
        _refuse_repeats("missing_values", [str(token) for token in self.missing_values])
        self._check()
        if not 1 <= self.size <= MAX_SIZE:
            fail(self._extent, f"must give 1 to {MAX_SIZE} categories, not {self.size}")
        texts = set(self.texts)
        for place, token in _places("missing_values", self.missing_values):
            if token in texts:
                fail(place, "is also a value of the column")
        if pair := alike((*self.texts, *map(str, self.missing_values))):
            fail(self._extent, f"has texts that look alike: {shown(pair[0])} and {shown(pair[1])}")
        if self.missing != "refuse" and not self.missing_values and "" in self.texts:
            fail("missing_values", "must say how a missing value is written, because the empty field is a value")

    _extent: ClassVar[str]

    @property
    @abstractmethod
    def cells(self) -> int:
        """The number of categories, without the one for missing values."""

    @property
    def texts(self) -> Sequence[str]:
        """The texts that are values of the column; text i has code i."""
        return ()

    @abstractmethod
    def _check(self) -> None:
        """Check the fields of this kind and bring them to their normal form. Raises DomainError if one is wrong."""

    @abstractmethod
    def prepare(self, given: pl.Expr, dtype: pl.DataType) -> pl.Expr:
        """Turns the table's text, numbers or booleans into what classify() expects."""

    @abstractmethod
    def classify(self, prepared: pl.Series) -> Codes:
        """Returns a category or a Fault for each row."""

    @abstractmethod
    def _values(self, codes: Codes, uniform: Draws | None) -> pl.Series:
        """Returns a value for each code; all codes are below `cells`."""

    def _set(self, field: str, value: object) -> None:
        object.__setattr__(self, field, value)

    def _check_token(self, place: str, token: object) -> None:
        check_text(place, token)

    @property
    def size(self) -> int:
        """The number of categories, including the one for missing values."""
        return self.cells + (self.missing == "category")

    @property
    def attribute(self) -> Attribute:
        """The column as an attribute of a Domain."""
        return Attribute(self.name, self.size, nullable=self.missing == "null")

    @property
    def missing_code(self) -> int | None:
        """The code of a missing value; None if missing values are refused."""
        return {"category": self.cells, "null": MISSING, "refuse": None}[self.missing]

    @property
    def token(self) -> str | int | float | None:
        """How decode() writes a missing value; None, an empty field in a CSV, if none was declared."""
        return self.missing_values[0] if self.missing_values else None

    @cached_property
    def tokens(self) -> list[str]:
        """Texts that mean missing."""
        return [str(token) for token in self.missing_values] + [""] * ("" not in [*self.texts, *self.missing_values])

    @cached_property
    def formulas(self) -> list[str]:
        """Texts of the column that a spreadsheet might compute."""
        tokens = [token for token in self.missing_values if isinstance(token, str)]
        return [text for text in (*self.texts, *tokens) if is_formula(text)]

    @property
    def remedies(self) -> dict[Fault, int]:
        """The code that replaces each tolerated fault; a table with any other fault is refused."""
        return {} if self.missing_code is None else {Fault.MISSING: self.missing_code}

    def spell(self, value: bool | date) -> str:
        """The text of a truth value, or of a day or time."""
        return value.isoformat() if isinstance(value, date) else "true" if value else "false"

    def restore(self, codes: Codes, uniform: Draws | None) -> pl.Series:
        """Returns values in the column's own type; missing ones are null, or the number declared for them."""
        missing = (codes == MISSING) | (codes == self.cells)
        if not missing.any():
            return self._values(codes, uniform).alias(self.name)
        values = self._values(np.where(missing, 0, codes), uniform)
        number = None if isinstance(self.token, str) else self.token
        return values.zip_with(~pl.Series(missing), pl.Series([number]).cast(values.dtype)).alias(self.name)

    def written(self, values: pl.Series) -> pl.Series:
        """Turns what restore() returned into text for a CSV; null, an empty field, for missing values without a token.

        A field without quotes is missing to whoever reads it; one with quotes would be an empty text to some.
        """
        if self.missing_code is None and not values.null_count():
            return values
        texts = values.cast(pl.String)
        return texts if self.token is None else texts.fill_null(str(self.token))

    def to_json(self) -> dict[str, object]:
        """Returns a JSON object without the fields that have their default."""
        given: dict[str, object] = {"name": self.name, "kind": self.kind}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.default is NO_DEFAULT or value != field.default:
                given[field.name] = [_plain(item) for item in value] if isinstance(value, tuple) else value
        if self.missing == "refuse" and not self.missing_values:
            del given["missing"]
        return given

    @staticmethod
    def from_json(value: object) -> Column:
        """Returns the column that a JSON object describes. Raises DomainError; its message begins with the place."""
        if not isinstance(value, Mapping):
            fail("", "must be an object")
        given = dict(value)
        kind = KINDS.get(str(given.pop("kind", None)))
        if kind is None:
            fail("kind", f"must be one of {', '.join(KINDS)}")
        if "missing_value" in given:
            if "missing_values" in given:
                fail("missing_value", "must not be given together with missing_values")
            given["missing_values"] = [given.pop("missing_value")]
        check_fields(kind, given)
        return kind(**given)


@dataclass(frozen=True, kw_only=True)
class Categorical(Column):
    """One of the texts in `categories`; `other`, if given, is the category for every text not listed."""

    kind = "categorical"
    _extent = "categories"

    categories: tuple[str, ...]
    ordered: bool = False
    other: str | None = None

    def _check(self) -> None:
        self._set("categories", _listed("categories", self.categories))
        for place, category in _places("categories", self.categories):
            check_text(place, category)
        _refuse_repeats("categories", self.categories)
        _check_bool("ordered", self.ordered)
        if self.other is not None and self.other not in self.categories:
            fail("other", "must be one of the categories")

    @property
    def cells(self) -> int:
        return len(self.categories)

    @property
    def remedies(self) -> dict[Fault, int]:
        other = {} if self.other is None else {Fault.UNKNOWN: self.categories.index(self.other)}
        return super().remedies | other

    @property
    def texts(self) -> Sequence[str]:
        return self.categories

    def prepare(self, given: pl.Expr, dtype: pl.DataType) -> pl.Expr:
        text = _without_nan(given, dtype).cast(pl.String)
        return _look_up(text, self.texts, self.tokens, Fault.UNKNOWN)

    def classify(self, prepared: pl.Series) -> Codes:
        return prepared.to_numpy().astype(np.int64)

    def _values(self, codes: Codes, uniform: Draws | None) -> pl.Series:
        return pl.Series(self.categories, dtype=pl.String).gather(codes)


@dataclass(frozen=True, kw_only=True)
class Boolean(Column):
    """False (code 0) or true (code 1), in a CSV written as the texts `false` and `true`."""

    kind = "boolean"
    _extent = "kind"

    false: str = "false"
    true: str = "true"

    def _check(self) -> None:
        check_text("false", self.false)
        check_text("true", self.true)
        if self.true == self.false:
            fail("true", "must differ from false")

    @property
    def cells(self) -> int:
        return 2

    @property
    def texts(self) -> Sequence[str]:
        return self.false, self.true

    def prepare(self, given: pl.Expr, dtype: pl.DataType) -> pl.Expr:
        if dtype == pl.Boolean:
            return given.cast(pl.Int32).fill_null(Fault.MISSING)
        text = _without_nan(given, dtype).cast(pl.String)
        return _look_up(text, self.texts, self.tokens, Fault.UNPARSABLE)

    def classify(self, prepared: pl.Series) -> Codes:
        return prepared.to_numpy().astype(np.int64)

    def _values(self, codes: Codes, uniform: Draws | None) -> pl.Series:
        return pl.Series(codes == 1)

    def spell(self, value: bool | date) -> str:
        return super().spell(value) if isinstance(value, date) else self.true if value else self.false

    def written(self, values: pl.Series) -> pl.Series:
        texts = pl.Series([self.false, self.true], dtype=pl.String).gather(values.cast(pl.UInt32))
        return super().written(texts)


@dataclass(frozen=True, kw_only=True)
class Numeric(Column):
    """A number, coded by the bin it falls in.

    Bin i is [edge_i, edge_{i+1}) if `side` is "right", (edge_i, edge_{i+1}] if it is "left". Values outside all bins
    count in the first or last bin (`outside` is "clamp") or are refused ("refuse"). Decoded values are integers if
    `integer` is set, multiples of 10**-decimals if `decimals` is given, and any float64 otherwise.
    """

    kind = "numeric"
    _extent = "bin_edges"

    bin_edges: tuple[int | float, ...]
    integer: bool = False
    side: str = "right"
    outside: str = "clamp"
    decimals: int | None = None

    def _check(self) -> None:
        edges = _listed("bin_edges", self.bin_edges)
        if len(edges) < 2:
            fail("bin_edges", "must have at least two edges")
        for place, edge in _places("bin_edges", edges):
            _check_number(place, edge)
        self._set("bin_edges", tuple(float(edge) + 0.0 for edge in edges))  # -0.0 + 0.0 is 0.0
        for index, (low, high) in enumerate(pairwise(self.bin_edges)):
            if not low < high:
                fail(f"bin_edges[{index + 1}]", "must be greater than the previous edge")
        _check_bool("integer", self.integer)
        if self.side not in ("left", "right"):
            fail("side", 'must be "right" or "left"')
        if self.outside not in ("clamp", "refuse"):
            fail("outside", 'must be "clamp" or "refuse"')
        if self.decimals is not None:
            if self.integer:
                fail("decimals", "must not be given for an integer column")
            if isinstance(self.decimals, bool) or not isinstance(self.decimals, int) or not 0 <= self.decimals <= 15:
                fail("decimals", "must be an integer from 0 to 15")
            if max(map(abs, self.bin_edges)) * 10**self.decimals > _EXACT:
                fail("decimals", "must be fewer: a float64 cannot tell such values apart at these edges")
        if self._scale is not None:
            firsts = self._firsts(self._scale)
            for index, (first, after) in enumerate(pairwise(firsts)):
                if first == after:
                    fail(f"bin_edges[{index + 1}]", "ends a bin that contains no possible value of the column")
        binned = self._bin(np.array([math.inf if number is None else number for number in self._numeric_tokens]))
        for place, code in _places("missing_values", binned.tolist()):
            if code >= 0:
                fail(place, "lies in a bin")

    def _check_token(self, place: str, token: object) -> None:
        if isinstance(token, str):
            check_text(place, token)
        else:
            _check_number(place, token)
            if self.integer and token != int(token):  # type: ignore[call-overload]
                fail(place, "must be an integer, like the column's values")

    @property
    def cells(self) -> int:
        return len(self.bin_edges) - 1

    @property
    def remedies(self) -> dict[Fault, int]:
        return super().remedies | ({Fault.LOW: 0, Fault.HIGH: self.cells - 1} if self.outside == "clamp" else {})

    @cached_property
    def _scale(self) -> int | None:
        decimals = 0 if self.integer else self.decimals
        return None if decimals is None else int(10**decimals)

    @property
    def numeric_tokens(self) -> list[float]:
        """The numbers that mean missing."""
        return [number for number in self._numeric_tokens if number is not None]

    @cached_property
    def _numeric_tokens(self) -> list[float | None]:
        """The missing_values as numbers, parsed as a table's values are; None for those that are not numbers."""
        return [_number(token) for token in self.missing_values]

    def _firsts(self, scale: int) -> list[int]:
        """Returns for each edge the least k with k / scale above it, or on it if a bin includes its low edge."""

        def first(edge: float) -> int:
            k = math.floor(Fraction(edge) * scale) - 1
            while k / scale < edge or (self.side == "left" and k / scale == edge):
                k += 1
            return k

        return [first(edge) for edge in self.bin_edges]

    def _bin(self, values: npt.NDArray[np.float64]) -> Codes:
        side: Any = self.side
        codes = np.searchsorted(self.bin_edges, values, side=side).astype(np.int64) - 1
        codes[codes == self.cells] = Fault.HIGH
        codes[codes == -1] = Fault.LOW
        return codes

    def prepare(self, given: pl.Expr, dtype: pl.DataType) -> pl.Expr:
        given = _without_nan(given, dtype)
        if dtype == pl.Boolean:
            return pl.when(given.is_null()).then(None).otherwise(math.nan)
        value = given.cast(pl.Float64, strict=False).fill_null(math.nan)
        missing = given.is_null()
        if dtype == pl.String:
            missing |= given.is_in(self.tokens)
        if self.numeric_tokens:
            missing |= value.is_in(self.numeric_tokens)
        return pl.when(missing).then(None).otherwise(value)

    def classify(self, prepared: pl.Series) -> Codes:
        missing, values = prepared.is_null().to_numpy(), prepared.cast(pl.Float64).fill_null(0.0).to_numpy()
        codes = self._bin(values)
        codes[~np.isfinite(values) | (self.integer & (values != np.floor(values)))] = Fault.UNPARSABLE
        codes[missing] = Fault.MISSING
        return codes

    def _values(self, codes: Codes, uniform: Draws | None) -> pl.Series:
        draws = _draws(len(codes), uniform)
        if self._scale is None:
            edges = np.array(self.bin_edges)
            low, high = edges[codes], edges[codes + 1]
            if self.side == "right":
                reals = np.clip(low + draws * (high - low), low, np.nextafter(high, -np.inf))
            else:
                reals = np.clip(high - draws * (high - low), np.nextafter(low, np.inf), high)
            return pl.Series(reals + 0.0)
        firsts = np.array(self._firsts(self._scale), np.int64)
        first, last = firsts[codes], firsts[codes + 1] - 1
        steps = np.minimum(first + (draws * (last - first + 1)).astype(np.int64), last)
        return pl.Series(steps if self.integer else steps / self._scale)


@dataclass(frozen=True, kw_only=True)
class Date(Column):
    """A day, coded by the bin it falls in: periods of the calendar from `first` to `last`, or between listed edges.

    Bin i is [edge_i, edge_{i+1}). Days outside all bins count in the first or last bin (`outside` is "clamp") or are
    refused ("refuse"). A decoded value is a day of its bin (`publish` is "day"), or the bin's name ("bin").
    """

    kind = "date"
    takes_days = True
    _extent = "bin_edges"

    bin_edges: tuple[str, ...] = ()
    first: str = ""
    last: str = ""
    by: str = ""
    format: str = ISO
    outside: str = "clamp"
    publish: str = "day"

    def _check(self) -> None:
        self._set("bin_edges", _listed("bin_edges", self.bin_edges))
        given = [name for name in ("first", "last", "by") if getattr(self, name) != ""]
        if self.bin_edges and given:
            fail(given[0], "must not be given together with bin_edges")
        if self.bin_edges:
            days = [_day(place, edge) for place, edge in _places("bin_edges", self.bin_edges)]
            if len(days) < 2:
                fail("bin_edges", "must have at least two edges")
            for index, (low, high) in enumerate(pairwise(days)):
                if not low < high:
                    fail(f"bin_edges[{index + 1}]", "must be later than the previous edge")
        else:
            if len(given) < 3:
                fail("bin_edges", "must be given, or all of first, last and by")
            low, high = _day("first", self.first), _day("last", self.last)
            if low > high:
                fail("last", "must not be before first")
            if not isinstance(self.by, str) or self.by not in PERIODS:
                fail("by", f"must be one of {', '.join(PERIODS)}")
            if (high - low) // PERIODS[self.by].longest >= MAX_SIZE:
                fail("by", f"must give 1 to {MAX_SIZE} categories")
        if not isinstance(self.format, str):
            fail("format", "must be text")
        try:
            Spelling(self.format)
        except DomainError as error:
            fail("format", str(error))
        if self.outside not in ("clamp", "refuse"):
            fail("outside", 'must be "clamp" or "refuse"')
        if self.publish not in ("day", "bin"):
            fail("publish", 'must be "day" or "bin"')
        for place, token in _places("missing_values", self.missing_values):
            day = self._spelling.read(token)
            if day is not None and self._edges[0] <= day < self._edges[-1]:
                fail(place, "lies in a bin")

    @cached_property
    def _spelling(self) -> Spelling:
        return Spelling(self.format)

    @cached_property
    def _edges(self) -> tuple[int, ...]:
        if self.bin_edges:
            return tuple(day_of(edge) for edge in self.bin_edges)
        return tuple(PERIODS[self.by].edges(day_of(self.first), day_of(self.last)))

    @property
    def first_days(self) -> list[date]:
        """The first day of each bin."""
        return [date.fromordinal(edge) for edge in self._edges[:-1]]

    @property
    def last_days(self) -> list[date]:
        """The last day of each bin."""
        return [date.fromordinal(edge - 1) for edge in self._edges[1:]]

    @property
    def cells(self) -> int:
        return len(self._edges) - 1

    @cached_property
    def texts(self) -> Sequence[str]:
        """The names of the bins, such as 2025-Q1."""
        if self.bin_edges:
            return spans(self._edges)
        return [PERIODS[self.by].label(day) for day in self.first_days]

    @property
    def remedies(self) -> dict[Fault, int]:
        return super().remedies | ({Fault.LOW: 0, Fault.HIGH: self.cells - 1} if self.outside == "clamp" else {})

    def bin_of(self, day: date) -> int:
        """The bin in which a day counts; the outermost ones for days outside."""
        return min(max(bisect_right(self._edges, day.toordinal()) - 1, 0), self.cells - 1)

    def spell(self, value: bool | date) -> str:
        return self._spelling.write(value) if isinstance(value, date) else super().spell(value)

    def prepare(self, given: pl.Expr, dtype: pl.DataType) -> pl.Expr:
        """Days as their number; null for missing ones."""
        if dtype in (pl.Date, pl.Datetime):
            days = given.dt.date()
            tokens = [day for token in self.missing_values if (day := self._spelling.read(str(token))) is not None]
            missing = days.is_null() | (days.cast(pl.Int32) + EPOCH).is_in(tokens)
        else:
            text = _without_nan(given, dtype).cast(pl.String)
            shaped: pl.Expr = pl.when(text.str.contains(self._spelling.pattern)).then(text)
            if self.format == ISO:
                shaped = shaped.str.head(len("2025-12-31"))
            days = shaped.str.to_date(self.format.replace("%-", "%"), strict=False, exact=True, cache=False)
            missing = text.is_null() | text.is_in(self.tokens)
        numbers = (days.cast(pl.Int32) + EPOCH).fill_null(_NO_DAY)
        if self.publish == "bin" and dtype == pl.String:
            numbers = text.replace_strict(
                list(self.texts), list(self._edges[:-1]), default=numbers, return_dtype=pl.Int32
            )
        return pl.when(missing).then(None).otherwise(numbers)

    def classify(self, prepared: pl.Series) -> Codes:
        missing, days = prepared.is_null().to_numpy(), prepared.cast(pl.Int64).fill_null(0).to_numpy()
        codes = np.searchsorted(self._edges, days, side="right").astype(np.int64) - 1
        codes[codes == self.cells] = Fault.HIGH
        codes[codes == -1] = Fault.LOW
        codes[days == _NO_DAY] = Fault.UNPARSABLE
        codes[missing] = Fault.MISSING
        return codes

    def _values(self, codes: Codes, uniform: Draws | None) -> pl.Series:
        if self.publish == "bin":
            return pl.Series(self.texts, dtype=pl.String).gather(codes)
        edges = np.array(self._edges, np.int64)
        low, width = edges[codes], edges[codes + 1] - edges[codes]
        days = low + np.minimum((_draws(len(codes), uniform) * width).astype(np.int64), width - 1)
        return pl.Series(days - EPOCH, dtype=pl.Int32).cast(pl.Date)

    def written(self, values: pl.Series) -> pl.Series:
        if self.publish == "bin" or self.format == ISO:
            return super().written(values)
        return super().written(values.dt.strftime(self.format))


KINDS: dict[str, type[Column]] = {kind.kind: kind for kind in (Categorical, Numeric, Boolean, Date)}


def fail(place: str, what: str) -> NoReturn:
    """Raise DomainError about a place in a declaration."""
    raise DomainError(f"{place}: {what}" if place else what)


def check_fields(cls: type[Any], given: Mapping[Any, object]) -> None:
    """Raise DomainError if a field is unknown to the dataclass, or one that it requires is missing."""
    known = {field.name: field.default is NO_DEFAULT for field in fields(cls)}
    for name in given:
        if name not in known:
            fail(str(name), "is not a known field")
    for name, needed in known.items():
        if needed and name not in given:
            fail(name, "is required")


def check_text(place: str, value: object) -> None:
    """Raise DomainError unless the value is a short text of Unicode scalar values."""
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        fail(place, f"must be text of at most {MAX_TEXT} characters")
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        fail(place, "must be text that UTF-8 can encode")
    if value.startswith("\ufeff"):
        fail(place, "must not begin with a byte order mark, because CSV readers drop it")
    _check_letters(place, value)


def _check_letters(place: str, value: str) -> None:
    if (what := fault(value)) is not None:
        fail(place, what)


def _check_number(place: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _EXACT:
        fail(place, "must be a finite number between -2^53 and 2^53")


def _day(place: str, value: object) -> int:
    try:
        return day_of(value)
    except DomainError as error:
        fail(place, str(error))


def _check_bool(place: str, value: object) -> None:
    if not isinstance(value, bool):
        fail(place, "must be true or false")


def _listed(place: str, value: object) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        fail(place, "must be a list")
    return tuple(value)


def _places(field: str, values: Sequence[Any]) -> list[tuple[str, Any]]:
    return [(f"{field}[{index}]", value) for index, value in enumerate(values)]


def _refuse_repeats(field: str, values: Sequence[str]) -> None:
    seen: set[str] = set()
    for place, value in _places(field, values):
        if value in seen:
            fail(place, "is given twice")
        seen.add(value)


def _plain(item: object) -> object:
    return int(item) if isinstance(item, float) and item.is_integer() else item


def _number(token: str | int | float) -> float | None:
    """A token as a finite number; None if it is none. To read a schema, polars is needed for unusual tokens alone."""
    if not isinstance(token, str):
        return float(token)
    if not any(letter.isdigit() for letter in token):
        return None  # infinities and NaN are not finite
    if _INTEGER.fullmatch(token):
        return float(token)
    number = pl.Series([token], dtype=pl.String).cast(pl.Float64, strict=False)[0]
    return None if number is None or not math.isfinite(number) else float(number)


def _without_nan(given: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    return given.fill_nan(None) if dtype.is_float() else given


def _look_up(text: pl.Expr, values: Sequence[str], tokens: Sequence[str], otherwise: Fault) -> pl.Expr:
    codes = [*range(len(values)), *[Fault.MISSING] * len(tokens)]
    found = text.replace_strict([*values, *tokens], codes, default=int(otherwise), return_dtype=pl.Int32)
    return pl.when(text.is_null()).then(pl.lit(int(Fault.MISSING), pl.Int32)).otherwise(found)


def _draws(count: int, uniform: Draws | None) -> npt.NDArray[np.float64]:
    if uniform is None:
        return np.full(count, 0.5)
    draws = np.asarray(uniform(count), np.float64)
    if draws.shape != (count,) or not ((draws >= 0) & (draws < 1)).all():
        raise DomainError("uniform(n) must return n numbers in [0, 1)")
    return draws
