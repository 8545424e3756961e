"""A worker that is a process of the leader's machine: `python -m services.mpc_server.workers.process FILE`.

FILE is the number of the open file whose memory it shares with the leader. It reads tasks from its standard input, a
line of JSON each, until that ends, writes sums to the shared memory and says that it has.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
from typing import Any

from services.mpc_server.process import keep_freed_memory
from services.mpc_server.workers.tasks import apart, performed


def perform(file: int, header: dict[str, Any]) -> None:
    """One task."""
    start, stop = header["result"]
    with mmap.mmap(file, os.fstat(file).st_size) as memory:
        with memoryview(memory) as shared:
            # What is computed must not change while it is, nor keep the memory from being closed.
            sent = bytes(shared[: header["sent"]])
        memory[start:stop] = performed(apart(header, memoryview(sent)))


def main(file: int) -> None:
    """Perform tasks until there are no more."""
    keep_freed_memory()
    for line in sys.stdin.buffer:
        perform(file, json.loads(line))
        os.write(sys.stdout.fileno(), b"done\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
