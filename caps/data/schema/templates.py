"""Columns by templates: public lists and round numbers, chosen by what a column is called, never by what is in it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from caps.data.schema.calendar import PERIODS, day_of
from caps.data.schema.columns import MAX_TEXT
from caps.errors import DomainError

MOST_BINS = 20
"""Bins of a range, if their width is not given."""
OTHER = "other"
_STEPS = (1, 2, 5, 10)
_RANGE = re.compile(r"(?P<low>-?\d+(?:\.\d+)?)\.\.(?P<high>-?\d+(?:\.\d+)?)(?:/(?P<width>\d+(?:\.\d+)?))?")
_DAYS = re.compile(
    r"(?P<first>\d{4}(?:-\d\d-\d\d)?)\.\.(?P<last>\d{4}(?:-\d\d-\d\d)?)(?:/(?P<by>" + "|".join(PERIODS) + "))?",
    re.ASCII,
)
_ICD10 = (
    *("A00-B99", "C00-D48", "D50-D90", "E00-E90", "F00-F99", "G00-G99", "H00-H59", "H60-H95", "I00-I99", "J00-J99"),
    *("K00-K93", "L00-L99", "M00-M99", "N00-N99", "O00-O99", "P00-P96", "Q00-Q99", "R00-R99", "S00-T98", "V01-Y84"),
    *("Z00-Z99", "U00-U99"),
)
"""The chapters of the International Classification of Diseases, 10th revision."""
_REGIONS = {
    "AT": "AT-1 AT-2 AT-3 AT-4 AT-5 AT-6 AT-7 AT-8 AT-9",
    "CH": "AG AI AR BE BL BS FR GE GL GR JU LU NE NW OW SG SH SO SZ TG TI UR VD VS ZG ZH",
    "DE": "BB BE BW BY HB HE HH MV NI NW RP SH SL SN ST TH",
    "EU": "AT BE BG CY CZ DE DK EE ES FI FR GR HR HU IE IT LT LU LV MT NL PL PT RO SE SI SK",
    "US": (
        "AK AL AR AZ CA CO CT DC DE FL GA HI IA ID IL IN KS KY LA MA MD ME MI MN MO MS MT NC ND NE NH NJ NM NV NY OH "
        "OK OR PA RI SC SD TN TX UT VA VT WA WI WV WY"
    ),
}


@dataclass
class Draft:
    """A schema in the making: its columns as objects of JSON, and the columns that are left out, with a word why."""

    columns: list[dict[str, Any]] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)

    def to_json(self, name: str | None = None) -> dict[str, Any]:
        """A schema, unless there is no column."""
        if not self.columns:
            raise DomainError("no column is left for a schema")
        return {"version": 1, **({"name": name} if name else {}), "columns": self.columns}


@dataclass(frozen=True)
class Template:
    """A way to describe a column. make: its fields, from what follows the colon; or text: why it is left out."""

    summary: str
    make: Callable[[str], dict[str, Any] | str]
    suggests: str = r"(?!)"
    """A pattern of names for which it is suggested."""


def _age(argument: str) -> dict[str, Any]:
    width = int(_number(argument or "10"))
    if not 1 <= width <= 50:
        raise DomainError("the bands must have 1 to 50 years")
    return {"kind": "numeric", "integer": True, "bin_edges": [*range(0, 100, width), 120]}


def _texts(argument: str, default: str = "") -> list[str]:
    found = [part.strip() for part in (argument or default).split(",")]
    if not all(found):
        raise DomainError("give texts, separated by commas")
    return found


def _yes_no(argument: str) -> dict[str, Any]:
    texts = _texts(argument, "yes,no")
    if len(texts) != 2:
        raise DomainError("give two texts: the one for yes, then the one for no")
    return {"kind": "boolean", "true": texts[0], "false": texts[1]}


def _listed(argument: str, *, ordered: bool = False) -> dict[str, Any]:
    return {"kind": "categorical", "categories": _texts(argument), **({"ordered": True} if ordered else {})}


def with_other(categories: Sequence[str], most: int | None = None) -> dict[str, Any]:
    """A categorical column in which a further category takes what is not listed, or what is beyond the first `most`."""
    kept = [*categories[:most]]
    if OTHER not in kept:
        kept.append(OTHER)
    return {"kind": "categorical", "categories": kept, "other": OTHER}


def _region(argument: str) -> dict[str, Any]:
    codes = _REGIONS.get(argument.upper())
    if codes is None:
        raise DomainError(f"regions are known of {', '.join(_REGIONS)}")
    return with_other(codes.split())


def _income(argument: str) -> dict[str, Any]:
    unit = _number(argument or "1000")
    return {
        "kind": "numeric",
        "bin_edges": [unit * step for step in (0, 10, 20, 30, 40, 50, 60, 80, 100, 150, 200, 500)],
    }


def _number(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        raise DomainError("give a number") from None
    if not math.isfinite(found):
        raise DomainError("give a number")
    return int(found) if found.is_integer() else found


def round_bins(low: float, high: float, width: float | None = None) -> list[float]:
    """Edges at round numbers, from `low` or below to `high` or above: `MOST_BINS` bins or so, unless width is given."""
    if not low < high:
        raise DomainError("a range goes from a number to a greater one")
    if width is None:
        rough = (high - low) / MOST_BINS
        power = 10.0 ** math.floor(math.log10(rough))
        width = next(step * power for step in _STEPS if step * power >= rough * (1 - 1e-9))
    if width <= 0 or (high - low) / width > 10_000:
        raise DomainError("a range has at most 10,000 bins")
    first, last = math.floor(low / width + 1e-9), math.ceil(high / width - 1e-9)
    edges = [round(step * width, 12) for step in range(first, last + 1)]
    return [int(edge) if float(edge).is_integer() else edge for edge in edges]


def _range(argument: str, *, integer: bool) -> dict[str, Any]:
    found = _RANGE.fullmatch(argument)
    if found is None:
        raise DomainError("give a range, as 0..200, or with the width of its bins, as 0..200/25")
    low, high = float(found["low"]), float(found["high"])
    width = None if found["width"] is None else float(found["width"])
    if integer:
        return integer_range(low, high, width)
    return {"kind": "numeric", "bin_edges": round_bins(low, high, width)}


def integer_range(low: float, high: float, width: float | None = None) -> dict[str, Any]:
    """Integers from low to high, both included."""
    if width is None and high - low < MOST_BINS:
        width = 1
    edges = round_bins(low, high + 1, max(1.0, math.ceil(width)) if width is not None else None)
    if any(edge != int(edge) for edge in edges):
        edges = round_bins(low, high + 1, 1)
    return {"kind": "numeric", "integer": True, "bin_edges": edges}


def _months(argument: str) -> dict[str, Any]:
    found = re.fullmatch(r"(\d{4})\.\.(\d{4})", argument)
    if found is None or not 0 <= int(found[2]) - int(found[1]) < 100:
        raise DomainError("give the years, as month:2020..2025")
    years = range(int(found[1]), int(found[2]) + 1)
    return {
        "kind": "categorical",
        "categories": [f"{year}-{month:02}" for year in years for month in range(1, 13)],
        "ordered": True,
    }


def _date(argument: str) -> dict[str, Any] | str:
    if not argument:
        return (
            "days need a range and a period to count by: --column NAME=date:2020..2025/month; or use it in a join key"
        )
    found = _DAYS.fullmatch(argument)
    if found is None:
        raise DomainError("give years or days, and a period if you like: 2020..2025, or 2020-07-01..2025-06-30/month")
    first = found["first"] if "-" in found["first"] else f"{found['first']}-01-01"
    last = found["last"] if "-" in found["last"] else f"{found['last']}-12-31"
    return date_range(first, last, found["by"])


def date_range(first: str, last: str, by: str | None = None) -> dict[str, Any]:
    """Days from one to another: by the shortest period that gives `MOST_BINS` bins or fewer, or by year."""
    low, high = day_of(first), day_of(last)
    few = (one for one, period in reversed(PERIODS.items()) if high - low < MOST_BINS * period.longest)
    by = by or next((one for one in few if len(PERIODS[one].edges(low, high)) <= MOST_BINS + 1), "year")
    return {"kind": "date", "first": first, "last": last, "by": by}


TEMPLATES: Mapping[str, Template] = {
    "age": Template("years of age in bands of 10, or of age:5", _age, r"\b(age|alter|years)\b"),
    "sex": Template(
        "female, male and other, or as the file writes them: sex:F,M",
        lambda argument: with_other(_texts(argument, "female,male")),
        r"\b(sex|gender|geschlecht)\b",
    ),
    "yes-no": Template("yes and no, or as the file writes them: yes-no:1,0", _yes_no, r"\b(is|has|smoker|flag|yn)\b"),
    "year": Template(
        "a year, in the range year:1990..2030",
        lambda argument: _range(argument or "1900..2039", integer=True),
        r"\b(year|jahr)\b",
    ),
    "month": Template(
        "a month as 2025-12, of the years month:2020..2025",
        _months,
        r"\b(month|monat)\b",
    ),
    "icd10": Template(
        "the ICD-10 chapter, as E00-E90: map codes to chapters before you send them",
        lambda _: with_other(_ICD10),
        r"\b(icd|icd10|chapter)\b",
    ),
    "region": Template(
        f"region codes of region:DE; also {', '.join(one for one in _REGIONS if one != 'DE')}",
        _region,
        r"\b(region|state|bundesland|canton|kanton|country)\b",
    ),
    "income": Template(
        "income in round bands of thousands, or of income:1000000", _income, r"\b(income|salary|wage|einkommen)\b"
    ),
    "number": Template(
        "a number in a range: number:0..200, or number:0..200/25", lambda one: _range(one, integer=False)
    ),
    "integer": Template("an integer in a range: integer:0..20", lambda one: _range(one, integer=True)),
    "list": Template("one of these texts: list:A,B,AB,0", _listed),
    "ordinal": Template(
        "one of these texts, in order: ordinal:low,medium,high", lambda one: _listed(one, ordered=True)
    ),
    "list-other": Template("one of these texts, or other: list-other:A,B", lambda one: with_other(_texts(one))),
    "id": Template(
        "identifies a person: left out",
        lambda _: "it identifies persons, so no category of it could be published",
        r"\b(id|ids|uuid|mrn|ssn|nr|no|number|name|email|phone)\b",
    ),
    "key": Template(
        "joins rows of several holders: left out, named in the study's join instead",
        lambda _: "it is a join key: name it in the study's `join`, docs/joining.md",
        r"\b(insurance number|national id)\b",
    ),
    "date": Template(
        "a day, in a range, by year, quarter, month, week: date:2020..2025/month",
        _date,
        r"\b(date|day|datum|dob|birthday|timestamp|time)\b|\bat$",
    ),
    "skip": Template("left out", lambda _: "it was left out by choice"),
}


def suggestion(name: str) -> str | None:
    """The template that a column's name suggests. Order matters: `birth date id` identifies."""
    words = re.sub(r"[^a-z0-9]+", " ", re.sub(r"([a-z])([A-Z])", r"\1 \2", name[:MAX_TEXT]).lower()).strip()
    for template in ("key", "id", "date", "month", "year", *TEMPLATES):
        if re.search(TEMPLATES[template].suggests, words):
            return template
    return None


def apply(draft: Draft, name: str, asked: str) -> None:
    """Describe a column by `template` or `template:argument`. Raises DomainError."""
    template, _, argument = asked.partition(":")
    if template not in TEMPLATES:
        raise DomainError(f"{name}: the templates are {', '.join(TEMPLATES)}")
    try:
        made = TEMPLATES[template].make(argument)
    except DomainError as error:
        raise DomainError(f"{name}: {template}: {error}") from None
    if isinstance(made, str):
        draft.left_out[name] = made
    else:
        draft.columns.append({"name": name, **made})
