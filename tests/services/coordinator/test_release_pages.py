"""What a release says about itself: the figures against the data that made it, what stays withheld, the report."""

from __future__ import annotations

import asyncio
import re
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from hashlib import sha256
from itertools import combinations
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from caps.client import AnswerRefused, Client
from caps.service.tokens import Scope
from services.coordinator.findings import FILE, AllFindings, Findings
from services.coordinator.publish import SOFTWARE
from services.coordinator.service import Coordinator
from services.coordinator.states import State
from tests.kit.algorithms import rows_of
from tests.kit.coordinator_servers import SMALL, Bench
from tests.kit.study import NOW, SCHEMA

pytestmark = pytest.mark.integration
HOSTILE = "<script>alert('x')</script>"
PAGES = ("", "/columns", "/pairs", "/pairs/0/1", "/correlations", "/residuals", "/rounds", "/count?by=0", "/samples")
PURE = {"privacy": {"epsilon": "1", "delta": "1e-6", "population": "patients", "accounting": "pure"}}


def published(folder: Path, **choices: Any) -> tuple[Bench, Coordinator, str]:
    bench = Bench(folder, **choices)
    made, run = bench.started()
    made.runs.perform(run)
    return bench, made, run


class Reader:
    """An analyst at a coordinator with one release."""

    def __init__(self, made: Coordinator, run: str) -> None:
        self.made, self.run = made, run
        self._token = made.site.tokens.create("ann", [Scope.ANALYST], expires=NOW + timedelta(days=1))
        self._app = made.app()

    def page(self, path: str = "", **headers: str) -> httpx.Response:
        """A page of the release."""
        return self.get(f"/ui/releases/{self.run}{path}", **headers)

    def get(self, path: str, **headers: str) -> httpx.Response:
        async def exchange() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport, base_url="https://coordinator.test") as client:
                return await client.get(path, headers={"Authorization": f"Bearer {self._token}"} | headers)

        return asyncio.run(exchange())


@pytest.fixture(
    scope="module",
    params=[SMALL, {"name": "mst"}, {"name": "mwem"}, {"name": "mwem", "pure": True}],
    ids=["aim", "mst", "mwem", "laplace"],
)
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Findings]:
    algorithm = dict(request.param)
    choices = PURE if algorithm.pop("pure", False) else {}
    _, made, run = published(tmp_path_factory.mktemp("release"), algorithm=algorithm, **choices)
    with closing(made):
        yield AllFindings(made.publisher).of(run)


def true_counts(findings: Findings, clique: tuple[str, ...]) -> np.ndarray:
    domain = findings.manifest.domain
    codes = rows_of(domain, 3, 400)[:, [domain.position(name) for name in clique]]
    return np.histogramdd(codes, bins=[np.arange(size + 1) - 0.5 for size in domain.shape(clique)])[0]


def test_no_pair_is_further_from_the_truth_than_its_bound(found: Findings) -> None:
    states = set()
    for (first, second), pair in found.pairs.items():
        clique = found.names[first], found.names[second]
        states.add(pair.state)
        away = np.abs(true_counts(found, clique) - found.synthetic([clique])[0]).sum()
        assert pair.bound is None or away <= pair.bound, (clique, away, pair)
        assert pair.noise is not None
        if pair.state == "measured":
            assert pair.bound is not None
            assert pair.ratio is not None
            assert 1 < pair.ratio < 6
    assert "measured" in states
    assert len(found.pairs) == 6


def test_counts_of_a_column_are_the_best_mean_of_its_tables(found: Findings) -> None:
    assert found.measurements is not None
    for name in found.names:
        parts = []
        for one in found.measurements.measurements:
            if name in one.attributes and {"diagnosis"}.isdisjoint(set(one.attributes) - {name}):
                axis = one.attributes.index(name)
                table = np.array(one.values, float).reshape(one.shape)
                summed = np.moveaxis(table, axis, 0).reshape(one.shape[axis], -1).sum(axis=1)
                parts.append((summed, table.size / summed.size * one.sigma**2))
        counts = found.estimates.counts([name])
        assert (counts is None) == (not parts)
        if counts is not None:
            weights = np.array([1 / variance for _, variance in parts])
            expected = sum(w * part for w, (part, _) in zip(weights, parts, strict=True)) / weights.sum()
            assert np.allclose(counts.values, expected)
            assert counts.deviation == pytest.approx(weights.sum() ** -0.5)


def test_residuals_and_scores_are_what_they_say(found: Findings) -> None:
    assert found.measurements is not None
    tables = found.measurements.measurements
    residuals = found.residuals
    labels, counted, expected = residuals.bins, residuals.counted, residuals.expected
    cells = sum(len(one.values) for one in tables)
    assert len(labels) == len(counted) == len(expected) == 15
    assert (sum(counted), sum(expected)) == (cells, pytest.approx(cells))
    worst = list(residuals.worst)
    assert len(worst) == 10
    assert worst == sorted(worst, key=lambda one: -abs(one.sigmas))
    assert all(0 < one.attainable < 1 and abs(one.agreement - one.attainable) < 0.15 for one in found.scores)
    assert [one.number for one in found.rounds] == sorted({one.number for one in found.rounds})
    assert sum(len(one.cliques) for one in found.rounds) == len(tables)


def test_columns_that_follow_from_each_other_go_together(found: Findings) -> None:
    # Each column mostly follows the one before it, so neighbours go together more than the ends do.
    together = [found.pairs[pair].association for pair in combinations(range(4), 2)]
    assert all(0 <= one <= 1 for one in together)
    assert max(found.pairs[0, 1].association, found.pairs[1, 2].association) > found.pairs[0, 3].association


FIGURES = ("", "/columns", "/pairs", "/correlations", "/residuals", "/rounds")


def test_figures_are_computed_before_anybody_can_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, made, run = published(tmp_path)
    kept = bench.folder(run) / FILE
    with closing(made):
        assert kept.stat().st_mode & 0o077 == 0
        assert FILE not in made.publisher.release(run).files
    written, computed = kept.read_bytes(), Findings._computed

    def shown() -> list[str]:
        """The pages after a restart, which holds nothing in memory."""
        with closing(bench.coordinator()) as fresh:
            reader = Reader(fresh, run)
            return [reader.page(path).text for path in FIGURES]

    monkeypatch.setattr(Findings, "_computed", lambda _: pytest.fail("computed again"))
    first = shown()
    monkeypatch.setattr(Findings, "_computed", computed)
    for spoilt in (None, b"{}", written[:-1], written.replace(SOFTWARE.encode(), b"caps 0.0")):
        kept.unlink() if spoilt is None else kept.write_bytes(spoilt)
        assert shown() == first
        assert kept.read_bytes() == written


def test_a_figure_that_cannot_be_computed_holds_no_release_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Findings, "_computed", lambda _: {}["of Ottilie, born 1927"])
    bench, made, run = published(tmp_path)
    with closing(made):
        assert made.runs.run(run).state is State.RELEASED
        assert not (bench.folder(run) / FILE).exists()
    assert "findings not computed" in caplog.text
    assert "Ottilie" not in caplog.text


@pytest.fixture(scope="module")
def withheld(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    publication = {"measurements": False, "resamples": False}
    _, made, run = published(tmp_path_factory.mktemp("withheld"), publication=publication)
    with closing(made):
        yield Reader(made, run)


def test_what_the_agreement_withholds_no_page_shows(withheld: Reader) -> None:
    made, run = withheld.made, withheld.run
    findings = AllFindings(made.publisher).of(run)
    assert not findings.published
    assert all(one.measured is None for one in findings.one_ways)
    assert all(one.bound is None for one in findings.pairs.values())
    rows = made.publisher.file(run, "data.csv").read_text().splitlines()[1:]
    shares = np.array(findings.one_ways[1].synthetic) / findings.persons
    assert shares[1] == pytest.approx(sum(row.split(",")[1] == "yes" for row in rows) / len(rows))  # of the rows alone
    for path in PAGES:
        page = withheld.page(path)
        assert page.status_code == 200
        if path in ("/pairs", "/residuals"):
            assert "does not publish the noisy counts" in page.text
        if path == "/samples":
            assert "allows no further samples" in page.text
    for name in ("measurements", "transcript"):
        assert withheld.page(f"/{name}").status_code == 403
    answer = withheld.page("/count?by=1").text
    assert "<td>rows</td>" in answer
    assert "<td>measured</td>" not in answer
    assert withheld.get(f"/v1/releases/{run}/report", Accept="text/html").status_code == 200


def test_a_report_is_harmless_wherever_it_lies(tmp_path: Path) -> None:
    categories = [HOSTILE, "A", "B", "C"]
    columns = [*SCHEMA["columns"][:3], SCHEMA["columns"][3] | {"categories": categories}]
    schema = SCHEMA | {"columns": columns}
    _, made, run = published(tmp_path, title=f"Of {HOSTILE}", purpose=HOSTILE, schema=schema)
    with closing(made):
        reader = Reader(made, run)
        for path in PAGES:
            page = reader.page(path).text
            assert HOSTILE not in page
            assert "&lt;script&gt;alert(&#39;x&#39;)" in page
        answer = reader.get(f"/v1/releases/{run}/report", Accept="text/html,application/xhtml+xml,*/*;q=0.8")
        assert reader.get(f"/v1/releases/{run}/report", Accept="*/*").headers["content-type"] == "application/json"
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "<script" not in answer.text
    style = re.findall(r"<style>(.*?)</style>", answer.text, re.DOTALL)
    assert len(style) == 1
    allowed = b64encode(sha256(style[0].encode()).digest()).decode()
    assert f"style-src 'sha256-{allowed}'" in answer.headers["content-security-policy"]
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    assert not re.search(r"(?:src|href)=\"(?!#)", answer.text)

    def client(content: bytes) -> Client:
        return Client("https://c.test", transport=httpx.MockTransport(lambda _: httpx.Response(200, content=content)))

    with client(answer.content) as honest:
        assert honest.report_page(run) == answer.content
    for lie in (
        answer.content.replace(b"default-src", b"script-src *; default-src", 1),
        answer.content.replace(b"<head>", b"<head><script src=x></script>", 1),
        b"<!doctype html><script>alert(1)</script>",
    ):
        with client(lie) as deceived, pytest.raises(AnswerRefused, match="does not forbid scripts"):
            deceived.report_page(run)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/pairs/1/0", 404),
        ("/pairs/0/4", 404),
        ("/count?where=0.99", 422),
        ("/count?where=x", 422),
        ("/count?by=7", 422),
        ("/count?by=0&by=1&by=2", 422),
        ("/count?by=1&where=1.0", 422),
        ("/count?level=100", 422),
        ("/data/xml", 406),
    ],
)
def test_mistaken_questions_end_in_words(withheld: Reader, path: str, status: int) -> None:
    found = withheld.page(path, Accept="text/html")
    assert found.status_code == status
    assert "<h1>" in found.text
    assert withheld.get("/ui/releases/" + "0" * 32).status_code == 404
