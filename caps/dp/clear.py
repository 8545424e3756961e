"""The clear twin gives the same answers as the MPC servers, from data in one place: the baseline and test oracle.

Given the random bits that the servers drew, it returns what they return, bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from caps.data.domain import Layout
from caps.dp.bounds import UNIT_BITS
from caps.dp.noise import clear
from caps.dp.noise.plans import GaussianPlan, GeometricPlan, GumbelPlan, LaplacePlan
from caps.dp.oracle import Batch, Comparison, Integers, Measurement, Selection, sendable
from caps.dp.privacy.filter import Filter
from caps.dp.privacy.neighbouring import Neighbouring
from caps.errors import LocalError


def error_scores(counts: Integers, selection: Selection, layout: Layout) -> Integers:
    """The score of each candidate: w (sum over cells of |2^8 count - estimate| - bias)."""
    sums = _distances(counts, selection, layout)
    scores: Integers = (sums - selection.bias) * selection.weights
    return scores


def errors(counts: Integers, comparison: Comparison, layout: Layout) -> Integers:
    """The error of each candidate: the sum over cells of |2^8 count - estimate|."""
    return _distances(counts, comparison, layout)


def _distances(counts: Integers, request: Comparison | Selection, layout: Layout) -> Integers:
    cells = counts[layout.positions(request.candidates)]
    sums: Integers = np.add.reduceat(np.abs((cells << UNIT_BITS) - request.estimate), request.starts(layout))
    return sums


@dataclass
class ClearOracle:
    """Answers from rows of codes. Every step is charged to `budget` before it is answered."""

    codes: npt.NDArray[np.int64] = field(repr=False)
    layout: Layout
    neighbouring: Neighbouring
    budget: Filter
    bits: clear.BitSource = field(default_factory=clear.FreshBits, repr=False)
    path: bytes = b""
    """The prefix of the servers' step paths, if their random bits are to be used."""

    _counts: Integers | None = field(default=None, init=False, repr=False)

    def answers(self) -> None:
        """See Oracle.answers."""
        if self._counts is None:
            self._counts = self.layout.marginals(self.codes)

    def select(self, selection: Selection) -> int:
        """See Oracle.select."""
        counts = self._known()
        selection.check(self.layout)
        self.budget.charge(selection.entry(self.neighbouring))
        plan = selection.plan(self.neighbouring)
        label, shape = self._label(selection.step, plan.digest), (selection.noise_values,)
        match plan:
            case GumbelPlan():
                noise = clear.gumbel(self.bits, label, plan, shape)
            case GeometricPlan():
                noise = clear.geometric(self.bits, label, plan, shape)
        scores = error_scores(counts, selection, self.layout)
        return int(np.argmax(scores + noise[: len(scores)]))

    def measure(self, measurement: Measurement) -> Integers:
        """See Oracle.measure."""
        counts = self._known()[self.layout.part(measurement.clique)]
        draws = measurement.noise_values(self.layout)
        self.budget.charge(measurement.entry(self.layout))
        plan, label = measurement.plan(), self._label(measurement.step, measurement.plan().digest)
        match plan:
            case GaussianPlan():
                noise = clear.discrete_gaussian(self.bits, label, plan, (draws,))
            case LaplacePlan():
                noise = clear.discrete_laplace(self.bits, label, plan, (draws,))
        return counts + noise[: len(counts)]

    def compare(self, comparison: Comparison) -> Integers:
        """See Oracle.compare."""
        counts = self._known()
        comparison.check(self.layout)
        self.budget.charge(comparison.entry())
        plan, shape = comparison.plan(), (len(comparison.candidates),)
        noise = clear.discrete_gaussian(self.bits, self._label(comparison.step, plan.digest), plan, shape)
        return sendable(errors(counts, comparison, self.layout) + noise)

    def measure_batch(self, batch: Batch) -> Integers:
        """See Oracle.measure_batch."""
        counts = self._known()[self.layout.positions(batch.cliques)]
        batch.check(self.layout)
        self.budget.charge(batch.entry(self.layout, self.neighbouring))
        for plan, cells in batch.noise(self.layout, self.neighbouring):
            label = self._label(batch.step, plan.digest)
            counts[cells] += clear.discrete_gaussian(self.bits, label, plan, cells.shape)
        return counts

    def _label(self, step: str, digest: str) -> bytes:
        return self.path + f"/{step}/noise/{digest[:16]}".encode()

    def _known(self) -> Integers:
        if self._counts is None:
            raise LocalError("the answers have not been computed: call answers() first")
        return self._counts
