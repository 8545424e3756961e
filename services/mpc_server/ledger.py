"""A server's own record of privacy loss: append-only, each record holding the hash of the one before.

A run reserves the whole budget of its study before anything is opened; every step is charged before it is computed. So
a crash may cost budget, never privacy. Nothing is ever refunded but the reservation of a run that charged nothing.

Records are canonical JSON: {number, previous, at, kind, study, run, ...}; kinds are `reserve`, `charge`, `close` and
`release`. A reservation is written with its relation, multiplicity and allowance in delta, so that what a population
has left follows from the records alone (`caps.dp.privacy.population`).
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from sqlalchemy import Connection, Engine, select

from caps.basics import canonical
from caps.dp.privacy import BudgetExceeded, Entry, Neighbouring, PopulationBudget, Reservation
from caps.dp.privacy.rational import encode_ratio
from caps.errors import DomainError, LocalError
from caps.service.database import reading
from caps.study import Manifest
from caps.wire import LedgerRange
from services.mpc_server.tables import ledger, steps

GENESIS = "0" * 64
FREE = "{}"
"""The request, as it is written down, of a COMPUTE ANSWERS that is not charged."""


class LedgerBroken(LocalError):
    """The record was altered or lost: this server must not go on."""


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
        for record, written in self._rows():
            try:
                found = canonical.load(record.encode())
            except DomainError:
                found = None
            if not isinstance(found, dict):
                raise LedgerBroken(f"record {count} of the ledger is none")
            if (found.get("number"), found.get("previous")) != (count, previous) or _hash(found) != written:
                raise LedgerBroken(f"record {count} of the ledger is not the one that was written")
            if found.get("kind") == "charge":
                charged.add((found.get("run"), found.get("step"), found.get("request")))
            previous, count = written, count + 1
        with reading(self._database) as connection:
            known = select(steps.c.run, steps.c.step, steps.c.digest).where(steps.c.request != FREE)
            if any(tuple(row) not in charged for row in connection.execute(known)):
                raise LedgerBroken("a step was written down whose charge is not in the ledger")
        return count

    def records(self) -> Iterator[dict[str, Any]]:
        """Every record with its hash, in order."""
        for record, written in self._rows():
            found = canonical.load(record.encode())
            assert isinstance(found, dict)
            yield found | {"hash": written}

    def taken(self) -> dict[str, list[Reservation]]:
        """What of each population's budget is set aside on this server."""
        with reading(self._database) as connection:
            return _taken(connection)

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
        """Set a study's whole budget aside for a run. Raises BudgetExceeded if the population has not so much left.

        `limit` is what all studies of the population may cost together, by this server's policy.
        """
        population, privacy = manifest.privacy.population, manifest.privacy
        taken = _taken(within, population=population).get(population, [])
        if not limit.admits([*taken, reservation]):
            refusal = limit.refusal(taken, reservation, privacy.exact_delta)
            raise BudgetExceeded(f"population {population} has {refusal}")
        members = {"population": population, "privacy": privacy.to_json(), **reservation.to_json()}
        self._append(within, "reserve", manifest.study_id, run, at, **members)

    def charge(
        self, within: Connection, run: str, study: str, step: int, request: str, entry: Entry, by: Neighbouring, at: str
    ) -> str:
        """Record the charge of a step, before it is computed; return the record's hash."""
        return self._append(within, "charge", study, run, at, step=step, request=request, entry=entry.to_json(by))

    def close(self, within: Connection, run: str, study: str, spent: Fraction, at: str) -> str:
        """Record that a run has ended."""
        return self._append(within, "close", study, run, at, spent=encode_ratio(spent))

    def release(self, within: Connection, run: str, manifest: Manifest, at: str) -> None:
        """Give back what a run reserved, for it failed before it charged anything."""
        self._append(within, "release", manifest.study_id, run, at, population=manifest.privacy.population)

    def range_of(self, run: str) -> LedgerRange:
        """Where a run stands in the record."""
        with reading(self._database) as connection:
            found = _found(connection, run=run)
        first, last = found[0], found[-1]
        return LedgerRange(first=first["number"], last=last["number"], first_hash=first["hash"], last_hash=last["hash"])

    def _append(self, within: Connection, kind: str, study: str, run: str, at: str, **members: object) -> str:
        last = within.execute(select(ledger.c.number, ledger.c.hash).order_by(ledger.c.number.desc()).limit(1)).first()
        number, previous = (0, GENESIS) if last is None else (last.number + 1, last.hash)
        record = {"number": number, "previous": previous, "at": at, "kind": kind, "study": study, "run": run, **members}
        digest = _hash(record)
        within.execute(ledger.insert().values(number=number, record=canonical.dump(record).decode(), hash=digest))
        return digest

    def _rows(self) -> list[tuple[str, str]]:
        with reading(self._database) as connection:
            rows = connection.execute(select(ledger.c.record, ledger.c.hash).order_by(ledger.c.number)).all()
        return [(row.record, row.hash) for row in rows]


def _taken(within: Connection, **members: str) -> dict[str, list[Reservation]]:
    """By population, what was reserved and not given back, in the records with these members."""
    records = [record for kind in ("reserve", "release") for record in _found(within, kind=kind, **members)]
    taken: dict[str, dict[str, Reservation]] = {}
    for record in sorted(records, key=lambda record: int(record["number"])):
        runs = taken.setdefault(record["population"], {})
        if record["kind"] == "reserve":
            runs[record["run"]] = Reservation.from_json({name: record[name] for name in Reservation.MEMBERS})
        else:
            del runs[record["run"]]
    return {population: list(runs.values()) for population, runs in taken.items()}


def _found(within: Connection, **members: str) -> list[dict[str, Any]]:
    """The records with these members, in order, and their hashes.

    The database looks for them, since to read every record takes long: in canonical JSON a member has but one spelling.
    """
    chosen = select(ledger.c.record, ledger.c.hash).order_by(ledger.c.number)
    for name, value in members.items():
        spelling = canonical.dump({name: value}).decode()[1:-1]
        chosen = chosen.where(ledger.c.record.contains(spelling, autoescape=True))
    found = [(canonical.load(row.record.encode()), row.hash) for row in within.execute(chosen)]
    return [
        record | {"hash": written}
        for record, written in found
        if isinstance(record, dict) and members.items() <= record.items()
    ]


def _hash(record: dict[str, Any]) -> str:
    return canonical.digest("ledger-record", {"record": record}).hex()
