"""Servers killed at any point of a run, by SIGKILL of their own: the run ends with the release it would have had.

That nothing is drawn afresh is shown by the clear twin, which draws every value once, from the run's own bits.
"""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from caps.dp.oracle import Measurement
from caps.dp.privacy.schedule import Role, step_name
from caps.wire import Attestation, Signed
from caps.wire.steps import request_to_json
from deploy.federation import POLICY, SERVERS, Federation
from tests.kit.crashing import POINTS, arm, points
from tests.kit.federation import (
    POPULATIONS,
    Driver,
    ServerStores,
    manifest_of,
    pair_secret,
    same_release,
    spent_once,
    supervised,
)

pytestmark = [pytest.mark.chaos, pytest.mark.integration]

UNDER = ("tests.kit.crashing",)
STALL = 4.0
SCHEMA = {
    "columns": [
        {"name": "age", "kind": "numeric", "integer": True, "bin_edges": [0, 18, 40]},
        {"name": "smoker", "kind": "categorical", "categories": ["no", "yes"]},
    ]
}
SPLIT = [
    {"name": "north", "brings": "columns", "columns": ["age"]},
    {"name": "south", "brings": "columns", "columns": ["smoker"]},
]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with Federation(
        tmp_path_factory.mktemp("crashes"),
        ("north", "south"),
        populations=POPULATIONS,
        policy=POLICY + "most_studies: 10000\n",  # a study for each point
        environment={"CAPS_STALL": str(STALL)},
    ) as found:
        found.start(*SERVERS, under=UNDER)
        found.wait_ready(*SERVERS)
        yield found


def begun(federation: Federation, algorithm: str = "aim") -> tuple[Driver, np.ndarray]:
    """A small run on columns, before its first step."""
    parameters = {"rounds": 3} if algorithm == "aim" else {}
    manifest = manifest_of(federation, SPLIT, schema=SCHEMA, slots=32, algorithm=algorithm, parameters=parameters)
    codes = np.random.default_rng(3).integers(0, 2, (29, 2))
    columns = {}
    for name, position in (("north", 0), ("south", 1)):
        domain = manifest.columns_of(manifest.holder(name)).domain()
        columns[name] = np.zeros((32, domain.width), np.uint16)
        columns[name][: len(codes)] = domain.one_hot(codes[:, [position]])
    federation.wait_ready(*SERVERS)
    driver = Driver(federation, manifest)
    driver.patience = 60.0
    driver.ready(columns)
    return driver, codes


def complete(federation: Federation, driver: Driver, codes: np.ndarray) -> None:
    """Run to the attestations, whatever happens to servers on the way; then look whether all is as it should be."""
    distributed, _ = driver.finish()
    words = [Signed[Attestation].model_validate_json(found.content).document for found in driver.attest()]
    assert len({word.transcript for word in words}) == 1
    assert words[0].statement == words[1].statement == words[2].statement
    same_release(distributed, driver.twin(codes))
    spent_once(federation, driver)
    documents = [
        {
            step: json.loads(text)["document"]
            for step, text in ServerStores(federation, name).answers(driver.run).items()
        }
        for name in SERVERS
    ]
    assert documents[0] == documents[1] == documents[2]
    assert len(documents[0]) == words[0].steps


def survives(
    federation: Federation, faults: Sequence[tuple[str, str, int]], *, all_die: bool = True, algorithm: str = "aim"
) -> list[str]:
    """Run with servers that end at points; returns which ended. Answers written down before stay what they were."""
    driver, codes = begun(federation, algorithm)
    for victim, point, number in faults:
        arm(federation.places[victim].home, point, number)
    kept: list[tuple[str, dict[int, str]]] = []
    restarted = supervised(federation, under=UNDER, on_death=lambda name: kept.append(note(federation, driver, name)))
    with driver, restarted as died:
        complete(federation, driver, codes)
    for victim, _, _ in faults:
        (federation.places[victim].home / "crash").unlink(missing_ok=True)
    for name, answers in kept:
        assert answers.items() <= ServerStores(federation, name).answers(driver.run).items()
    if all_die:
        assert sorted(died) == sorted({victim for victim, _, _ in faults})
    return died


def note(federation: Federation, driver: Driver, name: str) -> tuple[str, dict[int, str]]:
    return name, ServerStores(federation, name).answers(driver.run)


# A server writes, in this order: step 0, its answer; so for each step, a charge and an answer; then the end.
SAMPLE = [
    pytest.param(
        [
            ("S1", "storing", 1),  # the counts
            ("S2", "committed", 3),  # the charge of step 1
            ("S3", "committed", 6),  # the answer of step 2
        ],
        id="counts, charge, answer",
    ),
    pytest.param(
        [
            ("S2", "exchange", 9),  # in the middle of COMPUTE ANSWERS
            ("S3", "answering", 2),  # step 1
            ("S1", "committing", 5),  # the charge of step 2
        ],
        id="compute, response, charge",
    ),
    pytest.param(
        [
            ("S3", "committing", 4),  # the answer of step 1
            ("S1", "waiting", 40),
            ("S2", "committed", 8),  # an answer
        ],
        id="answer, round, answer",
    ),
]


@pytest.mark.drawn(1)
@pytest.mark.parametrize("faults", SAMPLE)
def test_servers_that_die_one_after_the_other_cost_time_only(
    federation: Federation, faults: Sequence[tuple[str, str, int]]
) -> None:
    survives(federation, faults)


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    "faults",
    [
        pytest.param([("S1", "pairing", 1), ("S2", "paired", 1), ("S3", "pairing", 2)], id="drawing, drawn, keeping"),
        pytest.param([("S1", "paired", 2), ("S2", "pairing", 1)], id="kept, drawing"),
        pytest.param([("S2", "pairing", 2), ("S3", "paired", 1)], id="keeping, drawn"),
    ],
)
def test_servers_that_die_when_they_first_meet_have_the_same_secrets(
    federation: Federation, faults: Sequence[tuple[str, str, int]]
) -> None:
    """A server writes what it drew for its peers, then what it got of them: two commits, before the first step."""
    for victim, point, number in faults:
        arm(federation.places[victim].home, point, number)
    with supervised(federation, under=UNDER) as died:
        driver, codes = begun(federation)
        with driver:
            complete(federation, driver, codes)
    assert sorted(died) == sorted(victim for victim, _, _ in faults)
    stores = [ServerStores(federation, name) for name in SERVERS]
    for party, peer in ((0, 1), (1, 2), (2, 0)):
        mine = pair_secret(stores, driver.study, party, peer, b"scope")
        assert mine == pair_secret(stores, driver.study, peer, party, b"scope")


def test_all_servers_die_at_once_and_two_while_they_attest(federation: Federation) -> None:
    """Of one step, S1 has written the charge, S2 nothing, and S3 perhaps the charge, too."""
    driver, codes = begun(federation)
    with driver, supervised(federation, under=UNDER) as died:
        driver.step(0, {"kind": "compute"})
        for victim, point in (("S1", "committed"), ("S2", "committing"), ("S3", "committed")):
            arm(federation.places[victim].home, point, 1)
        driver.finish()
        assert set(died) == set(SERVERS)
        for victim, point in (("S1", "committing"), ("S2", "committed")):
            arm(federation.places[victim].home, point, 1)
        complete(federation, driver, codes)
        assert sorted(died[-2:]) == ["S1", "S2"]


def test_a_server_dies_before_it_wrote_its_last_answer(federation: Federation) -> None:
    """The others have theirs, and are still there to repeat the step with it. MST on two columns has four steps."""
    survives(federation, [("S1", "committing", 2 * (1 + 4))], algorithm="mst")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_two_servers_die_at_once(federation: Federation) -> None:
    for first, second in (("S1", "S2"), ("S2", "S3"), ("S3", "S1")):
        survives(federation, [(first, "committed", 5), (second, "committed", 5)])
        survives(federation, [(first, "committing", 6), (second, "committed", 6)])


def test_a_server_that_stops_is_named_in_time_and_waited_for(federation: Federation) -> None:
    driver, codes = begun(federation)
    with driver:
        body: dict[str, Any] = {"kind": "compute"}
        driver.step(0, body)
        driver.patience = 0.0
        federation.send("S2", signal.SIGSTOP)
        try:
            began = time.monotonic()
            due = request_of(driver)
            found = driver.ask(1, [due, None, due])
            assert time.monotonic() - began < 4 * STALL
            for response in found[::2]:
                assert response is not None
                assert response.status_code == 503
                assert response.json()["type"] == "urn:caps:problem:peer-failed"
                assert response.json()["party"] == "S2"
                assert response.json()["retryable"]
            with federation.client("S1", "auditor") as auditor:
                status = auditor.get(f"/v1/runs/{driver.run}").json()
            assert (status["state"], status["party"]) == ("waiting", "S2")
        finally:
            federation.send("S2", signal.SIGCONT)
        driver.patience = 60.0
        complete(federation, driver, codes)


def request_of(driver: Driver) -> dict[str, Any]:
    """The first request of the run, without asking for anything."""
    manifest = driver.manifest
    step = manifest.program.schedule(manifest.task).step
    assert step is not None
    clique = manifest.program.initial(manifest.task)[0]
    return request_to_json(Measurement(step_name(Role.INITIAL, 1), clique, step.mechanism))


def all_points(federation: Federation) -> Counter[str]:
    """How often a server comes to each point in an undisturbed run."""
    driver, codes = begun(federation)
    home = federation.places["S1"].home
    arm(home, "-", 0)
    with driver:
        complete(federation, driver, codes)
    return points(home)


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize(
    "runs", [pytest.param(3, marks=pytest.mark.slow), pytest.param(None, marks=pytest.mark.exhaustive)]
)
def test_a_server_dies_at_every_point(federation: Federation, point: str, runs: int | None) -> None:
    """So many times, spread over the run, or every time it comes to the point; S1, S2 and S3 in turn.

    How often it does varies a little, for noise is drawn when a server is idle.
    """
    count = all_points(federation)[point]
    assert count > 0
    for number in range(1, count + 1, 1 if runs is None else -(-count // runs)):
        survives(federation, [(SERVERS[number % 3], point, number)], all_die=False)
