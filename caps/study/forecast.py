"""Bounds, before a run begins, on its releases, its noise values, and the noise's distance from the ideal.

The manifest fixes the schedule. Where the loop has a choice, rounds become fewer, so the path on which it never chooses
has the most rounds. Columns that may be measured in place of rounds are counted besides; edges are rounds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, isqrt

from caps.data.domain import Clique
from caps.dp.noise.tables import LIMIT
from caps.dp.oracle import MOST_BATCHED, comparison_plan, drawable, measurement_plan, selection_plan
from caps.dp.privacy import (
    ETA_MAX,
    AimSchedule,
    AnyMechanism,
    Gaussian,
    GaussianBatch,
    GaussianErrors,
    Laplace,
    Neighbouring,
    Role,
)
from caps.dp.programs import Program, Task

_LOOKED_AT = 3
"""How many annealings are looked at one by one. Rounds are so few after more that any distance within 2^-80 will do."""
MOST_HIDDEN = 100_000
"""The widest noise of a count, in persons. Wider noise can be drawn, but would cost persons a budget for nothing.

AIM's first rounds are the widest there are: where they show only noise it anneals, and rounds of a sixteenth of rho
have, with ten columns, three times less.
"""


@dataclass(frozen=True, slots=True)
class Spend:
    """All releases of a run that one mechanism makes in one role.

    draws: the most noise values of all these releases together. cells: those of the largest marginal measured, of a
    batch, or of all candidates together. candidates: the most in a selection or comparison; 0 for measurements. last:
    whether this is the round that takes what is left. annealed: the mechanisms that take this one's place each time
    AIM anneals, the first few. edge: how many of these rounds AIM's edges cost at least, each, if there can be any.
    """

    role: Role
    mechanism: AnyMechanism
    releases: int
    draws: int
    cells: int
    candidates: int = 0
    last: bool = False
    annealed: tuple[AnyMechanism, ...] = ()
    edge: Fraction | None = None

    @property
    def requests(self) -> int:
        """How many requests make these releases: one for all candidates that are compared."""
        return 1 if self.role is Role.COMPARE else self.releases

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
    again: Spend | None = None
    """What may be spent on columns in place of rounds, with the widest noise that they may then have."""

    @property
    def draws(self) -> int:
        """The most noise values of the whole run."""
        return sum(spend.draws for spend in self.spends) + (self.again.draws if self.again else 0)

    @property
    def rounds(self) -> int:
        """The most rounds of select and measure: the number of selections."""
        return sum(spend.releases for spend in self.spends if spend.role is Role.SELECT)

    def eta(self) -> Fraction:
        """A bound on the statistical distance of all noise together from its ideal distribution.

        Each draw is within 2^-80. If that bound is too coarse, the tables are built and their own distances used.
        """
        simple = self.draws * LIMIT
        if simple <= ETA_MAX:
            return simple
        again = self.again.draws * LIMIT if self.again else Fraction(0)
        return sum((self._strays(spend) for spend in self.spends), again)

    def _strays(self, spend: Spend) -> Fraction:
        if not spend.annealed:
            return spend.draws * (LIMIT if spend.last else self._distance(spend.mechanism))
        # A round annealed i times costs as much as r^i rounds; so n_i of them, at distance d_i, add up to no more than
        # all rounds at the largest d_i / r^i. One round is added because the last may cost as much as two.
        levels, rate = (spend.mechanism, *spend.annealed), Fraction(AimSchedule.DEARER)
        worst = max(self._distance(mechanism) / rate**level for level, mechanism in enumerate(levels))
        worst = max(worst, LIMIT / rate ** len(levels))  # of all further ones
        if spend.edge is not None:
            worst = max(worst, LIMIT / spend.edge)
        return Fraction(spend.draws, spend.releases) * (spend.releases + 1) * worst

    def _distance(self, mechanism: AnyMechanism) -> Fraction:
        match mechanism:
            case Gaussian() | Laplace():
                return measurement_plan(mechanism).distance
            case GaussianErrors():
                return comparison_plan(mechanism).distance
            case GaussianBatch():
                return LIMIT  # whatever its parts are
        return selection_plan(mechanism, self.weight, self.neighbouring).distance


def obstacle(program: Program, task: Task, weights: Collection[int]) -> str | None:
    """Why the noise of a step that this program may request, on any path, is too wide; None if none is.

    weights: of the program's candidates. Builds no table.
    """
    mechanisms = program.schedule(task).extremes()
    hidden = max(_hidden(mechanism, task.neighbouring) for mechanism in mechanisms)
    if hidden > MOST_HIDDEN:
        return (
            f"is as wide as {hidden:,} persons; a count with noise of more than {MOST_HIDDEN:,} is not worth a budget"
        )
    offered = {min(weights, default=1), max(weights, default=1)}  # the largest offered in a selection decides
    if all(drawable(mechanism, weight, task.neighbouring) for mechanism in mechanisms for weight in offered):
        return None
    return "is wider or narrower than servers can draw"


def _hidden(mechanism: AnyMechanism, neighbouring: Neighbouring) -> int:
    """How many persons would change a count, or an error, by as much as its noise; 0 for a selection."""
    match mechanism:
        case Gaussian():
            return isqrt(ceil(mechanism.sigma_squared / neighbouring.l2_squared) - 1) + 1  # rounded up
        case Laplace():
            return ceil(mechanism.scale / neighbouring.l1)
        case GaussianErrors():
            return isqrt(ceil(mechanism.sigma_squared / neighbouring.score_factor**2) - 1) + 1
    return 0


def forecast(program: Program, task: Task, candidates: Mapping[Clique, int]) -> Forecast:
    """The most that this program may request in this task. Raises DomainError if the budget cannot be divided so.

    candidates: the program's, with their weights.
    """
    schedule = program.schedule(task)
    sizes, pooled = task.domain.cells_of(candidates), program.draws(task)
    columns = task.domain.cells_of(program.initial(task))
    spends = []
    for total in schedule.totals():
        role, mechanism, releases, last = total.role, total.mechanism, total.releases, total.last
        match role:
            case Role.INITIAL:
                cells = sum(columns) if isinstance(mechanism, GaussianBatch) else max(columns)
                spends.append(Spend(role, mechanism, releases, sum(columns), cells))
            case Role.COMPARE:
                spends.append(Spend(role, mechanism, releases, releases, sum(sizes), len(candidates)))
            case Role.SELECT:
                draws = releases * len(candidates)
                spends.append(Spend(role, mechanism, releases, draws, sum(sizes), len(candidates), last))
            case Role.MEASURE if isinstance(mechanism, GaussianBatch):
                cells = min(sum(task.domain.cells_of(program.cliques(task))), MOST_BATCHED)
                spends.append(Spend(role, mechanism, releases, cells, cells))
            case Role.MEASURE:
                draws = releases * (max(sizes) if pooled is None else pooled)
                spends.append(Spend(role, mechanism, releases, draws, max(sizes), last=last))
    weight, widest = max(candidates.values(), default=0), schedule.widest_again
    again = None if widest is None else Spend(Role.INITIAL, widest, len(columns), sum(columns), max(columns))
    if not isinstance(schedule, AimSchedule):
        return Forecast(tuple(spends), task.neighbouring, weight, again)
    levels = [schedule.annealed()]
    while len(levels) < _LOOKED_AT:
        levels.append(levels[-1].annealed())
    by_role: dict[Role, tuple[AnyMechanism, ...]] = {
        Role.SELECT: tuple(level.select for level in levels),
        Role.MEASURE: tuple(level.measure for level in levels),
    }
    edge = None if schedule.cheapest_edge is None else schedule.cheapest_edge / schedule.round_cost
    spends = [
        spend if spend.last or spend.role is Role.INITIAL else replace(spend, annealed=by_role[spend.role], edge=edge)
        for spend in spends
    ]
    return Forecast(tuple(spends), task.neighbouring, weight, again)
