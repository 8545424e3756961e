"""What two parties must agree on before a session, and the secret they leave with."""

from __future__ import annotations

from dataclasses import dataclass, fields
from hashlib import sha256
from struct import Struct
from typing import NamedTuple

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from caps.errors import DomainError, PeerDisagrees, PeerViolation, party_name
from services.mpc_server.transport.framing import MAX_HELLO, FrameError, decode_text

WIRE_VERSION = 2
"""Version of everything above the frame: Hello, the order of rounds, the meaning of payloads."""

DIGEST_BYTES = 32
SECRET_BYTES = 32

_VERSION = Struct("<H")
_GREETING = Struct("<HBB")
_HELLO = Struct("<HBB32s32s32s32s32s32sH")
_MAX_NAME = MAX_HELLO - _HELLO.size
_SECRET_LABEL = b"caps/v1/pair-secret\0"
_SESSION_LABEL = b"caps/v1/session-id\0"


@dataclass(frozen=True)
class Agreement:
    """Public digests, and the scheme, that must be the same at every party of a session."""

    study: bytes
    inputs: bytes
    build: bytes
    ledger: bytes
    scheme: bytes
    """The name of the scheme, as `scheme_field` spells it."""

    def __post_init__(self) -> None:
        for name, digest in self.items():
            if len(digest) != DIGEST_BYTES:
                raise DomainError(f"{name}: a digest must have {DIGEST_BYTES} bytes, not {len(digest)}")

    def items(self) -> list[tuple[str, bytes]]:
        """The members with their names, in the order of the wire."""
        return [(field.name, getattr(self, field.name)) for field in fields(self)]

    def encode(self) -> bytes:
        """The members, one after the other."""
        return b"".join(digest for _, digest in self.items())


def scheme_field(name: str) -> bytes:
    """The name of a scheme as an agreement has it: ASCII, filled up with zeros."""
    return name.encode("ascii").ljust(DIGEST_BYTES, b"\0")


def _shown(name: str, value: bytes) -> str:
    """A member of an agreement, for messages. Whatever a peer sent as its scheme is shown in printable characters."""
    return ascii(value.rstrip(b"\0").decode("latin-1")) if name == "scheme" else value.hex()[:12]


@dataclass(frozen=True)
class Hello:
    """The first frame of a session from `party` to `peer`.

    `contribution` is half of the pair's secret, so it must be fresh for each peer: no other party sees either half.
    """

    party: int
    peer: int
    session: str
    agreement: Agreement
    contribution: bytes
    version: int = WIRE_VERSION

    def __post_init__(self) -> None:
        name = self.session.encode()
        if not 0 < len(name) <= _MAX_NAME or not self.session.isprintable():
            raise DomainError(f"a session's name must have 1 to {_MAX_NAME} printable bytes")
        if len(self.contribution) != SECRET_BYTES:
            raise DomainError(f"a contribution must have {SECRET_BYTES} bytes")

    def __repr__(self) -> str:
        return f"Hello({party_name(self.party)} to {party_name(self.peer)}, session={self.session!r})"

    def encode(self) -> bytes:
        """The payload of HELLO."""
        name = self.session.encode()
        digests = [digest for _, digest in self.agreement.items()]
        return _HELLO.pack(self.version, self.party, self.peer, *digests, self.contribution, len(name)) + name

    @classmethod
    def decode(cls, payload: bytes | bytearray) -> Hello:
        """Raises FrameError unless `payload` is a Hello of this version and nothing more."""
        if (version := peek_version(payload)) != WIRE_VERSION:
            raise FrameError(f"Hello of version {version}")
        if len(payload) < _HELLO.size:
            raise FrameError("Hello cut short")
        _, party, peer, *agreed, contribution, length = _HELLO.unpack_from(payload)
        if not 0 < length <= _MAX_NAME:
            raise FrameError("Hello without a session name")
        name = decode_text(payload, _HELLO.size, length)
        return cls(party, peer, name, Agreement(*agreed), contribution)


def peek_version(payload: bytes | bytearray) -> int:
    """The first two bytes of a greeting or Hello, which are its version whatever that version is."""
    if len(payload) < _VERSION.size:
        raise FrameError("Hello cut short")
    version: int = _VERSION.unpack_from(payload)[0]
    return version


def check_version(payload: bytes | bytearray, peer: int) -> None:
    """Raises PeerDisagrees if a greeting or Hello is not of our version."""
    if (version := peek_version(payload)) != WIRE_VERSION:
        raise PeerDisagrees(peer, "version", str(WIRE_VERSION), str(version))


def meet(ours: Hello, payload: bytes | bytearray) -> bytes:
    """Compare the peer's Hello with `ours`; return the pair's secret.

    Raises PeerDisagrees naming the first field that differs, PeerViolation for a Hello between other parties, and
    FrameError for bytes that are not a Hello.
    """
    check_version(payload, ours.peer)
    theirs = Hello.decode(payload)
    if (theirs.party, theirs.peer) != (ours.peer, ours.party):
        raise PeerViolation(ours.peer, "Hello names parties other than this connection's")
    if theirs.session != ours.session:
        raise PeerDisagrees(ours.peer, "session", repr(ours.session), repr(theirs.session))
    for (name, mine), (_, other) in zip(ours.agreement.items(), theirs.agreement.items(), strict=True):
        if mine != other:
            raise PeerDisagrees(ours.peer, name, _shown(name, mine), _shown(name, other))
    return pair_secret(ours, theirs)


def pair_secret(one: Hello, other: Hello) -> bytes:
    """The same 32 bytes for both ends: HKDF-SHA256 of both contributions, bound to parties, agreement and session.

    Pre-conditions: the two Hellos were found to agree.
    """
    low, high = sorted((one, other), key=lambda hello: hello.party)
    info = _SECRET_LABEL + bytes((low.party, high.party)) + low.agreement.encode() + low.session.encode()
    return HKDF(SHA256(), SECRET_BYTES, salt=None, info=info).derive(low.contribution + high.contribution)


def session_id(name: str) -> int:
    """The 32-bit number of a session on the wire; never 0, which is the connection itself."""
    return int.from_bytes(sha256(_SESSION_LABEL + name.encode()).digest()[:4], "little") or 1


class Greeting(NamedTuple):
    """The first frame of a connection: who is speaking, and who it takes the other end to be."""

    party: int
    peer: int

    def encode(self) -> bytes:
        """The payload of HELLO on session 0."""
        return _GREETING.pack(WIRE_VERSION, self.party, self.peer)

    @classmethod
    def decode(cls, payload: bytes | bytearray) -> Greeting:
        """Raises FrameError unless `payload` is a greeting of this version and nothing more."""
        if (version := peek_version(payload)) != WIRE_VERSION:
            raise FrameError(f"greeting of version {version}")
        if len(payload) != _GREETING.size:
            raise FrameError(f"greeting of {len(payload)} bytes")
        _, party, peer = _GREETING.unpack(payload)
        return cls(party, peer)
