"""Signatures."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from caps.errors import DomainError
from caps.trust import pki, signing

DOCUMENT = {"a": 1, "b": ["x"]}


def test_a_signature_is_of_one_key_one_kind_and_one_document() -> None:
    key, other = signing.generate_signing_key(), signing.generate_signing_key()
    signature = signing.sign(key, "seal", DOCUMENT)
    signing.verify(signing.public_hex(key), "seal", {"b": ["x"], "a": 1}, signature)
    for public, kind, document, signed in (
        (signing.public_hex(other), "seal", DOCUMENT, signature),
        (signing.public_hex(key), "receipt", DOCUMENT, signature),
        (signing.public_hex(key), "seal", {**DOCUMENT, "a": 2}, signature),
        (signing.public_hex(key), "seal", DOCUMENT, "00" * 64),
        (signing.public_hex(key), "seal", DOCUMENT, "no"),
        ("00", "seal", DOCUMENT, signature),
    ):
        with pytest.raises(signing.SignatureRefused, match=kind):
            signing.verify(public, kind, document, signed)


def test_keys_are_written_once_for_their_owner_alone(tmp_path: Path) -> None:
    path, key = tmp_path / "signing-key.pem", signing.generate_signing_key()
    signing.write_signing_key(path, key)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert signing.public_hex(signing.read_signing_key(path)) == signing.public_hex(key)
    with pytest.raises(FileExistsError):
        signing.write_signing_key(path, key)


def test_other_files_are_no_signing_keys(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    pki.write_key(path, pki.generate_key())
    with pytest.raises(DomainError, match="not an Ed25519 key"):
        signing.read_signing_key(path)
    path.write_text("nothing")
    with pytest.raises(DomainError, match="not a private key"):
        signing.read_signing_key(path)
