"""`python -m services.coordinator`: the coordinator, as the environment sets it up (see `caps.service.site`)."""

from __future__ import annotations

import logging

from caps.service.serve import serve
from caps.service.site import Settings, Site
from services.coordinator.service import ROLE, Coordinator


def main() -> None:
    """Serve until told to stop."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    settings = Settings.from_environment()
    coordinator = Coordinator.of(Site(settings, role=ROLE))
    serve(coordinator.app(), coordinator.site.credentials, host=settings.host, port=settings.port)


if __name__ == "__main__":
    main()
