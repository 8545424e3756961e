"""A server's own rules, which no study can change: the studies in which its operator lets it take part.

`policy.yaml` is read at start. A study is checked against it before approval and again before every run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Literal, Self, get_args

import yaml
from pydantic import Field, ValidationError, model_validator

from caps.basics.document import Document, Name
from caps.basics.naming import alike_in_ascii
from caps.basics.schemes import SchemeName
from caps.dp.privacy import PopulationBudget
from caps.errors import DomainError
from caps.study.manifest import Manifest
from caps.study.memory import memory_of, size_shown
from caps.trust.denials import Denial

_WHEN_READ = "# Read when the service starts; only `denied` is followed while it runs. See docs/reference.md."
_COMMENTS_AT = 36
Positive = Annotated[float, Field(gt=0, lt=1000)]


class Policy(Document):
    """The limits, with the defaults of a careful operator. What each member means is its description."""

    approval: Literal["automatic", "manual"] = Field(
        default="manual",
        description="whether a study within the limits is approved by itself, or waits for the operator",
    )
    largest_epsilon: Positive = Field(default=1.0, description="of one study")
    largest_delta: Annotated[float, Field(gt=0, lt=1)] = Field(default=1e-6, description="of one study")
    populations: dict[Name, Positive] = Field(
        default_factory=dict,
        description="whom studies may be about, each with the largest epsilon over all its studies",
    )
    population_delta: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=1e-6, description="the delta at which populations have their epsilon"
    )
    default_population_epsilon: Positive | None = Field(
        default=None, description="of populations not listed; null refuses them: a new name would get a fresh budget"
    )
    certified_only: bool = Field(default=True, description="refuse samplers whose distribution is not proven")
    least_holders: Annotated[int, Field(ge=1)] = Field(default=2, description="of a study")
    largest_domain: Annotated[int, Field(ge=1)] = Field(default=1 << 22, description="cells that are counted")
    largest_slots: Annotated[int, Field(ge=1)] = Field(default=2_000_000, description="rows of a joint table")
    largest_memory: Annotated[int, Field(ge=1)] = Field(
        default=8_000_000_000, description="bytes that a study may need at its peak, besides the program's own"
    )
    least_capacity: Annotated[int, Field(ge=1)] = Field(default=100, description="rows of a table joined by a key")
    joins: tuple[Literal["shuffle", "oprf"], ...] = Field(
        default=("shuffle", "oprf"), description="how tables may be joined; oprf tells S1 more: docs/joining.md"
    )
    schemes: Annotated[tuple[SchemeName, ...], Field(min_length=1)] = Field(
        default=get_args(SchemeName), description="in which to compute; rep3 trusts servers: docs/threat-model.md"
    )
    algorithms: tuple[str, ...] = Field(
        default=("aim", "mwem", "mst", "swift", "gaussian"),
        description="that studies may use; those of other packages must be named",
    )
    coordinators: tuple[Name, ...] = Field(default=(), description="that may propose studies; any if empty")
    most_studies: Annotated[int, Field(ge=1)] = Field(
        default=100, description="of one coordinator, whose shares are not erased yet"
    )
    most_runs: Annotated[int, Field(ge=1)] = Field(
        default=10, description="of one study, whether or not they were given up"
    )
    most_contributions: Annotated[int, Field(ge=1)] = Field(
        default=100, description="of one holder to one study, withdrawn ones included"
    )
    denied: tuple[Denial, ...] = Field(
        default=(), description="keys that are not accepted: `caps pki revoke`; followed while the service runs"
    )

    @model_validator(mode="after")
    def _spendable(self) -> Self:
        """Refuse population budgets that have no room for any study, and names that people take for each other."""
        if pair := alike_in_ascii(self.populations):
            raise ValueError(f"populations: {pair[0]} and {pair[1]} look alike")
        for name in (*self.populations, ""):
            try:
                self.population_budget(name)
            except DomainError as error:
                place = f"populations.{name}" if name else "default_population_epsilon"
                raise ValueError(f"{place}: {error}") from None
        return self

    def judge(self, manifest: Manifest) -> list[str]:
        """Every objection to a study, as text with both sides' figures; an empty list if it is acceptable."""
        privacy = manifest.privacy
        objections = []
        if manifest.scheme not in self.schemes:
            objections.append(
                f"this server does not compute in the scheme {manifest.scheme}, only in {' or '.join(self.schemes)}"
            )
        if privacy.exact_epsilon > _exact(self.largest_epsilon):
            objections.append(f"epsilon {privacy.epsilon} exceeds this server's limit of {self.largest_epsilon:g}")
        if privacy.exact_delta > _exact(self.largest_delta):
            objections.append(f"delta {privacy.delta} exceeds this server's limit of {self.largest_delta:g}")
        population = self.population_budget(privacy.population)
        likely = [one for one in self.populations if alike_in_ascii((one, privacy.population))]
        if likely:
            objections.append(
                f"privacy.population: {privacy.population} looks like {likely[0]}, which is registered on this server"
            )
        elif population is None:
            objections.append(
                f"privacy.population: {privacy.population} is not registered on this server; if its persons are in no "
                "registered population, the operator can add it to `populations` in policy.yaml, with the largest "
                "epsilon over all its studies"
            )
        elif not population.admits([manifest.reservation]):
            objections.append(f"the study alone exceeds the budget of population {privacy.population}")
        if len(manifest.holders) < self.least_holders:
            objections.append(
                f"the study has {len(manifest.holders)} holders; this server requires at least {self.least_holders}"
            )
        if manifest.layout.cells > self.largest_domain:
            objections.append(f"{manifest.layout.cells} cells exceed this server's limit of {self.largest_domain}")
        slots = manifest.joined_rows
        if slots > self.largest_slots:
            what = "rows" if manifest.alignment is None else "slots"
            objections.append(f"{slots} {what} exceed this server's limit of {self.largest_slots}")
        needed = memory_of(manifest).total
        if needed > self.largest_memory:
            limit = size_shown(self.largest_memory)
            objections.append(f"about {size_shown(needed)} of memory exceed this server's limit of {limit}")
        for holder in manifest.holders:
            if holder.capacity is not None and holder.capacity < self.least_capacity:
                objections.append(
                    f"{holder.name} has a capacity of {holder.capacity} rows; this server requires at least "
                    f"{self.least_capacity}"
                )
        if manifest.join is not None and manifest.join.protocol not in self.joins:
            objections.append(f"this server does not allow joining by {manifest.join.protocol}")
        if manifest.algorithm.name not in self.algorithms:
            objections.append(f"this server does not allow the algorithm {manifest.algorithm.name}")
        if self.certified_only and not manifest.algorithm.certified:
            objections.append(
                f"the noise {manifest.algorithm.noise} has no proven guarantee, which this server requires"
            )
        if self.coordinators and manifest.coordinator.name not in self.coordinators:
            objections.append(f"this server does not work with the coordinator {manifest.coordinator.name}")
        return objections

    def population_budget(self, population: str) -> PopulationBudget | None:
        """What all studies of a population together may cost; None if its studies are refused."""
        epsilon = self.populations.get(population, self.default_population_epsilon)
        return None if epsilon is None else PopulationBudget(_exact(epsilon), _exact(self.population_delta))

    @classmethod
    def read(cls, path: Path) -> Policy:
        """The policy in a YAML file; an empty file has the defaults. Raises DomainError with each error's place."""
        try:
            value = yaml.safe_load(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise DomainError(f"{path}: cannot be read: {error.strerror}") from None
        except yaml.MarkedYAMLError as error:
            line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
            raise DomainError(f"{path}: {line}not YAML") from None
        except (yaml.YAMLError, UnicodeDecodeError):
            raise DomainError(f"{path}: not YAML in UTF-8") from None
        if not isinstance(value, dict | None):
            raise DomainError(f"{path}: a policy must be a list of members like `approval: manual`")
        try:
            return cls.model_validate({} if value is None else value)
        except ValidationError as error:
            raise DomainError(f"{path}: {'; '.join(_mistakes(error))}") from None


def policy_yaml(changes: Mapping[str, object] | None = None) -> str:
    """A policy.yaml with every member, its meaning, and these values instead of the defaults. Raises DomainError."""
    try:
        policy = Policy.model_validate(changes or {})
    except ValidationError as error:
        raise DomainError("; ".join(_mistakes(error))) from None
    lines = ["# The studies in which this MPC server takes part. No study can change these rules.", _WHEN_READ]
    for name, value in policy.model_dump(mode="json").items():
        written = yaml.safe_dump(value, default_flow_style=True, width=math.inf).removesuffix("...\n").strip()
        lines.append(f"{f'{name}: {written}':<{_COMMENTS_AT}} # {Policy.model_fields[name].description}")
    return "\n".join(lines) + "\n"


def _mistakes(error: ValidationError) -> list[str]:
    return [f"{'.'.join(map(str, one['loc']))}: {_plain(one['msg'])}" for one in error.errors()]


def _plain(message: str) -> str:
    return message[:1].lower() + message[1:]


def _exact(value: float) -> Fraction:
    """A float from a file as the decimal that was written."""
    return Fraction(repr(value))
