"""How a server process uses its machine: one thread for BLAS, one for the event loop, and memory that it keeps.

Three servers on two cores that each start a BLAS thread per core spend their time waiting for each other. A server's
work is one stream of numpy calls between messages, so one thread is also what it can use.

Every step of a protocol allocates arrays of some hundred kilobytes and frees them. By default the C library gives such
memory back to the kernel at once, which has to clear it anew for the next step: up to a quarter of a join's processor
time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

_THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST_KEPT = 32 << 20
"""Bytes of the largest block that is kept when it is freed: as far as glibc's own adjustment goes."""


def worker_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for a server process. An operator's own setting of a variable stands."""
    return {**dict.fromkeys(_THREAD_VARIABLES, "1"), **environment}


def keep_freed_memory() -> bool:
    """Have the C library reuse freed memory, up to twice the largest block. False if it is not glibc."""
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is None:
        return False
    return bool(set_option(_MMAP_THRESHOLD, _LARGEST_KEPT) and set_option(_TRIM_THRESHOLD, 2 * _LARGEST_KEPT))
