"""Canonical JSON (RFC 8785, JCS): one spelling of every value, so that digests and signatures are well defined.

Every value that can be read can be written: `parse` accepts any spelling, `load` only the canonical one. Both refuse
what two readers might understand differently: repeated names, numbers that a double cannot represent, lone surrogates,
NaN. Before a text is parsed, `bound` makes sure that it cannot become much larger in memory than it is on the wire.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from math import isfinite
from typing import TYPE_CHECKING

from caps.basics.later import Later
from caps.errors import DomainError

if TYPE_CHECKING:
    import numpy as np
else:
    np = Later("numpy")

MAX_INTEGER = 2**53 - 1
"""A double represents every integer up to this one exactly."""
MAX_DEPTH = 64
"""The deepest nesting of arrays and objects."""
MAX_ELEMENTS = 1 << 19
"""The most items of arrays and members of objects, of all together, unless the reader expects more."""
MAX_MEMBERS = 1 << 14
"""The most members of one object. Whoever reads it lists those that it does not know, at a kilobyte each."""
MAX_NUMBER = 40
"""The most characters of a number; a double needs 24."""
_LONGEST_INTEGER = 22  # sign and digits: from 1e21 on, floats have an exponent
_TOO_DEEP = f"JSON is nested more than {MAX_DEPTH} deep"
_STRINGS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_IN_NUMBERS = bytes(48 if byte in b"0123456789+-.eE" else 32 for byte in range(256))
_TOO_LARGE = "an integer in JSON must be below 2**53"
_quoted = json.JSONEncoder(ensure_ascii=False).encode


def dump(value: object) -> bytes:
    """The canonical form of a value. Raises DomainError if it has none."""
    try:
        return _written(value, 0).encode()
    except UnicodeEncodeError:
        raise DomainError("the text has a lone surrogate") from None


def bound(text: bytes, *, elements: int = MAX_ELEMENTS) -> None:
    """Raises DomainError if a text is nested too deep, has too many elements, or numbers that are too long.

    Takes linear time, and only looks at brackets, commas and numbers outside strings: the text need not be JSON.
    """
    # Without escapes, every quotation mark begins or ends a string.
    outside = _STRINGS.sub(b'"', text) if b"\\" in text else b'"'.join(text.split(b'"')[::2])
    found = outside.count(b",") + outside.count(b"[") + outside.count(b"{")
    if found > elements:
        raise DomainError(f"JSON has more than {elements} elements")
    if b"0" * (MAX_NUMBER + 1) in outside.translate(_IN_NUMBERS):
        raise DomainError(f"JSON has a number of more than {MAX_NUMBER} characters")
    brackets = np.frombuffer(outside.translate(None, _NO_BRACKETS), np.uint8)
    if len(brackets) > MAX_DEPTH:
        steps = np.where((brackets == ord("[")) | (brackets == ord("{")), 1, -1)
        if int(steps.cumsum(dtype=np.int64).max()) > MAX_DEPTH:
            raise DomainError(_TOO_DEEP)


def load(data: bytes) -> object:
    """The value in a canonical form. Raises DomainError for any other spelling."""
    value, canonical = _read(data)
    if canonical != data:
        raise DomainError("JSON is not in canonical form")
    return value


def parse(text: str | bytes, *, elements: int = MAX_ELEMENTS) -> object:
    """The value in a JSON text in any spelling, UTF-8 if it is bytes. Raises DomainError.

    elements: the most items and members, of all arrays and objects together.
    """
    return _read(text, elements)[0]


def digest(kind: str, value: Mapping[str, object]) -> bytes:
    """SHA-256 of an object together with its kind: objects of different kinds never have the same digest."""
    if "type" in value:
        raise DomainError("the object must not have a member `type`, which is set to its kind")
    return hashlib.sha256(dump({"type": f"caps/v1/{kind}", **value})).digest()


def _read(text: str | bytes, elements: int = MAX_ELEMENTS) -> tuple[object, bytes]:
    try:
        bound(text if isinstance(text, bytes) else text.encode(errors="surrogatepass"), elements=elements)
        decoded = text.decode() if isinstance(text, bytes) else text
        value: object = json.loads(decoded, object_pairs_hook=_unique, parse_constant=_refused, parse_int=_integer)
    except json.JSONDecodeError as error:
        raise DomainError(f"not JSON: line {error.lineno}, column {error.colno}") from None
    except UnicodeDecodeError:
        raise DomainError("not JSON in UTF-8") from None
    except RecursionError:
        raise DomainError(_TOO_DEEP) from None
    return value, dump(value)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len(pairs) > MAX_MEMBERS:
        raise DomainError(f"an object has more than {MAX_MEMBERS} members")
    members = dict(pairs)
    if len(members) < len(pairs):
        raise DomainError("an object has a repeated member")
    return members


def _refused(constant: str) -> object:
    raise DomainError(f"{constant} is not a JSON number")


def _integer(digits: str) -> int | float:
    if len(digits) <= _LONGEST_INTEGER:
        number = int(digits)
        if abs(number) <= MAX_INTEGER:
            return number
        if _number(float(number)) == digits:  # 1e20 is written without an exponent
            return float(number)
    raise DomainError(_TOO_LARGE)


def _written(value: object, depth: int) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return _quoted(value)
        case int():
            if abs(value) > MAX_INTEGER:
                raise DomainError(_TOO_LARGE)
            return int.__repr__(value)
        case float():
            return _number(value)
        case list() | tuple():
            inner = _inside(depth)
            return f"[{','.join([_written(item, inner) for item in value])}]"
        case Mapping():
            if not all(isinstance(name, str) for name in value):
                raise DomainError("the names of an object's members must be text")
            inner, names = _inside(depth), sorted(value, key=_code_units)
            return f"{{{','.join([f'{_quoted(name)}:{_written(value[name], inner)}' for name in names])}}}"
    raise DomainError(f"JSON cannot represent a {type(value).__name__}")


def _inside(depth: int) -> int:
    if depth == MAX_DEPTH:
        raise DomainError(_TOO_DEEP)
    return depth + 1


def _code_units(name: str) -> bytes:
    return name.encode("utf-16-be")


def _number(value: float) -> str:
    """The number as ECMAScript's Number::toString writes it, from the same shortest digits."""
    if not isfinite(value):
        raise DomainError(f"{value} is not a JSON number")
    mantissa, _, exponent = float.__repr__(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    if not digits:  # also for -0
        return "0"
    sign = "-" if value < 0 else ""
    if len(digits) <= point <= 21:
        return sign + digits.ljust(point, "0")
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{digits.rjust(len(digits) - point, '0')}"
    tail = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{tail}e{point - 1:+d}"
