"""The figures of a release as templates draw them: labels, numbers and places, from `services.coordinator.findings`."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import cos, pi, sin
from typing import Any

import numpy as np

from services.coordinator.findings import LEVELS, Findings, OneWay, Pair

MOST_BARS = 40
"""Bars of a column that are drawn; of more cells, those with the most persons."""
ASSOCIATION_LEVELS = (0.1, 0.3, 0.5, 0.7)
"""Where colours change. 0.1, 0.3 and 0.5 are what Cohen (1988) calls small, medium and large."""
LEGEND = (
    "no bound",
    f"up to {LEVELS[0]:g} × noise",
    f"up to {LEVELS[1]:g} ×",
    f"up to {LEVELS[2]:g} ×",
    f"more than {LEVELS[2]:g} ×",
)
MARKS = {"measured": "●", "implied": "", "unknown": "?"}
WORDS = {
    "measured": "measured",
    "implied": "implied: never measured together, but joined through measured tables",
    "unknown": "unknown: nothing joins them, so the release takes them for independent",
}


@dataclass(frozen=True)
class Bars:
    """A column for the macro `bars`. left_out: cells that are not drawn."""

    name: str
    labels: list[str]
    series: list[dict[str, Any]]
    unit: str
    left_out: int


def bars_of(one: OneWay, *, shares: bool) -> Bars:
    """A column as counts, or as shares in per cent."""
    order = sorted(range(len(one.cells)), key=lambda cell: (-one.synthetic[cell], cell))[:MOST_BARS]
    shown = sorted(order)

    def scaled(values: tuple[float, ...], whole: float) -> list[float]:
        factor = 100 / whole if shares and whole > 0 else 1.0
        return [round(values[cell] * factor, 2 if shares else 0) for cell in shown]

    series: list[dict[str, Any]] = [{"name": "synthetic", "values": scaled(one.synthetic, sum(one.synthetic))}]
    if one.measured is not None:
        whole = sum(one.measured)
        bands = list(zip(scaled(one.low, whole), scaled(one.high, whole), strict=True))
        series.append({"name": "noisy count", "values": scaled(one.measured, whole), "bands": bands})
    unit = "%" if shares else "persons"
    return Bars(one.name, [one.cells[cell] for cell in shown], series, unit, len(one.cells) - len(shown))


def pair_words(findings: Findings, pair: Pair) -> str:
    """What is known of a pair, in a line."""
    if pair.bound is None or pair.ratio is None:
        why = ", but too few persons for this noise" if pair.state == "measured" else ""
        return WORDS[pair.state] + (f"{why}; no bound on its error" if findings.published else "")
    misplaced = 100 * min(1.0, pair.bound / (2 * max(findings.persons, 1.0)))
    return (
        f"{WORDS[pair.state]}; error at most {pair.ratio:.1f} times its noise, "
        f"or {misplaced:.0f} % of persons in a wrong cell"
    )


def association_level(pair: Pair) -> int:
    """The colour of an association, 0 to 4."""
    return sum(pair.association >= one for one in ASSOCIATION_LEVELS)


@dataclass(frozen=True)
class Cell:
    """A cell of a pair's table. sigmas: synthetic less noisy count, in standard deviations of the noise."""

    synthetic: float
    measured: float | None
    sigmas: float | None

    @property
    def level(self) -> int:
        """How far it is off: 0 if not known or within one standard deviation, up to 4."""
        return 0 if self.sigmas is None else min(4, int(abs(self.sigmas)))


def cells_of(findings: Findings, first: int, second: int) -> tuple[list[list[Cell]], float]:
    """The table of a pair, row by row, and the standard deviation of the noise in each cell."""
    synthetic, measured, deviation = findings.pair(first, second)
    rows = []
    for i, row in enumerate(synthetic.tolist()):
        noisy = [None] * len(row) if measured is None else measured[i].tolist()
        rows.append(
            [
                Cell(value, other, None if other is None else (value - other) / deviation)
                for value, other in zip(row, noisy, strict=True)
            ]
        )
    return rows, deviation


@dataclass(frozen=True)
class Node:
    """A column in the graph."""

    name: str
    x: float
    y: float
    anchor: str


@dataclass(frozen=True)
class Edge:
    """Two columns that were measured together. first: the round in which they first were; times: how often."""

    start: Node
    end: Node
    first: int
    times: int


@dataclass(frozen=True)
class Graph:
    """Columns in a circle, joined where they were measured together."""

    nodes: list[Node]
    edges: list[Edge]
    side: int


def graph_of(findings: Findings) -> Graph:
    """The graph after the last round; each edge knows when it came."""
    count, radius = len(findings.names), 110 + 4 * len(findings.names)
    middle = radius + 30
    nodes = []
    for position, name in enumerate(findings.names):
        angle = 2 * pi * position / count - pi / 2
        x, y = middle + 120 + radius * cos(angle), middle + radius * sin(angle)
        nodes.append(Node(name, x, y, "start" if cos(angle) > 0.05 else "end" if cos(angle) < -0.05 else "middle"))
    found: dict[tuple[int, int], list[int]] = {}
    for one in findings.rounds:
        for clique in one.cliques:
            for pair in combinations(sorted(findings.names.index(name) for name in clique), 2):
                found.setdefault(pair, []).append(one.number)
    edges = [Edge(nodes[a], nodes[b], rounds[0], len(rounds)) for (a, b), rounds in found.items()]
    return Graph(nodes, edges, 2 * middle)


def mean_ratio(findings: Findings) -> float | None:
    """How far the model is from the noisy counts, in units of what noise alone makes."""
    ratios = [one.ratio for one in findings.report.quality.marginals]
    return float(np.mean(ratios)) if ratios else None
