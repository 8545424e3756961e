"""`python -m tests.kit.rebuilt MODULE`: an MPC server that takes itself for another build of the software."""

from __future__ import annotations

from hashlib import sha256

import services.mpc_server.service
from tests.kit.wrapping import run


def install() -> None:
    """Have the service compute another digest."""
    genuine = services.mpc_server.service.build_digest
    services.mpc_server.service.build_digest = lambda: sha256(genuine().encode()).hexdigest()


if __name__ == "__main__":
    install()
    run()
