"""What an algorithm may ask about the joint data: count once, select, measure. It sees noisy answers, nothing else.

Two things answer: the MPC servers (`services.mpc_server.engine.steps`) and, where the data may be in one place, the
clear twin (`caps.dp.clear`). Requests hold public numbers only, and everything a server needs to charge its ledger.

Scores are integers in units of 2^-UNIT_BITS of a person, so that their sensitivity is exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from caps.basics import canonical
from caps.data.domain import Clique, Layout
from caps.dp.bounds import MOST_BIAS, MOST_COUNTED, MOST_ESTIMATED, NOISE_BITS, SCORE_BITS, UNIT_BITS, largest_score
from caps.dp.noise.plans import (
    DistributedPlan,
    DummyPlan,
    GaussianPlan,
    GeometricPlan,
    GumbelPlan,
    LaplacePlan,
    distributed_plan,
    dummy_plan,
    gaussian_exists,
    gaussian_plan,
    geometric_exists,
    geometric_plan,
    gumbel_exists,
    gumbel_plan,
    laplace_plan,
)
from caps.dp.privacy.filter import Entry
from caps.dp.privacy.mechanisms import (
    AnyMechanism,
    Gaussian,
    GaussianOverlaps,
    Laplace,
    NoisyMax,
    Overlaps,
    PermuteAndFlip,
    mechanism_from_json,
    mechanism_to_json,
)
from caps.dp.privacy.neighbouring import Neighbouring
from caps.dp.privacy.rational import read_count, read_flag, read_list, read_object, read_text
from caps.errors import DomainError

Integers: TypeAlias = npt.NDArray[np.int64]
Plan: TypeAlias = GaussianPlan | LaplacePlan | GumbelPlan | GeometricPlan
"""Noise that is drawn jointly, in MPC."""

_SAMPLERS = {
    GaussianPlan: "discrete-gaussian",
    LaplacePlan: "discrete-laplace",
    GumbelPlan: "gumbel",
    GeometricPlan: "geometric",
    DistributedPlan: "discrete-gaussian-distributed",
}


def rounded_estimate(estimate: npt.ArrayLike) -> Integers:
    """An estimate of counts, as a model gives it, in units of 2^-UNIT_BITS."""
    scaled = np.rint(np.asarray(estimate, np.float64) * (1 << UNIT_BITS))
    if not np.all((scaled >= 0) & (scaled <= MOST_COUNTED << UNIT_BITS)):  # also catches NaN
        raise DomainError("an estimated count is not a number of people")
    return scaled.astype(np.int64)


def selection_plan(
    mechanism: NoisyMax | PermuteAndFlip, weight: int, neighbouring: Neighbouring
) -> GumbelPlan | GeometricPlan:
    """The noise of scores whose largest absolute weight is `weight`."""
    scale = _scale(mechanism, weight, neighbouring)
    plan = gumbel_plan(scale, mechanism.kappa) if isinstance(mechanism, NoisyMax) else geometric_plan(scale)
    if plan.width > NOISE_BITS:
        raise DomainError(f"noise of scale {float(scale):.3g} could make a score overflow")
    return plan


def measurement_plan(mechanism: Gaussian | Laplace) -> GaussianPlan | LaplacePlan:
    """The noise of a marginal's cells."""
    if isinstance(mechanism, Gaussian):
        return gaussian_plan(mechanism.sigma_squared)
    return laplace_plan(mechanism.scale)


def drawable(mechanism: AnyMechanism, weight: int, neighbouring: Neighbouring) -> bool:
    """Whether the noise has a plan, without building it: `selection_plan` or `measurement_plan` then do not refuse.

    weight: as of `selection_plan`; of no matter to measurements. If two mechanisms of a kind are drawable, or one with
    two weights, so is all between them.
    """
    match mechanism:
        case Gaussian():
            return gaussian_exists(mechanism.sigma_squared)
        case Laplace():
            return geometric_exists(mechanism.scale)
        case NoisyMax():
            return gumbel_exists(_scale(mechanism, weight, neighbouring), mechanism.kappa)
        case PermuteAndFlip():
            return geometric_exists(_scale(mechanism, weight, neighbouring))


def _scale(mechanism: NoisyMax | PermuteAndFlip, weight: int, neighbouring: Neighbouring) -> Fraction:
    return mechanism.scale(weight << UNIT_BITS, neighbouring)


def _sums(numbers: Integers, starts: npt.NDArray[np.intp]) -> list[int]:
    """Of segments of numbers below 2^40. Added up in halves: 2^24 of them would wrap in 64 bits."""
    high, low = (np.add.reduceat(part, starts).tolist() for part in (numbers >> 20, numbers & (1 << 20) - 1))
    return [(a << 20) + b for a, b in zip(high, low, strict=True)]


@dataclass(frozen=True, eq=False)
class Selection:
    """Which candidate's marginal is worst approximated: the greatest w (sum of |2^8 count - estimate| - bias) + noise.

    step: names the step within its run, once. estimate: of all cells of the candidates, one after the other. bias and
    weights: one for each candidate. All in units of 2^-UNIT_BITS but the weights, which are plain integers. draws: at
    least as many as the candidates; so many noise values are drawn, and the rest is discarded. It is fixed before the
    candidates are, so that the noise of a step is the same whether it was drawn beforehand or not.
    """

    step: str
    candidates: tuple[Clique, ...]
    estimate: Integers
    bias: Integers
    weights: Integers
    mechanism: NoisyMax | PermuteAndFlip
    draws: int | None = None

    @property
    def noise_values(self) -> int:
        """How many values to draw. Raises DomainError if they are fewer than the candidates."""
        draws = len(self.candidates) if self.draws is None else self.draws
        if draws < len(self.candidates):
            raise DomainError(f"{draws} noise values are too few for {len(self.candidates)} candidates")
        return draws

    def check(self, layout: Layout, largest_count: int = MOST_COUNTED) -> None:
        """Refuse a request that does not fit the layout, or holds numbers that no honest model comes to.

        largest_count: of a cell, whatever holders send. With it no score can reach 2^61.
        """
        sizes = np.array([layout.sizes[layout.index(clique)] for clique in self.candidates], np.int64)
        if not self.candidates or self.estimate.shape != (int(sizes.sum()),):
            raise DomainError(f"{len(self.candidates)} candidates with {sizes.sum()} cells need as many estimates")
        if self.bias.shape != (len(self.candidates),) or self.weights.shape != self.bias.shape:
            raise DomainError("every candidate needs a bias and a weight")
        if any(array.dtype != np.int64 for array in (self.estimate, self.bias, self.weights)):
            raise DomainError("estimates, biases and weights are 64-bit integers")
        if not np.any(self.weights):
            raise DomainError("at least one weight must not be zero")
        if np.any(self.estimate < 0) or np.any(self.estimate > MOST_COUNTED << UNIT_BITS):
            raise DomainError("an estimate is not a number of people")
        if max(_sums(self.estimate, self.starts(layout))) > MOST_ESTIMATED:
            raise DomainError("the estimates of a candidate add up to more people than there can be")
        if np.any(self.bias < 0) or np.any(self.bias > sizes * MOST_BIAS):
            raise DomainError("a bias is not what noise could come to")
        worst = max(map(largest_score, self.weights.tolist(), sizes.tolist(), [largest_count] * len(sizes)))
        if worst >> SCORE_BITS:
            raise DomainError("weights or marginals are so large that a score could overflow")

    def starts(self, layout: Layout) -> npt.NDArray[np.intp]:
        """The first cell of every candidate in `estimate`."""
        sizes = [layout.sizes[layout.index(clique)] for clique in self.candidates]
        return np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.intp)

    def plan(self, neighbouring: Neighbouring) -> GumbelPlan | GeometricPlan:
        """The noise that makes the selection private: its scale follows from the largest weight."""
        return selection_plan(self.mechanism, int(np.abs(self.weights).max()), neighbouring)

    def entry(self, neighbouring: Neighbouring) -> Entry:
        """What a ledger is charged."""
        plan = self.plan(neighbouring)
        return _entry(self.step, self.mechanism, plan, self.noise_values)


@dataclass(frozen=True, eq=False)
class Measurement:
    """A noisy marginal. `draws`, at least its cells, is how many noise values are drawn: the rest is discarded.

    Servers draw noise before they know which marginal will be selected, hence for the largest. `distributed` asks for
    Gaussian noise that each server draws by itself: no MPC, and half as much variance again.
    """

    step: str
    clique: Clique
    mechanism: Gaussian | Laplace
    draws: int | None = None
    distributed: bool = False

    def noise_values(self, layout: Layout) -> int:
        """How many values to draw. Raises DomainError if they are fewer than the cells."""
        cells = layout.sizes[layout.index(self.clique)]
        draws = cells if self.draws is None else self.draws
        if draws < cells:
            raise DomainError(f"{draws} noise values are too few for {cells} cells")
        return draws

    def plan(self) -> GaussianPlan | LaplacePlan | DistributedPlan:
        """The noise."""
        if self.distributed:
            if not isinstance(self.mechanism, Gaussian):
                raise DomainError("only Gaussian noise can be drawn by each server for itself")
            return distributed_plan(self.mechanism.sigma_squared)
        return measurement_plan(self.mechanism)

    def entry(self, layout: Layout) -> Entry:
        """What a ledger is charged."""
        return _entry(self.step, self.mechanism, self.plan(), self.noise_values(layout))


def overlaps_plan(mechanism: Overlaps) -> DummyPlan:
    """The numbers of dummies of a join."""
    if isinstance(mechanism, GaussianOverlaps):
        return dummy_plan(gaussian_plan(mechanism.sigma_squared))
    return dummy_plan(laplace_plan(mechanism.scale))


def overlaps_entry(mechanism: Overlaps, sets: int) -> Entry:
    """What a ledger is charged for COMPUTE ANSWERS where rows are joined: for each of so many sets, a noise value."""
    plan = overlaps_plan(mechanism)
    return Entry("compute", mechanism, 1, _SAMPLERS[type(plan.noise)], sets, plan.distance, certified=True)


def _entry(step: str, mechanism: AnyMechanism, plan: Plan | DistributedPlan, draws: int) -> Entry:
    return Entry(step, mechanism, 1, _SAMPLERS[type(plan)], draws, plan.distance, certified=True)


Request: TypeAlias = Selection | Measurement
COMPUTE: Mapping[str, str] = {"kind": "compute"}
"""The request of a run's step 0, COMPUTE ANSWERS, as JSON; the steps after it are `Request`s."""
COMPUTE_DIGEST = canonical.digest("request", COMPUTE)
_MEMBERS = {
    "select": ("kind", "step", "candidates", "estimate", "bias", "weights", "mechanism", "draws"),
    "measure": ("kind", "step", "clique", "mechanism", "draws", "distributed"),
}


def request_to_json(request: Request) -> dict[str, object]:
    """Returns an object for canonical JSON."""
    if isinstance(request, Selection):
        return {
            "kind": "select",
            "step": request.step,
            "candidates": [list(clique) for clique in request.candidates],
            "estimate": request.estimate.tolist(),
            "bias": request.bias.tolist(),
            "weights": request.weights.tolist(),
            "mechanism": mechanism_to_json(request.mechanism),
            "draws": request.draws,
        }
    return {
        "kind": "measure",
        "step": request.step,
        "clique": list(request.clique),
        "mechanism": mechanism_to_json(request.mechanism),
        "draws": request.draws,
        "distributed": request.distributed,
    }


def request_from_json(value: object) -> Request:
    """The inverse of `request_to_json`. Raises DomainError for any other object."""
    kind = read_text(value.get("kind")) if isinstance(value, dict) else ""
    if kind not in _MEMBERS:
        raise DomainError("a request is to select or to measure")
    members = read_object(value, _MEMBERS[kind])
    draws = None if members["draws"] is None else read_count(members["draws"])
    step, mechanism = read_text(members["step"]), mechanism_from_json(members["mechanism"])
    if kind == "select":
        if not isinstance(mechanism, NoisyMax | PermuteAndFlip):
            raise DomainError(f"{mechanism.kind} does not select")
        candidates = tuple(_clique(clique) for clique in read_list(members["candidates"]))
        estimate, bias, weights = (_integers(members[name]) for name in ("estimate", "bias", "weights"))
        return Selection(step, candidates, estimate, bias, weights, mechanism, draws)
    if not isinstance(mechanism, Gaussian | Laplace):
        raise DomainError(f"{mechanism.kind} does not measure")
    return Measurement(step, _clique(members["clique"]), mechanism, draws, read_flag(members["distributed"]))


def request_digest(request: Request) -> bytes:
    """SHA-256 of the canonical form."""
    return canonical.digest("request", request_to_json(request))


def _clique(value: object) -> Clique:
    return tuple(read_text(name) for name in read_list(value))


def _integers(value: object) -> Integers:
    return np.array([read_count(number) for number in read_list(value)], np.int64)


class Oracle(Protocol):
    """The joint data, as an algorithm sees it."""

    @property
    def layout(self) -> Layout:
        """The marginals that can be asked about."""

    def answers(self) -> None:
        """COMPUTE ANSWERS: count every marginal of the layout. Returns nothing: the counts stay secret."""

    def select(self, selection: Selection) -> int:
        """SELECT: the position, among the candidates, of the one selected."""

    def measure(self, measurement: Measurement) -> Integers:
        """MEASURE: the marginal plus noise, flat."""
