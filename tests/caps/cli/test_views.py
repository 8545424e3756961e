"""What people see of plans, previews and releases: the essentials, in 80 columns, and the rest when they ask for it."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from caps.basics import canonical
from caps.cli import Exit, app
from caps.cli.release import _conditions
from caps.client import Client
from caps.client.estimates import Release
from caps.errors import DomainError
from caps.study import simulation
from caps.wire.coordinator import FileView, ReleaseView, SampleView
from caps.wire.holder import ComponentPreview, Loss, Part, Preview, ServerPreview, StudyLoss
from caps.wire.releases import Measurements
from tests.kit.study import AT, RUN, example_json, example_manifest, example_release

MANIFEST, KEYS = example_manifest()
EXAMPLE = example_release(MANIFEST, KEYS)
MEASURED = Measurements.model_validate_json(EXAMPLE.files["measurements.json"])
SAMPLE = "5" * 32
RELEASE = ReleaseView(
    release=RUN,
    study=MANIFEST.study_id,
    title="One",
    rows=1234,
    epsilon="1",
    delta="0.000001",
    certified=True,
    created_at=AT,
    data=[FileView(format="csv", media_type="text/csv", bytes=12_345, sha256="ab" * 32)],
    measurements=True,
    resamples=True,
    samples=[SAMPLE],
)
OPTIONS = ("--url", "https://coordinator.example:1", "--token", "x")


@pytest.fixture(autouse=True)
def _release(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator's answers; what commands make of them is what is tested here."""
    monkeypatch.delenv("COLUMNS", raising=False)
    documents = {
        "measurements": EXAMPLE.files["measurements.json"],
        "certificate": canonical.dump(EXAMPLE.certificate.to_json()),
    }
    monkeypatch.setattr(Client, "releases", lambda _: [RELEASE])
    monkeypatch.setattr(Client, "release", lambda *_: RELEASE)
    monkeypatch.setattr(Client, "document", lambda *given, **_: documents[given[2]])
    rows = np.zeros((10, len(MANIFEST.domain.names)), np.int64)
    monkeypatch.setattr(Client, "_studied", lambda *_: Release(MANIFEST, MEASURED, rows, persons=40.0))


def shown(*arguments: object, expect: Exit = Exit.OK, options: tuple[str, ...] = OPTIONS) -> str:
    done = CliRunner().invoke(app, [*map(str, arguments), *options])
    assert done.exit_code == expect, done.output
    assert max(map(len, done.stdout.splitlines()), default=0) <= 80
    return " ".join((done.stdout or done.stderr).split())


def as_json(*arguments: object, options: tuple[str, ...] = OPTIONS) -> Any:
    return json.loads(CliRunner().invoke(app, [*map(str, arguments), *options, "--json"]).stdout)


def test_a_release_is_shown_with_its_files() -> None:
    words = shown("release", "show", RUN[:6])
    for said in (RUN, "1,234", "epsilon 1 at delta 0.000001", "proven", "csv 12.3 kB", SAMPLE[:12]):
        assert said in words
    assert SAMPLE not in words
    assert as_json("release", "show", RUN[:6]) == RELEASE.model_dump(mode="json")


def test_measurements_are_shown_with_error_bars_and_kept_as_they_are() -> None:
    words = shown("release", "measurements", RUN)
    first = MEASURED.measurements[0]
    assert f"{' x '.join(first.attributes)}: each count is ± {first.half_width_95:,.0f} (95 %)" in words
    assert as_json("release", "measurements", RUN) == json.loads(EXAMPLE.files["measurements.json"])
    every = shown("release", "measurements", RUN, "--full")
    assert "not shown" not in every
    assert len(every) >= len(words)


def test_a_certificate_is_shown_by_who_signed_it() -> None:
    words = shown("release", "certificate", RUN)
    assert "attested by S1, S2, S3" in words
    assert "caps verify" in words


def test_persons_are_counted_with_intervals_and_what_they_rest_on() -> None:
    words = shown("release", "count", RUN[:5], "--where", "smoker=yes")
    assert "measured: the noise was drawn so that 95% of such intervals" in words
    (found,) = as_json("release", "count", RUN, "--where", "smoker=yes", "--level", "0.99")["estimates"]
    assert found["basis"] == "measured"
    assert found["level"] == 0.99
    assert found["low"] <= found["count"] <= found["high"]
    bounded = shown("release", "count", RUN, "--by", "age", "--by", "region", "--where", "smoker=no")
    assert "no measured table has all these columns" in bounded
    assert "no such value; it has no, yes" in shown("release", "count", RUN, "--where", "smoker=x", expect=Exit.REFUSED)
    assert "0.8 to 0.999" in shown("release", "count", RUN, "--level", "2", expect=Exit.REFUSED)


def test_conditions_of_one_column_are_alternatives() -> None:
    assert _conditions(["a=x", "b=1..2.5", "a=y=z", "c=..3", "d=3.."]) == {
        "a": ["x", "y=z"],
        "b": (1.0, 2.5),
        "c": (None, 3.0),
        "d": (3.0, None),
    }
    assert _conditions(["a=x..y", "b=.."]) == {"a": ["x..y"], "b": [".."]}
    for wrong in (["a"], ["=x"], ["a=1..2", "a=x"], ["a=x", "a=1..2"]):
        with pytest.raises(DomainError, match="--where"):
            _conditions(wrong)


def test_a_sample_is_named_by_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    deleted = []
    monkeypatch.setattr(Client, "delete_sample", lambda _, release, sample: deleted.append((release, sample)))
    assert as_json("release", "delete-sample", RUN[:4], "555")["deleted"] == SAMPLE
    assert deleted == [(RUN, SAMPLE)]
    assert "no sample id begins with 6" in shown("release", "delete-sample", RUN, "6", expect=Exit.REFUSED)
    view = SampleView(sample=SAMPLE, release=RUN, rows=10, seed="ab" * 32, created_at=AT, data=[])
    monkeypatch.setattr(Client, "sample", lambda *_, **__: view)
    assert f"caps release get {RUN[:12]} --sample {SAMPLE[:12]}" in shown("release", "sample", RUN)


def preview(**changes: Any) -> Preview:
    loss = Loss(studies=1, rho=0.1, epsilon=1.0, delta=1e-6, relation="unbounded", multiplicity=1)
    servers = [
        ServerPreview(
            server=f"S{number}",
            url=f"https://s{number}.example:8443",
            components=[ComponentPreview(component=0, kind="seed", bytes=32)],
            elements=0,
            tags=0,
            offer_bytes=100,
            vector_bytes=0,
            chunks=0,
            total_bytes=4_100,
        )
        for number in (1, 2, 3)
    ]
    members: dict[str, Any] = {
        "study": MANIFEST.study_id,
        "holder": "clinic-a",
        "loaded": True,
        "form": "marginals",
        "bits": 32,
        "shape": [1178],
        "parts": [Part(attributes=["age", "smoker"], cells=8)],
        "servers": servers,
        "total_bytes": 12_300,
        "views": ["what is published is covered " * 5],
        "statement": "One server alone learns nothing. " * 5,
        "loss": StudyLoss(population="patients", before=None, after=loss, warnings=["the same rows go by two names"]),
    }
    return Preview(**members | changes)


def test_a_preview_has_the_essentials_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Client, "preview", lambda *_: preview())
    words = shown("preview", MANIFEST.study_id)
    places = [words.index(said) for said in ("loaded", "12.3 kB", "s1.example", "learns nothing", "so far", "Who sees")]
    assert places == sorted(places)
    assert "with this study epsilon 1 at delta 1e-06, by 1 study" in words
    assert "WARNING: the same rows go by two names" in words
    assert "age x smoker" not in words
    assert "age x smoker 8" in shown("preview", MANIFEST.study_id, "--full")
    assert as_json("preview", MANIFEST.study_id) == preview().model_dump(mode="json")
    monkeypatch.setattr(Client, "preview", lambda *_: preview(loaded=False))
    assert "NOT LOADED YET" in shown("preview", MANIFEST.study_id)


@pytest.fixture
def manifest_file(tmp_path: Path) -> Path:
    document, _ = example_json(algorithm="mst")
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def test_a_simulation_says_that_its_persons_are_invented(manifest_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = EntryPoint("coordinator", "services.coordinator.central:perform", simulation.SIMULATIONS)
    monkeypatch.setattr(simulation, "entry_points", lambda **asked: EntryPoints([own]).select(**asked))
    words = shown("study", "plan", manifest_file, "--simulate", "--persons", 400, options=())
    assert "Simulated in the clear on 400 INVENTED persons" in words
    found = as_json("study", "plan", manifest_file, "--simulate", "--persons", 400, options=())
    assert found["simulation"]["persons"] == found["relative_errors"]["persons"] == 400
    assert "simulation" not in as_json("study", "plan", manifest_file, options=())
