"""A fitted model: potentials on a junction tree, the marginals of its cliques, and what can be asked of them.

Inside, attributes are ordered by size, the largest last: inner loops are then long. Outside, the order is the domain's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from os import PathLike

import numpy as np

from caps.basics.uniform import Uniform
from caps.data.domain import Clique, Codes, Domain
from caps.errors import DomainError
from services.coordinator.generate import kernels
from services.coordinator.generate.estimator import MODEL_LIMIT, Where, check_size
from services.coordinator.generate.junction import FLOAT_BYTES, junction_tree
from services.coordinator.generate.junction import model_bytes as predicted_bytes
from services.coordinator.generate.plan import Plan, make_plan
from services.coordinator.generate.queries import Queries
from services.coordinator.generate.sampling import sample_tree
from services.coordinator.measured import Floats

MAX_SAMPLE = 1 << 31


def by_size(domain: Domain) -> Domain:
    """The same attributes, smallest first."""
    return Domain(tuple(sorted(domain.attributes, key=lambda attribute: attribute.size)))


def reorder(flat: Floats, domain: Domain, clique: Iterable[str], other: Domain) -> Floats:
    """A flat table over `clique` in the order of `domain`, in the order of `other`."""
    names = domain.clique(clique)
    axes = [names.index(name) for name in other.clique(names)]
    return np.ascontiguousarray(flat.reshape(domain.shape(names)).transpose(axes)).ravel()


class TreeModel:
    """See estimator.Model. `theta` are the factors' potentials and `cells` the cliques' marginals, as `plan` says."""

    def __init__(self, domain: Domain, total: float, plan: Plan, theta: Floats, cells: Floats) -> None:
        self.domain = domain
        self.total = total
        self._plan = plan
        self._theta = theta
        self._cells = cells

    @classmethod
    def from_potentials(
        cls, domain: Domain, total: float, potentials: Mapping[Clique, Floats], *, limit: int = MODEL_LIMIT
    ) -> TreeModel:
        """The model proportional to exp(sum of potentials): flat tables in domain order, one for each clique."""
        check_size(predicted_bytes(domain, potentials), limit)
        inner = by_size(domain)
        plan = make_plan(junction_tree(inner, potentials), [inner.clique(clique) for clique in potentials])
        tables = [reorder(table, domain, clique, inner) for clique, table in potentials.items()]
        theta = _joined(plan, tables)
        return cls(domain, total, plan, theta, _calibrated(plan, theta, total))

    @property
    def cliques(self) -> tuple[Clique, ...]:
        """As Model.cliques."""
        return tuple(self.domain.clique(clique) for clique in self._plan.tree.cliques)

    def factors(self) -> Iterator[tuple[Clique, Floats]]:
        """Cliques and their potentials, in the inner order."""
        for k, factor in enumerate(self._plan.factors):
            yield factor, self._theta[self._plan.part(k)]

    def potentials(self) -> dict[Clique, Floats]:
        """Flat tables in domain order: what from_potentials takes."""
        inner = self._plan.tree.domain
        return {
            self.domain.clique(factor): reorder(theta, inner, factor, self.domain) for factor, theta in self.factors()
        }

    def marginal(self, clique: Iterable[str]) -> Floats:
        """As Model.marginal."""
        return self.marginals([clique])[0]

    def marginals(self, cliques: Iterable[Iterable[str]], *, limit: int = MODEL_LIMIT) -> list[Floats]:
        """As Model.marginals. Raises DomainError if a table on the way would take more than `limit` bytes."""
        inner = self._plan.tree.domain
        queries = Queries(self._plan, self._cells, self.total, limit // FLOAT_BYTES)
        answers = []
        for clique in cliques:
            wanted = self.domain.clique(clique)
            flat = queries.marginal(inner.clique(wanted)).ravel()
            answers.append(reorder(flat, inner, wanted, self.domain).reshape(self.domain.shape(wanted)))
        return answers

    def sample(
        self, rows: int | None = None, *, seed: int | str | bytes | None = None, where: Where | None = None
    ) -> Codes:
        """As Model.sample."""
        count = round(self.total) if rows is None else rows
        if not 0 <= count < MAX_SAMPLE:
            raise DomainError(f"cannot draw {count} rows")
        inner = self._plan.tree.domain
        cells = self._conditioned(where) if where else self._cells
        codes = sample_tree(self._plan, cells, self.total, count, Uniform(seed))
        return np.ascontiguousarray(codes[:, [inner.position(name) for name in self.domain.names]])

    def save(self, path: str | PathLike[str]) -> None:
        """As Model.save."""
        from services.coordinator.generate.storage import save_model

        save_model(path, self.domain, self.total, self.potentials())

    def _conditioned(self, where: Where) -> Floats:
        """The cliques' marginals given `where`: potentials of minus infinity exclude all other codes."""
        inner = self._plan.tree.domain
        factors = dict(self.factors())
        for name, codes in where.items():
            size = inner.sizes[inner.position(name)]
            allowed = {codes} if isinstance(codes, int | np.integer) else set(codes)
            if not allowed <= set(range(size)):
                raise DomainError(f"attribute {name} has codes 0 to {size - 1}")
            evidence = np.full(size, -np.inf)
            evidence[[int(code) for code in allowed]] = 0
            factors[name,] = factors.get((name,), 0) + evidence
        plan = make_plan(self._plan.tree, tuple(factors))
        return _calibrated(plan, _joined(plan, factors.values()), self.total)


def _joined(plan: Plan, tables: Iterable[Floats]) -> Floats:
    theta = np.zeros(int(plan.offsets[-1]))
    for k, table in enumerate(tables):
        theta[plan.part(k)] = table
    return theta


def _calibrated(plan: Plan, theta: Floats, total: float) -> Floats:
    folded, cells = np.empty_like(theta), np.empty(int(plan.cell_offsets[-1]))
    kernels.fold(theta, folded, plan.starts, plan.links, plan.maps)
    log_sum = kernels.calibrate(
        folded, total, cells, np.empty(plan.sep_cells), plan.parents, plan.starts, plan.links, plan.maps
    )
    if log_sum == -np.inf:
        raise DomainError("the model gives no row like that any probability")
    return cells
