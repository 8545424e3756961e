"""What one release costs. Each mechanism knows its charge in rho and, if it is pure, its epsilon.

A mechanism here is the ideal law; `Entry.distance` bounds a sampler's distance from it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from fractions import Fraction
from math import sqrt
from typing import ClassVar, Protocol

from caps.dp.privacy.neighbouring import Neighbouring
from caps.dp.privacy.rational import (
    decode_ratio,
    encode_ratio,
    exact,
    exp_up,
    grid_down,
    grid_up,
    positive,
    read_object,
    read_text,
    significant_down,
    significant_up,
    sqrt_down,
)
from caps.dp.privacy.zcdp import pure_rho
from caps.errors import DomainError

SLACK = Fraction(1, 32)


class Mechanism(Protocol):
    """One release. Frozen; its fields are positive exact rationals."""

    kind: ClassVar[str]

    def rho(self, neighbouring: Neighbouring) -> Fraction:
        """zCDP charge, rounded up to the grid."""
        ...

    def epsilon(self, neighbouring: Neighbouring) -> Fraction | None:
        """Pure-DP parameter; None if the mechanism is not pure."""
        ...


@dataclass(frozen=True, slots=True)
class Gaussian:
    """A marginal plus discrete Gaussian noise of parameter sigma^2 in every cell: rho = D^2 / (2 sigma^2).

    D is the L2 sensitivity (Canonne, Kamath and Steinke 2020, Theorem 14: the discrete law costs as much as the
    continuous one).
    """

    kind: ClassVar[str] = "gaussian"
    sigma_squared: Fraction

    def __post_init__(self) -> None:
        positive("sigma squared", self.sigma_squared)

    @classmethod
    def costing(cls, rho: Fraction, neighbouring: Neighbouring) -> Gaussian:
        """The least noise whose charge is at most rho."""
        return cls(significant_up(neighbouring.l2_squared / (2 * positive("rho", rho))))

    def rho(self, neighbouring: Neighbouring) -> Fraction:
        return grid_up(neighbouring.l2_squared / (2 * self.sigma_squared))

    def epsilon(self, neighbouring: Neighbouring) -> None:
        return None

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise in a cell."""
        return sqrt(self.sigma_squared)


@dataclass(frozen=True, slots=True)
class Laplace:
    """A marginal plus discrete Laplace noise, P(x) proportional to exp(-|x| / scale): epsilon = L1 / scale."""

    kind: ClassVar[str] = "laplace"
    scale: Fraction

    def __post_init__(self) -> None:
        positive("scale", self.scale)

    @classmethod
    def of_epsilon(cls, epsilon: Fraction, neighbouring: Neighbouring) -> Laplace:
        """The least noise that is epsilon-DP."""
        return cls(significant_up(neighbouring.l1 / positive("epsilon", epsilon)))

    def rho(self, neighbouring: Neighbouring) -> Fraction:
        return pure_rho(self.epsilon(neighbouring))

    def epsilon(self, neighbouring: Neighbouring) -> Fraction:
        return neighbouring.l1 / self.scale

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise in a cell, sqrt(2 p) / (1 - p) with p = e^(-1 / scale).

        The float is the same on every machine, which `math.exp` does not promise: auditors recompute it.
        """
        p = exp_up(-1 / self.scale)
        return sqrt(2 * p / (1 - p) ** 2)


@dataclass(frozen=True, slots=True)
class GaussianBatch:
    """Several marginals, each plus discrete Gaussian noise, which cost `total` in rho together.

    The budget has `PARTS` equal parts. Whoever asks divides them among marginals, and those who answer check that there
    are no more of them: so the charge is known before the division is.
    """

    kind: ClassVar[str] = "gaussian-batch"
    PARTS: ClassVar[int] = 1 << 12
    total: Fraction

    def __post_init__(self) -> None:
        if grid_up(positive("rho", self.total)) != self.total:
            raise DomainError("the budget of a batch must be on the grid of charges")

    def part(self, parts: int, neighbouring: Neighbouring) -> Gaussian:
        """The noise of a marginal that gets so many parts: it costs at most parts / PARTS of the total."""
        if not 1 <= parts <= self.PARTS:
            raise DomainError(f"a marginal must have 1 to {self.PARTS} parts of a batch's budget, not {parts}")
        return Gaussian.costing(grid_down(self.total * parts / self.PARTS), neighbouring)

    def rho(self, neighbouring: Neighbouring) -> Fraction:
        return self.total

    def epsilon(self, neighbouring: Neighbouring) -> None:
        return None


@dataclass(frozen=True, slots=True)
class GaussianErrors:
    """How far an estimate of a marginal is off (L1), plus discrete Gaussian noise: rho = L1^2 / (2 sigma^2).

    L1 is the L1 sensitivity of a marginal, and so the most that a person changes its distance from anything. sigma is
    in persons. One release is the error of one candidate; those of many are as many releases.
    """

    kind: ClassVar[str] = "gaussian-errors"
    sigma_squared: Fraction

    def __post_init__(self) -> None:
        positive("sigma squared", self.sigma_squared)

    @classmethod
    def costing(cls, rho: Fraction, neighbouring: Neighbouring) -> GaussianErrors:
        """The least noise whose charge is at most rho for each candidate."""
        return cls(significant_up(Fraction(neighbouring.score_factor**2) / (2 * positive("rho", rho))))

    def rho(self, neighbouring: Neighbouring) -> Fraction:
        return grid_up(neighbouring.score_factor**2 / (2 * self.sigma_squared))

    def epsilon(self, neighbouring: Neighbouring) -> None:
        return None

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise, in persons."""
        return sqrt(self.sigma_squared)


@dataclass(frozen=True, slots=True)
class GaussianOverlaps:
    """For every set of holders, the number of persons that exactly these have, plus discrete Gaussian noise of sigma^2.

    Removing a person subtracts one for the set of all holders that had the person, and adds one for the set of those
    that still have it: corrupt holders, whose tables do not change.
    """

    kind: ClassVar[str] = "gaussian-overlaps"
    sigma_squared: Fraction

    def __post_init__(self) -> None:
        positive("sigma squared", self.sigma_squared)

    @classmethod
    def costing(cls, rho: Fraction, neighbouring: Neighbouring) -> GaussianOverlaps:
        """The least noise whose charge is at most rho."""
        return cls(Gaussian.costing(rho, neighbouring.moved).sigma_squared)

    def rho(self, neighbouring: Neighbouring) -> Fraction:
        return Gaussian(self.sigma_squared).rho(neighbouring.moved)

    def epsilon(self, neighbouring: Neighbouring) -> None:
        return None


@dataclass(frozen=True, slots=True)
class LaplaceOverlaps:
    """The same with discrete Laplace noise."""

    kind: ClassVar[str] = "laplace-overlaps"
    scale: Fraction

    def __post_init__(self) -> None:
        positive("scale", self.scale)

    @classmethod
    def of_epsilon(cls, epsilon: Fraction, neighbouring: Neighbouring) -> LaplaceOverlaps:
        """The least noise that is epsilon-DP."""
        return cls(Laplace.of_epsilon(epsilon, neighbouring.moved).scale)

    def rho(self, neighbouring: Neighbouring) -> Fraction:
        return pure_rho(self.epsilon(neighbouring))

    def epsilon(self, neighbouring: Neighbouring) -> Fraction:
        return Laplace(self.scale).epsilon(neighbouring.moved)


Overlaps = GaussianOverlaps | LaplaceOverlaps


@dataclass(frozen=True, slots=True)
class NoisyMax:
    """The candidate of greatest score plus Gumbel noise, computed with error: rho = (epsilon_star + 4 kappa)^2 / 8.

    Exact Gumbel noise of scale beta = 2 Delta / epsilon_star is the exponential mechanism, whose log-ratio between
    neighbours has range epsilon_star. Noise as it is drawn widens the range by at most 4 kappa (docs/privacy.md,
    selection lemmas), and a mechanism of range r is r^2/8-zCDP (Dong, Durfee and Rogers 2020; Cesar and Rogers 2021).
    As pure DP it costs the range, which contains 0.
    """

    kind: ClassVar[str] = "noisy-max"
    epsilon_star: Fraction
    kappa: Fraction

    def __post_init__(self) -> None:
        positive("epsilon", self.epsilon_star)
        if exact(self.kappa) < 0:
            raise DomainError("kappa must not be negative")

    @classmethod
    def costing(cls, rho: Fraction, *, slack: Fraction = SLACK) -> NoisyMax:
        """The greatest epsilon_star, with kappa = slack * epsilon_star, whose charge is at most rho."""
        return cls.of_star(significant_down(sqrt_down(8 * positive("rho", rho)) / (1 + 4 * slack)), slack=slack)

    @classmethod
    def of_star(cls, epsilon_star: Fraction, *, slack: Fraction = SLACK) -> NoisyMax:
        """With the allowance kappa = slack * epsilon_star for how the noise is drawn."""
        return cls(epsilon_star, slack * epsilon_star)

    def rho(self, neighbouring: Neighbouring) -> Fraction:
        return grid_up((self.epsilon_star + 4 * self.kappa) ** 2 / 8)

    def epsilon(self, neighbouring: Neighbouring) -> Fraction:
        return self.epsilon_star + 4 * self.kappa

    def scale(self, weight: int | Fraction, neighbouring: Neighbouring) -> Fraction:
        """beta, the Gumbel scale for scores of at most this absolute weight."""
        return 2 * neighbouring.score_factor * positive("weight", weight) / self.epsilon_star


@dataclass(frozen=True, slots=True)
class PermuteAndFlip:
    """The candidate of greatest integer score plus geometric noise: epsilon-DP exactly.

    McKenna and Sheldon 2020; equal to noisy max with exponential noise, Ding et al. 2021.
    """

    kind: ClassVar[str] = "permute-and-flip"
    epsilon_star: Fraction

    def __post_init__(self) -> None:
        positive("epsilon", self.epsilon_star)

    def rho(self, neighbouring: Neighbouring) -> Fraction:
        return pure_rho(self.epsilon_star)

    def epsilon(self, neighbouring: Neighbouring) -> Fraction:
        return self.epsilon_star

    def scale(self, weight: int | Fraction, neighbouring: Neighbouring) -> Fraction:
        """b, with P(noise >= t) = exp(-t / b), for scores of at most this absolute weight."""
        return 2 * neighbouring.score_factor * positive("weight", weight) / self.epsilon_star


AnyMechanism = Gaussian | Laplace | NoisyMax | PermuteAndFlip | GaussianErrors | GaussianBatch
"""What a step may release."""
Charged = AnyMechanism | Overlaps
"""What a ledger may be charged for."""
KINDS: dict[str, type[Charged]] = {
    cls.kind: cls
    for cls in (
        Gaussian,
        Laplace,
        NoisyMax,
        PermuteAndFlip,
        GaussianErrors,
        GaussianBatch,
        GaussianOverlaps,
        LaplaceOverlaps,
    )
}


def mechanism_to_json(mechanism: Charged) -> dict[str, object]:
    """Returns an object for canonical JSON: the kind and the parameters."""
    parameters = {field.name: encode_ratio(getattr(mechanism, field.name)) for field in fields(mechanism)}
    return {"kind": mechanism.kind, **parameters}


def mechanism_from_json(value: object) -> Charged:
    """The inverse of `mechanism_to_json`."""
    kind = read_text(value.get("kind")) if isinstance(value, dict) else ""
    if kind not in KINDS:
        raise DomainError("not a known mechanism")
    names = [field.name for field in fields(KINDS[kind])]
    members = read_object(value, ["kind", *names])
    return KINDS[kind](*(decode_ratio(members[name]) for name in names))
