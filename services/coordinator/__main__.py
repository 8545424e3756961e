"""`python -m services.coordinator`: the coordinator, as the environment sets it up (see `caps.service.site`)."""

from __future__ import annotations

import sys

from caps.service import logs
from caps.service.news import NewsSettings
from caps.service.serve import begin, serve
from caps.service.site import Settings, Site
from services.coordinator.service import ROLE, Coordinator
from services.coordinator.settings import Quotas


def main() -> None:
    """Serve until told to stop."""
    settings = Settings.from_environment().take()
    site = Site(settings, role=ROLE)
    logs.set_up(ROLE, site.name, level=settings.log_level)
    coordinator = Coordinator.of(site, quotas=Quotas.from_environment(), news=NewsSettings.from_environment())
    serve(coordinator.app(), site.credentials, host=settings.host, port=settings.port, people=site.people)


if __name__ == "__main__":
    sys.exit(begin(ROLE, main))
