"""Servers give each other the heads of their ledgers, before anything is computed in a session.

Two rounds: each shows each peer the latest head of the peer's that it keeps, or zeros; then each sends its own, signed
for this run. In this order a server that was rolled back learns it before its peers can, who would end the session. A
head on the wire is its record's number and hash, the run, the time and the signature; the name is the study's.
"""

from __future__ import annotations

from struct import Struct

from pydantic import ValidationError

from caps.errors import PeerViolation
from caps.study import Manifest
from caps.trust.cards import Party
from caps.wire import LedgerHead, Signed
from services.mpc_server.channel import Channel, swap, trade
from services.mpc_server.storage.heads import HeadRefused, Heads

_HEAD = Struct("<I32s16s32s64s")


async def exchange_heads(channel: Channel, heads: Heads, manifest: Manifest, run: str, at: str) -> None:
    """Give, take and keep. Raises PeerViolation with the peer whose ledger lacks what it has signed, or LedgerBroken
    if this server's does."""
    servers = manifest.servers
    kept = {peer: _packed(heads.latest(servers[peer])) for peer in channel.peers}
    for payload in (await trade(channel, "ledger/kept", kept)).values():
        told = _unpacked(payload, servers[channel.party])
        if told is not None:
            heads.told(told)
    for peer, payload in (await swap(channel, "ledger/heads", _packed(heads.sign(run, at)))).items():
        head = _unpacked(payload, servers[peer])
        if head is None:
            raise PeerViolation(peer, "what it sent is not the head of a ledger")
        try:
            heads.take(servers[peer], run, head)
        except HeadRefused as error:
            raise PeerViolation(peer, str(error)) from None


def _packed(head: Signed[LedgerHead] | None) -> bytes:
    if head is None:
        return bytes(_HEAD.size)
    one = head.document
    digest, run, signature = map(bytes.fromhex, (one.hash, one.run, head.signature))
    return _HEAD.pack(one.number, digest, run, one.at.encode(), signature)


def _unpacked(payload: bytes, server: Party) -> Signed[LedgerHead] | None:
    """The head of a server's ledger, its signature not yet checked; None if these bytes are no head."""
    number, digest, run, at, signature = _HEAD.unpack(payload)
    try:
        written = at.rstrip(b"\0").decode("ascii")
        document = LedgerHead(server=server.name, run=run.hex(), number=number, hash=digest.hex(), at=written)
        return Signed[LedgerHead](document=document, signer=server.name, signature=signature.hex())
    except (ValidationError, UnicodeDecodeError):
        return None
