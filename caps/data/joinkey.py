"""The join key: the columns that identify a person across holders, and the rules that normalise their spelling.

All holders apply the study's `JoinKey` to their own tables: `normalise` brings every row's key to one spelling, and
`hashed_ids` turns it into 16 bytes. These are secret-shared or blinded (docs/joining.md) and never leave a holder in
the clear, because identifiers are few enough to be guessed and a hash without a secret key hides none of them.

Texts are always brought to Unicode's NFKC. Characters that Unicode has not assigned are refused: their normal form is
not fixed yet, so two holders with different versions of Python could disagree.

Messages and reports name columns of the key and give counts; never a value or a row number.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator, model_validator

from caps.basics import canonical
from caps.basics.document import ColumnName
from caps.basics.later import Later
from caps.data.linkage import ID_BYTES
from caps.data.schema.columns import check_text
from caps.errors import DomainError

if TYPE_CHECKING:
    import polars as pl
else:
    pl = Later("polars")

Ids: TypeAlias = npt.NDArray[np.uint8]
"""Shape (n, 16)."""

MAX_COLUMNS = 16
MAX_FORMATS = 16
_ID_LABEL = b"caps/v1/join/id/"
_ENCODING = "caps/v1/key:"
_SPACES = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"  # noqa: E501
"""Unicode's White_Space, spelled out because libraries differ on what is blank."""
_BETWEEN = "\ufdd0"
"""A noncharacter."""
_EXACT = 2.0**53

Whitespace: TypeAlias = Literal["collapse", "trim", "remove", "keep"]
Remedy: TypeAlias = Literal["refuse", "drop", "alone"]
Text: TypeAlias = Annotated[str, StringConstraints(max_length=1024)]


class KeyRefused(DomainError):
    """The table has rows that the join key does not allow; `report` counts them."""

    def __init__(self, report: KeyReport) -> None:
        super().__init__(f"the join key does not fit the table: {report.summary}")
        self.report = report


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _KeyColumn(_Part, ABC):
    """What all kinds have in common. Null, NaN, text that normalises to nothing and `missing_values`, exactly as
    written in the file, are missing."""

    name: ColumnName
    missing_values: tuple[Text, ...] = ()

    @field_validator("missing_values")
    @classmethod
    def _plain(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        for value in values:
            with suppress(DomainError):
                check_text("", value)
                continue
            raise ValueError("must be text that UTF-8 can encode, without a byte order mark")
        return values

    def level(self, values: pl.Series) -> tuple[pl.Series, pl.Series]:
        """The normalised text, null where there is none; and whether each value is missing rather than unparsable."""
        missing = values.is_null()
        if values.dtype.is_float():
            missing |= values.is_nan().fill_null(False)
        elif values.dtype == pl.String:
            missing |= values.is_in(self.missing_values).fill_null(False)
            values = self._clean(values)
            missing |= (values == "").fill_null(False)
        return self._level(values).set(missing, None), missing

    def normal(self, text: str) -> str | None:
        """One text after the rules; None if it is missing, or has no normal form."""
        found: str | None = self.level(pl.Series([text], dtype=pl.String))[0][0]
        return found

    def _clean(self, text: pl.Series) -> pl.Series:
        return _cleaned(text, "keep", "trim", "")

    @abstractmethod
    def _level(self, values: pl.Series) -> pl.Series:
        """The normal form of cleaned text, or of values of other types; null where a value has no normal form."""

    def unsuitable(self) -> DomainError:
        """The error about a column of the wrong type."""
        return DomainError(f"column {self.name} of the join key has values of a type that its kind does not allow")


class TextColumn(_KeyColumn):
    """Letters and digits, where every digit counts: 007 is not 7.

    case: `fold` ignores it, by Unicode's full folding (Straße is STRASSE). whitespace: `collapse` drops it at the ends
    and turns it into one blank elsewhere; `trim` drops it at the ends; `remove` drops all; `keep` drops none. All but
    `keep` also drop invisible format characters. remove: further characters to drop, for example "-./".
    """

    kind: Literal["text"]
    case: Literal["fold", "keep"] = "fold"
    whitespace: Whitespace = "collapse"
    remove: Annotated[str, StringConstraints(max_length=64)] = ""

    @field_validator("remove")
    @classmethod
    def _marks(cls, remove: str) -> str:
        if len(set(remove)) < len(remove):
            raise ValueError("contains a character twice")
        for mark in remove:
            if (
                mark.isalnum()
                or unicodedata.category(mark)[0] not in "PSZ"
                or unicodedata.normalize("NFKC", mark) != mark
            ):
                raise ValueError("must consist of punctuation, symbols or blanks in normal form NFKC")
        return remove

    def _level(self, values: pl.Series) -> pl.Series:
        return values if values.dtype == pl.String else _whole(values, self)

    def _clean(self, text: pl.Series) -> pl.Series:
        return _cleaned(text, self.case, self.whitespace, self.remove)


class NumberColumn(_KeyColumn):
    """An integer, or a decimal fraction: a plus sign, leading zeros and zeros at the end of a fraction do not count.

    decimal: the mark before a fraction; an integer's fraction must be zero, as in 12.0. thousands: the mark allowed
    between groups of three digits. Both apply to text only, not to columns of numbers.
    """

    kind: Literal["integer", "number"]
    decimal: Literal[".", ","] = "."
    thousands: Literal["", ",", ".", " ", "'", "_"] = ""

    @model_validator(mode="after")
    def _told_apart(self) -> Self:
        if self.thousands == self.decimal:
            raise ValueError("thousands and decimal must differ")
        return self

    def _level(self, values: pl.Series) -> pl.Series:
        thousands, decimal = self.thousands, self.decimal
        if values.dtype.is_numeric():
            thousands, decimal = "", "."
            values = values.cast(pl.String) if self.kind == "number" else _whole(values, self)
        if values.dtype != pl.String:
            raise self.unsuitable()
        grouped = rf"|[0-9]{{1,3}}(?:{_literal(thousands)}[0-9]{{3}})+" if thousands else ""
        pattern = rf"^([+-]?)([0-9]+{grouped})(?:{_literal(decimal)}([0-9]*))?$"
        parts = values.str.extract_groups(pattern).struct.unnest()
        sign, whole, fraction = (pl.col(name) for name in parts.columns)
        bare = whole.str.replace_all(thousands, "", literal=True) if thousands else whole
        digits = bare.str.strip_chars_start("0")
        digits = pl.when(digits == "").then(pl.lit("0")).otherwise(digits)
        rest = fraction.fill_null("").str.strip_chars_end("0")
        number = pl.when(rest == "").then(digits)
        if self.kind == "number":
            size = number.otherwise(digits + "." + rest)
        else:
            size = number.otherwise(pl.lit(None, pl.String))
        negative = (sign == "-") & (size != "0")
        return parts.select(pl.when(negative).then("-" + size).otherwise(size).alias("")).to_series()


class DateColumn(_KeyColumn):
    """A day. formats: how it may be written, with %Y (four digits), %m and %d (one or two digits; two where digits
    follow each other), and marks between them. Text that two formats read as different days is refused."""

    kind: Literal["date"]
    formats: Annotated[tuple[Text, ...], Field(min_length=1, max_length=MAX_FORMATS)]

    @field_validator("formats")
    @classmethod
    def _told_apart(cls, formats: tuple[str, ...]) -> tuple[str, ...]:
        for one in formats:
            parts = re.findall(r"%.|[^%]+|%", one)
            if sorted(part for part in parts if part[0] == "%") != ["%Y", "%d", "%m"]:
                raise ValueError("a format must contain %Y, %m and %d once each, and no other field")
            marks = "".join(part for part in parts if part[0] != "%")
            if any(mark.isalnum() or not mark.isascii() or not mark.isprintable() for mark in marks):
                raise ValueError("the parts of a date must be separated by ASCII marks, not letters or digits")
        if any(_numbers(one) == _numbers(other) for one, other in combinations(formats, 2)):
            raise ValueError("two formats match the same texts")
        return formats

    def _level(self, values: pl.Series) -> pl.Series:
        if values.dtype == pl.Date:
            return values.dt.strftime("%Y-%m-%d")
        if isinstance(values.dtype, pl.Datetime):
            return values.dt.date().dt.strftime("%Y-%m-%d").set(values.dt.time().cast(pl.Int64) != 0, None)
        if values.dtype != pl.String:
            raise self.unsuitable()
        days = pl.DataFrame({form: _days(values, form) for form in self.formats})
        first, last = pl.min_horizontal(self.formats), pl.max_horizontal(self.formats)
        return days.select(pl.when(first == last).then(first).alias("")).to_series()


KeyColumn: TypeAlias = Annotated[TextColumn | NumberColumn | DateColumn, Field(discriminator="kind")]


@dataclass(frozen=True)
class ColumnFindings:
    """How many values of a column were missing, and how many the rules could not read."""

    name: str
    missing: int
    unparsable: int


@dataclass(frozen=True)
class KeyReport:
    """What was found in a table. The counts are exact, so only the table's owner may see them.

    unparsable, missing: rows with such a value in any column; a row with both is unparsable. duplicates: rows that
    repeat the key of an earlier row. refused: how many of these three make the table refused. kept: rows that take
    part, of which `alone` cannot join any other; if the table is refused, the rows that the other rules would keep.
    """

    rows: int
    unparsable: int
    missing: int
    duplicates: int
    refused: int
    kept: int
    alone: int
    columns: tuple[ColumnFindings, ...]

    @property
    def summary(self) -> str:
        """The counts in words."""
        return (
            f"of {self.rows} rows, {self.unparsable} have a value that cannot be read, {self.missing} have no full "
            f"key, {self.duplicates} repeat the key of another row"
        )


@dataclass(frozen=True, repr=False, eq=False)
class Keys:
    """Normalised keys. rows: the indices of the table's rows that take part, in increasing order. encoded: their keys
    as bytes; null for a row that joins no other."""

    rows: npt.NDArray[np.int64]
    encoded: pl.Series

    def __len__(self) -> int:
        return len(self.rows)

    def ids(self, study_id: str, key_digest: bytes) -> Ids:
        """The `hashed_ids` of the keys; fresh random ids for rows that join no other."""
        alone = self.encoded.is_null().to_numpy()
        ids = random_ids(len(self))
        ids[~alone] = hashed_ids(study_id, key_digest, self.encoded.drop_nulls().to_list())
        return ids


class JoinKey(_Part):
    """The columns that identify a person in every holder's table, and the rules for rows without a usable key.

    duplicates: if rows of one holder have the same key, the table is refused, or the first or last of them is kept.
    missing, unparsable: if a row has no full key, or a value that the rules cannot read, the table is refused, the row
    is dropped, or it stays `alone`, as a person that no other holder has.
    """

    version: Literal[1] = 1
    columns: Annotated[tuple[KeyColumn, ...], Field(min_length=1, max_length=MAX_COLUMNS)]
    duplicates: Literal["refuse", "first", "last"] = "refuse"
    missing: Remedy = "refuse"
    unparsable: Remedy = "refuse"

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        if len({column.name for column in self.columns}) < len(self.columns):
            raise ValueError("columns: a column name occurs twice")
        return self

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON object."""
        return self.model_dump(mode="json")

    @classmethod
    def from_json(cls, value: object) -> Self:
        """The key that a JSON object or text describes. Raises DomainError that names the place of the first error."""
        if isinstance(value, str | bytes):
            value = canonical.parse(value)
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
        raise DomainError(f"{place}: {first['msg']}" if place else first["msg"])

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the canonical form."""
        return canonical.digest("join-key", self.to_json())

    def examine(self, table: Mapping[str, Any]) -> KeyReport:
        """The report of normalise(), even if it would refuse the table."""
        return self._keys(table)[1]

    def normalise(self, table: Mapping[str, Any]) -> tuple[Keys, KeyReport]:
        """The keys of a table of columns by name: polars series, arrays or lists. Raises KeyRefused with the report.

        The encoding is text in UTF-8: a label with the version, then each column as its length in bytes, a colon, the
        normalised value and a comma. So no two keys have the same encoding, wherever their columns begin and end.
        """
        keys, report = self._keys(table)
        if report.refused:
            raise KeyRefused(report)
        return keys, report

    def _keys(self, table: Mapping[str, Any]) -> tuple[Keys, KeyReport]:
        found = self._levelled(table)
        encoded = found.encoded
        repeats = found.whole & ~encoded.is_first_distinct().to_numpy()
        last = self.duplicates == "last"
        stays = found.whole & (encoded.is_last_distinct() if last else encoded.is_first_distinct()).to_numpy()
        kept, report = self._kept(stays, repeats, found.unparsable, found.missing, found.columns)
        return Keys(kept, encoded.gather(kept).cast(pl.Binary)), report

    def _levelled(self, table: Mapping[str, Any]) -> _Levelled:
        for column in self.columns:
            if column.name not in table:
                raise DomainError(f"the table has no column {column.name}, which the join key needs")
        given = [_series(table[column.name], column.name) for column in self.columns]
        rows = len(given[0])
        if any(len(values) != rows for values in given):
            raise DomainError("the table's columns differ in length")
        levelled = [column.level(values) for column, values in zip(self.columns, given, strict=True)]
        gone = [missing.to_numpy() for _, missing in levelled]
        unread = [text.is_null().to_numpy() & ~missing for (text, _), missing in zip(levelled, gone, strict=True)]
        unparsable = np.logical_or.reduce(unread)
        missing = np.logical_or.reduce(gone) & ~unparsable
        encoded = _encoded([text for text, _ in levelled]).set(pl.Series(unparsable | missing), None)
        counts = np.array([[gone.sum(), unread.sum()] for gone, unread in zip(gone, unread, strict=True)], np.int64)
        return _Levelled(encoded, unparsable, missing, counts)

    def _kept(
        self, stays: _Flags, repeats: _Flags, unparsable: _Flags, missing: _Flags, columns: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], KeyReport]:
        """The rows that take part, and the report."""
        alone = (unparsable & (self.unparsable == "alone")) | (missing & (self.missing == "alone"))
        kept = np.flatnonzero(stays | alone).astype(np.int64)
        counts = {"unparsable": int(unparsable.sum()), "missing": int(missing.sum()), "duplicates": int(repeats.sum())}
        return kept, KeyReport(
            rows=len(stays),
            **counts,
            refused=sum(count for rule, count in counts.items() if getattr(self, rule) == "refuse"),
            kept=len(kept),
            alone=int(alone.sum()),
            columns=tuple(
                ColumnFindings(column.name, int(gone), int(unread))
                for column, (gone, unread) in zip(self.columns, columns, strict=True)
            ),
        )


_Flags: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class _Levelled:
    """Rows with their keys encoded, null where a row has none. columns: for each, how many are missing, unparsable."""

    encoded: pl.Series
    unparsable: _Flags
    missing: _Flags
    columns: npt.NDArray[np.int64]

    @property
    def whole(self) -> _Flags:
        return ~self.unparsable & ~self.missing


class KeyReader:
    """The keys of a table that comes in blocks. Of a row only its identifier and two flags are kept: 18 bytes.

    Rows with the same identifier count as duplicates, which other keys' are by chance alone (`hashed_ids`).
    """

    def __init__(self, key: JoinKey, study_id: str) -> None:
        self._key, self._study = key, study_id
        self._ids = [np.empty((0, ID_BYTES), np.uint8)]
        self._unparsable, self._missing = [np.empty(0, np.bool_)], [np.empty(0, np.bool_)]
        self._columns = np.zeros((len(key.columns), 2), np.int64)

    def add(self, table: Mapping[str, Any]) -> None:
        """Some more rows, as columns by name."""
        found = self._key._levelled(table)
        keys = Keys(np.arange(len(found.encoded)), found.encoded.cast(pl.Binary))
        self._ids.append(keys.ids(self._study, self._key.digest))
        self._unparsable.append(found.unparsable)
        self._missing.append(found.missing)
        self._columns += found.columns

    def finish(self) -> tuple[npt.NDArray[np.int64], Ids, KeyReport]:
        """The rows that take part, their identifiers, and the report. Raises KeyRefused."""
        ids = np.concatenate(self._ids)
        self._ids.clear()
        unparsable, missing = np.concatenate(self._unparsable), np.concatenate(self._missing)
        halves = np.ascontiguousarray(ids).view("<u8")
        order = np.lexsort((halves[:, 0], halves[:, 1]))
        same = np.zeros(len(ids), np.bool_)  # as its predecessor in the order; equal ones are in the order of the rows
        same[1:] = (halves[order[1:]] == halves[order[:-1]]).all(axis=1)
        whole, repeats, stays = ~unparsable & ~missing, np.zeros_like(same), np.zeros_like(same)
        repeats[order] = same
        stays[order] = ~np.append(same[1:], False) if self._key.duplicates == "last" else ~same
        kept, report = self._key._kept(stays & whole, repeats & whole, unparsable, missing, self._columns)
        if report.refused:
            raise KeyRefused(report)
        return kept, ids if len(kept) == len(ids) else ids[kept], report


def hashed_ids(study_id: str, key_digest: bytes, normalised: Sequence[bytes]) -> Ids:
    """SHA-256 of a label, the study, the join key and each normalised key, cut to 16 bytes.

    Ids of different studies are unrelated. Among n different keys two have the same id with probability below
    n^2 / 2^129: 2^-79 for 2^25 rows of all holders together.
    """
    if len(key_digest) != 32:
        raise DomainError("the digest of a join key must have 32 bytes")
    study = study_id.encode()
    start = hashlib.sha256(_ID_LABEL + len(study).to_bytes(4, "big") + study + key_digest)

    def digest(content: bytes) -> bytes:
        state = start.copy()
        state.update(content)
        return state.digest()[:ID_BYTES]

    return np.frombuffer(bytearray().join(map(digest, normalised)), np.uint8).reshape(-1, ID_BYTES)


def random_ids(count: int) -> Ids:
    """Fresh random ids for rows that join no other and for padding; each equals a given id with probability 2^-128."""
    return np.frombuffer(bytearray(secrets.token_bytes(ID_BYTES * count)), np.uint8).reshape(count, ID_BYTES)


def _series(values: object, name: str) -> pl.Series:
    if isinstance(values, pl.Series):
        if values.dtype in (pl.Categorical, pl.Enum, pl.Null):
            return values.cast(pl.String)
        return values.alias("")
    array = np.asarray(values, getattr(values, "dtype", object))
    if array.ndim != 1 or array.dtype.kind not in "iufUO":
        raise DomainError(f"column {name} of the join key must be a flat list of text or numbers")
    if array.dtype.kind in "iuf":
        return pl.Series(array)
    with suppress(UnicodeError, TypeError):  # the errors quote the text
        return pl.Series([_text(value) for value in array.tolist()], dtype=pl.String)
    raise DomainError(f"column {name} of the join key must contain only text that UTF-8 can encode, integers and None")


def _text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, float) and (value != value or value.is_integer()):  # noqa: PLR0124  NaN differs from itself
        return None if value != value else str(int(value))  # noqa: PLR0124
    raise TypeError


def _whole(values: pl.Series, column: _KeyColumn) -> pl.Series:
    """Integers as text, including those read as floats because values are missing; null for other numbers."""
    if values.dtype.is_integer():
        return values.cast(pl.String)
    if not values.dtype.is_float():
        raise column.unsuitable()
    exact = (values.floor() == values) & (values.abs() <= _EXACT)
    return values.set(~exact, None).cast(pl.Int64).cast(pl.String)


def _cleaned(values: pl.Series, case: str, whitespace: str, remove: str) -> pl.Series:
    """The text after the rules; null if it has a character that Unicode has not assigned.

    The rules are repeated until nothing changes: dropping a character may move an accent next to its letter, and
    normalising may produce characters to drop. ASCII needs only one pass.
    """
    rules = pl.col("")
    if case == "fold":
        only_ascii = rules.str.len_bytes() == rules.str.len_chars()  # _unicode() has folded the rest
        rules = pl.when(only_ascii).then(rules.str.to_lowercase()).otherwise(rules)
    rules = _spaced(rules, whitespace)
    if remove:
        rules = _spaced(rules.str.replace_all(_any_of(remove), ""), whitespace)
    text = values.alias("")
    while True:
        others = (text.str.len_bytes() != text.str.len_chars()).arg_true()
        before, known = text, text.gather(others)
        if len(others):
            text = text.clone().scatter(others, _unicode(known, case, whitespace != "keep"))
        text = text.to_frame().select(rules).to_series()
        if not len(others) or text.equals(before):
            return text


def _spaced(text: pl.Expr, whitespace: str) -> pl.Expr:
    match whitespace:
        case "collapse":
            return text.str.replace_all(f"{_any_of(_SPACES)}+", " ").str.strip_chars(" ")
        case "trim":
            return text.str.strip_chars(_SPACES)
        case "remove":
            return text.str.replace_all(_any_of(_SPACES), "")
    return text


def _any_of(characters: str) -> str:
    return f"[{_literal(characters)}]"


def _literal(text: str) -> str:
    return "".join(f"\\x{{{ord(character):x}}}" for character in text)


def _unicode(values: pl.Series, case: str, visible: bool) -> pl.Series:
    """Texts in NFKC: folded by compatibility caseless matching (Unicode's D146) if `case` says so, and without format
    characters if `visible`. Null for a text with an unassigned character.

    For speed, all texts are processed as one. The separator is never assigned and neither composes nor folds, and both
    operations only affect adjacent characters.
    """
    letters = {letter: unicodedata.category(letter) for letter in set("".join(values.drop_nulls()))}
    if unassigned := "".join(letter for letter, category in letters.items() if category == "Cn"):
        values = values.set(values.str.contains(_any_of(unassigned)), None)
    joined = _BETWEEN.join(values.fill_null(""))
    if case == "fold":
        joined = unicodedata.normalize("NFKD", unicodedata.normalize("NFD", joined).casefold()).casefold()
    joined = unicodedata.normalize("NFKC", joined)
    if visible:
        for letter, category in letters.items():
            if category == "Cf":
                joined = joined.replace(letter, "")
    return pl.Series(joined.split(_BETWEEN), dtype=pl.String).set(values.is_null(), None)


def _numbers(form: str) -> str:
    """A regular expression for the texts that the format matches, by numbers of digits."""
    parts = [part for part in re.split(r"(%[Ymd])", form) if part]
    pattern = ""
    for before, part, after in zip(["", *parts], parts, [*parts[1:], ""], strict=False):
        if part == "%Y":
            pattern += "([0-9]{4})"
        elif part in ("%m", "%d"):
            pattern += "([0-9]{2})" if before.startswith("%") or after.startswith("%") else "([0-9]{1,2})"
        else:
            pattern += _literal(part)
    return f"^{pattern}$"


def _days(text: pl.Series, form: str) -> pl.Series:
    """Days in ISO form; null where the text does not have this format or there is no such day."""
    names = [part[1] for part in re.findall(r"%[Ymd]", form)]
    parts = text.str.extract_groups(_numbers(form)).struct.rename_fields(names).struct.unnest()
    year, month, day = (pl.col(name).str.zfill(2) for name in "Ymd")
    written = pl.concat_str([year, month, day], separator="-")
    real = written.str.to_date("%Y-%m-%d", strict=False).is_not_null() & (year != "0000")
    return parts.select(pl.when(real).then(written).alias("")).to_series()


def _encoded(columns: Sequence[pl.Series]) -> pl.Series:
    frame = pl.DataFrame({str(place): text for place, text in enumerate(columns)})
    parts: list[Any] = [pl.lit(_ENCODING)]
    for name in frame.columns:
        parts += [pl.col(name).str.len_bytes().cast(pl.String), pl.lit(":"), pl.col(name), pl.lit(",")]
    return frame.select(pl.concat_str(parts).alias("")).to_series()
