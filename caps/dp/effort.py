"""How long the fits of a run take, by a law, and how large a model may be so that they take no longer than they should.

An iteration of a fit (`services.coordinator.generate`) passes a few times over every cell of the junction tree, and
multiplies what it knows of each measured cell with as much of each of its last moves. So its time is a number for each
cell of the tree and one for each measured cell; what a fit takes in all depends on its iterations, which differ with
the noise, between 50 and 500, and hardly with the size of the model.

How large models may be is part of what all parties agreed on, and what is asked of servers depends on it. So it follows
from these numbers, which are the same everywhere, and from the manifest; never from the clock of the machine that fits.
How long the next fit will take there, its estimator tells from the fits before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from caps.data.domain import Domain
from caps.data.junction import FLOAT_BYTES

CELL_SECONDS = 5.5e-9
"""Of one iteration, for each cell of the junction tree."""
MEASURED_SECONDS = 2e-8
"""Of one iteration, for each measured cell."""
START_SECONDS = 4e-3
"""Of a fit before its first iteration: the tree and its index."""
ITERATIONS = 200
"""Of a fit, on average."""
PRIOR_FITS = 2.0
"""The last fit, which has a prior, takes as long as so many of the others."""

BASE_BYTES, COPIES = 300_000_000, 6
"""Memory: the coordinator itself; and what a fit and the questions to its model need for each byte of the model."""

_BEYOND = 1 << 60
"""More bytes than any machine has: such models are not told apart."""


def fit_seconds(cells: float, measured: float) -> float:
    """Seconds of a fit of a junction tree of so many cells to so many measured ones.

    Measured on one core of 2.8 GHz: see docs/scaling.md.
    """
    return START_SECONDS + ITERATIONS * (CELL_SECONDS * cells + MEASURED_SECONDS * measured)


def model_bytes_within(seconds: float, measured: float) -> int:
    """Bytes of the largest model whose fit to so many measured cells takes so long: the inverse of `fit_seconds`."""
    cells = ((seconds - START_SECONDS) / ITERATIONS - MEASURED_SECONDS * measured) / CELL_SECONDS
    return FLOAT_BYTES * max(0, int(cells))


@dataclass(frozen=True, slots=True)
class Fits:
    """The fits of a run: how many there may be, the bytes of the largest model, and the seconds of all together.

    Seconds are those of one core like the one that was measured. All are upper bounds, except that iterations are
    counted as their average.
    """

    models: int
    model_bytes: int
    seconds: float

    @property
    def memory(self) -> int:
        """About the bytes of memory that the coordinator needs at its peak."""
        return BASE_BYTES + COPIES * self.model_bytes

    @classmethod
    def growing(cls, domain: Domain, models: int, whole: float, largest: int, measured: int) -> Fits:
        """So many models that take as many bytes together as `whole` of the largest, to at most so many cells."""
        size = min(largest, FLOAT_BYTES * prod(domain.sizes), _BEYOND)
        cells = size // FLOAT_BYTES
        each = fit_seconds(cells, min(measured, cells)) - START_SECONDS
        return cls(models, size, models * START_SECONDS + (whole + PRIOR_FITS) * each)
