"""What each population's budget on this server has gone to, in rho, which adds up, and in epsilon."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction

from caps.dp.privacy import ALLOWANCE, Allowance, Reservation, together
from caps.dp.privacy.zcdp import folded_epsilon
from caps.errors import DomainError
from caps.study import Policy


@dataclass(frozen=True)
class Meter:
    """A population's budget. epsilon: the limit; None if studies of it are refused.

    spent, reserved, left: in rho, under the worst relation of its studies. spent_epsilon: of runs that have ended;
    used_epsilon: of these and of those that are reserved for; left_epsilon: of one more study. All at `delta`.
    """

    population: str
    epsilon: float | None
    delta: float
    spent: float
    reserved: float
    left: float
    spent_epsilon: float | None
    used_epsilon: float | None
    left_epsilon: float
    ended: int
    going: int

    @property
    def whole(self) -> float:
        """The budget in rho, or what is taken of it if the limit was lowered since."""
        return self.spent + self.reserved + self.left


def meter(population: str, standing: Mapping[str, Reservation], going: Collection[str], policy: Policy) -> Meter:
    """The budget of a population, by what its runs set aside, some of which are still going."""
    limit, delta = policy.population_budget(population), Fraction(repr(policy.population_delta))
    ended = [one for run, one in standing.items() if run not in going]
    taken = list(standing.values())
    total, done = together(taken), together(ended)
    spent = sum((one.under(total.neighbouring) for one in ended), Fraction(0))
    left = Fraction(0) if limit is None else limit.left(taken, total.neighbouring)
    return Meter(
        population,
        None if limit is None else float(limit.epsilon),
        float(delta),
        float(spent),
        float(total.rho - spent),
        float(left),
        epsilon_of(spent, done.allowance, delta) if ended else 0.0,
        epsilon_of(total.rho, total.allowance, delta) if taken else 0.0,
        (epsilon_of(left, ALLOWANCE, delta) or 0.0) if left else 0.0,
        len(ended),
        len(taken) - len(ended),
    )


def epsilon_of(rho: Fraction, allowance: Allowance, delta: Fraction) -> float | None:
    """None if nothing can be promised at this delta."""
    try:
        return float(folded_epsilon(rho, allowance, delta))
    except DomainError:
        return None
