"""Test vectors of documents, good and bad: canonical JSON, digests, signatures, commitments, studies, transcripts.

Keys are fixed seeds, so the same bytes come out at every run; Ed25519 signatures are deterministic.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from hashlib import sha256, shake_256
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from caps.basics import canonical
from caps.basics.schemes import REP3, REP4
from caps.dp.oracle import (
    Batch,
    Comparison,
    Compute,
    Measurement,
    Selection,
    StepRequest,
    request_digest,
    spelled,
)
from caps.dp.privacy import Gaussian, GaussianBatch, GaussianErrors, Laplace, NoisyMax, PermuteAndFlip
from caps.study import Manifest
from caps.trust import exchange, signing
from caps.trust.exchange import Drawn, ExchangeKey, Received
from caps.wire import (
    Answer,
    Approval,
    Attestation,
    Contribution,
    Decline,
    Evidence,
    LedgerRange,
    Offer,
    Opening,
    Receipt,
    ReleaseBody,
    Seal,
    Signable,
    Signed,
    TranscriptStep,
    commitment,
    inputs_digest,
    request_to_json,
    transcript_digest,
)

_ORDER = 2**252 + 27742317777372353535851937790883648493
"""The order of the group of Ed25519 (RFC 8032)."""
_AT = "2030-05-17T12:00:00Z"
Json = dict[str, Any]
_MEASURE = Measurement("round1-measure", ("age", "smoker"), Gaussian(Fraction(7, 2)), 12)
_SELECT = Selection(
    "round1-select",
    (("age", "smoker"), ("smoker",)),
    np.array([256, 0, 512, 1, 2, 3, 4, 5, 6, 7], np.int64),
    np.array([0, 40], np.int64),
    np.array([1, 2], np.int64),
    NoisyMax.of_star(Fraction(1, 3)),
    3,
)
_COMPARE = Comparison(
    "round1-compare", (("age", "smoker"),), np.array([256, 0, 512, 1, 2, 3], np.int64), GaussianErrors(Fraction(9, 2))
)
_BATCH = Batch(
    "round1-measure", (("age", "smoker"), ("smoker",)), np.array([3072, 1024], np.int64), GaussianBatch(Fraction(1, 64))
)


def document_vectors() -> Json:
    """The contents of proto/vectors/documents.json."""
    manifest = Manifest.from_json(_manifest())
    documents = _documents(manifest)
    return {
        "version": 1,
        "note": "Keys here are public and for tests only. proto/README.md explains the members.",
        "canonical": _canonical(),
        "digests": _digests(),
        "signatures": _signatures(documents),
        "commitments": _commitments(),
        "studies": _studies(manifest),
        "documents": _described(documents),
        "inputs": _inputs(manifest),
        "transcripts": _transcripts(documents),
        "requests": _requests(),
        "exchange": _exchange(),
    }


def _seed(name: str) -> bytes:
    return sha256(f"caps/v1/test-vector/{name}".encode()).digest()


def _key(name: str) -> signing.SigningKey:
    return Ed25519PrivateKey.from_private_bytes(_seed(f"signing/{name}"))


def _party(name: str) -> Json:
    return {"name": name, "pin": _seed(f"pin/{name}").hex(), "signing_key": signing.public_hex(_key(name))}


def _manifest() -> Json:
    return {
        "version": 1,
        "title": "Smoking and diagnoses",
        "purpose": "A test vector",
        "schema": {
            "version": 1,
            "columns": [
                {"name": "age", "kind": "numeric", "integer": True, "bin_edges": [0, 20, 40, 60, 80]},
                {"name": "smoker", "kind": "boolean", "false": "no", "true": "yes"},
                {"name": "größe", "kind": "categorical", "categories": ["klein", "groß"], "missing": "null"},
            ],
        },
        "holders": [
            {**_party("clinic-a"), "brings": "rows"},
            {**_party("clinic-b"), "brings": "rows"},
        ],
        "workload": "all-pairs",
        "algorithm": {"name": "aim"},
        "privacy": {"epsilon": "1", "delta": "0.000001", "population": "patients"},
        "scheme": "rep3",
        "servers": list(map(_server, REP3.server_names)),
        "coordinator": {**_party("coordinator"), "url": "https://coordinator.example"},
        "publication": {"rows": 1000},
        "retention_days": 30,
    }


def _server(name: str) -> Json:
    return {**_party(name), "url": f"https://{name.lower()}.example:8443", "mesh": f"{name.lower()}.example:9443"}


def _canonical() -> Json:
    good = {
        "members are ordered by UTF-16 code units": '{"b": 1, "\\ud83d\\ude00": 2, "a": 3, "\\ufb33": 4, "": 5}',
        "numbers": "[1.0, -0, 1e2, 0.000001, 1e-7, 1e21, 123456789012345680000, 4.50, 2e-3, 333333333.33333329]",
        "strings": '"\\u20ac$\\u000F\\u000aA\'\\u0042\\u0022\\u005c\\\\\\"\\/"',
        "text outside the BMP stays as it is": '"\\ud83d\\ude00"',
        "literals and nesting": " [ null , true,false, { }, [ ] ] ",
        "the greatest integer": "9007199254740991",
    }
    bad = {
        "a member twice": '{"a": 1, "a": 1}',
        "an integer that a double does not hold": "9007199254740993",
        "NaN": "[NaN]",
        "Infinity": "-Infinity",
        "too large a number": "1e400",
        "a lone surrogate": '"\\ud800"',
        "a lone surrogate in a name": '{"\\udc00": 1}',
        "trailing text": "1 2",
        "a trailing comma": "[1,]",
        "a comment": "[1] // one",
        "no value": "",
        "nested too deep": "[" * 65 + "]" * 65,
        "a control character in a string": '"\t"',
        "a leading zero": "01",
    }
    other = {
        "a space": "[1, 2]",
        "members in another order": '{"b":1,"a":2}',
        "a number with a fraction of zero": "1.0",
        "minus zero": "-0",
        "an escape that is not needed": '"\\u0041"',
        "a line end": "1\n",
        "capital letters in an escape": '"\\u001F"',
    }
    return {
        "good": [
            {"name": name, "json": text, "canonical": canonical.dump(canonical.parse(text)).decode()}
            for name, text in good.items()
        ],
        "refused": [{"name": name, "json": text} for name, text in bad.items()]
        + [{"name": "not UTF-8", "hex": b'"\xff"'.hex()}, {"name": "a byte order mark", "hex": b"\xef\xbb\xbf1".hex()}],
        "not_canonical": [{"name": name, "json": text} for name, text in other.items()],
    }


def _digests() -> list[Json]:
    value: Json = {"a": 1, "b": [True, None]}
    return [
        {"kind": kind, "value": one, "sha256": canonical.digest(kind, one).hex()}
        for kind, one in (("manifest", value), ("inputs", value), ("inputs", {}))
    ]


def _documents(manifest: Manifest) -> list[tuple[Signable, str]]:
    """One document of each kind, and who signs it."""
    study, run = manifest.study_id, _seed("run").hex()[:32]
    contribution = Contribution(
        study=study,
        holder="clinic-a",
        form="marginals",
        bits=32,
        shape=(manifest.layout.cells,),
        commitments=tuple(commitment(_seed(f"nonce/{i}"), _seed(f"content/{i}")) for i in range(3)),
        chunk_bytes=1 << 20,
        at=_AT,
    )
    inputs = inputs_digest(study, [contribution.digest()])
    request = canonical.digest("request", {"kind": "measure"}).hex()  # an answer names its request by digest alone
    answer = Answer(study=study, run=run, step=1, request=request, value=(3, -1, 0))
    transcript = transcript_digest(inputs, request, answer.digest())
    signed = exchange.public_digest(_exchange_key("S1").public)
    ledger = LedgerRange(first=1, last=2, first_hash=_seed("first").hex(), last_hash=_seed("last").hex())
    return [
        (Approval(study=study, role="holder", at=_AT), "clinic-a"),
        (Approval(study=study, role="mpc-server", exchange_digest=signed, at=_AT), "S1"),
        (Decline(study=study, role="holder", reason="The purpose is not covered by consent.", at=_AT), "clinic-a"),
        (contribution, "clinic-a"),
        (
            Receipt(
                study=study,
                contribution=contribution.digest(),
                holder="clinic-a",
                server="S2",
                event="accepted",
                at=_AT,
            ),
            "S2",
        ),
        (Seal(study=study, server="S3", inputs=inputs, contributions=(contribution.digest(),), at=_AT), "S3"),
        (answer, "S1"),
        (
            Attestation(
                study=study,
                inputs=inputs,
                run=run,
                server="S1",
                transcript=transcript,
                steps=1,
                contributions=(contribution.digest(),),
                holders=("clinic-a",),
                statement={"epsilon": "1"},
                ledger=ledger,
                software="caps 0",
                at=_AT,
            ),
            "S1",
        ),
        (
            Evidence(
                study=study, run=run, step=1, scheme="rep3", pair=("S1", "S2"), check="messages", server="S3", at=_AT
            ),
            "S3",
        ),
        (
            ReleaseBody(
                study=study,
                run=run,
                transcript=transcript,
                files={name: _seed(name).hex() for name in ("data.csv", "measurements.json", "transcript.ndjson")},
                rows=1000,
                seed=_seed("rows").hex(),
                software="caps 0",
                at=_AT,
            ),
            "coordinator",
        ),
    ]


def _signatures(documents: list[tuple[Signable, str]]) -> Json:
    good: list[Json] = [
        {
            "kind": document.kind,
            "signer": signer,
            "seed": _seed(f"signing/{signer}").hex(),
            "public_key": signing.public_hex(_key(signer)),
            "document": document.to_json(),
            "digest": document.digest(),
            "signature": signing.sign(_key(signer), document.kind, document.to_json()),
        }
        for document, signer in documents
    ]
    first = {member: good[0][member] for member in ("kind", "public_key", "document", "signature")}
    signature = bytes.fromhex(str(first["signature"]))
    scalar = int.from_bytes(signature[32:], "little") + _ORDER
    altered = dict(documents[0][0].to_json(), at="2030-05-17T12:00:01Z")
    bad: dict[str, Json] = {
        "another kind of document": {"kind": "receipt"},
        "an altered document": {"document": altered},
        "another signer": {"public_key": signing.public_hex(_key("clinic-b"))},
        "one bit less": {"signature": (bytes([signature[0] ^ 1]) + signature[1:]).hex()},
        "a signature cut short": {"signature": signature[:-1].hex()},
        "a second spelling of the same signature": {
            "signature": (signature[:32] + scalar.to_bytes(32, "little")).hex()
        },
        "no signature": {"signature": ""},
        "not a point": {"public_key": "02" + "00" * 31},
        "a key cut short": {"public_key": str(first["public_key"])[:-2]},
    }
    return {"good": good, "refused": [{"name": name, **first, **change} for name, change in bad.items()]}


def _commitments() -> Json:
    nonce, content = _seed("nonce/0"), _seed("content/0")
    good = [
        {"nonce": nonce.hex(), "content": part.hex(), "commitment": commitment(nonce, part)}
        for part in (content, b"", bytes(range(256)))
    ]
    bad = {
        "another nonce": {"nonce": _seed("nonce/1").hex()},
        "other content": {"content": _seed("content/1").hex()},
        "a byte more": {"content": (content + b"\0").hex()},
        "a byte moved from the content to the nonce": {
            "nonce": (nonce + content[:1]).hex(),
            "content": content[1:].hex(),
        },
        "a nonce cut short": {"nonce": nonce[:-1].hex()},
    }
    return {"good": good, "refused": [{"name": name, **good[0], **change} for name, change in bad.items()]}


def _studies(manifest: Manifest) -> Json:
    given = _manifest()
    privacy, servers, holders = given["privacy"], given["servers"], given["holders"]
    spelled = given | {"privacy": privacy | {"epsilon": 1, "delta": 1e-06}}
    four = given | {"scheme": "rep4", "servers": list(map(_server, REP4.server_names))}
    by_tags = {
        "holders": [holder | {"brings": "columns", "capacity": 200} for holder in holders],
        "join": {"key": {"columns": [{"name": "number", "kind": "text"}]}, "protocol": "oprf"},
    }
    Manifest.from_json(given | by_tags)  # refused in another scheme only
    bad: dict[str, Json] = {
        "a member that is not known": given | {"colour": "red"},
        "another version": given | {"version": 2},
        "servers in another order": given | {"servers": [servers[1], servers[0], servers[2]]},
        "two servers": given | {"servers": servers[:2]},
        "three servers in rep4": given | {"scheme": "rep4"},
        "four servers in rep3": four | {"scheme": "rep3"},
        "a scheme that is not known": given | {"scheme": "rep5"},
        "a join by tags in a scheme that trusts no server": given | by_tags | {"scheme": "rep3-active"},
        "one key in two roles": given | {"holders": [holders[0] | {"pin": servers[0]["pin"]}, holders[1]]},
        "a holder twice": given | {"holders": [holders[0], holders[0]]},
        "epsilon of zero": given | {"privacy": privacy | {"epsilon": "0"}},
        "epsilon that is no number": given | {"privacy": privacy | {"epsilon": "much"}},
        "delta of one": given | {"privacy": privacy | {"delta": "1"}},
        "public rows under the unbounded relation": given | {"privacy": privacy | {"rows": 100}},
        "an algorithm that is not known": given | {"algorithm": {"name": "magic"}},
        "a parameter that is not known": given | {"algorithm": {"name": "aim", "parameters": {"colour": 1}}},
        "a query about a column that nobody brings": given | {"workload": [{"attributes": ["age", "height"]}]},
        "columns without an alignment": given | {"holders": [holders[0] | {"brings": "columns"}, holders[1]]},
        "an address without TLS": given | {"coordinator": given["coordinator"] | {"url": "http://coordinator.example"}},
        "a port that does not exist": given
        | {"coordinator": given["coordinator"] | {"url": "https://coordinator.example:65536"}},
        "a pin in capital letters": given | {"coordinator": given["coordinator"] | {"pin": "A" * 64}},
        "no columns": given | {"schema": {"version": 1, "columns": []}},
        "a number as text": given | {"retention_days": "30"},
    }
    return {
        "good": [
            {
                "name": "all members",
                "manifest": given,
                "canonical": manifest.canonical_bytes().decode(),
                "study_id": manifest.study_id,
            },
            {
                "name": "epsilon and delta as numbers: the same study",
                "manifest": spelled,
                "canonical": manifest.canonical_bytes().decode(),
                "study_id": Manifest.from_json(spelled).study_id,
            },
            *(
                {
                    "name": f"in the scheme {value['scheme']}",
                    "manifest": value,
                    "canonical": Manifest.from_json(value).canonical_bytes().decode(),
                    "study_id": Manifest.from_json(value).study_id,
                }
                for value in (given | {"scheme": "rep3-active"}, four)
            ),
        ],
        "refused": [{"name": name, "manifest": value} for name, value in bad.items()],
    }


def _described(documents: list[tuple[Signable, str]]) -> Json:
    """Documents that no schema allows, each made from a valid one by one change."""
    by_kind = {
        document.kind: Signed[Any].by(document, signer, _key(signer)).to_json() for document, signer in documents
    }
    contribution = by_kind["contribution"]
    openings = [
        Opening(component=i, nonce=_seed(f"nonce/{i}").hex(), seed=_seed(f"content/{i}").hex()).to_json()
        for i in range(2)
    ]
    offer = Offer.model_validate({"contribution": contribution, "openings": openings}).to_json()
    step = _step(_answer(documents), _MEASURE).to_json()
    good = [{"schema": kind, "document": value} for kind, value in by_kind.items()]
    changes: list[tuple[str, str, Json]] = [
        ("approval", "a role that does not approve", _changed(by_kind["approval"], role="coordinator")),
        ("approval", "a time without seconds", _changed(by_kind["approval"], at="2030-05-17T12:00Z")),
        ("approval", "a time of another zone", _changed(by_kind["approval"], at="2030-05-17T12:00:00+02:00")),
        ("approval", "a member more", _changed(by_kind["approval"], colour="red")),
        ("contribution", "a commitment less", _changed(contribution, commitments=["0" * 64] * 2)),
        ("contribution", "bits of no ring", _changed(contribution, bits=64)),
        ("contribution", "an extent of zero", _changed(contribution, shape=[0])),
        ("receipt", "an event that is not known", _changed(by_kind["receipt"], event="lost")),
        ("answer", "a step below zero", _changed(by_kind["answer"], step=-1)),
        ("answer", "a fraction", _changed(by_kind["answer"], value=[0.5])),
        ("seal", "no signature", {key: value for key, value in by_kind["seal"].items() if key != "signature"}),
        ("release", "a digest in capital letters", _changed(by_kind["release"], files={"data.csv": "A" * 64})),
        ("transcript-step", "a signature less", step | {"signatures": step["signatures"][:2]}),
        ("transcript-step", "a request of no kind", step | {"request": {"clique": ["age"]}}),
        ("transcript-step", "no request", {key: value for key, value in step.items() if key != "request"}),
        ("offer", "four openings", offer | {"openings": [*openings, *openings]}),
        ("offer", "a component that is not there", offer | {"openings": [openings[0], openings[1] | {"component": 4}]}),
        ("evidence", "one server", _changed(by_kind["evidence"], pair=["S1"])),
        ("evidence", "a scheme that is not known", _changed(by_kind["evidence"], scheme="rep5")),
    ]
    return {
        "good": [*good, {"schema": "offer", "document": offer}, {"schema": "transcript-step", "document": step}],
        "refused": [{"schema": kind, "name": name, "document": value} for kind, name, value in changes],
    }


def _answer(documents: list[tuple[Signable, str]]) -> Answer:
    return next(document for document, _ in documents if isinstance(document, Answer))


def _step(like: Answer, request: StepRequest) -> TranscriptStep:
    """The line of a transcript for a request, with an answer that all servers signed."""
    answer = like.model_copy(update={"request": request_digest(request).hex()})
    signatures = tuple(signing.sign(_key(name), answer.kind, answer.to_json()) for name in ("S1", "S2", "S3"))
    return TranscriptStep(request=request, answer=answer, signatures=signatures)


def _changed(signed: Json, **members: Any) -> Json:
    return signed | {"document": signed["document"] | members}


def _inputs(manifest: Manifest) -> list[Json]:
    names = [_seed(f"contribution/{i}").hex() for i in range(3)]
    return [
        {"study": manifest.study_id, "contributions": some, "inputs": inputs_digest(manifest.study_id, some)}
        for some in ([], names, names[::-1])
    ]


def _transcripts(documents: list[tuple[Signable, str]]) -> Json:
    line = _step(_answer(documents), _MEASURE).line().decode()
    bad = {
        "no line end": line[:-1],
        "a space": line.replace(",", ", ", 1),
        "two line ends": line + "\n",
        "a signature in capital letters": line[:-10] + line[-10:].upper(),
    }
    previous, steps = _seed("inputs").hex(), []
    for i in range(3):
        request, answer = _seed(f"request/{i}").hex(), _seed(f"answer/{i}").hex()
        after = transcript_digest(previous, request, answer)
        steps.append({"previous": previous, "request": request, "answer": answer, "transcript": after})
        previous = after
    return {
        "inputs": _seed("inputs").hex(),
        "steps": steps,
        "lines": {"good": [line], "refused": [{"name": name, "line": text} for name, text in bad.items()]},
    }


def _requests() -> Json:
    """Requests of steps with their canonical forms and digests; and what is refused, each by one change."""
    select, measure = request_to_json(_SELECT), request_to_json(_MEASURE)
    laplace = replace(_MEASURE, mechanism=Laplace(Fraction(3)), draws=None)
    flip = replace(_SELECT, mechanism=PermuteAndFlip(Fraction(1, 2)))
    compare, batch = request_to_json(_COMPARE), request_to_json(_BATCH)
    good: list[StepRequest] = [Compute(), _SELECT, flip, _MEASURE, laplace, _COMPARE, _BATCH]
    ratio = measure["mechanism"]
    bad: dict[str, object] = {
        "a kind that is not known": measure | {"kind": "read"},
        "no kind": {name: value for name, value in measure.items() if name != "kind"},
        "a list": [measure],
        "a member more": measure | {"colour": "red"},
        "a member more in what has none": {"kind": "compute", "step": "compute"},
        "a member less": {name: value for name, value in measure.items() if name != "draws"},
        "a clique that is text": measure | {"clique": "age"},
        "a clique with a number": measure | {"clique": ["age", 1]},
        "draws that are a fraction": measure | {"draws": 1.5},
        "draws that are a boolean": measure | {"draws": True},
        "draws beyond what JSON carries": measure | {"draws": 2**53},
        "a flag that is a number": measure | {"distributed": 0},
        "a mechanism that selects, to measure": measure | {"mechanism": select["mechanism"]},
        "a mechanism that measures, to select": select | {"mechanism": ratio},
        "a mechanism that is not known": measure | {"mechanism": ratio | {"kind": "cauchy"}},
        "a mechanism with a member more": measure | {"mechanism": ratio | {"colour": "red"}},
        "a rational that is a number": measure | {"mechanism": ratio | {"sigma_squared": 3.5}},
        "a rational not in lowest terms": measure | {"mechanism": ratio | {"sigma_squared": "14/4"}},
        "a rational below zero": measure | {"mechanism": ratio | {"sigma_squared": "-7/2"}},
        "estimates that are a list": select | {"estimate": [1]},
        "estimates that are not base64": select | {"estimate": "one"},
        "estimates of half an integer": select | {"estimate": "AAAAAA=="},
        "estimates with spare bits": select | {"estimate": f"{spelled([1])[:-2]}B="},
        "estimates without padding": select | {"estimate": spelled([1]).rstrip("=")},
        "estimates beyond what JSON carries": select | {"estimate": spelled([2**53])},
        "weights that are a number": select | {"weights": 1},
        "candidates that are no cliques": select | {"candidates": ["age"]},
        "a mechanism that measures, to compare": compare | {"mechanism": ratio},
        "a bias, to compare": compare | {"bias": spelled([0, 0])},
        "a mechanism that measures one, for a batch": batch | {"mechanism": ratio},
        "parts that are a list": batch | {"parts": [1, 2]},
        "a batch of one clique": batch | {"cliques": ["age", "smoker"]},
    }
    return {
        "good": [
            {
                "request": request_to_json(request),
                "canonical": canonical.dump(request_to_json(request)).decode(),
                "digest": request_digest(request).hex(),
            }
            for request in good
        ],
        "refused": [{"name": name, "request": value} for name, value in bad.items()],
    }


def _exchange_key(name: str) -> ExchangeKey:
    seed = f"caps/v1/test-vector/exchange/{name}".encode()
    return ExchangeKey.from_bytes(shake_256(seed).digest(exchange.PRIVATE_BYTES))


def _drawn(mine: str, other: str) -> Drawn:
    """What one server draws for another: not an encapsulation, which is random, but ML-KEM's result for any bytes."""
    seed = f"caps/v1/test-vector/drawn/{mine}/{other}".encode()
    encapsulated = shake_256(seed).digest(1088)
    return Drawn.of(_exchange_key(other).lattice.decapsulate(encapsulated), encapsulated)


def _exchange() -> Json:
    def case(mine: str, other: str) -> Json:
        key, peer, drawn = _exchange_key(mine), _exchange_key(other), _drawn(mine, other)
        received = Received(peer.public, _drawn(other, mine).ciphertext)
        first = mine < other
        secret = exchange.pair_secret(key, drawn, received, first=first, scope=_seed("scope"))
        return {
            "private_key": key.to_bytes().hex(),
            "public_key": key.public.hex(),
            "digest": exchange.public_digest(key.public),
            "first": first,
            "drawn": {"secret": drawn.secret.hex(), "ciphertext": drawn.ciphertext.hex()},
            "received": {"public_key": received.public.hex(), "ciphertext": received.ciphertext.hex()},
            "scope": _seed("scope").hex(),
            "secret": secret.hex(),
        }

    good = [case(mine, other) for mine, other in (("S1", "S2"), ("S2", "S1"), ("S1", "S3"))]
    public, ciphertext = good[0]["received"]["public_key"], good[0]["received"]["ciphertext"]
    bad = {
        "a point of small order": {"public_key": "00" * 32 + public[64:]},
        "another point of small order": {"public_key": "01" + "00" * 31 + public[64:]},
        "no public key": {"public_key": ""},
        "an altered ciphertext": {"ciphertext": "00" * 8 + ciphertext[16:]},
        "a ciphertext with another check": {"ciphertext": ciphertext[:-64] + "00" * 32},
        "a ciphertext for another key": {"ciphertext": good[0]["drawn"]["ciphertext"]},
        "a ciphertext cut short": {"ciphertext": ciphertext[:-2]},
        "a ciphertext with a byte more": {"ciphertext": ciphertext + "00"},
    }
    shared = {name: value for name, value in good[0].items() if name not in ("secret", "received")}
    return {
        "good": good,
        "refused": [{"name": name, **shared, "received": good[0]["received"] | change} for name, change in bad.items()],
        "no_keys": [
            {"name": "a coefficient that is not below 3329", "public_key": public[:64] + "ff" * 1184},
            {"name": "a key cut short", "public_key": public[:-2]},
            {"name": "not a key", "public_key": ""},
        ],
    }
