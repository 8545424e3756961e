"""One party's side of a measurement: obeys the commands that `bench.peers.parties` writes to its standard input.

Commands and replies are JSON, one per line. The first line is the configuration. `run` starts the clocks when it is
received and answers when this party has its share of the result; `usage` is asked only when all parties have, so that
the processor time includes what a party still does for the others after it has finished.
"""

import asyncio
import json
import os
import resource
import sys
import time
from typing import Any, Protocol, TextIO

from bench.peers.tasks import Task, from_wire


class Engine(Protocol):
    """What a peer has to offer to be measured."""

    async def prepare(self, task: Task) -> None:
        """Shares random inputs of the task among the parties and readies whatever is compiled once."""

    async def run(self) -> None:
        """Computes the task on the shared inputs, as far as this party's share of the result."""

    async def cost(self) -> dict[str, int]:
        """`bytes` and `messages` this party sends in one run; may run the task once more, and is never timed."""

    async def verify(self) -> bool:
        """Whether the last result is right; only the party that made the inputs knows, the others say True."""


class Commands:
    """The pipe to the parent. Takes standard output for itself: what a library prints goes to standard error."""

    def __init__(self) -> None:
        self._replies: TextIO = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def read(self) -> dict[str, Any] | None:
        line = sys.stdin.readline()
        return json.loads(line) if line else None

    def reply(self, **fields: Any) -> None:
        self._replies.write(json.dumps(fields) + "\n")
        self._replies.flush()


async def serve(commands: Commands, engine: Engine) -> None:
    """Obeys until the parent closes the pipe.

    The pipe is read in a thread: a party that blocked its event loop could not send what the others still wait for.
    """
    processor = 0.0
    commands.reply(ready=True)
    while (message := await asyncio.get_running_loop().run_in_executor(None, commands.read)) is not None:
        match message["command"]:
            case "prepare":
                await engine.prepare(from_wire(message["task"]))
                commands.reply()
            case "run":
                processor = processor_seconds()
                start = time.monotonic()
                await engine.run()
                commands.reply(start=start, end=time.monotonic())
            case "usage":
                commands.reply(cpu=processor_seconds() - processor)
            case "cost":
                commands.reply(**await engine.cost())
            case "verify":
                commands.reply(correct=await engine.verify())
            case unknown:
                raise ValueError(f"unknown command {unknown!r}")


def processor_seconds() -> float:
    """User and system time of this process, all its threads, and its finished children."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
