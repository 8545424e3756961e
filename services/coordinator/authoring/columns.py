"""Columns as an author types them, in one text for each thing there is to say; and as a schema has them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from caps.data.schema import Column
from caps.data.schema import templates as by_template
from caps.errors import DomainError

KINDS: Mapping[str, str] = {
    "list": "one of a list of texts",
    "ordinal": "one of a list of texts, in this order",
    "number": "a number, in bins",
    "integer": "a whole number, in bins",
    "yes-no": "yes or no",
    "date": "a day, in periods",
}
MISSING: Mapping[str, str] = {
    "": "the usual: refused, unless texts for missing values are given",
    "category": "count it as one more category",
    "null": "leave the person out of counts of this column",
    "refuse": "refuse the table",
}
_TYPED = {"name", "kind", "categories", "ordered", "other", "bin_edges", "integer", "true", "false"} | {
    *("first", "last", "by", "format", "missing", "missing_values", "missing_value")
}
"""The fields of a column that have a place in the form; what else there is stays as it is."""
_FAMILIES = {"list": "categorical", "ordinal": "categorical", "number": "numeric", "integer": "numeric"}


class TypedColumn(BaseModel):
    """A column as somebody types it. key: its number in the draft, which stays. rest: fields that the form lacks."""

    model_config = ConfigDict(extra="ignore")

    key: int = 0
    name: str = ""
    kind: str = "list"
    values: str = ""
    other: str = ""
    format: str = ""
    missing: str = ""
    missing_values: str = ""
    rest: dict[str, Any] = {}


def typed(column: Mapping[str, Any], key: int = 0) -> TypedColumn:
    """A schema's column as somebody would type it."""
    kind, edges = column.get("kind"), column.get("bin_edges")
    found = {"kind": "list", "values": "\n".join(map(str, column.get("categories", ())))}
    match kind:
        case "categorical" if column.get("ordered"):
            found["kind"] = "ordinal"
        case "numeric":
            found["kind"] = "integer" if column.get("integer") else "number"
            found["values"] = ", ".join(map(str, edges or ()))
        case "boolean":
            found = {"kind": "yes-no", "values": f"{column.get('true', 'true')}\n{column.get('false', 'false')}"}
        case "date":
            days = f"{column.get('first')}..{column.get('last')}/{column.get('by')}"
            found = {"kind": "date", "values": days if edges is None else ", ".join(map(str, edges))}
    tokens = column.get("missing_values", [column["missing_value"]] if "missing_value" in column else [])
    return TypedColumn(
        key=key,
        name=str(column.get("name", "")),
        other=str(column.get("other") or ""),
        format=str(column.get("format") or ""),
        missing=str(column.get("missing") or ""),
        missing_values="\n".join(map(str, tokens)),
        rest={name: value for name, value in column.items() if name not in _TYPED},
        **found,
    )


def by_name_and_template(name: str, asked: str) -> TypedColumn | str:
    """A column from a template, or why it is left out. asked: as `caps schema new` takes it. Raises DomainError."""
    draft = by_template.Draft()
    by_template.apply(draft, name, asked)
    return typed(draft.columns[0]) if draft.columns else draft.left_out[name]


def described(column: TypedColumn) -> dict[str, Any]:
    """The column of a schema. Raises DomainError, in words for whoever types it, if the texts describe none."""
    if column.kind not in KINDS:
        raise DomainError(f"the kinds are {', '.join(KINDS)}")
    made = _MAKERS[column.kind](column)
    family = _FAMILIES.get(column.kind, made["kind"])
    allowed = {"numeric": {"side", "outside", "decimals"}, "date": {"outside", "publish"}}.get(family, set()) | {"note"}
    made |= {name: value for name, value in column.rest.items() if name in allowed}
    if column.missing:
        made["missing"] = column.missing
    if tokens := _lines(column.missing_values):
        made["missing_values"] = tokens
    made = {"name": column.name, **made}
    Column.from_json(made)
    return made


def _lines(text: str) -> list[str]:
    return [line for line in text.replace("\r", "").split("\n") if line]


def _several(text: str) -> list[str]:
    """Items on lines of their own; or in one line, with commas between."""
    items = _lines(text)
    return [part.strip() for part in items[0].split(",")] if len(items) == 1 else items


def _listed(column: TypedColumn) -> dict[str, Any]:
    categories = _lines(column.values)
    if not categories:
        raise DomainError("values: list the categories, each on a line of its own")
    made: dict[str, Any] = {"kind": "categorical", "categories": categories}
    if column.kind == "ordinal":
        made["ordered"] = True
    if column.other:
        made |= {"categories": categories if column.other in categories else [*categories, column.other]}
        made["other"] = column.other
    return made


def _numeric(column: TypedColumn) -> dict[str, Any]:
    if ".." in column.values:
        return _of_template(column, column.kind)
    texts = re.split(r"[\s,;]+", column.values.strip())
    try:
        edges = [float(text) if re.search(r"[.eE]", text) else int(text) for text in texts if text]
    except ValueError:
        raise DomainError(
            "values: give the edges of the bins, as 0, 18, 40, 65, 120; or a range, as 0..120/10"
        ) from None
    made: dict[str, Any] = {"kind": "numeric", "bin_edges": edges}
    return made | ({"integer": True} if column.kind == "integer" else {})


def _yes_no(column: TypedColumn) -> dict[str, Any]:
    texts = _several(column.values)
    if len(texts) != 2:
        raise DomainError("values: give two texts: how the file writes yes, then how it writes no")
    return {"kind": "boolean", "true": texts[0], "false": texts[1]}


def _date(column: TypedColumn) -> dict[str, Any]:
    if ".." in column.values:
        made = _of_template(column, "date")
    else:
        days = re.split(r"[\s,;]+", column.values.strip())
        if len(days) < 2:
            raise DomainError("values: give a range and a period, as 2020..2025/month; or the first days of the bins")
        made = {"kind": "date", "bin_edges": days}
    return made | ({"format": column.format} if column.format else {})


def _of_template(column: TypedColumn, template: str) -> dict[str, Any]:
    try:
        made = by_template.TEMPLATES[template].make(column.values.strip())
    except DomainError as error:
        raise DomainError(f"values: {error}") from None
    assert isinstance(made, dict)
    return made


_MAKERS: Mapping[str, Callable[[TypedColumn], dict[str, Any]]] = {
    "list": _listed,
    "ordinal": _listed,
    "number": _numeric,
    "integer": _numeric,
    "yes-no": _yes_no,
    "date": _date,
}


def in_words(column: Mapping[str, Any], most: int = 6) -> str:
    """The values of a schema's column in a line."""
    match column["kind"]:
        case "categorical":
            return _few(column["categories"], most) + (", in order" if column.get("ordered") else "")
        case "numeric":
            edges = column["bin_edges"]
            return f"{edges[0]} to {edges[-1]} in {len(edges) - 1} bins"
        case "boolean":
            return f"{column.get('true', 'true')} or {column.get('false', 'false')}"
    edges = column.get("bin_edges")
    return _few(edges, most) if edges else f"{column['first']} to {column['last']} by {column['by']}"


def _few(texts: Sequence[object], most: int) -> str:
    shown = ", ".join(map(str, texts[:most]))
    return shown if len(texts) <= most else f"{shown} and {len(texts) - most:,} more"
