"""Measurements as a release publishes them: the noisy counts of each, with the names of its cells and error bars.

They follow from the requests and the answers alone, so anyone with the transcript can make the same file.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate, pairwise
from math import ceil

from caps.data.schema import Schema
from caps.dp.oracle import Batch, Measurement, StepRequest
from caps.dp.privacy import Laplace
from caps.dp.privacy.rational import ln_up
from caps.study.account import Value
from caps.study.manifest import Manifest
from caps.wire.releases import NoisyMarginal

NORMAL_95 = 1.959963984540054


def noisy_marginals(manifest: Manifest, step: int, asked: StepRequest, value: Value) -> list[NoisyMarginal]:
    """The answer to this step as it is published: every marginal that it measures, in order; of other steps, none.

    Pre-condition: the account has taken the answer.
    """
    if not isinstance(asked, Batch | Measurement) or isinstance(value, int):
        return []
    parts = asked.measurements(manifest.task.neighbouring) if isinstance(asked, Batch) else [asked]
    ends = [0, *accumulate(manifest.domain.cells_of([part.clique for part in parts]))]
    return [_marginal(manifest, step, part, value[a:b]) for part, (a, b) in zip(parts, pairwise(ends), strict=True)]


def _marginal(manifest: Manifest, step: int, asked: Measurement, value: Sequence[int]) -> NoisyMarginal:
    sigma = asked.mechanism.deviation
    width = NORMAL_95 * sigma
    if isinstance(asked.mechanism, Laplace):  # P(|X| > t) <= e^(-t / scale)
        width = float(asked.mechanism.scale * ln_up(Fraction(20)))
    return NoisyMarginal(
        step=step,
        attributes=asked.clique,
        shape=manifest.domain.shape(asked.clique),
        categories=tuple(tuple(labels(manifest.schema_, name)) for name in asked.clique),
        values=tuple(value),
        noise=asked.mechanism.kind,
        sigma=sigma,
        half_width_95=ceil(100 * width) / 100,
    )


def labels(schema: Schema, name: str) -> list[str]:
    """The public names of a column's cells: categories, or bins as intervals."""
    column = next(column for column in schema.columns if column.name == name)
    given = column.to_json()
    if column.texts:
        found = list(column.texts)
    else:
        edges = given["bin_edges"]
        assert isinstance(edges, list | tuple)
        low, high = "[)" if given.get("side", "right") == "right" else "(]"
        found = [f"{low}{a}, {b}{high}" for a, b in pairwise(edges)]
    return found + ["missing"] * (column.size - len(found))
