"""From a finished run to a release: rows, measurements, report, and the certificate that holds them together.

    releases/<run>/model.caps          the model, for further samples
    releases/<run>/data.*              synthetic rows, in every format
    releases/<run>/transcript.ndjson   every request, with the answer that the servers signed
    releases/<run>/measurements.json   what the servers measured, with error bars
    releases/<run>/report.json         privacy and quality
    releases/<run>/findings.json       what pages show of these, computed once; not published

All of it follows from the answers and the seed, so after a crash the same release is made again. Nothing here has seen
the data: quality is judged by how the model compares with the noisy answers.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from math import pi, sqrt
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from caps import __version__
from caps.audit.measurements import noisy_marginals
from caps.basics import canonical
from caps.basics.files import erase
from caps.client.estimates import cells_of
from caps.dp.privacy import Laplace, PrivacyStatement
from caps.errors import DomainError, LocalError
from caps.service.problems import Problem
from caps.service.site import Site
from caps.study import Manifest
from caps.wire import Certificate, ReleaseBody, Signed, TranscriptStep, request_from_json
from caps.wire.problems import Kind
from caps.wire.releases import (
    MEASUREMENTS,
    REPORT,
    ROWS,
    TRANSCRIPT,
    Fit,
    Measurements,
    NoisyMarginal,
    Quality,
    Report,
    ReportedAlgorithm,
    ReportedPrivacy,
    Software,
)
from services.coordinator.algorithms import Outcome
from services.coordinator.estimation import ImpossibleConditions, Model, Where
from services.coordinator.execution import Attested
from services.coordinator.formats import appearing, entries, write_all
from services.coordinator.generate import Size, load_model, size_of
from services.coordinator.store import FileEntry, Release, Run, Sample, Store

SOFTWARE = f"caps {__version__}"
LARGEST_SAMPLE = 1_000_000
_LARGEST_RELEASE = 10_000_000
MODEL, DATA = "model.caps", f"{ROWS}csv"


class Publisher:
    """Makes releases and further samples, and finds their files."""

    def __init__(self, site: Site, store: Store, *, most_samples: int) -> None:
        self._most_samples = most_samples
        self._site = site
        self._store = store
        self._releases = site.settings.data / "releases"
        self._samples = site.settings.data / "samples"
        self._sampling = Lock()
        self.prepare: Callable[[Release], None] = lambda _: None
        """Called with a release that is complete on disk, before anybody can see it."""

    @property
    def name(self) -> str:
        """The party to name if a release cannot be written."""
        return self._site.name

    def publish(self, run: str, attested: Attested) -> None:
        """Publish a run that the servers have attested. Nothing of it is visible until all of it is on disk."""
        record = self._fixed(run)
        assert record.seed is not None
        assert record.published_at is not None
        manifest = self._store.manifest(record.study)
        assert manifest is not None
        model, folder = attested.outcome.model, self._releases / run
        size = sized(manifest, attested.outcome)
        rows = released_rows(manifest, size)
        with appearing(folder) as draft:
            model.save(draft / MODEL)
            write_rows(manifest, model, rows, record.seed, draft)
            measured = self._write_transcript(manifest, run, draft / TRANSCRIPT)
            published = Measurements(study=manifest.study_id, run=run, measurements=tuple(measured))
            (draft / MEASUREMENTS).write_bytes(canonical.dump(published.to_json()))
            report = make_report(manifest, attested, rows, size, measured)
            (draft / REPORT).write_bytes(canonical.dump(report.to_json()))
        files = entries(folder)
        body = ReleaseBody(
            study=record.study,
            run=run,
            transcript=attested.transcript,
            files={name: entry.sha256 for name, entry in files.items()},
            rows=rows,
            seed=record.seed,
            software=SOFTWARE,
            at=record.published_at,
        )
        certificate = Certificate(
            manifest=manifest,
            approvals=record.seal_request.approvals,
            attestations=attested.attestations,
            release=Signed[ReleaseBody].by(body, self._site.name, self._site.signing_key),
        )
        self.prepare(Release(run, certificate, files, record.published_at))
        self._store.add_release(run, certificate, files)

    def _fixed(self, run: str) -> Run:
        """The run with the seed and the time of its release, which are drawn once."""
        record = self._store.run(run)
        if record is not None and record.seed is None:
            self._store.begin_publishing(run, secrets.token_hex(32))
            record = self._store.run(run)
        if record is None:
            raise LocalError(f"there is no run {run} here")
        return record

    def _write_transcript(self, manifest: Manifest, run: str, path: Path) -> list[NoisyMarginal]:
        """Write the steps one at a time, because requests may be large. Returns the measurements in them."""
        measured = []
        with path.open("wb") as file:
            for step in self._store.steps(run):
                answer, signatures = step.answers[0].document, tuple(one.signature for one in step.answers)
                asked = request_from_json(step.request)
                file.write(TranscriptStep(request=asked, answer=answer, signatures=signatures).line())
                measured += noisy_marginals(manifest, step.step, asked, answer.value)
        return measured

    def release(self, release: str) -> Release:
        """A release. Raises Problem if it is not published."""
        found = self._store.release(release)
        if found is None:
            raise Problem(Kind.NOT_FOUND, "this coordinator has published no such release", release=release)
        return found

    def file(self, release: str, name: str) -> Path:
        """A file of a release."""
        return self._releases / release / name

    def opened(self, release: str, name: str) -> tuple[Path, FileEntry]:
        """A file with values that the servers opened. Raises Problem unless the study publishes them."""
        found = self.release(release)
        if not found.certificate.manifest.publication.measurements:
            raise Problem(Kind.FORBIDDEN, "the study's manifest forbids publishing the measurements", release=release)
        return self.file(release, name), found.files[name]

    def sample_file(self, sample: str, name: str) -> Path:
        """A file of a sample."""
        return self._samples / sample / name

    def sample(self, release: str, sample: str) -> Sample:
        """A sample of a release. Raises Problem if there is no such sample."""
        for found in self._store.samples(self.release(release).release):
            if found.sample == sample:
                return found
        raise Problem(Kind.NOT_FOUND, "this release has no such sample", release=release)

    def resample(
        self, release: str, rows: int | None, seed: str | None, where: Mapping[str, list[str]] | None = None
    ) -> tuple[Sample, bool]:
        """Further rows from a release's model, and whether they are new. The same request gives the same table.

        where: by column, the names of the cells that rows may have. A model is public, and so is what follows from it.
        """
        found = self.release(release)
        manifest = found.certificate.manifest
        if not manifest.publication.resamples:
            raise Problem(Kind.FORBIDDEN, "the study's manifest allows no further samples", release=release)
        count = found.certificate.release.document.rows if rows is None else rows
        if not 1 <= count <= LARGEST_SAMPLE:
            raise Problem(Kind.INVALID, f"a sample has 1 to {LARGEST_SAMPLE} rows")
        try:
            cells = cells_of(manifest.schema_, where) if where else None
        except DomainError as error:
            raise Problem(Kind.INVALID, str(error), release=release) from None
        drawn = secrets.token_hex(32) if seed is None else seed
        asked = {"release": release, "rows": count, "seed": drawn} | ({"where": dict(where)} if where else {})
        name = canonical.digest("sample", asked).hex()[:32]
        with self._sampling:  # one at a time: each takes the memory of its rows
            kept = self._store.samples(release)
            for one in kept:
                if one.sample == name:
                    return one, False
            if len(kept) >= self._most_samples:
                detail = f"a release keeps at most {self._most_samples} samples; delete one first"
                raise Problem(Kind.CONFLICT, detail, release=release)
            model = load_model(self.file(release, MODEL))
            folder = self._samples / name
            with appearing(folder) as draft:
                try:
                    write_rows(manifest, model, count, drawn, draft, cells)
                except ImpossibleConditions as error:
                    raise Problem(Kind.INVALID, str(error), release=release) from None
            sample = Sample(name, release, count, drawn, entries(folder), self._store.now(), where)
            self._store.add_sample(sample)
        return sample, True

    def delete_sample(self, release: str, sample: str) -> None:
        """Delete a sample. The same rows and seed give it again. Raises Problem if there is no such sample."""
        with self._sampling:
            self._store.drop_sample(self.sample(release, sample).sample)
            erase(self._samples / sample)


def sized(manifest: Manifest, outcome: Outcome) -> Size:
    """How many persons a release stands for, and how well that is known."""
    groups, total = manifest.absent_together, manifest.task.total
    return size_of(manifest.domain, outcome.measurements, groups=groups, total=total)


def released_rows(manifest: Manifest, size: Size) -> int:
    """How many rows are published: as many as the study says, or as its size asks for."""
    return manifest.publication.rows or min(size.rows, _LARGEST_RELEASE)


def write_rows(
    manifest: Manifest, model: Model, rows: int, seed: str, folder: Path, where: Where | None = None
) -> None:
    """Draw rows that meet the conditions and write them. They depend on these, the model and the seed alone."""
    codes = model.sample(rows, seed=bytes.fromhex(seed), where=where)
    write_all(manifest.schema_, codes, seed, folder, manifest.lacking)


def make_report(
    manifest: Manifest, attested: Attested, rows: int, size: Size, measurements: Sequence[NoisyMarginal]
) -> Report:
    """Privacy as the servers attest it, and how well the model explains what they opened."""
    outcome, statement = attested.outcome, attested.statement
    marginals = outcome.model.marginals([one.attributes for one in measurements])
    fits = tuple(_fit(one, marginal) for one, marginal in zip(measurements, marginals, strict=True))
    ratios = [one.ratio for one in fits]
    return Report(
        title=manifest.title,
        study=manifest.study_id,
        run=attested.attestations[0].document.run,
        algorithm=ReportedAlgorithm(name=manifest.program.name, parameters=asdict(manifest.program)),
        rows=rows,
        estimated_total=outcome.model.total,
        total_deviation=size.deviation,
        rounds=outcome.rounds,
        privacy=_privacy(statement),
        quality=Quality(
            about="L1 distance between the model and the noisy counts, and what the noise alone would make it. A "
            "ratio near 1 says that the model explains a table as well as the noise lets one see. Estimated from "
            "noisy answers only: the data were not consulted.",
            mean_ratio=float(np.mean(ratios)) if ratios else None,
            worst_ratio=max(ratios, default=None),
            marginals=fits,
        ),
        software=Software(coordinator=SOFTWARE, servers=attested.attestations[0].document.software),
    )


def _privacy(statement: PrivacyStatement) -> ReportedPrivacy:
    return ReportedPrivacy(
        paragraph=statement.paragraph(),
        certified=statement.certified,
        epsilon=float(statement.epsilon),
        delta=float(statement.delta),
        rho=float(statement.rho),
        rho_spent=float(statement.rho_spent),
        unit=statement.unit,
        neighbouring=statement.neighbouring.relation.value,
        multiplicity=statement.neighbouring.multiplicity,
        accountant="zCDP with a filter; statistical distance of the samplers folded into delta",
        assumptions=statement.assumptions,
    )


def _fit(measured: NoisyMarginal, marginal: Any) -> Fit:
    values = np.array(measured.values, np.float64)
    distance = float(np.abs(values - np.ravel(marginal)).sum())
    # E|X| of Laplace noise is sigma / sqrt(2), of Gaussian noise sigma sqrt(2 / pi); here to describe, not to protect.
    share = 1 / sqrt(2) if measured.noise == Laplace.kind else sqrt(2 / pi)
    expected = share * measured.sigma * values.size
    return Fit(attributes=measured.attributes, distance=distance, noise=expected, ratio=distance / expected)


def _persons(report: Report) -> str:
    """What the rows stand for."""
    if report.total_deviation == 0:
        return f"They stand for {report.estimated_total:,.0f} persons, a number that is public."
    return (
        f"They stand for {report.estimated_total:,.0f} persons, as estimated with a standard deviation of "
        f"{report.total_deviation:,.0f}: to count persons, multiply a number of rows by "
        f"{report.estimated_total / report.rows:.4g}."
    )


def markdown(report: Report) -> str:
    """The report for people."""
    privacy, quality = report.privacy, report.quality
    lines = [
        f"# {report.title}",
        "",
        f"{report.rows:,} synthetic rows by {report.algorithm.name}, study `{report.study}`, run `{report.run}`.",
        "",
        _persons(report),
        "",
        "## Privacy",
        "",
        privacy.paragraph,
        "",
        "## Quality",
        "",
        quality.about,
        "",
        "| marginal | L1 distance | expected from noise | ratio |",
        "|---|---:|---:|---:|",
        *(
            f"| {' x '.join(one.attributes)} | {one.distance:.1f} | {one.noise:.1f} | {one.ratio:.2f} |"
            for one in quality.marginals
        ),
        "",
        f"Software: coordinator {report.software.coordinator}, servers {report.software.servers}.",
        "",
    ]
    return "\n".join(lines)
