"""Any service killed anywhere, from the proposal to the release: it is started again, and the release is what it was.

That nothing is drawn afresh is shown by the clear twin, which draws every value once, from the run's own bits.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from caps.client.calls import Unreachable
from deploy.federation import COORDINATOR, SERVERS
from tests.kit.crashing import arm, points
from tests.kit.crashing_service import POINTS
from tests.kit.federation import supervised
from tests.kit.processes import CANARIES, HOLDERS, Everybody, Study, client, nobody_wrote, persons, vertical
from tests.kit.waiting import until

pytestmark = pytest.mark.e2e

UNDER = ("tests.kit.crashing_service",)
PATIENCE = 120.0
Fault = tuple[str, str, int]


@pytest.fixture
def frail(everybody: Everybody) -> Everybody:
    """The federation with services that can be told where to die. They stay so: untold, they are as always."""
    if everybody.under != UNDER:
        everybody.stop()
        everybody.under = UNDER
    everybody.start()
    everybody.wait_ready()
    return everybody


def small(federation: Everybody, folder: Path, seed: int = 7) -> Study:
    """AIM on columns of two holders, with few rounds."""
    study = vertical(federation, folder, persons(60, seed), slots=64, algorithm="aim", parameters={"rounds": 4})
    study.patience = PATIENCE
    return study


def survives(federation: Everybody, folder: Path, faults: Sequence[Fault], *, all_die: bool = True) -> None:
    """A whole study during which services die at points; each is started again at once."""
    folder.mkdir(exist_ok=True)
    study = small(federation, folder)
    for victim, point, number in faults:
        arm(federation.places[victim].home, point, number)
    with supervised(federation, *federation.places, under=federation.under) as died:
        study.agree()
        before = study.contribute()
        study.start()
        study.released(PATIENCE)
    for place in federation.places.values():
        (place.home / "crash").unlink(missing_ok=True)
    federation.start()
    federation.wait_ready()
    certificate = study.check(folder)
    assert sorted(before.values()) == sorted(certificate.attestations[0].document.contributions)
    with client(federation, COORDINATOR, "operator") as operator:
        state = operator.study(study.identity)
    assert (state.runs, state.releases) == ([study.run], [study.run])
    if all_die:
        assert Counter(died) == Counter(victim for victim, _, _ in faults)
    nobody_wrote(federation, *CANARIES)


SAMPLE = [
    pytest.param(
        [
            ("north", "called", 5),  # in the middle of the push
            ("S2", "committed", 2),  # a contribution is offered
            (COORDINATOR, "called", 20),  # in the steps
        ],
        id="push, contribution, step",
    ),
    pytest.param(
        [
            ("south", "committing", 5),  # the contribution
            ("S1", "exchange", 12),  # in the middle of a step
            (COORDINATOR, "renaming", 1),  # the release
        ],
        id="contribution, exchange, release",
    ),
    pytest.param(
        [
            (COORDINATOR, "committed", 10),  # the run is written down
            ("S3", "answering", 10),
        ],
        id="run, answer",
    ),
]


@pytest.mark.drawn(1)
@pytest.mark.parametrize("faults", SAMPLE)
def test_services_that_die_cost_time_only(frail: Everybody, tmp_path: Path, faults: Sequence[Fault]) -> None:
    survives(frail, tmp_path, faults)


def test_a_holder_killed_in_the_middle_of_a_push_goes_on_with_the_same_contribution(
    frail: Everybody, tmp_path: Path
) -> None:
    study = small(frail, tmp_path)
    study.agree()
    path = study.files["north"]
    study.as_person("north", "owner", lambda it: it.put_table(study.identity, path))
    arm(frail.places["north"].home, "calling", 4)
    told = None
    with suppress(Unreachable):  # it may die before it has answered
        told = study.as_person("north", "owner", lambda it: it.contribute(study.identity)).contribution
    until(lambda: not frail.running("north"))
    frail.start("north")
    frail.wait_ready("north")
    contributed = study.contributed("north")
    assert told in (None, contributed)
    again = study.as_person("north", "owner", lambda it: it.contribute(study.identity))
    assert again.contribution == contributed
    for name in SERVERS:
        with client(frail, name, "operator") as operator:
            assert [one.contribution for one in operator.contributions(study.identity)] == [contributed]


def test_a_server_that_is_gone_is_named_and_waited_for(frail: Everybody, tmp_path: Path) -> None:
    """Holders are gone as well, and nobody waits for them."""
    study = small(frail, tmp_path)
    study.agree()
    study.contribute()
    frail.kill(*HOLDERS)
    arm(frail.places["S3"].home, "exchange", 9)
    study.start()
    until(lambda: not frail.running("S3"))
    waiting = until(lambda: study.state() if study.state().state == "waiting" else None)
    assert waiting.party == "S3"
    assert waiting.reason
    time.sleep(1)
    assert study.state().state == "waiting"
    frail.start("S3")
    study.released()
    study.check(tmp_path)


@pytest.mark.slow
def test_a_server_that_stands_still_is_named_and_waited_for(frail: Everybody, tmp_path: Path) -> None:
    """Nothing closes its connections, so it takes the coordinator's call timeout of 30 s to notice."""
    study = small(frail, tmp_path)
    study.agree()
    study.contribute()
    study.start()
    frail.send("S2", signal.SIGSTOP)
    try:
        waiting = until(lambda: study.state() if study.state().state == "waiting" else None)
        assert waiting.party == "S2"
    finally:
        frail.send("S2", signal.SIGCONT)
    study.released()
    study.check(tmp_path)


def every_point(federation: Everybody, folder: Path) -> dict[str, list[Fault]]:
    """All points that each service comes to in an undisturbed study; those within steps: runs/test_crashes.py."""
    folder.mkdir()
    study = small(federation, folder)
    victims = (*SERVERS, COORDINATOR, *study.files)
    for name in victims:
        arm(federation.places[name].home, "-", 0)
    study.go()
    counted = {name: points(federation.places[name].home) for name in victims}
    return {
        name: [(name, point, number) for point in POINTS for number in range(1, count[point] + 1)]
        for name, count in counted.items()
    }


@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize(
    "studies", [pytest.param(12, marks=pytest.mark.slow), pytest.param(None, marks=pytest.mark.exhaustive)]
)
def test_every_service_dies_at_every_point(frail: Everybody, tmp_path: Path, studies: int | None) -> None:
    """In each study the coordinator, a holder and a server die once, holders and servers in turn.

    Points are spread over the whole study; all of them if no number of studies is given. How often each service comes
    to a point varies with its peers' pace, so the last of them may live.
    """
    found = every_point(frail, tmp_path / "undisturbed")
    assert all(len(faults) > 20 for faults in found.values())
    most = max(map(len, found.values()))
    for number in range(0, most, 1 if studies is None else -(-most // studies)):
        victims = (COORDINATOR, ("north", "south")[number % 2], SERVERS[number % 3])
        faults = [found[name][number] for name in victims if number < len(found[name])]
        survives(frail, tmp_path / str(number), faults, all_die=False)
