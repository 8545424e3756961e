"""AES-128 on shares: FIPS 197's own vectors, the whole S-box, and the matrices it is computed with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from caps.errors import ShareError
from caps.shares.ring import PLANE
from services.mpc_server.engine import aes
from services.mpc_server.engine.shares import stack_planes
from services.mpc_server.engine.verbs import BitForm
from services.mpc_server.testing.world import Bits, Failed, World
from tests.kit.cases.join import S_BOX, _gf_times, encrypted, halves, octets, round_keys

pytestmark = pytest.mark.property

VECTORS = {
    "FIPS 197 appendix B": (
        "2b7e151628aed2a6abf7158809cf4f3c",
        "3243f6a8885a308d313198a2e0370734",
        "3925841d02dc09fbdc118597196a0b32",
    ),
    "FIPS 197 appendix C.1": (
        "000102030405060708090a0b0c0d0e0f",
        "00112233445566778899aabbccddeeff",
        "69c4e0d86a7b0430d8cdb78070b4c55a",
    ),
}


async def expand_and_encrypt(ctx: Any, key: Any, low: Any, high: Any) -> Any:
    keys = await aes.expand_key(ctx.step("expand"), key)
    x = await aes.encrypt(ctx.step("encrypt"), stack_planes([low, high]), keys)
    return x.planes(slice(0, 64)), x.planes(slice(64, 128))


def on_shares(key: bytes, blocks: np.ndarray) -> np.ndarray:
    words = World(1).run(expand_and_encrypt, octets(key), *halves(blocks)).value
    return np.stack(words, axis=1).view(np.uint8)


@pytest.mark.parametrize("name", VECTORS)
def test_vectors_of_the_standard(name: str) -> None:
    key, plain, cipher = map(bytes.fromhex, VECTORS[name])
    assert on_shares(key, np.frombuffer(plain, np.uint8).reshape(1, 16)).tobytes() == cipher


def test_key_expansion_of_the_standard() -> None:
    """FIPS 197 appendix A.1: the last round key; the reference of the cases is held to it, too."""
    key = bytes.fromhex(VECTORS["FIPS 197 appendix B"][0])
    last = bytes.fromhex("d014f9a8c9ee2589e13f0cc8b6630ca6")
    assert round_keys(key)[-1] == last

    async def last_key(ctx: Any, key: Any) -> Any:
        return (await aes.expand_key(ctx, key)).keys[-1]

    assert World(1).run(last_key, octets(key)).value.astype(np.uint8).tobytes() == last


@pytest.mark.parametrize("count", [1, 63, 64, 65, 1000])
def test_every_row_of_any_number_is_encrypted(count: int) -> None:
    generator = np.random.default_rng(count)
    key, blocks = generator.bytes(16), generator.integers(0, 256, (count, 16), dtype=np.uint8)
    assert np.array_equal(on_shares(key, blocks), encrypted(key, blocks))


def test_the_whole_s_box() -> None:
    assert S_BOX[:4].tolist() == [0x63, 0x7C, 0x77, 0x7B]
    everything = np.arange(256, dtype=np.uint64)
    assert np.array_equal(World(1).run(aes.sub_bytes, Bits(everything, 8)).value, S_BOX)


def bits_of(values: np.ndarray, width: int) -> np.ndarray:
    return (values.astype(PLANE)[None] >> np.arange(width, dtype=PLANE)[:, None]) & np.uint64(1)


def _times(form: BitForm, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return form.summed(form.left(x) & form.right(y))


def tower_times(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Products in the tower, from its definition: y^2 = y + wz over GF(2^4)."""
    high, low = _times(aes._TIMES16, x[4:], y[4:]), _times(aes._TIMES16, x[:4], y[:4])
    cross = _times(aes._TIMES16, x[:4] ^ x[4:], y[:4] ^ y[4:])
    top = np.zeros_like(high)
    top[3] = 1
    return np.concatenate([low ^ _times(aes._TIMES16, high, top), cross ^ low])


def test_the_tower_is_the_field_of_the_standard() -> None:
    """The map is one to one, and takes products to products."""
    x, y = (part.reshape(-1) for part in np.meshgrid(np.arange(256), np.arange(256)))
    inside_x, inside_y = (aes._combined(aes._TO_TOWER, bits_of(part, 8)) for part in (x, y))
    products = np.array([_gf_times(int(a), int(b)) for a, b in zip(x, y, strict=True)])
    assert np.array_equal(tower_times(inside_x, inside_y), aes._combined(aes._TO_TOWER, bits_of(products, 8)))
    images = (inside_x << np.arange(8, dtype=PLANE)[:, None]).sum(axis=0)
    assert len(np.unique(images)) == 256


def test_a_key_nobody_knows_is_another_in_every_session() -> None:
    async def drawn(ctx: Any) -> Any:
        return aes.random_key(ctx)

    keys = [World(1, keys=seed).run(drawn).value.tobytes() for seed in range(3)]
    assert len(set(keys)) == 3


@pytest.mark.parametrize(("protocol", "arguments"), [(aes.sub_bytes, 1), (aes.expand_key, 1)])
def test_what_is_not_bytes_is_refused(protocol: Any, arguments: int) -> None:
    with pytest.raises(Failed) as caught:
        World(1).run(protocol, Bits(np.zeros(16, np.uint64), 7))
    assert all(isinstance(error, ShareError) for error in caught.value.errors)
