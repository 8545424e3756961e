"""What a study will cost: budget, errors, noise, uploads, traffic, memory. Nothing is spent to find out.

Everything follows from the manifest. The servers' engine declares rounds and bytes between servers. It is not imported
here: its figures come in as `Costs`, and a plan without them says nothing about traffic.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cache
from importlib.metadata import entry_points
from itertools import combinations, zip_longest
from math import exp, inf, pi, sqrt

from pydantic import ValidationError

from caps.basics.schemes import Scheme
from caps.data.domain import Clique, Codes
from caps.dp.effort import Fits
from caps.dp.privacy import (
    ETA_MAX,
    AnyMechanism,
    Charged,
    Gaussian,
    GaussianBatch,
    GaussianErrors,
    GaussianOverlaps,
    Laplace,
    LaplaceOverlaps,
    Role,
)
from caps.dp.privacy.statement import shown
from caps.errors import DomainError
from caps.study.forecast import Spend
from caps.study.manifest import Manifest
from caps.study.memory import Memory, memory_of, size_shown

COSTS = "caps.costs"
"""The group of entry points that map a manifest to `Costs`, named by scheme."""
COMPUTE_ROLE = "compute"
"""The role of what servers see of a join in COMPUTE ANSWERS."""
ROUND_SECONDS, SECOND_BYTES = 0.01, 12.5e6
"""A network between organisations, for the forecast of time: 10 ms a round, 100 Mbit/s."""
NORMAL_95 = 1.959963984540054
OFFER_BYTES = 2048
"""Rough size of an `Offer` as JSON: the signed contribution and the openings."""
EPSILONS = tuple(
    f"{Decimal(digits).scaleb(power).normalize():f}" for power in range(-4, 1) for digits in range(10, 100)
)
"""Those that a plan proposes: two digits, from 0.001 to 99."""


_TRIED = 16
_HALF = 0.5


@dataclass(frozen=True, slots=True)
class StepCost:
    """Rounds, and payload bytes that each server sends; nothing sent is the empty tuple."""

    rounds: int = 0
    sent: tuple[int, ...] = ()

    def __add__(self, other: StepCost) -> StepCost:
        sent = zip_longest(self.sent, other.sent, fillvalue=0)
        return StepCost(self.rounds + other.rounds, tuple(a + b for a, b in sent))

    def times(self, count: int) -> StepCost:
        """The cost of `count` such steps, one after another."""
        return StepCost(count * self.rounds, tuple(count * sent for sent in self.sent))


@dataclass(frozen=True, slots=True)
class SpendCost:
    """The cost of all releases of one spend: while the coordinator waits, and for noise that may be drawn earlier."""

    online: StepCost
    noise: StepCost


@dataclass(frozen=True, slots=True)
class Costs:
    """Upper bounds that the engine declares for a manifest. `spends` are those of `Manifest.forecast`, in order,
    and at last what may come in place of rounds.

    checks: what servers prove to each other before anything is opened, in schemes that do not trust them.
    """

    compute: StepCost
    prepare: StepCost
    spends: tuple[SpendCost, ...]
    checks: StepCost = StepCost()

    @property
    def total(self) -> StepCost:
        """The cost of a whole run."""
        total = self.compute + self.prepare + self.checks
        for spend in self.spends:
            total += spend.online + spend.noise
        return total


@dataclass(frozen=True, slots=True)
class PlannedSpend:
    """All releases of one mechanism in one role. `scale` is sigma, the Laplace scale, epsilon, or rho of a batch."""

    role: str
    mechanism: str
    scale: float
    releases: int
    rho: float
    share: float
    draws: int


@dataclass(frozen=True, slots=True)
class PlannedMarginal:
    """The error of a marginal that is measured once.

    deviation: standard deviation of each cell, in persons. error: the expected sum of absolute errors over all cells.
    measured: `always`, in the first step; or `if selected`, in a round before any annealing, which reduces the error,
    or in a batch of as many marginals as there are columns, in equal parts. Marginals that are never measured are
    estimated from the others, with an error that cannot be predicted.
    """

    attributes: Clique
    cells: int
    measured: str
    deviation: float
    error: float


@dataclass(frozen=True, slots=True)
class RelativeError:
    """The error of a marginal that is measured once, if there are so many persons.

    half_width: what the count of a cell is off by at most, in 95 of 100 cases, in persons. of_average_cell: the same as
    a part of the persons that a cell has on average. misplaced: the part of all persons who are in the wrong cell.
    """

    attributes: Clique
    cells: int
    measured: str
    half_width: float
    of_average_cell: float
    misplaced: float


@dataclass(frozen=True, slots=True)
class Planned:
    """An epsilon that was asked for by the error it brings, and that error: a part of all persons."""

    epsilon: str
    error: float


@dataclass(frozen=True, eq=False)
class Performed:
    """What a coordinator's algorithm made of an oracle's answers: synthetic rows, and what was measured for them."""

    rows: Codes
    measured: frozenset[Clique]
    rounds: int
    model_bytes: int


@dataclass(frozen=True, slots=True)
class PlannedUpload:
    """What a holder sends to each server, in bytes. A server without the vector gets seeds only."""

    holder: str
    form: str
    shape: tuple[int, ...]
    sent: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StudyPlan:
    """The most that a run of a study costs."""

    scheme: str
    study: str
    title: str
    algorithm: str
    epsilon: str
    delta: str
    rho: float
    rounds: int
    spends: tuple[PlannedSpend, ...]
    marginals: tuple[PlannedMarginal, ...]
    draws: int
    eta: Fraction
    eta_max: Fraction
    cells: int
    uploads: tuple[PlannedUpload, ...]
    memory: Memory
    costs: Costs | None
    narrowest: float
    """The standard deviation, in persons, of a single count on which all of the budget would be spent."""
    columns: tuple[int, ...]
    """The cells of each column."""
    fits: Fits | None = None
    """What fitting models takes the coordinator, at most; None if the algorithm does not tell."""
    views: tuple[str, ...] = ()
    """What the guarantee covers, and does not cover, of what is published and of what each party sees."""

    def to_json(self) -> dict[str, object]:
        """Returns a JSON object."""
        value = asdict(self)
        value["eta"], value["eta_max"] = float(self.eta), float(self.eta_max)
        value["memory"]["total"] = self.memory.total
        if self.fits is not None:
            value["fits"]["memory"] = self.fits.memory
        if self.costs is not None:
            value["costs"]["total"] = asdict(self.costs.total)
        value["words"] = self.words()
        return value

    @property
    def waiting_seconds(self) -> float | None:
        """How long servers wait for each other's messages in all; None if the engine does not declare its costs."""
        return None if self.costs is None else network_seconds(self.costs.total)

    def relative_errors(self, persons: int) -> list[RelativeError]:
        """The error of each marginal if there are so many persons. Raises DomainError if there are none."""
        if persons < 1:
            raise DomainError(f"a table must have at least one person, not {persons}")
        return [
            RelativeError(
                one.attributes,
                one.cells,
                one.measured,
                NORMAL_95 * one.deviation,
                NORMAL_95 * one.deviation * one.cells / persons,
                min(1.0, one.error / (2 * persons)),
            )
            for one in self.marginals
        ]

    def average_error(self, persons: int) -> float:
        """The part of so many persons who are in the wrong cell of the average marginal, if each is measured once."""
        found = self.relative_errors(persons)
        return sum(one.misplaced for one in found) / len(found)

    def advice(self, persons: int) -> str:
        """Whether the budget is enough for so many persons, in words; if not, what would be.

        A table of m cells, measured with noise of a deviation s, puts m s / sqrt(2 pi) persons into wrong cells. With
        half of them there, it says no more than a guess. Columns have the whole budget to share, if need be; a pair a
        sixteenth of it, which is what AIM tries before it gives up.
        """
        wrong = self.narrowest / sqrt(2 * pi) / persons
        pairs = sorted(one * other for one, other in combinations(self.columns, 2)) or [max(self.columns)]
        column = wrong * sqrt(len(self.columns)) * sum(self.columns) / len(self.columns)
        pair = wrong * sqrt(_TRIED) * pairs[len(pairs) // 2]
        if max(column, pair) <= _HALF:
            return f"For {persons:,} persons the budget is enough to tell columns and pairs of them from noise."
        larger = float(self.epsilon) * pair / _HALF
        if column <= _HALF:
            return (
                f"For {persons:,} persons the budget is enough for columns, but most pairs are lost in noise: only the "
                f"strongest will show. Epsilon {_about(larger)} or {_HALF / pair:.0%} of the cells in a pair, by "
                "coarser bins, would show most of them."
            )
        fewer = int(len(self.columns) * (_HALF / column) ** 2)
        few = f", {fewer} of the {len(self.columns)} columns" if fewer >= 1 else ""
        return (
            f"For {persons:,} persons the budget is NOT enough: not even columns can be told from noise, and rows will "
            f"be little more than a guess. Epsilon {_about(float(self.epsilon) * column / _HALF)}{few} or "
            f"{persons * column / _HALF:,.0f} persons would be enough for columns; epsilon {_about(larger)} for pairs."
        )

    def words(self) -> list[str]:
        """The plan in sentences."""
        views = f"Who sees what: {'; '.join(self.views)}."
        return [*self._spending(), *self._errors(), *self._noise(), *self._loads(), views]

    def _spending(self) -> Iterator[str]:
        yield (
            f"The guarantee is epsilon = {self.epsilon} at delta = {self.delta}. It allows a budget of "
            f"rho = {self.rho:.4g}, of which {self.algorithm} spends, at most:"
        )
        for spend in self.spends:
            what = {
                COMPUTE_ROLE: "noisy count by the servers of the persons that holders have in common",
                "initial": "first measurement",
                "compare": "error of an estimate",
                "select": "selection",
                "measure": "measurement",
            }[spend.role]
            if spend.mechanism == GaussianBatch.kind:
                columns = "columns, in equal parts" if spend.role == Role.INITIAL else "what the errors ask for"
                yield f"{spend.share:.0%} for one batch of measurements by {spend.mechanism}: of {columns}."
                continue
            gaussian = spend.mechanism in (Gaussian.kind, GaussianErrors.kind, GaussianOverlaps.kind)
            scale = "epsilon" if spend.role == Role.SELECT else "sigma" if gaussian else "scale"
            number = f"{spend.releases} {what}{'s'[: spend.releases > 1]}"
            if spend.role == Role.COMPARE:
                number = f"the errors of {spend.releases} estimates, all at once,"
            yield f"{spend.share:.0%} for {number} by {spend.mechanism}, {scale} = {spend.scale:.4g} each."
        if self.rounds and self.algorithm == "mwem" and Laplace.kind not in [one.mechanism for one in self.spends]:
            yield "Where a quarter of the rounds show only noise, the rest is spent on the columns."
        if self.rounds and self.algorithm == "aim":
            yield (
                f"At most {self.rounds} rounds are planned. After one that shows only noise the next ones are dearer, "
                "so there are fewer of them, with less noise; or the rest is spent on the columns and a tree of pairs."
            )

    def _errors(self) -> Iterator[str]:
        for measured, when in (
            ("always", "is measured at the start"),
            ("if selected", "is measured if it is selected"),
        ):
            chosen = [marginal for marginal in self.marginals if marginal.measured == measured]
            if chosen:
                best, worst = (pick(chosen, key=lambda marginal: marginal.error) for pick in (min, max))
                yield (
                    f"A marginal that {when} is off by about {worst.deviation:.3g} persons in each cell; over all "
                    f"its cells the errors add up to {best.error:.3g} ({' x '.join(best.attributes)}) to "
                    f"{worst.error:.3g} persons ({' x '.join(worst.attributes)})."
                )

    def _noise(self) -> Iterator[str]:
        share = float(self.eta / self.eta_max)
        yield (
            f"The servers draw at most {self.draws:,} noise values. Their statistical distance from the ideal is at "
            f"most {shown(self.eta)}, {share:.1%} of what delta allows for it."
        )

    def _loads(self) -> Iterator[str]:
        for upload in self.uploads:
            most, least = max(upload.sent), min(upload.sent)
            names = {size: [f"S{i}" for i, sent in enumerate(upload.sent, 1) if sent == size] for size in (most, least)}
            shape = " x ".join(f"{extent:,}" for extent in upload.shape)
            yield (
                f"{upload.holder} uploads {upload.form} ({shape}): {size_shown(most)} to each of "
                f"{_enumerated(names[most])}; {size_shown(least)} to {_enumerated(names[least])}."
            )
        yield f"Each server needs about {size_shown(self.memory.total)} of memory for {self.cells:,} counts."
        if self.fits is not None:
            yield (
                f"The coordinator fits at most {self.fits.models:,} models of at most "
                f"{size_shown(self.fits.model_bytes)} each. That takes a core of 2.8 GHz about "
                f"{duration_shown(self.fits.seconds)} in all, at most, and about {size_shown(self.fits.memory)} of "
                "memory."
            )
        if self.costs is not None:
            total, checks = self.costs.total, self.costs.checks
            yield (
                f"In {self.scheme}, the servers need at most {total.rounds:,} rounds among themselves and send "
                f"{', '.join(f'{size_shown(sent)} (S{i})' for i, sent in enumerate(total.sent, 1))}; of these, "
                f"counting takes {self.costs.compute.rounds} and {size_shown(max(self.costs.compute.sent))} each."
            )
            if checks.rounds:
                yield (
                    f"{checks.rounds:,} of the rounds, with {size_shown(max(checks.sent))} each, are checks that no "
                    "server deviates from the protocol."
                )
            yield (
                f"Where a round between servers takes {1000 * ROUND_SECONDS:g} ms and each sends "
                f"{size_shown(round(SECOND_BYTES))} a second, they wait for messages for about "
                f"{duration_shown(network_seconds(total))} in all; computing comes on top."
            )
        if self.costs is not None and any(upload.form == "records" for upload in self.uploads):
            yield "This assumes that all joined tables have the same persons; with fewer in common it is a little more."


def declared_costs(manifest: Manifest) -> Costs | None:
    """Rounds and bytes as the engine of the manifest's scheme declares them; None if it is not installed.

    Engines are found by their entry points, because the shared library does not import any.
    """
    found = entry_points(group=COSTS, name=manifest.scheme)
    if not found or not manifest.algorithm.certified:
        return None
    costs = next(iter(found)).load()(manifest)
    assert isinstance(costs, Costs)
    return costs


def plan_study(manifest: Manifest, costs: Costs | None = None) -> StudyPlan:
    """The most that a run of this study costs. Nothing is spent or requested."""
    forecast, task = manifest.forecast, manifest.task
    charges = [spend.rho(task.neighbouring) for spend in forecast.spends]
    spends, draws, eta = [], forecast.draws, forecast.eta()
    if (entry := manifest.overlaps_entry) is not None:
        charge, draws, eta = entry.rho(manifest.neighbouring), draws + entry.draws, eta + entry.eta
        spends.append((COMPUTE_ROLE, entry.mechanism, 1, charge, entry.draws))
    spends += [
        (spend.role.value, spend.mechanism, spend.releases, charge, spend.draws)
        for spend, charge in zip(forecast.spends, charges, strict=True)
    ]
    total = sum((charge for _, _, _, charge, _ in spends), Fraction(0))
    planned = [
        PlannedSpend(role, mechanism.kind, _scale(mechanism), releases, float(charge), float(charge / total), drawn)
        for role, mechanism, releases, charge, drawn in spends
    ]
    return StudyPlan(
        scheme=manifest.scheme,
        study=manifest.study_id,
        title=manifest.title,
        algorithm=manifest.algorithm.name,
        epsilon=manifest.privacy.epsilon,
        delta=manifest.privacy.delta,
        rho=float(manifest.budget),
        rounds=forecast.rounds,
        spends=tuple(planned),
        marginals=tuple(_marginals(manifest, forecast.spends)),
        draws=draws,
        eta=eta,
        eta_max=ETA_MAX,
        cells=manifest.layout.cells,
        uploads=tuple(_uploads(manifest)),
        memory=memory_of(manifest),
        costs=costs,
        narrowest=sqrt(task.neighbouring.l2_squared / (2 * manifest.budget)),
        columns=manifest.domain.sizes,
        fits=manifest.program.fits(task),
        views=manifest.views,
    )


def with_epsilon(manifest: Manifest, epsilon: str) -> Manifest:
    """The same study with another epsilon. Raises DomainError if it cannot be run."""
    document = manifest.to_json()
    try:
        return Manifest.from_json({**document, "privacy": {**document["privacy"], "epsilon": epsilon}})
    except ValidationError as error:
        raise DomainError(str(error.errors()[0].get("ctx", {}).get("error", error.errors()[0]["msg"]))) from None


def epsilon_for(manifest: Manifest, error: float, persons: int) -> Planned | None:
    """The least epsilon with two digits at which the average error of this study's marginals is at most `error`.

    None if none does with which the study can run. The inverse of `average_error`, by bisection: noise falls with every
    step up, and the study, which can run with its own epsilon, can with all those between too small ones, whose noise
    could not be drawn, and too large ones, for which delta is not enough. Raises DomainError if no error is wished for.
    """
    if not 0 < error < 1:
        raise DomainError("a wished error is a part of all persons: more than 0 and less than 1")
    if persons < 1:
        raise DomainError(f"a table must have at least one person, not {persons}")

    @cache
    def brought(epsilon: str) -> float:
        try:
            return plan_study(with_epsilon(manifest, epsilon)).average_error(persons)
        except DomainError:
            return inf if Fraction(epsilon) < manifest.privacy.exact_epsilon else 0.0

    least = bisect_left(EPSILONS, True, key=lambda epsilon: brought(epsilon) <= error)
    if least == len(EPSILONS) or not brought(EPSILONS[least]):
        return None
    return Planned(EPSILONS[least], brought(EPSILONS[least]))


def network_seconds(cost: StepCost, *, latency: float = ROUND_SECONDS, rate: float = SECOND_BYTES) -> float:
    """How long servers wait for messages: a round trip each round, and the largest sender's bytes."""
    return cost.rounds * latency + max(cost.sent, default=0) / rate


def duration_shown(seconds: float) -> str:
    """A time in readable units."""
    return f"{seconds:.2g} s" if seconds < 100 else f"{seconds / 60:,.0f} minutes"


def _about(value: float) -> str:
    """Rounded to one digit."""
    return f"{float(f'{value:.1g}'):g}"


def _enumerated(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _scale(mechanism: Charged) -> float:
    match mechanism:
        case Gaussian() | GaussianErrors() | GaussianOverlaps():
            return sqrt(mechanism.sigma_squared)
        case GaussianBatch():
            return float(mechanism.total)
        case Laplace() | LaplaceOverlaps():
            return float(mechanism.scale)
    return float(mechanism.epsilon_star)


def _cell_errors(mechanism: AnyMechanism) -> tuple[float, float]:
    """Standard deviation and expected size of one noise value."""
    if isinstance(mechanism, Laplace):
        p = exp(-1 / mechanism.scale)
        return sqrt(2 * p) / (1 - p), 2 * p / (1 - p * p)
    sigma = _scale(mechanism)
    return sigma, sigma * sqrt(2 / pi)


def _marginals(manifest: Manifest, spends: Sequence[Spend]) -> Iterator[PlannedMarginal]:
    by_role = {spend.role: spend.mechanism for spend in reversed(spends)}  # if a role has several, the first
    initial = set(manifest.program.initial(manifest.task))
    columns, neighbouring = len(manifest.domain.names), manifest.task.neighbouring
    for role, mechanism in by_role.items():
        if isinstance(mechanism, GaussianBatch):  # about as many as columns, as in a tree
            by_role[role] = mechanism.part(max(1, mechanism.PARTS // columns), neighbouring)
    measured_in = (Role.INITIAL, Role.MEASURE)
    errors = {role: _cell_errors(mechanism) for role, mechanism in by_role.items() if role in measured_in}
    for clique, cells in zip(manifest.layout.cliques, manifest.layout.sizes, strict=True):
        role = Role.INITIAL if clique in initial else Role.MEASURE
        if role in errors:
            deviation, size = errors[role]
            measured = "always" if role is Role.INITIAL else "if selected"
            yield PlannedMarginal(clique, cells, measured, deviation, cells * size)


def _uploads(manifest: Manifest) -> Iterator[PlannedUpload]:
    for holder in manifest.holders:
        form = manifest.form_of(holder)
        yield PlannedUpload(holder.name, form.form, form.shape, _sent(manifest.sharing, form.bytes))


def _sent(scheme: Scheme, vector: int) -> tuple[int, ...]:
    """Bytes for each server: seeds go with the offer; those that hold the vector component get that as well."""
    return tuple(OFFER_BYTES + (vector if scheme.vector in held else 0) for held in scheme.held)
