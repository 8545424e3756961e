"""A coordinator that asks for what it must not: with the key of the studies' own, and with that of another."""

from __future__ import annotations

import copy
import secrets
from collections.abc import Callable
from typing import Any

from caps.audit.verification import verify
from caps.errors import CapsError
from caps.study import Manifest
from caps.wire import Certificate, Evidence, Signed
from deploy.federation import COORDINATOR, SERVERS
from tests.adversary.holder import key_of
from tests.adversary.lies import LIES, body, brackets
from tests.adversary.prey import begin, prey
from tests.adversary.stage import ALIEN, Broken, Catalogue, Stage, Variant, pick, text
from tests.kit.attacks import answer, answering
from tests.kit.federation import now

RIVAL = "rival"


def bodies(stage: Stage, variant: Variant) -> None:
    """To every route of its own, what is no document of that route."""
    run, study = stage.released.run, stage.open.identity
    paths = (
        f"/v1/studies/{study}",
        f"/v1/studies/{study}/seal",
        f"/v1/runs/{secrets.token_hex(16)}",
        f"/v1/runs/{run}/steps/0",
        f"/v1/runs/{run}/steps/1",
        f"/v1/runs/{run}/evidence",
    )
    stage.refused(
        SERVERS[variant % 3],
        "PUT",
        pick(paths, variant),
        who=pick((COORDINATOR, RIVAL), variant // 6),
        **body(variant // 2),
    )


def proposals(stage: Stage, variant: Variant) -> None:
    """The same to the coordinator itself, by its operator."""
    stage.refused(COORDINATOR, "POST", "/v1/studies", token=stage.token(COORDINATOR, "operator"), **body(variant))


def _columns(number: int, prefix: str = "c") -> dict[str, Any]:
    return {
        "columns": [{"name": f"{prefix}{n}", "kind": "categorical", "categories": ["a", "b"]} for n in range(number)]
    }


def odd_manifest(stage: Stage, variant: Variant) -> None:
    """Manifests that are huge, deep in what they ask for, or hardly manifests: judged or refused, soon."""
    base = stage.open.manifest.to_json()
    long = "x" * 100_000
    changes: tuple[Callable[[dict[str, Any]], object], ...] = (
        lambda it: it.update(schema=_columns(400)),
        lambda it: it.update(schema=_columns(20_000)),
        lambda it: it.update(schema=_columns(3, long)),
        lambda it: it.update(
            schema={"columns": [{"name": "a", "kind": "categorical", "categories": [str(n) for n in range(200_000)]}]}
        ),
        lambda it: it["algorithm"].update(name="aim", parameters={"rounds": 100_000}),
        lambda it: it["algorithm"].update(name="aim", parameters={"rounds": 10**30}),
        lambda it: it["privacy"].update(epsilon="9" * 300),
        lambda it: it["privacy"].update(epsilon="-1"),
        lambda it: it["privacy"].update(epsilon="1e400"),
        lambda it: it["privacy"].update(delta="0"),
        lambda it: it["privacy"].update(population="nobody-knows"),
        lambda it: it.update(holders=it["holders"] * 600),
        lambda it: it.update(holders=[]),
        lambda it: it.update(servers=it["servers"][:1] * 3),
        lambda it: it.update(servers=it["servers"][::-1]),
        lambda it: it.update(title=long),
        lambda it: it.update(title="\u202e\u0000"),
        lambda it: it.update(workload=[["age"] * 50]),
        lambda it: it.update(workload=[["no such column"]]),
        lambda it: it.update({f"more{n}": n for n in range(10_000)}),
        lambda it: it.update(publication={"rows": 10**9}),
        lambda it: it.update(scheme="rep5"),
        lambda it: it.update(coordinator=it["holders"][0]),
    )
    document = copy.deepcopy(base)
    pick(changes, variant)(document)
    try:
        study = Manifest.from_json(document).study_id if variant % 2 else secrets.token_hex(32)
    except (ValueError, CapsError):
        study = secrets.token_hex(32)
    # Some of these are manifests, which a server may accept: what counts is that it says so, and lives.
    stage.ask(
        SERVERS[variant % 3],
        "PUT",
        f"/v1/studies/{study}",
        who=COORDINATOR,
        content=text(document),
        headers={"content-type": "application/json"},
    )
    stage.ask(
        COORDINATOR,
        "POST",
        "/v1/studies",
        token=stage.token(COORDINATOR, "operator"),
        content=text(document),
        headers={"content-type": "application/json"},
    )


def anothers_run(stage: Stage, variant: Variant) -> None:
    """Another coordinator reads, steers, or ends what is not its own."""
    run, study = stage.released.run, stage.open.identity
    there: tuple[tuple[str, str, object], ...] = (
        ("GET", f"/v1/runs/{run}", None),
        ("GET", f"/v1/runs/{run}/steps/0", None),
        ("GET", f"/v1/runs/{run}/steps/1", None),
        ("DELETE", f"/v1/runs/{run}", None),
        ("PUT", f"/v1/runs/{run}/steps/0", {"kind": "compute"}),
        ("PUT", f"/v1/runs/{run}/attestation", None),
        ("PUT", f"/v1/runs/{run}/evidence", {"evidence": []}),
        ("PUT", f"/v1/studies/{study}", stage.open.manifest.to_json()),
        ("PUT", f"/v1/studies/{study}/seal", {"contributions": ["0" * 64], "approvals": []}),
        ("GET", f"/v1/studies/{study}", None),
        ("GET", f"/v1/studies/{study}/manifest", None),
        ("GET", f"/v1/studies/{study}/contributions", None),
        ("PUT", f"/v1/runs/{secrets.token_hex(16)}", {"study": study, "inputs": "0" * 64}),
    )
    method, path, sent = pick(there, variant)
    stage.refused(SERVERS[variant % 3], method, path, who=RIVAL, json=sent)


def seals(stage: Stage, variant: Variant) -> None:
    """Inputs that nobody contributed, approvals that are missing, another's, or of another study."""
    target = prey(stage, "contributed")
    approvals, mine = target.driver.approvals, target.driver.contributions
    lies = (
        {"contributions": [], "approvals": approvals},
        {"contributions": mine, "approvals": approvals[:-1]},
        {"contributions": mine, "approvals": []},
        {"contributions": [*mine, "0" * 64], "approvals": approvals},
        {"contributions": [mine[0], mine[0]], "approvals": approvals},
        {"contributions": mine, "approvals": [*approvals[:-1], approvals[0]]},
        {"contributions": mine, "approvals": [one | {"signature": "0" * 128} for one in approvals]},
        {
            "contributions": mine,
            "approvals": [{**one, "document": one["document"] | {"study": stage.open.identity}} for one in approvals],
        },
        {"contributions": ["0" * 64] * 100_000, "approvals": approvals},
        {"contributions": mine, "approvals": approvals * 10_000},
    )
    path = f"/v1/studies/{target.study}/seal"
    stage.refused(
        SERVERS[variant % 3],
        "PUT",
        path,
        who=COORDINATOR,
        content=text(pick(lies, variant)),
        headers={"content-type": "application/json"},
    )


def early_and_alien_steps(stage: Stage, variant: Variant) -> None:
    """Steps before step 0, of other numbers, kinds and sizes, and of a run that is over: nothing is charged."""
    target = prey(stage, "begun")
    measure = {
        "kind": "measure",
        "step": "1",
        "clique": ["age"],
        "mechanism": {"name": "gaussian", "sigma_squared": "1"},
    }
    select = {
        "kind": "select",
        "step": "1",
        "candidates": [["age", "smoker"]],
        "estimate": [0] * 8,
        "bias": [0],
        "weights": [1],
        "mechanism": {"name": "noisy-max", "epsilon": "1"},
    }
    steps: tuple[tuple[int, object], ...] = (
        (1, measure),
        (1, select),
        (0, measure),
        (7, {"kind": "compute"}),
        (1, {"kind": "compute"}),
        ((1 << 31) - 1, measure),
        (1, {**select, "estimate": [0] * 100_000}),
        (1, {**select, "estimate": [10**40] * 8}),
        (1, {**select, "estimate": [0.5] * 8}),
        (1, {**select, "candidates": [["age", "smoker"]] * 50_000}),
        (1, {**measure, "clique": ["no such column"]}),
        (1, {**measure, "draws": 10**12}),
        (1, {**measure, "step": "x" * 100_000}),
        (0, {"kind": "destroy"}),
    )
    number, sent = pick(steps, variant)
    path = f"/v1/runs/{target.driver.run}/steps/{number}"
    stage.refused(
        SERVERS[variant % 3],
        "PUT",
        path,
        who=COORDINATOR,
        content=text(sent),
        headers={"content-type": "application/json"},
    )
    stage.refused("S1", "PUT", f"/v1/runs/{stage.released.run}/steps/99", who=COORDINATOR, json=measure)
    stage.refused(SERVERS[variant % 3], "PUT", f"/v1/runs/{target.driver.run}/attestation", who=COORDINATOR)
    for name in SERVERS:
        stage.ask(name, "DELETE", f"/v1/runs/{target.driver.run}", who=COORDINATOR)


def different_requests(stage: Stage, variant: Variant) -> None:
    """One server is asked for a step and the others for another, or not at all: nobody is charged."""
    target = prey(stage, "begun")
    run = target.driver.run
    path = f"/v1/runs/{run}/steps/"
    names = SERVERS[: 1 + variant % 2]
    calls: list[Callable[[], object]] = [
        lambda name=name: stage.ask(name, "PUT", f"{path}0", who=COORDINATOR, json={"kind": "compute"})
        for name in names
    ]
    stage.at_once(calls)
    for name in SERVERS:
        stage.ask(name, "DELETE", f"/v1/runs/{run}", who=COORDINATOR)


def runs(stage: Stage, variant: Variant) -> None:
    """Runs on other inputs than those sealed, with an id that is taken, and one after the other."""
    target = prey(stage, "sealed")
    asked = {"study": target.study, "inputs": target.driver.inputs}
    lies = (asked | {"inputs": "0" * 64}, asked | {"study": stage.open.identity}, asked | {"study": "0" * 64})
    stage.refused(
        SERVERS[variant % 3], "PUT", f"/v1/runs/{secrets.token_hex(16)}", who=COORDINATOR, json=pick(lies, variant)
    )
    stage.refused(SERVERS[variant % 3], "PUT", f"/v1/runs/{stage.released.run}", who=COORDINATOR, json=asked)
    begin(stage, target.driver)
    stage.refused(SERVERS[variant % 3], "PUT", f"/v1/runs/{secrets.token_hex(16)}", who=COORDINATOR, json=asked)
    for name in SERVERS:
        stage.ask(name, "DELETE", f"/v1/runs/{target.driver.run}", who=COORDINATOR)


def given_up(stage: Stage, variant: Variant) -> None:
    """Runs begun and given up, again and again: at some point the server has had enough."""
    target = prey(stage, "sealed")
    asked = {"study": target.study, "inputs": target.driver.inputs}
    name = SERVERS[variant % 3]
    for _ in range(30):
        run = secrets.token_hex(16)
        begun = stage.ask(name, "PUT", f"/v1/runs/{run}", who=COORDINATOR, json=asked)
        if begun is not None and begun.status_code >= 400:
            return
        stage.ask(name, "DELETE", f"/v1/runs/{run}", who=COORDINATOR)
    raise Broken(f"{name} has begun 30 runs of one study")


def studies_without_end(stage: Stage, variant: Variant) -> None:
    """Studies of another coordinator, until the server keeps no more of them; those of others are not in the way."""
    base = stage.open.manifest.to_json()
    base["coordinator"] = stage.card(RIVAL, url=base["coordinator"]["url"])
    name = SERVERS[variant % 3]
    for number in range(150):
        manifest = Manifest.from_json(base | {"purpose": f"Number {number} of {secrets.token_hex(8)}"})
        path = f"/v1/studies/{manifest.study_id}"
        response = stage.ask(name, "PUT", path, who=RIVAL, json=manifest.to_json())
        if response is not None and response.status_code == 429:
            prey(stage, "approved")
            return
    raise Broken(f"{name} keeps 150 studies of one coordinator")


def evidence(stage: Stage, variant: Variant) -> None:
    """Evidence that no server gave, or that one gave in another's name or about another run: the run goes on."""
    target = prey(stage, "begun")
    run = target.driver.run
    said = Evidence(
        study=target.study, run=run, step=0, scheme="rep3", pair=("S1", "S2"), check="messages", server="S3", at=now()
    )
    changes: tuple[dict[str, Any], ...] = (
        {}, {"run": stage.released.run}, {"study": stage.open.identity}, {"pair": ("S1", "S1")}, {"server": "S1"},
        {"scheme": "rep4"}, {"step": 10**9},
    )  # fmt: skip
    signer, key = pick((("S3", "S1"), ("S3", "north"), ("S1", "S1"), ("S4", "S3"), ("S3", COORDINATOR)), variant)
    forged = Signed[Evidence].by(said.model_copy(update=pick(changes, variant // 5)), signer, key_of(stage, key))
    path = f"/v1/runs/{run}/evidence"
    stage.refused("S1", "PUT", path, who=COORDINATOR, json={"evidence": [forged.to_json()]})
    stage.refused("S1", "PUT", path, who=COORDINATOR, json={"evidence": [forged.to_json()] * 100})
    status = stage.ask("S1", "GET", f"/v1/runs/{run}", who=COORDINATOR)
    if status is not None and status.json()["state"] == "aborted":
        raise Broken("forged evidence ended a run")
    for name in SERVERS:
        stage.ask(name, "DELETE", f"/v1/runs/{run}", who=COORDINATOR)


def to_a_holder(stage: Stage, variant: Variant) -> None:
    """What it answers to a holder that fetches a manifest."""
    name = pick(sorted(LIES), variant)
    stage.seen.append(f"the coordinator answers with {name}")
    who = COORDINATOR if variant % 4 else pick((ALIEN, RIVAL, "S9"), variant // 4)
    url = stage.held.enter_context(answering(stage.identities[who], LIES[name]))
    _fetched(stage, url, secrets.token_hex(32))


def another_manifest(stage: Stage, variant: Variant) -> None:
    """A manifest that is not the one asked for, or names another coordinator than the one who sent it."""
    manifest = stage.open.manifest
    sent = manifest.canonical_bytes() if variant % 2 else manifest.canonical_bytes().replace(b"A test", b"A rest")
    url = stage.held.enter_context(answering(stage.identities[COORDINATOR], lambda _: answer(sent)))
    _fetched(stage, url, pick((manifest.study_id, stage.released.identity), variant // 2))


def _fetched(stage: Stage, url: str, study: str) -> None:
    told = {"coordinator": url, "study": study}
    stage.refused("west", "POST", "/v1/studies", token=stage.token("west", "operator"), json=told)
    for odd in ("https://127.0.0.1:1", "file:///etc/passwd", "https://" + "x" * 5000, f"{url}/../../v1?x=1#y"):
        stage.refused(
            "west", "POST", "/v1/studies", token=stage.token("west", "operator"), json=told | {"coordinator": odd}
        )


def altered_certificate(stage: Stage, variant: Variant) -> None:
    """It publishes a certificate in which something was changed: nobody who checks believes it."""
    response = stage.ask(
        COORDINATOR, "GET", f"/v1/releases/{stage.released.run}/certificate", token=stage.token(COORDINATOR, "auditor")
    )
    assert response is not None
    document = response.json()
    places = sorted(_places(document))
    place = places[variant % len(places)]
    target = document
    for key in place[:-1]:
        target = target[key]
    target[place[-1]] = _other(target[place[-1]], variant)
    try:
        checks = verify(Certificate.model_validate(document), now=stage.now)
    except (ValueError, CapsError):
        return
    if all(check.passed for check in checks):
        raise Broken(f"a certificate altered at {place} verifies")


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [path] if path and not isinstance(value, dict | list) else []
    return found + [place for key, inner in items for place in _places(inner, (*path, key))]


def _other(value: Any, variant: Variant) -> Any:
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int | float):
        return value + 1 + variant % 3
    digits = "0123456789abcdef"
    at = variant % max(1, len(value))
    last = value[at : at + 1]
    return value[:at] + (digits[(digits.index(last) + 1) % 16] if last and last in digits else "z") + value[at + 1 :]


def many_steps(stage: Stage, variant: Variant) -> None:
    """Sixty requests at once that have to wait for something: liveness is answered meanwhile."""
    target = prey(stage, "begun")
    path = f"/v1/runs/{target.driver.run}/steps/0"
    calls: list[Callable[[], object]] = [
        lambda: stage.ask("S1", "PUT", path, who=COORDINATOR, json={"kind": "compute"}) for _ in range(60)
    ]
    stage.at_once([*calls, stage.alive])
    for name in SERVERS:
        stage.ask(name, "DELETE", f"/v1/runs/{target.driver.run}", who=COORDINATOR)


def dear_bodies(stage: Stage, variant: Variant) -> None:
    """48 MB of brackets as a step, from those who may not ask for it and from the one who may."""
    who = pick(("mallory", RIVAL, COORDINATOR), variant)
    stage.refused("S1", "PUT", f"/v1/runs/{stage.released.run}/steps/1", who=who, **brackets())


MOVES: Catalogue = {
    move.__name__: move
    for move in (
        bodies, proposals, odd_manifest, anothers_run, seals, early_and_alien_steps, runs, given_up, evidence,
        to_a_holder, another_manifest, altered_certificate,
    )
}  # fmt: skip
HEAVY: Catalogue = {move.__name__: move for move in (many_steps, dear_bodies, different_requests, studies_without_end)}
