"""Run a holder: `python -m services.holder`, with CAPS_HOME and the like in the environment."""

from __future__ import annotations

import sys

from caps.service import logs
from caps.service.serve import begin, serve
from caps.service.site import Settings, Site
from services.holder.api import holder_app
from services.holder.service import HolderService
from services.holder.settings import Options


def main() -> None:
    """Serve until told to stop."""
    settings = Settings.from_environment().take()
    site = Site(settings, role="holder")
    logs.set_up("holder", site.name, level=settings.log_level)
    app = holder_app(HolderService(site, Options.from_environment()))
    serve(app, site.credentials, host=settings.host, port=settings.port, people=site.people)


if __name__ == "__main__":
    sys.exit(begin("holder", main))
