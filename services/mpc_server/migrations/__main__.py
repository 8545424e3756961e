"""`python -m services.mpc_server.migrations`: migrate its database; see `caps.service.migrate`."""

from __future__ import annotations

import sys

from caps.service.migrate import main
from services.mpc_server.storage.tables import metadata

if __name__ == "__main__":
    sys.exit(main("services.mpc_server.migrations", metadata))
