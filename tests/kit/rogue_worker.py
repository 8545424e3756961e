"""A worker that fails in the way that the variable ROGUE_WORKER says, and a pool that has some of them."""

from __future__ import annotations

import json
import mmap
import os
import signal
import sys
import time

from services.mpc_server.workers.pool import Pool
from services.mpc_server.workers.process import perform

WRONG = "ROGUE_WORKER"


class Mixed(Pool):
    """A pool in which each worker does what its place in a list says."""

    def __init__(self, *behaviours: str) -> None:
        super().__init__(len(behaviours), module="tests.kit.rogue_worker")
        self._behaviours = behaviours
        self.dismissed: dict[str, str] = {}

    def _start(self) -> None:
        os.environ[WRONG] = self._behaviours[self._started % self._size]
        super()._start()

    def dismiss(self, worker: str, reason: str) -> None:
        if worker in self._processes:
            self.dismissed[worker] = reason
        super().dismiss(worker, reason)


def lie(file: int, result: tuple[int, int]) -> None:
    """One wrong bit of the last sum: the highest that matters in Z_2^16, and not the lowest in Z_2^22."""
    with mmap.mmap(file, os.fstat(file).st_size) as memory:
        memory[result[1] - 8 + 1] ^= 0x80
    os.write(1, b"done\n")


def main(wrong: str, file: int) -> None:
    for line in sys.stdin.buffer:
        header = json.loads(line)
        perform(file, header)
        match wrong:
            case "lies":
                lie(file, header["result"])
            case "misjudges" if "secret" in header:
                lie(file, header["result"])
            case "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stalls":
                time.sleep(600)
            case "babbles":
                os.write(1, b'{"done": true}\n')
            case "raises":
                sys.exit(3)
            case _:
                os.write(1, b"done\n")


if __name__ == "__main__":
    main(os.environ[WRONG], int(sys.argv[1]))
