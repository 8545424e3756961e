"""Whatever is changed in a release is found and named, by whoever it was changed: a stranger, the coordinator, or all
three servers together."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caps.audit.verification import Check, accepted, verify
from caps.basics import canonical
from caps.dp.oracle import Compute, Measurement, Selection
from caps.errors import DomainError
from caps.study.account import Account
from caps.study.manifest import Manifest
from caps.wire.documents import Attestation, Certificate, ReleaseBody, Signed
from caps.wire.releases import MEASUREMENTS, TRANSCRIPT
from caps.wire.steps import TranscriptStep
from tests.kit.draws import drawn
from tests.kit.study import (
    NOW,
    ExampleRelease,
    Keys,
    example_manifest,
    example_release,
    honest_walk,
    transcript_of,
)

pytestmark = pytest.mark.property

SMALL = {"name": "aim", "parameters": {"rounds": 2}}
Steps = list[tuple[Any, Any]]


@pytest.fixture(scope="module")
def study() -> tuple[Manifest, Keys]:
    return example_manifest(algorithm=SMALL)


@pytest.fixture(scope="module")
def release(study: tuple[Manifest, Keys]) -> ExampleRelease:
    return example_release(*study)


@pytest.fixture(scope="module")
def steps(study: tuple[Manifest, Keys]) -> Steps:
    return honest_walk(study[0])[1]


def checked(release: ExampleRelease, folder: Path) -> dict[str, Check]:
    return {check.name: check for check in verify(release.certificate, now=NOW, **release.write(folder))}


def failures(release: ExampleRelease, folder: Path) -> dict[str, str]:
    return {name: check.explanation for name, check in checked(release, folder).items() if check.passed is False}


def published(release: ExampleRelease, keys: Keys, name: str, content: bytes) -> ExampleRelease:
    """The release with another file, in which a coordinator that does not mind signs the digest of it."""
    body = release.certificate.release.document
    document = ReleaseBody(**dict(body) | {"files": {**body.files, name: sha256(content).hexdigest()}})
    signed = Signed[ReleaseBody].by(document, "coordinator", keys["coordinator"].signing)
    certificate = Certificate(**dict(release.certificate) | {"release": signed})
    return ExampleRelease(certificate, {**release.files, name: content})


def places(value: object, place: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Where the leaves of a JSON document are."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if inner is None:
        yield place
    else:
        for name, one in inner:
            yield from places(one, (*place, name))


def altered(leaf: object) -> list[object]:
    """Other leaves, near and far."""
    match leaf:
        case bool():
            return [not leaf, int(leaf)]
        case int() | float():
            return [leaf + 1, str(leaf)]
        case str():
            return [other for other in (leaf + "0", leaf.swapcase()) if other != leaf]
    return [0, ""]


def with_leaf(document: Any, place: tuple[str | int, ...], leaf: object) -> Any:
    copy = json.loads(json.dumps(document))
    inner = copy
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = leaf
    return copy


def without(document: Any, place: tuple[str | int, ...]) -> Any:
    copy = json.loads(json.dumps(document))
    inner = copy
    for name in place[:-1]:
        inner = inner[name]
    del inner[place[-1]]
    return copy


def edits(document: Any) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Documents with one leaf changed or taken out."""
    for place in places(document):
        leaf: Any = document
        for name in place:
            leaf = leaf[name]
        for other in altered(leaf):
            yield place, with_leaf(document, place, other)
        yield place, without(document, place)


def holds(text: bytes) -> bool:
    """Whether this is a certificate, and a good one."""
    try:
        certificate = Certificate.from_canonical(text)
    except DomainError:
        return False
    return accepted(verify(certificate, now=NOW))


@pytest.mark.drawn(1)
def test_every_leaf_of_a_certificate_counts(release: ExampleRelease) -> None:
    document = release.certificate.to_json()
    assert holds(canonical.dump(document))
    tried = drawn("leaves of a certificate", edits(document), 300)
    unnoticed = {place for place, other in tried if holds(canonical.dump(other))}
    assert unnoticed == set()


def flipped(text: bytes, stride: int) -> Iterator[tuple[int, bytes]]:
    """Texts with one byte changed, removed or inserted, at every `stride`-th place."""
    for place in range(0, len(text), stride):
        yield place, text[:place] + bytes([text[place] ^ 1 << place % 7]) + text[place + 1 :]
        yield place, text[:place] + text[place + 1 :]
        yield place, text[:place] + b" " + text[place:]


@pytest.mark.drawn(1)
def test_every_byte_of_a_certificate_counts(release: ExampleRelease) -> None:
    text = canonical.dump(release.certificate.to_json())
    tried = drawn("bytes of a certificate", flipped(text, 61), 300)
    assert [place for place, other in tried if holds(other)] == []
    assert not holds(text + b"\n")


def named(found: dict[str, str], number: int) -> bool:
    return any(f"step {number}" in one or f"step {number}:" in one for one in found.values())


@pytest.mark.drawn(1)
def test_every_leaf_of_a_transcript_counts(
    study: tuple[Manifest, Keys], release: ExampleRelease, tmp_path: Path
) -> None:
    """Even if the coordinator signs the digest of what was made of it. One step of each kind is tried."""
    lines = release.files[TRANSCRIPT].splitlines(keepends=True)
    kinds = {json.loads(line)["request"]["kind"]: number for number, line in reversed(list(enumerate(lines)))}
    assert sorted(kinds) == ["compute", "measure", "select"]
    for number in kinds.values():
        for place, other in drawn(f"leaves of step {number}", edits(json.loads(lines[number])), 15):
            changed = b"".join((*lines[:number], canonical.dump(other) + b"\n", *lines[number + 1 :]))
            found = failures(published(release, study[1], TRANSCRIPT, changed), tmp_path)
            assert named(found, number), (place, found)


@pytest.mark.drawn(1)
def test_every_byte_of_a_transcript_counts(
    study: tuple[Manifest, Keys], release: ExampleRelease, tmp_path: Path
) -> None:
    text = release.files[TRANSCRIPT]
    for place, other in drawn("bytes of a transcript", flipped(text, 197), 40):
        found = failures(published(release, study[1], TRANSCRIPT, other), tmp_path)
        assert named(found, text[:place].count(b"\n")), (place, found)
        stranger = failures(ExampleRelease(release.certificate, {**release.files, TRANSCRIPT: other}), tmp_path)
        assert str(tmp_path / TRANSCRIPT) in stranger.get("transcript", ""), (place, stranger)


def swapped(step: TranscriptStep) -> TranscriptStep:
    first, second, third = step.signatures
    return step.model_copy(update={"signatures": (second, first, third)})


LINES: list[tuple[str, Callable[[list[TranscriptStep]], list[TranscriptStep]], str]] = [
    (
        "wrong order",
        lambda all_: [*all_[:3], all_[4], all_[3], *all_[5:]],
        "line 4 must be step 3, but is step 4",
    ),
    ("dropped", lambda all_: all_[:5] + all_[6:], "line 6 must be step 5, but is step 6"),
    ("repeated", lambda all_: all_[:5] + all_[4:], "line 6 must be step 5, but is step 4"),
    ("cut off", lambda all_: all_[:-1], "due now: round"),
    ("nothing", lambda _: [], "due now: compute"),
    (
        "signatures of two servers exchanged",
        lambda all_: [*all_[:5], swapped(all_[5]), *all_[6:]],
        "step 5: the answer lacks a valid signature of S1 and S2",
    ),
    (
        "the answer to another request",
        lambda all_: [*all_[:2], all_[2].model_copy(update={"request": all_[1].request}), *all_[3:]],
        "step 2: the servers answered another request",
    ),
]


@pytest.mark.parametrize(("change", "words"), [case[1:] for case in LINES], ids=[case[0] for case in LINES])
def test_lines_that_were_moved_are_found(
    study: tuple[Manifest, Keys],
    release: ExampleRelease,
    tmp_path: Path,
    change: Callable[[list[TranscriptStep]], list[TranscriptStep]],
    words: str,
) -> None:
    lines = [TranscriptStep.from_line(line) for line in release.files[TRANSCRIPT].splitlines(keepends=True)]
    content = b"".join(line.line() for line in change(lines))
    found = failures(published(release, study[1], TRANSCRIPT, content), tmp_path)
    assert any(words in one for one in found.values()), found


def at(steps: Steps, kind: type) -> int:
    return next(number for number, (request, _) in reversed(list(enumerate(steps))) if isinstance(request, kind))


def noisier(steps: Steps, number: int, factor: Fraction) -> Steps:
    request, value = steps[number]
    mechanism = request.mechanism
    mechanism = replace(mechanism, **{name: getattr(mechanism, name) * factor for name in mechanism.__slots__})
    return [*steps[:number], (replace(request, mechanism=mechanism), value), *steps[number + 1 :]]


def asked_otherwise(steps: Steps, number: int, **members: Any) -> Steps:
    request, value = steps[number]
    return [*steps[:number], (replace(request, **members), value), *steps[number + 1 :]]


def answered_otherwise(steps: Steps, number: int, value: Any) -> Steps:
    return [*steps[:number], (steps[number][0], value), *steps[number + 1 :]]


COLLUSIONS: list[tuple[str, Callable[[Steps], tuple[int, Steps]]]] = [
    ("more noise than due in a measurement", lambda s: (1, noisier(s, 1, Fraction(4)))),
    ("less noise than due in a measurement", lambda s: (1, noisier(s, 1, Fraction(1, 4)))),
    (
        "another epsilon in a selection",
        lambda s: (at(s, Selection), noisier(s, at(s, Selection), Fraction(2))),
    ),
    ("another marginal", lambda s: (1, asked_otherwise(s, 1, clique=s[2][0].clique))),
    ("what was not selected", lambda s: (at(s, Measurement), answered_otherwise(s, at(s, Selection), 5))),
    (
        "other weights",
        lambda s: (
            at(s, Selection),
            asked_otherwise(s, at(s, Selection), weights=s[at(s, Selection)][0].weights * np.int64(2)),
        ),
    ),
    ("a step less", lambda s: (3, s[:3] + s[4:])),
    ("a step twice", lambda s: (3, s[:3] + s[2:])),
    ("a step more", lambda s: (len(s), [*s, s[-1]])),
    ("no COMPUTE ANSWERS", lambda s: (0, s[1:])),
    ("a contribution that was not valid", lambda s: (0, answered_otherwise(s, 0, (1, 0)))),
    ("a verdict less", lambda s: (0, answered_otherwise(s, 0, (1,)))),
    ("a cell less", lambda s: (1, answered_otherwise(s, 1, s[1][1][1:]))),
    ("no candidate", lambda s: (at(s, Selection), answered_otherwise(s, at(s, Selection), 99))),
    ("counts for a position", lambda s: (at(s, Selection), answered_otherwise(s, at(s, Selection), (1, 2)))),
    ("a position for counts", lambda s: (2, answered_otherwise(s, 2, 3))),
]


@pytest.mark.parametrize("collude", [case[1] for case in COLLUSIONS], ids=[case[0] for case in COLLUSIONS])
def test_servers_that_agree_on_another_run_are_found_out(
    study: tuple[Manifest, Keys], steps: Steps, tmp_path: Path, collude: Callable[[Steps], tuple[int, Steps]]
) -> None:
    """All three sign it, and so does the coordinator: only the walk along the agreed program tells."""
    number, other = collude(steps)
    found = failures(example_release(*study, transcript=transcript_of(*study, other)), tmp_path)
    assert set(found) == {"steps", "charges"}
    assert found["steps"].startswith(f"step {number}: ")


def test_answers_of_another_run_are_found(study: tuple[Manifest, Keys], steps: Steps, tmp_path: Path) -> None:
    """Signed by all, attested by all: but not the answers of the run that is attested."""
    found = failures(example_release(*study, transcript=transcript_of(*study, steps, "f" * 32)), tmp_path)
    assert found == {"answers": "step 0: the answer belongs to another run"}


def test_answers_that_were_not_attested_are_found(
    study: tuple[Manifest, Keys], release: ExampleRelease, steps: Steps, tmp_path: Path
) -> None:
    """As if servers had signed two answers to one request, of which they attest the other."""
    lines = transcript_of(*study, answered_otherwise(steps, 1, tuple(x + 1 for x in steps[1][1])))
    content = b"".join(line.line() for line in lines)
    found = failures(published(release, study[1], TRANSCRIPT, content), tmp_path)
    assert set(found) == {"transcript", "measurements"}
    assert "has other requests or answers than S1 attests" in found["transcript"]
    assert "step 1: values" in found["measurements"]


def test_another_number_of_steps_than_attested_is_found(
    study: tuple[Manifest, Keys], release: ExampleRelease, tmp_path: Path
) -> None:
    first, *others = release.certificate.attestations
    document = first.document.model_copy(update={"steps": first.document.steps + 1})
    signed = Signed[Attestation].by(document, "S1", study[1]["S1"].signing)
    certificate = Certificate(**dict(release.certificate) | {"attestations": (signed, *others)})
    found = failures(ExampleRelease(certificate, release.files), tmp_path)
    assert set(found) == {"agreement", "transcript"}
    assert f"has {document.steps - 1} steps, but S1 attests {document.steps}" in found["transcript"]


def test_a_run_that_stopped_early_is_not_a_whole_one(
    study: tuple[Manifest, Keys], steps: Steps, tmp_path: Path
) -> None:
    found = failures(example_release(*study, transcript=transcript_of(*study, steps[:-1])), tmp_path)
    assert set(found) == {"steps", "charges"}
    assert f"after {len(steps) - 1} steps the run has not ended; due now: round" in found["steps"]


def test_a_statement_of_another_sum_is_found(study: tuple[Manifest, Keys], tmp_path: Path) -> None:
    account = honest_walk(study[0])[0]
    honest = account.statement()
    for name, value in (
        ("rho_spent", honest.rho_spent / 2),
        ("eta", honest.eta / 2),
        ("releases", (replace(honest.releases[0], count=1), *honest.releases[1:])),
    ):
        found = failures(example_release(*study, statement=replace(honest, **{name: value})), tmp_path)
        assert set(found) <= {"charges", "privacy statement", "guarantee", "assumptions", "noise"}
        assert f"S1 attests {name} = " in found["charges"], found


def test_measurements_that_do_not_follow_are_found(
    study: tuple[Manifest, Keys], release: ExampleRelease, tmp_path: Path
) -> None:
    document = json.loads(release.files[MEASUREMENTS])
    last = len(document["measurements"]) - 1
    for place, other in edits(document):
        if place[0] == "measurements" and place[1] != last:
            continue
        found = failures(published(release, study[1], MEASUREMENTS, canonical.dump(other)), tmp_path)
        assert set(found) == {"measurements"}, place
        if place[0] == "measurements":
            step = document["measurements"][last]["step"]
            assert f"{tmp_path / MEASUREMENTS}: step {step}: " in found["measurements"], place
    for listed, words in (
        (document["measurements"][:-1], "is missing"),
        ([*document["measurements"], document["measurements"][0]], "more measurements than"),
    ):
        content = canonical.dump({**document, "measurements": listed})
        assert words in failures(published(release, study[1], MEASUREMENTS, content), tmp_path)["measurements"]
    for content in (b"[]", b"nothing", b"{}", b'{"measurements":[1]}'):
        assert failures(published(release, study[1], MEASUREMENTS, content), tmp_path).keys() == {"measurements"}


def test_a_charge_waits_for_the_answer_before(study: tuple[Manifest, Keys], steps: Steps) -> None:
    account = Account(study[0], [holder.name for holder in study[0].holders])
    with pytest.raises(DomainError, match="no step is waiting"):
        account.answered(0)
    account.charge(account.check(Compute()))
    assert not account.ended
    assert account.due == "the answer to step 0"
    account.answered((1, 1))
    account.check(steps[1][0])
    assert (account.steps, account.filter.spent) == (1, 0)  # to check changes nothing
