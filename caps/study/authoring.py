"""Help for authors of a manifest: a commented template, and every error in a file with its place."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from fractions import Fraction
from functools import cache, cached_property
from textwrap import indent
from typing import Any, Literal, TypeAlias

import yaml
from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from caps.basics import canonical
from caps.basics.document import mistakes
from caps.basics.schemes import SCHEMES
from caps.data.schema import Schema
from caps.errors import DomainError
from caps.study.manifest import MISTAKES, SCHEME, AlgorithmChoice, Manifest
from caps.study.policy import Policy
from caps.trust.cards import Card

MAX_TEXT = 4 << 20
"""The most characters in a manifest's file."""
Place: TypeAlias = tuple[str | int, ...]
_QUICK_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's, where PyYAML was built with it: for positions in a text that has been read before."""
_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class Remark:
    """A remark on a file: where, what, and what to do. line and column count from 1; 0 means the whole file."""

    severity: Literal["error", "warning"]
    place: str
    line: int
    column: int
    message: str
    hint: str = ""
    source: str = "manifest"

    def __str__(self) -> str:
        return self.render(self.source)

    def render(self, source: str) -> str:
        """One line in the format of a compiler's messages, and the hint on a second line."""
        where = f"{self.place}: " if self.place else ""
        text = f"{source}:{self.line}:{self.column}: {self.severity}: {where}{self.message}"
        return f"{text}\n    {self.hint}" if self.hint else text


class ManifestRefused(DomainError):
    """The file is not a valid manifest; `remarks` say why."""

    def __init__(self, remarks: Sequence[Remark]) -> None:
        super().__init__("\n".join(map(str, remarks)))
        self.remarks = tuple(remarks)


def load(text: str, source: str = "manifest") -> Manifest:
    """The manifest in a YAML or JSON text. Raises ManifestRefused with every error."""
    remarks, manifest = examined(text)
    if manifest is None:
        raise ManifestRefused([replace(remark, source=source) for remark in remarks])
    return manifest


def check(text: str, source: str = "manifest") -> list[Remark]:
    """Every error in a YAML or JSON text, in the order of the text; if there is none, warnings about doubtful parts.

    Errors that involve several parts are only reported if each of the parts is valid by itself.
    """
    return [replace(remark, source=source) for remark in examined(text)[0]]


def examined(text: str) -> tuple[list[Remark], Manifest | None]:
    """What `check` returns, and the manifest if there is no error."""
    try:
        marks, value = _parsed(text)
    except _NotReadable as error:
        return [error.remark], None
    doubts = [*_structure(marks, value)]
    if doubts:
        return doubts, None
    assert isinstance(value, dict)
    told: list[str] = []
    manifest, remarks = None, [*_placeholders(value, marks)]
    try:
        manifest = Manifest.model_validate_json(canonical.dump(value), strict=True, context={MISTAKES: told})
    except DomainError as error:
        return [marks.remark((), str(error))], None
    except ValidationError as error:
        placeholders = {remark.place for remark in remarks}
        found = mistakes(error)
        fields = _field_remarks(found, value, marks)
        remarks += [remark for remark in fields if remark.place not in placeholders]
        told = _partial_mistakes({str(e["loc"][0]) for e in found if e["loc"]}, value)
    for mistake in told:
        place, _, message = mistake.partition(": ")
        remarks.append(marks.remark(_steps(place), message, shown=place))
    remarks.sort(key=lambda remark: (remark.line, remark.column))
    if remarks:
        return remarks, None
    assert manifest is not None
    return [*_warnings(manifest, marks)], manifest


class _NotReadable(Exception):
    def __init__(self, message: str, line: int = 0, column: int = 0, hint: str = "") -> None:
        self.remark = Remark("error", "", line, column, message, hint)


@dataclass(frozen=True)
class _Marks:
    """The position of each part of a file, found when it is first asked for: a file without remarks needs none."""

    text: str
    unique: bool = False
    """Whether it is known that no object has a repeated member."""

    @cached_property
    def root(self) -> yaml.Node | None:
        try:
            found: yaml.Node | None = yaml.compose(self.text, _QUICK_LOADER)
        except (yaml.YAMLError, ValueError, RecursionError):  # it is JSON nevertheless; only line numbers are lost
            return None
        return found

    def at(self, place: Place) -> tuple[int, int]:
        """Line and column of a part, or of the nearest enclosing part."""
        node = self.root
        if node is None:
            return 0, 0
        mark = node.start_mark
        for step in place:
            if isinstance(node, yaml.MappingNode):
                found = self._named(node).get(str(step))
                if found is None:
                    break
                mark, node = found[0].start_mark, found[1]
            elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
                node = node.value[step]
                mark = node.start_mark
            else:
                break
        return mark.line + 1, mark.column + 1

    @cached_property
    def _members(self) -> dict[int, dict[str, tuple[yaml.Node, yaml.Node]]]:
        return {}

    def _named(self, node: yaml.MappingNode) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        """The members of an object by their names, listed once: there may be as many remarks as members."""
        if id(node) not in self._members:  # nodes live as long as the root
            listed = {str(key.value): (key, item) for key, item in reversed(node.value)}
            self._members[id(node)] = listed
        return self._members[id(node)]

    def remark(
        self,
        place: Place,
        message: str,
        hint: str = "",
        *,
        shown: str | None = None,
        severity: Literal["error", "warning"] = "error",
    ) -> Remark:
        return Remark(severity, _spelled(place) if shown is None else shown, *self.at(place), message, hint)


def _parsed(text: str) -> tuple[_Marks, object]:
    if len(text) > MAX_TEXT:
        raise _NotReadable(f"the file has more than {MAX_TEXT >> 20} million characters")
    if text.lstrip("\ufeff \t\r\n").startswith("{"):
        return _parsed_json(text.lstrip("\ufeff"))
    try:
        for event in yaml.parse(text, yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
                mark = event.start_mark
                raise _NotReadable("anchors (&) and aliases (*) are not allowed", mark.line + 1, mark.column + 1)
        return _Marks(text), yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        hint = "indent with spaces, and put text that contains ': ' or '#' in quotes"
        raise _NotReadable(f"not YAML: {error.problem or error.context}", line, column, hint) from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise _NotReadable("neither YAML nor JSON in UTF-8") from None


def _parsed_json(text: str) -> tuple[_Marks, object]:
    try:
        value = canonical.parse(text)
    except DomainError as error:
        found = re.fullmatch(r"not JSON: line (\d+), column (\d+)", str(error))
        line, column = map(int, found.groups()) if found else (0, 0)
        raise _NotReadable("not JSON" if found else str(error), line, column) from None
    return _Marks(text.replace("\t", " "), unique=True), value


def _structure(marks: _Marks, value: object) -> Iterator[Remark]:
    """Remarks about what YAML allows and JSON does not."""
    if not isinstance(value, dict):
        yield Remark("error", "", 1, 1, "a manifest must be a list of members like `title: ...`")
        return
    if not marks.unique:
        yield from _repeated(marks.root, ())
    for place, item in _items(value, ()):
        if isinstance(item, date):
            yield marks.remark(place, "is a date, which JSON does not have", "put it in quotes to make it text")
        elif isinstance(item, Mapping):
            for name in item:
                if not isinstance(name, str):
                    hint = "put it in quotes; YAML does not read a plain yes, no, on, off or number as text"
                    yield marks.remark(place, f"has a member {name!r}, whose name is not text", hint)
        elif not isinstance(item, str | bool | int | float | list | None):
            yield marks.remark(place, f"is a {type(item).__name__}, which JSON does not have")


def _items(value: object, place: Place) -> Iterator[tuple[Place, object]]:
    yield place, value
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _items(item, (*place, name if isinstance(name, str) else str(name)))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _items(item, (*place, index))


def _repeated(node: yaml.Node | None, place: Place) -> Iterator[Remark]:
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, item in node.value:
            mark, here = key.start_mark, (*place, str(key.value))
            if key.value in seen:
                message = f"is given twice; first in line {seen[key.value]}"
                yield Remark("error", _spelled(here), mark.line + 1, mark.column + 1, message)
            seen.setdefault(str(key.value), mark.line + 1)
            yield from _repeated(item, here)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _repeated(item, (*place, index))


def _field_remarks(errors: Sequence[ErrorDetails], value: dict[str, Any], marks: _Marks) -> list[Remark]:
    """One remark for each place. Where several forms are allowed, pydantic reports an error for each of them."""
    found: dict[str, Remark] = {}
    for error in errors:
        place = _real_place(error["loc"], value)
        if error["type"] == "too_short" and len(_at(place, value)) >= error["ctx"]["min_length"]:
            continue  # pydantic counts only the valid items; the others have their own remarks
        if error["type"] == "missing":
            place = (*place, error["loc"][-1])
        if place == ("workload",):
            if isinstance(value["workload"], list | dict) and value["workload"]:
                continue  # this is about another form; the queries, or the label, have their own remarks
            message, hint = "must be all-pairs, {label: COLUMN}, or a list of queries, each with `attributes`", ""
        else:
            message, hint = _explained(error, place)
        found.setdefault(_spelled(place), marks.remark(place, message, hint))
    return list(found.values())


def _at(place: Place, value: Any) -> Any:
    for step in place:
        value = value[step]
    return value


def _placeholders(value: Mapping[str, object], marks: _Marks) -> Iterator[Remark]:
    for place, item in _items({name: item for name, item in value.items() if name != "schema"}, ()):
        if isinstance(item, str) and item.startswith("<") and item.endswith(">"):
            yield marks.remark(place, "is still the template's placeholder", f"replace {item}")


def _real_place(loc: tuple[int | str, ...], value: Any) -> Place:
    """The part of pydantic's location that is in the file; the rest names types."""
    place: list[str | int] = []
    for step in loc:
        known = step < len(value) if isinstance(value, list) and isinstance(step, int) else False
        if known or (isinstance(value, dict) and step in value):
            value = value[step]
            place.append(step)
    return tuple(place)


_PATTERNS: dict[str, tuple[str, str]] = {
    "pin": ("must be 64 hexadecimal digits", "copy it from the party's card.json, which `caps pki card` writes"),
    "signing_key": (
        "must be 64 hexadecimal digits",
        "copy it from the party's card.json, which `caps pki card` writes",
    ),
    "url": (
        "must be https:// and a host, with an optional port and no path",
        "for example https://s1.example.org:8443",
    ),
    "mesh": ("must be host:port", "for example s1.example.org:9443"),
    "name": (
        "must be 1 to 63 letters, digits, dots, dashes or underscores, beginning with a letter or digit",
        "use the name in the party's certificate",
    ),
    "population": (
        "must be 1 to 63 letters, digits, dots, dashes or underscores, beginning with a letter or digit",
        "studies of the same persons must use the same name, because they share one privacy budget",
    ),
}


def _explained(error: ErrorDetails, place: Place) -> tuple[str, str]:
    """Pydantic's error in our words."""
    context = error.get("ctx", {})
    last = str(place[-1]) if place else ""
    match error["type"]:
        case "missing":
            return "is missing", ""
        case "extra_forbidden":
            return "is not a known member", f"allowed here: {', '.join(_members(place[:-1]))}"
        case "union_tag_not_found":
            return f"must have the member {context['discriminator']}", ""
        case "union_tag_invalid":
            return f"its {context['discriminator']} must be one of {context['expected_tags']}", ""
        case "string_pattern_mismatch" if last in _PATTERNS:
            return _PATTERNS[last]
        case "literal_error":
            return f"must be {context['expected']}", ""
        case "string_type":
            return "must be text", "put it in quotes"
        case "int_type" | "int_from_float" | "int_parsing":
            return "must be a whole number", "remove the quotes" if isinstance(error["input"], str) else ""
        case "bool_type" | "bool_parsing":
            return "must be true or false", ""
        case "tuple_type" | "list_type":
            return "must be a list", ""
        case "dict_type" | "model_type" | "model_attributes_type":
            return "must have members, each on its own line", ""
        case "too_short" | "too_long" if last == "servers":
            sizes = sorted({scheme.parties for scheme in SCHEMES.values()})
            return f"must be {' or '.join(map(str, sizes))} servers, as the scheme demands", ""
        case "value_error":
            return str(context.get("error", error["msg"])), ""
    message = error["msg"]
    return message[:1].lower() + message[1:], ""


@cache
def _manifest_schema() -> dict[str, Any]:
    return Manifest.model_json_schema()


def _members(place: Place) -> list[str]:
    """Names of the members that the object at this place may have."""
    schema = _manifest_schema()
    node: dict[str, Any] = schema
    for step in place:
        node = node["items"] if isinstance(step, int) else node["properties"][step]
        if "oneOf" in node:  # kinds of a column: the author may mean a member of any of them
            kinds = [schema["$defs"][option["$ref"].rpartition("/")[2]]["properties"] for option in node["oneOf"]]
            node = {"properties": {name: part for kind in kinds for name, part in kind.items()}}
        options = [option for option in node.get("anyOf", [node]) if option.get("type") != "null"]
        node = next((option for option in options if "$ref" in option or option.get("type") == "array"), options[0])
        if "$ref" in node:
            node = schema["$defs"][node["$ref"].rpartition("/")[2]]
    return list(node.get("properties", {}))


def _partial_mistakes(wrong: set[str], value: dict[str, Any]) -> list[str]:
    """The mistakes that concern only the valid fields."""
    sound: dict[str, Any] = {}
    for name, field in Manifest.model_fields.items():
        alias = field.alias or name
        if alias in wrong:
            continue
        if alias in value:
            adapter: TypeAdapter[Any] = TypeAdapter(field.annotation or Any)
            sound[name] = adapter.validate_json(canonical.dump(value[alias]), strict=True)
        else:
            sound[name] = field.get_default(call_default_factory=True)
    found = Manifest.model_construct(**sound).mistakes(sound)
    choice = value.get("algorithm")
    chosen = choice.get("name") if isinstance(choice, dict) else None
    if "algorithm" in wrong and isinstance(chosen, str):
        found += Manifest.model_construct(algorithm=AlgorithmChoice(name=chosen)).mistakes(("algorithm",))
    return found


def _steps(place: str) -> Place:
    return tuple(name or int(index) for name, index in _STEP.findall(place))


def _spelled(place: Place) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place).removeprefix(".")


def _warnings(manifest: Manifest, marks: _Marks) -> Iterator[Remark]:
    """Warnings about what is allowed but deserves a second look."""

    def warn(place: Place, message: str, hint: str = "") -> Remark:
        return marks.remark(place, message, hint, severity="warning")

    privacy, alignment = manifest.privacy, manifest.alignment
    if privacy.exact_epsilon > 3:
        yield warn(
            ("privacy", "epsilon"), f"{privacy.epsilon} is a weak guarantee", "1 or less is usual for health data"
        )
    capacities = sum(holder.capacity or 0 for holder in manifest.holders)
    rows = privacy.rows or manifest.schema_.rows or (alignment.slots if alignment else capacities) or None
    if rows is not None and privacy.exact_delta * rows >= 1:
        hint = (
            f"choose a delta far below {float(Fraction(1, rows)):.1g}, for example {float(Fraction(1, 100 * rows)):.0e}"
        )
        yield warn(("privacy", "delta"), f"{privacy.delta} is not below 1 / {rows} rows", hint)
    elif privacy.exact_delta > Fraction(1, 10_000):
        yield warn(("privacy", "delta"), f"{privacy.delta} is large", "it should be far below 1 / number of rows")
    if not manifest.algorithm.certified:
        hint = "servers refuse it unless their policy says otherwise; `joint` is the default"
        yield warn(("algorithm", "noise"), "has no proven guarantee", hint)
    if len(manifest.holders) == 1:
        hint = "most servers require two or more"
        yield warn(("holders",), "a study with one holder does not hide whose data it is", hint)
    if manifest.schema_.rows is not None and privacy.neighbouring == "unbounded":
        hint = "leave `rows` out of the schema unless the number is public"
        yield warn(("schema", "rows"), "publishes a number of rows, which the unbounded relation protects", hint)
    if manifest.layout.cells > 1 << 22:
        message = f"{manifest.layout.cells:,} cells have to be counted"
        hint = "use coarser bins or a smaller workload; by default servers refuse more than 4,194,304"
        yield warn(("workload",) if manifest.workload != "all-pairs" else ("schema",), message, hint)
    if alignment is not None and alignment.slots in {privacy.rows, manifest.schema_.rows}:
        hint = "round it up, so that empty slots hide how many persons there are"
        yield warn(("alignment", "slots"), "equals the number of rows and so hides nothing", hint)
    if alignment is not None and alignment.column is None:
        hint = "name a column with the slot's number unless the files are already in one common order"
        yield warn(("alignment",), "rows are matched only by their order in each file", hint)
    yield from _unit_warnings(manifest, warn)
    yield from _join_warnings(manifest, warn)
    if manifest.inputs.refused == "leave-out":
        hint = "`stop` ends the run instead, and names the holder"
        yield warn(
            ("inputs", "refused"), "a holder whose contribution fails the checks is left out of the result", hint
        )
    if manifest.publication.rows is None and privacy.rows is None and privacy.neighbouring == "bounded":
        yield warn(("publication",), "the number of synthetic rows will be a noisy total", "set `rows` to fix it")


def _unit_warnings(manifest: Manifest, warn: Callable[[Place, str, str], Remark]) -> Iterator[Remark]:
    """Warnings where one person may change more, or cost more, than the author expects."""
    counting = sum(holder.brings == "rows" for holder in manifest.holders)
    spread = counting < len(manifest.holders)
    if manifest.privacy.multiplicity == 1 and counting + spread > 1:
        message = "is 1, but a person may have rows at several holders of whole rows"
        hint = (
            "a person at k holders has a weaker guarantee: rho grows by k^2; set it to the number of holders that may "
            "have the same person, or make sure that each person is at one holder only"
        )
        yield warn(("privacy", "multiplicity"), message, hint)
    if manifest.shared_columns:
        message = f"column {manifest.shared_columns[0]} comes from several holders, so all noise is wider by sqrt 2"
        yield warn(("holders",), message, "let only one holder bring each column where possible")


def _join_warnings(manifest: Manifest, warn: Callable[[Place, str, str], Remark]) -> Iterator[Remark]:
    join, privacy = manifest.join, manifest.privacy
    if join is None:
        return
    for i, holder in enumerate(manifest.holders):
        if holder.capacity is not None and holder.capacity in {privacy.rows, manifest.schema_.rows}:
            hint = "round it up, so that padding hides how many persons there are"
            yield warn(("holders", i, "capacity"), "equals the number of rows and so hides nothing", hint)
        elif holder.capacity is not None and holder.capacity < Policy().least_capacity:
            hint = f"set it to at least {Policy().least_capacity} unless the servers' policies allow fewer"
            yield warn(("holders", i, "capacity"), "servers refuse a table with so few rows", hint)
    if join.protocol == "oprf":
        message = "S1 learns which holders have the same pseudonym, which is not differentially private"
        hint = "what servers see with the default, shuffle, is private; docs/joining.md says which to choose"
        yield warn(("join", "protocol"), message, hint)
    brought = Counter(name for holder in manifest.holders for name in holder.columns or manifest.domain.names)
    if privacy.multiplicity == 1 and max(brought.values()) > 1:
        for rule in ("missing", "unparsable"):
            if getattr(join.key, rule) == "alone":
                message = "a person without a full key at two holders of the same columns counts twice"
                hint = "drop such rows, or set privacy.multiplicity to the number of holders that may have one person"
                yield warn(("join", "key", rule), message, hint)


def template(
    schema: Schema,
    cards: Sequence[Card] = (),
    *,
    title: str = "",
    population: str = "",
    holders: Sequence[str] = (),
    algorithm: str = "aim",
    scheme: str = SCHEME,
) -> str:
    """A commented manifest in YAML. Parties come from their cards; `holders` names those whose card is still missing.

    Whatever is not known is a placeholder in <brackets>, which `check` finds.
    """
    by_role: dict[str, list[Card]] = {}
    for card in cards:
        by_role.setdefault(card.role, []).append(card)
    if scheme not in SCHEMES:
        raise DomainError(f"there is no scheme {scheme!r}; choose {', '.join(SCHEMES)}")
    sharing = SCHEMES[scheme]
    servers = {card.name: card for card in by_role.get("mpc-server", ())}
    for name in sorted(servers.keys() - set(sharing.server_names)):
        raise DomainError(
            f"the servers of {scheme} are called {sharing.servers_listed}; there is a card of a server called {name}"
        )
    coordinators = by_role.get("coordinator", [])
    if len(coordinators) > 1:
        raise DomainError(f"a study has one coordinator; there are cards of {len(coordinators)}")
    known = by_role.get("holder", [])
    missing = [name for name in holders if name not in {card.name for card in known}]
    if not known and not missing:
        missing = ["<name of a data owner>"]
    owners = [*(_party(card.name, card) for card in known), *(_party(name, None) for name in missing)]
    table = yaml.safe_dump(schema.to_json(), sort_keys=False, allow_unicode=True, default_flow_style=None, width=110)
    lines = [
        "# A study's manifest. `caps study check FILE` explains what is missing, `caps study plan FILE` what it costs.",
        "# docs/study.md explains every member. Nothing in this file may be secret: all parties and auditors read it.",
        "version: 1",
        f"title: {_quoted(title or '<what the study is called>')}",
        'purpose: ""  # why: for the people who must approve it',
        "",
        "# Every column and its possible values. They are public knowledge; never look them up in the data.",
        "schema:",
        indent(table.rstrip("\n"), "  "),
        "",
        "# The data owners. brings: rows, if it has all columns of its persons; columns, if others have the rest.",
        "holders:",
    ]
    for owner in owners:
        lines += [
            *_item(owner),
            "    brings: rows",
            "    # columns: [age, smoker]  # if it brings columns: which ones",
            "    # capacity: 100000  # if rows are joined by a key: the rows it sends, more than it has persons",
        ]
    lines += [
        "",
        "# If holders bring columns, one of these two. join: persons are matched by columns that identify them; files",
        "# may be in any order, and docs/joining.md says who learns what. alignment: all files number the persons in",
        "# the same way, from 0, in the named column; slots that nobody fills hide how many persons there are.",
        "# join:",
        '#   key: {columns: [{name: insurance_number, kind: text, remove: "-"}]}',
        "#   mode: union  # or inner: only persons for whom every column is there",
        "# alignment: {slots: 100000, column: slot}",
        "",
        "# What should be accurate: all-pairs; {label: smoker}, if that is what will be predicted; or queries like",
        "# {attributes: [age, smoker], weight: 2}.",
        "workload: all-pairs",
        "",
        "# aim (the usual choice), mwem, mst, swift or gaussian.",
        "algorithm:",
        f"  name: {algorithm}",
        "",
        "privacy:",
        '  epsilon: "1"  # smaller is more private; above 3 is weak',
        '  delta: "0.000001"  # far below 1 / number of persons',
        "  neighbouring: unbounded  # the number of rows is secret; bounded if it is public",
        "  multiplicity: 1  # the most rows that one person may have, over all holders",
        f"  population: {_quoted(population or '<who the persons are>')}  # the same in all studies of these persons",
        "",
        "# How values are split among servers. rep3: three servers, of which none may deviate from the protocol.",
        "# rep3-active: three, and rep4: four, of which one may do anything; docs/study.md says what each costs.",
        f"scheme: {scheme}",
        "",
        "# Organisations that do not collude; their keys are in their card.json.",
        "servers:",
    ]
    for name in sharing.server_names:
        lines += _item(_party(name, servers.get(name), "url", "mesh"))
    lines += ["", "# Runs the algorithm and publishes.", "coordinator:"]
    coordinator = coordinators[0] if coordinators else None
    name = coordinator.name if coordinator else "<name of the coordinator>"
    lines += [f"  {line}" for line in _party(name, coordinator, "url")]
    lines += [
        "",
        "# If a contribution fails the servers' checks, the run stops; or leave-out: it goes on without that holder.",
        "inputs: {refused: stop}",
        "",
        "publication:",
        "  # rows: 10000  # of the synthetic table; by default the noisy total",
        "  measurements: true  # publish the noisy counts too",
        "  resamples: true  # let analysts draw further synthetic tables",
        "retention_days: 30  # then servers erase their shares",
    ]
    return "\n".join(lines) + "\n"


_PLACEHOLDERS = {
    "pin": "<64 hexadecimal digits from its card.json>",
    "signing_key": "<64 hexadecimal digits from its card.json>",
    "url": "<https://host:port>",
    "mesh": "<host:port>",
}


def _party(name: str, card: Card | None, *where: str) -> list[str]:
    values = {member: _PLACEHOLDERS[member] if card is None else getattr(card, member) for member in _PLACEHOLDERS}
    return [f"name: {_quoted(name)}"] + [
        f"{member}: {_quoted(values[member])}" for member in ("pin", "signing_key", *where)
    ]


def _item(lines: list[str]) -> list[str]:
    return [f"  - {lines[0]}", *(f"    {line}" for line in lines[1:])]


def _quoted(text: str) -> str:
    return canonical.dump(text).decode()
