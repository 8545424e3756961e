"""Fixed-point functions against float64 over their whole domains, and against their declared errors and costs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caps.errors import DomainError, ShareError
from caps.shares.ring import Z16, Z32, Z64
from services.mpc_server.engine.paper import fixedpoint as fp
from services.mpc_server.engine.paper.fixed import FRAC, decode_fixed, encode_fixed
from services.mpc_server.testing.world import Bits, Failed, Recorder, World

pytestmark = pytest.mark.property

FRACS = [8, 16, 20, 24]
fracs = pytest.mark.parametrize("frac", FRACS)


def rng() -> np.random.Generator:
    """Fresh for each use, so that no test depends on those before it."""
    return np.random.default_rng(20)


def words(integers: Any) -> Any:
    return np.asarray(integers, np.int64).astype(Z64.dtype)


def real(value: Any, frac: int) -> Any:
    return decode_fixed(words(value) if value.dtype.kind == "i" else value, frac=frac)


def run(protocol: Callable[..., Any], *integers: Any, **kwargs: Any) -> Any:
    return World(5).run(protocol, *(words(x) for x in integers), **kwargs).value


def magnitudes() -> Any:
    """Positive integers below 2^62 at every scale, with every power of two and its neighbours."""
    powers = 1 << np.arange(62, dtype=np.int64)
    spread = np.exp2(rng().uniform(0, 62, 3000)).astype(np.int64)
    every = np.concatenate([np.arange(1, 300), powers, powers - 1, powers + 1, spread, [(1 << 62) - 1]])
    return np.unique(every[(every > 0) & (every < 1 << 62)])


def signed_magnitudes() -> Any:
    sizes = magnitudes()
    return sizes * rng().choice([-1, 1], len(sizes))


def grid(low: float, high: float, frac: int, count: int = 3000) -> Any:
    """Integers that stand for low .. high: evenly spread ones and random ones, both ends included."""
    first, last = np.ceil(low * 2.0**frac), np.floor(high * 2.0**frac)
    points = np.concatenate([np.linspace(first, last, count), rng().uniform(first, last, count)])
    return np.rint(points).astype(np.int64)


def assert_within(got: Any, expected: Any, bound: Any) -> None:
    excess = np.abs(got - expected) - bound
    worst = int(np.argmax(excess))
    assert excess[worst] <= 0, f"{got[worst]} for {expected[worst]}: beyond the bound by {excess[worst]}"


@fracs
def test_a_product_is_the_floor_of_the_exact_one(frac: int) -> None:
    edge = (1 << 31) - 1
    drawn = rng().integers(-edge, edge, (2, 3000))
    x = np.concatenate([[0, 1, -1, edge, -edge, edge, -1], drawn[0]])
    y = np.concatenate([[5, 1, 1, edge, edge, -edge, -1], drawn[1]])
    assert np.array_equal(Z64.signed(run(fp.multiply_fixed, x, y, frac=frac)), (x * y) >> frac)


@fracs
@pytest.mark.parametrize("factor", [0.0, 1.0, -1.0, 0.001, -2.718281828, 100.5])
def test_scaling_by_a_public_real(frac: int, factor: float) -> None:
    reach = min(1000, 2.0 ** (61 - 2 * frac) / max(1, abs(factor)))
    x = grid(-reach, reach, frac)
    got = real(run(fp.scale_fixed, x, factor=factor, frac=frac), frac)
    assert_within(got, real(x, frac) * factor, (1 + np.abs(real(x, frac)) / 2) * 2.0**-frac)


def test_scaling_by_an_array_takes_a_factor_per_element() -> None:
    x = np.array([[1, 2], [3, 4]]) << FRAC
    got = real(run(fp.scale_fixed, x, factor=[[0.5, 2.0], [-1.0, 0.25]]), FRAC)
    assert np.array_equal(got, [[0.5, 4.0], [-3.0, 1.0]])


@pytest.mark.parametrize("ring", [Z16, Z32, Z64])
def test_select_takes_one_or_the_other(ring: Any) -> None:
    condition = rng().integers(0, 2, (3, 50)).astype(ring.dtype)
    x, y = rng().integers(0, 1 << 16, (2, 3, 50)).astype(ring.dtype)
    assert np.array_equal(World(5).run(fp.select, condition, x, y).value, np.where(condition == 1, x, y))


@fracs
@pytest.mark.parametrize("coefficients", [[0.5, -3], [1, 0, 2], [1, -0.5, 3, 0.25, -1.75, 2], [0.1] * 10])
def test_polynomial(frac: int, coefficients: list[float]) -> None:
    x = np.concatenate([grid(-1, 1, frac), grid(-1.5, 1.5, frac, 500), [0]])
    degree = len(coefficients) - 1
    largest = np.maximum(1, np.abs(real(x, frac))) ** degree
    powers = sum(max(0, i - 1) * abs(c) for i, c in enumerate(coefficients))
    got = real(run(fp.polynomial, x, coefficients=coefficients, frac=frac), frac)
    expected = np.polynomial.polynomial.polyval(real(x, frac), coefficients)
    assert_within(got, expected, (0.5 + largest * ((degree + 1) / 2 + powers)) * 2.0**-frac)


@pytest.mark.parametrize(
    "offsets", [range(-3, 0), range(-9, 12), range(5), range(4, 6), range(-20, -18), range(30, 33)]
)
def test_window_shows_the_bits_beside_the_flag(offsets: range) -> None:
    places, bits = rng().integers(0, 7, 200), rng().integers(0, 1 << 9, 200)
    places[0] = -1  # no flag at all
    flags = [1 << int(e) if e >= 0 else 0 for e in places]
    got = World(5).run(fp.window, Bits(words(flags), 7), Bits(words(bits), 9), offsets=offsets).value
    moved = [int(b) << 64 >> 64 + int(e) + offsets.start if e >= 0 else 0 for e, b in zip(places, bits, strict=True)]
    assert got.tolist() == [word & (1 << len(offsets)) - 1 for word in moved]


def test_normalise_finds_sign_exponent_and_mantissa() -> None:
    x = np.concatenate([[0], magnitudes(), -magnitudes()])
    sign, leads, mantissa = run(fp.normalise, x)
    sizes = [abs(int(v)) for v in x]
    assert np.array_equal(sign, x < 0)
    assert leads.tolist() == [1 << size.bit_length() >> 1 for size in sizes]
    assert mantissa.tolist() == [(size << 32 >> size.bit_length() - 1) - (1 << 32) if size else 0 for size in sizes]


@fracs
def test_exponential(frac: int) -> None:
    top = (61 - frac) * np.log(2)
    x = np.concatenate([grid(-(frac + 2) * np.log(2), top, frac), grid(-2, 2, frac), [0, 1, -1]])
    x = x[x * 2.0**-frac < top - 1e-6]
    expected = np.exp(real(x, frac))
    got = real(run(fp.exponential, x, frac=frac), frac)
    assert_within(got, expected, 2.0 ** -(frac + 1) + 2.0**-27 * expected)


@fracs
def test_exponential_of_the_very_low_is_zero(frac: int) -> None:
    threshold = int(np.floor(-(frac + 1) * np.log(2) * 2.0**frac))
    x = np.concatenate([[-(1 << 62), -(1 << 61)], -magnitudes()])
    x = np.concatenate([x[x <= threshold], threshold - np.arange(100)])
    assert not np.any(run(fp.exponential, x, frac=frac))


@fracs
def test_logarithm(frac: int) -> None:
    x = np.concatenate([magnitudes(), grid(2.0**-frac, 2, frac)])
    assert_within(real(run(fp.logarithm, x, frac=frac), frac), np.log(real(x, frac)), 2.0 ** -(frac + 1) + 2.0**-28)


@fracs
def test_logarithm_of_zero_is_that_of_one_ulp(frac: int) -> None:
    zero, ulp = run(fp.logarithm, [0, 1], frac=frac)
    assert zero == ulp


@fracs
def test_square_root(frac: int) -> None:
    x = np.concatenate([magnitudes(), grid(0, 4, frac)])
    expected = np.sqrt(real(x, frac))
    got = real(run(fp.square_root, x, frac=frac), frac)
    assert_within(got, expected, 2.0 ** -(frac + 1) + 2.0**-27 * expected)
    assert np.all(got[x == 0] == 0)


@fracs
def test_reciprocal(frac: int) -> None:
    x = np.concatenate([signed_magnitudes(), grid(0.5, 4, frac), [1, -1]])
    expected = 1 / real(x, frac)
    got = real(run(fp.reciprocal, x, frac=frac), frac)
    assert_within(got, expected, 2.0 ** -(frac + 1) + 2.0**-26 * np.abs(expected))


@fracs
def test_divide(frac: int) -> None:
    x, y = rng().permutation(signed_magnitudes()), signed_magnitudes()
    x, y = np.concatenate([x, grid(-9, 9, frac), [0, 7]]), np.concatenate([y, grid(0.1, 9, frac), [-3, 7]])
    fits = np.abs(x / y) < 2.0 ** (60 - frac)
    x, y = x[fits], y[fits]
    got = real(run(fp.divide, x, y, frac=frac), frac)
    assert_within(got, x / y, 2.0 ** -(frac + 1) + 2.0**-26 * np.abs(x / y))


def test_dividing_by_zero_gives_zero() -> None:
    x = np.array([0, 1, -5 << FRAC, (1 << 62) - 1])
    assert not np.any(run(fp.divide, x, 0 * x))
    assert not np.any(run(fp.reciprocal, [0]))


@fracs
def test_sine_and_cosine(frac: int) -> None:
    quarters = np.rint(np.arange(-40, 41) * np.pi / 2 * 2.0**frac).astype(np.int64)
    x = np.concatenate([grid(-64, 64, frac), grid(-1024, 1024, frac), grid(-7, 7, frac), quarters, [0, 1, -1]])
    ulp = 2.0**-frac
    bound = ulp / 2 + 2.0**-25.9 + np.abs(real(x, frac)) * 2.0 ** (frac - 62)
    assert np.all(bound < ulp)
    sine, cosine = run(fp.sine_cosine, x, frac=frac)
    assert_within(real(sine, frac), np.sin(real(x, frac)), bound)
    assert_within(real(cosine, frac), np.cos(real(x, frac)), bound)
    assert np.array_equal(run(fp.sine, x, frac=frac), sine)
    assert np.array_equal(run(fp.cosine, x, frac=frac), cosine)


def test_sine_of_large_angles_has_the_error_declared() -> None:
    x = signed_magnitudes()
    x = x[np.abs(x) < 1 << 50]
    got = real(run(fp.sine, x), FRAC)
    assert_within(got, np.sin(real(x, FRAC)), 2.0**-21 + 2.0**-25.9 + np.abs(real(x, FRAC)) * 2.0 ** (FRAC - 62))


def softmax_inputs(frac: int) -> dict[str, Any]:
    far = (1 << 61) - 1
    return {
        "one": np.array([-far]),
        "tie": np.zeros(7, np.int64),
        "far apart": np.array([far, -far, 0, far - 3]),
        "spread": grid(-30, 5, frac, 400),
        "many small": np.concatenate([[0], np.full(2000, int(-20 * 2.0**frac))]),
        "normal": np.rint(rng().normal(0, 2, 500) * 2.0**frac).astype(np.int64),
    }


@fracs
@pytest.mark.parametrize("kind", softmax_inputs(FRAC))
def test_softmax(frac: int, kind: str) -> None:
    x = softmax_inputs(frac)[kind]
    weights = np.exp(real(x - x.max(), frac))
    expected = weights / weights.sum()
    got = real(run(fp.softmax, x, frac=frac), frac)
    ulp = 2.0**-frac
    assert_within(got, expected, ulp / 2 + 2.0**-30 + (2.0**-25 + len(x) * 2.0**-31) * expected)
    assert abs(got.sum() - 1) < 0.51 * len(x) * ulp + 2.0**-26


@settings(max_examples=15, deadline=None)
@given(
    frac=st.integers(8, 24),
    positive=st.lists(st.integers(1, (1 << 62) - 1), min_size=1, max_size=20),
    angles=st.lists(st.floats(-1000, 1000), min_size=1, max_size=20),
)
def test_errors_hold_for_whatever_is_drawn(frac: int, positive: list[int], angles: list[float]) -> None:
    half = 2.0 ** -(frac + 1)
    x = np.array(positive)
    values = real(x, frac)
    assert_within(real(run(fp.logarithm, x, frac=frac), frac), np.log(values), half + 2.0**-28)
    assert_within(real(run(fp.square_root, x, frac=frac), frac), np.sqrt(values), half + 2.0**-27 * np.sqrt(values))
    assert_within(real(run(fp.reciprocal, -x, frac=frac), frac), -1 / values, half + 2.0**-26 / values)
    turned = Z64.signed(encode_fixed(angles, frac=frac))
    got = real(run(fp.cosine, turned, frac=frac), frac)
    assert_within(got, np.cos(real(turned, frac)), 2 * half)
    low = np.minimum(turned, int(16 * 2.0**frac))
    powers = np.exp(real(low, frac))
    assert_within(real(run(fp.exponential, low, frac=frac), frac), powers, half + 2.0**-27 * powers)


def test_tables_are_the_same_on_every_platform() -> None:
    """Three parties that held different tables would compute nonsense; a change of a table is a change of protocol."""
    digest = hashlib.blake2b(digest_size=16)
    for table in (fp.EXP2, fp.LOG, fp.ROOT, fp.INVERSE, fp.SINE, fp.COSINE):
        digest.update(repr(table.offsets).encode() + table.words.tobytes())
    assert digest.hexdigest() == "ce1d5d9ba0dbcafe9af5abb7f1ff85a7"


X = words([1, 2, 3])
REFUSED = [
    *((DomainError, p, (X,), {"frac": f}) for p in (fp.exponential, fp.logarithm, fp.square_root) for f in (-1, 7, 25)),
    *((DomainError, p, (X,), {"frac": f}) for p in (fp.reciprocal, fp.sine, fp.cosine, fp.softmax) for f in (0, 25)),
    *((DomainError, p, (X, X), {"frac": f}) for p in (fp.multiply_fixed, fp.divide) for f in (7, 25)),
    (DomainError, fp.sine_cosine, (X,), {"frac": 25}),
    (DomainError, fp.scale_fixed, (X,), {"factor": 1.0, "frac": 25}),
    (DomainError, fp.scale_fixed, (X,), {"factor": float("nan")}),
    (DomainError, fp.scale_fixed, (X,), {"factor": 1e30}),
    (DomainError, fp.polynomial, (X,), {"coefficients": [1.0, 2.0], "frac": 25}),
    (DomainError, fp.polynomial, (X,), {"coefficients": [1.0]}),
    (DomainError, fp.polynomial, (X,), {"coefficients": [[1.0, 2.0]]}),
    (DomainError, fp.polynomial, (X,), {"coefficients": [1.0, float("inf")]}),
    *((ShareError, p, (X, X[:2]), {}) for p in (fp.multiply_fixed, fp.divide)),
    *((ShareError, p, (X, X[:1]), {}) for p in (fp.multiply_fixed, fp.divide)),
    (ShareError, fp.scale_fixed, (X,), {"factor": [1.0, 2.0]}),
    (ShareError, fp.scale_fixed, (X[:1],), {"factor": [1.0, 2.0]}),
    (ShareError, fp.select, (X, X, X[:1]), {}),
    (ShareError, fp.select, (X[:1], X, X), {}),
    (ShareError, fp.select, (X.astype(Z16.dtype), X, X), {}),
    (ShareError, fp.softmax, (X.reshape(1, 3),), {}),
    (ShareError, fp.softmax, (X[:0],), {}),
    (ShareError, fp.window, (Bits(X, 4), Bits(X[:2], 4)), {"offsets": range(3)}),
    (ShareError, fp.window, (Bits(X, 4), Bits(X, 4)), {"offsets": range(0)}),
    (ShareError, fp.window, (Bits(X, 4), Bits(X, 4)), {"offsets": range(0, 6, 2)}),
    *((ShareError, p, (X.astype(Z32.dtype),), {}) for p in (fp.normalise, fp.exponential, fp.sine, fp.softmax)),
]


@pytest.mark.parametrize(("error", "protocol", "args", "kwargs"), REFUSED)
def test_what_is_not_defined_is_refused_before_anything_is_sent(
    error: type[Exception], protocol: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    recorder = Recorder()
    with pytest.raises(Failed) as caught:
        World(7, interceptor=recorder).run(protocol, *args, **kwargs)
    assert all(isinstance(raised, error) for raised in caught.value.errors)
    assert not recorder.messages
