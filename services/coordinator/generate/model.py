"""A fitted model: potentials on a junction tree, the marginals of its cliques, and what can be asked of them.

Inside, attributes are ordered by size, the largest last: inner loops are then long. Outside, the order is the domain's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from os import PathLike

import numpy as np

from caps.basics.uniform import Uniform
from caps.data.domain import MISSING, Clique, Codes, Domain
from caps.data.junction import FLOAT_BYTES, junction_tree
from caps.data.junction import model_bytes as predicted_bytes
from caps.errors import DomainError
from services.coordinator.estimation import Floats, ImpossibleConditions, Where
from services.coordinator.generate import kernels
from services.coordinator.generate.absence import Absence
from services.coordinator.generate.fitting import MODEL_LIMIT, check_size
from services.coordinator.generate.indexing import TreeIndex, index_tree
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
    """See `estimation.Model`. `theta`: the factors' potentials; `cells`: the cliques' marginals; as `index` says.

    iterations: what the fit took.
    """

    def __init__(
        self, absence: Absence, total: float, index: TreeIndex, theta: Floats, cells: Floats, iterations: int = 0
    ) -> None:
        self.iterations = iterations
        self.absence = absence
        self.domain = absence.domain
        self.total = total
        self._index = index
        self._theta = theta
        self._cells = cells

    @classmethod
    def from_potentials(
        cls, absence: Absence, total: float, potentials: Mapping[Clique, Floats], *, limit: int = MODEL_LIMIT
    ) -> TreeModel:
        """The model proportional to exp(sum of potentials): flat tables in the wide domain's order, one per clique."""
        wide = absence.wide
        check_size(predicted_bytes(wide, potentials), limit)
        inner = by_size(wide)
        index = index_tree(junction_tree(inner, potentials), [inner.clique(clique) for clique in potentials])
        tables = [reorder(table, wide, clique, inner) for clique, table in potentials.items()]
        theta = _joined(index, tables)
        return cls(absence, total, index, theta, _calibrated(index, theta, total)[0])

    @property
    def cliques(self) -> tuple[Clique, ...]:
        """As Model.cliques."""
        own = [self.absence.inside(clique) for clique in self._index.tree.cliques]
        return tuple(self.domain.clique(clique) for clique in own if clique)

    @property
    def cells(self) -> int:
        """Of all cliques of the tree."""
        return self._cells.size

    def factors(self) -> Iterator[tuple[Clique, Floats]]:
        """Cliques and their potentials, in the inner order."""
        for k, factor in enumerate(self._index.factors):
            yield factor, self._theta[self._index.part(k)]

    def potentials(self) -> dict[Clique, Floats]:
        """Flat tables in the wide domain's order: what from_potentials takes."""
        inner, wide = self._index.tree.domain, self.absence.wide
        return {wide.clique(factor): reorder(theta, inner, factor, wide) for factor, theta in self.factors()}

    def distribution(self) -> dict[Clique, Floats]:
        """The same potentials, less what makes their exponentials sum to 1."""
        potentials = self.potentials()
        _, log_sum = _calibrated(self._index, self._theta, 1.0)
        first = next(iter(potentials))
        return potentials | {first: potentials[first] - log_sum}

    def marginal(self, clique: Iterable[str]) -> Floats:
        """As Model.marginal."""
        return self.marginals([clique])[0]

    def marginals(self, cliques: Iterable[Iterable[str]], *, limit: int = MODEL_LIMIT) -> list[Floats]:
        """As Model.marginals. Raises DomainError if a table on the way would take more than `limit` bytes."""
        wanted = [self.domain.clique(clique) for clique in cliques]
        tables = self.wide_marginals(wanted, limit=limit)
        return [self.absence.narrowed(clique, table) for clique, table in zip(wanted, tables, strict=True)]

    def wide_marginals(self, cliques: Iterable[Clique], *, limit: int = MODEL_LIMIT) -> list[Floats]:
        """The same of the wide domain, in which missing values count too."""
        inner, wide = self._index.tree.domain, self.absence.wide
        queries = Queries(self._index, self._cells, self.total, limit // FLOAT_BYTES)
        answers = []
        for clique in cliques:
            flat = queries.marginal(inner.clique(clique)).ravel()
            answers.append(reorder(flat, inner, clique, wide).reshape(wide.shape(clique)))
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
        return self.absence.marked(codes[:, [inner.position(name) for name in self.absence.wide.names]])

    def save(self, path: str | PathLike[str]) -> None:
        """As Model.save."""
        save_model(path, self.absence, self.total, self.potentials())

    def _conditioned(self, where: Where) -> Floats:
        """The cliques' marginals given `where`: potentials of minus infinity exclude all other codes."""
        factors = dict(self.factors())
        for name, codes in where.items():
            size = self.domain.sizes[self.domain.position(name)]
            allowed = {codes} if isinstance(codes, int | np.integer) else set(codes)
            lacking = {MISSING} if name in self.absence.may_lack else set()
            if not allowed <= set(range(size)) | lacking:
                raise DomainError(f"attribute {name} has codes 0 to {size - 1}; a condition names another")
            evidence = np.full(size + len(lacking), -np.inf)
            evidence[[int(code) for code in allowed]] = 0  # MISSING, -1, is the last one
            factors[name,] = factors.get((name,), 0) + evidence
        index = index_tree(self._index.tree, tuple(factors))
        return _calibrated(index, _joined(index, factors.values()), self.total)[0]


def _joined(index: TreeIndex, tables: Iterable[Floats]) -> Floats:
    theta = np.zeros(int(index.offsets[-1]))
    for k, table in enumerate(tables):
        theta[index.part(k)] = table
    return theta


def _calibrated(index: TreeIndex, theta: Floats, total: float) -> tuple[Floats, float]:
    """The cliques' marginals, and the logarithm of the sum of the potentials' exponentials."""
    folded, cells = np.empty_like(theta), np.empty(int(index.cell_offsets[-1]))
    kernels.fold(theta, folded, index.starts, index.links, index.maps)
    log_sum = kernels.calibrate(
        folded,
        total,
        np.empty(0),
        cells,
        np.empty(index.sep_cells),
        index.parents,
        index.starts,
        index.links,
        index.maps,
    )
    if log_sum == -np.inf:
        raise ImpossibleConditions("the model gives probability 0 to every row that meets these conditions")
    return cells, log_sum
