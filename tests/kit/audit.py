"""An auditor: plays a study many times on two neighbouring tables and looks for the best way to tell them apart.

The coordinator is hostile. It knows both tables, asks what the servers' enforcer admits, and makes scores as sensitive
as it can. Every path that a run can take is admitted by the real enforcer and charged to a real filter. Noise is that
of the requests' own plans, by the clear twin's samplers, drawn for all runs at once.

How far apart the tables may be follows from the ledger alone: from the mechanisms charged and the relation that they
were charged for, not from what the two tables are. So a forgotten sensitivity is found, as too little noise is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property
from hashlib import sha256
from itertools import count, product
from math import ceil, exp, log, prod, sqrt

import numpy as np
from scipy import stats

from caps.data.domain import Clique
from caps.dp.bounds import MOST_COUNTED, UNIT_BITS
from caps.dp.clear import error_scores, errors
from caps.dp.enforce import Enforcer, Upcoming
from caps.dp.noise import clear
from caps.dp.noise.plans import (
    GaussianPlan,
    GeometricPlan,
    GumbelPlan,
    LaplacePlan,
    gaussian_plan,
    geometric_plan,
    gumbel_plan,
    laplace_plan,
)
from caps.dp.oracle import Batch, Comparison, Integers, Measurement, Plan, Request, Selection
from caps.dp.privacy import Filter, Gaussian, GaussianBatch, GaussianErrors, Neighbouring, NoisyMax, Role
from caps.study.manifest import Manifest
from docs.examples.lattice_attack import FRAC, ONE

FALSE_ALARM = 1e-6
"""Of one audit: so likely, at most, it accuses noise that is as it should be."""
MISSED = 1e-6
"""So likely, at most, it misses noise of 0.9 of the scale."""
GRID, RARE = 2048, 1e-15
"""Of log-likelihood ratios, where the laws of several are added up; and chances that are left out."""
MODULI = (2, 3, 5, 7)
GCDS = 64

Sampler = Callable[[clear.BitSource, bytes, Plan, tuple[int, ...]], Integers]
Floats = np.ndarray


@dataclass(frozen=True)
class Node:
    """A request that was admitted, the ledger with its charge, and what comes next: after a selection, by answer."""

    request: Request
    spent: Filter
    branches: tuple[Node | None, ...]


@dataclass
class Pair:
    """A study, and what its servers count of two neighbouring tables: marginals in the order of the layout."""

    manifest: Manifest
    first: Integers
    second: Integers

    @cached_property
    def root(self) -> Node:
        """Everything that a run can come to, as the hostile coordinator asks."""
        manifest = self.manifest
        pure = manifest.privacy.accounting == "pure"
        spent = Filter(
            manifest.budget,
            manifest.neighbouring,
            allowance=manifest.allowance,
            pure_epsilon=manifest.privacy.exact_epsilon if pure else None,
        )
        root = self._next(Enforcer.start(manifest.program, manifest.task, manifest.layout), spent, None, False)
        assert root is not None
        return root

    def _next(self, enforcer: Enforcer, spent: Filter, selected: Clique | None, eager: bool) -> Node | None:
        """What is asked now. An eager coordinator settles or anneals: if a round spoke for the first table."""
        if enforcer.ended:
            assert _spent(spent) > 1 - 1e-9, "what is left of the budget would be slack in the audit"
            return None
        step = enforcer._branches[0].step
        request: Request
        if isinstance(step.mechanism, GaussianBatch):
            request = self._batch(step.role, step.mechanism)
        elif (due := enforcer.upcoming()[-1 if eager else 0]).step.endswith(Role.COMPARE):
            request = self._comparison(due)
        elif due.selects:
            request = self._selection(due)
        else:
            clique = selected or ()
            if due.step.startswith(Role.INITIAL):
                initial = self.manifest.program.initial(self.manifest.task)
                clique = initial[(int(due.step.removeprefix(Role.INITIAL)) - 1) % len(initial)]
            request = Measurement(due.step, clique, due.mechanism, due.draws)
        admitted = enforcer.admit(request)
        charged = Filter.from_json(spent.to_json())
        charged.charge(admitted.entry)
        if not isinstance(request, Selection):
            return Node(request, charged, (self._next(admitted.enforcer, charged, selected, eager),))
        branches = [
            self._next(admitted.enforcer.answered(i), charged, candidate, i == 0)
            for i, candidate in enumerate(request.candidates)
        ]
        return Node(request, charged, tuple(branches))

    def _comparison(self, due: Upcoming) -> Comparison:
        """A person moves all errors up, as far as possible: every changed cell is far on one side of its estimate."""
        layout, candidates = self.manifest.layout, tuple(self.manifest.program.candidates(self.manifest.task))
        first, second = (counts[layout.positions(candidates)] for counts in (self.first, self.second))
        low, high = np.minimum(first, second), np.maximum(first, second)
        far = min(int(low[low < high].min()), MOST_COUNTED - int(high.max()))
        estimate = np.where(first > second, low - far, np.where(first < second, high + far, low))
        assert isinstance(due.mechanism, GaussianErrors)
        return Comparison(due.step, candidates, estimate << UNIT_BITS, due.mechanism)

    def _batch(self, role: Role, mechanism: GaussianBatch) -> Batch:
        """The columns, in equal parts; or two marginals that a person changes most, with noise of two kinds."""
        program, task, layout = self.manifest.program, self.manifest.task, self.manifest.layout
        if role is Role.INITIAL:
            initial = program.initial(task)
            return Batch("initial1", initial, np.full(len(initial), mechanism.PARTS // len(initial)), mechanism)
        moved = np.abs(self.first - self.second)
        pair = sorted(program.candidates(task), key=lambda clique: -int(moved[layout.part(clique)].sum()))[:2]
        return Batch("round1-measure", tuple(pair), np.array([3, 1]) * mechanism.PARTS // 4, mechanism)

    def _selection(self, due: Upcoming) -> Selection:
        """Between two candidates: a person moves the score of one up and of the other down, as far as possible."""
        layout, weights = self.manifest.layout, self.manifest.program.candidates(self.manifest.task)
        moved = {
            clique: weight * int(np.abs(self.first - self.second)[layout.part(clique)].sum())
            for clique, weight in weights.items()
        }
        pair = tuple(sorted(moved, key=lambda clique: -moved[clique])[:2])
        changed = self.first[(cells := layout.positions(pair))] != self.second[cells]
        low, high = (pick(self.first[cells], self.second[cells]) for pick in (np.minimum, np.maximum))
        # As far from the counts as estimates may be, so that scores are large; in both alike, so that they balance.
        far = min(int(low[changed].min()), MOST_COUNTED - int(high.max()))
        rising = np.where(self.first[cells] > self.second[cells], low - far, high + far)
        falling = np.where(self.first[cells] > self.second[cells], high + far, low - far)
        sizes = [layout.domain.cells(clique) for clique in pair]
        estimate = np.where(np.arange(len(cells)) < sizes[0], rising, falling)
        return Selection(
            due.step,
            pair,
            np.where(changed, estimate, low) << UNIT_BITS,
            np.zeros(2, np.int64),
            np.array([weights[clique] for clique in pair]),
            due.mechanism,
            due.draws,
        )

    def advantage(self, *, sharper: float = 1.0, measured: bool = True) -> float:
        """As `advantage` of the whole run."""
        return advantage(self.root, self.root.spent.neighbouring, sharper=sharper, measured=measured)

    def lead(self, selection: Selection, counts: Integers) -> int:
        """By how much the first candidate's score is greater."""
        first, second = error_scores(counts, selection, self.manifest.layout).tolist()
        return int(first - second)


def _spent(spent: Filter) -> float:
    """The share of the budget."""
    if spent.pure_epsilon is None:
        return float(spent.spent / spent.budget)
    return float(sum(entry.epsilon(spent.neighbouring) or 0 for entry in spent.entries) / spent.pure_epsilon)


# What theory says.


def first_chance(selection: Selection, neighbouring: Neighbouring, lead: int, sharper: float = 1.0) -> float:
    """The probability that the ideal mechanism picks the first of two candidates, whose score leads by so much."""
    weight = int(np.abs(selection.weights).max())
    scale = float(selection.mechanism.scale(weight << UNIT_BITS, neighbouring)) * sharper
    if isinstance(selection.mechanism, NoisyMax):
        return 1 / (1 + exp(-lead / scale))
    # The difference of two geometric variables is discrete Laplace; ties are the first one's.
    ratio = exp(-1 / scale)
    return 1 - ratio ** (lead + 1) / (1 + ratio) if lead >= 0 else ratio**-lead / (1 + ratio)


def advantage(
    node: Node | None,
    neighbouring: Neighbouring,
    *,
    sharper: float = 1.0,
    measured: bool = True,
    p: float = 1,
    q: float = 1,
    gaussian: tuple[Fraction, ...] = (),
    shift: float = 0.0,
) -> float:
    """The best advantage of anybody who sees an ideal run: total variation distance of what two tables release.

    The tables are the worst that the ledger charged for. sharper: what scales of noise are multiplied by. measured:
    whether measurements are seen, or selections and comparisons only. p and q: the probability, on either table, of
    what led here; gaussian: sigma^2 of the Gaussian measurements before; shift: by how many deviations, squared and
    added up, errors that were compared are shifted. Selections are those of the exact mechanism: real ones may,
    by what is charged, stray from it by factors of e^(+-kappa), and are held to less.
    """
    if node is None:
        losses, chances = gaussian_losses(tuple(sorted(Counter(gaussian).items())), neighbouring, sharper, shift)
        return float(np.maximum(chances * (p - q * np.exp(-losses)), 0).sum())
    request, ways = node.request, [(1.0, 1.0)]
    if isinstance(request, Selection):
        most = int(np.abs(request.weights).max()) * neighbouring.score_factor << UNIT_BITS
        here, there = (first_chance(request, neighbouring, lead, sharper) for lead in (most, -most))
        ways = [(here, there), (1 - here, 1 - there)]
    elif isinstance(request, Comparison):
        each = neighbouring.score_factor**2 / float(request.mechanism.sigma_squared * Fraction(sharper) ** 2)
        shift += len(request.candidates) * each
    elif measured and isinstance(request, Batch):
        gaussian += tuple(one.mechanism.sigma_squared for one in request.measurements(neighbouring))
    elif isinstance(request, Batch):
        pass
    elif measured and isinstance(request.mechanism, Gaussian):
        gaussian += (request.mechanism.sigma_squared,)
    elif measured:
        ways = laplace_ways(float(request.mechanism.scale) * sharper, neighbouring)
    branches = node.branches if isinstance(request, Selection) else node.branches * len(ways)
    return sum(
        advantage(
            branch,
            neighbouring,
            sharper=sharper,
            measured=measured,
            p=p * here,
            q=q * there,
            gaussian=gaussian,
            shift=shift,
        )
        for branch, (here, there) in zip(branches, ways, strict=True)
    )


def changed_cells(neighbouring: Neighbouring) -> tuple[int, int]:
    """How many cells of a marginal a person changes at worst, and each by how much."""
    return neighbouring.l1**2 // neighbouring.l2_squared, neighbouring.l2_squared // neighbouring.l1


@cache
def gaussian_losses(
    measured: tuple[tuple[Fraction, int], ...], neighbouring: Neighbouring, sharper: float, shift: float = 0.0
) -> tuple[Floats, Floats]:
    """The log-likelihood ratio of marginals with discrete Gaussian noise, on the first table, and its law.

    measured: by sigma^2, how many marginals. The ratio is linear in the sum of their changed cells, which is an integer
    plus noise. Ratios are rounded up to a grid, which makes the advantage no smaller. Errors have units so small that
    their noise is as good as continuous: theirs is that of one normal variable, shifted.
    """
    (cells, by), losses, chances = changed_cells(neighbouring), np.zeros(1), np.ones(1)
    if shift:
        normal = np.arange(-8 * GRID, 8 * GRID + 1) / GRID
        losses, chances = sqrt(shift) * normal + shift / 2, stats.norm.pdf(normal) / GRID
    for sigma_squared, times in measured:
        variance, summed = float(sigma_squared) * sharper**2, np.ones(1)
        reach = ceil(12 * sqrt(variance))
        law = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * variance))
        for _ in range(cells * times):
            summed = np.convolve(summed, law / law.sum())
        noise = np.arange(len(summed)) - len(summed) // 2
        losses = np.add.outer(losses, by * (noise + cells * times * by / 2) / variance)
        chances = np.multiply.outer(chances, summed)
        likely = chances > RARE
        places = np.ceil(losses[likely] * GRID).astype(np.int64)
        chances = np.bincount(places - places.min(), chances[likely])
        losses = (places.min() + np.arange(len(chances))) / GRID
    return losses, chances


def laplace_ways(scale: float, neighbouring: Neighbouring) -> list[tuple[float, float]]:
    """Values of the changed cells that have one likelihood ratio, together: their probability on either table."""
    ratio, (cells, by) = exp(-1 / scale), changed_cells(neighbouring)

    def chance(value: int) -> float:
        return (1 - ratio) / (1 + ratio) * ratio ** abs(value)

    def tail(value: int) -> float:
        return ratio**value / (1 + ratio)

    one = [(tail(by), tail(0)), (tail(0), tail(by)), *((chance(y - by), chance(y)) for y in range(1, by))]
    return [(prod(p for p, _ in each), prod(q for _, q in each)) for each in product(one, repeat=cells)]


def runs_needed(bound: float, sharper: float, tests: int) -> int:
    """Runs on either table that show an advantage above the bound, if it is `sharper`, by one of so many tests.

    Half of the runs choose thresholds, so there are as many guesses. An advantage is twice the share of right ones,
    less 1: its variance is (1 - advantage^2) / guesses. A tenth more, for the threshold is not quite the best.
    """
    alarm, missed = stats.norm.isf(FALSE_ALARM / tests), stats.norm.isf(MISSED)
    spread = alarm * sqrt(1 - bound**2) + missed * sqrt(1 - sharper**2)
    return 2 * ceil(0.55 * (spread / (sharper - bound)) ** 2)


# What a run releases.


@dataclass
class Transcript:
    """Runs that went one way: which they are, and what each step opened, one row for each run."""

    runs: Integers
    opened: list[tuple[Request, Integers]]


def true_noise(bits: clear.BitSource, label: bytes, plan: Plan, shape: tuple[int, ...]) -> Integers:
    """As the servers draw it."""
    match plan:
        case GaussianPlan():
            return clear.discrete_gaussian(bits, label, plan, shape)
        case LaplacePlan():
            return clear.discrete_laplace(bits, label, plan, shape)
        case GumbelPlan():
            return clear.gumbel(bits, label, plan, shape)
        case GeometricPlan():
            return clear.geometric(bits, label, plan, shape)


def sharper_noise(factor: Fraction, *kinds: type) -> Sampler:
    """The same with scales multiplied by a factor, of these kinds of noise."""

    def sampler(bits: clear.BitSource, label: bytes, plan: Plan, shape: tuple[int, ...]) -> Integers:
        match plan if isinstance(plan, kinds) else None:
            case GaussianPlan(sigma2=sigma2):
                plan = gaussian_plan(sigma2 * factor**2)
            case LaplacePlan(scale=scale):
                plan = laplace_plan(scale * factor)
            case GumbelPlan(beta=beta):
                plan = gumbel_plan(beta * factor, 512 / beta, 16 / beta)
            case GeometricPlan(scale=scale):
                plan = geometric_plan(scale * factor)
        return true_noise(bits, label, plan, shape)

    return sampler


def seeded(seed: str) -> clear.FreshBits:
    """Bits that are the same in every run of the tests, and others at every step of every path."""
    numbers = count()
    return clear.FreshBits(lambda size: sha256(f"{seed}/{next(numbers)}".encode()).digest()[:size])


def play(
    pair: Pair, counts: Integers, runs: int, bits: clear.BitSource, sampler: Sampler = true_noise, unit: int = 1
) -> Iterator[Transcript]:
    """So many whole runs on one table. unit: of opened values, where noise is in fixed point."""
    layout, neighbouring = pair.manifest.layout, pair.manifest.neighbouring
    waiting: list[tuple[Node | None, Transcript, bytes]] = [(pair.root, Transcript(np.arange(runs), []), b"")]
    while waiting:
        node, so_far, path = waiting.pop()
        if node is None or not len(so_far.runs):
            yield so_far
            continue
        request = node.request
        selects = isinstance(request, Selection)
        drawn: list[tuple[Plan, int]]
        match request:
            case Selection():
                drawn = [(request.plan(neighbouring), request.noise_values)]
            case Comparison():
                drawn = [(request.plan(), len(request.candidates))]
            case Measurement():
                drawn = [(request.plan(), request.noise_values(layout))]
            case Batch():
                drawn = [(plan, len(cells)) for plan, cells in request.noise(layout, neighbouring)]
        labels = [path + f"/{request.step}/noise/{plan.digest[:16]}".encode() for plan, _ in drawn]
        noise = np.concatenate(
            [
                sampler(bits, label, plan, (len(so_far.runs), draws))
                for label, (plan, draws) in zip(labels, drawn, strict=True)
            ],
            axis=1,
        )
        match request:
            case Selection():
                scores = error_scores(counts, request, layout)
                opened = np.argmax(scores + noise[:, : len(scores)], axis=1)
            case Comparison():
                opened = errors(counts, request, layout) + noise
            case Measurement():
                cells = counts[layout.part(request.clique)]
                opened = cells * unit + noise[:, : len(cells)]
            case Batch():
                order = np.argsort(np.concatenate([cells for _, cells in request.noise(layout, neighbouring)]))
                opened = counts[layout.positions(request.cliques)] * unit + noise[:, order]
        for i, branch in enumerate(node.branches):
            those = opened == i if selects else np.ones(len(opened), np.bool_)
            taken = [(asked, values[those]) for asked, values in [*so_far.opened, (request, opened)]]
            waiting.append((branch, Transcript(so_far.runs[those], taken), path + b"/%d" % i))


# Who tells tables apart.


def statistics(pair: Pair, seen: Transcript, unit: int) -> dict[str, Floats]:
    """Of every run: what distinguishers look at. The greater, the more it speaks for the first table."""
    layout, neighbouring = pair.manifest.layout, pair.manifest.neighbouring
    size = len(seen.runs)
    selected, measured, moved, lattice = (np.zeros(size) for _ in range(4))
    residuals: list[Integers] = [np.zeros((size, 1), np.int64)]
    for request, opened in _apart(seen.opened, pair):
        if isinstance(request, Comparison):
            first, second = (errors(counts, request, layout) for counts in (pair.first, pair.second))
            from_first, from_second = opened - first, opened - second
            scale = sqrt(request.plan().sigma2)
            selected += ((from_second**2.0 - from_first**2.0) / (2 * scale**2)).sum(1)
            moved += (from_second * np.sign(first - second)).sum(1)
            residuals.append(from_second)
            continue
        if isinstance(request, Selection):
            here, there = (
                first_chance(request, neighbouring, pair.lead(request, counts)) for counts in (pair.first, pair.second)
            )
            selected += np.where(opened == 0, log(here / there), log((1 - here) / (1 - there)))
            continue
        assert isinstance(request, Measurement)
        first, second = (counts[layout.part(request.clique)] for counts in (pair.first, pair.second))
        from_first, from_second = opened - first * unit, opened - second * unit
        if isinstance(request.mechanism, Gaussian):
            scale = sqrt(request.mechanism.sigma_squared)
            ratio = ((from_second / unit) ** 2 - (from_first / unit) ** 2) / (2 * scale**2)
        else:
            scale = float(request.mechanism.scale)
            ratio = (np.abs(from_second) - np.abs(from_first)) / (scale * unit)
        measured += ratio.sum(1)
        moved += (from_second * np.sign(first - second)).sum(1)
        lattice += (on_lattice(from_first, scale, unit) * 1.0 - on_lattice(from_second, scale, unit)).sum(1)
        residuals.append(from_second)
    every = np.concatenate(residuals, axis=1)
    return {
        "likelihood ratio": selected + measured,
        "selections": selected,
        "changed cells": moved,
        "largest cell": every.max(1),
        "smallest cell": every.min(1),
        "lattice": lattice,
        "common divisor": np.minimum(np.gcd.reduce(every, axis=1), GCDS - 1),
        **{f"residues of {m}": moved % m for m in MODULI},
    }


def _apart(opened: list[tuple[Request, Integers]], pair: Pair) -> Iterator[tuple[Request, Integers]]:
    """The same with the marginals of batches one by one."""
    layout, neighbouring = pair.manifest.layout, pair.manifest.neighbouring
    for request, values in opened:
        if isinstance(request, Batch):
            ends = np.cumsum(request.sizes(layout))[:-1]
            yield from zip(request.measurements(neighbouring), np.split(values, ends, axis=1), strict=True)
        else:
            yield request, values


LEARNT = ("common divisor", *(f"residues of {m}" for m in MODULI))
"""Statistics whose values are names: how much one speaks for a table is learnt from runs."""


def on_lattice(residuals: Integers, scale: float, unit: int) -> np.ndarray:
    """Which values are a sample of fixed point times the scale, cut off, as the paper's are."""
    step, fixed = round(scale * ONE), residuals * (ONE // unit)
    multiple = -((-fixed << FRAC) // step)
    lies: np.ndarray = (multiple * step) >> FRAC == fixed
    return lies


@dataclass(frozen=True)
class Finding:
    """How often a distinguisher was right, in runs that had no part in choosing its threshold."""

    name: str
    right: int
    guesses: int
    bound: float

    @property
    def advantage(self) -> float:
        return 2 * self.right / self.guesses - 1

    def p_value(self) -> float:
        """The probability of as many right guesses, at most, if the advantage is no more than the bound.

        Guesses of two tables are right with two probabilities; of all such sums of given mean, those of equal
        probabilities stray furthest (Hoeffding 1956).
        """
        return float(stats.binom.sf(self.right - 1, self.guesses, (1 + self.bound) / 2))


@dataclass(frozen=True)
class Audit:
    """What came of it: of every distinguisher, and whether some set of releases breaks the printed guarantee."""

    findings: dict[str, Finding]
    broken: bool
    """P[S | one table] <= e^epsilon P[S | other] + delta is violated, for a set S chosen on other runs."""

    @property
    def best(self) -> Finding:
        return max(self.findings.values(), key=lambda finding: finding.advantage)

    @property
    def alarms(self) -> set[str]:
        """Distinguishers that exceed their bound: one of them does, unduly, with probability FALSE_ALARM at most."""
        return {name for name, finding in self.findings.items() if finding.p_value() < FALSE_ALARM / len(self.findings)}


DISTINGUISHERS = 7 + len(MODULI)


def audit(pair: Pair, runs: int, seed: str, sampler: Sampler = true_noise, unit: int = 1) -> Audit:
    """Play so many runs on either table, choose thresholds on half of them, and guess the others."""
    sides = []
    for side, counts in (("first", pair.first), ("second", pair.second)):
        table: dict[str, Floats] = {}
        for seen in play(pair, counts, runs, seeded(f"{seed}/{side}"), sampler, unit):
            for name, values in statistics(pair, seen, unit).items():
                table.setdefault(name, np.zeros(runs))[seen.runs] = values
        sides.append(table)
    first, second = sides
    assert len(first) == DISTINGUISHERS
    total, selections = pair.advantage(), pair.advantage(measured=False)
    findings = {}
    for name in first:
        bound = selections if name == "selections" else total
        findings[name] = Finding(name, *guessed(name, first[name], second[name]), bound)
    statement = pair.manifest.statement(pair.root.spent)
    printed = float(statement.epsilon), float(statement.delta)
    here, there = first["likelihood ratio"], second["likelihood ratio"]
    return Audit(findings, breaks(here, there, *printed) or breaks(-there, -here, *printed))


def guessed(name: str, first: Floats, second: Floats) -> tuple[int, int]:
    """Right guesses, and all, of the second half of the runs, with what the first half taught."""
    half = len(first) // 2
    if name in LEARNT:
        times = [np.bincount(values[:half].astype(np.intp), minlength=GCDS) + 1 for values in (first, second)]
        weights = np.log(times[0] / times[1])
        first, second = (weights[values.astype(np.intp)] for values in (first, second))
    threshold, sign = best_threshold(first[:half], second[:half])
    right = np.sum(sign * first[half:] >= threshold) + np.sum(sign * second[half:] < threshold)
    return int(right), 2 * (len(first) - half)


def best_threshold(first: Floats, second: Floats, factor: float = 1.0) -> tuple[float, int]:
    """(t, sign) with the greatest P[sign first >= t] - factor P[sign second >= t]; for another factor, of sign 1."""
    best = (-np.inf, np.inf, 1)
    for sign in (1, -1) if factor == 1 else (1,):
        values = np.unique(sign * np.concatenate([first, second]))
        above = [1 - np.searchsorted(np.sort(sign * side), values) / len(side) for side in (first, second)]
        gains = above[0] - factor * above[1]
        top = int(np.argmax(gains))
        best = max(best, (float(gains[top]), float(values[top]), sign))
    return best[1], best[2]


def breaks(first: Floats, second: Floats, epsilon: float, delta: float) -> bool:
    """Whether P[first >= t] > e^epsilon P[second >= t] + delta for sure, t chosen on half of the runs.

    By intervals of Clopper and Pearson, two for each direction, that miss with probability FALSE_ALARM / 4 each.
    """
    half = len(first) // 2
    threshold, _ = best_threshold(first[:half], second[:half], exp(epsilon))
    here, there = (int(np.sum(side[half:] >= threshold)) for side in (first, second))
    return lower(here, len(first) - half) > exp(epsilon) * upper(there, len(first) - half) + delta


def lower(times: int, of: int, miss: float = FALSE_ALARM / 4) -> float:
    """The least probability that an event has, given how often it came."""
    return float(stats.beta.ppf(miss, times, of - times + 1)) if times else 0.0


def upper(times: int, of: int, miss: float = FALSE_ALARM / 4) -> float:
    """The greatest."""
    return float(stats.beta.isf(miss, times + 1, of - times)) if times < of else 1.0
