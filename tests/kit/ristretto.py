"""ristretto255 (RFC 9496) in plain integers, and the way from it to the subgroup of prime order of edwards25519.

For tests only: slow and not constant in time. A point is (x, y), affine.
"""

from __future__ import annotations

from typing import TypeAlias

Point: TypeAlias = tuple[int, int]

P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
ROOT = pow(2, (P - 1) // 4, P)
_TO_SUBGROUP = 8 * pow(8, -1, ORDER)
"""0 modulo the cofactor and 1 modulo the order: times this, a coset becomes its member in the subgroup."""


def add(first: Point, second: Point) -> Point:
    """The sum on edwards25519; the formula has no exception."""
    (a, b), (c, d) = first, second
    cross = D * a * b * c * d
    return (a * d + b * c) * pow(1 + cross, -1, P) % P, (b * d + a * c) * pow(1 - cross, -1, P) % P


def multiply(number: int, point: Point) -> Point:
    """The multiple, by doubling and adding."""
    total = (0, 1)
    while number:
        if number & 1:
            total = add(total, point)
        point, number = add(point, point), number >> 1
    return total


def compressed(point: Point) -> bytes:
    """The 32 bytes of RFC 8032, section 5.1.2."""
    x, y = point
    return (y | (x & 1) << 255).to_bytes(32, "little")


def expanded(data: bytes) -> Point:
    """The point of 32 bytes that are one, RFC 8032, section 5.1.3."""
    number = int.from_bytes(data, "little")
    y, sign = number % 2**255, number >> 255
    square, x = root(y * y - 1, D * y * y + 1)
    assert square
    return (-x % P if x & 1 != sign else x), y


def root(numerator: int, denominator: int) -> tuple[bool, int]:
    """SQRT_RATIO_M1 of RFC 9496, section 4.2: whether the ratio is a square, and the even root of it or of ROOT times
    it.
    """
    u, v = numerator % P, denominator % P
    r = u * v**3 * pow(u * v**7, (P - 5) // 8, P) % P
    check = v * r * r % P
    if check in (-u % P, -u * ROOT % P):
        r = r * ROOT % P
    return check in (u, -u % P), -r % P if r & 1 else r


def decode(data: bytes) -> Point:
    """Decode of RFC 9496, section 4.3.1, for valid bytes, and then into the subgroup."""
    s = int.from_bytes(data, "little")
    one, two = (1 - s * s) % P, (1 + s * s) % P
    v = (-D * one * one - two * two) % P
    square, inverse = root(1, v * two * two)
    assert square
    x = 2 * s * inverse * two % P
    x = -x % P if x & 1 else x
    return multiply(_TO_SUBGROUP, (x, one * inverse * inverse * two * v % P))


def encode(point: Point) -> bytes:
    """Encode of RFC 9496, section 4.3.2."""
    x, y = point
    u, v = (1 + y) * (1 - y) % P, x * y % P
    _, inverse = root(1, u * v * v)
    one, two = u * inverse % P, v * inverse % P
    t = x * y % P
    z = one * two * t % P
    if t * z % P & 1:
        _, magic = root(1, -1 - D)
        x, y, two = y * ROOT % P, x * ROOT % P, one * magic % P
    if x * z % P & 1:
        y = -y % P
    s = two * (1 - y) % P
    return (-s % P if s & 1 else s).to_bytes(32, "little")


def from_uniform(data: bytes) -> Point:
    """The derivation of an element from 64 uniform bytes, RFC 9496, section 4.3.4, and then into the subgroup."""
    halves = (int.from_bytes(half, "little") % 2**255 for half in (data[:32], data[32:]))
    return multiply(_TO_SUBGROUP, add(*map(_image, halves)))


def _image(t: int) -> Point:
    r = ROOT * t * t % P
    u, v = (r + 1) * (1 - D * D) % P, (-1 - r * D) * (r + D) % P
    square, s = root(u, v)
    c = -1
    if not square:
        other = s * t % P
        s, c = (other if other & 1 else -other % P), r
    n = (c * (r - 1) * (D - 1) ** 2 - v) % P
    _, even = root(-D - 1, 1)  # the RFC's SQRT_AD_MINUS_ONE is the odd one
    return -2 * s * v * pow(n * even, -1, P) % P, (1 - s * s) * pow(1 + s * s, -1, P) % P


def elligator(t: int, sign: int) -> Point:
    """Elligator 2 to curve25519 (RFC 9380, section 6.7.1), as a point of edwards25519 with this sign of x, times 8."""
    a = 486662
    u = -a * pow(1 + 2 * t * t, -1, P) % P
    if pow(u**3 + a * u * u + u, (P - 1) // 2, P) == P - 1:
        u = -a - u
    y = (u - 1) * pow(u + 1, -1, P) % P
    return multiply(8, expanded((y | sign << 255).to_bytes(32, "little")))
