"""How many rows a release has: as many as there are persons, or, where nobody knows how many there are, enough.

A noisy total far below the number of persons would make a release of few rows. They would be a poor sample of a model
that may be good. Rows cost no privacy, so too many do no harm, as long as whoever counts persons divides by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from caps.data.domain import Clique, Domain
from services.coordinator.estimation import Measured
from services.coordinator.generate.absence import Absence

_DEVIATIONS = 2.0
"""There are at most so many standard deviations more persons than the noisy total says, 98 times in 100."""
_NEGLIGIBLE = 1.05
"""Errors of sampling shrink as the square root of rows: with a twentieth fewer they are 2.5 % larger."""


@dataclass(frozen=True, slots=True)
class Size:
    """The estimated number of persons, the standard deviation of that, and how many rows to publish."""

    persons: float
    deviation: float

    @property
    def rows(self) -> int:
        """At least a row for each person there may well be, less a twentieth.

        A table of n rows differs from the model by what n persons drawn from it would. With as many rows as persons
        this is no more than what the persons differ, by chance, from others like them. If the total is known within two
        and a half per cent, these are as many rows as it says.
        """
        return max(1, round(max(self.persons, (self.persons + _DEVIATIONS * self.deviation) / _NEGLIGIBLE)))


def size_of(
    domain: Domain, measurements: Sequence[Measured], *, groups: tuple[Clique, ...] = (), total: float | None = None
) -> Size:
    """The size of a release that follows from these measurements. groups: as `create_estimator` takes them."""
    persons = Absence(domain, groups).persons(measurements, total)
    return Size(persons.total, persons.deviation)
