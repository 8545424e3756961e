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
from services.coordinator.estimation import Floats, Where
from services.coordinator.generate import kernels
from services.coordinator.generate.fitting import MODEL_LIMIT, check_size
from services.coordinator.generate.indexing import TreeIndex, index_tree
from services.coordinator.generate.junction import FLOAT_BYTES, junction_tree
from services.coordinator.generate.junction import model_bytes as predicted_bytes
from services.coordinator.generate.queries import Queries
from services.coordinator.generate.sampling import sample_tree
from services.coordinator.generate.storage import save_model

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
    """See `estimation.Model`. `theta`: the factors' potentials; `cells`: the cliques' marginals; as `index` says."""

    def __init__(self, domain: Domain, total: float, index: TreeIndex, theta: Floats, cells: Floats) -> None:
        self.domain = domain
        self.total = total
        self._index = index
        self._theta = theta
        self._cells = cells

    @classmethod
    def from_potentials(
        cls, domain: Domain, total: float, potentials: Mapping[Clique, Floats], *, limit: int = MODEL_LIMIT
    ) -> TreeModel:
        """The model proportional to exp(sum of potentials): flat tables in domain order, one for each clique."""
        check_size(predicted_bytes(domain, potentials), limit)
        inner = by_size(domain)
        index = index_tree(junction_tree(inner, potentials), [inner.clique(clique) for clique in potentials])
        tables = [reorder(table, domain, clique, inner) for clique, table in potentials.items()]
        theta = _joined(index, tables)
        return cls(domain, total, index, theta, _calibrated(index, theta, total))

    @property
    def cliques(self) -> tuple[Clique, ...]:
        """As Model.cliques."""
        return tuple(self.domain.clique(clique) for clique in self._index.tree.cliques)

    def factors(self) -> Iterator[tuple[Clique, Floats]]:
        """Cliques and their potentials, in the inner order."""
        for k, factor in enumerate(self._index.factors):
            yield factor, self._theta[self._index.part(k)]

    def potentials(self) -> dict[Clique, Floats]:
        """Flat tables in domain order: what from_potentials takes."""
        inner = self._index.tree.domain
        return {
            self.domain.clique(factor): reorder(theta, inner, factor, self.domain) for factor, theta in self.factors()
        }

    def marginal(self, clique: Iterable[str]) -> Floats:
        """As Model.marginal."""
        return self.marginals([clique])[0]

    def marginals(self, cliques: Iterable[Iterable[str]], *, limit: int = MODEL_LIMIT) -> list[Floats]:
        """As Model.marginals. Raises DomainError if a table on the way would take more than `limit` bytes."""
        inner = self._index.tree.domain
        queries = Queries(self._index, self._cells, self.total, limit // FLOAT_BYTES)
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
        inner = self._index.tree.domain
        cells = self._conditioned(where) if where else self._cells
        codes = sample_tree(self._index, cells, self.total, count, Uniform(seed))
        return np.ascontiguousarray(codes[:, [inner.position(name) for name in self.domain.names]])

    def save(self, path: str | PathLike[str]) -> None:
        """As Model.save."""
        save_model(path, self.domain, self.total, self.potentials())

    def _conditioned(self, where: Where) -> Floats:
        """The cliques' marginals given `where`: potentials of minus infinity exclude all other codes."""
        inner = self._index.tree.domain
        factors = dict(self.factors())
        for name, codes in where.items():
            size = inner.sizes[inner.position(name)]
            allowed = {codes} if isinstance(codes, int | np.integer) else set(codes)
            if not allowed <= set(range(size)):
                raise DomainError(f"attribute {name} has codes 0 to {size - 1}; a condition names another")
            evidence = np.full(size, -np.inf)
            evidence[[int(code) for code in allowed]] = 0
            factors[name,] = factors.get((name,), 0) + evidence
        index = index_tree(self._index.tree, tuple(factors))
        return _calibrated(index, _joined(index, factors.values()), self.total)


def _joined(index: TreeIndex, tables: Iterable[Floats]) -> Floats:
    theta = np.zeros(int(index.offsets[-1]))
    for k, table in enumerate(tables):
        theta[index.part(k)] = table
    return theta


def _calibrated(index: TreeIndex, theta: Floats, total: float) -> Floats:
    folded, cells = np.empty_like(theta), np.empty(int(index.cell_offsets[-1]))
    kernels.fold(theta, folded, index.starts, index.links, index.maps)
    log_sum = kernels.calibrate(
        folded, total, cells, np.empty(index.sep_cells), index.parents, index.starts, index.links, index.maps
    )
    if log_sum == -np.inf:
        raise DomainError("the model gives probability 0 to every row that meets these conditions")
    return cells
