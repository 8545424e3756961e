"""`python -m services.mpc_server`: run one MPC server. Settings come from the environment; see `settings`."""

from __future__ import annotations

import os
import sys

from services.mpc_server.process import keep_freed_memory, worker_environment

os.environ.update(worker_environment(os.environ))  # before numpy starts its threads

from caps.service import logs
from caps.service.serve import begin
from services.mpc_server.service import MpcServer
from services.mpc_server.settings import ServerSettings


def main() -> None:
    """Serve until told to stop."""
    keep_freed_memory()
    settings = ServerSettings.from_environment()
    logs.set_up("mpc-server", "", level=settings.base.log_level)
    settings.base.take()
    server = MpcServer(settings)
    logs.set_up("mpc-server", server.name, level=settings.base.log_level)
    server.serve()


if __name__ == "__main__":
    sys.exit(begin("mpc-server", main))
