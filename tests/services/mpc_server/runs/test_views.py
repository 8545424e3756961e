"""What one server receives and stores tells it nothing: it looks the same whatever the private data is.

Everything that comes in is recorded, on servers that are processes of their own, during a vertical run on an empty
table and on a full one: the messages are the same in number, order and length, and their bytes are uniform in both.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from scipy import stats

from caps.study import Manifest
from deploy.federation import SERVERS, Federation
from tests.kit.federation import POPULATIONS, Driver, manifest_of
from tests.kit.recording import forget, read
from tests.kit.views import CONTROL, UNLIKELY, alike, ask, by_source, settle, shares, uniform

pytestmark = [pytest.mark.statistical, pytest.mark.integration]

SCHEMA = {
    "columns": [
        {"name": "age", "kind": "numeric", "integer": True, "bin_edges": [0, 18, 40, 65, 100]},
        {"name": "smoker", "kind": "categorical", "categories": ["no", "yes"]},
        {"name": "illness", "kind": "categorical", "categories": ["none", "asthma", "other"]},
    ]
}
SLOTS, ROUNDS = 64, 3


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    places = tmp_path_factory.mktemp("views")
    with Federation(places, ("north", "south"), populations=POPULATIONS, environment={"CAPS_STALL": "20"}) as found:
        found.start(*SERVERS, under=("tests.kit.recording",))
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


EMPTY = np.zeros((0, 3), np.int64)
SKEWED = np.random.default_rng(9).binomial([3, 1, 2], 0.8, (SLOTS, 3))


@pytest.fixture(scope="module")
def views(federation: Federation) -> tuple[list[View], list[View]]:
    """Runs on a table without rows, and runs on one that is full."""
    return [View(federation, EMPTY) for _ in range(ROUNDS)], [View(federation, SKEWED) for _ in range(ROUNDS)]


def gathered(views: list[View], server: int) -> np.ndarray:
    return np.concatenate([shares(view.messages[server]) for view in views])


@pytest.mark.drawn(1)
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
