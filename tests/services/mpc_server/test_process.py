"""How a server process uses its machine."""

from __future__ import annotations

import subprocess
import sys

import pytest

from services.mpc_server.process import worker_environment

pytestmark = pytest.mark.integration

_FAULTS = """
import resource, sys
import numpy as np
from services.mpc_server.process import keep_freed_memory

if sys.argv[1] == "kept" and not keep_freed_memory():
    sys.exit("not glibc")

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def step():
    return [np.ones(size, np.uint8) for size in (100_000, 10**6, 10**7)]

step()
before = faults()
for _ in range(50):
    step()
print(faults() - before)
"""


def page_faults(how: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", _FAULTS, how],
        check=False,
        capture_output=True,
        text=True,
    )
    if "not glibc" in done.stderr:
        pytest.skip("this C library has its own ways")
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_freed_memory_is_used_again() -> None:
    """Pages come from the kernel once, not once for each step."""
    assert page_faults("kept") < page_faults("as it is") / 5


def test_an_operators_own_setting_stands() -> None:
    found = worker_environment({"OMP_NUM_THREADS": "7", "HOME": "/nowhere"})
    assert found["OMP_NUM_THREADS"] == "7"
    assert found["HOME"] == "/nowhere"
    assert found["OPENBLAS_NUM_THREADS"] == "1"
