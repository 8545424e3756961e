"""Keyed digests by which two parties compare messages: to anybody without the key they are random words."""

from __future__ import annotations

import hashlib

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

DIGEST_BYTES = 16
_PERSON = b"caps/v1/rep4"
_LARGE_BYTES = 1 << 12
"""From this size on, GMAC and a digest of its tag are faster than the digest alone."""
_NONCE = bytes(12)


class Digests:
    """Keyed digests of messages. Two parties have the keys, so to the others a digest is a random word.

    A large message is first hashed by GMAC, a universal hash: its key is secret and its tag never leaves the party, so
    that the nonce need not change.
    """

    def __init__(self, secret: bytes) -> None:
        expanded = hashlib.blake2b(secret, person=_PERSON).digest()
        self._key, self._hash_key = expanded[:32], expanded[32:48]

    def of(self, label: bytes, message: memoryview | bytes) -> int:
        """The digest of a message of a step."""
        head = len(label).to_bytes(4, "little") + len(message).to_bytes(8, "little") + label
        if len(message) >= _LARGE_BYTES:
            hashing = Cipher(algorithms.AES(self._hash_key), modes.GCM(_NONCE)).encryptor()
            hashing.authenticate_additional_data(message)
            hashing.finalize()
            head += hashing.tag
        else:
            head += message
        return int.from_bytes(hashlib.blake2b(head, key=self._key, digest_size=DIGEST_BYTES).digest(), "little")
