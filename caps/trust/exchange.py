"""Keys that a server makes for one study, and the secret that two servers derive from their keys and random draws.

A key is a pair of an X25519 and an ML-KEM-768 (FIPS 203) key, and the agreement uses both: the two servers' secret
stays secret if either scheme is secure. Each server also draws a secret for the other, encapsulated to its ML-KEM key,
so that the shared secret cannot be derived from the keys alone. Public keys and ciphertexts only travel between these
two servers; what others sign and publish is a digest of the public keys.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from hashlib import sha256

from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from caps.errors import DomainError

SECRET_BYTES = 32
PRIVATE_BYTES = 32 + 64
PUBLIC_BYTES = 32 + 1184
CIPHERTEXT_BYTES = 1088 + 32
_CURVE_BYTES = 32
_CHECK_BYTES = 32
_DIGEST_LABEL = b"caps/v1/exchange-key\0"
_PAIR_LABEL = b"caps/v1/run-pair-secret\0"
_CHECK_LABEL = b"caps/v1/exchange-check\0"


@dataclass(frozen=True, repr=False)
class ExchangeKey:
    """The private keys of one server in one study."""

    curve: X25519PrivateKey
    lattice: MLKEM768PrivateKey

    @classmethod
    def generate(cls) -> ExchangeKey:
        """A fresh pair of keys."""
        return cls(X25519PrivateKey.generate(), MLKEM768PrivateKey.generate())

    @classmethod
    def from_bytes(cls, private: bytes) -> ExchangeKey:
        """The inverse of `to_bytes`."""
        curve, lattice = private[:_CURVE_BYTES], private[_CURVE_BYTES:]
        return cls(X25519PrivateKey.from_private_bytes(curve), MLKEM768PrivateKey.from_seed_bytes(lattice))

    def to_bytes(self) -> bytes:
        """PRIVATE_BYTES: the X25519 key and the seed of the ML-KEM key."""
        return self.curve.private_bytes_raw() + self.lattice.private_bytes_raw()

    @property
    def public(self) -> bytes:
        """PUBLIC_BYTES: both public keys, X25519 first."""
        return self.curve.public_key().public_bytes_raw() + self.lattice.public_key().public_bytes_raw()


@dataclass(frozen=True, repr=False)
class Drawn:
    """What a server draws for a peer: a secret, and the ciphertext of CIPHERTEXT_BYTES from which the peer learns it.

    An altered ML-KEM ciphertext decapsulates to another secret without an error, so a check of the secret follows it.
    """

    secret: bytes
    ciphertext: bytes

    @classmethod
    def of(cls, secret: bytes, encapsulated: bytes) -> Drawn:
        """The draw with this secret and its ML-KEM ciphertext."""
        return cls(secret, encapsulated + _check(secret))


@dataclass(frozen=True, repr=False)
class Received:
    """What a server receives from a peer: its public keys, and the ciphertext of what the peer drew."""

    public: bytes
    ciphertext: bytes


def public_digest(public: bytes) -> str:
    """The digest of public keys that a server signs in its approval, in hexadecimal."""
    return sha256(_DIGEST_LABEL + public).hexdigest()


def draw(public: bytes) -> Drawn:
    """Draw a secret for the owner of these public keys. Raises DomainError if they are not valid."""
    try:
        return Drawn.of(*MLKEM768PublicKey.from_public_bytes(public[_CURVE_BYTES:]).encapsulate())
    except ValueError:
        raise DomainError("not an exchange key") from None


def pair_secret(key: ExchangeKey, drawn: Drawn, received: Received, *, first: bool, scope: bytes) -> bytes:
    """The 32 bytes that a server shares with a peer for the purpose `scope`; `first`: whether it precedes the peer.

    They follow from what both servers store, so a server can derive them again after a restart. Raises DomainError if
    the public key is not valid, or the ciphertext was altered or is for another key.
    """
    try:
        curve = key.curve.exchange(X25519PublicKey.from_public_bytes(received.public[:_CURVE_BYTES]))
    except ValueError:  # the wrong size, or a point of small order, with which every key agrees on zero
        raise DomainError("not an exchange key") from None
    theirs = _opened(key, received.ciphertext)
    sides = [(drawn.secret, key.public, drawn.ciphertext), (theirs, received.public, received.ciphertext)]
    (one, *mine), (other, *its) = sides if first else sides[::-1]
    seen = sha256(b"".join((*mine, *its))).digest()
    return HKDF(SHA256(), SECRET_BYTES, salt=None, info=_PAIR_LABEL + seen + scope).derive(curve + one + other)


def _opened(key: ExchangeKey, ciphertext: bytes) -> bytes:
    try:
        secret = key.lattice.decapsulate(ciphertext[:-_CHECK_BYTES])
    except ValueError:
        raise DomainError("not a ciphertext") from None
    if not hmac.compare_digest(_check(secret), ciphertext[-_CHECK_BYTES:]):
        raise DomainError("a ciphertext that was altered or is for another key")
    return secret


def _check(secret: bytes) -> bytes:
    return HKDF(SHA256(), _CHECK_BYTES, salt=None, info=_CHECK_LABEL).derive(secret)
