"""Bounds, before a run begins, on its releases, its noise values, and the noise's distance from the ideal.

The manifest fixes the schedule. Where the loop has a choice (AIM's annealing), rounds become fewer and dearer, so the
path without annealing has the most releases, and the counts here bound every path.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction

from caps.data.domain import Clique
from caps.dp.noise.tables import LIMIT
from caps.dp.oracle import drawable, measurement_plan, selection_plan
from caps.dp.privacy import ETA_MAX, AimSchedule, AnyMechanism, Gaussian, Laplace, Neighbouring, NoisyMax, Role
from caps.dp.privacy.schedule import LEAST_RISE
from caps.dp.programs import Program, Task


@dataclass(frozen=True, slots=True)
class Spend:
    """All releases of a run that one mechanism makes in one role.

    draws: the most noise values of all these releases together. cells: those of the largest marginal measured, or of
    all candidates together. candidates: the most in a selection; 0 for measurements. last: whether this is the round
    that takes what is left.
    """

    role: Role
    mechanism: AnyMechanism
    releases: int
    draws: int
    cells: int
    candidates: int = 0
    last: bool = False

    def rho(self, neighbouring: Neighbouring) -> Fraction:
        """The charge of all releases together."""
        return self.releases * self.mechanism.rho(neighbouring)


@dataclass(frozen=True, slots=True)
class Forecast:
    """The spends of a run, in the order in which each begins."""

    spends: tuple[Spend, ...]
    neighbouring: Neighbouring
    weight: int
    """The largest weight of a candidate; 0 if nothing is selected."""
    dearest: int = 0
    """How many rounds of AIM may be as dear as annealing can make them."""

    @property
    def draws(self) -> int:
        """The most noise values of the whole run."""
        return sum(spend.draws for spend in self.spends)

    @property
    def rounds(self) -> int:
        """The most rounds of select and measure: the number of selections."""
        return sum(spend.releases for spend in self.spends if spend.role is Role.SELECT)

    def eta(self) -> Fraction:
        """A bound on the statistical distance of all noise together from its ideal distribution.

        Each draw is within 2^-80. If that bound is too coarse, the tables are built and their own distances used.
        """
        simple = self.draws * LIMIT
        return simple if simple <= ETA_MAX else sum((self._strays(spend) for spend in self.spends), Fraction(0))

    def _strays(self, spend: Spend) -> Fraction:
        if spend.last or spend.role is Role.INITIAL or not self.dearest:
            return spend.draws * (LIMIT if spend.last else self._distance(spend.mechanism))
        # A round annealed i times costs as much as 4^i rounds; so n_i of them, at distance d_i, add up to no more than
        # all rounds at the largest d_i / 4^i. One round is added because the last may cost as much as two. Rounds as
        # dear as annealing can make them are counted apart: each costs at least as much as 5/4 of the first rounds.
        once = _annealed(spend.mechanism)
        worst = max(self._distance(spend.mechanism), self._distance(once) / 4, LIMIT / 16)
        rounds = spend.releases + 1
        dearest = min(Fraction(self.dearest), rounds / LEAST_RISE)
        strays = rounds * worst + dearest * max(LIMIT - LEAST_RISE * worst, Fraction(0))
        return Fraction(spend.draws, spend.releases) * strays

    def _distance(self, mechanism: AnyMechanism) -> Fraction:
        if isinstance(mechanism, Gaussian | Laplace):
            return measurement_plan(mechanism).distance
        return selection_plan(mechanism, self.weight, self.neighbouring).distance


def can_be_drawn(program: Program, task: Task, weights: Collection[int]) -> bool:
    """Whether servers can draw noise for every step that this program may request, on every path. Builds no table.

    weights: of the program's candidates.
    """
    return all(
        drawable(mechanism, weight, task.neighbouring)
        for mechanism in program.schedule(task).extremes()
        for weight in {min(weights, default=1), max(weights, default=1)}  # the largest offered in a selection decides
    )


def forecast(program: Program, task: Task, candidates: Mapping[Clique, int]) -> Forecast:
    """The most that this program may request in this task. Raises DomainError if the budget cannot be divided so.

    candidates: the program's, with their weights.
    """
    schedule = program.schedule(task)
    sizes, pooled = task.domain.cells_of(candidates), program.draws(task)
    spends = []
    for total in schedule.totals():
        role, mechanism, releases, last = total.role, total.mechanism, total.releases, total.last
        match role:
            case Role.INITIAL:
                each = task.domain.cells_of(program.initial(task))
                spends.append(Spend(role, mechanism, releases, sum(each), max(each)))
            case Role.SELECT:
                draws = releases * len(candidates)
                spends.append(Spend(role, mechanism, releases, draws, sum(sizes), len(candidates), last))
            case Role.MEASURE:
                draws = releases * (max(sizes) if pooled is None else pooled)
                spends.append(Spend(role, mechanism, releases, draws, max(sizes), last=last))
    weight = max(candidates.values(), default=0)
    return Forecast(
        tuple(spends), task.neighbouring, weight, schedule.least_rounds if isinstance(schedule, AimSchedule) else 0
    )


def _annealed(mechanism: AnyMechanism) -> AnyMechanism:
    """The mechanism after AIM has halved sigma and doubled epsilon once."""
    if isinstance(mechanism, Gaussian):
        return Gaussian(mechanism.sigma_squared / 4)
    assert isinstance(mechanism, NoisyMax)
    return NoisyMax(2 * mechanism.epsilon_star, 2 * mechanism.kappa)
