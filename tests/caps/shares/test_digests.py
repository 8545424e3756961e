"""Keyed digests, of small messages and large ones."""

from __future__ import annotations

import numpy as np
import pytest

from caps.shares.digests import Digests


@pytest.mark.parametrize("size", [0, 40, 4095, 4096, 5000])
def test_a_digest_depends_on_the_key_the_label_the_length_and_every_byte(size: int) -> None:
    digests = Digests(bytes(64))
    message = bytearray(np.random.default_rng(size).bytes(size))
    seen = {digests.of(b"/a", memoryview(message)), digests.of(b"/b", memoryview(message))}
    seen.add(digests.of(b"/a", memoryview(message + b"\0")))
    seen.add(Digests(bytes(63) + b"\1").of(b"/a", memoryview(message)))
    for place in range(0, size, 7):
        message[place] ^= 4
        seen.add(digests.of(b"/a", memoryview(message)))
        message[place] ^= 4
    assert len(seen) == 4 + len(range(0, size, 7))


@pytest.mark.parametrize("size", [0, 40, 5000])
def test_two_that_share_a_secret_have_the_same_digests(size: int) -> None:
    assert Digests(b"secret").of(b"/a", bytes(size)) == Digests(b"secret").of(b"/a", memoryview(bytearray(size)))


def test_label_and_message_are_told_apart() -> None:
    digests = Digests(b"secret")
    assert digests.of(b"/ab", b"c") != digests.of(b"/a", b"bc")
