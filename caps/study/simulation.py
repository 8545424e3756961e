"""A study's algorithm on invented rows, in the clear: what its budget buys on a table of this shape.

The loop, the noise and the estimator are those of a run; only the rows are invented, and nobody computes on shares.
Each invented column mostly follows the one before it, so that there is something to find. No value is missing. The
coordinator's part is not imported here: it is found by its entry point.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from time import perf_counter

import numpy as np

from caps.basics.uniform import Uniform
from caps.data.domain import Clique, Codes, Domain, Layout
from caps.data.quality import marginals_error
from caps.dp.clear import ClearOracle
from caps.dp.oracle import Oracle
from caps.dp.privacy import Filter
from caps.errors import DomainError
from caps.study.manifest import Manifest
from caps.study.planning import Performed

SIMULATIONS = "caps.simulations"
"""The group of entry points that carry out a study's algorithm with an oracle; a coordinator has `coordinator`."""
MOST_PERSONS = 1_000_000
_SEED = "caps/v1/simulated-rows"
_SKEW, _FOLLOWS = 0.45, 0.6


@dataclass(frozen=True, slots=True)
class SimulatedError:
    """How far a marginal of the synthetic rows is from the invented ones.

    measured: whether a measured marginal covers it. misplaced: the part of all persons who are in the wrong cell.
    """

    attributes: Clique
    cells: int
    measured: bool
    misplaced: float


@dataclass(frozen=True, slots=True)
class Simulation:
    """The study's algorithm with its noise, in the clear and in one process, on invented rows of its shape.

    Nothing of it is about anybody's data: columns that depend on each other more or less than the invented ones do are
    harder or easier. seconds: of the coordinator's part on this machine. errors: of the workload's marginals.
    """

    persons: int
    rounds: int
    rows: int
    seconds: float
    model_bytes: int
    error: float
    errors: tuple[SimulatedError, ...]


def invented_rows(domain: Domain, persons: int) -> Codes:
    """Codes of persons whom nobody knows: a skewed first column, and each other one follows that before it."""
    draws = Uniform(_SEED)
    columns: list[Codes] = []
    for size in domain.sizes:
        skewed = np.minimum(np.log1p(-draws.floats(persons)) / np.log1p(-_SKEW), size - 1).astype(np.int64)
        if columns:
            followed = (columns[-1] + draws.integers(1, size)) % size
            columns.append(np.where(draws.floats(persons) < _FOLLOWS, followed, skewed))
        else:
            columns.append(skewed)
    return np.stack(columns, axis=1)


def simulate(manifest: Manifest, persons: int) -> Simulation:
    """Run a study's algorithm on so many invented persons. Raises DomainError if that is not possible here."""
    if not 1 <= persons <= MOST_PERSONS:
        raise DomainError(f"a simulation has 1 to {MOST_PERSONS:,} persons, not {persons:,}")
    if not manifest.algorithm.certified:
        raise DomainError(f"only certified noise is simulated, not {manifest.algorithm.noise}")
    task, program = manifest.task, manifest.program
    if task.total not in (None, persons):
        raise DomainError(f"the manifest says that there are {task.total:,} rows (privacy.rows), not {persons:,}")
    perform = _algorithm()
    schedule = program.schedule(task)
    rows = invented_rows(task.domain, persons)
    budget = Filter(schedule.rho, task.neighbouring, pure_epsilon=schedule.pure_epsilon)
    oracle = ClearOracle(rows, Layout(task.domain, program.cliques(task)), task.neighbouring, budget)
    began = perf_counter()
    performed = perform(manifest, oracle)
    seconds = perf_counter() - began
    asked = task.workload.layout(task.domain)
    real, made = asked.marginals(rows), asked.marginals(performed.rows)
    errors = []
    for clique in asked.cliques:
        part = asked.part(clique)
        apart = marginals_error(Layout(task.domain, (clique,)), real[part], made[part])
        covered = any(set(clique) <= set(one) for one in performed.measured)
        errors.append(SimulatedError(clique, part.stop - part.start, covered, apart))
    return Simulation(
        persons,
        performed.rounds,
        len(performed.rows),
        seconds,
        performed.model_bytes,
        marginals_error(asked, real, made),
        tuple(errors),
    )


def _algorithm() -> Callable[[Manifest, Oracle], Performed]:
    found = entry_points(group=SIMULATIONS, name="coordinator")
    if not found:
        raise DomainError("only an installation with the coordinator can simulate: `pip install caps`")
    perform: Callable[[Manifest, Oracle], Performed] = next(iter(found)).load()
    return perform
