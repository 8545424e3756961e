"""What an algorithm may request about the joint data: count once, compare, select, measure. It sees only noisy answers.

Two things answer: the MPC servers (`services.mpc_server.engine.steps`) and, where the data may be in one place, the
clear twin (`caps.dp.clear`). Requests hold public numbers only, and everything a server needs to charge its ledger.

Scores are integers in units of 2^-UNIT_BITS of a person, so that their sensitivity is exact.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import (
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainSerializer,
    PlainValidator,
    Strict,
    TypeAdapter,
    WithJsonSchema,
)

from caps.basics import canonical
from caps.data.domain import Layout
from caps.dp.bounds import MOST_BIAS, MOST_COUNTED, MOST_ESTIMATED, SCORE_BITS, UNIT_BITS, largest_score
from caps.dp.noise.plans import (
    DummyPlan,
    GaussianPlan,
    GeometricPlan,
    GumbelPlan,
    LaplacePlan,
    dummy_plan,
    gaussian_exists,
    gaussian_plan,
    geometric_exists,
    geometric_plan,
    gumbel_exists,
    gumbel_plan,
    laplace_exists,
    laplace_plan,
)
from caps.dp.privacy.filter import Entry
from caps.dp.privacy.mechanisms import (
    AnyMechanism,
    Charged,
    Gaussian,
    GaussianBatch,
    GaussianErrors,
    GaussianOverlaps,
    Laplace,
    NoisyMax,
    Overlaps,
    PermuteAndFlip,
    mechanism_from_json,
    mechanism_to_json,
)
from caps.dp.privacy.neighbouring import Neighbouring
from caps.dp.privacy.rational import RATIO_PATTERN
from caps.errors import DomainError


def _integers(value: object) -> npt.NDArray[np.int64]:
    """The inverse of `spelled`, all at once: there may be 2^24 of them."""
    if not isinstance(value, str) or not value.isascii():
        raise ValueError(_NOT_INTEGERS)
    try:
        numbers = np.frombuffer(b64decode(value, validate=True), "<i8").astype(np.int64)
    except ValueError:  # also if the bytes are not a whole number of integers
        raise ValueError(_NOT_INTEGERS) from None
    if spelled(numbers) != value:  # base64 has bits to spare at its end
        raise ValueError(_NOT_INTEGERS)
    if np.any(numbers > canonical.MAX_INTEGER) or np.any(numbers < -canonical.MAX_INTEGER):
        raise ValueError("integers must be below 2**53")
    return numbers


def spelled(numbers: npt.ArrayLike) -> str:
    """Integers on the wire: eight bytes each, little-endian, in base64. Lists of JSON would be read one by one."""
    return b64encode(np.asarray(numbers, "<i8").tobytes()).decode()


def _drawn_by(*kinds: type[Charged]) -> tuple[PlainValidator, PlainSerializer, WithJsonSchema]:
    """The wire form of a mechanism of one of these kinds."""

    def read(value: object) -> Charged:
        try:
            mechanism = mechanism_from_json(value)
        except DomainError as error:
            raise ValueError(str(error)) from None
        if not isinstance(mechanism, kinds):
            raise ValueError(f"the mechanism {mechanism.kind} cannot be used here")
        return mechanism

    schemas = []
    for kind in kinds:
        parameters = {one.name: {"type": "string", "pattern": RATIO_PATTERN} for one in fields(kind)}
        properties = {"kind": {"const": kind.kind, "type": "string"}, **parameters}
        schemas.append(
            {
                "type": "object",
                "title": kind.__name__,
                "properties": properties,
                "required": list(properties),
                "additionalProperties": False,
            }
        )
    return PlainValidator(read), PlainSerializer(mechanism_to_json), WithJsonSchema({"oneOf": schemas})


def _spelled_out(schema: dict[str, Any]) -> None:
    """On the wire every member is given, even where Python has a default."""
    for member in schema["properties"].values():
        member.pop("default", None)
    schema["required"] = list(schema["properties"])


_NOT_INTEGERS = "must be integers of eight bytes, little-endian, in base64"
INTEGER_BYTES = 8
_BASE64_OF_INTEGERS = "^([A-Za-z0-9+/]{32})*([A-Za-z0-9+/]{10}[AEIMQUYcgkosw048]=|[A-Za-z0-9+/]{21}[AQgw]==)?$"
_WIRE = ConfigDict(extra="forbid", arbitrary_types_allowed=True, json_schema_extra=_spelled_out)
_LARGEST = canonical.MAX_INTEGER
MOST_BATCHED = 1 << 19
"""The most cells of a batch: half of ETA_MAX at 2^-80 each."""
MOST_PLANS = 64
"""The most kinds of noise in a batch: for each, servers build a table."""

Integers: TypeAlias = Annotated[
    npt.NDArray[np.int64],
    PlainValidator(_integers),
    PlainSerializer(spelled, return_type=str),
    WithJsonSchema(
        {
            "type": "string",
            "contentEncoding": "base64",
            "pattern": _BASE64_OF_INTEGERS,
            "description": f"Integers from -{_LARGEST} to {_LARGEST}, {INTEGER_BYTES} bytes each, little-endian",
        }
    ),
]
_Count: TypeAlias = Annotated[int, Strict(), Field(ge=-_LARGEST, le=_LARGEST)]
_Text: TypeAlias = Annotated[str, Strict()]
_Clique: TypeAlias = tuple[_Text, ...]
Plan: TypeAlias = GaussianPlan | LaplacePlan | GumbelPlan | GeometricPlan
"""Noise that is drawn jointly, in MPC."""

_SAMPLERS = {
    GaussianPlan: "discrete-gaussian",
    LaplacePlan: "discrete-laplace",
    GumbelPlan: "gumbel",
    GeometricPlan: "geometric",
}


def rounded_estimate(estimate: npt.ArrayLike) -> Integers:
    """An estimate of counts, as a model gives it, in units of 2^-UNIT_BITS."""
    scaled = np.rint(np.asarray(estimate, np.float64) * (1 << UNIT_BITS))
    if not np.all((scaled >= 0) & (scaled <= MOST_COUNTED << UNIT_BITS)):  # also catches NaN
        raise DomainError("an estimated count is not a number of people")
    return scaled.astype(np.int64)


def sendable(opened: npt.NDArray[np.int64]) -> Integers:
    """Opened errors as an answer carries them. Those of honest tables are far below 2^53; a holder that lies may cause
    larger ones, which are cut off."""
    return np.clip(opened, -canonical.MAX_INTEGER, canonical.MAX_INTEGER)


def selection_plan(
    mechanism: NoisyMax | PermuteAndFlip, weight: int, neighbouring: Neighbouring
) -> GumbelPlan | GeometricPlan:
    """The noise of scores whose largest absolute weight is `weight`."""
    scale = _scale(mechanism, weight, neighbouring)
    if isinstance(mechanism, NoisyMax):
        return gumbel_plan(scale, mechanism.epsilon_star, mechanism.kappa)
    return geometric_plan(scale)


def comparison_plan(mechanism: GaussianErrors) -> GaussianPlan:
    """The noise of errors, in units of 2^-UNIT_BITS."""
    return gaussian_plan(_in_units(mechanism))


def measurement_plan(mechanism: Gaussian | Laplace) -> GaussianPlan | LaplacePlan:
    """The noise of a marginal's cells."""
    if isinstance(mechanism, Gaussian):
        return gaussian_plan(mechanism.sigma_squared)
    return laplace_plan(mechanism.scale)


def drawable(mechanism: AnyMechanism, weight: int, neighbouring: Neighbouring) -> bool:
    """Whether the noise has a plan, without building it: the functions above then do not refuse.

    weight: as for `selection_plan`; other steps ignore it. If two mechanisms of a kind are drawable, or one with two
    weights, so is everything between them.
    """
    match mechanism:
        case Gaussian():
            return gaussian_exists(mechanism.sigma_squared)
        case Laplace():
            return laplace_exists(mechanism.scale)
        case NoisyMax():
            return gumbel_exists(_scale(mechanism, weight, neighbouring), mechanism.epsilon_star, mechanism.kappa)
        case PermuteAndFlip():
            return geometric_exists(_scale(mechanism, weight, neighbouring))
        case GaussianErrors():
            return gaussian_exists(_in_units(mechanism))
        case GaussianBatch():
            ends = (1, mechanism.PARTS)
            return all(gaussian_exists(mechanism.part(parts, neighbouring).sigma_squared) for parts in ends)


def _in_units(mechanism: GaussianErrors) -> Fraction:
    return mechanism.sigma_squared * (1 << 2 * UNIT_BITS)


def _scale(mechanism: NoisyMax | PermuteAndFlip, weight: int, neighbouring: Neighbouring) -> Fraction:
    return mechanism.scale(weight << UNIT_BITS, neighbouring)


def _sums(numbers: Integers, starts: npt.NDArray[np.intp]) -> list[int]:
    """The sums of segments of numbers below 2^40. Added up in halves, because 2^24 of them would wrap in 64 bits."""
    high, low = (np.add.reduceat(part, starts).tolist() for part in (numbers >> 20, numbers & (1 << 20) - 1))
    return [(a << 20) + b for a, b in zip(high, low, strict=True)]


@dataclass(frozen=True)
class Compute:
    """COMPUTE ANSWERS, a run's step 0: count every marginal of the layout. The counts stay secret."""

    __pydantic_config__: ClassVar[ConfigDict] = _WIRE
    step: ClassVar[str] = "compute"
    kind: Literal["compute"] = field(default="compute", kw_only=True)


@dataclass(frozen=True, eq=False)
class Selection:
    """Which candidate's marginal is worst approximated: the greatest w (sum of |2^8 count - estimate| - bias) + noise.

    step: names the step within its run, once. estimate: of all cells of the candidates, one after the other. bias and
    weights: one for each candidate. All in units of 2^-UNIT_BITS but the weights, which are plain integers. draws: at
    least as many as the candidates; so many noise values are drawn, and the rest is discarded. It is fixed before the
    candidates are, so that the noise of a step is the same whether it was drawn beforehand or not.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _WIRE
    kind: Literal["select"] = field(default="select", kw_only=True)
    step: _Text
    candidates: tuple[_Clique, ...]
    estimate: Integers
    bias: Integers
    weights: Integers
    mechanism: Annotated[NoisyMax | PermuteAndFlip, *_drawn_by(NoisyMax, PermuteAndFlip)]
    draws: _Count | None = None

    @property
    def noise_values(self) -> int:
        """How many values to draw. Raises DomainError if they are fewer than the candidates."""
        draws = len(self.candidates) if self.draws is None else self.draws
        if draws < len(self.candidates):
            raise DomainError(f"{draws} noise values are too few for {len(self.candidates)} candidates")
        return draws

    def check(self, layout: Layout, largest_count: int = MOST_COUNTED) -> None:
        """Refuse a request that does not fit the layout, or has numbers that no honest model produces.

        largest_count: the largest count of a cell, whatever holders send. With it no score can reach 2^61.
        """
        sizes = _check_estimate(self.candidates, self.estimate, layout)
        if self.bias.shape != (len(self.candidates),) or self.weights.shape != self.bias.shape:
            raise DomainError("every candidate needs a bias and a weight")
        if self.bias.dtype != np.int64 or self.weights.dtype != np.int64:
            raise DomainError("biases and weights are 64-bit integers")
        if not np.any(self.weights):
            raise DomainError("at least one weight must not be zero")
        if np.any(self.bias < 0) or np.any(self.bias > sizes * MOST_BIAS):
            raise DomainError("a bias is not what noise could come to")
        _check_scores(self.weights.tolist(), sizes.tolist(), largest_count)

    def starts(self, layout: Layout) -> npt.NDArray[np.intp]:
        """The first cell of every candidate in `estimate`."""
        return _starts(self.candidates, layout)

    def plan(self, neighbouring: Neighbouring) -> GumbelPlan | GeometricPlan:
        """The noise that makes the selection private: its scale follows from the largest weight."""
        return selection_plan(self.mechanism, int(np.abs(self.weights).max()), neighbouring)

    def entry(self, neighbouring: Neighbouring) -> Entry:
        """What a ledger is charged."""
        plan = self.plan(neighbouring)
        return _entry(self.step, self.mechanism, plan, self.noise_values)


@dataclass(frozen=True, eq=False)
class Comparison:
    """How far the estimates of marginals are off: for each candidate, the sum of |2^8 count - estimate|, plus noise.

    All are opened, at once. Estimates and answers are in units of 2^-UNIT_BITS.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _WIRE
    kind: Literal["compare"] = field(default="compare", kw_only=True)
    step: _Text
    candidates: tuple[_Clique, ...]
    estimate: Integers
    mechanism: Annotated[GaussianErrors, *_drawn_by(GaussianErrors)]

    def check(self, layout: Layout, largest_count: int = MOST_COUNTED) -> None:
        """Refuse what `Selection.check` would refuse: a sum of distances must not reach 2^61."""
        sizes = _check_estimate(self.candidates, self.estimate, layout)
        _check_scores([1] * len(sizes), sizes.tolist(), largest_count)

    def starts(self, layout: Layout) -> npt.NDArray[np.intp]:
        """The first cell of every candidate in `estimate`."""
        return _starts(self.candidates, layout)

    def plan(self) -> GaussianPlan:
        """The noise."""
        return comparison_plan(self.mechanism)

    def entry(self) -> Entry:
        """What a ledger is charged: a release for each candidate."""
        plan, count = self.plan(), len(self.candidates)
        return Entry(self.step, self.mechanism, count, _SAMPLERS[type(plan)], count, plan.distance, certified=True)


@dataclass(frozen=True, eq=False)
class Batch:
    """Several noisy marginals, opened at once. parts: how much of the batch's budget each gets (`GaussianBatch`)."""

    __pydantic_config__: ClassVar[ConfigDict] = _WIRE
    kind: Literal["batch"] = field(default="batch", kw_only=True)
    step: _Text
    cliques: tuple[_Clique, ...]
    parts: Integers
    mechanism: Annotated[GaussianBatch, *_drawn_by(GaussianBatch)]

    def check(self, layout: Layout) -> None:
        """Refuse a division of the budget that spends more than it, or draws more noise than a run may."""
        if not self.cliques or len(set(self.cliques)) < len(self.cliques):
            raise DomainError("a batch must have marginals, each once")
        if self.parts.shape != (len(self.cliques),) or np.any(self.parts < 1):
            raise DomainError("every marginal of a batch needs at least one part of its budget")
        if np.any(self.parts > self.mechanism.PARTS) or int(self.parts.sum()) > self.mechanism.PARTS:
            raise DomainError(f"the marginals of a batch have more than the {self.mechanism.PARTS} parts of its budget")
        if len(np.unique(self.parts)) > MOST_PLANS:
            raise DomainError(f"a batch must not have more than {MOST_PLANS} different kinds of noise")
        if self.draws(layout) > MOST_BATCHED:
            raise DomainError(f"a batch must not have more than {MOST_BATCHED:,} cells")

    def sizes(self, layout: Layout) -> tuple[int, ...]:
        """The cells of each marginal."""
        return tuple(layout.sizes[layout.index(clique)] for clique in self.cliques)

    def draws(self, layout: Layout) -> int:
        """The cells of all marginals together, and noise values."""
        return sum(self.sizes(layout))

    def noise(self, layout: Layout, neighbouring: Neighbouring) -> list[tuple[GaussianPlan, npt.NDArray[np.intp]]]:
        """Every kind of noise, and the cells of the answer that have it; kinds in the order of their parts."""
        each = np.repeat(self.parts, self.sizes(layout))
        kinds = [int(parts) for parts in np.unique(self.parts)]
        plans = [gaussian_plan(self.mechanism.part(parts, neighbouring).sigma_squared) for parts in kinds]
        return [(plan, np.flatnonzero(each == parts)) for parts, plan in zip(kinds, plans, strict=True)]

    def measurements(self, neighbouring: Neighbouring) -> list[Measurement]:
        """The same marginals as if each had been measured by itself, for those who use the answers."""
        each = (self.mechanism.part(parts, neighbouring) for parts in self.parts.tolist())
        return [Measurement(self.step, clique, noise) for clique, noise in zip(self.cliques, each, strict=True)]

    def entry(self, layout: Layout, neighbouring: Neighbouring) -> Entry:
        """What a ledger is charged."""
        plans = [plan for plan, _ in self.noise(layout, neighbouring)]
        distance, sampler = max(plan.distance for plan in plans), _SAMPLERS[type(plans[0])]
        return Entry(self.step, self.mechanism, 1, sampler, self.draws(layout), distance, certified=True)


@dataclass(frozen=True, eq=False)
class Measurement:
    """A noisy marginal. `draws`, at least its cells, is how many noise values are drawn: the rest is discarded.

    Servers draw noise before they know which marginal will be selected, hence for the largest.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _WIRE
    kind: Literal["measure"] = field(default="measure", kw_only=True)
    step: _Text
    clique: _Clique
    mechanism: Annotated[Gaussian | Laplace, *_drawn_by(Gaussian, Laplace)]
    draws: _Count | None = None

    def noise_values(self, layout: Layout) -> int:
        """How many values to draw. Raises DomainError if they are fewer than the cells."""
        cells = layout.sizes[layout.index(self.clique)]
        draws = cells if self.draws is None else self.draws
        if draws < cells:
            raise DomainError(f"{draws} noise values are too few for {cells} cells")
        return draws

    def plan(self) -> GaussianPlan | LaplacePlan:
        """The noise."""
        return measurement_plan(self.mechanism)

    def entry(self, layout: Layout) -> Entry:
        """What a ledger is charged."""
        return _entry(self.step, self.mechanism, self.plan(), self.noise_values(layout))


def _check_estimate(
    candidates: tuple[tuple[str, ...], ...], estimate: Integers, layout: Layout
) -> npt.NDArray[np.int64]:
    """Refuse estimates that do not fit the layout or that no honest model gives. Returns the candidates' cells."""
    sizes = np.array([layout.sizes[layout.index(clique)] for clique in candidates], np.int64)
    if not candidates or estimate.shape != (int(sizes.sum()),):
        raise DomainError(f"{len(candidates)} candidates with {sizes.sum()} cells need as many estimates")
    if estimate.dtype != np.int64:
        raise DomainError("estimates are 64-bit integers")
    if np.any(estimate < 0) or np.any(estimate > MOST_COUNTED << UNIT_BITS):
        raise DomainError("an estimate is not a number of people")
    if max(_sums(estimate, _starts(candidates, layout))) > MOST_ESTIMATED:
        raise DomainError("the estimates of a candidate add up to more people than there can be")
    return sizes


def _check_scores(weights: list[int], sizes: list[int], largest_count: int) -> None:
    if max(map(largest_score, weights, sizes, [largest_count] * len(sizes))) >> SCORE_BITS:
        raise DomainError("weights or marginals are so large that a score could overflow")


def _starts(candidates: tuple[tuple[str, ...], ...], layout: Layout) -> npt.NDArray[np.intp]:
    sizes = [layout.sizes[layout.index(clique)] for clique in candidates]
    return np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.intp)


def overlaps_plan(mechanism: Overlaps) -> DummyPlan:
    """The numbers of dummies of a join."""
    if isinstance(mechanism, GaussianOverlaps):
        return dummy_plan(gaussian_plan(mechanism.sigma_squared))
    return dummy_plan(laplace_plan(mechanism.scale))


def overlaps_entry(mechanism: Overlaps, sets: int) -> Entry:
    """What a ledger is charged for COMPUTE ANSWERS where rows are joined: for each of so many sets, a noise value."""
    plan = overlaps_plan(mechanism)
    return Entry("compute", mechanism, 1, _SAMPLERS[type(plan.noise)], sets, plan.distance, certified=True)


def _entry(step: str, mechanism: AnyMechanism, plan: Plan, draws: int) -> Entry:
    return Entry(step, mechanism, 1, _SAMPLERS[type(plan)], draws, plan.distance, certified=True)


Request: TypeAlias = Comparison | Selection | Measurement | Batch
"""What an algorithm decides to request."""
_MEMBERS: dict[str, list[str]] = {
    cls.kind: [one.name for one in fields(cls)] for cls in (Compute, Comparison, Selection, Measurement, Batch)
}


def _whole(value: object) -> object:
    """Refuse a JSON object that omits a member with a default: one request has one spelling, and one digest."""
    if isinstance(value, dict) and isinstance(kind := value.get("kind"), str):
        missing = [name for name in _MEMBERS.get(kind, ()) if name not in value]
        if missing:
            raise ValueError(f"missing members: {', '.join(missing)}")
    return value


StepRequest: TypeAlias = Annotated[
    Compute | Comparison | Selection | Measurement | Batch, Discriminator("kind"), BeforeValidator(_whole)
]
"""The request of a step of a run: step 0 is to compute, the others are `Request`s."""
STEP_REQUEST: TypeAdapter[StepRequest] = TypeAdapter(StepRequest)


def request_digest(request: StepRequest) -> bytes:
    """SHA-256 of the canonical form."""
    return canonical.digest("request", STEP_REQUEST.dump_python(request, mode="json"))


class Oracle(Protocol):
    """The joint data, as an algorithm sees it."""

    @property
    def layout(self) -> Layout:
        """The marginals that can be requested."""

    def answers(self) -> None:
        """COMPUTE ANSWERS: count every marginal of the layout. Returns nothing: the counts stay secret."""

    def compare(self, comparison: Comparison) -> Integers:
        """COMPARE: the error of every candidate's estimate plus noise, in units of 2^-UNIT_BITS."""

    def select(self, selection: Selection) -> int:
        """SELECT: the position of the selected candidate."""

    def measure(self, measurement: Measurement) -> Integers:
        """MEASURE: the marginal plus noise, flat."""

    def measure_batch(self, batch: Batch) -> Integers:
        """MEASURE several: each marginal plus noise, flat, one after the other."""
