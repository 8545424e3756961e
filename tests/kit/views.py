"""What servers were sent in a run, and whether it tells them anything."""

from __future__ import annotations

import time

import numpy as np
import pytest
from scipy import stats

from caps.dp.oracle import Measurement, Selection
from caps.dp.privacy.schedule import Role, step_name
from caps.wire.steps import request_to_json
from services.mpc_server.channel import swap
from tests.kit.federation import Driver
from tests.kit.recording import Received

UNLIKELY = 1e-5
"""A test that looks at this many p-values and is right fails less than once in a thousand runs."""


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


class _Tag:
    """Finds out the tag of a swap."""

    party = 0
    peers = (1, 2)

    async def exchange(self, tag: bytes, *_: object) -> dict[int, bytes]:
        self.tag = tag.hex()
        return {1: b"", 2: b""}


def control_tags() -> set[str]:
    """Of the messages in which servers compare public records and sign charges and heads of ledgers."""
    tags = set()
    for name in (
        "sync",
        "ledger/kept",
        "ledger/heads",
        *(f"step{n}/{what}" for n in range(6) for what in ("request", "charged")),
    ):
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


def by_source(outline: list[tuple[int, str, str, int]]) -> list[list[tuple[int, str, str, int]]]:
    """In the order of each sender: which of two peers is heard first is the network's doing."""
    return [[one for one in outline if one[0] == source] for source in range(3)]
