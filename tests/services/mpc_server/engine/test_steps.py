"""The steps of a run on shares give what the clear twin gives for the same random bits, and open nothing else."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caps.data.domain import Attribute, Domain, Layout
from caps.dp.clear import ClearOracle
from caps.dp.oracle import Batch, Comparison, Measurement, Selection, rounded_estimate
from caps.dp.privacy import calibrate
from caps.dp.privacy.filter import BudgetExceeded, Filter
from caps.dp.privacy.mechanisms import Gaussian, GaussianBatch, GaussianErrors, Laplace, NoisyMax, PermuteAndFlip
from caps.dp.privacy.neighbouring import Neighbouring, Relation
from caps.errors import DomainError, LabelReused
from services.coordinator.algorithms import algorithm
from services.mpc_server.engine.steps import NoisePool, Steps, Wanted, draw_noise
from services.mpc_server.testing.world import Failed, Recorder, World
from tests.kit.algorithms import BruteForce, clear_oracle, domain_of, rows_of, run, task_of
from tests.kit.cases.sampling import WorldBits

pytestmark = pytest.mark.property

UNBOUNDED = Neighbouring(Relation.UNBOUNDED)
PATH = b"/test/run"


def all_pairs(domain: Domain) -> Layout:
    singles = [(name,) for name in domain.names]
    return Layout(domain, (*singles, *combinations(domain.names, 2)))


def table(seed: int, rows: int, sizes: list[int]) -> tuple[Layout, np.ndarray]:
    domain = Domain(tuple(Attribute(f"a{i}", size, nullable=True) for i, size in enumerate(sizes)))
    generator = np.random.default_rng(seed)
    codes = np.stack([generator.integers(-1, size, rows) for size in sizes], axis=1)
    return all_pairs(domain), codes


def selection(layout: Layout, codes: np.ndarray, seed: int, mechanism, step: str = "select") -> Selection:
    generator = np.random.default_rng(seed)
    cells = layout.marginals(codes)[layout.positions(layout.cliques)]
    estimate = rounded_estimate(np.maximum(0, cells + generator.normal(0, 5, cells.size)))
    count = len(layout.cliques)
    bias = generator.integers(0, 500, count)
    return Selection(step, layout.cliques, estimate, bias, generator.integers(1, 9, count), mechanism)


def comparison(layout: Layout, codes: np.ndarray, seed: int, step: str = "compare") -> Comparison:
    like = selection(layout, codes, seed, MECHANISMS["gumbel"], step)
    return Comparison(step, like.candidates, like.estimate, GaussianErrors(Fraction(37, 3)))


def answered(oracle: ClearOracle, request):
    match request:
        case Selection():
            return oracle.select(request)
        case Comparison():
            return oracle.compare(request)
        case Batch():
            return oracle.measure_batch(request)
    return oracle.measure(request)


MECHANISMS = {
    "gumbel": NoisyMax.of_star(Fraction(1, 3)),
    "permute-and-flip": PermuteAndFlip(Fraction(1, 2)),
    "gaussian": Gaussian(Fraction(53, 2)),
    "wide gaussian": Gaussian(Fraction(73) ** 2),
    "laplace": Laplace(Fraction(13)),
}


def budget() -> Filter:
    return Filter(Fraction(100), UNBOUNDED)


def twin(world: World, layout: Layout, codes: np.ndarray) -> ClearOracle:
    oracle = ClearOracle(codes, layout, UNBOUNDED, budget(), WorldBits(world), PATH)
    oracle.answers()
    return oracle


async def run_steps(ctx, counts, layout, requests, wanted=()):
    steps = Steps(ctx.step("run"), layout, UNBOUNDED, counts)
    await steps.prepare()
    await steps.pool.fill(steps.run, wanted)
    results = []
    for request in requests:
        match request:
            case Selection():
                results.append(np.array(await steps.select(request)))
            case Comparison():
                results.append(await steps.compare(request))
            case Batch():
                results.append(await steps.measure_batch(request))
            case _:
                results.append(await steps.measure(request))
    assert len(steps.pool) == 0
    return tuple(results)


def shared_counts(layout: Layout, codes: np.ndarray) -> np.ndarray:
    return layout.marginals(codes).astype(np.uint64)


@settings(deadline=None, max_examples=8)
@given(st.integers(0, 2**32), st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(0, 60))
def test_steps_equal_the_clear_twin_bit_for_bit(seed: int, sizes: list[int], rows: int) -> None:
    layout, codes = table(seed, rows, sizes)
    clique = layout.cliques[seed % len(layout.cliques)]
    requests = [
        selection(layout, codes, seed, MECHANISMS["gumbel"], "one"),
        Measurement("two", clique, MECHANISMS["gaussian"]),
        selection(layout, codes, seed + 1, MECHANISMS["permute-and-flip"], "three"),
        Measurement("four", clique, MECHANISMS["wide gaussian"], draws=layout.domain.cells(clique) + 7),
        Measurement("five", clique, MECHANISMS["laplace"]),
        comparison(layout, codes, seed, "six"),
        Batch("seven", layout.cliques, 1 + np.arange(len(layout.cliques)) % 3 * 40, GaussianBatch(Fraction(1, 2))),
    ]
    world = World(seed % 1000)
    got = world.run(run_steps, shared_counts(layout, codes), layout, requests).value
    oracle = twin(world, layout, codes)
    for request, value in zip(requests, got, strict=True):
        assert np.array_equal(value, answered(oracle, request))


@pytest.mark.parametrize("case", ["aim", "mwem", "mwem, pure", "mst", "swift"])
def test_a_run_on_a_thousandth_of_epsilon_equals_the_clear_twin(case: str) -> None:
    """Noise as wide as ten thousand persons, in every step of a run."""
    name, _, pure = case.partition(", ")
    domain, epsilon = domain_of(3, 2, 2), Fraction(1, 1000)
    budget = {"pure_epsilon": epsilon} if pure else {"rho": calibrate(epsilon, Fraction(1, 10**9))}
    task, chosen, codes = task_of(domain, UNBOUNDED, **budget), algorithm(name), rows_of(domain, 3, 200)
    world, oracle = World(11), clear_oracle(chosen, task, codes)
    oracle.bits, oracle.path = WorldBits(world), PATH
    done = run(chosen, task, oracle, BruteForce(domain, steps=10))
    scales = [request.mechanism.scale(1, UNBOUNDED) for request in done.requests if isinstance(request, Selection)]
    scales += [request.mechanism.deviation for request in done.requests if isinstance(request, Comparison)]
    assert min(scales) > 10_000
    got = world.run(run_steps, shared_counts(oracle.layout, codes), oracle.layout, done.requests).value
    assert all(np.array_equal(one, other) for one, other in zip(got, done.results, strict=True))


def test_a_filled_pool_changes_no_result_and_takes_the_noise_offline() -> None:
    layout, codes = table(5, 200, [5] * 9)
    assert len(layout.cliques) == 45
    clique, largest = layout.cliques[-1], 25
    select = selection(layout, codes, 5, NoisyMax.of_star(Fraction(1, 10)))
    measure = Measurement("measure", clique, Gaussian(Fraction(73) ** 2), draws=largest)
    others = [Gaussian(Fraction(73) ** 2 / 4), Gaussian(Fraction(61))]  # sigma, sigma / 2 and the last round's
    wanted = [
        Wanted("select", select.plan(UNBOUNDED), 45),
        *(Wanted("measure", Measurement("", clique, m).plan(), largest) for m in (measure.mechanism, *others)),
    ]
    counts = shared_counts(layout, codes)
    pooled = World(6).run(run_steps, counts, layout, [select, measure], wanted)
    on_demand = World(6).run(run_steps, counts, layout, [select, measure])
    for one, other in zip(pooled.value, on_demand.value, strict=True):
        assert np.array_equal(one, other)

    async def offline(ctx, counts):
        steps = Steps(ctx.step("run"), layout, UNBOUNDED, counts)
        await steps.prepare()
        await steps.pool.fill(steps.run, wanted)
        return np.array(0)

    assert pooled.rounds - World(6).run(offline, counts).rounds == 30 + 1  # the selection, and the opening


def test_noise_drawn_in_the_rounds_of_a_selection_is_the_same_and_takes_none_of_its_own() -> None:
    layout, codes = table(5, 200, [5] * 9)
    select = selection(layout, codes, 5, NoisyMax.of_star(Fraction(1, 10)))
    measure = Measurement("measure", layout.cliques[-1], Gaussian(Fraction(73) ** 2))
    counts = shared_counts(layout, codes)

    async def run(ctx, counts, ahead):
        steps = Steps(ctx.step("run"), layout, UNBOUNDED, counts)
        await steps.prepare()
        await steps.pool.fill(steps.run, [Wanted("select", select.plan(UNBOUNDED), 45)])
        selected = np.array(await steps.select(select, ahead))
        return selected, await steps.measure(measure)

    ahead = World(6).run(run, counts, [Wanted("measure", measure.plan(), 25)])
    on_demand = World(6).run(run, counts, [])
    for one, other in zip(ahead.value, on_demand.value, strict=True):
        assert np.array_equal(one, other)
    drawing = World(6).run(lambda ctx: draw_noise(ctx, measure.plan(), 25))
    assert on_demand.rounds - ahead.rounds == drawing.rounds > 5


def test_noise_serves_once() -> None:
    layout, codes = table(3, 50, [3, 4])
    request = Measurement("m", layout.cliques[0], MECHANISMS["gaussian"])
    for wanted in ((), [Wanted("m", request.plan(), 3)]):
        with pytest.raises(Failed) as caught:
            World(1).run(run_steps, shared_counts(layout, codes), layout, [request, request], wanted)
        assert any(isinstance(error, LabelReused) for error in caught.value.errors)


def test_a_pool_is_bounded_and_refuses_before_it_draws() -> None:
    plan = Measurement("", ("a0",), MECHANISMS["gaussian"]).plan()

    async def overfill(ctx):
        await NoisePool(limit=10).fill(ctx, [Wanted("a", plan, 6), Wanted("b", plan, 5)])

    recorder = Recorder()
    with pytest.raises(Failed) as caught:
        World(1, interceptor=recorder).run(overfill)
    assert any(isinstance(error, DomainError) and "no room" in str(error) for error in caught.value.errors)
    assert recorder.messages == []


def test_too_little_pooled_noise_is_refused() -> None:
    layout, codes = table(3, 50, [3, 4])
    request = Measurement("m", layout.cliques[2], MECHANISMS["gaussian"])
    with pytest.raises(Failed) as caught:
        World(1).run(run_steps, shared_counts(layout, codes), layout, [request], [Wanted("m", request.plan(), 3)])
    assert any(isinstance(error, DomainError) and "are needed" in str(error) for error in caught.value.errors)


def test_every_step_is_charged_before_it_is_answered() -> None:
    layout, codes = table(1, 30, [3, 4])
    oracle = ClearOracle(codes, layout, UNBOUNDED, Filter(Fraction(1, 100), UNBOUNDED))
    oracle.answers()
    oracle.measure(Measurement("a", ("a0",), Gaussian(Fraction(100))))
    spent = oracle.budget.spent
    assert Fraction(1, 200) <= spent < Fraction(1, 200) + Fraction(1, 10**12)
    for request in (
        lambda: oracle.measure(Measurement("b", ("a0",), Gaussian(Fraction(50)))),
        lambda: oracle.select(selection(layout, codes, 1, NoisyMax.of_star(Fraction(1)))),
        lambda: oracle.compare(comparison(layout, codes, 1)),
        lambda: oracle.measure_batch(Batch("c", (("a0",),), np.array([1]), GaussianBatch(Fraction(1, 2)))),
    ):
        with pytest.raises(BudgetExceeded):
            request()
    assert oracle.budget.spent == spent


BAD_SELECTIONS = {
    "no candidates": {"candidates": ()},
    "too few estimates": {"estimate": np.zeros(1, np.int64)},
    "too few biases": {"bias": np.zeros(1, np.int64)},
    "floats": {"bias": np.zeros(3)},
    "no weight": {"weights": np.zeros(3, np.int64)},
    "overflow": {"weights": np.full(3, 1 << 40)},
    "unknown clique": {"candidates": (("zz",), ("a0",), ("a1",))},
}


@pytest.mark.parametrize("name", BAD_SELECTIONS)
def test_selections_that_do_not_fit_are_refused_before_anything_is_sent(name: str) -> None:
    layout, codes = table(3, 50, [3, 4])
    good = selection(layout, codes, 1, MECHANISMS["gumbel"])
    fields = {f: getattr(good, f) for f in ("candidates", "estimate", "bias", "weights")} | BAD_SELECTIONS[name]
    bad = Selection("select", mechanism=good.mechanism, **fields)
    with pytest.raises(DomainError):
        twin(World(1), layout, codes).select(bad)


def test_only_the_index_of_a_selection_is_opened() -> None:
    """With the counts in one cell far from the estimate, or all as estimated, the opened messages have one size."""
    layout, codes = table(3, 50, [3, 4])
    sizes = []
    for rows in (codes, codes[:0]):
        recorder = Recorder()
        request = selection(layout, codes, 1, MECHANISMS["gumbel"])
        World(1, interceptor=recorder).run(run_steps, shared_counts(layout, rows), layout, [request])
        sizes.append([(m.source, m.dest, len(m.payload)) for m in recorder.messages])
    assert sizes[0] == sizes[1]
    assert max(size for *_, size in sizes[0][-6:]) == 16  # one plane of 8 bytes and a digest: the index, no score
