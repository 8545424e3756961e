"""How the other parties are, as `caps doctor` sees it from here: for the page that every operator has.

It is measured when the page asks for it, at most once in half a minute however many ask, and never while the page
itself is made: a party that does not answer takes its time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from threading import Lock

from fastapi import APIRouter, Depends, Request, Response

from caps import __version__
from caps.service.doctor import Doctor, Finding, Status, Subject, of_manifest
from caps.service.identity import Allow
from caps.service.pages.rendering import Pages
from caps.service.site import Site
from caps.service.tokens import Scope
from caps.study import Manifest

LASTS = 30.0
TIMEOUT = 3.0
OVERSEERS = Allow(scopes=(Scope.OPERATOR, Scope.AUDITOR))
PATH = "/federation"
_SHOWN = ("ready", "expiry", "clock", "latency")
"""The checks that have a column of their own; what went wrong in any other is told below."""


@dataclass(frozen=True)
class PartyHealth:
    """One party, as seen from here."""

    name: str
    version: str
    worst: Status
    checks: dict[str, Finding]


@dataclass(frozen=True)
class Measured:
    """All parties at one time. ill: what did not pass, with what to do."""

    at: datetime
    parties: tuple[PartyHealth, ...]
    ill: tuple[Finding, ...]


class Health:
    """The health of the parties of some studies, measured from a site."""

    def __init__(self, site: Site, manifests: Callable[[], Iterable[Manifest]]) -> None:
        self._site = site
        self._manifests = manifests
        self._lock = Lock()
        self._last: tuple[float, Measured] | None = None

    def measured(self) -> Measured:
        """As of now, or of the last half minute."""
        with self._lock:
            if self._last is None or time.monotonic() - self._last[0] > LASTS:
                found = self._measure()
                self._last = time.monotonic(), found
            return self._last[1]

    def _measure(self) -> Measured:
        doctor = Doctor(self._site.settings.home, clock=self._site.clock, timeout=TIMEOUT, bandwidth=False)
        others: dict[tuple[str, str, str], Subject] = {}
        for manifest in self._manifests():
            others |= {(str(one), one.pin, one.url or ""): one for one in of_manifest(manifest) if one.url is not None}
        findings = list(doctor.examine_others(list(others.values())))
        by_party: dict[str, list[Finding]] = {}
        for one in findings:
            by_party.setdefault(one.subject, []).append(one)
        ranks = list(Status)
        parties = tuple(
            PartyHealth(
                name,
                doctor.versions.get(name, ""),
                max((one.status for one in told if one.status is not Status.SKIPPED), key=ranks.index),
                {one.check: one for one in told if one.check in _SHOWN},
            )
            for name, told in by_party.items()
            if name != "federation"
        )
        ill = tuple(one for one in findings if one.status in (Status.WARNING, Status.FAILED))
        return Measured(self._site.now(), parties, ill)


def add_routes(
    routes: APIRouter, pages: Pages, site: Site, health: Health, peers: Callable[[], list[tuple[str, str]]] = list
) -> None:
    """The page, and the part that is measured when it is shown. peers: what this service itself says of others."""

    @routes.get(PATH, dependencies=[Depends(OVERSEERS)])
    def federation(request: Request) -> Response:
        """How this party and the others are."""
        now, days = site.now(), {}
        for name, end in site.expiries().items():
            days[name] = (end - now).days
        return pages.page(
            request, "federation.html", own_version=__version__, days=days, reasons=site.expired(), peers=peers()
        )

    @routes.get(f"{PATH}/health", dependencies=[Depends(OVERSEERS)])
    def measured(request: Request) -> Response:
        """The others, measured now."""
        return pages.page(request, "federation_part.html", found=health.measured())
