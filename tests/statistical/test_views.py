"""What one server receives and stores tells it nothing: it looks the same whatever the private data is.

Everything that comes in is recorded, on servers that are processes of their own, during a vertical run on an empty
table and on a full one: the messages are the same in number, order and length, and their bytes are uniform in both.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest
from scipy import stats

from caps.dp.oracle import Measurement, Selection
from caps.dp.privacy.schedule import Role, step_name
from caps.study import Manifest
from caps.wire.steps import request_to_json
from deploy.federation import SERVERS, Federation
from services.mpc_server.channel import swap
from tests.federation_kit import POPULATIONS, Driver, manifest_of
from tests.recording import Received, forget, read

SCHEMA = {
    "columns": [
        {"name": "age", "kind": "numeric", "integer": True, "bin_edges": [0, 18, 40, 65, 100]},
        {"name": "smoker", "kind": "categorical", "categories": ["no", "yes"]},
        {"name": "illness", "kind": "categorical", "categories": ["none", "asthma", "other"]},
    ]
}
SLOTS, ROUNDS = 64, 3
UNLIKELY = 1e-5
"""A test that looks at this many p-values and is right fails less than once in a thousand runs."""


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    places = tmp_path_factory.mktemp("views")
    with Federation(places, ("north", "south"), populations=POPULATIONS, environment={"CAPS_STALL": "20"}) as found:
        found.start(*SERVERS, under=("tests.recording",))
        found.wait_ready(*SERVERS)
        yield found


class View:
    """What each server saw of one run: messages that carry shares, the rest of what came in, and what it stored."""

    def __init__(self, federation: Federation, table: np.ndarray) -> None:
        split = [
            {"name": "north", "brings": "columns", "columns": ["age"]},
            {"name": "south", "brings": "columns", "columns": ["smoker", "illness"]},
        ]
        self.manifest = manifest_of(federation, split, schema=SCHEMA, slots=SLOTS, parameters={"rounds": 5})
        homes = [federation.places[name].home for name in SERVERS]
        for home in homes:
            forget(home)
        with Driver(federation, self.manifest) as driver:
            driver.ready({name: columns(self.manifest, name, table) for name in ("north", "south")})
            ask(driver)
            settle(driver)
        self.messages, self.requests, self.stored = [], [], []
        for home in homes:
            messages, requests = read(home)
            self.messages.append(messages)
            self.requests.append(requests)
            self.stored.append(b"".join(path.read_bytes() for path in sorted(home.rglob("*")) if path.is_file()))


def columns(manifest: Manifest, holder: str, table: np.ndarray) -> np.ndarray:
    domain = manifest.columns_of(manifest.holder(holder)).domain()
    found = np.zeros((SLOTS, domain.width), np.uint16)
    found[: len(table)] = domain.one_hot(table[:, [manifest.domain.names.index(name) for name in domain.names]])
    return found


def ask(driver: Driver) -> None:
    """The same requests whatever is answered: all columns, and a selection with made-up estimates."""
    manifest = driver.manifest
    driver.step(0, {"kind": "compute"})
    due = manifest.program.schedule(manifest.task).step
    assert due is not None
    number = 0
    for number, clique in enumerate(manifest.program.initial(manifest.task), 1):
        driver.step(number, request_to_json(Measurement(step_name(Role.INITIAL, number), clique, due.mechanism)))
    after = manifest.program.schedule(manifest.task).following()[0].step
    assert after is not None
    assert after.role is Role.SELECT
    candidates = manifest.program.candidates(manifest.task)
    cells = sum(manifest.domain.cells(clique) for clique in candidates)
    zeros = np.zeros(len(candidates), np.int64)
    weights = np.array(list(candidates.values()))
    name, estimate = step_name(Role.SELECT, 1), np.full(cells, 256, np.int64)
    selection = Selection(name, tuple(candidates), estimate, zeros, weights, after.mechanism)
    driver.step(number + 1, request_to_json(selection))


def settle(driver: Driver) -> None:
    """Wait until the servers have drawn the noise that they draw while they are idle."""
    before, rounds = [-1], [0]
    while rounds != before:
        time.sleep(0.25)
        statuses = [client.get(f"/v1/runs/{driver.run}").json() for client in driver.clients.values()]
        before, rounds = rounds, [status["rounds"] for status in statuses]


EMPTY = np.zeros((0, 3), np.int64)
SKEWED = np.random.default_rng(9).binomial([3, 1, 2], 0.8, (SLOTS, 3))


@pytest.fixture(scope="module")
def views(federation: Federation) -> tuple[list[View], list[View]]:
    """Runs on a table without rows, and runs on one that is full."""
    return [View(federation, EMPTY) for _ in range(ROUNDS)], [View(federation, SKEWED) for _ in range(ROUNDS)]


class _Tag:
    """Finds out the tag of a swap."""

    party = 0

    async def exchange(self, tag: bytes, *_: object) -> dict[int, bytes]:
        self.tag = tag.hex()
        return {1: b"", 2: b""}


def control_tags() -> set[str]:
    """Of the messages in which servers compare public records and sign charges."""
    tags = set()
    for name in ("sync", *(f"step{n}/{what}" for n in range(6) for what in ("request", "charged"))):
        spy = _Tag()
        with pytest.raises(StopIteration):
            swap(spy, name, b"").send(None)  # type: ignore[arg-type]
        tags.add(spy.tag)
    return tags


CONTROL = control_tags()


def shares(messages: list[Received]) -> np.ndarray:
    """The bytes of all messages that carry shares."""
    kept = [one.payload for one in messages if one.kind == "ROUND" and one.tag not in CONTROL]
    return np.frombuffer(b"".join(kept), np.uint8)


def uniform(octets: np.ndarray) -> float:
    """p-value of these bytes under the uniform law."""
    return float(stats.chisquare(np.bincount(octets, minlength=256)).pvalue)


def alike(ones: np.ndarray, others: np.ndarray) -> float:
    """p-value of two samples of bytes under one law, whatever it is."""
    counts = np.stack([np.bincount(found, minlength=256) for found in (ones, others)])
    return float(stats.chi2_contingency(counts).pvalue)


def gathered(views: list[View], server: int) -> np.ndarray:
    return np.concatenate([shares(view.messages[server]) for view in views])


@pytest.mark.parametrize("server", range(3))
def test_number_order_and_length_of_messages_do_not_depend_on_the_data(
    views: tuple[list[View], list[View]], server: int
) -> None:
    empty, skewed = views
    outlines = [
        [one.outline for one in view.messages[server] if one.kind in ("ROUND", "HELLO")] for view in (*empty, *skewed)
    ]
    assert len(outlines[0]) > 50
    for outline in outlines[1:]:
        assert by_source(outline) == by_source(outlines[0])


def by_source(outline: list[tuple[int, str, str, int]]) -> list[list[tuple[int, str, str, int]]]:
    """In the order of each sender: which of two peers is heard first is the network's doing."""
    return [[one for one in outline if one[0] == source] for source in range(3)]


@pytest.mark.parametrize("server", range(3))
def test_what_a_server_receives_is_uniform_whatever_the_data(views: tuple[list[View], list[View]], server: int) -> None:
    empty, skewed = (gathered(found, server) for found in views)
    assert len(empty) > 10_000
    assert uniform(empty) > UNLIKELY
    assert uniform(skewed) > UNLIKELY
    assert alike(empty, skewed) > UNLIKELY


@pytest.mark.parametrize("server", range(3))
def test_no_message_has_a_law_that_depends_on_the_data(views: tuple[list[View], list[View]], server: int) -> None:
    """Message by message, over all runs: how many of its bits are set."""
    empty, skewed = (
        [[one for one in view.messages[server] if one.kind == "ROUND" and one.tag not in CONTROL] for view in found]
        for found in views
    )
    messages = {one.outline for one in empty[0]}
    assert len(messages) > 50
    for outline in messages:
        table = []
        for found in (empty, skewed):
            payloads = b"".join(one.payload for view in found for one in view if one.outline == outline)
            ones = int(np.unpackbits(np.frombuffer(payloads, np.uint8)).sum())
            table.append([ones, 8 * len(payloads) - ones])
        assert float(stats.fisher_exact(table).pvalue) > UNLIKELY / len(messages)


def test_a_message_that_tells_would_be_noticed(views: tuple[list[View], list[View]]) -> None:
    """The same tests, of servers that are sent one holder's columns as they are, a few times in each run."""
    manifest = views[1][0].manifest
    empty, skewed = (
        np.concatenate([gathered(found, 0), *[columns(manifest, "south", table).view(np.uint8).ravel()] * (4 * ROUNDS)])
        for found, table in zip(views, (EMPTY, SKEWED), strict=True)
    )
    assert uniform(skewed) < UNLIKELY
    assert alike(empty, skewed) < UNLIKELY


def uploads(views: list[View], server: int) -> np.ndarray:
    """What holders sent to a server as vectors."""
    found = [body for view in views for path, body in view.requests[server] if "/chunks/" in path and len(body) > 400]
    return np.frombuffer(b"".join(found), np.uint8)


@pytest.mark.parametrize("server", [1, 2])
def test_uploads_are_uniform_whatever_the_data(views: tuple[list[View], list[View]], server: int) -> None:
    empty, skewed = (uploads(found, server) for found in views)
    assert len(empty) == len(skewed) > 2_000
    assert uniform(empty) > UNLIKELY
    assert uniform(skewed) > UNLIKELY
    assert alike(empty, skewed) > UNLIKELY


def canaries(manifest: Manifest) -> Iterator[bytes]:
    """Every few rows of the full table that follow one another, in all the ways in which somebody may write them."""
    for holder in ("north", "south"):
        table = columns(manifest, holder, SKEWED)
        for start in range(SLOTS - 4):
            for kind in (np.uint8, np.uint16, np.uint32, np.uint64):
                yield table[start : start + 4].astype(kind).tobytes()
    for start in range(SLOTS - 8):
        yield SKEWED[start : start + 8].astype(np.int64).tobytes()
        yield str(SKEWED[start : start + 8].tolist()).encode()
        yield "".join(map(str, SKEWED[start : start + 8].ravel())).encode()


def test_no_server_receives_stores_or_logs_rows(federation: Federation, views: tuple[list[View], list[View]]) -> None:
    view = views[1][0]
    for server, name in enumerate(SERVERS):
        everything = b"".join(one.payload for one in view.messages[server]) + federation.log(name).encode()
        everything += b"".join(part for _, part in view.requests[server]) + view.stored[server]
        assert not any(canary in everything for canary in canaries(view.manifest))
