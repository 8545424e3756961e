"""The study manifest: what all parties agree on before any data moves.

One immutable document in canonical JSON; `study_id` is its digest. It contains only public information. A manifest that
can be built is consistent: every reference resolves, the algorithm accepts its parameters, the budget can be spent.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Container, Mapping
from dataclasses import replace
from decimal import ROUND_CEILING, Decimal, InvalidOperation, localcontext
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import (
    Field,
    StringConstraints,
    ValidationInfo,
    field_validator,
    model_validator,
)

from caps.basics import canonical
from caps.basics.document import Address, ColumnName, Document, Name, Text, Title, Url
from caps.basics.naming import alike, alike_in_ascii, shown
from caps.basics.schemes import SCHEMES, Scheme, SchemeName, extremes
from caps.data.domain import MAX_ATTRIBUTES, MAX_WEIGHT, Attribute, Clique, Domain, Layout, Workload, refuse_many_parts
from caps.data.joinkey import JoinKey
from caps.data.linkage import RowFormat
from caps.data.schema import Column, Schema
from caps.dp.bounds import (
    DEVIATION_SOUNDNESS,
    MOST_STREAM,
    columns_soundness,
    counted_bits,
    join_soundness,
    largest_sum,
)
from caps.dp.noise.plans import MOST_REACH
from caps.dp.oracle import overlaps_entry, overlaps_plan
from caps.dp.privacy import (
    ASSUMPTIONS,
    ETA_MAX,
    RELEASE,
    Allowance,
    Entry,
    Filter,
    GaussianBatch,
    GaussianOverlaps,
    LaplaceOverlaps,
    Neighbouring,
    Overlaps,
    PrivacyStatement,
    Relation,
    Reservation,
    calibrate,
    pure_rho,
    server_premise,
)
from caps.dp.privacy.rational import grid_down
from caps.dp.programs import Program, Task, all_pairs, names, pairs_for, program
from caps.errors import DomainError
from caps.study.forecast import Forecast, forecast, obstacle
from caps.trust.cards import Party
from caps.trust.pki import role_uri

VERSION: Literal[1] = 1
SCHEME: SchemeName = "rep3"
"""The scheme of a study that names none."""
MAX_SLOTS = 1 << 24
MAX_DIGITS = 28
"""The most digits of epsilon and of delta."""
MAX_NAME, MAX_PARAMETERS = 64, 32
"""The most characters of an algorithm's name, or of a number; the most parameters."""
MAX_DEGREE = 8
"""The most attributes of a marginal that servers count from columns."""
MAX_TABLES = 8
"""The most holders whose rows are joined on shares: they form 247 sets."""
MOST_GROUPS = 8
"""The most groups of columns that a person may lack together: there are 2^8 sets of them."""
MOST_KEPT = 64
"""Manifests that a service keeps in memory once it has read them: as many as may be in use, not all there ever were."""
OVERLAPS_SHARE = Fraction(1, 20)
"""The share of the budget that pays for what servers see of a join."""
MISTAKES = "mistakes"
"""Key in a validation's context: a list that collects all mistakes, in place of an exception."""
_PLACED = re.compile(r"[a-z_]+[\[.:]")


class Server(Party):
    """An MPC server, with the addresses of its REST interface and of its port for MPC peers."""

    url: Url
    mesh: Address

    @property
    def role(self) -> str:
        """The role in its certificate."""
        return role_uri("mpc-server", self.name)


class Coordinator(Party):
    """The party that runs the algorithm and publishes."""

    url: Url

    @property
    def role(self) -> str:
        """The role in its certificate."""
        return role_uri("coordinator", self.name)


class Holder(Party):
    """A data owner's service, and what it brings.

    brings: `rows`, whole persons with all columns of the study, counted by the holder itself; or `columns`, some
    columns of persons whose other columns are elsewhere. columns: which ones, in the schema's order; by default all.
    capacity: if rows are joined by a key, the public number of rows that this holder sends. Its table is padded to
    this number, which hides how many persons there are.
    """

    brings: Literal["rows", "columns"]
    columns: Annotated[tuple[str, ...], Field(max_length=MAX_ATTRIBUTES)] | None = None
    capacity: Annotated[int, Field(ge=1, le=MAX_SLOTS)] | None = None

    @property
    def role(self) -> str:
        """The role in its certificate."""
        return role_uri("holder", self.name)


class Alignment(Document):
    """How rows that are spread over holders are matched: by their number in the joint table.

    slots: the public size of the joint table. Slots that nobody fills do not count, so the size can hide how many
    persons there are. column: the column of each holder's file with the slot's number, from 0; by default a row's
    place in the file is its slot.
    """

    slots: Annotated[int, Field(ge=1, le=MAX_SLOTS)]
    column: ColumnName | None = None


class Join(Document):
    """How rows that are spread over holders are matched: by a key that identifies persons (docs/joining.md).

    mode: `union`, every person that any holder has, or `inner`, only persons for whom every column is in some table.
    If several holders bring a column of one person, the first in the order of `holders` that has a value decides.
    protocol: `shuffle`, in which servers learn only how many persons each set of holders has in common, with noise
    that is charged; or `oprf`, which costs servers less, tells S1 more than the guarantee covers, and only supports
    unions.
    """

    key: JoinKey
    mode: Literal["union", "inner"] = "union"
    protocol: Literal["shuffle", "oprf"] = "shuffle"


class Form(NamedTuple):
    """The form of a contribution. It follows from the manifest alone, so it reveals nothing about a table.

    `marginals`, the flat counts of the layout in Z_2^32, of which servers take the `counted_bits` lowest; `columns`,
    one-hot columns, slots x width, in Z_2^16, or in Z_2^24 if there are more than 65,535 slots; or `records`, rows of
    `caps.data.linkage`, capacity x bytes, in XOR shares of bytes. No ring depends on the size of a table, because it
    would reveal how many rows there are.
    """

    form: Literal["marginals", "columns", "records"]
    bits: Literal[8, 16, 24, 32]
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Size of a component on the wire."""
        return prod(self.shape) * self.bits // 8

    @property
    def held_bytes(self) -> int:
        """Size of a component in a server's memory."""
        return prod(self.shape) * held_bytes(self.bits)


def columns_bits(slots: int) -> Literal[16, 24]:
    """Bits per word of one-hot columns: 16 bits hold every count of up to 65,535 rows (docs/adr/0003)."""
    return 16 if slots < 1 << 16 else 24


def held_bytes(bits: int) -> int:
    """Bytes of a word in memory: a power of two, like machine words."""
    size: int = 1 << (bits // 8 - 1).bit_length()
    return size


class Query(Document):
    """Attributes whose joint distribution should be accurate, and the weight of its accuracy."""

    attributes: tuple[str, ...]
    weight: int = 1


class Target(Document):
    """All pairs; those with one column, the label that analysts will predict, count as much as all others together."""

    label: Name


class AlgorithmChoice(Document):
    """One of `caps.dp.programs` and its parameters; parameters that are left out have their defaults.

    noise: `joint`, drawn inside the MPC; or one of the paper's samplers, which have no proven guarantee and which a
    careful server refuses.
    """

    name: Annotated[str, StringConstraints(max_length=MAX_NAME)]
    parameters: Annotated[dict[str, int | bool | None], Field(max_length=MAX_PARAMETERS)] = Field(default={})
    noise: Literal["joint", "paper:irwin-hall", "paper:box-muller"] = "joint"

    @property
    def certified(self) -> bool:
        """Whether the distribution of every sampler is proven."""
        return self.noise == "joint"


class Privacy(Document):
    """The guarantee. epsilon and delta are decimals written as text, because they are exact.

    accounting: `zcdp`, or `pure` for algorithms that can spend pure epsilon. neighbouring and multiplicity: what one
    person can change (docs/privacy.md). rows: the number of rows, only if it is public (bounded). population: the name
    of the group of persons; all studies of one population draw on one budget, which each server's policy limits.
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
        """One spelling for each number; a number in JSON or YAML is read in its shortest decimal form."""
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError("must be a decimal number")
        if len(str(value)) > MAX_NAME:
            raise ValueError(f"must be a decimal number of at most {MAX_NAME} characters")
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


class Inputs(Document):
    """What is agreed about the inputs of a run.

    refused: what follows if a contribution fails the servers' checks. `stop`: the run fails, and names its holder.
    `leave-out`: the run goes on without it, as long as somebody else brings its columns; attestations name its holder.
    """

    refused: Literal["stop", "leave-out"] = "stop"


class Publication(Document):
    """What becomes public. rows: the number of rows of the synthetic table; by default the noisy total."""

    rows: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    measurements: bool = True
    resamples: bool = True


class Manifest(Document):
    """The agreement. Every server and every holder signs it (`caps.wire.documents.Approval`)."""

    version: Literal[1] = VERSION
    title: Title
    purpose: Text = ""
    table: Annotated[dict[str, Any], Field(alias="schema")]
    holders: Annotated[tuple[Holder, ...], Field(min_length=1, max_length=1000)]
    alignment: Alignment | None = None
    join: Join | None = None
    workload: tuple[Query, ...] | Target | Literal["all-pairs"] = "all-pairs"
    algorithm: AlgorithmChoice
    privacy: Privacy
    scheme: SchemeName = SCHEME
    servers: Annotated[tuple[Server, ...], Field(**extremes(lambda scheme: scheme.parties))]
    coordinator: Coordinator
    inputs: Inputs = Inputs()
    publication: Publication = Publication()
    retention_days: Annotated[int, Field(ge=1, le=3650)] = 30

    @model_validator(mode="after")
    def _consistent(self, info: ValidationInfo) -> Self:
        """Refuse a manifest that cannot be run. If the caller's context asks for it, collect the mistakes instead."""
        found = self.mistakes()
        if info.context is not None and MISTAKES in info.context:
            info.context[MISTAKES].extend(found)
        elif found:
            raise ValueError("; ".join(found))
        return self

    @property
    def parties(self) -> tuple[Party, ...]:
        """Everybody who takes part."""
        return (*self.servers, self.coordinator, *self.holders)

    def mistakes(self, sound: Container[str] | None = None) -> list[str]:
        """Every inconsistency between the parts, each beginning with its place; the parts themselves are valid.

        sound: if given, only these fields are valid, and only problems between them are reported.
        """
        found: list[str] = []
        checks: tuple[tuple[tuple[str, ...], Callable[[Manifest], list[str]]], ...] = (
            (("table",), Manifest._schema_problems),
            (("scheme", "servers"), Manifest._server_problems),
            (("servers", "coordinator", "holders"), Manifest._party_problems),
            (("table", "holders", "alignment", "join"), Manifest._division_problems),
            (("scheme", "join"), Manifest._join_problems),
            (("privacy",), Manifest._privacy_problems),
            (("table", "workload"), Manifest._workload_problems),
            (("algorithm",), Manifest._algorithm_problems),
            (("algorithm", "privacy"), Manifest._noise_problems),
            (("algorithm", "scheme"), Manifest._sampler_problems),
        )
        for needed, check in checks:
            if sound is None or all(name in sound for name in needed):
                found += check(self)
        needed = ("table", "holders", "alignment", "join", "workload", "algorithm", "privacy", "scheme")
        blamed = ("schema", "workload", "algorithm", "privacy", "holders", "alignment", "join")
        if (sound is None or all(name in sound for name in needed)) and not any(p.startswith(blamed) for p in found):
            found += self._spending_problems()
        return found

    def _schema_problems(self) -> list[str]:
        columns = self.table.get("columns")
        if isinstance(columns, list | tuple) and len(columns) > MAX_ATTRIBUTES:
            return [f"schema.columns: must be at most {MAX_ATTRIBUTES} columns, not {len(columns):,}"]
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
        """The names of the columns, if all are given: enough to find references to unknown columns."""
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
            found.append("privacy.rows: must be left out under the unbounded relation, which keeps the number secret")
        return found

    def _workload_problems(self) -> list[str]:
        domain = self._outline
        if self.workload == "all-pairs" or domain is None:
            return []
        if isinstance(self.workload, Target):
            return [f"workload.label: {what}" for what in _name_problems(domain, (self.workload.label,))]
        try:
            refuse_many_parts([query.attributes for query in self.workload])
        except DomainError as error:
            return [f"workload: {error}"]
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
        return found if self.workload else ["workload: must have at least one query, name a label, or be all-pairs"]

    def _algorithm_problems(self) -> list[str]:
        try:
            self.program  # noqa: B018
        except DomainError as error:
            return [f"algorithm.{'parameters' if self.algorithm.name in names() else 'name'}: {error}"]
        return []

    def _noise_problems(self) -> list[str]:
        if self.algorithm.certified or self.privacy.accounting == "zcdp":
            return []
        return [
            f"algorithm.noise: {self.algorithm.noise} is Gaussian, which pure accounting does not cover: choose "
            "joint, or the accounting zcdp"
        ]

    def _sampler_problems(self) -> list[str]:
        if self.algorithm.certified or self.scheme == SCHEME:
            return []
        return [
            f"algorithm.noise: {self.algorithm.noise} is for comparison and exists in {SCHEME} only: choose joint, or "
            f"the scheme {SCHEME}"
        ]

    def _spending_problems(self) -> list[str]:
        """Problems between parts that are valid by themselves but may not fit together."""
        for place, check in (
            ("privacy.delta", lambda: self.budget),
            ("privacy", lambda: self._asked),
            ("privacy.epsilon", lambda: self.dummies),
            ("holders", lambda: self.counted_bits),
            ("privacy.accounting" if self.privacy.accounting == "pure" else "algorithm", lambda: self.forecast),
            ("workload", lambda: self.layout),
            ("algorithm.noise", self._check_sampler),
            ("privacy.epsilon", self._check_noise),
        ):
            try:
                check()
            except DomainError as error:
                return [f"{place}: {error}"]
        found = []
        if sum(map(self.shuffled_rows, self.joined)) > MAX_SLOTS:
            found.append(
                f"holders: capacities, with {self.dummies:,} dummies for each of {self.overlap_sets} sets of holders, "
                f"add up to more than {MAX_SLOTS} rows: use fewer holders or a larger epsilon"
            )
        if max(self.form_of(holder).bytes for holder in self.holders) > MOST_STREAM:
            found.append(f"holders: a contribution has more than the {MOST_STREAM} bytes that one key may mask")
        if any(holder.brings == "columns" for holder in self.holders):
            widest = max(self.layout.cliques, key=len)
            if len(widest) > MAX_DEGREE:
                found.append(
                    f"workload: a query has {len(widest)} attributes; where holders bring columns it may have at most "
                    f"{MAX_DEGREE}"
                )
        seen = Fraction(0) if self.overlaps_entry is None else self.overlaps_entry.eta
        if self.forecast.eta() + seen > ETA_MAX:
            found.append(
                f"algorithm: the run may draw {self.forecast.draws:,} noise values, more than the allowance in delta "
                "covers, so it would be stopped halfway: plan fewer rounds, coarser columns or smaller queries"
            )
        return found

    def _check_sampler(self) -> None:
        """Refuse the paper's samplers for a batch: they draw noise of one width for one marginal."""
        batched = any(isinstance(spend.mechanism, GaussianBatch) for spend in self.forecast.spends)
        if batched and not self.algorithm.certified:
            raise DomainError(
                f"{self.algorithm.noise} cannot draw the noise of a batch: choose joint, or another algorithm"
            )

    def _check_noise(self) -> None:
        """Refuse a budget so small that servers could not draw the noise of some step, perhaps the last one."""
        found = obstacle(self.program, self.task, self._weights)
        if found is None:
            return
        rounds, columns = self.forecast.rounds, len(self.domain.names)
        plan = f"{self.algorithm.name} over {columns} columns" + (f" with {rounds} rounds" if rounds else "")
        least = self._least_epsilon()
        enough = "" if least is None else f"{least:f} is enough for that; "
        raise DomainError(
            f"{self.privacy.epsilon} is too small for {plan}: a single step would get so little of it that its noise "
            f"{found}. {enough}fewer rounds, queries or columns need less"
        )

    def _least_epsilon(self) -> Decimal | None:
        """The least epsilon above this one that meets no obstacle, rounded up to two digits; None if none is found.

        No epsilon is too large: long before noise gets too narrow, delta no longer covers what it must.
        """
        task, near = self.task, self.privacy.exact_epsilon
        left = 1 if self.overlaps is None else 1 - OVERLAPS_SHARE

        def fits(epsilon: Fraction) -> bool:
            try:
                if self.privacy.accounting == "pure":
                    return obstacle(self.program, replace(task, pure_epsilon=left * epsilon), self._weights) is None
                rho = calibrate(epsilon, self.privacy.exact_delta, self.allowance)
                return obstacle(self.program, replace(task, rho=left * rho), self._weights) is None
            except DomainError:
                return False

        far = next((far for i in range(1, 40) if fits(far := near * Fraction(2) ** i)), None)
        if far is None:
            return None
        near = far / 2
        for _ in range(8):
            middle = (near + far) / 2
            near, far = (near, middle) if fits(middle) else (middle, far)
        with localcontext(prec=2, rounding=ROUND_CEILING):
            return Decimal(far.numerator) / far.denominator

    def _server_problems(self) -> list[str]:
        scheme = self.sharing
        if len(self.servers) != scheme.parties:
            return [
                f"servers: {scheme.name} needs {scheme.parties} servers, {scheme.servers_listed}, not "
                f"{len(self.servers)}"
            ]
        if tuple(server.name for server in self.servers) != scheme.server_names:
            return [f"servers: must be called {scheme.servers_listed}, in this order"]
        return []

    def _party_problems(self) -> list[str]:
        found = []
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
                    found.append(f"{place}: has the same key as {seen[key]}; each party must have its own keys")
                seen[key] = place
        if pair := alike_in_ascii(party.name for _, party in everyone):
            found.append(f"holders: {pair[0]} and {pair[1]} look alike; parties need names that people can tell apart")
        return found

    @property
    def _beside(self) -> list[str]:
        """Columns that holders' files have beside the schema's."""
        if self.join is not None:
            return [column.name for column in self.join.key.columns]
        return [self.alignment.column] if self.alignment is not None and self.alignment.column is not None else []

    def _division_problems(self) -> list[str]:
        domain = self._outline
        if domain is None:
            return []
        found = []
        brought: set[str] = set()
        for i, holder in enumerate(self.holders):
            place = f"holders[{i}].columns"
            if holder.columns is not None:
                unknown = _name_problems(domain, holder.columns)
                found += [f"{place}: {what}" for what in unknown]
                places = [] if unknown else [domain.position(name) for name in holder.columns]
                if any(first >= second for first, second in pairwise(places)):
                    found.append(f"{place}: must list each column once, in the schema's order")
                if holder.brings == "rows" and (unknown or len(set(places)) < len(domain.names)):
                    found.append(f"{place}: a holder that brings rows must bring all columns")
            if holder.brings == "columns":
                brought.update(holder.columns or domain.names)
        if brought:
            if (self.alignment is None) == (self.join is None):
                found.append("alignment: a study in which holders bring columns must have either this or a join")
            elif self.alignment is not None and self.alignment.column in domain.names:
                found.append("alignment.column: must not be a column of the schema")
            elif pair := alike((*domain.names, *self._beside)):
                found.append(f"schema: columns {shown(pair[0])} and {shown(pair[1])} look alike")
            elif self.join is not None and self.join.protocol == "oprf" and self.join.mode == "inner":
                found.append("join.mode: oprf only supports a union; an inner join needs shuffle")
            found += [f"schema: no holder brings column {name}" for name in domain.names if name not in brought]
        else:
            found += [
                f"{what}: must be left out because no holder brings columns"
                for what in ("alignment", "join")
                if getattr(self, what) is not None
            ]
        return [*found, *self._capacity_problems()]

    def _join_problems(self) -> list[str]:
        if self.join is None or self.join.protocol == "shuffle" or not self.sharing.active:
            return []
        return [
            f"join.protocol: oprf trusts servers to follow the protocol, which {self.scheme} does not: choose shuffle, "
            "or the scheme rep3"
        ]

    def _capacity_problems(self) -> list[str]:
        found, total = [], 0
        for i, holder in enumerate(self.holders):
            joins = holder.brings == "columns" and self.join is not None
            if joins != (holder.capacity is not None):
                needed = "is required where rows are joined" if joins else "is only for holders whose rows are joined"
                found.append(f"holders[{i}].capacity: {needed}")
            else:
                total += holder.capacity or 0
        if len(self.joined) > MAX_TABLES:
            found.append(
                f"holders: the rows of at most {MAX_TABLES} holders can be joined on shares, not of "
                f"{len(self.joined)}: dummies hide how many persons each set of holders has in common, and there would "
                "be too many sets; join.protocol: oprf has no such limit"
            )
        if total > MAX_SLOTS:
            found.append(f"holders: capacities add up to more than {MAX_SLOTS} rows")
        return found

    @cached_property
    def schema_(self) -> Schema:
        """The columns of the joint table."""
        return Schema.from_json(self.table)

    @property
    def sharing(self) -> Scheme:
        """How values are shared among the servers."""
        return SCHEMES[self.scheme]

    @cached_property
    def domain(self) -> Domain:
        """The attributes of the joint table."""
        return self.schema_.domain()

    @cached_property
    def queries(self) -> Workload:
        """The workload, every clique in the order of the domain."""
        if self.workload == "all-pairs":
            return all_pairs(self.domain)
        if isinstance(self.workload, Target):
            return pairs_for(self.workload.label, self.domain)
        cliques = tuple(query.attributes for query in self.workload)
        return Workload(cliques, tuple(query.weight for query in self.workload)).over(self.domain)

    @cached_property
    def program(self) -> Program:
        """What the algorithm may ask for, and how it spends the budget."""
        return program(self.algorithm.name, self.algorithm.parameters)

    @cached_property
    def allowance(self) -> Allowance:
        """What delta must cover besides the conversion from rho."""
        soundness = DEVIATION_SOUNDNESS if self.sharing.active else Fraction(0)
        if self.slots is not None:
            soundness += columns_soundness(len(self.holders) - self._counting)
        elif self.join is not None:
            # The most dummies there can be: their number depends on the budget, which depends on this.
            most = 2 * MOST_REACH * sets_with(len(self.joined))
            soundness += join_soundness([(holder.capacity or 0) + most for holder in self.joined])
        return Allowance(soundness=soundness)

    @cached_property
    def budget(self) -> Fraction:
        """What a run may spend in total, in rho. Raises DomainError if delta does not cover what it must."""
        privacy = self.privacy
        rho = calibrate(privacy.exact_epsilon, privacy.exact_delta, self.allowance)
        return pure_rho(privacy.exact_epsilon) if privacy.accounting == "pure" else rho

    @cached_property
    def joined(self) -> tuple[Holder, ...]:
        """The holders whose rows servers join on shares."""
        shuffled = self.join is not None and self.join.protocol == "shuffle"
        return tuple(holder for holder in self.holders if shuffled and holder.brings == "columns")

    @cached_property
    def overlaps(self) -> Overlaps | None:
        """The noise in what servers see of a join on shares. None if there is nothing to see.

        It takes a twentieth of the budget: the noise of releases is then wider by 2.6 %, and a set of two holders has
        782 dummies in each table at epsilon 1 and delta 1e-9, about ten times as many at a tenth of that epsilon.
        """
        if len(self.joined) < 2:
            return None
        if self.privacy.accounting == "pure":
            return LaplaceOverlaps.of_epsilon(OVERLAPS_SHARE * self.privacy.exact_epsilon, self.neighbouring)
        return GaussianOverlaps.costing(grid_down(OVERLAPS_SHARE * self.budget), self.neighbouring)

    @property
    def overlaps_entry(self) -> Entry | None:
        """The charge for COMPUTE ANSWERS: nothing, unless servers see numbers of a join."""
        return None if self.overlaps is None else overlaps_entry(self.overlaps, self.overlap_sets)

    @property
    def overlap_sets(self) -> int:
        """The number of sets of two or more holders whose rows are joined on shares; each set has dummies."""
        return (1 << len(self.joined)) - len(self.joined) - 1 if self.joined else 0

    @cached_property
    def dummies(self) -> int:
        """The number of dummies for each set of holders joined on shares. Raises DomainError if it is too large."""
        return 0 if self.overlaps is None else 2 * overlaps_plan(self.overlaps).reach

    def shuffled_rows(self, holder: Holder) -> int:
        """Rows of a holder that servers shuffle: its own, padding, and the dummies of every set it belongs to."""
        return (holder.capacity or 0) + self.dummies * sets_with(len(self.joined))

    @property
    def reservation(self) -> Reservation:
        """What a run takes from its population's budget."""
        return Reservation(self.budget, self.neighbouring, self.allowance)

    @cached_property
    def task(self) -> Task:
        """The manifest as an algorithm sees it."""
        return replace(self._asked, largest_count=largest_sum(self._counting, self.counted_bits, self.joined_rows))

    @cached_property
    def _asked(self) -> Task:
        """The task without its largest count."""
        privacy = self.privacy
        pure = privacy.accounting == "pure"
        return Task(
            self.domain,
            self.queries,
            self.neighbouring,
            rho=None if pure else self.budget - self._overlaps_cost,
            pure_epsilon=privacy.exact_epsilon - self._overlaps_cost if pure else None,
            total=privacy.rows,
        )

    @property
    def _overlaps_cost(self) -> Fraction:
        """The cost of what servers see of a join: in rho, or in epsilon if accounting is pure."""
        if self.overlaps is None:
            return Fraction(0)
        if isinstance(self.overlaps, LaplaceOverlaps):
            return self.overlaps.epsilon(self.neighbouring)
        return self.overlaps.rho(self.neighbouring)

    @cached_property
    def neighbouring(self) -> Neighbouring:
        """What one person can change: the relation, and whether removing a value may uncover another holder's."""
        privacy = self.privacy
        return Neighbouring(Relation(privacy.neighbouring), privacy.multiplicity, moves=bool(self.shared_columns))

    @cached_property
    def brought(self) -> Counter[str]:
        """For each column, the number of holders of columns that bring it."""
        lists = (holder.columns or self.domain.names for holder in self.holders if holder.brings == "columns")
        return Counter(name for columns in lists for name in columns)

    def columns_lacking(self, holders: Collection[str]) -> list[str]:
        """Columns that none of these holders brings, in the schema's order; none if all holders bring whole rows."""
        taking = [holder for holder in self.holders if holder.brings == "columns"]
        there = {name for holder in taking if holder.name in holders for name in holder.columns or self.domain.names}
        return [name for name in self.domain.names if name not in there] if taking else []

    def why_stop(self, accepted: Collection[str], refused: Collection[str]) -> str | None:
        """Why a run must not go on after the checks of its inputs, in words that name holders; None if it may."""
        if not refused:
            return None
        what = f"the contribution{'s'[: len(refused) > 1]} of {' and '.join(refused)} failed the servers' checks"
        if self.inputs.refused == "stop":
            return f"{what}, and the study agreed to stop in this case (inputs.refused)"
        if not accepted:
            return f"{what}, and there are no others"
        if lacking := self.columns_lacking(accepted):
            return f"{what}, and nobody else brings {', '.join(lacking)}"
        return None

    @cached_property
    def absent_together(self) -> tuple[Clique, ...]:
        """Groups of columns that a person lacks together, if no holder of them has the person; in the schema's order.

        None if rows are joined to persons for whom every column is there, or if all holders bring all columns; nor if
        there are more than MOST_GROUPS, because a model tells apart every set of groups that a person may have.
        """
        if self.join is not None and self.join.mode == "inner":
            return ()
        taking = [holder for holder in self.holders if holder.brings == "columns"]
        groups: dict[tuple[str, ...], list[str]] = {}
        for name in self.domain.names:
            bringing = tuple(one.name for one in taking if name in (one.columns or self.domain.names))
            if len(bringing) < len(taking):
                groups.setdefault(bringing, []).append(name)
        return tuple(map(tuple, groups.values())) if len(groups) <= MOST_GROUPS else ()

    @property
    def lacking(self) -> frozenset[str]:
        """Columns in which a value of a person, and so of a synthetic row, may be missing whatever the schema says."""
        return frozenset(name for group in self.absent_together for name in group)

    @property
    def shared_columns(self) -> tuple[str, ...]:
        """Columns that more than one holder brings for the same persons, in the schema's order."""
        return tuple(name for name in self.domain.names if self.brought[name] > 1)

    @cached_property
    def _counting(self) -> int:
        """The number of holders that count their rows themselves."""
        return sum(holder.brings == "rows" for holder in self.holders)

    @cached_property
    def joined_rows(self) -> int:
        """The most rows of the joint table that are spread over holders."""
        return self.slots or sum(holder.capacity or 0 for holder in self.holders)

    @cached_property
    def counted_bits(self) -> int:
        """Bits of a count from a holder of whole rows (`caps.dp.bounds`). Raises DomainError if no number suffices."""
        cells = self.domain.cells_of(self._candidates)
        candidates = set(zip(self._candidates.values(), cells, strict=True))
        return counted_bits(self._counting, self.joined_rows, candidates)

    @cached_property
    def _candidates(self) -> dict[Clique, int]:
        """Every clique that may be a candidate of a selection, with its weight."""
        return self.program.candidates(self._asked)

    @property
    def _weights(self) -> set[int]:
        return set(self._candidates.values())

    @property
    def most_persons(self) -> int:
        """The most persons that a holder of whole rows can bring."""
        return (1 << self.counted_bits) - 1

    @cached_property
    def forecast(self) -> Forecast:
        """The most that a run can ask for. Raises DomainError if the budget cannot be divided."""
        return forecast(self.program, self.task, self._candidates)

    @cached_property
    def layout(self) -> Layout:
        """Every marginal that is counted."""
        return Layout(self.domain, self.program.cliques(self._asked))

    @cached_property
    def study_id(self) -> str:
        """SHA-256 of the canonical form, in hexadecimal."""
        return canonical.digest("manifest", self.to_json()).hex()

    def canonical_bytes(self) -> bytes:
        """The one spelling of this manifest."""
        return self._spelling

    @cached_property
    def _spelling(self) -> bytes:
        """Kept, because every holder asks a service for it, and of a thousand holders it takes a tenth of a second."""
        return canonical.dump(self.to_json())

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Manifest:
        """The manifest in an object parsed from JSON or YAML. Raises pydantic.ValidationError or DomainError.

        Parsing is strict: a number in quotes is text. Only epsilon and delta may be written either way.
        """
        return cls.model_validate_json(canonical.dump(dict(value)), strict=True)

    def holder(self, name: str) -> Holder:
        """The holder of that name. Raises DomainError if there is none."""
        if (found := self._holders.get(name)) is None:
            raise DomainError(f"the study has no holder {name!r}")
        return found

    @cached_property
    def _holders(self) -> dict[str, Holder]:
        """By name: services look for one at every request, of a thousand."""
        return {holder.name: holder for holder in self.holders}

    @cached_property
    def pins(self) -> Mapping[str, str]:
        """The key of everybody who takes part, by the role in the certificate."""
        parties: list[Server | Coordinator | Holder] = [*self.servers, self.coordinator, *self.holders]
        return {party.role: party.pin for party in parties}

    def server(self, name: str) -> Server:
        """The server of that name. Raises DomainError if there is none."""
        for server in self.servers:
            if server.name == name:
                return server
        raise DomainError(f"the study has no server {name!r}")

    @cached_property
    def slots(self) -> int | None:
        """Rows of the joint table at which holders place their columns; None if they do not."""
        if self.alignment is not None:
            return self.alignment.slots
        if self.join is not None and self.join.protocol == "oprf":
            return sum(holder.capacity or 0 for holder in self.holders)
        return None

    @property
    def leaks(self) -> tuple[str, ...]:
        """What parties learn beyond the guarantee, because of how rows are matched."""
        if self.join is None or self.join.protocol == "shuffle":
            return ()
        return (
            "S1 learns which holders have each pseudonym, which no server can invert alone; this is NOT differentially "
            "private",
            "a holder that shares what it knows with S1 learns which of its persons other holders have: against S1 "
            "together with a holder, nothing hides whether a person takes part",
        )

    @property
    def views(self) -> tuple[str, ...]:
        """Sentences that say what the guarantee covers of what is published and of what each party sees."""
        one = "any one server, with the coordinator and any holders,"
        if self.leaks:
            covered = f"so is what S2 or S3, with the coordinator and any holders, sees; {'; '.join(self.leaks)}"
        elif self.overlaps is not None:
            sets = self.overlap_sets
            which = f"each of {sets} sets of holders" if sets > 1 else "the two holders that are joined"
            covered = (
                f"so is what {one} sees, namely the agreed sizes and, for {which}, the number of persons that "
                f"exactly these have in common, made noisy by up to {self.dummies:,} dummies; what servers send each "
                "other follows from these numbers"
            )
        else:
            covered = f"so is what {one} sees, namely the agreed sizes"
        leaves_out = self.inputs.refused == "leave-out"
        then = "it is left out, and the release says so" if leaves_out else "the run ends and says so"
        return (RELEASE, covered, f"everybody sees whose contribution fails the servers' checks: {then}")

    @property
    def premises(self) -> tuple[str, ...]:
        """What the privacy statement of a run rests on."""
        k = self.privacy.multiplicity
        rows = "one row" if k == 1 else f"{k} rows"
        own = [f"nobody appears in more than {rows} of the joint table, over all holders together"]
        if self.alignment is not None:
            own.append("a person who does not take part leaves a slot of the joint table empty; nobody else takes it")
        return (server_premise(self.sharing), *ASSUMPTIONS, *own)

    def statement(self, spent: Filter) -> PrivacyStatement:
        """The privacy statement of a run that a filter with this study's budget has accepted."""
        return PrivacyStatement.of(spent, self.privacy.exact_delta, assumptions=self.premises, views=self.views)

    def form_of(self, holder: Holder) -> Form:
        """What a holder's contribution looks like."""
        if holder.brings == "rows":
            return Form("marginals", 32, (self.layout.cells,))
        domain = self.domain if holder.columns is None else self.domain.project(holder.columns)
        if self.slots is not None:
            return Form("columns", columns_bits(self.slots), (self.slots, domain.width))
        assert holder.capacity is not None
        return Form("records", 8, (holder.capacity, RowFormat(domain).row_bytes))

    def columns_of(self, holder: Holder) -> Schema:
        """The schema of what a holder brings."""
        return self.schema_ if holder.columns is None else self.schema_.select(holder.columns)


def sets_with(tables: int) -> int:
    """The number of sets of two or more tables that contain a given one of these tables."""
    return (1 << (tables - 1)) - 1 if tables else 0


def _name_problems(domain: Domain, given: tuple[str, ...]) -> list[str]:
    if not given:
        return ["must name at least one column"]
    return [f"the schema has no column {name!r}" for name in dict.fromkeys(given) if name not in domain]
