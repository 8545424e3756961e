"""The secret of two servers: of both kinds of keys, of what both drew, of all that they saw, and of one scope."""

from __future__ import annotations

from dataclasses import replace

import pytest

from caps.errors import DomainError
from caps.trust import exchange
from caps.trust.exchange import CIPHERTEXT_BYTES, PRIVATE_BYTES, PUBLIC_BYTES, Drawn, ExchangeKey, Received


class Two:
    """Two servers that have drawn for each other."""

    def __init__(self) -> None:
        self.keys = [ExchangeKey.generate(), ExchangeKey.generate()]
        self.drawn = [exchange.draw(self.keys[1].public), exchange.draw(self.keys[0].public)]

    def received(self, party: int) -> Received:
        return Received(self.keys[1 - party].public, self.drawn[1 - party].ciphertext)

    def secret(self, party: int, scope: bytes = b"study", **changed: object) -> bytes:
        parts = {"key": self.keys[party], "drawn": self.drawn[party], "received": self.received(party)} | changed
        return exchange.pair_secret(**parts, first=party == 0, scope=scope)  # type: ignore[arg-type]


@pytest.fixture
def two() -> Two:
    return Two()


def test_both_derive_one_secret_for_each_scope(two: Two) -> None:
    assert two.secret(0) == two.secret(1)
    assert len(two.secret(0)) == 32
    assert two.secret(0, b"other") == two.secret(1, b"other") != two.secret(0)


def test_it_follows_from_what_is_kept(two: Two) -> None:
    stored = two.keys[0].to_bytes()
    assert len(stored) == PRIVATE_BYTES
    again = ExchangeKey.from_bytes(stored)
    assert (len(again.public), again.public) == (PUBLIC_BYTES, two.keys[0].public)
    assert two.secret(0, key=again) == two.secret(0)


def test_neither_kind_of_key_is_enough(two: Two) -> None:
    """Who breaks one of them, and has seen everything, has another secret for every guess of the rest."""
    guessed = ExchangeKey(ExchangeKey.generate().curve, two.keys[0].lattice)
    assert two.secret(0, key=guessed) != two.secret(0), (
        "with ML-KEM broken: the public key differs, and what they agree on"
    )
    assert two.secret(0, drawn=replace(two.drawn[0], secret=bytes(32))) != two.secret(0), "with X25519 broken"
    with pytest.raises(DomainError, match="for another"):
        two.secret(0, key=ExchangeKey(two.keys[0].curve, ExchangeKey.generate().lattice))


def test_keys_alone_do_not_give_it() -> None:
    """The same keys and another draw of either server: another secret."""
    one = Two()
    before = one.secret(0)
    one.drawn[1] = exchange.draw(one.keys[0].public)
    between = one.secret(0)
    one.drawn[0] = exchange.draw(one.keys[1].public)
    assert len({before, between, one.secret(0)}) == 3
    assert one.secret(0) == one.secret(1)


def test_all_that_is_seen_is_part_of_it(two: Two) -> None:
    """Each of the two must have seen the same, also of the other's public keys."""
    others = ExchangeKey.generate()
    public = two.keys[1].public[:32] + others.public[32:]
    assert two.secret(0, received=replace(two.received(0), public=public)) != two.secret(0)
    drawn = Drawn(two.drawn[0].secret, exchange.draw(others.public).ciphertext)
    assert two.secret(0, drawn=drawn) != two.secret(0)


@pytest.mark.parametrize("position", [0, 1087, 1088, CIPHERTEXT_BYTES - 1])
def test_an_altered_ciphertext_is_refused(two: Two, position: int) -> None:
    sent = bytearray(two.drawn[1].ciphertext)
    sent[position] ^= 1
    with pytest.raises(DomainError, match="altered"):
        two.secret(0, received=replace(two.received(0), ciphertext=bytes(sent)))


def test_a_ciphertext_for_another_is_refused(two: Two) -> None:
    foreign = exchange.draw(ExchangeKey.generate().public).ciphertext
    with pytest.raises(DomainError, match="for another"):
        two.secret(0, received=replace(two.received(0), ciphertext=foreign))


def test_a_digest_is_of_both_public_keys(two: Two) -> None:
    public = two.keys[0].public
    digests = {exchange.public_digest(public[:i] + bytes([public[i] ^ 1]) + public[i + 1 :]) for i in (0, 31, 32, 1215)}
    assert len(digests | {exchange.public_digest(public)}) == 5


@pytest.mark.parametrize("public", [b"", b"\1" * 31, bytes(32) + b"\xff" * 1184, bytes(PUBLIC_BYTES - 1)])
def test_nothing_is_drawn_for_what_is_no_key(public: bytes) -> None:
    with pytest.raises(DomainError, match="exchange key"):
        exchange.draw(public)


@pytest.mark.parametrize("point", [bytes(32), b"\1" + bytes(31)])
def test_points_of_small_order_are_refused(two: Two, point: bytes) -> None:
    public = point + two.keys[1].public[32:]
    with pytest.raises(DomainError, match="exchange key"):
        two.secret(0, received=replace(two.received(0), public=public))


@pytest.mark.parametrize("size", [0, CIPHERTEXT_BYTES - 1, CIPHERTEXT_BYTES + 1])
def test_a_ciphertext_has_one_length(two: Two, size: int) -> None:
    with pytest.raises(DomainError, match="ciphertext"):
        two.secret(0, received=replace(two.received(0), ciphertext=bytes(size)))
