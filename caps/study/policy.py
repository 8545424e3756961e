"""A server's own rules, which no study can change: the studies in which its operator lets it take part.

`policy.yaml` is read at start. A study is checked against it before approval and again before every run.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Annotated, Literal, Self, get_args

import yaml
from pydantic import Field, ValidationError, model_validator

from caps.basics.document import Document, Name
from caps.basics.schemes import SchemeName
from caps.dp.privacy import PopulationBudget
from caps.errors import DomainError
from caps.study.manifest import Manifest
from caps.study.memory import memory_of, size_shown

Positive = Annotated[float, Field(gt=0, lt=1000)]


class Policy(Document):
    """The limits, with the defaults of a careful operator.

    approval: whether a study within the limits is approved automatically or waits for the operator. certified_only:
    refuse samplers whose distribution is not proven. populations: the populations that studies may be about, each with
    the largest epsilon over all its studies at `population_delta`. default_population_epsilon: the same for
    populations not listed; None refuses them, because a new name for the same persons would get a fresh budget.
    largest_memory: bytes that a study may need at its peak, besides the program's own. schemes: those in which this
    server computes. coordinators: those that may propose studies; any if empty.
    most_studies: of one coordinator, whose shares are not erased yet. most_runs: of one study, whether or not they were
    given up. most_contributions: of one holder to one study, withdrawn ones included.
    """

    approval: Literal["automatic", "manual"] = "manual"
    largest_epsilon: Positive = 1.0
    largest_delta: Annotated[float, Field(gt=0, lt=1)] = 1e-6
    populations: dict[Name, Positive] = Field(default_factory=dict)
    population_delta: Annotated[float, Field(gt=0, lt=1)] = 1e-6
    default_population_epsilon: Positive | None = None
    certified_only: bool = True
    least_holders: Annotated[int, Field(ge=1)] = 2
    largest_domain: Annotated[int, Field(ge=1)] = 1 << 22
    largest_slots: Annotated[int, Field(ge=1)] = 2_000_000
    largest_memory: Annotated[int, Field(ge=1)] = 8_000_000_000
    least_capacity: Annotated[int, Field(ge=1)] = 100
    joins: tuple[Literal["shuffle", "oprf"], ...] = ("shuffle", "oprf")
    schemes: Annotated[tuple[SchemeName, ...], Field(min_length=1)] = get_args(SchemeName)
    algorithms: tuple[str, ...] = ("aim", "mwem", "mst", "gaussian")
    coordinators: tuple[Name, ...] = ()
    most_studies: Annotated[int, Field(ge=1)] = 100
    most_runs: Annotated[int, Field(ge=1)] = 10
    most_contributions: Annotated[int, Field(ge=1)] = 100

    @model_validator(mode="after")
    def _spendable(self) -> Self:
        """Refuse population budgets that have no room for any study."""
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
        if population is None:
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
            found = [f"{'.'.join(map(str, one['loc']))}: {_plain(one['msg'])}" for one in error.errors()]
            raise DomainError(f"{path}: {'; '.join(found)}") from None


def _plain(message: str) -> str:
    return message[:1].lower() + message[1:]


def _exact(value: float) -> Fraction:
    """A float from a file as the decimal that was written."""
    return Fraction(repr(value))
