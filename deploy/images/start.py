"""What a container runs: `start.py MODULE` becomes `python3 -m MODULE`, with the image's compiled code available.

Numba only uses a cache that it can write to, and the root file system is read-only, so the image's cache is first
copied to /tmp. On a different processor than the image's builder, code is compiled there again, in about ten seconds.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

_BROUGHT = Path("/opt/caps/compiled")


def main(module: str) -> None:
    """Never returns."""
    if _BROUGHT.is_dir():
        cache = Path(os.environ.get("NUMBA_CACHE_DIR", "/tmp/numba"))  # noqa: S108  a tmpfs of this container alone
        if not cache.exists():
            shutil.copytree(_BROUGHT, cache)
        os.environ["NUMBA_CACHE_DIR"] = str(cache)
    os.execv(sys.executable, [sys.executable, "-m", module])  # noqa: S606


if __name__ == "__main__":
    main(sys.argv[1])
