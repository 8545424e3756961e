"""How a server process uses its machine: one thread for BLAS, one for the event loop.

Three servers on two cores that each start a BLAS thread per core spend their time waiting for each other. A server's
work is one stream of numpy calls between messages, so one thread is also what it can use.
"""

from __future__ import annotations

from collections.abc import Mapping

_THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def worker_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for a server process. An operator's own setting of a variable stands."""
    return {**dict.fromkeys(_THREAD_VARIABLES, "1"), **environment}
