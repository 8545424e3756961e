"""Whole runs on three real MPC servers over mutual TLS: the release is the central one, bit for bit; hostile
coordinators get problem documents, and leave no trace."""

from __future__ import annotations

import json
import secrets
import threading
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from caps.dp.oracle import Measurement, Selection, spelled
from caps.dp.privacy import Gaussian
from caps.dp.privacy.mechanisms import mechanism_to_json
from caps.dp.privacy.rational import decode_ratio, encode_ratio
from caps.study import Manifest
from caps.trust import home as party
from caps.trust import signing
from caps.trust.tls import client_context
from caps.wire import Approval, Attestation, Signed
from caps.wire.steps import request_to_json
from deploy.federation import COORDINATOR, HOST, POLICY, SERVERS, Federation
from tests.kit.federation import (
    POPULATIONS,
    Driver,
    ServerStores,
    everything,
    manifest_of,
    now,
    same_release,
    spent_once,
)
from tests.kit.study import honest_walk
from tests.kit.waiting import until

pytestmark = pytest.mark.integration

HOLDERS = ("north", "south", "west")
CANARY = "Xanthippe-7351"
"""A category of the private tables: it stands in manifests, and in no problem."""
SCHEMA = {
    "columns": [
        {"name": "age", "kind": "numeric", "integer": True, "bin_edges": [0, 18, 40, 65, 100]},
        {"name": "smoker", "kind": "categorical", "categories": ["no", CANARY]},
        {"name": "illness", "kind": "categorical", "categories": ["none", "asthma", "other"]},
    ]
}
WIDE = {
    "columns": [
        {"name": name, "kind": "categorical", "categories": [f"v{j}" for j in range(size)]}
        for name, size in (("c1", 9), ("c2", 2), ("c3", 9))
    ]
}
"""With marginals of more and of fewer than 64 cells: their noise bits take more words than one, and one."""
ROWS = [{"name": "north", "brings": "rows"}, {"name": "south", "brings": "rows"}]
FORBIDDEN, CONFLICT, NOT_READY, NOT_DUE = ("forbidden", 403), ("conflict", 409), ("not-ready", 409), ("not-due", 409)
INVALID, BUDGET, POLICY_REFUSED = ("invalid", 422), ("budget-exceeded", 403), ("policy-refused", 403)
SIGNATURE, NOT_FOUND, MALFORMED = ("signature-refused", 403), ("not-found", 404), ("malformed", 400)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    limits = "largest_slots: 5000\nlargest_domain: 150\nalgorithms: [aim, mwem, mst, swift]\nmost_runs: 2\n"
    with Federation(
        tmp_path_factory.mktemp("federation"),
        HOLDERS,
        policy=POLICY + limits,
        populations=POPULATIONS | {"crowded": 1.1},
        environment={"CAPS_STALL": "8"},
    ) as found:
        found.start(*SERVERS)
        found.wait_ready(*SERVERS)
        yield found


def drawn(manifest: Manifest, rows: int, seed: int = 5) -> np.ndarray:
    """Rows of codes, far from uniform."""
    generator = np.random.default_rng(seed)
    return np.stack([generator.binomial(size - 1, 0.3, rows) for size in manifest.domain.sizes], axis=1)


def columns(manifest: Manifest, holder: str, codes: np.ndarray) -> np.ndarray:
    """What a holder of columns shares: its columns of the joint rows, and zeros in slots that nobody fills."""
    assert manifest.alignment is not None
    domain = manifest.columns_of(manifest.holder(holder)).domain()
    mine = codes[:, [manifest.domain.names.index(name) for name in domain.names]]
    padded = np.zeros((manifest.alignment.slots, domain.width), np.uint16)
    padded[: len(codes)] = domain.one_hot(mine)
    return padded


Case = tuple[Manifest, dict[str, np.ndarray], np.ndarray]


def horizontal(federation: Federation, **choices: Any) -> Case:
    """Two holders with persons of their own; the data in one place."""
    manifest = manifest_of(federation, ROWS, schema=choices.pop("schema", SCHEMA), **choices)
    codes = drawn(manifest, 700)
    brought = {"north": manifest.layout.marginals(codes[:300]), "south": manifest.layout.marginals(codes[300:])}
    return manifest, brought, codes


def vertical(federation: Federation, **choices: Any) -> Case:
    """Two holders with columns of the same persons, some of whom miss a value; empty slots behind them."""
    split = [
        {"name": "north", "brings": "columns", "columns": ["age"]},
        {"name": "south", "brings": "columns", "columns": ["smoker", "illness"]},
    ]
    manifest = manifest_of(federation, split, schema=SCHEMA, slots=256, **choices)
    codes = drawn(manifest, 211)
    return manifest, {name: columns(manifest, name, codes) for name in ("north", "south")}, codes


def mixed(federation: Federation, **choices: Any) -> Case:
    """One holder with persons of its own, two that share others between them."""
    split = [
        {"name": "north", "brings": "rows"},
        {"name": "south", "brings": "columns", "columns": ["age", "smoker"]},
        {"name": "west", "brings": "columns", "columns": ["illness"]},
    ]
    manifest = manifest_of(federation, split, schema=SCHEMA, slots=128, **choices)
    codes, others = drawn(manifest, 120), drawn(manifest, 333, seed=6)
    brought = {
        "north": manifest.layout.marginals(others),
        "south": columns(manifest, "south", codes),
        "west": columns(manifest, "west", codes),
    }
    return manifest, brought, np.concatenate([codes, others])


PURE = {"privacy": {"accounting": "pure"}}
SHORT = {"rounds": 5}


@pytest.mark.drawn(4)
@pytest.mark.parametrize(
    ("arrangement", "choices"),
    [
        pytest.param(horizontal, {"algorithm": "aim", "parameters": SHORT}, id="horizontal-aim"),
        pytest.param(horizontal, {"algorithm": "mwem", **PURE}, id="horizontal-mwem-pure"),
        pytest.param(horizontal, {"algorithm": "mst"}, id="horizontal-mst"),
        pytest.param(
            horizontal,
            {"algorithm": "mwem", "parameters": {"rounds": 3, "pooled": False}, "schema": WIDE},
            id="horizontal-mwem-unpooled",
        ),
        pytest.param(vertical, {"algorithm": "aim", "parameters": SHORT}, id="vertical-aim"),
        pytest.param(vertical, {"algorithm": "mwem"}, id="vertical-mwem"),
        pytest.param(vertical, {"algorithm": "mst"}, id="vertical-mst"),
        pytest.param(mixed, {"algorithm": "aim", "parameters": SHORT}, id="mixed-aim"),
        pytest.param(mixed, {"algorithm": "mwem", **PURE}, id="mixed-mwem-pure"),
        pytest.param(mixed, {"algorithm": "mst"}, id="mixed-mst"),
        pytest.param(horizontal, {"algorithm": "swift"}, id="horizontal-swift"),
        pytest.param(vertical, {"algorithm": "swift"}, id="vertical-swift"),
    ],
)
def test_the_release_is_the_central_one(
    federation: Federation, arrangement: Callable[..., Case], choices: dict[str, Any]
) -> None:
    manifest, brought, codes = arrangement(federation, **choices)
    with Driver(federation, manifest) as driver:
        driver.ready(brought)
        distributed, oracle = driver.finish()
        same_release(distributed, driver.twin(codes))
        first, again = driver.attest(), driver.attest()
        assert [found.content for found in first] == [found.content for found in again]
        words = [Signed[Attestation].model_validate_json(found.content) for found in first]
        attested = [word.verify(server) for word, server in zip(words, manifest.servers, strict=True)]
        assert len({word.transcript for word in attested}) == 1
        assert attested[0].statement == attested[1].statement == attested[2].statement
        assert {word.steps for word in attested} == {len(oracle.requests) + 1}
        spent_once(federation, driver)


Responses = Sequence[httpx.Response | None]


def refused(federation: Federation, kind: tuple[str, int], ask: Callable[[], Responses]) -> list[dict[str, Any]]:
    """Every server asked answers with this problem, tells no category, and writes nothing down."""
    before = everything(federation)
    problems = []
    for response in ask():
        assert response is not None
        assert response.status_code == kind[1], response.text
        assert response.headers["content-type"] == "application/problem+json"
        assert response.json()["type"] == f"urn:caps:problem:{kind[0]}", response.text
        assert CANARY not in response.text
        problems.append(response.json())
    assert everything(federation) == before
    return problems


@pytest.fixture(scope="module")
def going(federation: Federation) -> Iterator[Driver]:
    """A run whose first measurement is due. Whoever uses it must leave it so."""
    manifest, brought, _ = horizontal(federation, parameters=SHORT)
    with Driver(federation, manifest) as driver:
        driver.ready(brought)
        driver.due = request_to_json(driver.until(0))
        yield driver


@pytest.fixture(scope="module")
def selecting(federation: Federation) -> Iterator[Driver]:
    """A run whose first selection is due. Whoever uses it must leave it so."""
    manifest, brought, _ = horizontal(federation, parameters=SHORT)
    with Driver(federation, manifest) as driver:
        driver.ready(brought)
        driver.due = request_to_json(driver.until(3))
        yield driver


def scaled(request: dict[str, Any], member: str, factor: Fraction) -> dict[str, Any]:
    """The request with a parameter of its mechanism multiplied."""
    mechanism = dict(request["mechanism"])
    mechanism[member] = encode_ratio(decode_ratio(mechanism[member]) * factor)
    return request | {"mechanism": mechanism}


@pytest.mark.parametrize(
    ("kind", "number", "change"),
    [
        pytest.param(NOT_DUE, 1, lambda due: scaled(due, "sigma_squared", Fraction(99, 100)), id="smaller sigma"),
        pytest.param(NOT_DUE, 1, lambda due: scaled(due, "sigma_squared", Fraction(101, 100)), id="larger sigma"),
        pytest.param(NOT_DUE, 1, lambda due: due | {"step": "round1-measure"}, id="another step"),
        pytest.param(NOT_DUE, 1, lambda due: due | {"clique": ["smoker"]}, id="another column"),
        pytest.param(NOT_DUE, 1, lambda due: due | {"clique": ["age", "smoker"]}, id="a pair"),
        pytest.param(NOT_DUE, 1, lambda due: due | {"draws": 60}, id="more draws"),
        pytest.param(INVALID, 1, lambda due: due | {"distributed": True}, id="noise that each server draws by itself"),
        pytest.param(NOT_DUE, 1, lambda due: due | {"clique": [CANARY]}, id="a column that is none"),
        pytest.param(INVALID, 1, lambda due: due | {CANARY: 1}, id="an unknown member"),
        pytest.param(INVALID, 1, lambda _: {"kind": CANARY}, id="an unknown kind"),
        pytest.param(INVALID, 1, lambda due: due | {"mechanism": {"kind": CANARY}}, id="an unknown mechanism"),
        pytest.param(NOT_DUE, 2, lambda due: due, id="the step after"),
        pytest.param(NOT_DUE, 3, lambda due: due, id="two steps after"),
        pytest.param(NOT_DUE, 0, lambda due: due, id="a measurement as step 0"),
    ],
)
def test_a_measurement_that_is_not_due(
    federation: Federation, going: Driver, kind: tuple[str, int], number: int, change: Callable[[Any], Any]
) -> None:
    body = change(going.due)
    refused(federation, kind, lambda: going.ask(number, [body] * 3))


def integers(request: Any, member: str) -> Any:
    """A member of a selection on the wire, as numbers."""
    return np.frombuffer(b64decode(request[member]), "<i8").copy()


def with_numbers(request: Any, member: str, at: Any, number: int) -> Any:
    """The selection with other numbers."""
    numbers = integers(request, member)
    numbers[at] = number
    return request | {member: spelled(numbers)}


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        pytest.param(NOT_DUE, lambda due: scaled(due, "epsilon_star", Fraction(2)), id="larger epsilon"),
        pytest.param(NOT_DUE, lambda due: due | {"step": "round2-select"}, id="another round"),
        pytest.param(NOT_DUE, lambda due: with_numbers(due, "weights", ..., 9), id="other weights"),
        pytest.param(NOT_DUE, lambda due: due | {"draws": 99}, id="more draws"),
        pytest.param(
            INVALID, lambda due: due | {"estimate": spelled(integers(due, "estimate")[1:])}, id="fewer estimates"
        ),
        pytest.param(INVALID, lambda due: with_numbers(due, "estimate", 0, -1), id="fewer than nobody"),
        pytest.param(INVALID, lambda due: with_numbers(due, "estimate", 0, 2**40), id="more than can be"),
        pytest.param(INVALID, lambda due: with_numbers(due, "estimate", ..., 2**39), id="more in all"),
        pytest.param(INVALID, lambda due: with_numbers(due, "bias", ..., -1), id="a bias below nothing"),
        pytest.param(INVALID, lambda due: with_numbers(due, "bias", ..., 2**52), id="a bias beyond all noise"),
        pytest.param(
            NOT_DUE,
            lambda due: due | {"candidates": [due["candidates"][0]] * len(due["candidates"])},
            id="one candidate many times",
        ),
        pytest.param(
            NOT_DUE,
            lambda _: {
                "kind": "measure",
                "step": "round1-measure",
                "clique": ["age", "smoker"],
                "mechanism": mechanism_to_json(Gaussian(Fraction(10**6))),
                "draws": None,
            },
            id="a measurement first",
        ),
    ],
)
def test_a_selection_that_is_not_due(
    federation: Federation, selecting: Driver, kind: tuple[str, int], change: Callable[[Any], Any]
) -> None:
    body = change(selecting.due)
    refused(federation, kind, lambda: selecting.ask(4, [body] * 3))


def test_a_step_done_is_repeated_for_nobody_else_and_for_no_other_request(
    federation: Federation, selecting: Driver
) -> None:
    answer = [ServerStores(federation, name).answers(selecting.run)[3] for name in SERVERS]
    done = selecting.manifest.domain.names[2]
    request = next(
        json.loads(row[2])
        for row in ServerStores(federation, "S1").rows()["steps"]
        if (row[0], row[1]) == (selecting.run, 3)
    )
    assert request["clique"] == [done]
    again = selecting.ask(3, [request] * 3)
    assert [found is not None and found.text for found in again] == answer
    other = scaled(request, "sigma_squared", Fraction(2))
    refused(federation, CONFLICT, lambda: selecting.ask(3, [other] * 3))


def test_only_what_was_selected_is_measured(federation: Federation) -> None:
    manifest, brought, _ = horizontal(federation, parameters=SHORT)
    with Driver(federation, manifest) as driver:
        driver.ready(brought)
        due = driver.until(4)
        assert isinstance(due, Measurement)
        for candidate in manifest.program.candidates(manifest.task):
            if candidate != due.clique:
                other = request_to_json(due) | {"clique": list(candidate)}
                refused(federation, NOT_DUE, lambda body=other: driver.ask(5, [body] * 3))
        driver.step(5, request_to_json(due))
        spent_once(federation, driver)


def test_sixty_steps_that_wait_hold_up_neither_health_nor_readiness(federation: Federation) -> None:
    """Each waits for servers that have not been asked yet. There are 40 threads: 41 cannot wait in them."""
    manifest, brought, _ = horizontal(federation, parameters=SHORT)
    with Driver(federation, manifest) as driver, federation.client("S1", "operator") as operator:
        driver.ready(brought)
        body, path = request_to_json(driver.until(1)), f"/v1/runs/{driver.run}/steps/2"
        enough = threading.Event()

        def asked() -> set[int]:
            """On a busy machine, the first are answered before the last have connected: so each asks again."""
            found = set()
            while not enough.is_set():
                found.add(driver.clients["S1"].put(path, json=body).status_code)
            return found

        with ThreadPoolExecutor(60) as pool:
            waiting = [pool.submit(asked) for _ in range(60)]
            try:
                until(lambda: connected(operator) >= 60)
                found = [operator.get(page).status_code for page in ("/healthz", "/readyz")]
            finally:
                enough.set()
        assert found == [200, 200]
        assert set.union(*(one.result() for one in waiting)) <= {202, 503}
        driver.patience = 60.0
        driver.step(2, body)


MACHINES = 'caps_connections{kind="machines"} '


def connected(operator: httpx.Client) -> float:
    """How many connections of machines a server has."""
    text = operator.get("/metrics").text
    return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(MACHINES))


def test_different_estimates_for_different_servers_cost_nothing_and_stop_nothing(federation: Federation) -> None:
    manifest, brought, codes = horizontal(federation, parameters=SHORT)
    with Driver(federation, manifest) as driver:
        driver.ready(brought)
        due = driver.until(3)
        assert isinstance(due, Selection)
        body = request_to_json(due)
        for odd in range(3):
            bodies = [body] * 3
            bodies[odd] = body | {"estimate": spelled(due.estimate + 256)}
            problems = refused(federation, CONFLICT, lambda sent=bodies: driver.ask(4, sent))
            assert all("got a different request" in problem["detail"] for problem in problems)
        distributed, _ = driver.finish()
        same_release(distributed, driver.twin(codes))
        spent_once(federation, driver)


def test_a_holder_that_claims_four_billion_persons_makes_no_sum_wrap(federation: Federation) -> None:
    """With 2^32 - t persons claimed beside t honest ones, a sum modulo 2^32 would tell whether there are t."""
    manifest, brought, codes = horizontal(federation, parameters=SHORT)
    honest = codes[:300]
    person = honest[:1]
    t = int((honest[:, 0] == person[0, 0]).sum())
    brought["south"] = manifest.layout.marginals(person) * (2**32 - t) % 2**32
    with Driver(federation, manifest) as driver:
        driver.ready(brought)
        due = driver.until(0)
        assert isinstance(due, Measurement)
        assert isinstance(due.mechanism, Gaussian)
        values = driver.step(1, request_to_json(due))
        assert isinstance(values, tuple)
        assert manifest.counted_bits == 31
        expected = 2**31 - t + t  # what was claimed beyond 31 bits is cut off
        assert abs(values[int(person[0, 0])] - expected) < 12 * due.mechanism.sigma_squared**0.5


def test_nothing_comes_after_the_end(federation: Federation) -> None:
    manifest, brought, _ = horizontal(federation, parameters=SHORT)
    with Driver(federation, manifest) as driver:
        driver.ready(brought)
        driver.step(0, {"kind": "compute"})  # from here on, servers write nothing by themselves
        refused(federation, NOT_READY, driver.attest)
        _, oracle = driver.finish()
        last, count = request_to_json(oracle.requests[-1]), len(oracle.requests)
        refused(federation, NOT_DUE, lambda: driver.ask(count + 1, [last] * 3))
        assert all(found.is_success for found in driver.attest())
        refused(federation, CONFLICT, lambda: driver.ask(count + 1, [last] * 3))
        for detail in refused(federation, BUDGET, lambda: begin(driver)):
            assert driver.run in detail["detail"]
        statuses = [client.delete(f"/v1/runs/{driver.run}").json()["state"] for client in driver.clients.values()]
        assert statuses == ["ended"] * 3
        refused(federation, BUDGET, lambda: begin(driver))


def begin(driver: Driver, run: str | None = None, **members: str) -> list[httpx.Response]:
    """Begin another run on every server."""
    body = {"study": driver.study, "inputs": driver.inputs} | members
    return [client.put(f"/v1/runs/{run or secrets.token_hex(16)}", json=body) for client in driver.clients.values()]


def test_a_run_begins_once_on_the_sealed_inputs(federation: Federation, going: Driver, selecting: Driver) -> None:
    refused(federation, CONFLICT, lambda: begin(going, inputs="0" * 64))
    refused(federation, NOT_FOUND, lambda: begin(going, study="0" * 64))
    refused(federation, BUDGET, lambda: begin(going))
    refused(federation, CONFLICT, lambda: begin(going, run=selecting.run))
    before = everything(federation)
    assert [found.status_code for found in going.begin()] == [201] * 3
    assert everything(federation) == before


def test_a_study_that_is_not_sealed_has_no_run(federation: Federation) -> None:
    manifest, brought, _ = horizontal(federation)
    with Driver(federation, manifest) as driver:
        refused(federation, NOT_FOUND, lambda: begin(driver, inputs="0" * 64))
        driver.propose()
        refused(federation, NOT_READY, lambda: begin(driver, inputs="0" * 64))
        driver.contribute("north", brought["north"])
        refused(federation, NOT_READY, driver.seal)  # the holder has not approved
        refused(federation, NOT_READY, driver.begin)


def test_a_run_given_up_before_it_charged_gives_its_reservation_back_and_one_given_up_later_does_not(
    federation: Federation,
) -> None:
    manifest, brought, _ = horizontal(federation, privacy={"population": "crowded"}, parameters=SHORT)
    with Driver(federation, manifest) as driver:
        driver.ready(brought)
        other, its, _ = horizontal(
            federation, privacy={"population": "crowded"}, parameters=SHORT, purpose="the same persons again"
        )
        with Driver(federation, other) as second:
            second.propose()
            for holder, values in its.items():
                second.approve(holder)
                second.contribute(holder, values)
            assert all(found.is_success for found in second.seal())
            driver.step(0, {"kind": "compute"})
            refused(federation, BUDGET, second.begin)  # the population has not enough for both
            for client in driver.clients.values():
                assert client.delete(f"/v1/runs/{driver.run}").json()["state"] == "failed"
            assert [found.status_code for found in second.begin()] == [201] * 3
            second.until(1)
            for client in second.clients.values():
                assert client.delete(f"/v1/runs/{second.run}").json()["state"] == "failed"
            refused(federation, BUDGET, lambda: begin(second))
            refused(federation, BUDGET, lambda: begin(driver))


def test_so_many_runs_of_a_study_are_given_up_and_no_more(federation: Federation) -> None:
    """Step 0 is free where nothing is joined: without a bound, a coordinator could have it computed for ever."""
    manifest, brought, _ = horizontal(federation, parameters=SHORT)
    with Driver(federation, manifest) as driver:
        driver.ready(brought)
        for number in range(2):
            driver.step(0, {"kind": "compute"})
            for client in driver.clients.values():
                assert client.delete(f"/v1/runs/{driver.run}").json()["state"] == "failed"
            if number == 0:
                driver.run = secrets.token_hex(16)
                assert [found.status_code for found in driver.begin()] == [201] * 3
        for problem in refused(federation, POLICY_REFUSED, lambda: begin(driver)):
            assert "most_runs" in problem["detail"]
        assert [found.json()["state"] for found in driver.begin()] == ["failed"] * 3  # known already


def test_a_study_erased_has_no_run(federation: Federation) -> None:
    manifest, brought, _ = horizontal(federation)
    with Driver(federation, manifest) as driver:
        driver.propose()
        for holder, values in brought.items():
            driver.approve(holder)
            driver.contribute(holder, values)
        assert all(found.is_success for found in driver.seal())
        for name in SERVERS:
            with federation.client(name, "operator") as operator:
                operator.delete(f"/v1/studies/{driver.study}/shares").raise_for_status()
        refused(federation, CONFLICT, driver.begin)


def forged(driver: Driver, holder: str, signer: str, *, study: str | None = None) -> dict[str, Any]:
    """A holder's approval, signed with the key of another."""
    key = signing.read_signing_key(driver.federation.places[signer].home / "signing-key.pem")
    approval = Approval(study=study or driver.study, role="holder", at=now())
    return Signed[Approval].by(approval, holder, key).to_json()


@pytest.mark.parametrize("case", ["missing", "unsigned", "altered", "foreign", "of another study", "a server's alone"])
def test_approvals_are_their_signers_own(federation: Federation, case: str) -> None:
    manifest, brought, _ = horizontal(federation)
    with Driver(federation, manifest) as driver:
        driver.propose()
        for holder, values in brought.items():
            driver.approve(holder)
            driver.contribute(holder, values)
        good = driver.approvals
        bad, kind = {
            "missing": (good[:-1], NOT_READY),
            "unsigned": ([*good[:-1], good[-1] | {"signature": "0" * 128}], SIGNATURE),
            "altered": (
                [*good[:-1], good[-1] | {"document": good[-1]["document"] | {"at": now()[:-1] + ".5Z"}}],
                SIGNATURE,
            ),
            "foreign": ([*good[:-1], forged(driver, "south", "west")], SIGNATURE),
            "of another study": ([*good[:-1], forged(driver, "south", "south", study="0" * 64)], INVALID),
            "a server's alone": (good[1:], NOT_READY),
        }[case]
        driver.approvals = bad
        refused(federation, kind, driver.seal)
        refused(federation, NOT_READY, driver.begin)
        driver.approvals = good
        assert all(found.is_success for found in driver.seal())


def test_a_manifest_altered_after_approval_is_another_study(federation: Federation) -> None:
    manifest, brought, _ = horizontal(federation)
    with Driver(federation, manifest) as driver:
        driver.propose()
        for holder, values in brought.items():
            driver.approve(holder)
            driver.contribute(holder, values)
        altered = manifest.to_json() | {"privacy": manifest.privacy.to_json() | {"epsilon": "9"}}
        refused(
            federation,
            INVALID,
            lambda: [client.put(f"/v1/studies/{driver.study}", json=altered) for client in driver.clients.values()],
        )
        with Driver(federation, Manifest.from_json(altered)) as other:
            other.propose()
            other.contributions = driver.contributions
            mine, other.approvals = other.approvals, driver.approvals
            refused(federation, INVALID, other.seal)  # servers' approvals of the study before
            other.approvals = [*mine, *driver.approvals[3:]]
            refused(federation, INVALID, other.seal)  # holders' approvals of it
            other.approvals = mine
            refused(federation, NOT_READY, other.seal)  # none, and contributions to another study


@pytest.mark.parametrize(
    ("choices", "objection"),
    [
        ({"privacy": {"epsilon": "11"}}, "epsilon 11 exceeds"),
        ({"privacy": {"delta": "0.0001"}}, "delta 0.0001 exceeds"),
        ({"privacy": {"epsilon": "5", "population": "crowded"}}, "budget of population crowded"),
        ({"privacy": {"population": "crowded2"}}, "crowded2 is not registered"),
        ({"schema": {"columns": [*SCHEMA["columns"], *WIDE["columns"]]}}, "cells exceed"),
        ({"algorithm": "gaussian"}, "does not allow the algorithm gaussian"),
        ({"choice": {"noise": "paper:irwin-hall"}}, "has no proven guarantee"),
    ],
)
def test_a_policy_is_not_the_coordinators_to_bend(
    federation: Federation, choices: dict[str, Any], objection: str
) -> None:
    with Driver(federation, manifest_of(federation, ROWS, **({"schema": SCHEMA} | choices))) as driver:
        for problem in refused(federation, POLICY_REFUSED, driver.propose):
            assert any(objection in one for one in problem["objections"])
        refused(federation, NOT_FOUND, lambda: begin(driver, inputs="0" * 64))


def test_slots_are_limited_by_policy(federation: Federation) -> None:
    split = [{"name": "north", "brings": "columns"}]
    with Driver(federation, manifest_of(federation, split, schema=SCHEMA, slots=5001)) as driver:
        for problem in refused(federation, POLICY_REFUSED, driver.propose):
            assert any("5001 slots exceed" in one for one in problem["objections"])


def impostor(federation: Federation, folder: Path) -> Path:
    """A home with a certificate of the federation's own authority for the coordinator's name, and another key."""
    authority = party.read_authority(federation.directory / "authority")
    hosts, moment = ["localhost", HOST], datetime.now(UTC)
    party.request_party(folder, "coordinator", COORDINATOR, hosts)
    issued = party.approve_request(
        authority, party.read_request(folder / party.REQUEST), "coordinator", COORDINATOR, hosts, now=moment
    )
    party.write_certificate(folder / "issued.pem", issued)
    party.install(folder, folder / "issued.pem", federation.authority, now=moment)
    return folder


def test_nobody_else_speaks_for_the_coordinator(federation: Federation, going: Driver, tmp_path: Path) -> None:
    home = impostor(federation, tmp_path / "impostor")
    paths = [
        ("PUT", f"/v1/runs/{going.run}", {"study": going.study, "inputs": going.inputs}),
        ("PUT", f"/v1/runs/{secrets.token_hex(16)}", {"study": going.study, "inputs": going.inputs}),
        ("PUT", f"/v1/runs/{going.run}/steps/1", going.due),
        ("PUT", f"/v1/runs/{going.run}/steps/0", {"kind": "compute"}),
        ("PUT", f"/v1/runs/{going.run}/attestation", None),
        ("DELETE", f"/v1/runs/{going.run}", None),
        (
            "PUT",
            f"/v1/studies/{going.study}/seal",
            {"contributions": going.contributions, "approvals": going.approvals},
        ),
    ]
    context = client_context(
        federation.authority, certificate=home / party.CERTIFICATE, private_key=home / party.PRIVATE_KEY
    )
    for name in SERVERS:
        url = federation.places[name].url
        with httpx.Client(base_url=url, verify=context, trust_env=False) as caller:
            kinds = (FORBIDDEN, FORBIDDEN, *[NOT_FOUND] * 4, FORBIDDEN)  # the study is not its own; the run is unknown
            for (verb, path, body), kind in zip(paths, kinds, strict=True):
                refused(federation, kind, lambda: [caller.request(verb, path, json=body)])  # noqa: B023
            for path in (f"/v1/runs/{going.run}", f"/v1/runs/{going.run}/steps/0"):
                refused(federation, NOT_FOUND, lambda: [caller.get(path)])  # noqa: B023
        callers = [
            federation.machine(name, "north"),
            federation.machine(name, "S1" if name != "S1" else "S2"),
            federation.client(name, "operator"),
            federation.client(name, "auditor"),
        ]
        for caller in callers:
            with caller:
                refused(
                    federation,
                    FORBIDDEN,
                    lambda caller=caller: [caller.request(verb, path, json=body) for verb, path, body in paths],
                )
        with federation.client(name, None) as nobody:
            refused(
                federation,
                ("unauthenticated", 401),
                lambda nobody=nobody: [nobody.request(verb, path, json=body) for verb, path, body in paths],
            )
        with federation.machine(name, COORDINATOR) as coordinator:
            refused(federation, FORBIDDEN, lambda one=coordinator: [one.get("/v1/ledger")])


def crooked(federation: Federation, **choices: Any) -> Case:
    """Three holders with persons of their own; the marginals of the first do not tell of the same persons."""
    manifest = manifest_of(federation, [*ROWS, {"name": "west", "brings": "rows"}], schema=SCHEMA, **choices)
    codes = drawn(manifest, 700)
    parts = {"north": codes[:200], "south": codes[200:500], "west": codes[500:]}
    brought = {name: manifest.layout.marginals(part) for name, part in parts.items()}
    brought["north"][0] += 5
    return manifest, brought, codes[200:]


def test_a_run_ends_if_a_contribution_is_refused(federation: Federation) -> None:
    """Every server ends it by itself, whatever the coordinator asks for; what was reserved is free again."""
    manifest, brought, _ = crooked(federation, parameters=SHORT)
    with Driver(federation, manifest) as driver:
        driver.ready(brought)
        assert driver.step(0, {"kind": "compute"}) == (0, 1, 1)
        words = "the contribution of north failed the servers' checks, and the study agreed to stop"
        for client in driver.clients.values():
            said = client.get(f"/v1/runs/{driver.run}").json()
            assert said["state"] == "failed"
            assert words in said["reason"]
        due = request_to_json(honest_walk(manifest)[1][1][0])
        for problem in refused(federation, NOT_DUE, lambda: driver.ask(1, [due] * 3)):
            assert words in problem["detail"]
        refused(federation, CONFLICT, driver.attest)
        assert driver.step(0, {"kind": "compute"}) == (0, 1, 1)  # what is recorded is not lost
        assert [client.delete(f"/v1/runs/{driver.run}").status_code for client in driver.clients.values()] == [200] * 3
        for problem in refused(federation, CONFLICT, lambda: driver.ask(1, [due] * 3)):
            assert words in problem["detail"]
        kinds = [one["kind"] for one in ServerStores(federation, "S1").ledger() if one["run"] == driver.run]
        assert kinds == ["reserve", "release"]


def test_a_refused_contribution_is_left_out_if_the_study_says_so(federation: Federation) -> None:
    manifest, brought, codes = crooked(federation, parameters=SHORT, inputs={"refused": "leave-out"})
    with Driver(federation, manifest) as driver:
        driver.ready(brought)
        assert driver.step(0, {"kind": "compute"}) == (0, 1, 1)
        driver.expected = (0, 1, 1)
        distributed, _ = driver.finish()
        same_release(distributed, driver.twin(codes))
        for found in driver.attest():
            said = Signed[Attestation].model_validate_json(found.content).document
            assert (said.holders, said.refused) == (("south", "west"), ("north",))
            assert len(said.contributions) == 3
        spent_once(federation, driver)


def test_columns_that_are_not_one_hot_are_named(federation: Federation) -> None:
    """Nobody else brings these columns, so that the run ends in any case."""
    manifest, brought, _ = vertical(federation, parameters=SHORT, inputs={"refused": "leave-out"})
    altered = brought["south"].copy()
    altered[3, :2] = 1  # one person, both a smoker and not
    with Driver(federation, manifest) as driver:
        driver.ready(brought | {"south": altered})
        assert driver.step(0, {"kind": "compute"}) == (1, 0)
        for client in driver.clients.values():
            said = client.get(f"/v1/runs/{driver.run}").json()
            assert said["state"] == "failed"
            assert "the contribution of south" in said["reason"]
            assert "nobody else brings smoker, illness" in said["reason"]


def test_a_run_given_up_after_its_last_step_is_not_attested(federation: Federation) -> None:
    manifest, brought, _ = horizontal(federation, parameters=SHORT)
    with Driver(federation, manifest) as driver:
        driver.ready(brought)
        driver.finish()
        for client in driver.clients.values():
            assert client.delete(f"/v1/runs/{driver.run}").json()["state"] == "failed"
        for problem in refused(federation, CONFLICT, driver.attest):
            assert problem["detail"] == "the run has failed: abandoned by the coordinator"
