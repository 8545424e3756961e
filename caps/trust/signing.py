"""Signatures on documents.

A document is signed as canonical JSON together with its type, so a signature on one kind of document is not valid for
another. Keys are Ed25519.
"""

from __future__ import annotations

from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from caps.basics import canonical
from caps.basics.files import write_private
from caps.errors import DomainError, LocalError

SigningKey = Ed25519PrivateKey


class SignatureRefused(LocalError):
    """A document's signature is not that of its expected signer."""


def generate_signing_key() -> SigningKey:
    """A fresh Ed25519 key."""
    return Ed25519PrivateKey.generate()


def public_hex(key: SigningKey) -> str:
    """The public key as manifests write it: 64 hexadecimal digits."""
    return key.public_key().public_bytes_raw().hex()


def write_signing_key(path: Path, key: SigningKey) -> None:
    """Write a signing key as PKCS #8 PEM that only its owner may read. An existing file is never overwritten."""
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    write_private(path, pem)


def read_signing_key(path: Path) -> SigningKey:
    """Read a signing key that `write_signing_key` wrote. Raises DomainError if the file is not one."""
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: the key has a password
        raise DomainError(f"{path}: not a private key in PEM") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise DomainError(f"{path}: not an Ed25519 key")
    return key


def sign(key: SigningKey, kind: str, document: object) -> str:
    """The signature of a document of this kind, in hexadecimal."""
    return key.sign(_signed_bytes(kind, document)).hex()


def verify(public_key: str, kind: str, document: object, signature: str) -> None:
    """Raises SignatureRefused unless the owner of this key signed this document as this kind."""
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key))
        key.verify(bytes.fromhex(signature), _signed_bytes(kind, document))
    except (InvalidSignature, ValueError):
        raise SignatureRefused(f"the signature on this {kind} is not its signer's") from None


def _signed_bytes(kind: str, document: object) -> bytes:
    return canonical.dump({"type": f"caps/v1/{kind}", "document": document})
