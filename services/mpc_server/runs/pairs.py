"""What a server shares with each of its peers in a study, and how they come to it.

Every session of a run begins with two short rounds (`agree`): public keys, which must be those whose digests servers
signed, and a secret that each draws for the other. What a server draws is recorded before it is sent, and what it
receives before anything is computed with it. So both derive the same secret after a crash at any point, and a peer that
later sends anything else is refused: fresh randomness for an opened step would mean a second noise for one charge.
All of it is wrapped by the vault, and erased with the study's shares.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from sqlalchemy import Connection, Engine

from caps.errors import DomainError, PeerDisagrees, PeerViolation
from caps.trust import exchange
from caps.trust.exchange import SECRET_BYTES, Drawn, Received
from services.mpc_server.channel import Channel, swap, trade
from services.mpc_server.intake.studies import Studies
from services.mpc_server.storage.rows import pairs as rows
from services.mpc_server.storage.shares import Vault


def scope_of(study: str, inputs: str, run: str, build: str) -> bytes:
    """What a pair's secret is bound to, from hexadecimal digests and ids: it differs for every run and every build."""
    return bytes.fromhex(study + inputs + run + build)


class Pairs:
    """This server's pairs in one study, in its database. Peers are numbered as the study's servers are."""

    def __init__(
        self, studies: Studies, database: Engine, vault: Vault, study: str, digests: Mapping[str, str]
    ) -> None:
        """`digests`: those of the servers' exchange keys, by server name, from their approvals."""
        self._studies = studies
        self._database = database
        self._vault = vault
        self._study = study
        self._digests = digests
        self._party = studies.party(study)
        self._names = [server.name for server in studies.manifest(study).servers]

    @property
    def public(self) -> bytes:
        """What every peer is sent first."""
        return self._studies.exchange_key(self._study).public

    def drawn(self, publics: Mapping[int, bytes]) -> dict[int, Drawn]:
        """What is drawn for each peer, given the peers' public keys. It is recorded and stays the same for good."""
        for peer, public in publics.items():
            signed, found = self._digests[self._names[peer]], exchange.public_digest(public)
            if found != signed:
                raise PeerDisagrees(peer, "its exchange key", f"{signed[:12]} by its approval", found[:12])
        with self._database.begin() as connection:
            self._studies.require_secrets(connection, self._study)
            return {peer: self._drawn(connection, peer, public) for peer, public in publics.items()}

    def _drawn(self, connection: Connection, peer: int, public: bytes) -> Drawn:
        row = rows.find(connection, self._study, self._names[peer])
        if row is not None:
            both = self._vault.unwrap(self._name(peer, "drawn"), row.drawn)
            return Drawn(both[:SECRET_BYTES], both[SECRET_BYTES:])
        try:
            drawn = exchange.draw(public)
        except DomainError as error:
            raise PeerViolation(peer, f"what it sent is {error}") from None
        wrapped = self._vault.wrap(self._name(peer, "drawn"), drawn.secret + drawn.ciphertext)
        rows.add(connection, self._study, self._names[peer], wrapped)
        return drawn

    def secret(self, peer: int, drawn: Drawn, received: Received, scope: bytes) -> bytes:
        """The secret of this server and a peer."""
        key = self._studies.exchange_key(self._study)
        try:
            return exchange.pair_secret(key, drawn, received, first=self._party < peer, scope=scope)
        except DomainError as error:
            raise PeerViolation(peer, f"what it sent is {error}") from None

    def keep(self, received: Mapping[int, Received]) -> None:
        """Record what the peers sent. Raises PeerDisagrees, naming the peer, if one sent something else before.

        Pre-conditions: `drawn` was called for these peers.
        """
        with self._database.begin() as connection:
            self._studies.require_secrets(connection, self._study)
            for peer, one in received.items():
                both, name = one.public + one.ciphertext, self._name(peer, "received")
                kept = rows.find(connection, self._study, self._names[peer])
                assert kept is not None
                if kept.received is None:
                    rows.set_received(connection, self._study, self._names[peer], self._vault.wrap(name, both))
                elif not hmac.compare_digest(self._vault.unwrap(name, kept.received), both):
                    raise PeerDisagrees(peer, "what it drew for this study", "what it sent first", "something else")

    def _name(self, peer: int, what: str) -> str:
        return f"pair/{self._study}/{self._names[peer]}/{what}"


async def agree(channel: Channel, pairs: Pairs, scope: bytes) -> dict[int, bytes]:
    """The secrets with all peers. Costs two rounds; raises a PeerError with the peer that does not agree."""
    publics = await swap(channel, "pair/keys", pairs.public)
    drawn = pairs.drawn(publics)
    ciphertexts = await trade(channel, "pair/secrets", {peer: one.ciphertext for peer, one in drawn.items()})
    received = {peer: Received(publics[peer], ciphertext) for peer, ciphertext in ciphertexts.items()}
    secrets = {peer: pairs.secret(peer, drawn[peer], received[peer], scope) for peer in drawn}
    pairs.keep(received)
    return secrets
