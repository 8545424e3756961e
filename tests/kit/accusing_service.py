"""`python -m tests.kit.accusing_service services.mpc_server`: a server that finds a check on shares failed.

In the step whose number is in CAPS_ACCUSE_STEP, the check of what is about to be opened fails, as the engine's guard
would say it: the session is aborted and S1 and S2 are named. What comes before and after is the service's own.
"""

from __future__ import annotations

import os

from caps.dp.oracle import Request
from caps.errors import CheatingDetected
from services.mpc_server.runs.steps import Computation
from tests.kit.wrapping import run

PAIR = (0, 1)


def install(step: int) -> None:
    """Have the check before a step's opening fail; steps are counted from 1, as after COMPUTE ANSWERS."""
    genuine, opened = Computation.open, [0]

    async def accusing(self: Computation, request: Request) -> int | tuple[int, ...]:
        opened[0] += 1
        if opened[0] != step:
            return await genuine(self, request)
        error = CheatingDetected(PAIR)
        await self._runtime.channel.abort(str(error), error.party)
        raise error

    Computation.open = accusing  # type: ignore[method-assign]


if __name__ == "__main__":
    install(int(os.environ["CAPS_ACCUSE_STEP"]))
    run()
