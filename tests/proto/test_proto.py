"""proto/ is what the code says, its vectors hold, and docs/services.md tells the same about who may call what."""

import json
import re
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from jsonschema_rs import Draft202012Validator
from pydantic import ValidationError

from caps.basics import canonical
from caps.basics.document import Document
from caps.dp.oracle import request_digest
from caps.errors import DomainError
from caps.study import Manifest
from caps.trust import exchange, signing
from caps.trust.exchange import Drawn, ExchangeKey, Received
from caps.wire import (
    Commitment,
    TranscriptStep,
    commitment,
    inputs_digest,
    request_from_json,
    request_to_json,
    transcript_digest,
)
from caps.wire.problems import Kind
from deploy import proto

ROOT = Path(__file__).parents[2]
VECTORS = json.loads((ROOT / "proto/vectors/documents.json").read_text())
SERVICES = {name: json.loads((ROOT / f"proto/openapi/{name}.json").read_text()) for name in proto.SERVICES}
METHODS = {"get", "put", "post", "delete", "head", "patch", "options", "trace"}


def cases(section, part):
    return [
        pytest.param(case, id=case.get("name") or case.get("kind") or str(i))
        for i, case in enumerate(VECTORS[section][part])
    ]


def schema(name):
    return Draft202012Validator(json.loads((ROOT / f"proto/schemas/{name}.json").read_text()))


def test_proto_is_what_the_code_says():
    assert "\n".join(proto.differences(ROOT / "proto", proto.render())) == ""


def test_a_difference_is_found(tmp_path, capsys):
    files = {"schemas/a.json": "1\n", "openapi/b.json": "2\n"}
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas/a.json").write_text("0\n")
    (tmp_path / "schemas/old.json").write_text("3\n")
    found = "\n".join(proto.differences(tmp_path, files))
    assert all(line in found for line in ("-0", "+1", "+2", "-3"))
    assert proto.main(["--wrong"]) == 2


def test_every_document_has_a_schema():
    described = "".join(path.read_text() for path in (ROOT / "proto").glob("[os]*/*.json"))
    missing = [cls.__name__ for cls in _all(Document) if not _in(cls, described)]
    assert missing == []


def _all(cls):
    for inner in cls.__subclasses__():
        if inner.__module__.startswith(("caps.study", "caps.wire")) and "[" not in inner.__name__:
            yield inner
        yield from _all(inner)


def _in(cls, described):
    bases = {"Party", "Signable", "Signed"}
    return cls.__name__ in bases or f'"title": "{cls.__name__}"' in described


def test_schemas_are_schemas():
    for path in (ROOT / "proto/schemas").glob("*.json"):
        Draft202012Validator(json.loads(path.read_text()))


@pytest.mark.parametrize("case", cases("canonical", "good"))
def test_canonical(case):
    value = canonical.parse(case["json"])
    assert canonical.dump(value).decode() == case["canonical"]
    assert canonical.load(case["canonical"].encode()) == value


@pytest.mark.parametrize("case", cases("canonical", "refused"))
def test_not_json(case):
    text = bytes.fromhex(case["hex"]) if "hex" in case else case["json"].encode()
    for read in (canonical.parse, canonical.load):
        with pytest.raises(DomainError):
            read(text)


@pytest.mark.parametrize("case", cases("canonical", "not_canonical"))
def test_not_canonical(case):
    canonical.parse(case["json"])
    with pytest.raises(DomainError, match="canonical"):
        canonical.load(case["json"].encode())


def test_digests():
    found = [canonical.digest(case["kind"], case["value"]).hex() for case in VECTORS["digests"]]
    assert found == [case["sha256"] for case in VECTORS["digests"]]
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("case", cases("signatures", "good"))
def test_good_signature(case):
    key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(case["seed"]))
    assert signing.public_hex(key) == case["public_key"]
    assert signing.sign(key, case["kind"], case["document"]) == case["signature"]
    assert canonical.digest(case["kind"], {"document": case["document"]}).hex() == case["digest"]
    signing.verify(case["public_key"], case["kind"], case["document"], case["signature"])
    signed = {"document": case["document"], "signer": case["signer"], "signature": case["signature"]}
    model = proto.SCHEMAS[case["kind"]].model_validate_json(json.dumps(signed))
    assert model.document.digest() == case["digest"]


@pytest.mark.parametrize("case", cases("signatures", "refused"))
def test_bad_signature(case):
    with pytest.raises(signing.SignatureRefused):
        signing.verify(case["public_key"], case["kind"], case["document"], case["signature"])


@pytest.mark.parametrize("case", cases("commitments", "good"))
def test_good_commitment(case):
    assert commitment(bytes.fromhex(case["nonce"]), bytes.fromhex(case["content"])) == case["commitment"]


@pytest.mark.parametrize("case", cases("commitments", "refused"))
def test_bad_commitment(case):
    try:
        opened = Commitment(bytes.fromhex(case["nonce"])).update(bytes.fromhex(case["content"]))
    except DomainError:
        return
    assert not opened.opens(case["commitment"])


@pytest.mark.parametrize("case", cases("studies", "good"))
def test_good_study(case):
    manifest = Manifest.from_json(case["manifest"])
    assert manifest.canonical_bytes().decode() == case["canonical"]
    assert manifest.study_id == case["study_id"]
    schema("manifest").validate(json.loads(case["canonical"]))


@pytest.mark.parametrize("case", cases("studies", "refused"))
def test_bad_study(case):
    with pytest.raises((ValidationError, DomainError)):
        Manifest.from_json(case["manifest"])


@pytest.mark.parametrize("case", cases("documents", "good"))
def test_good_document(case):
    schema(case["schema"]).validate(case["document"])
    proto.SCHEMAS[case["schema"]].model_validate_json(json.dumps(case["document"]))


@pytest.mark.parametrize("case", cases("documents", "refused"))
def test_bad_document(case):
    assert not schema(case["schema"]).is_valid(case["document"])
    with pytest.raises(ValidationError):
        proto.SCHEMAS[case["schema"]].model_validate_json(json.dumps(case["document"]))


def test_inputs():
    for case in VECTORS["inputs"]:
        assert inputs_digest(case["study"], case["contributions"]) == case["inputs"]


def test_transcripts():
    previous = VECTORS["transcripts"]["inputs"]
    for step in VECTORS["transcripts"]["steps"]:
        assert step["previous"] == previous
        previous = transcript_digest(previous, step["request"], step["answer"])
        assert step["transcript"] == previous


def test_lines_of_transcripts():
    lines, keys = VECTORS["transcripts"]["lines"], VECTORS["studies"]["good"][0]["manifest"]["servers"]
    for line in lines["good"]:
        step = TranscriptStep.from_line(line.encode())
        assert step.line().decode() == line
        assert step.answer.request == request_digest(step.request).hex()
        for server, signature in zip(keys, step.signatures, strict=True):
            signing.verify(server["signing_key"], "answer", step.answer.to_json(), signature)
    for case in lines["refused"]:
        with pytest.raises(DomainError):
            TranscriptStep.from_line(case["line"].encode())


@pytest.mark.parametrize("case", cases("requests", "good"))
def test_good_request(case):
    schema("step-request").validate(case["request"])
    request = request_from_json(case["request"])
    assert canonical.dump(request_to_json(request)).decode() == case["canonical"]
    assert request_digest(request).hex() == case["digest"]


@pytest.mark.parametrize("case", cases("requests", "refused"))
def test_bad_request(case):
    with pytest.raises(DomainError):
        request_from_json(case["request"])
    only_code_knows = {
        "a rational not in lowest terms",
        "a rational below zero",
        "estimates beyond what JSON carries",
    }
    assert schema("step-request").is_valid(case["request"]) == (case["name"] in only_code_knows)


def derived(case):
    """What an implementation makes of a case's members."""
    drawn = Drawn(*(bytes.fromhex(case["drawn"][name]) for name in ("secret", "ciphertext")))
    received = Received(*(bytes.fromhex(case["received"][name]) for name in ("public_key", "ciphertext")))
    key = ExchangeKey.from_bytes(bytes.fromhex(case["private_key"]))
    scope = bytes.fromhex(case["scope"])
    return exchange.pair_secret(key, drawn, received, first=case["first"], scope=scope)


def test_exchange():
    for case in VECTORS["exchange"]["good"]:
        key = ExchangeKey.from_bytes(bytes.fromhex(case["private_key"]))
        assert key.public.hex() == case["public_key"]
        assert exchange.public_digest(key.public) == case["digest"]
        assert derived(case).hex() == case["secret"]
    first, second, third = (case["secret"] for case in VECTORS["exchange"]["good"])
    assert first == second != third


@pytest.mark.parametrize("case", cases("exchange", "refused"))
def test_bad_exchange(case):
    with pytest.raises(DomainError):
        derived(case)


@pytest.mark.parametrize("case", cases("exchange", "no_keys"))
def test_nothing_is_drawn_for_what_is_no_key(case):
    with pytest.raises(DomainError):
        exchange.draw(bytes.fromhex(case["public_key"]))


@pytest.mark.parametrize("name", SERVICES)
def test_openapi_hangs_together(name):
    document = SERVICES[name]
    for reference in set(re.findall(r'"\$ref": "([^"]+)"', json.dumps(document))):
        part = document
        for step in reference.removeprefix("#/").split("/"):
            part = part[step]
    for path, item in document["paths"].items():
        for method, operation in item.items():
            assert method in METHODS
            assert operation["description"], (path, method)
            public = path in ("/healthz", "/readyz")
            assert bool(operation["security"]) != public
            for status, response in operation["responses"].items():
                if status[0] == "4":
                    assert response == {"$ref": "#/components/responses/Problem"}, (path, method, status)


_WHO = {
    "O": ("person", "owner"),
    "A": ("person", "analyst"),
    "P": ("person", "operator"),
    "U": ("person", "auditor"),
    "H": ("machine", "holder"),
    "M": ("machine", "mpc-server"),
    "C": ("machine", "coordinator"),
}


def _documented():
    """Who may call what, as docs/services.md has it: {(service, method, path): callers}."""
    found, service = {}, None
    for line in (ROOT / "docs/services.md").read_text().splitlines():
        if heading := re.match(r"### (Coordinator|Holder|MPC server)", line):
            service = heading[1].lower().replace(" ", "-")
        elif service and line.startswith("| `"):
            routes, who = line.strip("|").split("|")[:2]
            for method, path in re.findall(r"`([A-Z]+) ([^`]+)`", routes):
                place = (service, method, re.sub(r"\{\w+\}", "{}", path))
                found[place] = {_WHO[letter] for letter in who.split()}
        elif line.startswith("## ") and service:
            break
    return found


def test_the_page_of_services_tells_the_same():
    served = {
        (service, method.upper(), re.sub(r"\{\w+\}", "{}", path)): {
            (scheme, name) for one in operation["security"] for scheme, names in one.items() for name in names
        }
        for service, document in SERVICES.items()
        for path, item in document["paths"].items()
        for method, operation in item.items()
        if path.startswith("/v1")
    }
    documented = _documented()
    assert len(documented) > 30
    different = {place for place in documented.keys() | served.keys() if served.get(place) != documented.get(place)}
    assert different == set()


def test_problems_are_documented_in_one_table():
    assert all(400 <= kind.value.status < 600 for kind in Kind)
