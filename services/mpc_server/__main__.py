"""`python -m services.mpc_server`: run one MPC server. Settings come from the environment; see `settings`."""

from __future__ import annotations

import logging
import os
import sys

from services.mpc_server.process import worker_environment

os.environ.update(worker_environment(os.environ))  # before numpy starts its threads

from caps.errors import CapsError
from services.mpc_server.service import MpcServer
from services.mpc_server.settings import ServerSettings


def main() -> int:
    """Serve; 2 if the settings or keys are of no use."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        MpcServer(ServerSettings.from_environment()).serve()
    except (CapsError, OSError) as error:
        sys.stderr.write(f"caps mpc-server: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
