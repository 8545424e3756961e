"""One party of SPU (ABY3 over Z_2^64), driven without its compiler. Runs in `.venv-peers`.

The programs are PPHLO, SPU's own instruction language, with the operations its compiler makes of the corresponding JAX
expressions (less the freeing of temporaries); handing them over as text leaves JAX out of what is measured.

OMP_THREAD_LIMIT=1 in the environment matters on two cores, where its threads fight otherwise. The other settings that
are not SPU's own (messages up to 32 MiB, no splitting of matrix products, a loop rather than 1,000 instructions) did
better in one short comparison each, by no more than a busy machine's noise; the second also halves the bytes.
"""

import asyncio
import re
from pathlib import Path
from typing import Any

import numpy as np
import spu
from spu import libspu

from bench.peers.tasks import Task, expected, inputs
from bench.peers.worker import Commands, serve

PARTIES = 3
LINK_DETAILS = re.compile(r"Link details: total send bytes (\d+), recv bytes \d+, send actions (\d+)")


def program(task: Task) -> str:
    vector = f"tensor<{task.rows}x!pphlo.secret<i64>>"
    bits = f"tensor<{task.rows}x!pphlo.secret<i1>>"
    one = "tensor<1x!pphlo.secret<i64>>"
    match task.kind:
        case "mul":
            return _main(f"%x: {vector}, %y: {vector}", vector, f"%z = pphlo.multiply %x, %y : {vector}")
        case "less_than" | "equal":
            operation = "less" if task.kind == "less_than" else "equal"
            body = f"%z = pphlo.{operation} %x, %y : ({vector}, {vector}) -> {bits}"
            return _main(f"%x: {vector}, %y: {vector}", bits, body)
        case "less_than_ring" | "equal_ring":
            operation = "less" if task.kind == "less_than_ring" else "equal"
            body = (
                f"%b = pphlo.{operation} %x, %y : ({vector}, {vector}) -> {bits}\n"
                f"    %c = pphlo.convert %b : ({bits}) -> {vector}\n"
                f"    %z = pphlo.add %c, %x : {vector}"
            )
            return _main(f"%x: {vector}, %y: {vector}", vector, body)
        case "sequential_mul":
            body = (
                "%zero = pphlo.constant dense<0> : tensor<i64>\n"
                "    %one = pphlo.constant dense<1> : tensor<i64>\n"
                f"    %many = pphlo.constant dense<{task.rows}> : tensor<i64>\n"
                f"    %i, %z = pphlo.while(%j = %zero, %v = %x) : tensor<i64>, {one}\n"
                "    cond {\n"
                "      %more = pphlo.less %j, %many : (tensor<i64>, tensor<i64>) -> tensor<i1>\n"
                "      pphlo.return %more : tensor<i1>\n"
                "    } do {\n"
                "      %k = pphlo.add %j, %one : tensor<i64>\n"
                f"      %w = pphlo.multiply %v, %y : {one}\n"
                f"      pphlo.return %k, %w : tensor<i64>, {one}\n"
                "    }"
            )
            return _main(f"%x: {one}, %y: {one}", one, body)
        case "gram":
            matrix = f"tensor<{task.rows}x{task.columns}x!pphlo.secret<i64>>"
            turned = f"tensor<{task.columns}x{task.rows}x!pphlo.secret<i64>>"
            square = f"tensor<{task.columns}x{task.columns}x!pphlo.secret<i64>>"
            body = (
                f"%t = pphlo.transpose %x, dims = [1, 0] : ({matrix}) -> {turned}\n"
                f"    %z = pphlo.dot %t, %x : ({turned}, {matrix}) -> {square}"
            )
            return _main(f"%x: {matrix}", square, body)
        case "select":
            return _select(task.rows, task.columns)
        case other:
            raise ValueError(f"SPU is not measured on {other}")


def _select(rows: int, columns: int) -> str:
    """Sums of absolute differences, then a tournament of pairs, as SPU's compiler makes of an argmax."""

    def secret(n: int, width: int = 1, kind: str = "i64") -> str:
        return f"tensor<{n}x{width}x!pphlo.secret<{kind}>>"

    matrix, padded = secret(rows, columns), 1 << (rows - 1).bit_length()
    numbers = ", ".join(f"[{i}]" for i in range(padded))
    lines = [
        f"%zero = pphlo.constant dense<0> : tensor<{rows}x{columns}xi64>",
        f"%d = pphlo.subtract %x, %y : {matrix}",
        f"%below = pphlo.less %d, %zero : ({matrix}, tensor<{rows}x{columns}xi64>) -> {secret(rows, columns, 'i1')}",
        f"%minus = pphlo.negate %d : {matrix}",
        f"%size = pphlo.select %below, %minus, %d : ({secret(rows, columns, 'i1')}, {matrix}, {matrix}) -> {matrix}",
        f"%ones = pphlo.constant dense<1> : tensor<{columns}x1xi64>",
        f"%sum = pphlo.dot %size, %ones : ({matrix}, tensor<{columns}x1xi64>) -> {secret(rows)}",
        "%least = pphlo.constant dense<-1> : tensor<i64>",
        "%filling = pphlo.convert %least : (tensor<i64>) -> tensor<!pphlo.secret<i64>>",
        f"%s{padded} = pphlo.pad %sum, %filling, low = [0, 0], high = [{padded - rows}, 0], interior = [0, 0] : "
        f"({secret(rows)}, tensor<!pphlo.secret<i64>>) -> {secret(padded)}",
        f"%numbers = pphlo.constant dense<[{numbers}]> : tensor<{padded}x1xi64>",
        f"%i{padded} = pphlo.convert %numbers : (tensor<{padded}x1xi64>) -> {secret(padded)}",
    ]
    size = padded
    while size > 1:
        half = size // 2
        for what in "si":
            for name, start in (("a", 0), ("b", half)):
                part = f"%{what}{name}{half} = pphlo.slice %{what}{size} [{start}:1:{start + half}, 0:1:1]"
                lines.append(f"{part} : ({secret(size)}) -> {secret(half)}")
        less = f"({secret(half)}, {secret(half)}) -> {secret(half, 1, 'i1')}"
        lines.append(f"%c{half} = pphlo.less %sa{half}, %sb{half} : {less}")
        for what in "si":
            chosen = f"%{what}{half} = pphlo.select %c{half}, %{what}b{half}, %{what}a{half}"
            kinds = f"({secret(half, 1, 'i1')}, {secret(half)}, {secret(half)}) -> {secret(half)}"
            lines.append(f"{chosen} : {kinds}")
        size = half
    body = "\n    ".join(lines).replace("%i1 = ", "%z = ")
    return _main(f"%x: {matrix}, %y: {matrix}", secret(1), body)


def _main(arguments: str, result: str, body: str) -> str:
    return (
        f'module attributes {{pphlo.version = "{spu.__version__}"}} {{\n'
        f"  func.func @main({arguments}) -> {result} {{\n    {body}\n    return %z : {result}\n  }}\n}}\n"
    )


class Spu:
    """One party: a TLS link to the other two, and a runtime on it."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._rank: int = config["rank"]
        self._log = Path(config["directory"]) / f"spu-{self._rank}.log"
        options = libspu.logging.LogOptions()
        options.enable_console_logger = False
        options.system_log_path = str(self._log)
        options.log_level = libspu.logging.LogLevel.INFO
        libspu.logging.setup_logging(options)
        self._link = libspu.link.create_brpc(_link_description(config), self._rank)
        settings = libspu.RuntimeConfig(protocol=libspu.ProtocolKind.ABY3, field=libspu.FieldType.FM64)
        settings.experimental_disable_mmul_split = True
        self._runtime = spu.Runtime(self._link, settings)
        self._io = spu.Io(PARTIES, settings)
        profiled = libspu.RuntimeConfig(settings)
        profiled.enable_pphlo_profile = True
        self._profiled = spu.Runtime(self._link, profiled)
        self._names: list[str] = []
        self._arrays: tuple[np.ndarray[Any, Any], ...] = ()

    async def prepare(self, task: Task) -> None:
        for name in self._names:
            self._runtime.del_var(name)
            self._profiled.del_var(name)
        self._task = task
        self._names = ["x"] if task.kind == "gram" else ["x", "y"]
        self._executable = libspu.Executable(
            name=task.name, input_names=self._names, output_names=["z"], code=program(task)
        )
        if self._rank == 0:
            self._arrays = inputs(task)
        for i, name in enumerate(self._names):
            share = self._deal(self._arrays[i]) if self._rank == 0 else self._receive(0)
            self._runtime.set_var(name, share)
            self._profiled.set_var(name, share)

    async def run(self) -> None:
        self._runtime.run(self._executable)

    async def cost(self) -> dict[str, int]:
        self._profiled.run(self._executable)
        found = LINK_DETAILS.findall(self._log.read_text())
        if not found:
            raise RuntimeError("SPU did not log what its link carried")
        sent, actions = found[-1]
        return {"bytes": int(sent), "messages": int(actions)}

    async def verify(self) -> bool:
        share = self._runtime.get_var("z")
        if self._rank != 0:
            self._send(0, share)
            return True
        result = self._io.reconstruct([share, *(self._receive(rank) for rank in range(1, PARTIES))])
        return bool(np.array_equal(result, expected(self._task, *self._arrays)))

    def _deal(self, array: np.ndarray[Any, Any]) -> Any:
        mine, *others = self._io.make_shares(array, libspu.Visibility.VIS_SECRET)
        for rank, share in enumerate(others, start=1):
            self._send(rank, share)
        return mine

    def _send(self, rank: int, share: Any) -> None:
        self._link.send(rank, share.meta)
        self._link.send(rank, len(share.share_chunks).to_bytes(8, "little"))
        for chunk in share.share_chunks:
            self._link.send(rank, chunk)

    def _receive(self, rank: int) -> Any:
        share = libspu.Share()
        share.meta = self._link.recv(rank)
        count = int.from_bytes(self._link.recv(rank), "little")
        share.share_chunks = [self._link.recv(rank) for _ in range(count)]
        return share


def _link_description(config: dict[str, Any]) -> Any:
    description = libspu.link.Desc()
    for rank, port in enumerate(config["ports"]):
        description.add_party(f"party-{rank}", f"127.0.0.1:{port}")
    description.connect_retry_times = 100
    description.connect_retry_interval_ms = 100
    description.recv_timeout_ms = 120_000
    description.http_max_payload_size = 32 * 2**20
    if config["tls"]:
        description.enable_ssl = True
        for options in (description.server_ssl_opts, description.client_ssl_opts):
            options.cert.certificate_path = config["certificate"]
            options.cert.private_key_path = config["key"]
            options.verify.verify_depth = 1
            options.verify.ca_file_path = config["ca"]
    return description


def main() -> None:
    commands = Commands()
    config = commands.read()
    if config is not None:
        asyncio.run(serve(commands, Spu(config)))


if __name__ == "__main__":
    main()
