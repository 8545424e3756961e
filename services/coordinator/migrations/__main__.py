"""`python -m services.coordinator.migrations`: migrate its database; see `caps.service.migrate`."""

from __future__ import annotations

import sys

from caps.service.migrate import main
from services.coordinator.tables import metadata

if __name__ == "__main__":
    sys.exit(main("services.coordinator.migrations", metadata))
