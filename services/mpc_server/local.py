"""The MPC servers of a scheme as processes of this host, over real mutual TLS with certificates made for the occasion.

For demonstrations, benchmarks and tests. All parties on one host, one owner of all keys: non-collusion is NOT met, so
nothing private may be given to it.

A task is an importable coroutine function `task(party: Runtime, **parameters)` that returns something JSON can hold.
One with a parameter `requests` is given what the starting process asks, one at a time, and answers each (`Requests`).
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import uvloop

from caps.basics.schemes import REP3, SCHEMES, Scheme
from caps.errors import CapsError, PeerAborted, PeerError, party_name
from caps.trust.pki import Authority, generate_key, role_uri, write_key, write_pem
from caps.trust.tls import Credentials
from services.mpc_server.engine.runtime import Runtime
from services.mpc_server.process import keep_freed_memory, worker_environment
from services.mpc_server.transport.components import component_secrets
from services.mpc_server.transport.hello import Agreement, scheme_field
from services.mpc_server.transport.tls import Endpoint, Limits, connect

ROOT = Path(__file__).resolve().parents[2]
STUDY = sha256(b"local servers, no private data").digest()


@dataclass
class Report:
    """What became of one server: its task's result, or the error it ended with."""

    party: int
    exit_code: int
    result: Any = None
    error: dict[str, Any] | None = None
    stderr: str = ""


class LocalServers:
    """The processes of one task. `processes[p]` may be signalled while they run."""

    def __init__(self, processes: list[subprocess.Popen[str]]) -> None:
        self.processes = processes

    def ask(self, request: Any) -> list[Any]:
        """Put a request to all servers and return their answers. Raises RuntimeError if one has ended."""
        line = json.dumps(request) + "\n"
        for process in self.processes:
            assert process.stdin is not None
            try:
                process.stdin.write(line)
                process.stdin.flush()
            except BrokenPipeError:
                break
        answers = [process.stdout.readline() if process.stdout else "" for process in self.processes]
        replies = [json.loads(answer) if answer else {} for answer in answers]
        for party, reply in enumerate(replies):
            if "answer" not in reply:
                raise RuntimeError(f"{party_name(party)} ended: {reply.get('error', 'without an error message')}")
        return [reply["answer"] for reply in replies]

    def end_requests(self) -> None:
        """Tell the servers that there are no more requests, so that their tasks end."""
        for process in self.processes:
            if process.stdin is not None:
                process.stdin.close()
                process.stdin = None

    def kill(self, party: int, how: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to one server."""
        self.processes[party].send_signal(how)

    def wait(self, timeout: float) -> list[Report]:
        """Every server's report. Servers still running at the time-out are killed, which their report then shows."""

        def finished(process: subprocess.Popen[str]) -> tuple[str, str]:
            try:
                return process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                return process.communicate()

        # All at once: a long report needs a reader when it is written, not when its turn comes.
        with ThreadPoolExecutor(len(self.processes)) as readers:
            outputs = list(readers.map(finished, self.processes))
        reports = []
        for party, (process, (out, err)) in enumerate(zip(self.processes, outputs, strict=True)):
            report = json.loads(out.splitlines()[-1]) if out.strip() else {}
            reports.append(Report(party, process.returncode, report.get("result"), report.get("error"), err))
        return reports


def _certify(directory: Path, now: dt.datetime, scheme: Scheme) -> None:
    """An authority and a certificate for each server, good for a day."""
    valid = {"not_before": now - dt.timedelta(minutes=5), "not_after": now + dt.timedelta(days=1)}
    authority = Authority.create("CaPS, one host, for demonstration only", **valid)
    write_pem(directory / "authority.crt", authority.certificate)
    for party in range(scheme.parties):
        name, key = party_name(party), generate_key()
        certificate = authority.issue(
            key.public_key(), subject=name, uris=[role_uri("mpc-server", name)], hosts=["127.0.0.1"], **valid
        )
        write_key(directory / f"{name}.key", key)
        write_pem(directory / f"{name}.crt", certificate)


@contextmanager
def local_servers(
    task: str,
    parameters: Mapping[str, Any] | None = None,
    *,
    per_party: Mapping[int, Mapping[str, Any]] | None = None,
    scheme: Scheme = REP3,
    stall: float = 60.0,
) -> Iterator[LocalServers]:
    """Start a scheme's servers on free ports of the loopback interface and have each run `task` ("module:function")."""
    with tempfile.TemporaryDirectory(prefix="caps-local-") as scratch:
        directory = Path(scratch)
        _certify(directory, dt.datetime.now(dt.UTC), scheme)
        listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(scheme.parties)]
        processes: list[subprocess.Popen[str]] = []
        try:
            for party, listener in enumerate(listeners):
                specification = {
                    "party": party,
                    "listener": listener.fileno(),
                    "ports": [other.getsockname()[1] for other in listeners],
                    "directory": scratch,
                    "task": task,
                    "parameters": {**(parameters or {}), **(per_party or {}).get(party, {})},
                    "stall": stall,
                    "scheme": scheme.name,
                }
                processes.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "services.mpc_server.local", json.dumps(specification)],
                        cwd=ROOT,
                        env=worker_environment(os.environ),
                        pass_fds=[listener.fileno()],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE,
                        text=True,
                    )
                )
            for listener in listeners:
                listener.close()
            yield LocalServers(processes)
        finally:
            for listener in listeners:
                listener.close()
            for process in processes:
                if process.poll() is None:
                    process.kill()
                process.wait()
                for stream in (process.stdin, process.stdout, process.stderr):
                    if stream is not None:
                        stream.close()


def run_task(
    task: str,
    parameters: Mapping[str, Any] | None = None,
    *,
    per_party: Mapping[int, Mapping[str, Any]] | None = None,
    scheme: Scheme = REP3,
    timeout: float = 600.0,
) -> list[Any]:
    """Run a task on local servers and return their results. Any failure raises, with what was written."""
    with local_servers(task, parameters, per_party=per_party, scheme=scheme, stall=timeout) as servers:
        reports = servers.wait(timeout)
    for report in reports:
        if report.exit_code:
            raise RuntimeError(f"{party_name(report.party)} ended with {report.error or report.stderr}")
    return [report.result for report in reports]


class Requests:
    """The requests of the starting process, one JSON document a line, until it closes the pipe."""

    def __init__(self, lines: asyncio.StreamReader) -> None:
        self._lines = lines

    @classmethod
    async def open(cls) -> Requests:
        """Read from standard input."""
        lines = asyncio.StreamReader(limit=1 << 28)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        return cls(lines)

    async def __aiter__(self) -> AsyncIterator[Any]:
        while line := await self._lines.readline():
            yield json.loads(line)

    def answer(self, value: Any) -> None:
        """Answer the request last read."""
        _say(json.dumps({"answer": value}) + "\n")


async def _serve(specification: Mapping[str, Any]) -> Any:
    party = specification["party"]
    directory = Path(specification["directory"])
    name = party_name(party)
    mesh = await connect(
        party,
        Credentials(directory / f"{name}.crt", directory / f"{name}.key", directory / "authority.crt"),
        [Endpoint("127.0.0.1", port) for port in specification["ports"]],
        Limits(stall=specification["stall"]),
        listener=socket.socket(fileno=specification["listener"]),
    )
    try:
        module, _, function = specification["task"].partition(":")
        task = getattr(import_module(module), function)
        scheme = SCHEMES[specification["scheme"]]
        build = sha256(specification["task"].encode()).digest()
        agreement = Agreement(STUDY, bytes(32), build, bytes(32), scheme_field(scheme.name))
        channel = await mesh.open("local", agreement)
        parameters = dict(specification["parameters"])
        if "requests" in signature(task).parameters:
            parameters["requests"] = await Requests.open()
        pairs = {peer: channel.secret_with(peer) for peer in channel.peers}
        secrets = await component_secrets(channel, scheme, pairs)
        party = Runtime(channel, study=STUDY, scheme=scheme, scope=b"local", secrets=secrets, session=secrets)
        result = await task(party, **parameters)
        await channel.close()
        return result
    finally:
        await mesh.close()


def _say(text: str) -> None:
    """Write to the starting process, all of it: where Python's own output is unbuffered, it may stop half-way."""
    with os.fdopen(sys.stdout.fileno(), "wb", closefd=False) as out:
        out.write(text.encode())


def _main(specification: Mapping[str, Any]) -> int:
    keep_freed_memory()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            report = {"result": runner.run(_serve(specification))}
    except CapsError as error:
        report = {
            "error": {
                "type": type(error).__name__,
                "message": str(error),
                "party": error.party if isinstance(error, PeerError) else None,
                "blames": error.blames if isinstance(error, PeerAborted) else None,
            }
        }
    _say(json.dumps(report))
    return 3 if "error" in report else 0


if __name__ == "__main__":
    sys.exit(_main(json.loads(sys.argv[1])))
