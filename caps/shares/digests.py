"""Keyed digests of messages, for two parties that compare what they have without showing it to others."""

from __future__ import annotations

import hashlib

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

DIGEST_BYTES = 16
_PERSON = b"caps/v1/digests"
_LARGE_BYTES = 1 << 12
"""From this size on, GMAC and a digest of its tag are faster than the digest alone."""
_NONCE = bytes(12)


class Digests:
    """Digests under a secret. Who does not know it can neither compute one nor find two messages that have the same.

    A large message is first hashed by GMAC, a universal hash: its key is secret and its tag never leaves the party, so
    that the nonce need not change.
    """

    def __init__(self, secret: bytes) -> None:
        expanded = hashlib.blake2b(secret, person=_PERSON).digest()
        self._key, self._hash_key = expanded[:32], expanded[32:48]

    def of(self, label: bytes, message: memoryview | bytes) -> int:
        """The digest of a message, which is of 16 bytes, as a number; `label` says what the message is."""
        head = len(label).to_bytes(4, "little") + len(message).to_bytes(8, "little") + label
        if len(message) >= _LARGE_BYTES:
            hashing = Cipher(algorithms.AES(self._hash_key), modes.GCM(_NONCE)).encryptor()
            hashing.authenticate_additional_data(message)
            hashing.finalize()
            head += hashing.tag
        else:
            head += message
        return int.from_bytes(hashlib.blake2b(head, key=self._key, digest_size=DIGEST_BYTES).digest(), "little")
