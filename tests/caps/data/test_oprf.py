"""The OPRF: RFC 9497's vectors through ristretto255, three keys that make one, what is refused, the order of rows."""

from __future__ import annotations

import secrets

import numpy as np
import pytest
from nacl.bindings import crypto_core_ed25519_from_uniform, crypto_scalarmult_ed25519_noclamp

from caps.data.oprf import (
    Client,
    ServerKey,
    Tags,
    combined,
    element_of,
    expanded,
    inverted,
    output,
    positions,
)
from caps.errors import DomainError, PeerViolation
from tests.kit import ristretto
from tests.kit.ristretto import ORDER

# RFC 9497, appendix A.1.1: its group is ours, in other bytes
LABEL = b"HashToGroup-OPRFV1-\x00-ristretto255-SHA512"
KEY = ServerKey(bytes.fromhex("5ebcea5ee37023ccb9fc2d2019f9d7737be85591ae8652ffa9ef0f4d37063b0e"))
BLIND = bytes.fromhex("64d37aed22a27f5191de1c1d69fadb899d8862b58eb4220029e036ec4c1f6706")
VECTORS = [
    (
        "00",
        "609a0ae68c15a3cf6903766461307e5c8bb2f95e7e6550e1ffa2dc99e412803c",
        "7ec6578ae5120958eb2db1745758ff379e77cb64fe77b0b2d8cc917ea0869c7e",
        "527759c3d9366f277d8c6020418d96bb393ba2afb20ff90df23fb7708264e2f3"
        "ab9135e3bd69955851de4b1f9fe8a0973396719b7912ba9ee8aa7d0b5e24bcf6",
    ),
    (
        "5a" * 17,
        "da27ef466870f5f15296299850aa088629945a17d1f5b7f5ff043f76b3c06418",
        "b4cbf5a4f1eeda5a63ce7b77c7d23f461db3fcab0dd28e4e17cecb5c90d02c25",
        "f4a74c9c592497375e796aa837e907b1a045d34306a749db9f34221f7e750cb4"
        "f2a6413a6bf6fa5e19ba6348eb673934a722a7ede2e7621306d18951e7cf2c73",
    ),
]
INSIDE = ristretto.elligator(1, 0)
TORSION = ristretto.expanded(bytes.fromhex("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a"))
BAD = {
    "identity": (1).to_bytes(32, "little"),
    "identity-with-a-sign": (1 | 1 << 255).to_bytes(32, "little"),
    "identity-not-reduced": (ristretto.P + 1).to_bytes(32, "little"),
    "order-2": (ristretto.P - 1).to_bytes(32, "little"),
    "order-4": bytes(32),
    "order-8": ristretto.compressed(TORSION),
    **{
        f"inside-and-order-{8 // times}": ristretto.compressed(
            ristretto.add(INSIDE, ristretto.multiply(times, TORSION))
        )
        for times in (1, 2, 4)
    },
    "not-on-the-curve": (2).to_bytes(32, "little"),
    "not-reduced": (ristretto.P + 3).to_bytes(32, "little"),
    "ones": b"\xff" * 32,
}


def some_ids(count: int) -> Tags:
    return np.frombuffer(secrets.token_bytes(16 * count), np.uint8).reshape(count, 16)


def scalar(number: int) -> bytes:
    return (number % ORDER).to_bytes(32, "little")


def three_keys() -> list[ServerKey]:
    return [ServerKey.fresh() for _ in range(3)]


def tags_of(ids: Tags, keys: list[ServerKey], client: Client | None = None) -> Tags:
    client = client or Client.fresh()
    batch = client.blind(ids)
    return client.finalise(ids, [key.evaluate(batch) for key in keys])


def ours(element: str) -> bytes:
    """An element of ristretto255 in our group."""
    return ristretto.compressed(ristretto.decode(bytes.fromhex(element)))


def theirs(element: bytes) -> str:
    return ristretto.encode(ristretto.expanded(element)).hex()


@pytest.mark.parametrize(("given", "element", "evaluated", "out"), VECTORS)
def test_vectors_of_the_rfc(given: str, element: str, evaluated: str, out: str) -> None:
    content = bytes.fromhex(given)
    hashed = ristretto.compressed(ristretto.from_uniform(expanded(content, LABEL)))
    assert theirs(crypto_scalarmult_ed25519_noclamp(BLIND, hashed)) == element
    assert theirs(KEY.evaluate(ours(element))) == evaluated
    unblinded = crypto_scalarmult_ed25519_noclamp(*inverted([BLIND]), ours(evaluated))
    assert output(content, bytes.fromhex(theirs(unblinded))).hex() == out


@pytest.mark.parametrize(("given", "element", "evaluated", "out"), VECTORS)
def test_vectors_of_the_rfc_under_a_distributed_key(given: str, element: str, evaluated: str, out: str) -> None:
    first, second = ServerKey.fresh(), ServerKey.fresh()
    whole, one, two = (int.from_bytes(key.scalar, "little") for key in (KEY, first, second))
    keys = [first, second, ServerKey(scalar(whole - one - two))]
    sums = combined([key.evaluate(ours(element)) for key in keys], 1)
    assert theirs(sums) == evaluated


def test_an_element_is_the_sum_of_two_images_in_the_subgroup() -> None:
    for content in (b"", b"a", secrets.token_bytes(40)):
        uniform = expanded(content, b"HashToGroup-caps/v2/oprf/OPRFV1-\x00-edwards25519-SHA512")
        halves = (int.from_bytes(half, "little") for half in (uniform[:32], uniform[32:]))
        images = [ristretto.elligator(half % 2**255, half >> 255) for half in halves]
        element = ristretto.add(*images)
        assert element_of(content) == ristretto.compressed(element)
        assert ristretto.multiply(ORDER, element) == (0, 1)


def test_images_are_elligators() -> None:
    """Both signs, both branches, and what is not below the field's order."""
    for number in (0, 1, 2, 3, 4, 5, ristretto.P - 1, ristretto.P + 2, secrets.randbelow(2**255)):
        for sign in (0, 1):
            image = crypto_core_ed25519_from_uniform((number | sign << 255).to_bytes(32, "little"))
            assert image == ristretto.compressed(ristretto.elligator(number, sign)), (number, sign)


def test_tags_are_those_of_direct_evaluation() -> None:
    ids, keys = some_ids(5), three_keys()
    whole = scalar(sum(int.from_bytes(key.scalar, "little") for key in keys))
    direct = [output(row, crypto_scalarmult_ed25519_noclamp(whole, element_of(row)))[:16] for row in map(bytes, ids)]
    assert tags_of(ids, keys).tobytes() == b"".join(direct)


def test_inverses() -> None:
    numbers = [1, 2, ORDER - 1, *(1 + secrets.randbelow(ORDER - 1) for _ in range(4))]
    for count in range(len(numbers) + 1):
        found = inverted([scalar(number) for number in numbers[:count]])
        assert found == [scalar(pow(number, -1, ORDER)) for number in numbers[:count]]


def test_holders_agree_and_elements_do_not() -> None:
    ids, keys = some_ids(4), three_keys()
    one, other = Client.fresh(), Client.fresh()
    assert (tags_of(ids, keys, one) == tags_of(ids[::-1], keys, other)[::-1]).all()
    both = one.blind(ids) + other.blind(ids) + one.blind(np.repeat(ids[:1], 3, axis=0), first=4)
    elements = {both[at : at + 32] for at in range(0, len(both), 32)}
    assert len(elements) == 11


def test_tags_depend_on_every_servers_key() -> None:
    ids, keys = some_ids(1), three_keys()
    tags = {tags_of(ids, keys).tobytes()}
    for server in range(3):
        tags.add(tags_of(ids, [ServerKey.fresh() if at == server else key for at, key in enumerate(keys)]).tobytes())
    assert len(tags) == 4
    assert tags_of(ids, keys[::-1]).tobytes() in tags


def test_batches_can_be_repeated_and_cut_otherwise() -> None:
    ids, keys, client = some_ids(7), three_keys(), Client.fresh()
    whole = client.blind(ids)
    assert whole == client.blind(ids[:3]) + client.blind(ids[3:], first=3)
    assert whole == Client(client.seed).blind(ids)
    assert keys[0].evaluate(whole) == keys[0].evaluate(whole[:64]) + keys[0].evaluate(whole[64:])
    tags = client.finalise(ids, [key.evaluate(whole) for key in keys])
    rest = client.finalise(ids[3:], [key.evaluate(whole[96:]) for key in keys], first=3)
    assert (tags[3:] == rest).all()
    assert client.blind(ids[:0]) == b"" == keys[0].evaluate(b"")
    assert client.finalise(ids[:0], [b""] * 3).shape == (0, 16)


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_bad_elements_are_refused_and_blamed(bad: bytes) -> None:
    ids, keys, client = some_ids(2), three_keys(), Client.fresh()
    batch = client.blind(ids)
    with pytest.raises(DomainError, match="element 1"):
        keys[0].evaluate(batch[:32] + bad)
    for server in range(3):
        answers = [key.evaluate(batch) for key in keys]
        answers[server] = answers[server][:32] + bad
        with pytest.raises(PeerViolation, match=f"S{server + 1}"):
            client.finalise(ids, answers)


def test_what_does_not_fit_is_refused() -> None:
    ids, keys, client = some_ids(2), three_keys(), Client.fresh()
    batch = client.blind(ids)
    answers = [key.evaluate(batch) for key in keys]
    with pytest.raises(DomainError, match="32 bytes"):
        keys[0].evaluate(batch[:-1])
    with pytest.raises(PeerViolation, match="S2"):
        client.finalise(ids, [answers[0], answers[1][:32], answers[2]])
    with pytest.raises(DomainError, match="one from each"):
        client.finalise(ids, answers[:2])
    with pytest.raises(DomainError, match="rows of bytes"):
        client.blind(ids.astype(np.int64))
    with pytest.raises(DomainError, match="at most"):
        output(bytes(1 << 16), bytes(32))
    one, two = keys[0], keys[1]
    opposite = ServerKey(scalar(-int.from_bytes(one.scalar, "little") - int.from_bytes(two.scalar, "little")))
    with pytest.raises(DomainError, match="cancel"):
        tags_of(ids, [one, two, opposite])


@pytest.mark.parametrize(
    "key", [b"", bytes(32), bytes(31), b"\1" + bytes(32), ORDER.to_bytes(32, "little"), b"\xff" * 32]
)
def test_what_is_no_key(key: bytes) -> None:
    with pytest.raises(DomainError, match="scalar"):
        ServerKey(key)


def test_secrets_do_not_show() -> None:
    key, client = ServerKey.fresh(), Client.fresh()
    for secret, shown in ((key.scalar, repr(key)), (client.seed, repr(client))):
        assert repr(secret) not in shown
        assert secret.hex() not in shown
    with pytest.raises(DomainError, match="seed"):
        Client(b"short")


def test_positions_refuse_what_they_cannot_place() -> None:
    tags = some_ids(4)
    with pytest.raises(DomainError, match="more distinct rows"):
        positions({"a": tags[:2], "b": tags[1:]}, bytes(32), size=3)
    with pytest.raises(DomainError, match=r"^b sent 1 repeated tags"):
        positions({"a": tags, "b": tags[[0, 1, 0]]}, bytes(32), size=9)
    with pytest.raises(DomainError, match="of a must be"):
        positions({"a": tags[:, :8]}, bytes(32), size=9)
    with pytest.raises(DomainError, match="no holders"):
        positions({}, bytes(32), size=9)
    with pytest.raises(DomainError, match="key"):
        positions({"a": tags}, b"", size=9)
    none = positions({"a": tags[:0], "b": tags}, bytes(32), size=4)
    assert none.positions["a"].tolist() == []
    assert not none.everywhere.any()


def test_positions_spread_over_the_padding() -> None:
    """A holder's places say nothing about how many of them are in use: with 8 of 4096, they are anywhere."""
    tags = some_ids(8)
    seen = [positions({"a": tags}, secrets.token_bytes(32), size=4096).positions["a"] for _ in range(100)]
    middle = float(np.mean(seen))
    assert abs(middle - 2047.5) < 8 * 4096 / np.sqrt(12 * 800)
    assert len({tuple(one) for one in seen}) == 100


def test_another_tag_makes_another_order_though_ranks_stay() -> None:
    tags = np.zeros((32, 16), np.uint8)
    tags[:, 0] = np.arange(32)
    changed = tags.copy()
    changed[31, 15] = 1
    one, other = (positions({"a": given}, bytes(32), size=64).positions["a"] for given in (tags, changed))
    assert (one[:31] != other[:31]).any()
