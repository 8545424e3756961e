"""Noise: the variance that every sampler releases beside the central mechanism's, and what it does to utility.

Variance: of cells opened by three servers over TLS. Utility: workload error of AIM on the clear twin, whose noise
is the servers' bit for bit: with the default sampler, with the continuous Gaussian of float64 that
central implementations use, and with the law of the paper's sampler (a sum of twelve uniforms).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import pi, sqrt
from typing import Any

import numpy as np

from bench import central
from bench.datasets import load
from bench.federated import NAMES, compare
from bench.timing import summary
from caps.basics.uniform import Uniform
from caps.data.quality import workload_error
from caps.dp.clear import ClearOracle
from caps.dp.oracle import Integers, Measurement
from caps.dp.privacy.mechanisms import Gaussian
from services.coordinator.algorithms import all_pairs
from services.mpc_server.local import run_task

SIGMA = "73.1"
LAPLACE = ("paper:laplace", "paper:laplace-inverse")
"""Their variance is to be twice the square of their scale."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    parser.add_argument("--cells", type=int, default=20_000, help="released cells of each sampler (default 20,000)")
    parser.add_argument("--seeds", type=int, default=10, help="runs for each utility (default 10)")


@dataclass
class _Floating(ClearOracle):
    """Noise of float64, rounded to integers. Not private: for comparison only."""

    def measure(self, measurement: Measurement) -> Integers:
        """As Oracle.measure."""
        assert isinstance(measurement.mechanism, Gaussian)
        cells = self._known()[self.layout.part(measurement.clique)]
        self.budget.charge(measurement.entry(self.layout))
        noise: Integers = np.rint(self.unit(len(cells)) * sqrt(measurement.mechanism.sigma_squared)).astype(np.int64)
        return cells + noise

    def unit(self, count: int) -> Any:
        """Noise of variance 1."""
        raise NotImplementedError


class Continuous(_Floating):
    """Box-Muller in float64: numpy's normal distribution, as central implementations have it."""

    def unit(self, count: int) -> Any:
        """As the base class."""
        uniform = Uniform()
        return np.sqrt(-2 * np.log1p(-uniform.floats(count))) * np.cos(2 * pi * uniform.floats(count))


class Twelve(_Floating):
    """The paper's sampler: twelve uniforms less six."""

    def unit(self, count: int) -> Any:
        """As the base class."""
        return Uniform().floats(12 * count).reshape(12, count).sum(axis=0) - 6


ORACLES: dict[str, type[ClearOracle]] = {
    "default": ClearOracle,
    "central, float64": Continuous,
    "paper:irwin-hall": Twelve,
}


def measure(options: argparse.Namespace, record: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
    """Two keys: variance by sampler, utility by dataset, algorithm and sampler."""
    parties = run_task("bench.noise_tasks:measure", {"cells": options.cells, "sigma": SIGMA}, timeout=1800)
    report: dict[str, Any] = {"sigma": float(SIGMA), "cells": options.cells, "variance": {}, "utility": {}}
    for name, entry in parties[0].items():
        wanted = float(SIGMA) ** 2 * (2 if name in LAPLACE else 1)
        report["variance"][name] = summary([party[name] for party in parties]) | {
            "mean": entry["mean"],
            "variance": entry["variance"],
            "ratio": entry["variance"] / wanted,
            "error": sqrt(max(entry["kurtosis"] - 1, 0) / options.cells),
            "kurtosis": entry["kurtosis"],
            "largest": entry["largest"],
        }
    record(report)
    for name in NAMES:
        dataset = load(name)
        layout = all_pairs(dataset.domain).layout(dataset.domain)
        real = dataset.codes[dataset.train]
        errors: dict[str, list[float]] = {}
        for sampler, kind in ORACLES.items():
            for seed in range(options.seeds):
                codes, _ = central.perform(dataset, "aim", "1", seed=seed, kind=kind)
                errors.setdefault(sampler, []).append(workload_error(layout, real, codes))
        base = np.array(errors["central, float64"])
        report["utility"][name] = {
            sampler: {
                "mean": float(np.mean(found)),
                "spread": float(np.std(found, ddof=1)),
                "errors": found,
                **({} if sampler == "central, float64" else compare(np.array(found), base)),
            }
            for sampler, found in errors.items()
        }
        record(report)
    return report


def table(report: Mapping[str, Any]) -> str:
    """What a person reads."""
    lines = [f"{'':<26}{'variance':>10}{'of wanted':>11}{'+-':>8}{'largest':>9}{'seconds':>9}"]
    for name, entry in report["variance"].items():
        lines.append(
            f"{name:<26}{entry['variance']:>10.1f}{entry['ratio']:>11.3f}{entry['error']:>8.3f}"
            f"{entry['largest']:>9.1f}{entry['seconds']:>9.3f}"
        )
    for name, found in report["utility"].items():
        for sampler, entry in found.items():
            lines.append(f"{name + ' ' + sampler:<42} error {entry['mean']:.4f} +- {entry['spread']:.4f}")
    return "\n".join(lines)
