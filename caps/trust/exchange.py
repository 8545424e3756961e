"""Keys that a server makes for one study, and the secret that two servers derive from theirs and from what they draw.

A key is a pair, X25519 and ML-KEM-768 (FIPS 203), and so is what it agrees on: the secret of two servers stays secret
if either holds. Each also draws a secret for the other, encapsulated to its ML-KEM key, so that nobody can derive what
they share from keys alone. Public keys and ciphertexts travel between the two and nowhere else; what others sign and
publish is a digest of the public keys.
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
        """Fresh ones."""
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
    """What a server draws for a peer: a secret, and the ciphertext by which the peer learns it, CIPHERTEXT_BYTES.

    An altered ciphertext of ML-KEM gives another secret and no error, so one is followed by a check of its secret.
    """

    secret: bytes
    ciphertext: bytes

    @classmethod
    def of(cls, secret: bytes, encapsulated: bytes) -> Drawn:
        """A secret and its ciphertext of ML-KEM."""
        return cls(secret, encapsulated + _check(secret))


@dataclass(frozen=True, repr=False)
class Received:
    """What it gets of that peer: its public keys, and the ciphertext of what the peer drew."""

    public: bytes
    ciphertext: bytes


def public_digest(public: bytes) -> str:
    """The digest of public keys that a server signs in its approval, in hexadecimal."""
    return sha256(_DIGEST_LABEL + public).hexdigest()


def draw(public: bytes) -> Drawn:
    """Draw a secret for the owner of these public keys. Raises DomainError if they are none."""
    try:
        return Drawn.of(*MLKEM768PublicKey.from_public_bytes(public[_CURVE_BYTES:]).encapsulate())
    except ValueError:
        raise DomainError("not an exchange key") from None


def pair_secret(key: ExchangeKey, drawn: Drawn, received: Received, *, first: bool, scope: bytes) -> bytes:
    """The 32 bytes that a server shares with a peer, for what `scope` names; `first` is whether it precedes the peer.

    They follow from what both keep, so a server that restarts has them again. Raises DomainError for a public key that
    is none, and for a ciphertext that was altered or is for another key.
    """
    try:
        curve = key.curve.exchange(X25519PublicKey.from_public_bytes(received.public[:_CURVE_BYTES]))
    except ValueError:  # of a wrong size; or a point of small order, with which everybody agrees on zero
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
        raise DomainError("a ciphertext that was altered, or is for another")
    return secret


def _check(secret: bytes) -> bytes:
    return HKDF(SHA256(), _CHECK_BYTES, salt=None, info=_CHECK_LABEL).derive(secret)
