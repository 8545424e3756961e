"""A holder that lies: with the key of one that takes part, and with that of one that does not."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import numpy as np

from caps.trust import signing
from caps.wire import Approval, Contribution, Decline, Offer, Opening, Signed
from deploy.federation import COORDINATOR, SERVERS
from tests.adversary.lies import body
from tests.adversary.prey import Prey, begin, prey
from tests.adversary.stage import HOLDERS, Broken, Catalogue, Stage, Variant, pick
from tests.kit.federation import now

LIAR = "south"


def digest_header(data: bytes) -> dict[str, str]:
    """As chunks need it."""
    return {"content-digest": f"sha-256=:{base64.b64encode(sha256(data).digest()).decode()}:"}


def key_of(stage: Stage, name: str) -> signing.SigningKey:
    return signing.read_signing_key(stage.federation.places[name].home / "signing-key.pem")


def offer_of(prey: Prey, *, holder: str = LIAR) -> tuple[Contribution, list[Offer], bytes]:
    """An honest offer, to begin with."""
    return prey.driver.offer(holder, np.zeros(prey.shape, np.int64))


def alter(stage: Stage, statement: Contribution, variant: Variant) -> Contribution:
    """A lie about sizes, forms, or commitments."""
    changes: tuple[dict[str, Any], ...] = (
        {"shape": (1 << 40,)},
        {"shape": (statement.shape[0], 1 << 20)},
        {"shape": (1,)},
        {"bits": 8},
        {"form": "columns"},
        {"form": "records"},
        {"chunk_bytes": 1 << 10, "shape": (1 << 30,)},
        {"holder": "north"},
        {"holder": "mallory"},
        {"study": stage.released.identity},
        {"study": "0" * 64},
        {"commitments": ("0" * 64,) * 3},
        {"commitments": statement.commitments[:1] * 3},
        {"at": "9999-12-31T23:59:59Z"},
    )
    return statement.model_copy(update=pick(changes, variant))


def lie_in_an_offer(stage: Stage, variant: Variant) -> None:
    """Sizes, forms and commitments that are not those of the study: refused when offered, or when all is there."""
    target = prey(stage, "approved")
    statement, offers, _ = offer_of(target)
    lie = alter(stage, statement, variant)
    offer = Offer(
        contribution=Signed[Contribution].by(lie, LIAR, key_of(stage, LIAR)), openings=offers[variant % 3].openings
    )
    name = SERVERS[variant % 3]
    path = f"/v1/studies/{target.study}/contributions/{lie.digest()}"
    response = stage.ask(name, "PUT", path, who=LIAR, json=offer.to_json())
    if response is not None and response.status_code < 300:  # a commitment to a vector is judged when that is there
        for number in range(lie.chunks):
            piece = bytes(min(lie.chunk_bytes, lie.vector_bytes - number * lie.chunk_bytes))
            stage.ask(name, "PUT", f"{path}/chunks/{number}", who=LIAR, content=piece, headers=digest_header(piece))
        if lie.at == statement.at:
            stage.refused(name, "POST", f"{path}/receipt", who=LIAR)
        stage.ask(name, "DELETE", path, who=LIAR)


def wrong_key(stage: Stage, variant: Variant) -> None:
    """An offer signed by another, or offered by another."""
    target = prey(stage, "approved")
    statement, offers, _ = offer_of(target)
    forged = Signed[Contribution].by(statement, LIAR, key_of(stage, "north"))
    offer = Offer(contribution=forged, openings=offers[0].openings)
    path = f"/v1/studies/{target.study}/contributions/{statement.digest()}"
    who, sent = pick(((LIAR, offer), ("mallory", offers[0]), ("west", offers[0]), ("north", offers[0])), variant)
    stage.refused("S1", "PUT", path, who=who, json=sent.to_json())


def openings(stage: Stage, variant: Variant) -> None:
    """Components that are another server's, twice the same, or without their seeds."""
    target = prey(stage, "approved")
    statement, offers, _ = offer_of(target)
    mine = offers[0].openings
    lies: tuple[tuple[Opening, ...], ...] = (
        offers[1].openings,
        (mine[0], mine[0]),
        tuple(one.model_copy(update={"seed": None}) for one in mine),
        tuple(one.model_copy(update={"seed": "00" * 32}) for one in mine),
        tuple(one.model_copy(update={"nonce": "00" * 32}) for one in mine),
    )
    document = offers[0].to_json() | {"openings": [one.to_json() for one in pick(lies, variant)]}
    path = f"/v1/studies/{target.study}/contributions/{statement.digest()}"
    stage.refused("S1", "PUT", path, who=LIAR, json=document)


def chunks(stage: Stage, variant: Variant) -> None:
    """Chunks before an offer, out of order, of another size, with a wrong digest, twice, after the receipt."""
    target = prey(stage, "approved")
    statement, offers, vector = offer_of(target)
    path = f"/v1/studies/{target.study}/contributions/{statement.digest()}"
    first = vector[: statement.chunk_bytes]
    name = "S2"  # holds the component that comes as a vector

    def put(number: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        given = digest_header(data) if headers is None else headers
        stage.refused(name, "PUT", f"{path}/chunks/{number}", who=LIAR, content=data, headers=given)

    put(0, first)
    stage.ask(name, "PUT", path, who=LIAR, json=offers[1].to_json())
    wrongs: tuple[Callable[[], object], ...] = (
        lambda: put(0, first + b"\0"),
        lambda: put(0, first[:-1]),
        lambda: put(statement.chunks, first),
        lambda: put((1 << 31) - 1, first),
        lambda: put(0, first, {}),
        lambda: put(0, first, digest_header(b"other")),
        lambda: put(0, first, {"content-digest": "sha-256=:" + "A" * 5000 + ":"}),
        lambda: stage.refused("S1", "PUT", f"{path}/chunks/0", who=LIAR, content=first, headers=digest_header(first)),
        lambda: stage.refused(
            name, "PUT", f"{path}/chunks/0", who="mallory", content=first, headers=digest_header(first)
        ),
        lambda: stage.refused(name, "POST", f"{path}/receipt", who=LIAR),
        lambda: stage.refused(name, "PUT", f"{path}/chunks/-1", who=LIAR, content=first),
        lambda: put(0, b"\1" * (17 << 20)),
    )
    pick(wrongs, variant)()
    pick(wrongs, variant // 3)()
    stage.ask(name, "DELETE", path, who=LIAR)


def after_the_seal(stage: Stage, variant: Variant) -> None:
    """A contribution, a chunk or a withdrawal when the inputs are final."""
    target = prey(stage, "sealed")
    statement, offers, vector = offer_of(target)
    path = f"/v1/studies/{target.study}/contributions"
    old = target.driver.contributions[-1]
    pick(
        (
            lambda: stage.refused("S1", "PUT", f"{path}/{statement.digest()}", who=LIAR, json=offers[0].to_json()),
            lambda: stage.refused("S1", "DELETE", f"{path}/{old}", who=LIAR),
            lambda: stage.refused(
                "S2", "PUT", f"{path}/{old}/chunks/0", who=LIAR, content=vector, headers=digest_header(vector)
            ),
        ),
        variant,
    )()


def twice(stage: Stage, variant: Variant) -> None:
    """Another contribution beside the one that is there; the old one again after it was withdrawn."""
    target = prey(stage, "approved")
    first, second = offer_of(target), offer_of(target)
    path = f"/v1/studies/{target.study}/contributions"
    one, other = (f"{path}/{offer[0].digest()}" for offer in (first, second))
    stage.ask("S1", "PUT", one, who=LIAR, json=first[1][0].to_json())
    stage.refused("S1", "PUT", other, who=LIAR, json=second[1][0].to_json())
    stage.ask("S1", "DELETE", one, who=LIAR)
    stage.ask("S1", "PUT", one, who=LIAR, json=first[1][0].to_json())
    stage.ask("S1", "DELETE", one, who=LIAR)


def contributions_without_end(stage: Stage, variant: Variant) -> None:
    """Offers withdrawn and made anew, until the server has had enough of them."""
    target = prey(stage, "approved")
    for _ in range(150):
        statement, offers, _ = offer_of(target)
        path = f"/v1/studies/{target.study}/contributions/{statement.digest()}"
        response = stage.ask("S1", "PUT", path, who=LIAR, json=offers[0].to_json())
        if response is not None and response.status_code >= 400:
            return
        stage.ask("S1", "DELETE", path, who=LIAR)
    raise Broken("150 contributions of one holder to one study were begun")


def withdraw_what_was_not_sealed(stage: Stage, variant: Variant) -> None:
    """A coordinator seals one contribution and leaves the other lying: its holder gets it back, at any time."""
    target = prey(stage, "contributed")
    driver, left = target.driver, target.driver.contributions.pop()
    for response in driver.seal():
        response.raise_for_status()
    begin(stage, driver)
    for name in SERVERS:
        response = stage.ask(name, "DELETE", f"/v1/studies/{target.study}/contributions/{left}", who=LIAR)
        if response is None or response.status_code >= 300:
            raise Broken("a contribution that was not sealed cannot be withdrawn")
    for name in SERVERS:
        stage.ask(name, "DELETE", f"/v1/runs/{driver.run}", who=COORDINATOR)


def others_things(stage: Stage, variant: Variant) -> None:
    """The contribution of another holder: read, continued, signed for, withdrawn."""
    with stage.federation.client("north", "owner") as owner:
        theirs = owner.get(f"/v1/studies/{stage.open.identity}/contribution").json()["contribution"]
    path = f"/v1/studies/{stage.open.identity}/contributions/{theirs}"
    who = pick(("south", "west", "mallory"), variant)
    method, rest = pick((("GET", ""), ("DELETE", ""), ("POST", "/receipt"), ("PUT", "/chunks/0")), variant // 3)
    options = {"content": b"x", "headers": digest_header(b"x")} if method == "PUT" else {}
    stage.refused(SERVERS[variant % 3], method, path + rest, who=who, **options)


def approvals(stage: Stage, variant: Variant) -> None:
    """Signatures that are another's, or under another study, brought to the coordinator."""
    study, role = pick(
        ((stage.open.identity, "holder"), ("0" * 64, "holder"), (stage.open.identity, "mpc-server")), variant
    )
    signer, key, who = pick(
        (("north", LIAR, LIAR), ("north", "north", LIAR), (LIAR, "north", LIAR), ("mallory", LIAR, "mallory")),
        variant // 3,
    )
    approval = Signed[Approval].by(Approval(study=study, role=role, at=now()), signer, key_of(stage, key))  # type: ignore[arg-type]
    path = f"/v1/studies/{stage.open.identity}/approvals/{pick(('north', 'mallory', 'S1'), variant)}"
    stage.refused(COORDINATOR, "PUT", path, who=who, json=approval.to_json())


def coordinators_routes(stage: Stage, variant: Variant) -> None:
    """What only a coordinator may do; with bodies that would be dear to read."""
    run = stage.released.run
    paths = (
        f"/v1/studies/{stage.open.identity}",
        f"/v1/studies/{stage.open.identity}/seal",
        f"/v1/runs/{secrets.token_hex(16)}",
        f"/v1/runs/{run}",
        f"/v1/runs/{run}/steps/0",
        f"/v1/runs/{run}/steps/1",
        f"/v1/runs/{run}/evidence",
        f"/v1/runs/{run}/attestation",
    )
    who = pick((LIAR, "mallory", "S9", "S2"), variant)
    stage.refused(SERVERS[variant % 3], "PUT", pick(paths, variant // 2), who=who, **body(variant // 3))


def readers_routes(stage: Stage, variant: Variant) -> None:
    """What a holder may not read: runs, ledgers, contributions of all, releases."""
    run = stage.released.run
    there = (
        ("S1", f"/v1/runs/{run}"),
        ("S2", f"/v1/runs/{run}/steps/1"),
        ("S3", "/v1/ledger"),
        ("S1", f"/v1/studies/{stage.open.identity}/contributions"),
        (COORDINATOR, f"/v1/releases/{run}/data"),
        (COORDINATOR, f"/v1/runs/{run}/events"),
        (COORDINATOR, f"/v1/studies/{stage.open.identity}/participation"),
        ("S1", "/metrics"),
    )
    name, path = pick(there, variant)
    stage.refused(name, "GET", path, who=pick(("south", "mallory"), variant // 8))


def oprf(stage: Stage, variant: Variant) -> None:
    """Batches that are no elements, or more than the study's padded rows, or in a study without a join by tags."""
    study = pick((stage.open.identity, stage.joined.identity, "0" * 64), variant)
    blobs = (
        b"",
        b"\0" * 31,
        b"\0" * 32,
        b"\xff" * 64,
        secrets.token_bytes(32 * 64),
        b"\1" * (32 * 40_000),
        b"\0" * (2 << 20),
    )
    stage.refused(
        SERVERS[variant % 3],
        "POST",
        f"/v1/studies/{study}/oprf",
        who=pick(HOLDERS, variant),
        content=pick(blobs, variant // 3),
    )
    tags = pick((b"", b"\0" * 15, b"\0" * (16 * 139), b"\0" * (16 * 100_000)), variant)
    stage.refused("S1", "PUT", f"/v1/studies/{study}/tags", who=pick(HOLDERS, variant), content=tags)


def false_decline(stage: Stage, variant: Variant) -> None:
    """That somebody does not take part, who said nothing of the kind; and one's own, after one's approval."""
    study, who = stage.open.identity, pick((LIAR, "mallory"), variant)
    of = pick(("north", LIAR, "mallory", "nobody"), variant // 2)
    changes: tuple[dict[str, Any], ...] = (
        {},
        {"role": "mpc-server"},
        {"study": "0" * 64},
        {"at": "9999-12-31T00:00:00Z"},
    )
    said: dict[str, Any] = {"study": study, "role": "holder", "reason": "No.", "at": now()}
    signed = Signed[Decline].by(Decline(**said | pick(changes, variant // 3)), of, signing_key(stage, who)).to_json()
    worse = ({}, {"reason": "x" * 100_000}, {"reason": "\x1b[2J"}, {"reason": ["No."]}, {"reason": None})
    signed["document"] |= pick(worse, variant // 5)
    stage.refused(COORDINATOR, "PUT", f"/v1/studies/{study}/declines/{of}", who=who, json=signed)
    stage.refused(pick(SERVERS, variant), "POST", f"/v1/studies/{study}/decline", who=who, json={"reason": "No."})
    stage.refused(pick(SERVERS, variant), "GET", f"/v1/studies/{study}/positions", who=who)
    stage.refused("north", "GET", f"/v1/studies/{study}/preview", who=who)


def signing_key(stage: Stage, name: str) -> signing.SigningKey:
    """Of a party, or of one that takes part in nothing."""
    return signing.read_signing_key(stage.identities[name].certificate.parent / "signing-key.pem")


MOVES: Catalogue = {
    move.__name__: move
    for move in (
        lie_in_an_offer, wrong_key, openings, chunks, after_the_seal, twice, others_things, approvals,
        coordinators_routes, readers_routes, oprf, withdraw_what_was_not_sealed, false_decline,
    )
}  # fmt: skip
HEAVY: Catalogue = {"contributions_without_end": contributions_without_end}
"""Moves for literal cases and long sequences alone."""
