"""Load: a thousand holders contribute to one study, two hundred people watch its run, ten thousand downloads follow.

Real services as processes of this host. Holders are light clients in one process: each has a certificate, keys and an
address of its own, deals real shares, and speaks a holder's part of the protocol to the coordinator and the servers,
all of them at once, with a holder's pauses when a service asks to come back. Meanwhile another process asks every
service for /healthz and /readyz, and looks at what it holds of the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import ipaddress
import multiprocessing
import os
import secrets
import ssl
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from cryptography.hazmat.primitives.serialization import Encoding

from caps.basics.retry import Backoff
from caps.basics.uniform import Uniform
from caps.client import Client
from caps.service.tokens import Scope, Tokens
from caps.shares.ring import SHARED_RINGS
from caps.shares.sharing import Seeded, deal
from caps.study import Manifest
from caps.trust import home as party
from caps.trust import pki, signing
from caps.trust.tls import client_context
from caps.wire import Approval, Contribution, Offer, Opening, Signed, commitment, media
from deploy.federation import COORDINATOR, POLICY, Federation
from deploy.vitals import vitals

HOLDERS = (250, 1000)
STREAMS = 200
DOWNLOADS = 10_000
ANALYSTS = 50
"""People who watch and download, each with a token."""
AT_ONCE = 32
"""Downloads under way at any time."""
CHUNK = 1 << 20
PERSONS = 20
"""Rows of each holder."""
PATIENCE = 900.0
PATHS = ("/healthz", "/readyz")
_PROBE_EVERY = 0.02
_RETRY = Backoff(first=0.2, longest=5.0)
_NETWORK = ipaddress.IPv4Address("127.1.0.1")
"""The address of the first holder. Each has one of its own, as holders do in practice."""
SCHEMA = {
    "columns": [
        {"name": "age", "kind": "numeric", "integer": True, "bin_edges": [0, 18, 40, 65, 100]},
        {"name": "smoker", "kind": "categorical", "categories": ["no", "yes"]},
        {"name": "illness", "kind": "categorical", "categories": ["none", "asthma", "other"]},
        {"name": "region", "kind": "categorical", "categories": ["n", "s", "w", "e"]},
    ]
}


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    parser.add_argument(
        "--holders", type=int, nargs="+", default=list(HOLDERS), help="the last is watched and downloaded"
    )
    parser.add_argument("--streams", type=int, default=STREAMS)
    parser.add_argument("--downloads", type=int, default=DOWNLOADS)


def measure(options: argparse.Namespace, record: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
    """One study for each number of holders; streams and downloads with the last."""
    report: dict[str, Any] = {"others": os.getloadavg()[1], "studies": {}}
    with tempfile.TemporaryDirectory(prefix="caps-load-") as scratch:
        populations = {f"load{number}": 20.0 for number in range(len(options.holders))}
        with Federation(Path(scratch), (), policy=POLICY, populations=populations) as found, telling(found):
            tokens = _tokens(found)
            found.start()
            found.wait_ready()
            with probing(found) as probe:
                for number, size in enumerate(options.holders):
                    people = make_holders(found, size, prefix=f"h{number}-")
                    manifest = manifest_of(found, people, f"load{number}")
                    last = size == options.holders[-1]
                    streams = options.streams if last else 0
                    report["studies"][str(size)], run = study(found, probe, manifest, people, tokens, streams)
                    record(report)
                with probe.phase("downloads"):
                    report["downloads"] = asyncio.run(downloads(found, run, tokens, options.downloads))
            report["health"] = probe.latencies()
            report["services"] = probe.held()
    record(report)
    return report


@contextmanager
def telling(found: Federation) -> Iterator[None]:
    """If the measurement fails, print what services logged as errors."""
    try:
        yield
    except BaseException:
        for name in found.places:
            for line in found.log(name).splitlines():
                if '"level": "error"' in line:
                    print(name, line)
        raise


# Holders.


@dataclass(frozen=True)
class LightHolder:
    """A holder's keys, the address it calls from, and how it opens connections."""

    name: str
    pin: str
    key: signing.SigningKey = field(repr=False)
    address: str
    certificate: Path
    private_key: Path

    def calls(self, authority: Path, url: str) -> httpx.AsyncClient:
        """Connections to a service."""
        context = client_context(authority, certificate=self.certificate, private_key=self.private_key)
        return _client(context, url, self.address)


def make_holders(found: Federation, number: int, *, prefix: str) -> list[LightHolder]:
    """So many, certified by the federation's authority."""
    authority = party.read_authority(found.directory / "authority")
    folder = found.directory / f"holders-{prefix}"
    folder.mkdir(mode=0o700)
    now, people = datetime.now(UTC), []
    for index in range(number):
        name, key = f"{prefix}{index}", pki.generate_key()
        certificate = authority.issue(
            key.public_key(),
            subject=name,
            uris=[pki.role_uri("holder", name)],
            hosts=["localhost"],
            not_before=now - timedelta(hours=1),
            not_after=now + timedelta(days=7),
        )
        paths = folder / f"{name}.pem", folder / f"{name}.key"
        paths[0].write_bytes(certificate.public_bytes(Encoding.PEM))
        pki.write_key(paths[1], key)
        pin = pki.spki_pin(certificate).hex()
        people.append(LightHolder(name, pin, signing.generate_signing_key(), str(_NETWORK + index), *paths))
    return people


def manifest_of(found: Federation, people: Sequence[LightHolder], population: str) -> Manifest:
    """A study in which every holder has rows of its own."""
    parties = found.parties([])
    parties["holders"] = [
        {"name": one.name, "pin": one.pin, "signing_key": signing.public_hex(one.key), "brings": "rows"}
        for one in people
    ]
    return Manifest.from_json(
        {
            "title": "A benchmark",
            "purpose": f"The measurement of {secrets.token_hex(8)}",
            "schema": SCHEMA,
            "algorithm": {"name": "mst"},
            "privacy": {"epsilon": "1", "delta": "1e-9", "population": population},
            **parties,
        }
    )


def counts_of(manifest: Manifest, holder: str) -> np.ndarray:
    """The marginals of a holder's invented rows."""
    uniform = Uniform(f"load {holder}")
    codes = np.stack([uniform.integers(PERSONS, size) for size in manifest.domain.sizes], axis=1)
    return manifest.layout.marginals(codes)


def offers_of(manifest: Manifest, one: LightHolder, values: np.ndarray) -> tuple[Contribution, list[Offer], bytes]:
    """What a holder sends: its statement, an offer for each server, and the vector's bytes."""
    scheme, form = manifest.sharing, manifest.form_of(manifest.holder(one.name))
    ring = SHARED_RINGS[form.bits]
    words = np.ascontiguousarray(values.reshape(form.shape).astype(ring.dtype))
    shares = deal(words, entropy=secrets.token_bytes, ring=ring, scheme=scheme)
    contents = []
    for component in range(scheme.components):
        server = scheme.holders_of(component)[0]
        part = shares[server].parts[scheme.held[server].index(component)]
        contents.append(part.seed if isinstance(part, Seeded) else ring.to_bytes(part.vector))
    nonces = [secrets.token_bytes(32) for _ in contents]
    statement = Contribution(
        study=manifest.study_id,
        holder=one.name,
        form=form.form,
        bits=form.bits,
        shape=form.shape,
        commitments=tuple(commitment(nonce, content) for nonce, content in zip(nonces, contents, strict=True)),
        chunk_bytes=CHUNK,
        at=_now(),
    )
    signed = Signed[Contribution].by(statement, one.name, one.key)

    def opening(component: int) -> Opening:
        seed = contents[component].hex() if component in scheme.seeded else None
        return Opening(component=component, nonce=nonces[component].hex(), seed=seed)

    offers = [Offer(contribution=signed, openings=tuple(map(opening, held))) for held in scheme.held]
    return statement, offers, contents[scheme.vector]


@dataclass
class Tally:
    """What was asked, what was refused or lost and asked again, and how long answers took."""

    requests: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)

    async def patiently(self, attempt: Callable[[], Awaitable[httpx.Response]]) -> httpx.Response:
        """The answer to a request, made again with pauses while the service is busy or away."""
        retries, deadline = _RETRY.begin(), time.monotonic() + PATIENCE
        while True:
            begun, asked = time.perf_counter(), None
            try:
                response = await attempt()
            except httpx.TransportError as error:
                why = type(error).__name__
            else:
                self.requests += 1
                if response.is_success:
                    self.seconds.append(time.perf_counter() - begun)
                    return response
                why, after = str(response.status_code), response.headers.get("retry-after", "")
                asked = float(after) if after.isdigit() else None
                if response.status_code not in (408, 409, 429, 503):
                    raise RuntimeError(f"{response.request.method} {response.request.url.path}: {response.text[:300]}")
            self.refusals[why] += 1
            if time.monotonic() > deadline:
                raise RuntimeError(f"still {why} after {PATIENCE:g} s")
            await asyncio.sleep(retries.pause(asked=asked))

    def summary(self, elapsed: float) -> dict[str, Any]:
        """As numbers."""
        return {
            "seconds": elapsed,
            "requests": self.requests,
            "refusals": dict(self.refusals),
            "latency": quantiles(self.seconds),
        }


async def contribute(found: Federation, manifest: Manifest, people: Sequence[LightHolder], tally: Tally) -> None:
    """All holders approve and contribute, all at once."""
    await asyncio.gather(*(_contribute(found, manifest, one, tally) for one in people))


async def _contribute(found: Federation, manifest: Manifest, one: LightHolder, tally: Tally) -> None:
    study, text = manifest.study_id, manifest.canonical_bytes()
    statement, offers, vector = offers_of(manifest, one, counts_of(manifest, one.name))
    approval = Approval(study=study, role="holder", at=_now())
    signed = Signed[Approval].by(approval, one.name, one.key).to_json()
    async with one.calls(found.authority, found.places[COORDINATOR].url) as http:
        fetched = await tally.patiently(lambda: http.get(f"/v1/studies/{study}/manifest"))
        if fetched.content != text:
            raise RuntimeError("the coordinator sent another manifest")
        await tally.patiently(lambda: http.put(f"/v1/studies/{study}/approvals/{one.name}", json=signed))
    path = f"/v1/studies/{study}/contributions/{statement.digest()}"
    for server, held, offer in zip(found.servers, manifest.sharing.held, offers, strict=True):
        body = offer.to_json()
        async with one.calls(found.authority, found.places[server].url) as http:
            await tally.patiently(lambda http=http, body=body: http.put(path, json=body))  # type: ignore[misc]
            for number in range(statement.chunks if manifest.sharing.vector in held else 0):
                part = vector[number * CHUNK : (number + 1) * CHUNK]
                digest = base64.b64encode(sha256(part).digest()).decode()
                headers = {"Content-Type": media.BYTES, "Content-Digest": f"sha-256=:{digest}:"}
                target = f"{path}/chunks/{number}"
                await tally.patiently(
                    lambda http=http, target=target, part=part, headers=headers: http.put(  # type: ignore[misc]
                        target, content=part, headers=headers
                    )
                )
            await tally.patiently(lambda http=http: http.post(f"{path}/receipt"))  # type: ignore[misc]


# The study.


def study(
    found: Federation,
    probe: Probe,
    manifest: Manifest,
    people: Sequence[LightHolder],
    tokens: Sequence[str],
    streams: int,
) -> tuple[dict[str, Any], str]:
    """From the proposal to the release: seconds of every part, and the run's id."""
    tally = Tally()
    operator_token = found.token(COORDINATOR, "operator")
    with Client(found.places[COORDINATOR].url, token=operator_token, authority=found.authority) as operator:
        with probe.phase(f"propose {len(people)}"):
            begun = time.perf_counter()
            for server in operator.propose(manifest).servers:
                if server.state != "approved":
                    raise RuntimeError(f"{server.server} is {server.state}: {server.reason} {server.objections}")
            proposed = time.perf_counter() - begun
        with probe.phase(f"contribute {len(people)}"):
            begun = time.perf_counter()
            asyncio.run(contribute(found, manifest, people, tally))
            contributed = tally.summary(time.perf_counter() - begun)
        with probe.phase(f"run {len(people)}"):
            begun = time.perf_counter()
            run = operator.start(manifest.study_id).run
            watched = asyncio.run(watch(found, run, tokens, streams))
            for _ in operator.watch(run):
                pass
            ran = time.perf_counter() - begun
            state = operator.run(run)
        if state.state != "released":
            raise RuntimeError(f"the study of {len(people)} holders is {state.state}: {state.reason}")
        holders = len(state.holders)
    if holders != len(people):
        raise RuntimeError(f"{holders} of {len(people)} holders take part")
    result = {"propose": proposed, "contribute": contributed, "run": ran, "bytes": len(manifest.canonical_bytes())}
    result["cpu"] = {phase: probe.cpu(f"{phase} {len(people)}") for phase in ("propose", "contribute", "run")}
    return result | ({"streams": watched} if streams else {}), run


async def watch(found: Federation, run: str, tokens: Sequence[str], streams: int) -> dict[str, Any]:
    """So many streams of a run's events at once, to the end of the run."""
    context, url = client_context(found.authority), found.places[COORDINATOR].url
    refusals: Counter[str] = Counter()
    ended, events = 0, 0

    async def one(number: int) -> None:
        nonlocal ended, events
        headers = {"Authorization": f"Bearer {tokens[number % len(tokens)]}", "Accept": media.EVENTS}
        retries, after = _RETRY.begin(), "0"
        async with _client(context, url, str(_NETWORK + number)) as http:
            while True:
                try:
                    async with http.stream(
                        "GET", f"/v1/runs/{run}/events", headers=headers | {"Last-Event-ID": after}
                    ) as it:
                        if it.status_code == 204:
                            ended += 1
                            return
                        if not it.is_success:
                            refusals[str(it.status_code)] += 1
                        else:
                            async for line in it.aiter_lines():
                                if line.startswith("id: "):
                                    after, events = line[4:], events + 1
                except httpx.TransportError as error:
                    refusals[type(error).__name__] += 1
                await asyncio.sleep(retries.pause())

    await asyncio.gather(*(one(number) for number in range(streams)))
    return {"streams": streams, "ended": ended, "events": events, "refusals": dict(refusals)}


async def downloads(found: Federation, run: str, tokens: Sequence[str], number: int) -> dict[str, Any]:
    """The release's rows, so many times; every copy is compared with the digest that the service states."""
    context, url, tally, left = (
        client_context(found.authority),
        found.places[COORDINATOR].url,
        Tally(),
        iter(range(number)),
    )
    received = 0

    async def one(analyst: int) -> None:
        nonlocal received
        headers = {"Authorization": f"Bearer {tokens[analyst % len(tokens)]}", "Accept": media.CSV}
        async with _client(context, url, str(_NETWORK + analyst)) as http:
            for _ in left:
                response = await tally.patiently(lambda: http.get(f"/v1/releases/{run}/data", headers=headers))
                stated = response.headers["repr-digest"]
                if base64.b64encode(sha256(response.content).digest()).decode() not in stated:
                    raise RuntimeError("a download does not have the digest that was stated")
                received += len(response.content)

    begun = time.perf_counter()
    await asyncio.gather(*(one(analyst) for analyst in range(AT_ONCE)))
    return tally.summary(time.perf_counter() - begun) | {"downloads": number, "bytes": received}


def _client(context: ssl.SSLContext, url: str, address: str) -> httpx.AsyncClient:
    transport = httpx.AsyncHTTPTransport(verify=context, local_address=address, trust_env=False)
    timeout = httpx.Timeout(PATIENCE)
    return httpx.AsyncClient(base_url=url, transport=transport, timeout=timeout, trust_env=False)


def _tokens(found: Federation) -> list[str]:
    """Of people who watch and download."""
    tokens, end = Tokens(found.places[COORDINATOR].home / party.TOKENS), datetime.now(UTC) + timedelta(days=1)
    return [tokens.create(f"analyst {number}", [Scope.ANALYST], expires=end) for number in range(ANALYSTS)]


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# The process that looks.


class Probe:
    """A process that asks every service how it is, and what it holds, while others load it."""

    def __init__(self, found: Federation) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, there = context.Pipe()
        places = {name: (place.url, found.pid(name)) for name, place in found.places.items()}
        self._process = context.Process(target=look, args=(there, places, str(found.authority)), daemon=True)
        self._process.start()
        self._seen: dict[str, Any] = {}
        self._receive()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """What is seen in the block belongs to it."""
        self._pipe.send(name)
        yield
        self._pipe.send("")
        self._seen[name] = self._receive()

    def _receive(self) -> Any:
        if not self._pipe.poll(PATIENCE):
            raise RuntimeError("the process that looks at the services has stopped")
        return self._pipe.recv()

    def latencies(self) -> dict[str, Any]:
        """For each phase and path: quantiles over all services, and those who did not answer."""
        return {phase: seen["latencies"] for phase, seen in self._seen.items()}

    def cpu(self, phase: str) -> dict[str, float]:
        """For each service: seconds that it computed in a phase."""
        found: dict[str, float] = self._seen[phase]["cpu"]
        return found

    def held(self) -> dict[str, Any]:
        """For each service: memory at first and the most in any phase, descriptors, threads."""
        found: dict[str, dict[str, int]] = {}
        for seen in self._seen.values():
            for name, most in seen["held"].items():
                entry = found.setdefault(name, {"before": most["first"], "peak": 0, "descriptors": 0, "threads": 0})
                for quantity in ("peak", "descriptors", "threads"):
                    entry[quantity] = max(entry[quantity], most[quantity])
        return found

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()


@contextmanager
def probing(found: Federation) -> Iterator[Probe]:
    """One, for as long as needed."""
    probe = Probe(found)
    try:
        yield probe
    finally:
        probe.stop()


def look(pipe: Connection, places: Mapping[str, tuple[str, int]], authority: str) -> None:
    """What the process does: asks every service in turn, and reports when a phase ends."""
    context = client_context(Path(authority))
    clients = {
        name: httpx.Client(base_url=url, verify=context, timeout=60.0, trust_env=False)
        for name, (url, _) in places.items()
    }
    pipe.send("ready")
    while pipe.recv():
        taken: dict[str, list[float]] = {path: [] for path in PATHS}
        lost: Counter[str] = Counter()
        held: dict[str, dict[str, int]] = {}
        begun_at: dict[str, float] = {}
        spent: dict[str, float] = {}
        while not pipe.poll(_PROBE_EVERY):
            for name, (_, pid) in places.items():
                for path, seconds in taken.items():
                    begun = time.perf_counter()
                    try:
                        status = clients[name].get(path).status_code
                    except httpx.TransportError as error:
                        lost[f"{path} {type(error).__name__}"] += 1
                        continue
                    seconds.append(time.perf_counter() - begun)
                    if status != 200:
                        lost[f"{path} {status}"] += 1
                now = vitals(pid)
                most = held.setdefault(name, {"first": now.memory, "peak": 0, "descriptors": 0, "threads": 0})
                begun_at.setdefault(name, now.cpu)
                spent[name] = now.cpu - begun_at[name]
                for quantity, value in (("peak", now.peak), ("descriptors", now.descriptors), ("threads", now.threads)):
                    most[quantity] = max(most[quantity], value)
        pipe.recv()
        latencies = {path: quantiles(seconds) for path, seconds in taken.items()}
        pipe.send({"latencies": latencies | {"lost": dict(lost)}, "held": held, "cpu": spent})


def quantiles(seconds: Sequence[float]) -> dict[str, float]:
    """Median, 99th percentile and maximum, and of how many."""
    if not seconds:
        return {"count": 0, "p50": 0.0, "p99": 0.0, "max": 0.0}
    p50, p99 = np.quantile(seconds, [0.5, 0.99])
    return {"count": len(seconds), "p50": float(p50), "p99": float(p99), "max": max(seconds)}


def table(report: Mapping[str, Any]) -> str:
    """What a person reads."""
    lines = []
    for size, one in report["studies"].items():
        sent = one["contribute"]
        lines.append(
            f"{size} holders: proposed in {one['propose']:.1f} s, contributed in {sent['seconds']:.1f} s "
            f"({sent['requests']} requests{_refusals(sent)}), run in {one['run']:.1f} s; "
            f"services computed {_computed(one['cpu'])}"
        )
        if "streams" in one:
            lines.append(f"  {one['streams']['streams']} event streams{_refusals(one['streams'])}")
    if "downloads" in report:
        got = report["downloads"]
        lines.append(
            f"{got['downloads']} downloads in {got['seconds']:.1f} s, p99 {1e3 * got['latency']['p99']:.0f} ms"
            f"{_refusals(got)}"
        )
    for phase, seen in report.get("health", {}).items():
        for path in PATHS:
            p50, p99, most = (f"{1e3 * seen[path][name]:7.1f} ms" for name in ("p50", "p99", "max"))
            lines.append(f"{phase:<18}{path:<10} p50 {p50}  p99 {p99}  max {most}  of {seen[path]['count']}")
        if seen["lost"]:
            lines.append(f"  not answered: {seen['lost']}")
    for name, held in report.get("services", {}).items():
        lines.append(
            f"{name:<12} {held['before'] / 1e6:8.0f} MB at first, {held['peak'] / 1e6:8.0f} MB at most, "
            f"{held['descriptors']} descriptors, {held['threads']} threads"
        )
    return "\n".join(lines)


def _computed(cpu: Mapping[str, Mapping[str, float]]) -> str:
    return ", ".join(f"{sum(spent.values()):.1f} s ({phase})" for phase, spent in cpu.items())


def _refusals(found: Mapping[str, Any]) -> str:
    return f", refused or lost and tried again {found['refusals']}" if found["refusals"] else ", none refused"
