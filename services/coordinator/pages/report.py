"""The report of a release as one file: the figures of its pages, with the style in it, without any script."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from typing import Any

from fastapi import Request, Response
from markupsafe import Markup

from caps.basics import canonical
from caps.basics.recent import Recent
from caps.dp.privacy import PrivacyStatement
from caps.service.pages.rendering import Pages
from caps.wire import media
from services.coordinator import content
from services.coordinator.findings import AllFindings, Findings
from services.coordinator.pages import figures

MOST_KEPT = 8
STYLES = ("style.css", "release.css")


def shared(findings: Findings) -> dict[str, Any]:
    """What the map of pairs needs, on its page and in the report."""
    words = {columns: figures.pair_words(findings, pair) for columns, pair in findings.pairs.items()}
    return {"legend": figures.LEGEND, "marks": figures.MARKS, "words": words}


class Reports:
    """Makes reports, and keeps the last ones."""

    def __init__(self, pages: Pages, found: AllFindings) -> None:
        self._pages = pages
        self._found = found
        self._kept: Recent[str, bytes] = Recent(MOST_KEPT)
        self._style = "".join(pages.static.text(name) for name in STYLES)
        digest = b64encode(sha256(self._style.encode()).digest()).decode()
        self.policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
        """For the file wherever it lies; where a service sends it, nobody may frame it either."""

    def html(self, release: str) -> bytes:
        """The report. Raises Problem if there is no such release."""
        findings = self._found.of(release)
        return self._kept.find(release) or self._kept.keep(release, self._made(findings))

    def send(self, request: Request, release: str) -> Response:
        """The response."""
        text = self.html(release)
        response = content.send(
            request, text, content.entry_of(text), media_type=f"{media.HTML}; charset=utf-8", varies=True
        )
        response.headers["Content-Security-Policy"] = f"{self.policy}; frame-ancestors 'none'"
        return response

    def _made(self, findings: Findings) -> bytes:
        certificate = findings.release.certificate
        attested = certificate.attestations[0].document
        return self._pages.file(
            "report.html",
            release=findings.release,
            manifest=findings.manifest,
            body=certificate.release.document,
            attested=attested,
            statement=PrivacyStatement.from_json(canonical.dump(attested.statement)),
            findings=findings,
            listed=[figures.bars_of(one, shares=False) for one in findings.one_ways],
            graph=figures.graph_of(findings),
            level=figures.association_level,
            style=Markup(self._style),  # noqa: S704  our own files
            policy=self.policy,
            **shared(findings),
        ).encode()
