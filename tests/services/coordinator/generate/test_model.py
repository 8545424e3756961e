from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caps.data.domain import Attribute, Domain
from caps.data.junction import junction_tree, model_bytes
from services.coordinator.estimation import Measured
from services.coordinator.generate import create_estimator, indexing
from services.coordinator.generate.absence import Absence
from services.coordinator.generate.fitting import merge_measurements
from services.coordinator.generate.kernel import PRIOR_WEIGHT
from services.coordinator.generate.model import TreeModel
from services.coordinator.generate.signal import measured_columns, prior_weight, trust_in_columns

pytestmark = pytest.mark.property


@st.composite
def problems(draw):
    """A small domain and some cliques: cycles, nested ones, unrelated attributes, or none at all."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=6))
    domain = Domain(tuple(Attribute(f"x{i}", size) for i, size in enumerate(sizes)))
    subsets = st.sets(st.sampled_from(domain.names), min_size=1, max_size=4).map(domain.clique)
    return domain, draw(st.lists(subsets, max_size=8, unique=True)), draw(st.integers(0, 2**32))


def joint_of(domain, potentials, total):
    log = np.zeros(domain.sizes)
    for clique, table in potentials.items():
        log = log + table.reshape(aligned(domain, clique))
    joint = np.exp(log - log.max())
    return total * joint / joint.sum()


def aligned(domain, clique):
    """The shape in which a table over a clique is broadcast to the whole domain."""
    return [n if name in clique else 1 for name, n in zip(domain.names, domain.sizes, strict=True)]


def noisy_uniform(problem, sigma):
    """Each clique of a problem as if 100 people were spread evenly, with Gaussian noise."""
    domain, cliques, seed = problem
    rng = np.random.default_rng(seed)
    cells = [domain.cells(clique) for clique in cliques]
    return [Measured(c, 100 / n + sigma * rng.normal(size=n), sigma) for c, n in zip(cliques, cells, strict=True)]


def summed(domain, joint, clique):
    return joint.sum(axis=tuple(i for i, name in enumerate(domain.names) if name not in clique))


@given(problems(), st.sampled_from([1.0, 30.0]), st.sampled_from([1, 1 << 10]))
@settings(max_examples=60, deadline=None)
def test_every_marginal_is_that_of_the_joint_distribution(problem, spread, worth_splitting):
    domain, cliques, seed = problem
    rng = np.random.default_rng(seed)
    potentials = {clique: spread * rng.normal(size=domain.cells(clique)) for clique in cliques}
    before, indexing._WORTH_SPLITTING = indexing._WORTH_SPLITTING, worth_splitting
    try:
        model = TreeModel.from_potentials(Absence(domain), 100.0, potentials)
    finally:
        indexing._WORTH_SPLITTING = before
    joint = joint_of(domain, potentials, 100.0)
    queries = [part for degree in range(1, len(domain.names) + 1) for part in combinations(domain.names, degree)]
    for query, marginal in zip(queries, model.marginals(queries), strict=True):
        assert marginal.shape == domain.shape(query)
        assert np.allclose(marginal, summed(domain, joint, query), rtol=1e-8, atol=1e-10)
    assert np.allclose(model.marginal(queries[-1]), joint, rtol=1e-8, atol=1e-10)


@given(problems())
@settings(max_examples=15, deadline=None)
def test_a_fit_is_as_good_as_mirror_descent_on_the_joint_distribution(problem):
    (domain, cliques, _), measured = problem, noisy_uniform(problem, 10.0)
    model = create_estimator("kernel", domain, tolerance=1e-7, iterations=5000).fit(measured, total=100.0)
    log, step = np.zeros(domain.sizes), 0.9 / max(1, len(cliques))
    for _ in range(1500):
        joint = np.exp(log - log.max())
        joint *= 100 / joint.sum()
        for one in measured:
            shape = aligned(domain, one.clique)
            log = log - step * (summed(domain, joint, one.clique).reshape(shape) - one.values.reshape(shape)) / 100

    def loss(distribution):
        return sum(0.005 * np.square(summed(domain, distribution, m.clique).ravel() - m.values).sum() for m in measured)

    assert loss(model.marginal(domain.names)) <= loss(joint) * 1.001 + 1e-3
    for one in measured:
        assert np.abs(model.marginal(one.clique) - summed(domain, joint, one.clique)).max() < 2.5


@given(problems())
@settings(max_examples=15, deadline=None)
def test_a_smoothed_fit_is_the_most_probable_distribution(problem):
    """Loss plus w KL(p || q), q being the prior: by exponentiated gradients on p."""
    (domain, cliques, _), measured = problem, noisy_uniform(problem, 20.0)
    estimator = create_estimator("kernel", domain, tolerance=1e-9, iterations=5000)
    start = estimator.fit(measured, total=100.0)
    merged = merge_measurements(Absence(domain), measured, 100.0, 1 << 30)
    columns = measured_columns(domain, merged, dict.fromkeys(domain.names, 100.0))
    weight = prior_weight(start, merged, trust_in_columns(columns), PRIOR_WEIGHT)
    model = estimator.smoothed(start, measured)
    log = np.zeros(domain.sizes)
    for clique, potentials in estimator.prior(start, merged, columns).items():
        log = log + potentials.reshape(aligned(domain, clique))
    prior = np.exp(log)
    assert prior.sum() == pytest.approx(1)

    def objective(p):
        squares = sum(np.square(summed(domain, 100 * p, m.clique).ravel() - m.values).sum() for m in measured)
        return squares / 800 + weight * np.sum(p * np.log(np.maximum(p, 1e-300) / prior))

    p, rate = prior.copy(), 1 / (weight + 25 * max(1, len(cliques)))
    for _ in range(1500):
        gradient = weight * np.log(np.maximum(p, 1e-300) / prior)
        for m in measured:
            gap = summed(domain, 100 * p, m.clique).ravel() - m.values
            gradient = gradient + (gap / 4).reshape(aligned(domain, m.clique))
        p = p * np.exp(-rate * (gradient - gradient.min()))
        p /= p.sum()
    found = model.marginal(domain.names) / 100
    assert objective(found) <= objective(p) + 1e-3 * max(1, abs(objective(p)))
    assert np.abs(found - p).max() < 0.01


@given(problems())
def test_a_junction_tree_has_the_running_intersection_property(problem):
    domain, cliques, _ = problem
    tree = junction_tree(domain, cliques)
    assert all(any(set(clique) <= set(home) for home in tree.cliques) for clique in cliques)
    assert set().union(*tree.cliques) == set(domain.names)
    assert not any(set(one) < set(other) for one in tree.cliques for other in tree.cliques)
    assert len(set(tree.cliques)) == len(tree.cliques)
    assert model_bytes(domain, cliques) == 8 * tree.cells
    for k, (clique, parent, separator) in enumerate(zip(tree.cliques, tree.parents, tree.separators, strict=True)):
        assert parent < k
        earlier = set().union(*tree.cliques[:k])
        assert set(clique) & earlier == set(separator)
        assert set(separator) <= (set(tree.cliques[parent]) if parent >= 0 else set())


@given(problems(), st.integers(0, 200))
@settings(max_examples=30, deadline=None)
def test_rows_are_rounded_expectations_clique_by_clique(problem, rows):
    domain, cliques, seed = problem
    rng = np.random.default_rng(seed)
    model = TreeModel.from_potentials(Absence(domain), 1.0, {c: rng.normal(size=domain.cells(c)) for c in cliques})
    codes = domain.check_codes(model.sample(rows, seed=seed))
    assert codes.shape == (rows, len(domain.names))
    root = junction_tree(Domain(tuple(sorted(domain.attributes, key=lambda a: a.size))), cliques).cliques[0]
    root = domain.clique(root)
    counts = np.zeros(domain.shape(root))
    np.add.at(counts, tuple(codes[:, domain.position(name)] for name in root), 1)
    assert np.abs(counts - rows * model.marginal(root)).max() < 1 + 1e-6
