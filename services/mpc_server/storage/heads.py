"""Signed heads of ledgers: a server's own, and those that its peers gave it. They outlive the ledger they are about.

A chain shows that a record was altered, but not that its end was cut off, or that all of it was written anew. The heads
show it: whoever has a server's signature on a record can tell that this record must be in its ledger. So servers give
each other the heads of their ledgers when they begin to compute, together with the latest head of the other that they
keep (`services.mpc_server.runs.heads`). A server whose ledger lacks a head that it has signed computes nothing more:
part of its budget may have been spent twice. It finds that out when a peer shows it the head or, since it keeps its own
heads too, when it starts. A head with another signature proves nothing and changes nothing.

Heads belong to signing keys. A server that has lost part of its ledger is a new party, with new keys
(docs/operations.md).
"""

from __future__ import annotations

import logging

from sqlalchemy import Connection, Engine, and_, delete, select

from caps.basics import canonical
from caps.errors import LocalError
from caps.service import logs
from caps.service.database import reading
from caps.trust import signing
from caps.trust.cards import Party
from caps.wire import LedgerHead, Signed
from services.mpc_server.storage.ledger import Ledger, LedgerBroken
from services.mpc_server.storage.tables import heads, ledger

log = logging.getLogger("caps.ledger")


class HeadRefused(LocalError):
    """A peer's head is not its own, or its ledger lacks what it has signed before."""


class Heads:
    """The heads that one server keeps, in its database."""

    def __init__(self, database: Engine, own: Ledger, name: str, key: signing.SigningKey) -> None:
        self._database = database
        self._ledger = own
        self._name = name
        self._key = key
        self.broken: str | None = None
        """Why this server must not compute, once that is known."""

    @property
    def _own(self) -> str:
        return signing.public_hex(self._key)

    def verify(self) -> None:
        """Raises LedgerBroken if the ledger lacks a head that this server has signed with its present key."""
        contained = and_(ledger.c.number == heads.c.number, ledger.c.hash == heads.c.hash)
        own = select(heads.c.number).outerjoin(ledger, contained)
        lost = own.where(heads.c.key == self._own, ledger.c.number.is_(None)).order_by(heads.c.number)
        with reading(self._database) as connection:
            number = connection.execute(lost.limit(1)).scalar_one_or_none()
        if number is not None:
            self.broken = (
                f"the ledger lacks record {number} as this server has signed it: it was rolled back or rewritten, and "
                "its budgets may have been spent twice"
            )
        self.require_sound()

    def require_sound(self) -> None:
        """Raises LedgerBroken if it is known that the ledger lacks a head that this server has signed."""
        if self.broken is not None:
            raise LedgerBroken(self.broken)

    def sign(self, run: str, at: str) -> Signed[LedgerHead]:
        """The head of the ledger, signed for a session of a run. It is kept here, too."""
        self.require_sound()
        with self._database.begin() as transaction:
            number, digest = self._ledger.head(transaction)
            document = LedgerHead(server=self._name, run=run, number=number, hash=digest, at=at)
            signed = Signed[LedgerHead].by(document, self._name, self._key)
            _keep(transaction, self._own, signed)
        return signed

    def latest(self, party: Party) -> Signed[LedgerHead] | None:
        """The head with the greatest number that a party has signed and that is kept here."""
        with reading(self._database) as connection:
            return _latest(connection, party.signing_key)

    def take(self, party: Party, run: str, head: Signed[LedgerHead]) -> None:
        """Keep a peer's head. Raises HeadRefused if the peer did not sign it for this run, or signed what it lacks."""
        try:
            document = head.verify(party)
        except signing.SignatureRefused:
            raise HeadRefused("the head of its ledger is not validly signed") from None
        if (document.server, document.run) != (party.name, run):
            raise HeadRefused("the head of its ledger is for another server or run")
        with self._database.begin() as transaction:
            before = _latest(transaction, party.signing_key)
            if before is not None and _contradicts(before.document, document):
                raise HeadRefused(
                    f"its ledger ends with record {document.number}, but lacks record {before.document.number} as it "
                    "has signed it: it was rolled back or rewritten"
                )
            _keep(transaction, party.signing_key, head)

    def told(self, head: Signed[LedgerHead]) -> None:
        """A peer shows a head that it says is this server's. Raises LedgerBroken if it is, and the ledger lacks it."""
        try:
            signing.verify(self._own, head.document.kind, head.document.to_json(), head.signature)
        except signing.SignatureRefused:
            return logs.say(log, "shown a head with another signature", level=logging.WARNING)
        if not self._ledger.contains(head.document.number, head.document.hash):
            with self._database.begin() as transaction:
                _keep(transaction, self._own, head)  # so that this is known after a restart
            self.verify()
        return None

    def all(self) -> list[Signed[LedgerHead]]:
        """Every head kept here, this server's own included."""
        with reading(self._database) as connection:
            found = connection.execute(select(heads.c.head).order_by(heads.c.key, heads.c.number)).scalars().all()
        return [Signed[LedgerHead].model_validate_json(text) for text in found]


def _contradicts(before: LedgerHead, later: LedgerHead) -> bool:
    return later.number < before.number or (later.number == before.number and later.hash != before.hash)


def _latest(within: Connection, key: str) -> Signed[LedgerHead] | None:
    own = select(heads.c.head).where(heads.c.key == key).order_by(heads.c.number.desc()).limit(1)
    text = within.execute(own).scalar_one_or_none()
    return None if text is None else Signed[LedgerHead].model_validate_json(text)


def _keep(within: Connection, key: str, head: Signed[LedgerHead]) -> None:
    """One for each key and run, the latest: a peer that connects again and again takes no more room."""
    document = head.document
    within.execute(delete(heads).where(heads.c.key == key, heads.c.run == document.run))
    text = canonical.dump(head.to_json()).decode()
    row = {"key": key, "run": document.run, "number": document.number, "hash": document.hash, "head": text}
    within.execute(heads.insert().values(**row))
