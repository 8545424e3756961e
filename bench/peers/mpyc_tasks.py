"""One party of MPyC (Shamir sharing over a prime field), with its NumPy arrays. Runs in `.venv-peers`."""

import sys
from typing import Any

import numpy as np

from bench.peers.tasks import Task, expected, inputs
from bench.peers.worker import Commands, serve

GRAM_BITS = 17


class Mpyc:
    """One party. The runtime is MPyC's own global, which reads its options from the command line when imported."""

    def __init__(self) -> None:
        from mpyc import asyncoro
        from mpyc.runtime import mpc

        self._mpc = mpc
        self._started = False
        self._messages = 0
        send = asyncoro.MessageExchanger.send

        def counted(link: Any, label: Any, payload: Any) -> None:
            self._messages += 1
            send(link, label, payload)

        asyncoro.MessageExchanger.send = counted

    def run_until_complete(self, coroutine: Any) -> None:
        """On MPyC's own event loop, which its secret values are bound to."""
        self._mpc.run(coroutine)

    async def prepare(self, task: Task) -> None:
        """Integers of 64 bits, as the task asks; of 17 for Gram matrices, which is all that counts to 50,000 need."""
        if not self._started:
            await self._mpc.start()
            self._started = True
        self._task = task
        secret = self._mpc.SecInt(GRAM_BITS if task.kind == "gram" else 64)
        self._arrays = inputs(task)
        shared = [self._mpc.input(secret.array(array.astype(object)), senders=0) for array in self._arrays]
        if task.kind == "sequential_mul":
            shared = [array[0] for array in shared]
        await self._mpc.gather(shared)
        self._shared = shared

    async def run(self) -> None:
        before = self._sent()
        self._result = self._compute()
        await self._mpc.gather(self._result)
        after = self._sent()
        self._last = {"bytes": after[0] - before[0], "messages": after[1] - before[1]}

    async def cost(self) -> dict[str, int]:
        return self._last

    async def verify(self) -> bool:
        result = await self._mpc.output(self._result, receivers=0)
        if self._mpc.pid != 0:
            return True
        answer = np.array([int(result)] if self._task.kind == "sequential_mul" else result, dtype=np.int64)
        return bool(np.array_equal(answer, expected(self._task, *self._arrays)))

    def _compute(self) -> Any:
        x, *rest = self._shared
        match self._task.kind:
            case "gram":
                return self._mpc.np_matmul(self._mpc.np_transpose(x), x)
            case "mul":
                return self._mpc.np_multiply(x, rest[0])
            case "less_than":
                return self._mpc.np_less(x, rest[0])
            case "equal":
                return self._mpc.np_equal(x, rest[0])
            case "sequential_mul":
                for _ in range(self._task.rows):
                    x = x * rest[0]
                return x
            case other:
                raise ValueError(f"MPyC is not measured on {other}")

    def _sent(self) -> tuple[int, int]:
        links = [peer.protocol for peer in self._mpc.parties if peer.pid != self._mpc.pid]
        return sum(link.nbytes_sent for link in links), self._messages // len(links)


def main() -> None:
    commands = Commands()
    config = commands.read()
    if config is None:
        return
    addresses = [f"-P127.0.0.1:{port}" for port in config["ports"]]
    sys.argv = [sys.argv[0], *addresses, "-I", str(config["rank"]), "--no-log", *(["--ssl"] if config["tls"] else [])]
    engine = Mpyc()
    engine.run_until_complete(serve(commands, engine))


if __name__ == "__main__":
    main()
