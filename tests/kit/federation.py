"""Real MPC servers, driven by hand: a coordinator and holders that can also do what honest ones never would."""

from __future__ import annotations

import base64
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import sha256
from itertools import cycle
from math import prod
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx
import numpy as np
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from sqlalchemy import Engine, select

from caps.basics.schemes import Scheme
from caps.dp.clear import ClearOracle
from caps.dp.oracle import Batch, Comparison, Measurement, Request, Selection
from caps.dp.privacy import Filter
from caps.dp.privacy.rational import decode_ratio
from caps.errors import party_name
from caps.service.app import instant
from caps.service.database import open_database, reading, sqlite_url
from caps.service.site import Settings, Site
from caps.shares.prss import component_key, expand
from caps.shares.ring import SHARED_RINGS, Z32, Z64, Words, plane_words
from caps.shares.sharing import DealtShare, Seeded, deal
from caps.study import Manifest, Policy
from caps.trust import exchange, signing
from caps.trust.exchange import PUBLIC_BYTES, Drawn, ExchangeKey, Received
from caps.wire import Answer, Approval, Contribution, Offer, Opening, Signed, commitment, inputs_digest
from caps.wire.steps import request_to_json
from deploy.federation import COORDINATOR, Federation
from services.coordinator.algorithms import Outcome, algorithm
from services.coordinator.generate import create_estimator
from services.mpc_server.intake.studies import Studies
from services.mpc_server.runs.pairs import scope_of
from services.mpc_server.storage import tables
from services.mpc_server.storage.ledger import Ledger
from services.mpc_server.storage.shares import ShareStore, Vault

SCHEMA = {
    "columns": [
        {"name": "age", "kind": "numeric", "integer": True, "bin_edges": [0, 18, 40, 65, 100]},
        {"name": "smoker", "kind": "categorical", "categories": ["no", "yes"]},
        {"name": "illness", "kind": "categorical", "categories": ["none", "asthma", "other"]},
    ]
}

POPULATIONS = {f"p{number}": 20.0 for number in range(40)}
"""Groups of persons that servers know, with budgets for a few studies each."""
_populations = cycle(POPULATIONS)


def now() -> str:
    """The time as documents spell it."""
    return instant(datetime.now(UTC))


def manifest_of(
    federation: Federation,
    holders: Sequence[dict[str, Any]],
    *,
    algorithm: str = "aim",
    parameters: dict[str, Any] | None = None,
    schema: dict[str, Any] | None = None,
    slots: int | None = None,
    scheme: Scheme | None = None,
    **members: Any,
) -> Manifest:
    """A small study among a federation's parties."""
    privacy = {"epsilon": "1", "delta": "1e-9", "population": next(_populations)} | members.pop("privacy", {})
    document = {
        "title": "A test",
        "purpose": f"The test of {secrets.token_hex(8)}",
        "schema": schema or SCHEMA,
        "algorithm": {"name": algorithm, "parameters": parameters or {}, **members.pop("choice", {})},
        "privacy": privacy,
        **federation.parties(holders, scheme),
        **({} if slots is None else {"alignment": {"slots": slots, **members.pop("alignment", {})}}),
        **members,
    }
    return Manifest.from_json(document)


class Driver:
    """Speaks for the coordinator and all holders of one study, to each server by itself."""

    def __init__(self, federation: Federation, manifest: Manifest) -> None:
        self.federation = federation
        self.manifest = manifest
        self.study = manifest.study_id
        self.run = secrets.token_hex(16)
        self.clients = {server.name: federation.machine(server.name, COORDINATOR) for server in manifest.servers}
        self.approvals: list[dict[str, Any]] = []
        self.contributions: list[str] = []
        self.inputs = ""
        self.patience = 0.0
        """Seconds for which a server that is away, or waits for another, is asked again."""
        self.expected: tuple[int, ...] = ()
        """The verdicts on contributions, if not all are valid."""
        self.troubles: list[str] = []
        """Problem documents that made us ask again."""

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        for client in self.clients.values():
            client.close()

    def propose(self) -> list[httpx.Response]:
        """Send the manifest to every server; keep the approvals."""
        body = self.manifest.to_json()
        responses = [client.put(f"/v1/studies/{self.study}", json=body) for client in self.clients.values()]
        self.approvals = [found.json() for found in responses if found.is_success]
        return responses

    def approve(self, holder: str) -> None:
        """A holder signs."""
        key = signing.read_signing_key(self.federation.places[holder].home / "signing-key.pem")
        approval = Approval(study=self.study, role="holder", at=now())
        self.approvals.append(Signed[Approval].by(approval, holder, key).to_json())

    def offer(
        self, holder: str, values: np.ndarray, *, study: str | None = None
    ) -> tuple[Contribution, list[Offer], bytes]:
        """What a holder sends to each server: the offers, and the bytes of the vector."""
        found, scheme = self.manifest.holder(holder), self.manifest.sharing
        ring = Z32 if found.brings == "rows" else SHARED_RINGS[16 if len(values) < 1 << 16 else 24]
        words = np.ascontiguousarray(values.astype(ring.dtype))
        shares = deal(words, entropy=secrets.token_bytes, ring=ring, scheme=scheme)
        nonces = [secrets.token_bytes(32) for _ in range(scheme.components)]
        places = [(scheme.holders_of(component)[0], component) for component in range(scheme.components)]
        parts = [shares[server].parts[scheme.held[server].index(component)] for server, component in places]
        contents = [part.seed if isinstance(part, Seeded) else ring.to_bytes(part.vector) for part in parts]
        contribution = Contribution(
            study=study or self.study,
            holder=holder,
            form="marginals" if found.brings == "rows" else "columns",
            bits=ring.bits,  # type: ignore[arg-type]
            shape=values.shape,
            commitments=tuple(commitment(nonce, content) for nonce, content in zip(nonces, contents, strict=True)),
            chunk_bytes=1 << 16,
            at=now(),
        )
        key = signing.read_signing_key(self.federation.places[holder].home / "signing-key.pem")
        signed = Signed[Contribution].by(contribution, holder, key)
        offers = []
        for held in scheme.held:
            openings = tuple(
                Opening(
                    component=index,
                    nonce=nonces[index].hex(),
                    seed=contents[index].hex() if index in scheme.seeded else None,
                )
                for index in held
            )
            offers.append(Offer(contribution=signed, openings=openings))
        return contribution, offers, contents[scheme.vector]

    def contribute(self, holder: str, values: np.ndarray) -> str:
        """Share a holder's counts or columns with all servers, to the receipts."""
        contribution, offers, vector = self.offer(holder, values)
        identity = contribution.digest()
        path = f"/v1/studies/{self.study}/contributions/{identity}"
        scheme = self.manifest.sharing
        for name, held, offer in zip(scheme.server_names, scheme.held, offers, strict=True):
            with self.federation.machine(name, holder) as client:
                client.put(path, json=offer.to_json()).raise_for_status()
                if scheme.vector in held:
                    for number in range(contribution.chunks):
                        part = vector[number * contribution.chunk_bytes : (number + 1) * contribution.chunk_bytes]
                        put_chunk(client, f"{path}/chunks/{number}", part).raise_for_status()
                client.post(f"{path}/receipt").raise_for_status()
        self.contributions.append(identity)
        return identity

    def seal(self) -> list[httpx.Response]:
        """Seal all contributions on every server."""
        body = {"contributions": self.contributions, "approvals": self.approvals}
        self.inputs = inputs_digest(self.study, self.contributions)
        return [client.put(f"/v1/studies/{self.study}/seal", json=body) for client in self.clients.values()]

    def begin(self) -> list[httpx.Response]:
        """Begin the run on every server."""
        body = {"study": self.study, "inputs": self.inputs}
        return [self._put(client, f"/v1/runs/{self.run}", body) for client in self.clients.values()]

    def ask(self, number: int, bodies: Sequence[dict[str, Any] | None]) -> list[httpx.Response | None]:
        """Ask for a step, each server with its own body, all at once; nobody where the body is None."""
        path = f"/v1/runs/{self.run}/steps/{number}"

        def one(pair: tuple[httpx.Client, dict[str, Any] | None]) -> httpx.Response | None:
            client, body = pair
            if body is None:
                return None
            while (response := self._put(client, path, body)).status_code == 202:
                pass
            return response

        with ThreadPoolExecutor(len(bodies)) as pool:
            return list(pool.map(one, zip(self.clients.values(), bodies, strict=True)))

    def step(self, number: int, body: dict[str, Any]) -> int | tuple[int, ...]:
        """Ask all servers for the same step; the value on which they agree."""
        answers = []
        for server, response in zip(self.manifest.servers, self.ask(number, [body] * len(self.clients)), strict=True):
            assert response is not None
            assert response.status_code == 200, response.text
            answers.append(Signed[Answer].model_validate_json(response.content).verify(server))
        assert len({answer.model_dump_json() for answer in answers}) == 1
        return answers[0].value

    def attest(self) -> list[httpx.Response]:
        """Ask every server for its word on the run."""
        return [self._put(client, f"/v1/runs/{self.run}/attestation") for client in self.clients.values()]

    def _put(self, client: httpx.Client, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
        deadline = time.monotonic() + self.patience
        while True:
            try:
                response = client.put(path, json=body)
                if response.status_code != 503 or time.monotonic() > deadline:
                    return response
                self.troubles.append(response.text)
            except httpx.TransportError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.05)

    def ready(self, tables: Mapping[str, np.ndarray]) -> None:
        """All that comes before a run's first step: propose, approve, contribute, seal and begin."""
        for response in self.propose():
            response.raise_for_status()
        for holder, values in tables.items():
            self.approve(holder)
            self.contribute(holder, values)
        for response in (*self.seal(), *self.begin()):
            response.raise_for_status()

    def finish(self) -> tuple[Outcome, DriverOracle]:
        """Run the algorithm."""
        oracle = DriverOracle(self)
        return self._run(oracle), oracle

    def until(self, steps: int) -> Request:
        """Run the algorithm for so many steps after step 0; the request that is due then."""
        try:
            self._run(Pausing(self, steps))
        except Due as due:
            return due.request
        raise AssertionError("the algorithm has fewer steps")

    def twin(self, codes: np.ndarray) -> Outcome:
        """Run the algorithm again, on data in one place with the random bits that the servers drew."""
        manifest = self.manifest
        privacy = manifest.privacy
        pure = privacy.exact_epsilon if privacy.accounting == "pure" else None
        budget = Filter(manifest.budget, manifest.task.neighbouring, allowance=manifest.allowance, pure_epsilon=pure)
        oracle = ClearOracle(codes, manifest.layout, manifest.task.neighbouring, budget, RunBits(self), b"/run")
        return self._run(oracle)

    def _run(self, oracle: Any) -> Outcome:
        choice = self.manifest.algorithm
        estimator = create_estimator("kernel", self.manifest.domain, groups=self.manifest.absent_together)
        return algorithm(choice.name, choice.parameters).run(self.manifest.task, oracle, estimator)


class DriverOracle:
    """`caps.dp.oracle.Oracle` on the servers, through a driver."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.layout = driver.manifest.layout
        self.requests: list[Request] = []

    def answers(self) -> None:
        """Step 0."""
        verdicts = self.driver.step(0, {"kind": "compute"})
        assert isinstance(verdicts, tuple)
        assert verdicts == (self.driver.expected or (1,) * len(verdicts))

    def select(self, selection: Selection) -> int:
        """The next step."""
        value = self._next(selection)
        assert isinstance(value, int)
        return value

    def measure(self, measurement: Measurement) -> np.ndarray:
        """The next step."""
        return np.array(self._next(measurement), np.int64)

    def compare(self, comparison: Comparison) -> np.ndarray:
        """The next step."""
        return np.array(self._next(comparison), np.int64)

    def measure_batch(self, batch: Batch) -> np.ndarray:
        """The next step."""
        return np.array(self._next(batch), np.int64)

    def _next(self, request: Request) -> int | tuple[int, ...]:
        self.requests.append(request)
        return self.driver.step(len(self.requests), request_to_json(request))


class Due(Exception):
    """An algorithm was about to make this request."""

    def __init__(self, request: Request) -> None:
        self.request = request


class Pausing(DriverOracle):
    """Answers so many requests of the algorithm's, and shows the next."""

    def __init__(self, driver: Driver, steps: int) -> None:
        super().__init__(driver)
        self.steps = steps

    def _next(self, request: Request) -> int | tuple[int, ...]:
        if len(self.requests) == self.steps:
            raise Due(request)
        return super()._next(request)


class RunBits:
    """The bits that the servers of a run draw under a label, put together: what no one of them knows."""

    def __init__(self, driver: Driver) -> None:
        scheme = driver.manifest.sharing
        stores = [ServerStores(driver.federation, name) for name in scheme.server_names]
        scope = scope_of(driver.study, driver.inputs, driver.run, stores[0].build(driver.run))
        self._keys = []
        for component in range(scheme.components):
            first, second, *third = scheme.holders_of(component)
            secret = pair_secret(stores, driver.study, first, second, scope)
            if third:
                info = b"caps/v1/component/secret" + bytes([component])
                secret = HKDF(SHA256(), 32, salt=None, info=info).derive(secret)
            self._keys.append(component_key(secret, component, b"run/" + bytes.fromhex(driver.run)))
        assert len(set(self._keys)) == scheme.components

    def bits(self, label: bytes, width: int, shape: tuple[int, ...]) -> Words:
        """As `caps.dp.noise.clear.BitSource` says."""
        extents = (width, plane_words(prod(shape)))
        return np.bitwise_xor.reduce([expand(key, label + b"#random", extents, Z64) for key in self._keys])


def pair_secret(stores: Sequence[ServerStores], study: str, party: int, peer: int, scope: bytes) -> bytes:
    """The secret of two servers, from what the first keeps."""
    key, drawn, received = stores[party].exchange(study)
    name = party_name(peer)
    return exchange.pair_secret(key, drawn[name], received[name], first=party < peer, scope=scope)


class ServerStores:
    """What a server keeps, looked at from outside."""

    def __init__(self, federation: Federation, name: str) -> None:
        self.home = federation.places[name].home
        self.state = self.home / "state"

    def exchange(self, study: str) -> tuple[ExchangeKey, dict[str, Drawn], dict[str, Received]]:
        """The server's exchange key in a study; what it drew for each peer; what it has of each."""
        vault, table = Vault(self.home), tables.pairs
        with opened(self.state / "state.db") as database:
            settings = Settings(self.home, self.state, "", 0, "")
            store = ShareStore.__new__(ShareStore)  # opening a store empties its folder of temporary files
            store.vault = vault
            key = Studies(Site(settings, role="mpc-server"), Policy(), database, store, mesh=4).exchange_key(study)
            with reading(database) as connection:
                rows = connection.execute(select(table).where(table.c.study == study)).all()
        drawn, received = {}, {}
        for row in rows:
            both = vault.unwrap(f"pair/{study}/{row.peer}/drawn", row.drawn)
            drawn[row.peer] = Drawn(both[:32], both[32:])
            if row.received is not None:
                both = vault.unwrap(f"pair/{study}/{row.peer}/received", row.received)
                received[row.peer] = Received(both[:PUBLIC_BYTES], both[PUBLIC_BYTES:])
        return key, drawn, received

    def build(self, run: str) -> str:
        """The build that began a run."""
        with opened(self.state / "state.db") as database, reading(database) as connection:
            return connection.execute(select(tables.runs.c.build).where(tables.runs.c.run == run)).scalar_one()

    def ledger(self) -> list[dict[str, Any]]:
        """Every record; the chain holds."""
        with opened(self.state / "state.db") as database:
            ledger = Ledger(database)
            assert ledger.verify() == len(list(ledger.records()))
            return list(ledger.records())

    def rows(self) -> dict[str, list[tuple[Any, ...]]]:
        """Everything in the database."""
        connection = sqlite3.connect(self.state / "state.db", timeout=10)
        try:
            return {
                name: connection.execute(f"SELECT * FROM {name} ORDER BY 1, 2").fetchall()
                for name in tables.metadata.tables
            }
        finally:
            connection.close()

    def answers(self, run: str) -> dict[int, str]:
        """The recorded answers of a run."""
        return {row[1]: row[5] for row in self.rows()["steps"] if row[0] == run and row[5] is not None}


@contextmanager
def opened(path: Path) -> Iterator[Engine]:
    """A server's database, or another."""
    database = open_database(sqlite_url(path), tables.metadata)
    try:
        yield database
    finally:
        database.dispose()


def everything(federation: Federation) -> list[dict[str, list[tuple[Any, ...]]]]:
    """The databases of all servers."""
    return [ServerStores(federation, name).rows() for name in federation.servers]


def spent_once(federation: Federation, driver: Driver) -> None:
    """Every ledger has one charge for each step that costs, and no other, within what was reserved; servers agree.

    Step 0 costs where servers see something of a join.
    """
    first = 1 if driver.manifest.overlaps is None else 0
    told = []
    for name in driver.clients:
        records = [one for one in ServerStores(federation, name).ledger() if one["run"] == driver.run]
        assert [one["kind"] for one in records[:1]] == ["reserve"]
        charges = [one for one in records if one["kind"] == "charge"]
        assert [one["step"] for one in charges] == list(range(first, first + len(charges)))
        closes = [one for one in records if one["kind"] == "close"]
        assert all(decode_ratio(one["spent"]) <= decode_ratio(records[0]["rho"]) for one in closes)
        assert len(records) == 1 + len(charges) + len(closes)
        assert len(closes) <= 1
        told.append([(one["step"], one["request"], one["entry"]) for one in charges])
    assert all(one == told[0] for one in told)


def same_release(one: Outcome, other: Outcome) -> None:
    """Two runs measured the same, and publish the same rows."""
    assert [found.clique for found in one.measurements] == [found.clique for found in other.measurements]
    for mine, its in zip(one.measurements, other.measurements, strict=True):
        assert np.array_equal(mine.values, its.values)
    assert np.array_equal(one.model.sample(50, seed=7), other.model.sample(50, seed=7))


@contextmanager
def supervised(
    federation: Federation,
    *names: str,
    under: Sequence[str] = (),
    on_death: Callable[[str], None] = lambda _: None,
) -> Iterator[list[str]]:
    """Start every service again that dies, MPC servers if none is named; yields the names of the dead, as they die."""
    died: list[str] = []
    over = Event()

    def watch() -> None:
        while not over.wait(0.05):
            for name in names or federation.servers:
                if not federation.running(name):
                    died.append(name)
                    on_death(name)
                    federation.start(name, under=under)

    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield died
    finally:
        over.set()
        thread.join()


def put_chunk(client: httpx.Client, path: str, part: bytes) -> httpx.Response:
    """PUT bytes with their digest."""
    digest = base64.b64encode(sha256(part).digest()).decode()
    headers = {"Content-Type": "application/octet-stream", "Content-Digest": f"sha-256=:{digest}:"}
    return client.put(path, content=part, headers=headers)


def shares_of(values: np.ndarray) -> tuple[DealtShare, DealtShare, DealtShare]:
    """Three shares of an array."""
    return deal(values, entropy=secrets.token_bytes)
