"""A server that answers the coordinator and the holders with garbage; its key is the one in the manifest."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from caps.study import Manifest
from caps.wire import Approval, Signed
from deploy.federation import COORDINATOR
from tests.adversary.holder import key_of
from tests.adversary.lies import LIES, SLOW
from tests.adversary.stage import ALIEN, Catalogue, Stage, Variant, pick
from tests.kit.attacks import Answering, answer, answering
from tests.kit.federation import manifest_of, now

CULPRIT = "S2"


def _study(stage: Stage, url: str, server: str = CULPRIT) -> Manifest:
    """A study among the federation's parties, in which one server is reached at another address."""
    document = manifest_of(stage.federation, [{"name": "west", "brings": "rows"}], algorithm="mst").to_json()
    document["servers"] = [one | ({"url": url} if one["name"] == server else {}) for one in document["servers"]]
    return Manifest.from_json(document)


def _lying(stage: Stage, lies: Mapping[str, Answering], variant: Variant) -> str:
    """The culprit's address, for as long as the sequence lasts."""
    name = pick(sorted(lies), variant)
    stage.seen.append(f"the server answers with {name}")
    return stage.held.enter_context(answering(stage.identities[CULPRIT], lies[name]))


def to_the_coordinator(stage: Stage, variant: Variant, lies: Mapping[str, Answering] = LIES) -> None:
    """What it says to a proposal, to who takes part, and to the start of a run."""
    url = _lying(stage, lies, variant)
    manifest, operator = _study(stage, url), stage.token(COORDINATOR, "operator")
    path = f"/v1/studies/{manifest.study_id}"
    stage.ask(COORDINATOR, "POST", "/v1/studies", token=operator, json=manifest.to_json())
    stage.refused(COORDINATOR, "POST", f"{path}/runs", token=operator, json={})
    stage.ask(COORDINATOR, "POST", f"{path}/refresh", token=operator)
    stage.ask(COORDINATOR, "GET", f"{path}/participation", token=operator)


def to_a_holder(stage: Stage, variant: Variant, lies: Mapping[str, Answering] = LIES) -> None:
    """What it says to a contribution: the holder tries again, says why it waits, and lets go when told to."""
    url = _lying(stage, lies, variant)
    manifest, operator = _study(stage, url), stage.token(COORDINATOR, "operator")
    path = f"/v1/studies/{manifest.study_id}"
    stage.ask(COORDINATOR, "POST", "/v1/studies", token=operator, json=manifest.to_json())
    told = {"coordinator": stage.federation.places[COORDINATOR].url, "study": manifest.study_id}
    owner = stage.token("west", "owner")
    stage.ask("west", "POST", "/v1/studies", token=stage.token("west", "operator"), json=told)
    stage.ask("west", "POST", f"{path}/approval", token=owner)
    table = b"income,smoker,illness\n12.5,no,none\n900,yes,asthma\n"
    stage.ask(
        "west",
        "POST",
        f"{path}/contribution",
        token=owner,
        content=_table(manifest, table),
        headers={"content-type": "text/csv"},
    )
    stage.ask("west", "GET", f"{path}/contribution", token=owner)
    stage.ask("west", "DELETE", f"{path}/contribution", token=owner)


def _table(manifest: Manifest, table: bytes) -> bytes:
    names = list(manifest.domain.names)
    return table if "income" in names else (",".join(names) + "\n30,no,none\n50,yes,asthma\n").encode()


def another_certificate(stage: Stage, variant: Variant) -> None:
    """At its address there is somebody else: of the federation, of another server, of nobody's authority."""
    who = pick((ALIEN, "S9", "S3", "mallory", "rival"), variant)
    url = stage.held.enter_context(answering(stage.identities[who], LIES["created"]))
    manifest, operator = _study(stage, url), stage.token(COORDINATOR, "operator")
    stage.ask(COORDINATOR, "POST", "/v1/studies", token=operator, json=manifest.to_json())
    stage.refused(COORDINATOR, "POST", f"/v1/studies/{manifest.study_id}/runs", token=operator, json={})


def forged_approval(stage: Stage, variant: Variant) -> None:
    """Its approval is signed by another, is for another study, or is that of another role."""
    study = pick(("0" * 64, secrets.token_hex(32)), variant)
    signer, key = pick(((CULPRIT, "S1"), ("S1", CULPRIT), (CULPRIT, CULPRIT)), variant // 2)
    said = Approval(study=study, role=pick(("holder", "mpc-server"), variant // 6), exchange_digest="0" * 64, at=now())  # type: ignore[arg-type]
    text = Signed[Approval].by(said, signer, key_of(stage, key)).model_dump_json().encode()
    url = stage.held.enter_context(answering(stage.identities[CULPRIT], lambda _: answer(text, status=201)))
    manifest, operator = _study(stage, url), stage.token(COORDINATOR, "operator")
    response = stage.ask(COORDINATOR, "POST", "/v1/studies", token=operator, json=manifest.to_json())
    assert response is None or CULPRIT in response.json()["missing"], "a forged approval was kept"
    stage.refused(COORDINATOR, "POST", f"/v1/studies/{manifest.study_id}/runs", token=operator, json={})


def machines_routes(stage: Stage, variant: Variant) -> None:
    """With a server's certificate at another's doors: it is no coordinator and no holder."""
    run, study = stage.released.run, stage.open.identity
    there = (
        ("S1", "PUT", f"/v1/runs/{run}/steps/1"),
        ("S1", "DELETE", f"/v1/runs/{run}"),
        ("S1", "GET", f"/v1/runs/{run}"),
        ("S3", "GET", f"/v1/runs/{run}/steps/1"),
        ("S3", "PUT", f"/v1/studies/{study}/seal"),
        ("S1", "GET", f"/v1/studies/{study}/contributions"),
        ("S1", "GET", "/v1/ledger"),
        (COORDINATOR, "POST", f"/v1/studies/{study}/runs"),
        (COORDINATOR, "GET", f"/v1/releases/{run}/data"),
        ("north", "GET", f"/v1/studies/{study}/table"),
    )
    name, method, path = pick(there, variant)
    stage.refused(
        name,
        method,
        path,
        who=pick((CULPRIT, "S9"), variant // 10),
        json={"kind": "compute"} if method in ("PUT", "POST") else None,
    )


def slowly(stage: Stage, variant: Variant) -> None:
    """The same, so that others wait for it."""
    pick((to_the_coordinator, to_a_holder), variant)(stage, variant // 2, SLOW)


MOVES: Catalogue = {
    move.__name__: move
    for move in (to_the_coordinator, to_a_holder, another_certificate, forged_approval, machines_routes)
}
HEAVY: Catalogue = {"slowly": slowly}
"""Moves for long sequences alone."""
