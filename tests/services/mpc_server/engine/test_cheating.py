"""A server that cheats, in every protocol: under a scheme that claims to stop it, it never gets away with it.

`make test-slow` alters 10,000 runs a scheme and prints how they ended; also of the scheme in which servers are trusted.
"""

from __future__ import annotations

import numpy as np
import pytest

from caps.basics.schemes import SCHEMES, Scheme
from services.mpc_server.engine.registry import REGISTRY
from tests.kit.cases.base import assert_equal
from tests.kit.cheating import (
    ALLOWED,
    CAUGHT,
    ENDED,
    OPENED,
    PROTOCOLS,
    REFUSED,
    RIGHT,
    WAYS,
    WRONG,
    Place,
    Run,
    Table,
    altered_run,
    cheat,
    drawn_call,
    judged,
    perform,
)

ACTIVE = [scheme for scheme in SCHEMES.values() if scheme.active]
TRUSTING = [scheme for scheme in SCHEMES.values() if not scheme.active]
MANY = 10_000


def named(schemes: list[Scheme]) -> dict[str, object]:
    return {"argvalues": schemes, "ids": [scheme.name for scheme in schemes]}


def altered(scheme: Scheme, runs: int, seed: int) -> Table:
    """At least so many altered runs, as many of each protocol."""
    table = Table(scheme.name)
    for name in PROTOCOLS:
        cheat(table, scheme, name, runs=-(-runs // len(PROTOCOLS)), seed=seed)
    return table


@pytest.mark.drawn(36)
@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("scheme", **named(ACTIVE))
def test_a_server_that_cheats_is_caught_before_anything_false_is_opened(scheme: Scheme, name: str) -> None:
    table = Table(scheme.name)
    cheat(table, scheme, name, runs=6)
    assert not table.found, "\n".join(map(str, table.found))
    assert table.runs >= 6


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("scheme", **named(ACTIVE))
def test_no_altered_run_is_wrong_among_many(scheme: Scheme, capsys: pytest.CaptureFixture[str]) -> None:
    table = altered(scheme, MANY, seed=2)
    with capsys.disabled():
        print(f"\n{table}")
    assert table.runs >= MANY
    assert {name for name, _ in table.counts} == set(PROTOCOLS)
    assert table.outcome(CAUGHT) > table.runs / 2
    assert not table.found, "\n".join(map(str, table.found[:20]))


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("scheme", **named(TRUSTING))
def test_without_proofs_many_altered_runs_are_wrong(scheme: Scheme, capsys: pytest.CaptureFixture[str]) -> None:
    """The figure that the active schemes are there for; and the kit sees what it must not find in theirs."""
    table = altered(scheme, MANY, seed=2)
    with capsys.disabled():
        print(f"\n{table}")
    assert table.outcome(WRONG) + table.outcome(REFUSED) > table.runs / 4


# The kit itself


@pytest.mark.drawn(55)
@pytest.mark.parametrize("scheme", **named(list(SCHEMES.values())))
@pytest.mark.parametrize("name", PROTOCOLS)
def test_an_honest_run_of_the_kit_gives_what_the_case_expects(name: str, scheme: Scheme) -> None:
    call = drawn_call(name, 1)
    run = perform(Run(scheme), name, call)
    assert not run.errors
    for result in run.results.values():
        if call.check is not None:
            call.check(result)
        else:
            assert_equal(result, call.expect)
    assert {place.kind for place in run.places} >= {"message", "key"}
    assert {place.party for place in run.places} == set(range(scheme.parties))


@pytest.mark.parametrize("scheme", **named(TRUSTING))
def test_the_kit_sees_a_wrong_result(scheme: Scheme) -> None:
    call = drawn_call("multiply", 1)
    honest = perform(Run(scheme), "multiply", call)
    copies = [place for place in honest.places if place.kind == "copy"]
    outcomes = {judged(altered_run(scheme, "multiply", call, [place], 1)[0], honest) for place in copies}
    assert outcomes == {WRONG}


@pytest.mark.parametrize("scheme", **named(ACTIVE))
def test_without_its_checks_an_active_scheme_is_wrong_too(scheme: Scheme) -> None:
    """It is the check before openings that catches a server, and the kit does not depend on it."""
    call = drawn_call("multiply", 1)
    honest = perform(Run(scheme, guarded=False), "multiply", call)
    places = [place for place in honest.places if place.kind in ("copy", "message")]
    outcomes = {judged(altered_run(scheme, "multiply", call, [place], 1, guarded=False)[0], honest) for place in places}
    assert outcomes & {WRONG, OPENED}


@pytest.mark.parametrize("scheme", **named(TRUSTING))
def test_the_kit_sees_an_honest_holder_refused(scheme: Scheme) -> None:
    call = drawn_call("check_one_hot", 3)
    honest = perform(Run(scheme), "check_one_hot", call)
    assert honest.results[0].any()
    copies = [place for place in honest.places if place.kind == "copy"]
    outcomes = {judged(altered_run(scheme, "check_one_hot", call, [place], 1)[0], honest) for place in copies}
    assert REFUSED in outcomes


@pytest.mark.parametrize("scheme", **named(list(SCHEMES.values())))
def test_the_kit_repeats_an_honest_run(scheme: Scheme) -> None:
    call = drawn_call("less_than", 1)
    one, other = (perform(Run(scheme), "less_than", call) for _ in range(2))
    assert judged(one, other) == RIGHT
    assert one.places == other.places
    assert one.opened == other.opened


@pytest.mark.parametrize("way", WAYS)
def test_every_way_alters_bytes(way: object) -> None:
    rng, changed = np.random.default_rng(1), 0
    for length in (1, 2, 7, 16, 40, 64, 80):
        octets = rng.integers(1, 256, length, np.uint8)
        before = octets.copy()
        way(octets, rng)  # type: ignore[operator]
        changed += not np.array_equal(before, octets)
    assert changed >= 3


def test_every_protocol_of_a_study_is_altered() -> None:
    assert {"compute_answers", "compute_joined_answers", "noisy_argmax", "noisy_counts", "shuffle"} <= set(PROTOCOLS)
    assert all("paper" in REGISTRY[name].module or name not in PROTOCOLS for name in ("count_paper", "argmax"))
    assert {RIGHT, CAUGHT, ENDED} == ALLOWED
    assert Place("message", 0, 1, 8, "here") == Place("message", 0, 1, 8, "there")
