"""Frames: the bytes on the wire between two MPC servers, without I/O. The contract is `proto/frames.md`.

Nothing here knows which party sent the bytes, so violations are `FrameError`s; the transport adds the party.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from caps.basics.schemes import SCHEMES
from services.mpc_server.channel import TAG_BYTES

MAGIC = b"CaPS"
VERSION = 1
HEADER = Struct("<8sIIQ8s")
"""prefix, session, length, sequence, tag."""

NO_TAG = bytes(TAG_BYTES)
MAX_PAYLOAD = 1 << 30
MAX_HELLO = 512
MAX_ABORT = 512

_ABORT = Struct("<BH")
_NOBODY = 0xFF
_MOST_PARTIES = max(scheme.parties for scheme in SCHEMES.values())


class FrameError(ValueError):
    """Bytes that are not a frame, or a frame that the contract forbids."""


class Kind(IntEnum):
    """What a frame is for."""

    HELLO = 1
    ROUND = 2
    ABORT = 3
    CLOSE = 4
    PING = 5
    PONG = 6


_PREFIX = Struct("<4sBBH")
"""magic, version, kind, reserved: eight bytes that say nothing but the kind, so they are read as one."""

_PREFIX_OF = {kind: _PREFIX.pack(MAGIC, VERSION, kind, 0) for kind in Kind}
_KIND_OF = {prefix: kind for kind, prefix in _PREFIX_OF.items()}
_CONTROL_LIMIT = {Kind.HELLO: MAX_HELLO, Kind.ABORT: MAX_ABORT, Kind.CLOSE: 0, Kind.PING: 0, Kind.PONG: 0}
_OF_THE_STREAM = frozenset({Kind.PING, Kind.PONG})
"""Kinds that belong to no session."""


_Head = tuple[Kind, int, int, bytes]


class Frame(NamedTuple):
    """One frame. `sequence` counts the ROUND frames sent before it in its session and direction."""

    kind: Kind
    session: int
    sequence: int
    tag: bytes
    payload: bytearray


def encode_header(kind: Kind, session: int, sequence: int, tag: bytes, length: int) -> bytes:
    """The header of a frame whose payload of `length` bytes follows."""
    return HEADER.pack(_PREFIX_OF[kind], session, length, sequence, tag)


def encode(frame: Frame) -> bytes:
    """A whole frame in one piece."""
    return encode_header(*frame[:4], len(frame.payload)) + frame.payload


class FrameDecoder:
    """Cuts a stream of bytes, arriving in pieces of any size, into frames.

    A payload takes room as it arrives, whatever length its header tells: who tells one must send it. After an error
    the decoder is of no further use: it raises the same error again.
    """

    __slots__ = ("_error", "_head", "_header", "_length", "_limits", "_payload")

    def __init__(self, max_payload: int = MAX_PAYLOAD) -> None:
        self._limits = {**_CONTROL_LIMIT, Kind.ROUND: max_payload}
        self._header = bytearray()
        self._head: _Head | None = None
        self._payload = bytearray()
        self._length = 0
        self._error: FrameError | None = None

    @property
    def partial(self) -> int:
        """How many bytes of an unfinished frame are held; 0 between frames."""
        return len(self._header) if self._head is None else HEADER.size + len(self._payload)

    def feed(self, data: bytes | memoryview) -> Iterator[Frame]:
        """Yield each frame that `data` completes; no frame refers to `data`.

        Pre-conditions: the iterator is run to its end before `data` changes.

        Raises FrameError after the frames that precede the violation.
        """
        if self._error is not None:
            raise self._error
        view = memoryview(data)
        at, end = 0, len(data)
        while True:
            if self._head is None:
                if at == end:
                    return
                if end - at >= HEADER.size and not self._header:
                    fields = HEADER.unpack_from(data, at)
                    at += HEADER.size
                else:
                    missing = HEADER.size - len(self._header)
                    self._header += view[at : at + missing]
                    if len(self._header) < HEADER.size:
                        return
                    at += missing
                    fields = HEADER.unpack(self._header)
                    self._header = bytearray()
                head, length = self._checked(fields)
                if end - at >= length:
                    yield Frame(*head, bytearray(view[at : at + length]))
                    at += length
                    continue
                self._head, self._payload, self._length = head, bytearray(), length
            take = min(self._length - len(self._payload), end - at)
            self._payload += view[at : at + take]
            at += take
            if len(self._payload) < self._length:
                return
            head, payload = self._head, self._payload
            self._head, self._payload = None, bytearray()
            yield Frame(*head, payload)

    def _checked(self, fields: tuple[bytes, int, int, int, bytes]) -> tuple[_Head, int]:
        prefix, session, length, sequence, tag = fields
        kind = _KIND_OF.get(prefix)
        if kind is None:
            raise self._refuse(_fault(prefix))
        if length > self._limits[kind]:
            raise self._refuse(f"{kind.name} of {length} bytes, over the limit of {self._limits[kind]}")
        if kind is not Kind.ROUND and tag != NO_TAG:
            raise self._refuse(f"{kind.name} with a tag")
        if kind in _OF_THE_STREAM and (session or sequence):
            raise self._refuse(f"{kind.name} within a session")
        return (kind, session, sequence, tag), length

    def _refuse(self, why: str) -> FrameError:
        self._error = FrameError(why)
        return self._error


def _fault(prefix: bytes) -> str:
    """What is wrong with a prefix that is not one of ours."""
    magic, version, kind, _ = _PREFIX.unpack(prefix)
    if magic != MAGIC:
        return "not a CaPS frame"
    if version != VERSION:
        return f"frame version {version}, not {VERSION}"
    if kind not in Kind.__members__.values():
        return f"unknown frame kind {kind}"
    return "reserved bits set"


def encode_abort(cause: str, blames: int | None) -> bytes:
    """The payload of ABORT. A cause that is too long is cut; characters that do not print become `?`."""
    printable = "".join(c if c.isprintable() else "?" for c in cause)
    text = printable.encode("utf-8", "replace")[: MAX_ABORT - _ABORT.size].decode("utf-8", "ignore").encode()
    return _ABORT.pack(_NOBODY if blames is None else blames, len(text)) + text


def decode_abort(payload: bytes | bytearray) -> tuple[str, int | None]:
    """The cause, and the party it blames if any."""
    if len(payload) < _ABORT.size:
        raise FrameError("ABORT cut short")
    blames, length = _ABORT.unpack_from(payload)
    if blames >= _MOST_PARTIES and blames != _NOBODY:
        raise FrameError(f"ABORT blames party {blames}")
    return decode_text(payload, _ABORT.size, length), None if blames == _NOBODY else blames


def decode_text(payload: bytes | bytearray, start: int, length: int) -> str:
    """The printable UTF-8 text that must fill `payload` from `start` to its end."""
    if len(payload) != start + length:
        raise FrameError(f"payload of {len(payload)} bytes, not {start + length}")
    try:
        text = payload[start:].decode()
    except UnicodeDecodeError:
        raise FrameError("text is not UTF-8") from None
    if not text.isprintable():
        raise FrameError("text does not print")
    return text
