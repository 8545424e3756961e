"""A stranger with a socket: no certificate, a foreign one, or a token that is none; and a person whose token is."""

from __future__ import annotations

import secrets
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress

from deploy.federation import COORDINATOR, SERVERS
from tests.adversary.lies import JSON
from tests.adversary.stage import (
    ALIEN,
    NOBODY,
    PATIENCE,
    PATIENCE_FOR_ALL,
    Broken,
    Catalogue,
    Stage,
    Variant,
    new_study,
    pick,
)

PLACES = (*SERVERS, COORDINATOR, "north")
STEP = f"/v1/runs/{'0' * 32}/steps/1"
CLIENT_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
"""How a handshake begins, and nothing else of it."""


def idle(stage: Stage, variant: Variant) -> None:
    """Connections on which nothing is said."""
    gather(stage, pick(PLACES, variant), 20 + variant % 60)


def crowd(stage: Stage, variant: Variant) -> None:
    """More of them than a process has descriptors, at the door for people and machines."""
    gather(stage, pick(PLACES, variant), 1100)


def crowd_at_the_mesh(stage: Stage, variant: Variant) -> None:
    """The same at the door for peers."""
    gather(stage, pick(SERVERS[:2], variant), 1100, mesh=True)


def half_open(stage: Stage, variant: Variant) -> None:
    """Handshakes that begin and never end."""
    gather(stage, pick(PLACES, variant), 30 + variant % 70, b"" if variant % 7 == 0 else CLIENT_HELLO)


def half_open_at_the_mesh(stage: Stage, variant: Variant) -> None:
    gather(stage, pick(SERVERS[:2], variant), 30 + variant % 70, CLIENT_HELLO, mesh=True)


def gather(stage: Stage, name: str, size: int, says: bytes = b"", *, mesh: bool = False) -> None:
    """So many strangers at a door; fewer, if the system's queue before it is full, where more would only wait."""
    for _ in range(size):
        try:
            stage.plain(name, mesh=mesh, timeout=2.0).sendall(says)
        except TimeoutError:
            break
        except OSError:  # being shut out is what should happen
            continue
    stage.alive()


def no_tls(stage: Stage, variant: Variant) -> None:
    """Something else than a handshake."""
    words = (
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0" * 4096,
        secrets.token_bytes(4096),
        b"\x15\x03\x03\x00\x02\x02\x28",
        b"SSH-2.0-x\r\n",
    )
    with suppress(OSError):
        stream = stage.plain(pick(PLACES, variant), timeout=5.0)
        stream.sendall(pick(words, variant // len(PLACES)))
        stream.recv(4096)


def old_tls(stage: Stage, variant: Variant) -> None:
    """TLS 1.2."""
    context = ssl.create_default_context(cafile=str(stage.federation.authority))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with suppress(OSError):
        context.wrap_socket(stage.plain(pick(PLACES, variant)), server_hostname="127.0.0.1").close()
        raise Broken(f"{pick(PLACES, variant)} speaks TLS 1.2")


def foreign(stage: Stage, variant: Variant) -> None:
    """A certificate that says it is the coordinator's, from an authority that nobody knows."""
    response = stage.ask(pick(PLACES, variant), "PUT", STEP, who=ALIEN, content=b"{}")
    if response is not None:
        raise Broken(f"{stage.seen[-1]}: a foreign certificate was let in")


def nobody(stage: Stage, variant: Variant) -> None:
    """Routes without an identity, and with words that are no token."""
    paths = (
        "/v1/studies",
        STEP,
        "/v1/ledger",
        "/metrics",
        "/v1/releases",
        f"/v1/studies/{'0' * 64}/table",
        f"/v1/studies/{'0' * 64}/manifest",
        f"/v1/studies/{'0' * 64}/budget",
        "/v1/nothing",
    )
    tokens = (None, "", "x" * 5000, "caps_" + "0" * 64, "\x7f\x7f", "null")
    method = pick(("GET", "PUT", "POST", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "BREW"), variant)
    stage.refused(
        pick(PLACES, variant), method, pick(paths, variant // 3), token=pick(tokens, variant // 7), content=b"{}"
    )


def endless_body(stage: Stage, variant: Variant) -> None:
    """A body that is announced to be huge, or not at all, from nobody: refused before it is read."""
    path = pick((STEP, f"/v1/studies/{'0' * 64}/table", "/v1/studies"), variant)
    chunked = variant % 2 == 0
    length = b"transfer-encoding: chunked" if chunked else b"content-length: %d" % (1 << 28)
    piece = b"[]" * (1 << 15)

    def body() -> Iterator[bytes]:
        yield b"PUT %s HTTP/1.1\r\nhost: x\r\n%s\r\n\r\n" % (path.encode(), length)
        for _ in range(1 << 12):
            yield b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece

    answer = stage.say(pick(PLACES, variant // 2), body())
    if answer and not answer.startswith(b"HTTP/1.1 4"):
        raise Broken(f"{stage.seen[-1]}, and should be refused")


HEADS: tuple[bytes, ...] = (
    b"GET /healthz HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 200_000 + b"\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nhost: x\r\n" + b"".join(b"h%d: y\r\n" % n for n in range(20_000)) + b"\r\n",
    b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
    b"GET /healthz HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nhost: x\r\ncontent-length: " + b"9" * 400 + b"\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
    b"GET /healthz HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5;"
    + b"e" * 100_000
    + b"\r\nhello\r\n0\r\n\r\n",
    b"GET /v1/../v1/ledger HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET /v1/%2e%2e/%00/ledger HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET https://elsewhere/healthz HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET /healthz?%ff%fe=\xff HTTP/1.1\r\nhost: x\r\n\r\n",
    b"POST /healthz HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 1\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\n"
    b"sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET /healthz HTTP/1.0\r\n\r\n",
    b"GET /healthz\r\n\r\n",
    b"\r\n" * 5000,
    b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n" * 200,
    b"GET /healthz HTTP/1.1\r\nhost: x\r\nauthorization: Bearer a\r\nauthorization: Bearer b\r\n\r\n",
)


def odd_heads(stage: Stage, variant: Variant) -> None:
    """Requests that are hardly HTTP."""
    stage.say(pick(PLACES, variant), pick(HEADS, variant // len(PLACES)), patience=5.0)


def slow_head(stage: Stage, variant: Variant) -> None:
    """A request that begins and goes on only after everybody else has been served."""
    with suppress(OSError):
        stage.secure(pick(PLACES, variant)).sendall(b"GET /healthz HTTP/1.1\r\nhost:")


def many_handshakes(stage: Stage, variant: Variant) -> None:
    """Handshakes one after the other, each hung up on."""
    for _ in range(30):
        with suppress(OSError):
            stage.secure(pick(PLACES, variant), NOBODY).close()


def many_streams(stage: Stage, variant: Variant) -> None:
    """An analyst's token opens the events of a run that is over, again and again."""
    token = stage.token(COORDINATOR, "analyst")
    path = f"/v1/runs/{stage.released.run}/events"
    calls: list[Callable[[], object]] = [lambda: stage.ask(COORDINATOR, "GET", path, token=token)]
    stage.at_once(calls * (10 + variant % 20))


def streams_without_end(stage: Stage, variant: Variant) -> None:
    """The same of a run that waits: the token has enough streams at some point, and the others are not in the way."""
    study, token, answers = new_study(stage, variant), stage.token(COORDINATOR, "analyst"), []
    study.agree()
    study.contribute()
    study.start()
    stage.federation.send(SERVERS[2], signal.SIGSTOP)  # before the run has had its first answer
    try:
        head = f"GET /v1/runs/{study.run}/events HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\r\n"
        for _ in range(60):
            stream = stage.secure(COORDINATOR)
            stream.sendall(head.encode())
            answers.append(stream.recv(1 << 12))
        with stage.federation.client(COORDINATOR, "operator", timeout=PATIENCE) as operator:
            state = operator.get(f"/v1/runs/{study.run}").raise_for_status().json()["state"]
    finally:
        stage.federation.send(SERVERS[2], signal.SIGCONT)
    if state != "released" and not any(answer.startswith(b"HTTP/1.1 429") for answer in answers):
        raise Broken(f"one token opens {len(answers)} event streams at once")
    study.released(PATIENCE_FOR_ALL)
    stage.accepted(study.run)


def samples(stage: Stage, variant: Variant) -> None:
    """An analyst wants rows without end: huge samples, and more of them than a coordinator keeps."""
    token, path = stage.token(COORDINATOR, "analyst"), f"/v1/releases/{stage.released.run}/samples"
    bodies = (
        b'{"rows":1000000000000}',
        b'{"rows":-1}',
        b'{"rows":0}',
        b'{"rows":1e400}',
        b'{"rows":10,"seed":-1}',
        b'{"rows":10,"seed":' + b"9" * 60 + b"}",
        b"[]",
        b'"x"',
    )
    stage.refused(COORDINATOR, "POST", path, token=token, content=pick(bodies, variant), headers=JSON)
    kept = []
    for number in range(variant % 5):
        response = stage.ask(COORDINATOR, "POST", path, token=token, json={"rows": 10, "seed": 1000 * variant + number})
        if response is not None and response.status_code < 300:
            kept.append(response.json()["sample"])
    for sample in kept:
        stage.ask(COORDINATOR, "DELETE", f"{path}/{sample}", token=token)


def samples_without_end(stage: Stage, variant: Variant) -> None:
    """As many samples as there may be, and then some; all are deleted again."""
    token, path = stage.token(COORDINATOR, "analyst"), f"/v1/releases/{stage.released.run}/samples"
    kept, full = [], False
    for number in range(150):
        response = stage.ask(COORDINATOR, "POST", path, token=token, json={"rows": 1, "seed": f"{number:064x}"})
        assert response is not None
        if full := response.status_code >= 400:
            break
        kept.append(response.json()["sample"])
    for sample in kept:
        gone = stage.ask(COORDINATOR, "DELETE", f"{path}/{sample}", token=token)
        assert gone is not None
        assert gone.status_code < 300
    if not full:
        raise Broken(f"a release has {len(kept)} samples, and takes more")


def ranges(stage: Stage, variant: Variant) -> None:
    """Downloads of parts that are odd."""
    wanted = (
        "bytes=0-",
        "bytes=-1",
        "bytes=5-2",
        "bytes=" + ",".join(f"{n}-{n}" for n in range(2000)),
        "bytes=99999999999999999999-",
        "lines=1-2",
        "bytes=0-0,1-1",
    )
    headers = {
        "Range": pick(wanted, variant),
        "Accept": pick(
            ("text/csv", "*/*;q=x", "a/" * 4000, "text/csv;q=1e999", "application/vnd.apache.parquet"), variant // 2
        ),
    }
    path = f"/v1/releases/{stage.released.run}/{pick(('data', 'certificate', 'report', 'transcript'), variant // 3)}"
    stage.ask(COORDINATOR, "GET", path, token=stage.token(COORDINATOR, "analyst"), headers=headers)


def hang_up(stage: Stage, variant: Variant) -> None:
    """Ask for much, and go away."""
    token = stage.token(COORDINATOR, "analyst")
    path = pick(
        (f"/v1/releases/{stage.released.run}/data", f"/v1/runs/{stage.released.run}/events", "/metrics"), variant
    )
    for _ in range(10):
        with suppress(OSError):
            stream = stage.secure(COORDINATOR)
            stream.sendall(f"GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\r\n".encode())
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            stream.close()


MOVES: Catalogue = {
    move.__name__: move
    for move in (
        idle, half_open, half_open_at_the_mesh, no_tls, old_tls, foreign, nobody, endless_body, odd_heads, slow_head,
        many_handshakes, many_streams, samples, ranges, hang_up,
    )
}  # fmt: skip
HEAVY: Catalogue = {
    move.__name__: move for move in (crowd, crowd_at_the_mesh, streams_without_end, samples_without_end)
}
"""Moves for literal cases and long sequences alone."""
