"""A server's own record of privacy loss: append-only, each record holding the hash of the one before.

A run reserves the whole budget of its study before anything is opened; every step is charged before it is computed. So
a crash may cost budget, but never privacy. Only the reservation of a run that charged nothing is ever refunded.

Records are canonical JSON: {number, previous, at, kind, study, run, ...}. A reservation is written with its relation,
multiplicity and allowance in delta, so that what a population has left follows from the records alone
(`caps.dp.privacy.population`). Kind, run and population are also columns, by which records are found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from fractions import Fraction
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, Row, select

from caps.basics import canonical
from caps.dp.privacy import BudgetExceeded, Entry, Neighbouring, PopulationBudget, Reservation
from caps.dp.privacy.rational import encode_ratio
from caps.errors import DomainError, LocalError
from caps.service.database import reading
from caps.study import Manifest
from caps.wire import Evidence, LedgerRange, Signed
from services.mpc_server.storage.tables import ledger, steps

GENESIS = "0" * 64
FREE = "{}"
"""How the request of a COMPUTE ANSWERS that is not charged is recorded."""
_COLUMNS = ("kind", "run", "population")
"""Members of records that are columns as well."""


class RecordKind(StrEnum):
    """What a record says happened. The budget of a run is reserved, charged step by step, and closed or released.

    A run that is aborted has a record of the evidence of each server that gave some; what it charged stays charged.
    """

    RESERVE = "reserve"
    CHARGE = "charge"
    CLOSE = "close"
    RELEASE = "release"
    ABORT = "abort"


class LedgerBroken(LocalError):
    """The ledger was altered or is incomplete: this server must not go on."""


class Ledger:
    """The record, in the server's database. Methods that write take the transaction they belong to."""

    def __init__(self, database: Engine) -> None:
        self._database = database

    def verify(self) -> int:
        """Recompute the chain; return the number of records. Raises LedgerBroken where it does not hold.

        A chain does not show that its end is missing: the steps written down with their charges do.
        """
        previous, count = GENESIS, 0
        charged = set()
        for row in self._rows():
            record = _content(row, count)
            if (record.get("number"), record.get("previous")) != (count, previous) or _hash(record) != row.hash:
                raise LedgerBroken(
                    f"record {count} of the ledger does not continue the chain: records were altered or lost"
                )
            for name in _COLUMNS:
                if getattr(row, name) != record.get(name):
                    raise LedgerBroken(f"record {count} of the ledger is indexed under a different {name} than its own")
            if record.get("kind") == RecordKind.CHARGE:
                charged.add((record.get("run"), record.get("step"), record.get("request")))
            previous, count = row.hash, count + 1
        with reading(self._database) as connection:
            known = select(steps.c.run, steps.c.step, steps.c.digest).where(steps.c.request != FREE)
            if any(tuple(row) not in charged for row in connection.execute(known)):
                raise LedgerBroken("the charge of a recorded step is missing from the ledger")
        return count

    def records(self) -> Iterator[dict[str, Any]]:
        """Every record with its hash, in order."""
        for row in self._rows():
            yield _content(row, row.number) | {"hash": row.hash}

    def taken(self) -> dict[str, list[Reservation]]:
        """What of each population's budget is set aside on this server."""
        with reading(self._database) as connection:
            return _taken(connection)

    def standing(self) -> dict[str, dict[str, Reservation]]:
        """By population and run, what was set aside and not given back."""
        with reading(self._database) as connection:
            return _taken_by_run(connection)

    def part(self, first: int, count: int) -> list[dict[str, Any]]:
        """Records from a number on, with their hashes: a page of them."""
        some = select(ledger).where(ledger.c.number >= first).order_by(ledger.c.number).limit(count)
        with reading(self._database) as connection:
            return [_content(row, row.number) | {"hash": row.hash} for row in connection.execute(some)]

    def length(self) -> int:
        """How many records there are."""
        with reading(self._database) as connection:
            last = _last(connection)
        return 0 if last is None else last.number + 1

    def of_run(self, run: str) -> list[dict[str, Any]]:
        """The records about a run, in order."""
        own = select(ledger).where(ledger.c.run == run).order_by(ledger.c.number)
        with reading(self._database) as connection:
            return [_content(row, row.number) | {"hash": row.hash} for row in connection.execute(own)]

    def begun(self) -> dict[str, str]:
        """When each run reserved its budget, the oldest first."""
        reserved = select(ledger).where(ledger.c.kind == RecordKind.RESERVE).order_by(ledger.c.number)
        with reading(self._database) as connection:
            return {row.run: str(_content(row, row.number)["at"]) for row in connection.execute(reserved)}

    def reserve(
        self,
        within: Connection,
        run: str,
        manifest: Manifest,
        reservation: Reservation,
        *,
        limit: PopulationBudget,
        at: str,
    ) -> None:
        """Set a study's whole budget aside for a run. Raises BudgetExceeded if the population has less left.

        `limit` is what all studies of the population may cost together, by this server's policy.
        """
        population, privacy = manifest.privacy.population, manifest.privacy
        taken = _taken(within, ledger.c.population == population).get(population, [])
        if not limit.admits([*taken, reservation]):
            refusal = limit.refusal(taken, reservation, privacy.exact_delta)
            raise BudgetExceeded(f"population {population} has {refusal}")
        members = {"population": population, "privacy": privacy.to_json(), **reservation.to_json()}
        self._append(within, RecordKind.RESERVE, manifest.study_id, run, at, **members)

    def charge(
        self, within: Connection, run: str, study: str, step: int, request: str, entry: Entry, by: Neighbouring, at: str
    ) -> str:
        """Record the charge of a step, before it is computed; return the record's hash."""
        return self._append(
            within, RecordKind.CHARGE, study, run, at, step=step, request=request, entry=entry.to_json(by)
        )

    def close(self, within: Connection, run: str, study: str, spent: Fraction, at: str) -> str:
        """Record that a run has ended."""
        return self._append(within, RecordKind.CLOSE, study, run, at, spent=encode_ratio(spent))

    def release(self, within: Connection, run: str, manifest: Manifest, at: str) -> None:
        """Give back what a run reserved, because it failed before it charged anything."""
        self._append(within, RecordKind.RELEASE, manifest.study_id, run, at, population=manifest.privacy.population)

    def abort(self, within: Connection, evidence: Signed[Evidence], at: str) -> None:
        """Record a server's evidence against a run. The same server's evidence is recorded once."""
        document = evidence.document
        if all(known.signer != evidence.signer for known in _evidence(within, document.run)):
            self._append(within, RecordKind.ABORT, document.study, document.run, at, evidence=evidence.to_json())

    def evidence(self, run: str) -> list[Signed[Evidence]]:
        """The recorded evidence against a run, in the order in which it came."""
        with reading(self._database) as connection:
            return _evidence(connection, run)

    def head(self, within: Connection) -> tuple[int, str]:
        """Number and hash of the last record. Raises LedgerBroken if there is none: a run has reserved its budget."""
        last = _last(within)
        if last is None:
            raise LedgerBroken("the ledger is empty although a run has reserved its budget")
        return last.number, last.hash

    def contains(self, number: int, digest: str) -> bool:
        """Whether the record of this number has this hash."""
        found = select(ledger.c.number).where(ledger.c.number == number, ledger.c.hash == digest)
        with reading(self._database) as connection:
            return connection.execute(found).first() is not None

    def range_of(self, run: str) -> LedgerRange:
        """Where a run stands in the record."""
        with reading(self._database) as connection:
            own = select(ledger.c.number, ledger.c.hash).where(ledger.c.run == run).order_by(ledger.c.number)
            found = connection.execute(own).all()
        first, last = found[0], found[-1]
        return LedgerRange(first=first.number, last=last.number, first_hash=first.hash, last_hash=last.hash)

    def _append(self, within: Connection, kind: RecordKind, study: str, run: str, at: str, **members: object) -> str:
        last = _last(within)
        number, previous = (0, GENESIS) if last is None else (last.number + 1, last.hash)
        record = {"number": number, "previous": previous, "at": at, "kind": kind, "study": study, "run": run, **members}
        digest = _hash(record)
        columns = {name: record.get(name) for name in _COLUMNS}
        text = canonical.dump(record).decode()
        within.execute(ledger.insert().values(number=number, record=text, hash=digest, **columns))
        return digest

    def _rows(self) -> Sequence[Row[Any]]:
        with reading(self._database) as connection:
            return connection.execute(select(ledger).order_by(ledger.c.number)).all()


def _last(within: Connection) -> Row[Any] | None:
    return within.execute(select(ledger).order_by(ledger.c.number.desc()).limit(1)).first()


def _taken(within: Connection, *conditions: ColumnElement[bool]) -> dict[str, list[Reservation]]:
    """By population, what was reserved and not given back, in the records that meet the conditions."""
    return {population: list(runs.values()) for population, runs in _taken_by_run(within, *conditions).items()}


def _taken_by_run(within: Connection, *conditions: ColumnElement[bool]) -> dict[str, dict[str, Reservation]]:
    kinds = ledger.c.kind.in_((RecordKind.RESERVE, RecordKind.RELEASE))
    taken: dict[str, dict[str, Reservation]] = {}
    for row in within.execute(select(ledger).where(kinds, *conditions).order_by(ledger.c.number)):
        record, runs = _content(row, row.number), taken.setdefault(row.population, {})
        if row.kind == RecordKind.RESERVE:
            runs[row.run] = Reservation.from_json({name: record[name] for name in Reservation.MEMBERS})
        else:
            del runs[row.run]
    return taken


def _evidence(within: Connection, run: str) -> list[Signed[Evidence]]:
    found = select(ledger).where(ledger.c.run == run, ledger.c.kind == RecordKind.ABORT).order_by(ledger.c.number)
    return [
        Signed[Evidence].model_validate_json(canonical.dump(_content(row, row.number)["evidence"]))
        for row in within.execute(found)
    ]


def _content(row: Row[Any], number: int) -> dict[str, Any]:
    """The text of a record, which should have this number, as an object."""
    try:
        found = canonical.load(row.record.encode())
    except DomainError:
        found = None
    if not isinstance(found, dict):
        raise LedgerBroken(f"record {number} of the ledger is not an object in canonical JSON")
    return found


def _hash(record: dict[str, Any]) -> str:
    return canonical.digest("ledger-record", {"record": record}).hex()
