"""What an owner's tables cost the persons in them, over all studies, as servers would add it up; and old rows under a
new name."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import httpx
import pytest

from caps.dp.privacy import together
from caps.dp.privacy.zcdp import folded_epsilon
from caps.service.tokens import Scope
from caps.study import Manifest
from caps.wire.holder import Goal, HolderLedger
from services.holder.ledger import Given, ledger_of, loss_of, study_loss
from services.holder.table import Sent
from tests.kit.holder import HolderBench
from tests.kit.study import AT, example_json, example_manifest
from tests.kit.waiting import until

KEYS = example_manifest()[1]
CSV = {"content-type": "text/csv"}
HEADER = "age,smoker,region,diagnosis\n"
ROWS = ["30,no,north,A\n", "79,yes,south,\n", "5,no,north,C\n"]
TABLE = HEADER + "".join(ROWS)
ONE, TWO = "1" * 64, "2" * 64


def study(population: str = "patients", epsilon: str = "1", **privacy: Any) -> Manifest:
    document, _ = example_json(keys=KEYS, epsilon=epsilon, population=population)
    document["privacy"] |= privacy
    return Manifest.from_json(document)


def made(manifest: Manifest, fingerprint: str | None = ONE, goal: Goal = Goal.COMPLETE) -> Given:
    return Given(manifest, manifest.study_id[::-1], AT, goal, fingerprint)


def test_losses_add_up_as_they_do_at_servers() -> None:
    studies = [study(), study(epsilon="0.5"), study(epsilon="0.25", multiplicity=3), study(neighbouring="bounded")]
    found = loss_of(studies)
    total = together(one.reservation for one in studies)
    assert found is not None
    assert (found.rho, found.relation, found.multiplicity) == (float(total.rho), "bounded", 3)
    assert found.epsilon == float(folded_epsilon(total.rho, total.allowance, Fraction(4, 10**6)))
    assert found.delta == pytest.approx(4e-6)


def test_a_study_counts_once_and_one_alone_costs_no_more_than_it_says() -> None:
    one = study()
    found = loss_of([one, one])
    assert found is not None
    assert found.studies == 1
    assert found.epsilon is not None
    assert 0.99 < found.epsilon <= 1
    assert loss_of([]) is None


def test_a_loss_beyond_all_promises_has_no_epsilon() -> None:
    found = loss_of([study(epsilon="10"), study(epsilon="9", multiplicity=1000)])
    assert found is not None
    assert found.epsilon is None


def test_what_was_withdrawn_does_not_count_and_everything_else_does() -> None:
    given = [
        made(study(epsilon="0.1"), goal=Goal.WITHDRAWN),
        *(made(study(epsilon=f"0.{n}"), goal=goal) for n, goal in enumerate((Goal.PUSHING, Goal.WITHDRAWING), 2)),
    ]
    found = ledger_of(given)
    assert [one.counted for one in found.entries] == [False, True, True]
    assert [one.loss.studies for one in (*found.populations, *found.tables)] == [2, 2]
    assert found.total is not None
    assert found.total.studies == 2


def test_a_study_that_was_withdrawn_and_contributed_again_counts_once() -> None:
    found = ledger_of([made(study(), goal=Goal.WITHDRAWN), made(study(), fingerprint=TWO)])
    assert [one.loss.studies for one in found.populations] == [1]
    assert [one.fingerprint for one in found.tables] == [TWO]


def test_the_same_rows_under_another_name_are_warned_about() -> None:
    given = [made(study("patients")), made(study("insured"), fingerprint=TWO), made(study("smokers", "0.5"))]
    found = ledger_of(given)
    assert [one.population for one in found.populations] == ["insured", "patients", "smokers"]
    assert {one.fingerprint: one.populations for one in found.tables} == {
        ONE: ["patients", "smokers"],
        TWO: ["insured"],
    }
    (warning,) = found.warnings
    both = loss_of([study("patients"), study("smokers", "0.5")])
    assert both is not None
    assert "go by the names patients, smokers" in warning
    assert f"add up to epsilon {both.epsilon:.3g}" in warning
    assert ONE[:12] in warning


@pytest.mark.parametrize(
    ("fingerprint", "loaded", "said"),
    [
        (ONE, True, "go by the names insured, patients"),
        (TWO, True, ""),
        (None, False, ""),
        (None, True, "load it again"),
    ],
    ids=["same rows", "other rows", "no table", "no fingerprint"],
)
def test_a_study_says_what_it_adds_and_warns(fingerprint: str | None, loaded: bool, said: str) -> None:
    given = [made(study(epsilon="0.5")), made(study(epsilon="0.7"), goal=Goal.WITHDRAWN)]
    found = study_loss(given, study("insured"), fingerprint, loaded=loaded)
    assert (found.before, found.after) == (None, loss_of([study("insured")]))
    assert len(found.warnings) == bool(said)
    assert said in "".join(found.warnings)
    same = study_loss(given, study(), fingerprint, loaded=loaded)
    assert (same.before, same.after) == (loss_of([study(epsilon="0.5")]), loss_of([study(epsilon="0.5"), study()]))
    assert not any("names" in warning for warning in same.warnings)


def test_a_study_does_not_count_twice_once_it_is_contributed() -> None:
    found = study_loss([made(study())], study(), ONE, loaded=True)
    assert (found.before, found.after.studies, found.warnings) == (None, 1, [])


# At the holder.


@pytest.fixture
def world(tmp_path: Path) -> Iterator[HolderBench]:
    world = HolderBench(tmp_path, "clinic-a")
    with world.others():
        yield world


def propose(world: HolderBench, **privacy: Any) -> str:
    """Another study of the same parties; the path of its routes."""
    document = world.document | {"privacy": world.document["privacy"] | privacy}
    world.manifest = Manifest.from_json(document)
    world.answer = world.manifest.canonical_bytes()
    return f"/v1/studies/{world.study}"


def contribute(world: HolderBench, client: httpx.Client, path: str, table: str) -> dict[str, Any]:
    """Everything up to the contribution; the preview just before it."""
    with world.person(Scope.OPERATOR) as operator:
        body = {"coordinator": world.urls["coordinator"], "study": world.study}
        operator.post("/v1/studies", json=body).raise_for_status()
    client.post(f"{path}/approval").raise_for_status()
    client.put(f"{path}/table", content=table, headers=CSV).raise_for_status()
    preview: dict[str, Any] = client.get(f"{path}/preview").json()
    client.put(f"{path}/contribution").raise_for_status()
    until(lambda: client.get(f"{path}/contribution").json()["state"] == "complete")
    return preview


def ledger(client: httpx.Client) -> HolderLedger:
    return HolderLedger.model_validate(client.get("/v1/ledger").raise_for_status().json())


@pytest.mark.integration
def test_the_ledger_survives_withdrawals_erased_tables_and_restarts(world: HolderBench) -> None:
    first = f"/v1/studies/{world.study}"
    with world.client() as client:
        assert ledger(client) == HolderLedger(entries=[], populations=[], tables=[], total=None, warnings=[])
        assert contribute(world, client, first, TABLE)["loss"]["warnings"] == []
        (entry,) = ledger(client).entries
        assert (entry.counted, entry.population, entry.state) == (True, "patients", Goal.COMPLETE)
        assert entry.fingerprint == client.get(f"{first}/table").json()["fingerprint"]
        client.delete(f"{first}/contribution").raise_for_status()
        assert (ledger(client).total, [one.counted for one in ledger(client).entries]) == (None, [False])

        second = propose(world, population="insured", epsilon="0.5")
        contribute(world, client, second, TABLE)
        assert ledger(client).warnings == []  # of the two, only this one counts
        client.delete(f"{second}/table").raise_for_status()
        for server in world.servers:
            server.sealed = True
        assert client.delete(f"{second}/contribution").status_code == 409
        assert client.get("/v1/studies").json()[0]["loss"] is None
        assert client.get(second).json()["loss"]["after"]["studies"] == 1
    with world.running() as holder:
        assert [one.counted for one in holder.ledger().entries] == [False, True]  # it is sealed, so it stays
        propose(world, population="patients", epsilon="0.25")
        holder.know(world.urls["coordinator"], world.study)
        holder.approve(world.study)
        upload = holder.upload_path(world.study)
        upload.write_text(HEADER + "".join(reversed(ROWS)))
        holder.load(world.study, upload, Sent.of("text/csv"), "0" * 64)
        (warning,) = holder.preview(world.study).loss.warnings
        assert "go by the names insured, patients" in warning
        assert holder.ledger().warnings == []  # it is not contributed yet
        holder.contribute(world.study)
        assert holder.ledger().warnings == [warning] == holder.loss(holder.store.study(world.study)).warnings
        assert [one.loss.studies for one in holder.ledger().tables] == [2]


@pytest.mark.integration
def test_only_the_owner_reads_the_ledger(world: HolderBench) -> None:
    with world.client(scope=Scope.OPERATOR) as client:
        assert client.get("/v1/ledger").status_code == 403
