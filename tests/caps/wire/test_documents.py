"""Documents about a study: who signed what, and commitments that hide."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from caps.basics import canonical
from caps.errors import DomainError
from caps.shares.ring import SHARED_RINGS
from caps.trust.signing import SignatureRefused, sign
from caps.wire.documents import (
    Approval,
    Commitment,
    Contribution,
    Offer,
    Opening,
    Receipt,
    Seal,
    Signed,
    commitment,
    inputs_digest,
)
from caps.wire.steps import Answer, transcript_digest
from tests.kit.study import AT, COLUMNS, MIXED, approvals_of, contribution_of, example_manifest

RUN, REQUEST = "0" * 32, "00" * 32


def test_a_signed_document_travels_and_verifies() -> None:
    manifest, keys = example_manifest()
    for signed in approvals_of(manifest, keys):
        again = Signed[Approval].model_validate_json(canonical.dump(signed.to_json()))
        assert again == signed
        party = manifest.server(signed.signer) if signed.signer.startswith("S") else manifest.holder(signed.signer)
        assert again.verify(party) == signed.document


def test_an_altered_document_is_refused() -> None:
    manifest, keys = example_manifest()
    signed = approvals_of(manifest, keys)[0]
    for name, value in (("study", "00" * 32), ("exchange_digest", "11" * 32), ("at", "2030-05-17T12:00:01Z")):
        document = Approval(**dict(signed.document) | {name: value})
        other = Signed[Approval](document=document, signer=signed.signer, signature=signed.signature)
        with pytest.raises(SignatureRefused):
            other.verify(manifest.servers[0])


def test_another_signer_is_refused() -> None:
    manifest, keys = example_manifest()
    signed = approvals_of(manifest, keys)[0]
    with pytest.raises(SignatureRefused, match="another signer than S2"):
        signed.verify(manifest.servers[1])
    posing = Signed[Approval](document=signed.document, signer="S2", signature=signed.signature)
    with pytest.raises(SignatureRefused):
        posing.verify(manifest.servers[1])


def test_a_signature_on_another_kind_is_worth_nothing() -> None:
    """A receipt's members signed as a seal do not make a receipt."""
    manifest, keys = example_manifest()
    receipt = Receipt(
        study=manifest.study_id, contribution=REQUEST, holder="clinic-a", server="S1", event="accepted", at=AT
    )
    signature = sign(keys["S1"].signing, Seal.kind, receipt.to_json())
    with pytest.raises(SignatureRefused):
        Signed[Receipt](document=receipt, signer="S1", signature=signature).verify(manifest.servers[0])
    good = Signed[Receipt].by(receipt, "S1", keys["S1"].signing)
    assert good.verify(manifest.servers[0]) == receipt
    with pytest.raises(ValidationError):
        Signed[Seal].model_validate_json(canonical.dump(good.to_json()))


def test_kinds_and_digests_differ() -> None:
    kinds = [Approval, Contribution, Receipt, Seal, Answer]
    assert len({kind.kind for kind in kinds}) == len(kinds)
    one = Answer(study=REQUEST, run=RUN, step=0, request=REQUEST, value=1)
    two = Answer(study=REQUEST, run=RUN, step=0, request=REQUEST, value=(1,))
    assert one.digest() != two.digest()


@pytest.mark.parametrize("at", ["2030-05-17 12:00:00Z", "2030-05-17T12:00:00", "2030-05-17T12:00:00+01:00", "now", ""])
def test_times_are_utc(at: str) -> None:
    with pytest.raises(ValidationError):
        Approval(study=REQUEST, role="holder", at=at)


def test_a_commitment_depends_on_the_nonce_and_the_content() -> None:
    """So a server that lacks the nonce cannot test a guess of a component, even of a seed it could enumerate."""
    nonces, contents = [bytes([i]) * 32 for i in range(4)], [b"", b"\0", b"seed", b"seed\0"]
    found = {commitment(nonce, content) for nonce in nonces for content in contents}
    assert len(found) == len(nonces) * len(contents)
    with pytest.raises(DomainError, match="32 bytes"):
        commitment(b"short", b"seed")


def test_a_commitment_to_pieces_is_that_to_the_whole() -> None:
    nonce, content = bytes(range(32)), bytes(range(256)) * 5
    pieces = Commitment(nonce)
    for start in range(0, len(content), 100):
        pieces.update(memoryview(content)[start : start + 100])
    assert pieces.hex() == commitment(nonce, content)
    assert pieces.opens(commitment(nonce, content))
    assert not pieces.opens(commitment(nonce, content[:-1]))
    assert not pieces.opens(commitment(bytes(32), content))


def test_contributions_must_be_what_the_manifest_expects() -> None:
    manifest, _ = example_manifest(holders=MIXED)
    rows, columns = manifest.holder("clinic-a"), manifest.holder("lab")
    for holder in manifest.holders:
        contribution_of(manifest, holder).check(manifest)
    wrong: list[tuple[Any, dict[str, Any]]] = [
        (rows, {"study": REQUEST}),
        (rows, {"holder": "nobody"}),
        (rows, {"form": "columns"}),
        (rows, {"shape": (manifest.layout.cells + 1,)}),
        (rows, {"shape": (1, manifest.layout.cells)}),
        (rows, {"bits": 16}),
        (columns, {"bits": 32}),
        (columns, {"bits": 24}),
        (columns, {"shape": (64, 6)}),
        (columns, {"shape": (63, 7)}),
        (columns, {"holder": "registry"}),
    ]
    for holder, changes in wrong:
        with pytest.raises(DomainError):
            contribution_of(manifest, holder, **changes).check(manifest)


def test_the_slots_alone_decide_how_wide_the_words_of_columns_are() -> None:
    for slots, bits in ((65_535, 16), (65_536, 24)):
        manifest, _ = example_manifest(holders=COLUMNS, slots=slots)
        for holder in manifest.holders:
            form = manifest.form_of(holder)
            assert (form.form, form.bits) == ("columns", bits)
            assert form.bytes == form.shape[0] * form.shape[1] * bits // 8
            assert form.held_bytes == form.shape[0] * form.shape[1] * SHARED_RINGS[bits].dtype.itemsize
            assert contribution_of(manifest, holder).vector_bytes == form.bytes
            contribution_of(manifest, holder).check(manifest)
            with pytest.raises(DomainError, match=f"in {bits} bits"):
                contribution_of(manifest, holder, bits=40 - bits).check(manifest)


def test_chunks_cover_the_vector() -> None:
    manifest, _ = example_manifest(holders=COLUMNS, slots=1000)
    one = contribution_of(manifest, manifest.holder("lab"), chunk_bytes=1024)
    assert (one.vector_bytes, one.chunks) == (14_000, 14)
    assert contribution_of(manifest, manifest.holder("lab"), chunk_bytes=14_000).chunks == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"bits": 64},
        {"shape": ()},
        {"shape": (0,)},
        {"shape": (1, 2, 3)},
        {"commitments": ("00" * 32,) * 2},
        {"chunk_bytes": 10},
        {"form": "codes"},
    ],
)
def test_contributions_have_a_form(changes: dict[str, Any]) -> None:
    manifest, _ = example_manifest()
    with pytest.raises(ValidationError):
        contribution_of(manifest, manifest.holders[0], **changes)


@pytest.mark.parametrize(("scheme", "held"), [("rep3", 2), ("rep3-active", 2), ("rep4", 3)])
def test_offers_have_as_many_openings_as_the_scheme_gives_a_server(scheme: str, held: int) -> None:
    manifest, keys = example_manifest(scheme=scheme)
    signed = Signed[Contribution].by(
        contribution_of(manifest, manifest.holders[0]), "clinic-a", keys["clinic-a"].signing
    )
    openings = [Opening(component=i, nonce=REQUEST, seed=REQUEST) for i in range(4)]
    offer = Offer(contribution=signed, openings=tuple(openings[:held]))
    assert Offer.model_validate_json(canonical.dump(offer.to_json())) == offer
    for others in (openings[:1], openings[: held - 1], openings[: held + 1], openings):
        with pytest.raises(ValidationError):
            Offer(contribution=signed, openings=tuple(others))
    absent = Opening(component=3, nonce=REQUEST)
    if held == 2:
        with pytest.raises(ValidationError, match="2 of 3 components"):
            Offer(contribution=signed, openings=(openings[0], absent))
    with pytest.raises(ValidationError):
        Opening(component=4, nonce=REQUEST)


@pytest.mark.parametrize(("mine", "demanded"), [("rep3", "rep4"), ("rep4", "rep3")])
def test_a_contribution_shared_for_another_scheme_is_refused(mine: str, demanded: str) -> None:
    """As an older holder would send it: it knows the study but not how its values are shared."""
    manifest, _ = example_manifest(scheme=demanded)
    other, _ = example_manifest(scheme=mine)
    commitments = contribution_of(other, other.holders[0]).commitments
    contribution = contribution_of(manifest, manifest.holders[0], commitments=commitments)
    with pytest.raises(DomainError, match=f"in {demanded} has {manifest.sharing.components} commitments"):
        contribution.check(manifest)


def test_the_order_of_contributions_plays_no_part() -> None:
    one, two = "11" * 32, "22" * 32
    assert inputs_digest(REQUEST, [one, two]) == inputs_digest(REQUEST, [two, one])
    assert inputs_digest(REQUEST, [one]) != inputs_digest(REQUEST, [one, two])
    assert inputs_digest("33" * 32, [one]) != inputs_digest(REQUEST, [one])


def test_the_order_of_steps_does() -> None:
    one, two = "11" * 32, "22" * 32
    assert transcript_digest(transcript_digest(REQUEST, one, one), two, two) != transcript_digest(
        transcript_digest(REQUEST, two, two), one, one
    )
    assert transcript_digest(REQUEST, one, two) != transcript_digest(REQUEST, two, one)
