"""Whole runs on neighbouring tables, with hostile holders and a hostile coordinator, audited (tests/kit/audit.py).

How many runs are played follows from what has to be seen: with every scale of noise at 0.9 of what it should be, or
those of selections alone, an advantage that exceeds the bound. Right noise is accused with probability 1e-6 at most,
wrong noise acquitted with as much. On either table that takes 33,000 runs of measurements only (advantages of 0.53 and
0.58 have to be told apart), 440,000 of MWEM, where 0.143 and 0.159 of two selections have to be (0.139 and 0.154 of a
pure one: 530,000), and 270,000 of AIM (0.184 and 0.203).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache
from hashlib import sha256
from itertools import count
from math import sqrt, tanh
from typing import Any

import numpy as np
import pytest
from scipy import stats

from caps.data.domain import MISSING
from caps.dp.bounds import MOST_COUNTED, UNIT_BITS
from caps.dp.clear import ClearOracle
from caps.dp.noise import clear
from caps.dp.noise.plans import GaussianPlan, GeometricPlan, GumbelPlan, LaplacePlan
from caps.dp.oracle import Batch, Comparison, Integers, Plan, Selection
from caps.dp.privacy import Filter, Relation
from caps.shares.prss import expand
from caps.shares.ring import Z16, Z32, Z64, plane_words
from caps.study.manifest import Manifest
from docs.examples.lattice_attack import FRAC, ONE
from services.mpc_server.engine import compute
from services.mpc_server.engine.compute import ColumnsInput, HorizontalInput, compute_answers
from services.mpc_server.engine.context import Context
from services.mpc_server.engine.steps import Steps
from services.mpc_server.testing.world import World
from tests.kit import audit as audit_kit
from tests.kit.audit import DISTINGUISHERS, FALSE_ALARM, Finding, Pair, audit, runs_needed, sharper_noise
from tests.kit.study import SERVERS, example_json, make_keys

pytestmark = pytest.mark.statistical

HOLDERS = ("honest", "corrupt")
KEYS = make_keys([*SERVERS, "coordinator", *HOLDERS])
SLOTS, OTHERS = 40, 25
SHARPER = Fraction(9, 10)
SELECTING = (GumbelPlan, GeometricPlan)
EVERY = (*SELECTING, GaussianPlan, LaplacePlan)


@dataclass(frozen=True)
class Case:
    """A study of two holders. shared: whether both bring all columns of the same persons, else whole rows of others.

    epsilon is large, so that fewer runs tell 0.9 of the noise from all of it; pure budgets are smaller, for there is
    next to no noise at 8.
    """

    algorithm: str
    relation: str = "unbounded"
    multiplicity: int = 1
    shared: bool = False
    accounting: str = "zcdp"
    epsilon: str = "8"
    columns: int = 3
    parameters: dict[str, int] = field(default_factory=dict, hash=False)

    def manifest(self) -> Manifest:
        names = [f"c{i}" for i in range(self.columns)]
        document, _ = example_json(
            keys=KEYS,
            holders=[(name, names if self.shared else None) for name in HOLDERS],
            schema={"columns": [{"name": n, "kind": "categorical", "categories": ["0", "1"]} for n in names]},
            slots=SLOTS,
            algorithm={"name": self.algorithm, "parameters": dict(self.parameters)},
            privacy={
                "epsilon": self.epsilon,
                "delta": "1e-6",
                "population": "p",
                "multiplicity": self.multiplicity,
                "neighbouring": self.relation,
                "accounting": self.accounting,
            },
        )
        for holder in document["holders"]:
            holder.pop("capacity", None)
        return Manifest.from_json(document)


GAUSSIAN = Case("gaussian", columns=5)
"""Measurements only: a Gaussian shift with mu^2 = 2 rho, whose advantage is attained."""
MWEM = Case("mwem", parameters={"rounds": 2})
PURE = Case("mwem", accounting="pure", epsilon="3", parameters={"rounds": 1})
AIM = Case("aim", parameters={"rounds": 7})
"""Where a selection spoke for the first table, the coordinator gives up rounds, or anneals if it may not yet."""
SWIFT = Case("swift", columns=4)
"""Four columns, so that they are measured with all parts of their batch."""
CASES = {
    "gaussian": GAUSSIAN,
    "gaussian, replaced": replace(GAUSSIAN, relation="bounded"),
    "gaussian, shared columns": replace(GAUSSIAN, shared=True),
    "gaussian, shared columns, replaced": replace(GAUSSIAN, shared=True, relation="bounded"),
    "gaussian, two rows": replace(GAUSSIAN, multiplicity=2),
    "mwem": MWEM,
    "mwem, shared columns": replace(MWEM, shared=True),
    "mwem, pure": PURE,
    "mwem, pure, replaced": replace(PURE, relation="bounded"),
    "aim": AIM,
    "aim, two rows": replace(AIM, multiplicity=2),
    "swift": SWIFT,
    "swift, replaced": replace(SWIFT, relation="bounded"),
    "swift, shared columns": replace(SWIFT, shared=True),
    "swift, two rows": replace(SWIFT, multiplicity=2),
}
each_case = pytest.mark.parametrize("name", CASES)


# What the servers count.


async def answers(ctx: Context, *shares: Any, manifest: Manifest, bits: int) -> Any:
    """COMPUTE ANSWERS on what the holders sent."""
    inputs: list[HorizontalInput | ColumnsInput] = [
        HorizontalInput(holder.name, share)
        if holder.brings == "rows"
        else ColumnsInput(holder.name, manifest.domain.names, share)
        for holder, share in zip(manifest.holders, shares, strict=True)
    ]
    whole = manifest.layout.cliques if manifest.alignment else None
    return await compute_answers(ctx.step("compute"), inputs, layout=manifest.layout, counted=whole, bits=bits)


async def counted(ctx: Context, *shares: Any, manifest: Manifest) -> Any:
    found = await answers(ctx, *shares, manifest=manifest, bits=manifest.counted_bits)
    return found.marginals, found.accepted


def neighbours(manifest: Manifest) -> Pair:
    """Two tables of the honest holder, with what the corrupt one sends, as the engine counts them.

    Where holders have whole rows, the corrupt one claims 2^32 - 1 persons like the one in question, of which servers
    take as many bits as leave room. Where both bring the same columns, it fills every slot with a person who differs in
    all of them, or, for whom a replaced person leaves room, with that person.
    """
    k, width, bounded = (
        manifest.privacy.multiplicity,
        len(manifest.domain.names),
        manifest.privacy.neighbouring == "bounded",
    )
    person, other = np.zeros(width, np.int64), np.ones(width, np.int64)
    rest = np.random.default_rng(7).integers(0, 2, (OTHERS, width))
    if manifest.alignment is None:
        tables = [[rest, [person] * k], [rest, [other] * k] if bounded else [rest]]
        claimed = manifest.layout.marginals(person[None]) * MOST_COUNTED
        sent = [[manifest.layout.marginals(np.concatenate(table)), claimed] for table in tables]
        ring = Z32
    else:
        filled = np.tile(other, (SLOTS, 1))
        filled[k : 2 * k] = person if bounded else other
        first, second = (np.concatenate([np.full((SLOTS - OTHERS, width), MISSING), rest]) for _ in range(2))
        first[:k] = person
        second[k : 2 * k] = other if bounded else MISSING
        sent = [[manifest.domain.one_hot(codes) for codes in (table, filled)] for table in (first, second)]
        ring = Z16
    counts = []
    for words in sent:
        marginals, accepted = World(1).run(counted, *map(ring.encode, words), manifest=manifest).value
        assert np.all(accepted)
        counts.append(Z64.signed(marginals))
    return Pair(manifest, *counts)


@cache
def prepared(name: str) -> tuple[Pair, int]:
    """The pair, and how many runs show noise of 0.9 of the scale, be it in all steps or in selections only."""
    pair = neighbours(CASES[name].manifest())
    gaps = [(pair.advantage(), pair.advantage(sharper=0.9))]
    if any(
        entry.mechanism.kind in ("noisy-max", "permute-and-flip", "gaussian-errors") for entry in leaf(pair).entries
    ):
        gaps.append(tuple(pair.advantage(sharper=s, measured=False) for s in (1, 0.9)))  # type: ignore[arg-type]
    return pair, max(runs_needed(*gap, DISTINGUISHERS) for gap in gaps)


def leaf(pair: Pair) -> Filter:
    """The ledger of a run in which the first candidate is always selected."""
    node = pair.root
    while node.branches[0] is not None:
        node = node.branches[0]
    return node.spent


# The auditor finds nothing, and would find what is wrong.


@pytest.mark.slow
@each_case
def test_nobody_tells_tables_apart_better_than_is_charged_for(name: str, record_property: Any) -> None:
    pair, runs = prepared(name)
    done = audit(pair, runs, name)
    record_property("audit", f"{runs} runs, {done.best}")
    assert not done.alarms, {alarm: done.findings[alarm] for alarm in done.alarms}
    assert not done.broken
    assert done.findings["likelihood ratio"].advantage > 0.9 * pair.advantage(), "an audit that is slack"


@pytest.mark.slow
@each_case
def test_noise_of_nine_tenths_is_found(name: str) -> None:
    pair, runs = prepared(name)
    done = audit(pair, runs, f"{name}/sharper", sharper_noise(SHARPER, *EVERY))
    assert "likelihood ratio" in done.alarms
    if pair.manifest.privacy.accounting == "pure":
        assert done.broken, "a pure guarantee is attained, and so broken"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mwem", "mwem, shared columns", "mwem, pure", "aim"])
def test_noise_of_nine_tenths_in_selections_alone_is_found(name: str) -> None:
    pair, runs = prepared(name)
    done = audit(pair, runs, f"{name}/selecting", sharper_noise(SHARPER, *SELECTING))
    assert "selections" in done.alarms


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "forgotten"),
    [
        ("gaussian, shared columns", {"moves": False}),
        ("gaussian, shared columns, replaced", {"moves": False}),
        ("gaussian, replaced", {"relation": Relation.UNBOUNDED}),
        ("gaussian, two rows", {"multiplicity": 1}),
        ("mwem, shared columns", {"moves": False}),
        ("mwem, pure, replaced", {"relation": Relation.UNBOUNDED}),
        ("swift, replaced", {"relation": Relation.UNBOUNDED}),
        ("swift, shared columns", {"moves": False}),
        ("swift, two rows", {"multiplicity": 1}),
    ],
)
def test_what_a_person_can_change_is_not_to_be_forgotten(
    name: str, forgotten: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A study that is calibrated for less than a person changes, and charged for as little."""
    _, runs = prepared(name)
    charged = replace(CASES[name].manifest().neighbouring, **forgotten)
    monkeypatch.setattr(Manifest, "neighbouring", property(lambda _: charged))
    pair = neighbours(CASES[name].manifest())
    assert leaf(pair).neighbouring == charged
    assert "likelihood ratio" in audit(pair, runs, f"{name}/forgotten").alarms


def paper_noise(bits: clear.BitSource, label: bytes, plan: Plan, shape: tuple[int, ...]) -> Integers:
    """The paper's samples for Gaussian noise: 12 uniforms of fixed point, added up, times sigma, cut off."""
    assert isinstance(plan, GaussianPlan)
    seed = bits.bits(label, 64, (8,)).tobytes()[:32]
    uniforms = expand(seed, b"uniforms", (12, *shape), Z16).astype(np.int64)
    products: Integers = (uniforms.sum(0) - 6 * ONE) * round(sqrt(plan.sigma2) * ONE)
    return products >> FRAC


@pytest.mark.slow
def test_a_scaled_sample_is_found_by_its_lattice() -> None:
    """400 runs suffice: at epsilon = 2 tables are told apart for certain, where integer noise leaves it at 17 %."""
    pair = neighbours(replace(GAUSSIAN, epsilon="2").manifest())
    done = audit(pair, 400, "paper", paper_noise, ONE)
    assert "lattice" in done.alarms
    assert done.findings["lattice"].advantage > 0.99
    assert "likelihood ratio" not in done.alarms, "sizes alone do not show it"


def test_the_bound_of_gaussian_runs_is_that_of_the_budget() -> None:
    """All of rho is one Gaussian shift of mu^2 = 2 rho: the bound comes from the ledger, and agrees with the budget."""
    for case in CASES.values():
        if case.algorithm in ("gaussian", "swift"):
            pair = neighbours(case.manifest())
            ideal = 2 * stats.norm.cdf(sqrt(2 * pair.manifest.budget) / 2) - 1
            assert pair.advantage() == pytest.approx(ideal, rel=0.005)


# The runs that are played are those of the clear twin.


class Numbered:
    """Bits that depend on nothing but how many were asked for before."""

    def __init__(self) -> None:
        self._numbers = count()

    def bits(self, label: bytes, width: int, shape: tuple[int, ...]) -> Any:
        seed = sha256(str(next(self._numbers)).encode()).digest()
        return expand(seed, b"numbered", (width, plane_words(int(np.prod(shape)))), Z64)


@pytest.mark.parametrize("name", ["gaussian", "mwem", "mwem, pure", "aim", "swift"])
def test_runs_are_those_of_the_clear_twin(name: str) -> None:
    pair = neighbours(CASES[name].manifest())
    manifest, end = pair.manifest, leaf(pair)
    (seen,) = (one for one in audit_kit.play(pair, pair.first, 1, Numbered()) if len(one.runs))
    budget = Filter(end.budget, end.neighbouring, allowance=end.allowance, pure_epsilon=end.pure_epsilon)
    twin = ClearOracle(np.zeros((0, 0), np.int64), manifest.layout, manifest.neighbouring, budget, Numbered())
    twin._counts = pair.first  # no table has 2^31 rows
    for request, opened in seen.opened:
        match request:
            case Selection():
                answer: Any = twin.select(request)
            case Comparison():
                answer = twin.compare(request)
            case Batch():
                answer = twin.measure_batch(request)
            case _:
                answer = twin.measure(request)
        assert np.array_equal(opened[0], answer)
    assert len(budget.entries) == len(seen.opened)


# An attack of old, on the engine.

SELECTED = 40


async def selected(ctx: Context, *shares: Any, manifest: Manifest, bits: int, selection: Selection) -> list[int]:
    """One table counted, and one selection from it made again and again, with noise of its own each time."""
    found = await answers(ctx, *shares, manifest=manifest, bits=bits)
    steps = Steps(ctx.step("run"), manifest.layout, manifest.neighbouring, found.marginals, manifest.task.largest_count)
    await steps.prepare()
    return [await steps.select(replace(selection, step=f"round{i}-select")) for i in range(1, SELECTED + 1)]


def attacked(bits: int) -> tuple[Finding, int, int]:
    """A holder claims 2^32 - t persons like t honest ones, and the coordinator estimates 1 of them.

    How often the first candidate was selected with all t, and with one less. With counts of 32 bits all t make 2^32,
    which is 0 and less than the estimate: the score changes its sign.
    """
    manifest = replace(MWEM, epsilon="1").manifest()
    layout, t = manifest.layout, 5
    one = layout.marginals(np.zeros((1, 3), np.int64))
    claimed = Z32.encode(one * ((1 << 32) - t))
    step = manifest.program.schedule(manifest.task).step
    assert step is not None
    weights = manifest.program.candidates(manifest.task)
    pair = tuple(weights)[:2]
    estimate = np.zeros(len(layout.positions(pair)), np.int64)
    estimate[0] = 1 << UNIT_BITS
    selection = Selection(
        "round1-select", pair, estimate, np.zeros(2, np.int64), np.array([weights[c] for c in pair]), step.mechanism
    )
    # The second candidate is held back by three scales more: without wrapping, the first is selected 19 times of 20.
    lead = (1 << UNIT_BITS) + round(3 * selection.plan(manifest.neighbouring).beta)
    selection = replace(selection, bias=np.array([0, lead]))
    times = []
    for honest in (t, t - 1):
        words = Z32.encode(one * honest), claimed
        picks = World(honest).run(selected, *words, manifest=manifest, bits=bits, selection=selection).value
        times.append(picks.count(0))
    bound = tanh(step.mechanism.epsilon_star / 4)
    right = max(times[0] + SELECTED - times[1], times[1] + SELECTED - times[0])
    return Finding("selections", right, 2 * SELECTED, bound), *times


async def compared(ctx: Context, *shares: Any, manifest: Manifest, bits: int, comparison: Comparison) -> Any:
    found = await answers(ctx, *shares, manifest=manifest, bits=bits)
    steps = Steps(ctx.step("run"), manifest.layout, manifest.neighbouring, found.marginals, manifest.task.largest_count)
    await steps.prepare()
    return await steps.compare(comparison)


def moved_by_a_person(bits: int) -> float:
    """How far the same attack moves the opened errors, in deviations of their noise."""
    manifest = replace(SWIFT, epsilon="1").manifest()
    layout, t = manifest.layout, 5
    one = layout.marginals(np.zeros((1, 4), np.int64))
    claimed = Z32.encode(one * ((1 << 32) - t))
    candidates = tuple(manifest.program.candidates(manifest.task))
    starts = np.cumsum([0, *(manifest.domain.cells(clique) for clique in candidates)])[:-1]
    estimate = np.zeros(len(layout.positions(candidates)), np.int64)
    estimate[starts] = 1 << UNIT_BITS
    compare = manifest.program.schedule(manifest.task).after().step
    assert compare is not None
    comparison = Comparison("round1-compare", candidates, estimate, compare.mechanism)
    opened = [
        World(1).run(compared, Z32.encode(one * honest), claimed, manifest=manifest, bits=bits, comparison=comparison)
        for honest in (t, t - 1)
    ]
    changes = np.abs(opened[0].value - opened[1].value)  # the noise is the same, and cancels
    return float(changes.max() / (compare.mechanism.deviation * (1 << UNIT_BITS)))


def test_a_count_that_would_wrap_moves_no_error_further_than_a_person(monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = replace(SWIFT, epsilon="1").manifest()
    compare = manifest.program.schedule(manifest.task).after().step
    assert moved_by_a_person(manifest.counted_bits) == pytest.approx(1 / compare.mechanism.deviation)
    monkeypatch.setattr(compute, "MOST_COUNTED", 1 << 62)  # counts of 32 bits and no bound on their sum
    assert moved_by_a_person(32) > 1e6


def test_a_count_that_would_wrap_selects_nothing_else() -> None:
    manifest = replace(MWEM, epsilon="1").manifest()
    found, with_all, with_one_less = attacked(manifest.counted_bits)
    # Either direction may be the one that was guessed.
    assert found.p_value() > FALSE_ALARM / 2
    assert min(with_all, with_one_less) > SELECTED // 2


def test_a_count_that_wraps_tells_a_person(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with counts of 32 bits and no bound on their sum: the attack succeeds, and the test above would fail."""
    monkeypatch.setattr(compute, "MOST_COUNTED", 1 << 62)
    found, with_all, with_one_less = attacked(32)
    assert with_all == 0
    assert with_one_less > SELECTED // 2
    assert found.p_value() < FALSE_ALARM / 2
