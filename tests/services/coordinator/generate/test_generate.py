import json
import subprocess
import sys
from itertools import combinations

import numpy as np
import pytest

from caps.data.domain import Attribute, Domain, Layout
from caps.data.junction import junction_tree, model_bytes
from caps.dp.effort import PRIOR_FITS, fit_seconds
from caps.errors import DomainError
from services.coordinator.estimation import Measured
from services.coordinator.generate import create_estimator, load_model, loss
from services.coordinator.generate.absence import Absence
from services.coordinator.generate.model import TreeModel
from services.coordinator.generate.pace import Pace
from services.coordinator.generate.storage import MAGIC

FIVE = Domain(tuple(Attribute(name, size) for name, size in zip("abcde", (3, 2, 4, 2, 3), strict=True)))
CYCLE = (("a", "b"), ("b", "c"), ("c", "d"), ("a", "d"))


def noisy(domain, cliques, sigma, seed=0, rows=1000):
    rng = np.random.default_rng(seed)
    codes = np.stack([rng.binomial(size - 1, 0.3 + 0.4 * (rng.random(rows) < 0.5)) for size in domain.sizes], axis=1)
    codes[:, 1] = np.minimum(codes[:, 0], domain.sizes[1] - 1)
    counts = [Layout(domain, (clique,)).marginals(codes) for clique in cliques]
    return [Measured(c, y + sigma * rng.normal(size=y.size), sigma) for c, y in zip(cliques, counts, strict=True)]


def kernel(domain=FIVE, **limits):
    return create_estimator("kernel", domain, **limits)


def test_fits_tell_how_long_the_next_one_takes_on_this_machine(monkeypatch: pytest.MonkeyPatch):
    estimator, measured = kernel(), noisy(FIVE, CYCLE, 5.0)
    by_law = fit_seconds(sum(FIVE.cells_of(junction_tree(FIVE, CYCLE).cliques)), sum(FIVE.cells_of(CYCLE)))
    assert estimator.fit_seconds([*CYCLE, CYCLE[0]]) == pytest.approx(by_law)  # nothing is known yet
    clock = iter([0.0, 3 * by_law, 100.0, 100.0 + 3 * by_law])
    monkeypatch.setattr("services.coordinator.generate.kernel.perf_counter", lambda: next(clock))
    for _ in range(2):
        estimator.smoothed(estimator.fit(measured), measured)
        assert estimator.fit_seconds(CYCLE) == pytest.approx(3 * by_law)
        assert estimator.fit_seconds(CYCLE, prior=True) == pytest.approx(PRIOR_FITS * 3 * by_law)
    assert estimator.fit_seconds(CYCLE[:1]) < estimator.fit_seconds(CYCLE)


def test_later_fits_count_more_than_earlier_ones():
    pace = Pace()
    for _ in range(30):
        pace.took(1.0, 1.0)
    for _ in range(5):
        pace.took(4.0, 1.0)
    assert 2.5 < pace.seconds(1.0) < 4


@pytest.fixture(scope="module")
def model():
    return kernel().fit(noisy(FIVE, CYCLE, 5.0))


def test_one_measurement_is_projected_onto_the_simplex():
    y = np.array([50.0, 30.0, -20.0])
    fitted = kernel(tolerance=1e-12, iterations=20_000).fit([Measured(("a",), y, 1.0)], total=60.0)
    # Euclidean projection: add (60 - 80) / 2 to the cells that stay positive
    assert np.allclose(fitted.marginal(["a"]), [40, 20, 0], atol=0.01)
    assert fitted.marginal(["e"]) == pytest.approx(20)


def test_consistent_measurements_are_met_exactly():
    measured = noisy(FIVE, CYCLE, 1e-6)
    fitted = kernel(tolerance=0, iterations=5000).fit([Measured(m.clique, m.values, 1.0) for m in measured])
    for one in measured:
        assert np.abs(fitted.marginal(one.clique).ravel() - one.values).max() < 0.5


def test_repeated_measurements_count_by_inverse_variance():
    twice = [Measured(("a",), [10.0, 20, 30], 1.0), Measured(("a",), [20.0, 20, 20], 2.0)]
    once = [Measured(("a",), [12.0, 20, 28], (4 / 5) ** 0.5)]
    exact = kernel(tolerance=0)
    assert np.allclose(exact.fit(twice).marginal(["a"]), exact.fit(once).marginal(["a"]), atol=1e-6)


def test_the_total_is_estimated_by_inverse_variance_unless_given():
    measured = [Measured(("a",), [10.0, 20, 30], 1.0), Measured(("b",), [50.0, 50], 3.0)]
    weights = 1 / np.array([3.0, 18.0])
    assert kernel().fit(measured).total == pytest.approx(np.average([60, 100], weights=weights))
    assert kernel().fit(measured, total=7).total == 7
    assert kernel().fit([]).total == 1


def test_a_warm_start_changes_the_way_not_the_optimum():
    measured, exact = noisy(FIVE, [*CYCLE, ("c", "e")], 20.0), kernel(tolerance=0, iterations=5000)
    cold, first = exact.fit(measured), exact.fit(measured[:2])
    warm = exact.fit(measured, warm_start=first)
    assert loss(warm, measured) == pytest.approx(loss(cold, measured), rel=1e-4)
    for pair in combinations(FIVE.names, 2):
        assert np.abs(warm.marginal(pair) - cold.marginal(pair)).max() < 1


def test_a_warm_start_gives_back_what_an_earlier_measurement_denied():
    denied = [Measured(("a",), [500.0, 500.0, -400.0], 100.0), Measured(("b",), [700.0, -100.0], 100.0)]
    later = [*denied, Measured(("a", "b"), [150.0, 150.0, 150.0, 150.0, 200.0, 200.0], 5.0)]
    exact = kernel(iterations=3000, tolerance=0)
    warm, cold = exact.fit(later, warm_start=exact.fit(denied)), exact.fit(later)
    assert loss(warm, later) == pytest.approx(loss(cold, later), rel=1e-4)


def test_without_iterations_the_warm_start_is_kept_on_another_tree(model):
    again = kernel(iterations=0).fit(
        noisy(FIVE, [*CYCLE, ("a", "c"), ("d", "e")], 5.0), total=model.total, warm_start=model
    )
    for pair in combinations(FIVE.names, 2):
        assert np.allclose(again.marginal(pair), model.marginal(pair))


@pytest.mark.parametrize("iterations", range(1, 40))
def test_marginals_and_potentials_agree_wherever_a_fit_ends(iterations):
    fitted = kernel(iterations=iterations).fit(noisy(FIVE, CYCLE, 5.0))
    again = TreeModel.from_potentials(Absence(FIVE), fitted.total, fitted.potentials())
    assert np.allclose(fitted.marginal(FIVE.names), again.marginal(FIVE.names))


def test_a_warm_start_saves_iterations():
    measured = noisy(FIVE, CYCLE, 5.0)
    fitted = kernel().fit(measured)
    assert 0 < kernel().fit(measured, warm_start=fitted).iterations < fitted.iterations


def rounds_of(seed):
    """A domain, and measurements as a run makes them: columns, then pairs with less and less noise."""
    rng = np.random.default_rng(seed)
    domain = Domain(tuple(Attribute(f"x{i}", int(size)) for i, size in enumerate(rng.integers(2, 9, 8))))
    pairs = list(combinations(domain.names, 2))
    chosen = [pairs[i] for i in rng.choice(len(pairs), 12, replace=False)]
    columns = noisy(domain, [(name,) for name in domain.names], 40.0, seed)
    return domain, columns, [noisy(domain, [pair], 40.0 * 0.8**k, seed)[0] for k, pair in enumerate(chosen)]


@pytest.mark.parametrize("seed", range(4))
def test_every_fit_of_a_run_has_the_least_loss_within_a_thousandth(seed):
    domain, measured, pairs = rounds_of(seed)
    fitted, taken = kernel(domain).fit(measured), []
    for pair in pairs:
        measured = [*measured, pair]
        fitted = kernel(domain).fit(measured, warm_start=fitted)
        least = kernel(domain, tolerance=0, iterations=4000).fit(measured, warm_start=fitted)
        assert loss(fitted, measured) <= 1.001 * loss(least, measured)
        taken.append(fitted.iterations)
    assert max(taken) < 500  # half of what a fit may take


@pytest.mark.parametrize("seed", range(3))
def test_rough_fits_take_less_and_miss_less_than_noise_could_tell(seed):
    domain, measured, pairs = rounds_of(seed)
    models, iterations = {True: None, False: None}, {True: 0, False: 0}
    for pair in pairs:
        measured = [*measured, pair]
        for rough, before in models.items():
            models[rough] = kernel(domain).fit(measured, warm_start=before, rough=rough)
            iterations[rough] += models[rough].iterations
        spread = np.sqrt(sum(one.values.size for one in measured) / 2)
        assert loss(models[True], measured) - loss(models[False], measured) <= 0.02 * spread
    assert iterations[True] < 0.9 * iterations[False]


def test_a_rough_fit_is_never_finer_than_the_estimators_others():
    measured = noisy(FIVE, [("a", "b"), ("b", "c")], sigma=3.0)
    coarse = kernel(tolerance=0.1)  # coarser than noise asks for
    assert coarse.fit(measured, rough=True).iterations == coarse.fit(measured).iterations


@pytest.mark.parametrize("columns", [3, 12, 64, 65])
def test_a_models_size_is_that_of_its_tree(columns):
    rng = np.random.default_rng(columns)
    domain = Domain(tuple(Attribute(f"x{i}", int(size)) for i, size in enumerate(rng.integers(2, 7, columns))))
    for related in (0, columns // 2, columns, 2 * columns):
        cliques = [domain.clique({domain.names[i] for i in rng.choice(columns, 2 + k % 2)}) for k in range(related)]
        size = kernel(domain).model_bytes(cliques)
        assert size == model_bytes(domain, cliques) == 8 * junction_tree(domain, cliques).cells


@pytest.mark.parametrize("seed", range(2))
def test_a_fit_with_a_prior_ends_where_it_should(seed):
    domain, measured, pairs = rounds_of(seed)
    measured = [*measured, *pairs]
    fitted = kernel(domain).fit(measured)
    smoothed = kernel(domain).smoothed(fitted, measured)
    exact = kernel(domain, tolerance=0, iterations=4000).smoothed(fitted, measured)
    for pair in combinations(domain.names, 2):
        assert np.abs(smoothed.marginal(pair) - exact.marginal(pair)).sum() < 0.02 * fitted.total
    assert np.abs(smoothed.marginal(pairs[0].clique) - fitted.marginal(pairs[0].clique)).sum() > 0.01 * fitted.total


@pytest.mark.drawn(1)
@pytest.mark.parametrize("seed", range(4))
def test_the_loss_is_not_above_mbis(seed):
    rng = np.random.default_rng(seed)
    domain = Domain(tuple(Attribute(f"x{i}", int(size)) for i, size in enumerate(rng.integers(2, 6, 6))))
    pairs = list(combinations(domain.names, 2))
    cliques = [(name,) for name in domain.names] + [pairs[i] for i in rng.choice(len(pairs), 7, replace=False)]
    measured = noisy(domain, cliques, 10.0, seed)
    ours, theirs = (create_estimator(name, domain, tolerance=0).fit(measured) for name in ("kernel", "mbi"))
    assert loss(ours, measured) <= 1.001 * loss(theirs, measured)
    assert ours.total == pytest.approx(theirs.total)
    for pair in pairs:
        assert np.abs(ours.marginal(pair) - theirs.marginal(pair)).max() < 2


def test_mbi_takes_a_warm_start_and_stops_early():
    measured = noisy(FIVE, CYCLE, 10.0)
    reference = create_estimator("mbi", FIVE, tolerance=1e-3)
    warm = reference.fit(measured, warm_start=reference.fit(measured[:2]))
    assert loss(warm, measured) == pytest.approx(loss(kernel().fit(measured), measured), rel=0.01)


def test_nothing_is_compiled_for_another_shape():
    from services.coordinator.generate import kernels

    for size in (2, 5):
        domain = Domain(tuple(Attribute(name, size) for name in "abcd"[:size]))
        fitted = kernel(domain).fit(noisy(domain, [("a",), ("a", "b")], 1.0))
        fitted.sample(10, where={"a": 0})
        fitted.marginals(combinations(domain.names, 2))
    for name in ("descend", "calibrate", "fold", "project", "expand"):
        assert len(getattr(kernels, name).signatures) == 1
        assert not getattr(kernels, name)._can_compile


def test_neither_numba_nor_jax_is_imported_before_it_is_needed():
    code = """
import sys
from services.coordinator.estimation import Measured
from services.coordinator.generate import create_estimator
assert not {"numba", "jax", "mbi"} & set(sys.modules)
from caps.data.domain import *
create_estimator("kernel", Domain((Attribute("a", 2),))).fit([Measured(("a",), [1.0, 2.0], 1.0)])
assert not {"jax", "mbi"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_exponential_is_the_librarys():
    from services.coordinator.generate.kernels import _exp

    x = np.concatenate(
        [[0.0, -1e-300, -708.9, -709.1, -1e9, -np.inf], -np.random.default_rng(0).exponential(100, 5000)]
    )
    y = x.copy()
    _exp(y, 0, len(y))
    normal = x > -708
    assert np.abs(y[normal] / np.exp(x[normal]) - 1).max() < 1e-15
    assert (y[~normal] < 1e-307).all()


class TestTree:
    def test_a_cycle_gets_a_chord_and_unrelated_attributes_a_root(self):
        tree = junction_tree(FIVE, CYCLE)
        assert sorted(map(len, tree.cliques)) == [1, 3, 3]
        assert tree.parents.count(-1) == 2
        assert model_bytes(FIVE, CYCLE) == 8 * tree.cells == 8 * sum(FIVE.cells(clique) for clique in tree.cliques)

    def test_the_chord_is_the_cheaper_one(self):
        domain = Domain(tuple(Attribute(name, size) for name, size in zip("abcd", (2, 50, 2, 50), strict=True)))
        assert ("a", "b", "c") in junction_tree(domain, CYCLE).cliques

    def test_the_bound_holds_before_anything_is_allocated(self):
        domain = Domain(tuple(Attribute(f"x{i}", 1000) for i in range(8)))
        pairs = tuple(combinations(domain.names, 2))
        estimator = kernel(domain)
        assert estimator.model_bytes(pairs) == 8 * 1000**8
        measured = [Measured(pair, np.zeros(1_000_000), 1.0) for pair in pairs[:7]]
        assert estimator.model_bytes(m.clique for m in measured) == 8 * 7 * 10**6
        with pytest.raises(DomainError, match=r"56000000 bytes \(53\.4 MiB\)"):
            kernel(domain, limit=50_000_000).fit(measured)

    def test_a_marginal_that_would_not_fit_is_refused_with_its_size(self):
        domain = Domain(tuple(Attribute(f"x{i}", 1000) for i in range(8)))
        fitted = kernel(domain).fit([Measured((name,), np.ones(1000), 1.0) for name in domain.names])
        with pytest.raises(DomainError, match="1000000000000 cells"):
            fitted.marginal(domain.names[:4])


class TestSmoothing:
    def test_it_draws_noise_to_independence_and_leaves_what_was_measured_well(self):
        rng = np.random.default_rng(0)
        joint = np.outer([500.0, 300.0, 200.0], [600.0, 400.0]) / 1000
        errors = {}
        for sigma in (0.5, 100.0):
            off = []
            for _ in range(20):
                pair = Measured(("a", "b"), joint.ravel() + sigma * rng.normal(size=6), sigma)
                fitted = kernel().fit([pair], total=1000.0)
                smooth = kernel().smoothed(fitted, [pair])
                off.append([np.abs(one.marginal(("a", "b")) - joint).sum() for one in (fitted, smooth)])
            errors[sigma] = np.mean(off, axis=0)
        assert errors[100.0][1] < 0.8 * errors[100.0][0]
        assert errors[0.5][1] < 1.05 * errors[0.5][0]

    def test_dependence_that_is_beyond_the_noise_is_kept(self):
        joint = np.array([300.0, 0, 0, 300, 200, 200])
        pair = Measured(("a", "b"), joint, 5.0)
        smooth = kernel().smoothed(kernel().fit([pair]), [pair])
        assert np.abs(smooth.marginal(("a", "b")).ravel() - joint).max() < 10

    def test_total_tree_and_unmeasured_columns_stay(self, model):
        smooth = kernel().smoothed(model, noisy(FIVE, CYCLE, 5.0))
        assert (smooth.total, smooth.cliques) == (model.total, model.cliques)
        assert smooth.marginal(["e"]) == pytest.approx(model.total / 3)

    def test_the_reference_estimator_smoothes_alike(self):
        measured = noisy(FIVE, CYCLE, 10.0)
        ours, theirs = kernel(), create_estimator("mbi", FIVE)
        a, b = (one.smoothed(one.fit(measured), measured) for one in (ours, theirs))
        for pair in combinations(FIVE.names, 2):
            assert np.abs(a.marginal(pair) - b.marginal(pair)).max() < 1

    def test_what_does_not_fit_is_refused(self, model):
        with pytest.raises(DomainError):
            kernel().smoothed(model, [Measured(("a",), [1.0, 2.0], 1.0)])


class TestSampling:
    @pytest.mark.parametrize("codes", [range(4), range(3)])
    def test_pairs_that_share_no_clique_are_matched_too(self, codes):
        chain = kernel().fit(noisy(FIVE, [("a", "b"), ("b", "c"), ("c", "d"), ("d", "e")], 5.0))
        joint = np.zeros(FIVE.sizes)
        joint[:, :, codes] = chain.marginal(FIVE.names)[:, :, codes]
        apart = (("a", "c"), ("a", "d"), ("a", "e"), ("b", "d"), ("b", "e"), ("c", "e"))
        drawn = Layout(FIVE, apart).marginals(chain.sample(400, seed=1, where={"c": codes}))
        expected = np.concatenate([np.einsum(f"abcde->{x}{y}", joint).ravel() for x, y in apart]) * 400 / joint.sum()
        # Rounding is off by a quarter a cell at best; rows given at random, by 2.
        assert np.abs(drawn - expected).mean() < 0.5

    def test_exchanges_keep_what_was_measured(self, model, monkeypatch):
        from services.coordinator.generate import kernels

        exchanged = model.sample(997, seed=5)
        monkeypatch.setattr(kernels, "exchange", lambda *_: None)
        plain = model.sample(997, seed=5)
        assert not np.array_equal(exchanged, plain)
        for clique in (*CYCLE, *model.cliques):
            layout = Layout(FIVE, (clique,))
            assert np.array_equal(layout.marginals(exchanged), layout.marginals(plain))

    def test_large_tables_on_the_way_are_left_to_chance(self, model, monkeypatch):
        from services.coordinator.generate import sampling

        monkeypatch.setattr(sampling, "_CHUNK_CELLS", 1)
        assert model.sample(50, seed=1).shape == (50, 5)

    def test_rounding_keeps_the_first_clique_within_one(self, model):
        rows = model.sample(997, seed=1)
        counts = Layout(FIVE, (("e",),)).marginals(rows)
        assert np.abs(counts - model.marginal(["e"]) * 997 / model.total).max() < 1

    def test_measured_marginals_are_matched(self, model):
        rows = 200_000
        codes = model.sample(rows, seed=2)
        for clique in CYCLE:
            expected = model.marginal(clique).ravel() * rows / model.total
            assert (
                np.abs(Layout(FIVE, (clique,)).marginals(codes) - expected).max() < 40
            )  # independent draws: about 800

    def test_unrelated_attributes_stay_so(self, model):
        codes = model.sample(100_000, seed=3)
        assert abs(np.corrcoef(codes[:, 0], codes[:, 4])[0, 1]) < 0.02
        assert abs(np.corrcoef(codes[1:, 0], codes[:-1, 0])[0, 1]) < 0.02  # and so do neighbouring rows

    def test_rounding_is_unbiased(self):
        fitted = TreeModel.from_potentials(Absence(FIVE), 1.0, {("a",): np.log([0.2, 0.3, 0.5])})
        codes = np.concatenate([fitted.sample(3, seed=seed)[:, 0] for seed in range(2000)])
        assert np.abs(np.bincount(codes) / 6000 - [0.2, 0.3, 0.5]).max() < 0.02

    def test_a_seed_fixes_the_rows_and_none_does_not(self, model):
        assert np.array_equal(model.sample(50, seed="x"), model.sample(50, seed="x"))
        assert not np.array_equal(model.sample(50, seed="x"), model.sample(50, seed="y"))
        assert not np.array_equal(model.sample(50), model.sample(50))

    def test_as_many_rows_as_the_model_stands_for(self, model):
        assert model.sample().shape == (round(model.total), 5)
        assert model.sample(0).shape == (0, 5)

    def test_conditional_rows_follow_the_conditional_distribution(self, model):
        codes = model.sample(100_000, seed=4, where={"a": 1, "c": {0, 3}})
        joint = model.marginal(FIVE.names)[1][:, [0, 3]]
        assert (codes[:, 0] == 1).all()
        assert np.isin(codes[:, 2], [0, 3]).all()
        for axis, column in ((0, 1), (2, 3), (3, 4)):
            expected = joint.sum(axis=tuple(i for i in range(4) if i != axis))
            drawn = np.bincount(codes[:, column], minlength=expected.size)
            assert np.allclose(drawn / 100_000, expected / expected.sum(), atol=0.005)

    def test_conditions_on_unmeasured_attributes_and_in_both_components(self, model):
        codes = model.sample(100, where={"e": np.int64(2), "d": [1]})
        assert (codes[:, 3:] == [1, 2]).all()

    @pytest.mark.parametrize("where", [{"a": 3}, {"a": -1}, {"a": {0, 7}}, {"z": 0}, {"a": ()}])
    def test_impossible_conditions_are_refused(self, model, where):
        with pytest.raises(DomainError):
            model.sample(1, where=where)

    def test_rare_conditions_are_met(self):
        rare = TreeModel.from_potentials(Absence(FIVE), 1.0, {("a", "b"): np.array([0, 0, -900.0, 0, 0, 0])})
        assert (rare.sample(10, where={"a": 1, "b": 0})[:, :2] == [1, 0]).all()


class TestStorage:
    def test_a_model_survives_exactly(self, model, tmp_path):
        path = tmp_path / "model"
        model.save(path)
        again = load_model(path)
        assert (again.domain, again.total, again.cliques) == (model.domain, model.total, model.cliques)
        assert all(np.array_equal(again.potentials()[c], table) for c, table in model.potentials().items())
        assert np.array_equal(again.marginal(FIVE.names), model.marginal(FIVE.names))
        assert np.array_equal(again.sample(50, seed=1), model.sample(50, seed=1))
        again.save(tmp_path / "again")
        assert (tmp_path / "again").read_bytes() == path.read_bytes()
        assert sorted(file.name for file in tmp_path.iterdir()) == ["again", "model"]

    def test_a_model_of_nothing_survives(self, tmp_path):
        kernel().fit([]).save(tmp_path / "model")
        assert load_model(tmp_path / "model").marginal(["a"]) == pytest.approx(1 / 3)

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            (b"caps-model/v2", b"caps-model/v1"),
            (b'"total":', b'"totle":'),
            (b'"size":3', b'"size":4'),
            (b'"size":3', b'"size":-3'),
            (b'"size":3', b'"size":"3"'),
            (b'["a","b"]', b'["b","a"]'),
            (b'["a","b"]', b'["a","z"]'),
            (b'["a","b"]', b'["b","c"]'),
            (b'["a","b"]', b'"ab"'),
            (b'"total":"0x', b'"total":"-0x'),
            (b'"nullable":false', b'"nullable":0'),
            (b'{"attributes":', b'{"x":1,"attributes":'),
        ],
    )
    def test_another_header_is_refused(self, model, tmp_path, old, new):
        self.refused(model, tmp_path, lambda data: data.replace(old, new, 1))

    @pytest.mark.parametrize(
        "change",
        [
            lambda data: data + b"\0",
            lambda data: data[:-1],
            lambda data: data[:-8],
            lambda data: data[: len(MAGIC)],
            lambda _: b"",
            lambda data: data[:-1] + bytes([data[-1] ^ 1]),
            lambda _: MAGIC + b"[" * 100_000,
            lambda _: MAGIC + b"[]\n",
            lambda _: MAGIC + b"\xff\n",
        ],
    )
    def test_a_damaged_file_is_refused(self, model, tmp_path, change):
        self.refused(model, tmp_path, change)

    def test_potentials_that_are_no_numbers_are_refused(self, tmp_path):
        from services.coordinator.generate.storage import save_model

        save_model(tmp_path / "model", Absence(FIVE), 1.0, {("a",): np.array([0, np.nan, 0])})
        with pytest.raises(DomainError):
            load_model(tmp_path / "model")

    def test_an_absurd_size_is_refused_before_it_is_read(self, tmp_path):
        attributes = [{"name": name, "nullable": False, "size": 65_535} for name in "abcd"]
        cliques = {"cliques": [["a", "b", "c", "d"]], "groups": []}
        header = {"attributes": attributes, **cliques, "sha256": "", "total": "0x1p0"}
        (tmp_path / "model").write_bytes(MAGIC + json.dumps(header).encode() + b"\n")
        with pytest.raises(DomainError, match="bytes"):
            load_model(tmp_path / "model")

    def refused(self, model, tmp_path, change):
        model.save(tmp_path / "model")
        data = (tmp_path / "model").read_bytes()
        assert change(data) != data
        (tmp_path / "model").write_bytes(change(data))
        with pytest.raises(DomainError):
            load_model(tmp_path / "model")


@pytest.mark.parametrize(
    ("clique", "values", "sigma"),
    [
        (("a",), [1.0, 2.0], 1.0),
        (("b", "a"), np.ones(6), 1.0),
        (("a", "a"), np.ones(9), 1.0),
        (("z",), [1.0], 1.0),
        ((), [1.0], 1.0),
        (("a",), [1.0, np.nan, 2.0], 1.0),
        (("a",), [1.0, 1.0, 2.0], 0.0),
        (("a",), [1.0, 1.0, 2.0], -1.0),
        (("a",), [1.0, 1.0, 2.0], np.inf),
    ],
)
def test_measurements_that_do_not_fit_are_refused(clique, values, sigma):
    with pytest.raises(DomainError):
        kernel().fit([Measured(clique, values, sigma)])


@pytest.mark.parametrize("total", [0, -1, np.nan, np.inf])
def test_impossible_totals_are_refused(total):
    with pytest.raises(DomainError):
        kernel().fit([], total=total)


@pytest.mark.parametrize("limits", [{"limit": 0}, {"limit": 1 << 40}, {"tolerance": -1.0}, {"iterations": -1}])
def test_impossible_limits_are_refused(limits):
    with pytest.raises(DomainError):
        kernel(**limits)


def test_an_unknown_estimator_is_refused():
    with pytest.raises(DomainError, match="kernel"):
        create_estimator("pgm", FIVE)
