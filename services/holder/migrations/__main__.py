"""`python -m services.holder.migrations`: migrate its database; see `caps.service.migrate`."""

from __future__ import annotations

import sys

from caps.service.migrate import main
from services.holder.tables import metadata

if __name__ == "__main__":
    sys.exit(main("services.holder.migrations", metadata))
