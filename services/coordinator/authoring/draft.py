"""A study in the making: texts as they were typed, whatever they say, and the manifest that they make.

`judged` has every remark of `caps study check` on it, by place; each place belongs to a step of the wizard. So a
draft's errors follow from the draft, whenever it is looked at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict

from caps.basics import canonical
from caps.basics.schemes import SCHEMES
from caps.data.joinkey import JoinKey
from caps.errors import DomainError
from caps.study import Manifest
from caps.study.authoring import Remark, examined
from caps.trust.cards import ROLES, Card, Party
from services.coordinator.authoring.columns import TypedColumn, described

MOST_COLUMNS, MOST_CARDS, MOST_KEYS, MOST_QUERIES = 400, 100, 16, 400
"""What one draft may have: whoever needs more writes the file by hand."""
Step = Literal["about", "columns", "parties", "matching", "question", "privacy", "review"]
STEPS: Mapping[Step, str] = {
    "about": "About",
    "columns": "Columns",
    "parties": "Parties",
    "matching": "Matching",
    "question": "Accuracy",
    "privacy": "Privacy",
    "review": "Review",
}
ALGORITHMS: Mapping[str, str] = {
    "aim": "The usual choice: round by round, it measures what the model so far gets most wrong. Best where some "
    "columns depend on others and nobody knows which.",
    "mst": "Measures every column, then one tree of pairs: quick, with little noise. The rest is guessed from these.",
    "mwem": "Like AIM with a fixed number of rounds; the only one for pure epsilon, without delta.",
    "gaussian": "Measures everything that you ask for, once. Good for few tables; the noise grows with their number.",
}
SCHEME_WORDS: Mapping[str, str] = {
    "rep3": "three servers that follow the protocol",
    "rep3-active": "three servers, of which one may do anything",
    "rep4": "four servers, of which one may do anything",
}
_COUNT = re.compile(r"\d{1,15}", re.ASCII)


class TypedHolder(BaseModel):
    """What a holder brings. columns: names, of those that it brings."""

    model_config = ConfigDict(extra="ignore")

    brings: str = "rows"
    columns: list[str] = []
    capacity: str = ""


class TypedKey(BaseModel):
    """A column of the join key."""

    model_config = ConfigDict(extra="ignore")

    key: int = 0
    name: str = ""
    kind: str = "text"
    case: str = "fold"
    whitespace: str = "collapse"
    remove: str = ""
    formats: str = "%Y-%m-%d"


class TypedQuery(BaseModel):
    """Columns whose joint counts should be accurate."""

    model_config = ConfigDict(extra="ignore")

    key: int = 0
    attributes: list[str] = []
    weight: str = "1"


class Draft(BaseModel):
    """Everything that was typed. seen: the steps that were sent at least once, whose errors are shown.

    saved: how often a form was sent. What is kept as it is typed has the number that its page was made with, so what
    arrives late does not undo what was sent after it.
    """

    model_config = ConfigDict(extra="ignore")

    seen: list[str] = []
    saved: int = 0
    last_key: int = 0
    title: str = ""
    purpose: str = ""
    population: str = ""
    columns: list[TypedColumn] = []
    new_name: str = ""
    new_asked: str = ""
    left_out: dict[str, str] = {}
    cards: list[Card] = []
    url: str = ""
    holders: dict[str, TypedHolder] = {}
    scheme: str = "rep3"
    matching: str = "none"
    keys: list[TypedKey] = []
    mode: str = "union"
    key_missing: str = "refuse"
    slots: str = ""
    slot_column: str = ""
    workload: str = "all-pairs"
    label: str = ""
    queries: list[TypedQuery] = []
    algorithm: str = "aim"
    epsilon: str = "1"
    delta: str = "0.000001"
    neighbouring: str = "unbounded"
    multiplicity: str = "1"
    rows: str = ""
    persons: str = ""
    wished: str = ""
    proposed: str = ""

    def next_key(self) -> int:
        """A number that no part of this draft has had."""
        self.last_key += 1
        return self.last_key

    def cards_of(self, role: str) -> list[Card]:
        """The cards of parties in this role, by name."""
        return sorted((card for card in self.cards if card.role == role), key=lambda card: card.name)

    def column(self, key: int) -> TypedColumn | None:
        """A column by its number."""
        return next((one for one in self.columns if one.key == key), None)

    @property
    def spread(self) -> bool:
        """Whether persons have their columns at several holders."""
        return any(self.holder(card.name).brings == "columns" for card in self.cards_of("holder"))

    def holder(self, name: str) -> TypedHolder:
        """What a holder brings, as far as it was said."""
        return self.holders.get(name, TypedHolder())

    def add_columns(self, found: Iterable[TypedColumn]) -> int:
        """Add columns; one of the same name takes the old one's place. Returns how many. Raises DomainError."""
        added = 0
        for one in found:
            old = next((at for at, column in enumerate(self.columns) if column.name == one.name), None)
            made = one.model_copy(update={"key": self.next_key()})
            if old is not None:
                self.columns[old] = made
            elif len(self.columns) >= MOST_COLUMNS:
                raise DomainError(f"a draft has at most {MOST_COLUMNS} columns")
            else:
                self.columns.append(made)
            self.left_out.pop(one.name, None)
            added += 1
        return added

    def add_cards(self, found: Iterable[Card]) -> None:
        """Add cards; one of the same role and name takes the old one's place. Raises DomainError."""
        cards = {(card.role, card.name): card for card in [*self.cards, *found] if card.role != "coordinator"}
        if len(cards) > MOST_CARDS:
            raise DomainError(f"a draft has at most {MOST_CARDS} parties")
        self.cards = sorted(cards.values(), key=lambda card: (ROLES.index(card.role), card.name))
        servers = len(self.cards_of("mpc-server"))
        if servers != SCHEMES[self.scheme].parties if self.scheme in SCHEMES else True:
            self.scheme = next((one.name for one in SCHEMES.values() if one.parties == servers), self.scheme)


@dataclass(frozen=True)
class Judged:
    """A draft as a manifest: the document so far, every remark on it, and the manifest if there is no error."""

    document: Mapping[str, Any]
    remarks: tuple[Remark, ...]
    manifest: Manifest | None

    @property
    def errors(self) -> list[Remark]:
        """What prevents a proposal."""
        return [one for one in self.remarks if one.severity == "error"]

    @property
    def warnings(self) -> list[Remark]:
        """What deserves a second look."""
        return [one for one in self.remarks if one.severity == "warning"]

    def of_step(self, step: str) -> list[Remark]:
        """The remarks that a step of the wizard can answer."""
        return [one for one in self.remarks if step_of(one.place) == step]

    def at(self, place: str) -> list[Remark]:
        """The remarks on a place, and on what is in it."""
        return [one for one in self.remarks if _within(one.place, place)]

    @cached_property
    def text(self) -> str:
        """The manifest as a file, for people."""
        return yaml.safe_dump(dict(self.document), sort_keys=False, allow_unicode=True, width=110)


def _within(place: str, outer: str) -> bool:
    return place == outer or (place.startswith(outer) and place[len(outer)] in ".[")


_STEPS: Mapping[Step, re.Pattern[str]] = {
    "about": re.compile(r"title|purpose|privacy\.population"),
    "matching": re.compile(r"holders\[\d+\]\.capacity|join|alignment"),
    "columns": re.compile(r"schema"),
    "parties": re.compile(r"servers|coordinator|holders|scheme"),
    "question": re.compile(r"workload|algorithm"),
    "privacy": re.compile(r"privacy"),
}
"""The places of each step; the first that matches counts."""


def step_of(place: str) -> Step:
    """The step in which a place of the manifest is typed."""
    return next((step for step, places in _STEPS.items() if places.match(place)), "review")


def judged(draft: Draft, coordinator: Party) -> Judged:
    """The draft with everything that `caps study check` says about it. coordinator: this one."""
    own: list[Remark] = []
    document = _document(draft, coordinator, own)
    remarks, manifest = examined(json.dumps(document))
    told = {one.place for one in own}
    others = [one for one in remarks if not any(_within(one.place, place) for place in told)]
    return Judged(document, (*own, *others), None if own else manifest)


def _document(draft: Draft, coordinator: Party, own: list[Remark]) -> dict[str, Any]:
    def mistake(place: str, message: str) -> None:
        own.append(Remark("error", place, 0, 0, message))

    def count(place: str, text: str) -> int | None:
        """A number as people type it; None, with a remark unless it is empty, if it is none."""
        digits = re.sub(r"[\s,_']", "", text)
        if digits and not _COUNT.fullmatch(digits):
            mistake(place, "must be a whole number")
        return int(digits) if _COUNT.fullmatch(digits) else None

    columns: list[dict[str, Any]] = []
    for at, column in enumerate(draft.columns):
        try:
            columns.append(described(column))
        except DomainError as error:
            mistake(f"schema.columns[{at}]", str(error))
            columns.append({"name": column.name, "kind": "boolean"})
    names = [column.name for column in draft.columns]
    if not names:
        mistake("schema.columns", "there is no column yet")
    holders = []
    for at, card in enumerate(draft.cards_of("holder")):
        said = draft.holder(card.name)
        one: dict[str, Any] = {**_keys(card), "brings": said.brings}
        if said.brings == "columns":
            one["columns"] = [name for name in names if name in said.columns]
            if not one["columns"]:
                mistake(f"holders[{at}].columns", "tick the columns that it brings")
            if draft.matching == "join":
                place = f"holders[{at}].capacity"
                capacity = count(place, said.capacity)
                if capacity is not None:
                    one["capacity"] = capacity
                elif not said.capacity:
                    mistake(place, "say how many rows it sends at most; padding hides how many it has")
        holders.append(one)
    if not holders:
        mistake("holders", "there is no holder yet: add the card of each data owner")
    servers = [{**_keys(card), "url": card.url, "mesh": card.mesh} for card in draft.cards_of("mpc-server")]
    if not servers:
        mistake("servers", "there is no server yet: add the servers' cards")
    document: dict[str, Any] = {"version": 1, "title": draft.title}
    if not draft.title:
        mistake("title", "give the study a title")
    if draft.purpose:
        document["purpose"] = draft.purpose
    document |= {"schema": {"version": 1, "columns": columns}, "holders": holders}
    if draft.spread and draft.matching == "join":
        document["join"] = {"key": _join_key(draft, mistake), "mode": draft.mode}
    elif draft.spread and draft.matching == "alignment":
        slots = count("alignment.slots", draft.slots)
        document["alignment"] = {} if slots is None else {"slots": slots}
        if draft.slot_column:
            document["alignment"]["column"] = draft.slot_column
    elif draft.spread:
        mistake("alignment", "say how the holders' rows of one person are found")
    document["workload"] = _workload(draft, mistake, count)
    privacy: dict[str, Any] = {"epsilon": draft.epsilon, "delta": draft.delta, "population": draft.population}
    if not draft.population:
        mistake("privacy.population", "name the group of persons")
    if draft.neighbouring == "bounded":
        privacy["neighbouring"] = "bounded"
        if (rows := count("privacy.rows", draft.rows)) is not None:
            privacy["rows"] = rows
    if (multiplicity := count("privacy.multiplicity", draft.multiplicity)) is not None:
        privacy["multiplicity"] = multiplicity
    elif not draft.multiplicity:
        mistake("privacy.multiplicity", "must be a whole number")
    return document | {
        "algorithm": {"name": draft.algorithm},
        "privacy": privacy,
        "scheme": draft.scheme,
        "servers": servers,
        "coordinator": {**_keys(coordinator), "url": draft.url},
    }


def _keys(party: Party | Card) -> dict[str, str]:
    return {"name": party.name, "pin": party.pin, "signing_key": party.signing_key}


def _join_key(draft: Draft, mistake: Any) -> dict[str, Any]:
    if not draft.keys:
        mistake("join.key.columns", "name the columns that identify a person")
    return {
        "columns": [_key_column(one) for one in draft.keys],
        "missing": draft.key_missing,
        "unparsable": draft.key_missing,
    }


def _key_column(one: TypedKey) -> dict[str, Any]:
    match one.kind:
        case "text":
            rules = {"case": one.case, "whitespace": one.whitespace, "remove": one.remove}
        case "date":
            rules = {"formats": [form.strip() for form in one.formats.split(",") if form.strip()]}  # type: ignore[dict-item]
        case _:
            rules = {}
    return {"name": one.name, "kind": one.kind, **rules}


def _workload(draft: Draft, mistake: Any, count: Any) -> Any:
    if draft.workload == "label":
        if not draft.label:
            mistake("workload.label", "choose the column that will be predicted")
        return {"label": draft.label}
    if draft.workload == "queries":
        if not draft.queries:
            mistake("workload", "add a table that should be accurate")
        asked = []
        for at, one in enumerate(draft.queries):
            weight = count(f"workload[{at}].weight", one.weight)
            asked.append({"attributes": one.attributes, **({} if weight is None else {"weight": weight})})
            if not one.attributes:
                mistake(f"workload[{at}].attributes", "tick two or more columns")
        return asked
    return "all-pairs"


def read_cards(text: str) -> list[Card]:
    """The cards in a text: one after another, or in a list. Raises DomainError."""
    decoder, at, found = json.JSONDecoder(), 0, list[Any]()
    text = text.strip()
    while at < len(text):
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            raise DomainError("this is not a card: paste card.json as `caps pki card` wrote it") from None
        found += value if isinstance(value, list) else [value]
        at = end + len(text[end:]) - len(text[end:].lstrip(" \t\r\n,"))
        if len(found) > MOST_CARDS:
            raise DomainError(f"a draft has at most {MOST_CARDS} parties")
    if not found:
        raise DomainError("there is no card here: paste card.json as `caps pki card` wrote it")
    return [Card.of_json(one, "the card") for one in found]


@dataclass(frozen=True)
class Spelling:
    """What the join key makes of one spelling: its texts after the rules, by column; None where there is none."""

    normal: Mapping[str, str | None]


@dataclass(frozen=True)
class Trial:
    """Two spellings of one person's key, and whether they meet."""

    first: Spelling
    second: Spelling
    meet: bool


def tried(draft: Draft, spellings: Sequence[Mapping[str, str]]) -> Trial:
    """Whether two spellings of a key meet. Raises DomainError if there is no valid key yet."""
    key = JoinKey.from_json(canonical.dump(_join_key(draft, lambda *_: None)))
    read = []
    for one in spellings:
        levelled = {column.name: column.normal(one.get(column.name, "")) for column in key.columns}
        read.append(Spelling(levelled))
    first, second = read
    whole = None not in first.normal.values()
    return Trial(first, second, whole and first.normal == second.normal)
