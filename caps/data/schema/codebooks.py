"""Schemas from code books that others publish: a CSV of codes, a Frictionless Table Schema, a JSON Schema.

A code book is a public document. It may be long, or written to do harm: it is read to bounds, and once.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from caps.basics import canonical
from caps.data.schema.templates import Draft, date_range, integer_range, round_bins, with_other
from caps.errors import DomainError

MOST_BYTES = 64 << 20
MOST_COLUMNS = 4096
MOST_CODES = 100
"""Codes of a column that are listed, unless somebody wants more; what is beyond them is `other`."""
_NAMES = {
    "column": ("column", "variable", "name", "field", "item"),
    "code": ("code", "value", "category"),
    "ordered": ("ordered", "ordinal"),
    "low": ("min", "minimum", "low"),
    "high": ("max", "maximum", "high"),
    "missing": ("missing", "is_missing"),
}
_ENDS = (("minimum", "formatMinimum"), ("maximum", "formatMaximum"))
_TRUE = frozenset({"1", "true", "yes", "y", "x"})
_DAYS = frozenset({"date", "datetime", "date-time"})
_TIMES = frozenset({"time", "year-month", "yearmonth", "duration"})
_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)


def from_codebook(path: Path, *, most: int = MOST_CODES) -> Draft:
    """The schema that a code book describes. most: codes of a column that are listed. Raises DomainError."""
    with path.open("rb") as file:
        return read_codebook(file.read(MOST_BYTES + 1), most=most)


def read_codebook(data: bytes, *, most: int = MOST_CODES) -> Draft:
    """The schema that the content of a code book describes. Raises DomainError."""
    if len(data) > MOST_BYTES:
        raise DomainError(f"a code book has at most {MOST_BYTES} bytes")
    if data.lstrip()[:1] == b"{":
        return _from_json(canonical.parse(data), most)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DomainError("the code book is not in UTF-8") from None
    return _from_csv(text, most)


def _from_csv(text: str, most: int) -> Draft:
    """One line for each code of each column; or one for each column with its least and greatest value."""
    first = text.partition("\n")[0]
    separator = max(",;\t|", key=first.count)
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    try:
        header = [name.strip().lower() for name in next(lines, [])]
        named = {what: next((name for name in names if name in header), None) for what, names in _NAMES.items()}
        places = {what: header.index(name) for what, name in named.items() if name is not None}
        if "column" not in places or places.keys().isdisjoint(("code", "low")):
            raise DomainError(
                "a code book needs a column `column` (or variable, name, field) and one of `code` (or value), `min`"
            )
        found: dict[str, _Coded] = {}
        for line in lines:
            if any(line):
                _take(found, line, places, most)
    except csv.Error:
        raise DomainError("the code book is not valid CSV") from None
    draft = Draft()
    for name, coded in found.items():
        coded.describe(draft, name, most)
    return draft


class _Coded:
    """What the lines of one column say."""

    def __init__(self) -> None:
        self.codes: dict[str, None] = {}
        self.missing: dict[str, None] = {}
        self.more = self.ordered = False
        self.low = self.high = ""

    def describe(self, draft: Draft, name: str, most: int) -> None:
        """Add the column to a draft."""
        made: dict[str, Any]
        if self.codes:
            codes = list(self.codes)
            made = with_other(codes, most) if self.more else {"kind": "categorical", "categories": codes}
            made |= {"ordered": True} if self.ordered else {}
        elif self.low and self.high and _DAY.fullmatch(self.low):
            made = date_range(self.low, self.high)
        elif self.low and self.high:
            low, high = _number(self.low), _number(self.high)
            made = _bins(low, high, integer=low.is_integer() and high.is_integer())
        else:
            draft.left_out[name] = "the code book has neither codes for it nor both a least and a greatest value"
            return
        draft.columns.append({"name": name, **made, **({"missing_values": list(self.missing)} if self.missing else {})})


def _take(found: dict[str, _Coded], line: Sequence[str], places: Mapping[str, int], most: int) -> None:
    """Read one line. places: which cell says what, of those that the code book has."""
    cells = {what: line[place].strip() for what, place in places.items() if place < len(line)}
    name, code = cells.get("column"), cells.get("code")
    if not name:
        raise DomainError("a line of the code book has no name of a column")
    coded = found.get(name)
    if coded is None:
        if len(found) >= MOST_COLUMNS:
            raise DomainError(f"a code book has at most {MOST_COLUMNS} columns")
        coded = found[name] = _Coded()
    coded.ordered |= cells.get("ordered", "").lower() in _TRUE
    if code and cells.get("missing", "").lower() in _TRUE:
        if len(coded.missing) < most:
            coded.missing[code] = None
    elif code and code not in coded.codes:
        if len(coded.codes) < most:
            coded.codes[code] = None
        else:
            coded.more = True
    coded.low, coded.high = cells.get("low") or coded.low, cells.get("high") or coded.high


def _number(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise DomainError("a least or greatest value is not a number") from None


def _from_json(value: object, most: int) -> Draft:
    """A Frictionless Table Schema, alone or in a data package; or a JSON Schema of an object."""
    if isinstance(value, Mapping):
        resources = value.get("resources")
        if isinstance(resources, list) and len(resources) == 1 and isinstance(resources[0], Mapping):
            value = resources[0].get("schema")
    if isinstance(value, Mapping):
        if isinstance(value.get("fields"), list):
            return _frictionless(value, most)
        if isinstance(value.get("properties"), Mapping):
            required = value.get("required", [])
            draft = Draft()
            for name, one in _bounded(list(value["properties"].items())):
                if not isinstance(one, Mapping):
                    raise DomainError("a property of a JSON Schema must be an object")
                must = isinstance(required, list) and name in required
                _describe(draft, str(name), one, one, must=must, most=most, missing=())
            return draft
    raise DomainError("this is neither a JSON Schema with `properties` nor a Table Schema with `fields`")


def _frictionless(value: Mapping[str, Any], most: int) -> Draft:
    keys = value.get("primaryKey", [])
    keys = [keys] if isinstance(keys, str) else keys
    tokens = value.get("missingValues", [""])
    if not isinstance(keys, list) or not isinstance(tokens, list) or not all(isinstance(one, str) for one in tokens):
        raise DomainError("primaryKey and missingValues must be lists of texts")
    draft = Draft()
    for one in _bounded(value["fields"]):
        if not isinstance(one, Mapping) or not isinstance(one.get("name"), str):
            raise DomainError("a field must have a name")
        limits = one.get("constraints", {})
        if not isinstance(limits, Mapping):
            raise DomainError("constraints must be an object")
        name = one["name"]
        if name in keys or limits.get("unique") is True:
            draft.left_out[name] = "it identifies persons, so no category of it could be published"
        else:
            missing = tuple(token for token in tokens if token)
            _describe(draft, name, one, limits, must=limits.get("required") is True, most=most, missing=missing)
    return draft


def _bounded(items: Sequence[Any]) -> Sequence[Any]:
    if len(items) > MOST_COLUMNS:
        raise DomainError(f"a code book has at most {MOST_COLUMNS} columns")
    return items


def _describe(
    draft: Draft,
    name: str,
    one: Mapping[str, Any],
    limits: Mapping[str, Any],
    *,
    must: bool,
    most: int,
    missing: Sequence[str],
) -> None:
    kind, codes = one.get("type"), limits.get("enum", one.get("categories"))
    if isinstance(kind, list):  # "type": ["string", "null"]
        must &= "null" not in kind
        kind = next((each for each in kind if each != "null"), None)
    made: dict[str, Any] | None = None
    if isinstance(codes, list) and codes:
        listed = [_code(each) for each in codes if each is not None]
        made = with_other(listed, most) if len(listed) > most else {"kind": "categorical", "categories": listed}
        made |= {"ordered": True} if one.get("categoriesOrdered") is True else {}
    elif kind == "boolean":
        made = {"kind": "boolean"}
        for ours, theirs in (("true", "trueValues"), ("false", "falseValues")):
            if isinstance(one.get(theirs), list) and one[theirs]:
                made[ours] = str(one[theirs][0])
    elif kind in _DAYS or one.get("format") in _DAYS:
        made = _days(draft, name, one, limits)
    elif kind in _TIMES or one.get("format") in _TIMES:
        draft.left_out[name] = "times are not counted; send a column with the day"
    elif kind in ("integer", "number", "year"):
        low, high = limits.get("minimum"), limits.get("maximum")
        if low is None or high is None:
            draft.left_out[name] = "the code book does not say its least and greatest value"
        else:
            made = _bins(_number(low), _number(high), integer=kind != "number")
    else:
        draft.left_out[name] = "the code book does not list its values"
    if made is not None:
        if not must:
            made["missing"] = "category"
        tokens = [token for token in missing if token not in made.get("categories", ())]
        draft.columns.append({"name": name, **made, **({"missing_values": tokens} if tokens else {})})


def _days(draft: Draft, name: str, one: Mapping[str, Any], limits: Mapping[str, Any]) -> dict[str, Any] | None:
    """A column of days, if the code book says from when to when; how they are written, if it is not ISO 8601."""
    ends = [next((limits[each] for each in pair if each in limits), None) for pair in _ENDS]
    first, last = (end[: len("2025-12-31")] if isinstance(end, str) else None for end in ends)
    if first is None or last is None:
        draft.left_out[name] = "the code book does not say its first and last day"
        return None
    form = one.get("format") if one.get("type") in _DAYS else None
    if form in (None, "default"):
        return date_range(first, last)
    if one["type"] != "date" or not isinstance(form, str) or form == "any":
        draft.left_out[name] = "the code book does not say how its days are written; %Y-%m-%d is one way"
        return None
    return {**date_range(first, last), "format": form}


def _code(value: object) -> str:
    if isinstance(value, Mapping):  # Frictionless: {"value": 1, "label": "one"}
        value = value.get("value")
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise DomainError("a code must be a text or a number")
    return str(value)


def _bins(low: float, high: float, *, integer: bool) -> dict[str, Any]:
    if integer:
        return integer_range(low, high)
    return {"kind": "numeric", "bin_edges": round_bins(low, high)}
