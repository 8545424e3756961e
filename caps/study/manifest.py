"""The study manifest: what all parties agree on before any data moves.

One immutable document, in canonical JSON; `study_id` is its digest. It holds public things only. A manifest that can be
built is consistent: every reference resolves, the algorithm accepts its parameters, the budget can be spent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from functools import cached_property
from ipaddress import ip_address
from itertools import zip_longest
from math import prod
from typing import Annotated, Any, Literal, NamedTuple, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from caps import canonical
from caps.domain import MAX_WEIGHT, Attribute, Domain, Layout, Workload
from caps.errors import DomainError
from caps.joinkey import JoinKey
from caps.linkage import RowFormat
from caps.pki import role_uri
from caps.privacy import ASSUMPTIONS, ETA_MAX, Allowance, Neighbouring, Relation, calibrate, pure_rho
from caps.programs import Program, Task, all_pairs, names, program
from caps.schema import Column, Schema
from caps.study.forecast import Forecast, forecast

VERSION: Literal[1] = 1
SCHEME: Literal["rep3"] = "rep3"
MAX_SLOTS = 1 << 24
MAX_DIGITS = 28
"""Of epsilon and delta."""
MAX_DEGREE = 8
"""Attributes of one marginal that servers count from columns."""
MAX_TABLES = 62
"""Holders whose rows are joined on shares."""
PROBLEMS = "problems"
"""In the context of a validation: a list that takes all problems, instead of an exception with them."""
_PLACED = re.compile(r"[a-z_]+[\[.:]")

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
Hex32 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Text = Annotated[str, StringConstraints(max_length=4000)]


def _callable(url: str) -> str:
    """What the pattern leaves open: a port that does not exist, numbers that only look like an address."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        if ":" in host or not host.strip("0123456789."):
            ip_address(host)
        if parts.port == 0:
            raise ValueError
    except ValueError:
        raise ValueError("is not an address that can be called") from None
    return url


_HOST = r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})"
Url = Annotated[str, StringConstraints(pattern=rf"^https://{_HOST}(:[0-9]{{1,5}})?$"), AfterValidator(_callable)]
Address = Annotated[
    str,
    StringConstraints(pattern=rf"^{_HOST}:[0-9]{{1,5}}$"),
    AfterValidator(lambda address: _callable(f"https://{address}").removeprefix("https://")),
]


class Document(BaseModel):
    """A part of the wire contract: immutable, no unknown members, JSON both ways."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    def to_json(self) -> dict[str, Any]:
        """As an object of JSON."""
        return self.model_dump(mode="json", by_alias=True)

    @classmethod
    def from_canonical(cls, data: bytes) -> Self:
        """The document of its canonical form. Raises DomainError, saying where, if these are not its very bytes."""
        try:
            found = cls.model_validate_json(data)
        except ValidationError as error:
            first = error.errors(include_input=False)[0]
            raise DomainError(": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))) from None
        spelled = canonical.dump(found.to_json())
        if spelled != data:
            place = next(i for i, (a, b) in enumerate(zip_longest(spelled, data)) if a != b)
            raise DomainError(f"byte {place}: not spelled in the canonical form")
        return found


class Party(Document):
    """An organisation's keys: SHA-256 of its TLS public key, and its Ed25519 public key."""

    name: Name
    pin: Hex32
    signing_key: Hex32


class Server(Party):
    """An MPC server: where its REST interface and its MPC peers' port are."""

    url: Url
    mesh: Address

    @property
    def role(self) -> str:
        """The role in its certificate."""
        return role_uri("mpc-server", self.name)


class Coordinator(Party):
    """Who runs the algorithm and publishes."""

    url: Url

    @property
    def role(self) -> str:
        """The role in its certificate."""
        return role_uri("coordinator", self.name)


class Holder(Party):
    """A data owner's service, and what it brings.

    brings: `rows`, whole persons with all columns of the study, counted by the holder itself; or `columns`, some
    columns of persons whose other columns are elsewhere. columns: which, in the schema's order; all if not given.
    capacity: where rows are joined by a key, the number of rows that this holder sends, public: its table is padded to
    it, so that it hides how many persons there are.
    """

    brings: Literal["rows", "columns"]
    columns: tuple[str, ...] | None = None
    capacity: Annotated[int, Field(ge=1, le=MAX_SLOTS)] | None = None

    @property
    def role(self) -> str:
        """The role in its certificate."""
        return role_uri("holder", self.name)


class Alignment(Document):
    """How rows that are spread over holders belong together: by their number in the joint table.

    slots: the size of the joint table, public; slots that nobody fills count nowhere, so it can hide how many persons
    there are. column: the column of each holder's file with the slot's number, from 0; if not given, rows go by order.
    """

    slots: Annotated[int, Field(ge=1, le=MAX_SLOTS)]
    column: Annotated[str, StringConstraints(min_length=1, max_length=128)] | None = None


class Join(Document):
    """How rows that are spread over holders belong together: by a key that names persons (docs/joining.md).

    mode: `union`, everybody whom any holder has, or `inner`, who is in a table for every column. Where several holders
    bring a column of one person, the first in the order of `holders` that has a value decides. protocol: `shuffle`, in
    which servers learn how many persons which holders have in common and nothing else; or `oprf`, which is lighter for
    them, tells S1 more, and is for unions only. decoys: rows that do not exist, which blur how many persons two holders
    have in common.
    """

    key: JoinKey
    mode: Literal["union", "inner"] = "union"
    protocol: Literal["shuffle", "oprf"] = "shuffle"
    decoys: Annotated[int, Field(ge=0, le=1 << 20)] = 0


class Form(NamedTuple):
    """What a contribution looks like: it follows from the manifest alone, so it tells nothing of a table.

    `marginals`, the flat counts of the layout in Z_2^32; `columns`, one-hot columns, slots x width, in Z_2^16, or in
    Z_2^24 if there are more than 65,535 slots; or `records`, rows of `caps.linkage`, capacity x bytes, in XOR shares of
    bytes. No ring depends on the size of a table: it would tell how many rows there are.
    """

    form: Literal["marginals", "columns", "records"]
    bits: Literal[8, 16, 24, 32]
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Size of a component that is written out."""
        return prod(self.shape) * self.bits // 8

    @property
    def held_bytes(self) -> int:
        """Size of a component in a server's memory."""
        return prod(self.shape) * held_bytes(self.bits)


def columns_bits(slots: int) -> Literal[16, 24]:
    """Bits to a word of one-hot columns: 16 hold every count of up to 65,535 rows (docs/adr/0003)."""
    return 16 if slots < 1 << 16 else 24


def held_bytes(bits: int) -> int:
    """Bytes of a word in memory: a power of two, as machine words have."""
    size: int = 1 << (bits // 8 - 1).bit_length()
    return size


class Query(Document):
    """Attributes whose joint distribution should be accurate, and how much it matters."""

    attributes: tuple[str, ...]
    weight: int = 1


class AlgorithmChoice(Document):
    """One of `caps.programs`, with parameters; those left out have their defaults.

    noise: `joint`, drawn inside the MPC; or one of the paper's samplers, which carry no guarantee and which a careful
    server refuses.
    """

    name: str
    parameters: dict[str, int | bool | None] = {}
    noise: Literal["joint", "paper:irwin-hall", "paper:box-muller"] = "joint"

    @property
    def certified(self) -> bool:
        """Whether every sampler has a proven law."""
        return self.noise == "joint"


class Privacy(Document):
    """The guarantee. epsilon and delta are decimals in text, for they are exact.

    accounting: `zcdp`, or `pure` for algorithms that can spend pure epsilon. neighbouring and multiplicity: what one
    person can change (docs/privacy.md). rows: the number of rows, only where it is public (bounded). population: names
    the group of persons; all studies of one population draw on one budget, which each server's policy limits.
    """

    epsilon: str
    delta: str
    accounting: Literal["zcdp", "pure"] = "zcdp"
    neighbouring: Literal["unbounded", "bounded"] = "unbounded"
    multiplicity: Annotated[int, Field(ge=1, le=1000)] = 1
    rows: Annotated[int, Field(ge=1)] | None = None
    population: Name

    @field_validator("epsilon", "delta", mode="before")
    @classmethod
    def _decimal(cls, value: object) -> str:
        """One spelling for each number; a number of JSON or YAML is taken by its shortest decimal form."""
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError("must be a decimal number")
        try:
            number = Decimal(str(value))
        except InvalidOperation:
            raise ValueError("must be a decimal number") from None
        if not number.is_finite() or number <= 0 or number >= 1000 or number < Decimal("1e-30"):
            raise ValueError("must be a positive number below 1000")
        if len(number.as_tuple().digits) > MAX_DIGITS:  # normalize() would round them
            raise ValueError(f"must have at most {MAX_DIGITS} digits")
        return f"{number.normalize():f}"

    @property
    def exact_epsilon(self) -> Fraction:
        """epsilon as a rational."""
        return Fraction(self.epsilon)

    @property
    def exact_delta(self) -> Fraction:
        """delta as a rational."""
        return Fraction(self.delta)

    @property
    def relation(self) -> Neighbouring:
        """The neighbouring relation."""
        return Neighbouring(Relation(self.neighbouring), self.multiplicity)


class Publication(Document):
    """What becomes public. rows: of the synthetic table; as many as the noisy total says if not given."""

    rows: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    measurements: bool = True
    resamples: bool = True


class Manifest(Document):
    """The agreement. Every server and every holder signs it (`caps.study.documents.Approval`)."""

    version: Literal[1] = VERSION
    title: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    purpose: Text = ""
    table: Annotated[dict[str, Any], Field(alias="schema")]
    holders: Annotated[tuple[Holder, ...], Field(min_length=1, max_length=1000)]
    alignment: Alignment | None = None
    join: Join | None = None
    workload: tuple[Query, ...] | Literal["all-pairs"] = "all-pairs"
    algorithm: AlgorithmChoice
    privacy: Privacy
    scheme: Literal["rep3"] = SCHEME
    servers: Annotated[tuple[Server, ...], Field(min_length=3, max_length=3)]
    coordinator: Coordinator
    publication: Publication = Publication()
    retention_days: Annotated[int, Field(ge=1, le=3650)] = 30

    @model_validator(mode="after")
    def _consistent(self, info: ValidationInfo) -> Self:
        """Refuse what cannot be run, with the place of the error in front; or list it all, if the caller wants that."""
        found = self.problems()
        if info.context is not None and PROBLEMS in info.context:
            info.context[PROBLEMS].extend(found)
        elif found:
            raise ValueError("; ".join(found))
        return self

    def problems(self, sound: Container[str] | None = None) -> list[str]:
        """Every inconsistency between the parts, each beginning with its place; the parts themselves are sound.

        sound: if only these fields are, then what can be said about them alone.
        """
        found: list[str] = []
        checks: tuple[tuple[tuple[str, ...], Callable[[Manifest], list[str]]], ...] = (
            (("table",), Manifest._schema_problems),
            (("servers", "coordinator", "holders"), Manifest._party_problems),
            (("table", "holders", "alignment", "join"), Manifest._division_problems),
            (("privacy",), Manifest._privacy_problems),
            (("table", "workload"), Manifest._workload_problems),
            (("algorithm",), Manifest._algorithm_problems),
        )
        for needed, check in checks:
            if sound is None or all(name in sound for name in needed):
                found += check(self)
        needed = ("table", "holders", "workload", "algorithm", "privacy")
        blamed = ("schema", "workload", "algorithm", "privacy")
        if (sound is None or all(name in sound for name in needed)) and not any(p.startswith(blamed) for p in found):
            found += self._spending_problems()
        return found

    def _schema_problems(self) -> list[str]:
        columns = self.table.get("columns")
        found = []
        for i, column in enumerate(columns if isinstance(columns, list | tuple) else ()):
            try:
                Column.from_json(column)
            except DomainError as error:
                found.append(f"schema.columns[{i}]{'.' if isinstance(column, Mapping) else ': '}{error}")
        if not found:
            try:
                self.schema_.domain()
            except DomainError as error:
                found.append(f"schema.{error}" if _PLACED.match(str(error)) else f"schema: {error}")
        return found

    @cached_property
    def _outline(self) -> Domain | None:
        """The names of the columns, as far as they are given: enough to look for names that nobody has."""
        columns = self.table.get("columns")
        listed = columns if isinstance(columns, list | tuple) else ()
        try:
            return Domain(tuple(Attribute(column["name"], 1) for column in listed))
        except (DomainError, KeyError, TypeError):
            return None

    def _privacy_problems(self) -> list[str]:
        found = []
        if self.privacy.exact_delta >= 1:
            found.append("privacy.delta: must be below 1; it is a probability, usually far below 1 / number of rows")
        if self.privacy.rows is not None and self.privacy.neighbouring == "unbounded":
            found.append("privacy.rows: the number of rows is not public under the unbounded relation")
        return found

    def _workload_problems(self) -> list[str]:
        domain = self._outline
        if self.workload == "all-pairs" or domain is None:
            return []
        found, seen = [], dict[tuple[str, ...], int]()
        for i, query in enumerate(self.workload):
            if not 1 <= query.weight <= MAX_WEIGHT:
                found.append(f"workload[{i}].weight: must be a whole number from 1 to {MAX_WEIGHT}")
            found += [f"workload[{i}].attributes: {what}" for what in _name_problems(domain, query.attributes)]
            if len(set(query.attributes)) < len(query.attributes):
                found.append(f"workload[{i}].attributes: names a column twice")
            clique = tuple(sorted(query.attributes))
            if seen.setdefault(clique, i) != i:
                found.append(f"workload[{i}]: asks for the same attributes as workload[{seen[clique]}]")
        return found if self.workload else ["workload: must have at least one query, or be all-pairs"]

    def _algorithm_problems(self) -> list[str]:
        try:
            self.program  # noqa: B018
        except DomainError as error:
            return [f"algorithm.{'parameters' if self.algorithm.name in names() else 'name'}: {error}"]
        return []

    def _spending_problems(self) -> list[str]:
        """Of parts that are sound by themselves and must also go together."""
        for place, check in (
            ("privacy", lambda: self.task),
            ("privacy.accounting" if self.privacy.accounting == "pure" else "algorithm", lambda: self.forecast),
            ("workload", lambda: self.layout),
        ):
            try:
                check()
            except DomainError as error:
                return [f"{place}: {error}"]
        found = []
        if any(holder.brings == "columns" for holder in self.holders):
            widest = max(self.layout.cliques, key=len)
            if len(widest) > MAX_DEGREE:
                found.append(
                    f"workload: {len(widest)} attributes in one query are more than the {MAX_DEGREE} that can be "
                    "counted where holders bring columns"
                )
        if self.algorithm.certified and self.forecast.eta() > ETA_MAX:
            found.append(
                f"algorithm: the run may draw {self.forecast.draws:,} noise values, more than the allowance in delta "
                "covers, and would be stopped halfway: plan fewer rounds, coarser columns or smaller queries"
            )
        return found

    def _party_problems(self) -> list[str]:
        found = []
        if [server.name for server in self.servers] != ["S1", "S2", "S3"]:
            found.append("servers: must be called S1, S2 and S3, in this order")
        seen: dict[str, str] = {}
        everyone = [
            *((f"servers[{i}]", server) for i, server in enumerate(self.servers)),
            ("coordinator", self.coordinator),
            *((f"holders[{i}]", holder) for i, holder in enumerate(self.holders)),
        ]
        names: set[tuple[type, str]] = set()
        for place, party in everyone:
            if (type(party), party.name) in names:
                found.append(f"{place}.name: is given twice")
            names.add((type(party), party.name))
            for key in (party.pin, party.signing_key):
                if key in seen:
                    found.append(f"{place}: has a key of {seen[key]}, and nobody may play two roles")
                seen[key] = place
        return found

    def _division_problems(self) -> list[str]:
        domain = self._outline
        if domain is None:
            return []
        found = []
        brought: set[str] = set()
        for i, holder in enumerate(self.holders):
            place = f"holders[{i}].columns"
            if holder.columns is not None:
                found += [f"{place}: {what}" for what in _name_problems(domain, holder.columns)]
                if set(holder.columns) <= set(domain.names) and holder.columns != tuple(
                    name for name in domain.names if name in holder.columns
                ):
                    found.append(f"{place}: must be in the schema's order, each column once")
                if holder.brings == "rows" and set(holder.columns) != set(domain.names):
                    found.append(f"{place}: a holder of whole rows brings all columns")
            if holder.brings == "columns":
                brought |= set(holder.columns or domain.names)
        if brought:
            if (self.alignment is None) == (self.join is None):
                found.append("alignment: it or a join, and not both, is needed where holders bring columns")
            elif self.alignment is not None and self.alignment.column in domain.names:
                found.append("alignment.column: must not be a column of the schema")
            elif self.join is not None and self.join.protocol == "oprf" and self.join.mode == "inner":
                found.append("join.mode: only a union can be joined by oprf; an inner join needs shuffle")
            found += [f"schema: nobody brings column {name}" for name in domain.names if name not in brought]
        else:
            found += [
                f"{what}: no holder brings columns" for what in ("alignment", "join") if getattr(self, what) is not None
            ]
        return [*found, *self._capacity_problems()]

    def _capacity_problems(self) -> list[str]:
        found, total = [], 0
        for i, holder in enumerate(self.holders):
            joins = holder.brings == "columns" and self.join is not None
            if joins != (holder.capacity is not None):
                needed = "is needed where rows are joined" if joins else "is for holders whose rows are joined"
                found.append(f"holders[{i}].capacity: {needed}")
            elif self.join is not None and holder.capacity is not None:
                total += holder.capacity
                if holder.capacity <= self.join.decoys:
                    found.append(f"holders[{i}].capacity: leaves no room beside {self.join.decoys} decoys")
        if self.join is not None and self.join.protocol == "shuffle":
            joined = sum(holder.brings == "columns" for holder in self.holders)
            if joined > MAX_TABLES:
                found.append(f"holders: rows of at most {MAX_TABLES} can be joined, not of {joined}")
        if total > MAX_SLOTS:
            found.append(f"holders: capacities add up to more than {MAX_SLOTS} rows")
        return found

    @cached_property
    def schema_(self) -> Schema:
        """The columns of the joint table."""
        return Schema.from_json(self.table)

    @cached_property
    def domain(self) -> Domain:
        """The attributes of the joint table."""
        return self.schema_.domain()

    @cached_property
    def queries(self) -> Workload:
        """The workload, every clique in the order of the domain."""
        if self.workload == "all-pairs":
            return all_pairs(self.domain)
        cliques = tuple(query.attributes for query in self.workload)
        return Workload(cliques, tuple(query.weight for query in self.workload)).over(self.domain)

    @cached_property
    def program(self) -> Program:
        """What the algorithm may ask, and how it spends."""
        return program(self.algorithm.name, self.algorithm.parameters)

    @cached_property
    def allowance(self) -> Allowance:
        """What delta has to cover besides the conversion from rho."""
        return Allowance()

    @cached_property
    def budget(self) -> Fraction:
        """What a run may spend in all, in rho."""
        privacy = self.privacy
        if privacy.accounting == "pure":
            return pure_rho(privacy.exact_epsilon)
        return calibrate(privacy.exact_epsilon, privacy.exact_delta, self.allowance)

    @cached_property
    def task(self) -> Task:
        """The manifest as an algorithm sees it."""
        privacy = self.privacy
        pure = privacy.accounting == "pure"
        return Task(
            self.domain,
            self.queries,
            privacy.relation,
            rho=None if pure else self.budget,
            pure_epsilon=privacy.exact_epsilon if pure else None,
            total=privacy.rows,
        )

    @cached_property
    def forecast(self) -> Forecast:
        """What a run asks for at most. Raises DomainError if the budget cannot be divided."""
        return forecast(self.program, self.task)

    @cached_property
    def layout(self) -> Layout:
        """Every marginal that is counted."""
        return Layout(self.domain, self.program.cliques(self.task))

    @cached_property
    def study_id(self) -> str:
        """SHA-256 of the canonical form, in hexadecimal."""
        return canonical.digest("manifest", self.to_json()).hex()

    def canonical_bytes(self) -> bytes:
        """The one spelling of this manifest."""
        return canonical.dump(self.to_json())

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Manifest:
        """The manifest of an object parsed from JSON or YAML. Raises pydantic.ValidationError, or DomainError.

        Strict: a number in quotes is text, and no number. Only epsilon and delta may be written either way.
        """
        return cls.model_validate_json(canonical.dump(dict(value)), strict=True)

    def holder(self, name: str) -> Holder:
        """The holder of that name. Raises DomainError if there is none."""
        for holder in self.holders:
            if holder.name == name:
                return holder
        raise DomainError(f"the study has no holder {name!r}")

    def server(self, name: str) -> Server:
        """The server of that name. Raises DomainError if there is none."""
        for server in self.servers:
            if server.name == name:
                return server
        raise DomainError(f"the study has no server {name!r}")

    @property
    def slots(self) -> int | None:
        """Rows of the joint table at which holders place their columns; None where they do not."""
        if self.alignment is not None:
            return self.alignment.slots
        if self.join is not None and self.join.protocol == "oprf":
            return sum(holder.capacity or 0 for holder in self.holders)
        return None

    @property
    def leaks(self) -> tuple[str, ...]:
        """What parties learn beyond the released values because of how rows are brought together, in sentences."""
        if self.join is None:
            return ()
        if self.join.protocol == "shuffle":
            return (
                "the servers learn, exactly, how many of the padded rows belong to persons whom precisely which "
                "holders have, decoys included, and not which rows these are",
                "a holder that shares what it knows with a server can learn whether other holders have one person by "
                "bringing a table of only that person; least sizes are a matter of each server's policy",
                "how much the servers send each other may depend on these numbers, so whoever measures it, such as the "
                "coordinator, learns something of them",
            )
        return (
            "S1 learns for every pseudonym, which no server can invert alone, which holders have it",
            "a holder that shares what it knows with S1 learns which of its persons other holders have",
        )

    @property
    def premises(self) -> tuple[str, ...]:
        """What the privacy statement of a run rests on, and what it does not cover."""
        return (*ASSUMPTIONS, *(f"beyond this, {leak}" for leak in self.leaks))

    def form_of(self, holder: Holder) -> Form:
        """What a holder's contribution looks like."""
        if holder.brings == "rows":
            return Form("marginals", 32, (self.layout.cells,))
        domain = self.columns_of(holder).domain()
        if self.slots is not None:
            return Form("columns", columns_bits(self.slots), (self.slots, domain.width))
        assert holder.capacity is not None
        return Form("records", 8, (holder.capacity, RowFormat(domain).row_bytes))

    def columns_of(self, holder: Holder) -> Schema:
        """The schema of what a holder brings."""
        return self.schema_ if holder.columns is None else self.schema_.select(holder.columns)


def _name_problems(domain: Domain, given: tuple[str, ...]) -> list[str]:
    if not given:
        return ["must name at least one column"]
    return [f"the schema has no column {name!r}" for name in dict.fromkeys(given) if name not in domain.names]
