"""The machine-readable files of a release: the measurements and the report."""

from __future__ import annotations

from typing import Literal

from caps.basics.document import Document, Hex32
from caps.wire.documents import Index, RunId

MEASUREMENTS, TRANSCRIPT, REPORT, ROWS = "measurements.json", "transcript.ndjson", "report.json", "data."
"""The names of the files; a file of rows is named ROWS followed by its format."""


class NoisyMarginal(Document):
    """The result of one measurement: a noisy count for each cell, with the names of the cells and error bars."""

    step: Index
    attributes: tuple[str, ...]
    shape: tuple[int, ...]
    categories: tuple[tuple[str, ...], ...]
    values: tuple[int, ...]
    noise: str
    sigma: float
    half_width_95: float


class Measurements(Document):
    """All measurements of a run, in the order of steps."""

    version: Literal[1] = 1
    study: Hex32
    run: RunId
    measurements: tuple[NoisyMarginal, ...]


class ReportedPrivacy(Document):
    """The servers' privacy statement, for people to read: exact fractions are floats here."""

    paragraph: str
    certified: bool
    epsilon: float
    delta: float
    rho: float
    rho_spent: float
    unit: str
    neighbouring: str
    multiplicity: int
    accountant: str
    assumptions: tuple[str, ...]


class Fit(Document):
    """The L1 distance of the model from one noisy marginal, and the distance that noise alone would cause."""

    attributes: tuple[str, ...]
    distance: float
    noise: float
    ratio: float


class Quality(Document):
    """How well the model explains the noisy counts; `about` says how to read it."""

    about: str
    mean_ratio: float | None
    worst_ratio: float | None
    marginals: tuple[Fit, ...]


class ReportedAlgorithm(Document):
    """The algorithm, with all its parameters, those left to their defaults included."""

    name: str
    parameters: dict[str, int | bool | None]


class Software(Document):
    """The software that made the release."""

    coordinator: str
    servers: str


class Report(Document):
    """The privacy guarantee in words, and the quality as estimated from the noisy answers.

    The `rows` stand for `estimated_total` persons, a number that is known up to its standard deviation,
    `total_deviation` (0 if it is public): so each row counts as estimated_total / rows persons.
    """

    version: Literal[1] = 1
    title: str
    study: Hex32
    run: RunId
    algorithm: ReportedAlgorithm
    rows: int
    estimated_total: float
    total_deviation: float
    rounds: int
    privacy: ReportedPrivacy
    quality: Quality
    software: Software
