"""Contributions: what holders share into studies, checked on arrival against what they signed.

    offered --all chunks, commitment holds--> complete
    offered, complete --holder, before sealing--> withdrawn
    offered, complete --retention, operator--> erased

An offer carries the signed statement and the openings of this server's two components; seeds are verified at once, the
vector when all of its chunks are there. A chunk's file is on disk before the row that counts it; a key is forgotten
before the files it encrypts are unlinked. So a server that was killed goes on where it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import Connection, Engine, Row, delete, insert, select, update

from caps.errors import LocalError, ShareError
from caps.service.database import reading
from caps.service.identity import Caller
from caps.service.problems import Kind, Problem
from caps.service.site import Site, confirm
from caps.service.tokens import Scope
from caps.shares.ring import SHARED_RINGS, Words
from caps.shares.sharing import Algebra, DealtShare, Explicit, Seeded
from caps.wire import Commitment, Contribution, ContributionState, Offer, Opening, Receipt, Signed, commitment
from services.mpc_server import tables
from services.mpc_server.store import ShareStore, decrypt, encrypt, forgotten, new_key
from services.mpc_server.studies import Studies, forget, receipt_of, text_of

VECTOR = 2
"""The component that travels as a vector."""
MOST_CHUNKS = 1 << 16
"""Of one contribution: each is a file."""

_OPENINGS = TypeAdapter(tuple[Opening, ...])


class Contributions:
    """All contributions to all studies of one server."""

    def __init__(self, site: Site, studies: Studies, database: Engine, store: ShareStore) -> None:
        self._site = site
        self._studies = studies
        self._database = database
        self._store = store

    def offer(self, study: str, contribution: str, offer: Offer, caller: Caller) -> tuple[ContributionState, bool]:
        """A holder begins. Second: whether it is new; the same offer again changes nothing."""
        manifest = self._studies.manifest(study)
        document = offer.contribution.document
        holder = manifest.holder(document.holder)
        confirm(caller, holder)
        offer.contribution.verify(holder)
        if document.digest() != contribution:
            raise Problem(Kind.INVALID, "the contribution is another than the address names", study=study)
        document.check(manifest)
        if document.chunks > MOST_CHUNKS:
            raise Problem(Kind.INVALID, f"a contribution has at most {MOST_CHUNKS} chunks", study=study)
        self._check_openings(document, offer.openings)
        key = new_key()
        row = {
            "contribution": contribution,
            "study": study,
            "holder": holder.name,
            "offer": text_of(offer.contribution),
            "state": "offered",
            "wrapped_key": self._store.vault.wrap(_key_name(contribution), key),
            "openings": encrypt(key, _openings_name(contribution), _OPENINGS.dump_json(offer.openings)),
        }
        with self._database.begin() as connection:
            known = self._find(connection, study, contribution)
            if known is None:
                self._studies.require_open(connection, study)
                self._be_the_only_one(connection, study, holder.name)
                connection.execute(insert(tables.contributions).values(**row))
        return self._state(study, contribution), known is None

    def _check_openings(self, document: Contribution, openings: tuple[Opening, ...]) -> None:
        party = self._studies.party(document.study)
        if {opening.component for opening in openings} != {party, (party + 1) % 3}:
            raise Problem(
                Kind.INVALID, f"{self._site.name} holds components {party} and {(party + 1) % 3}", study=document.study
            )
        for opening in openings:
            if (opening.seed is None) != (opening.component == VECTOR):
                raise Problem(Kind.INVALID, "components 0 and 1 have seeds, 2 has none", study=document.study)
            if opening.seed is None:
                continue
            content = commitment(bytes.fromhex(opening.nonce), bytes.fromhex(opening.seed))
            if content != document.commitments[opening.component]:
                raise Problem(
                    Kind.INVALID, f"component {opening.component} is not the one committed to", study=document.study
                )

    def _be_the_only_one(self, connection: Connection, study: str, holder: str) -> None:
        table = tables.contributions
        others = select(table.c.contribution).where(
            table.c.study == study, table.c.holder == holder, table.c.state.in_(("offered", "complete"))
        )
        other = connection.execute(others).scalars().first()
        if other is not None:
            raise Problem(
                Kind.CONFLICT,
                f"{holder} has another contribution here, which must be withdrawn first",
                study=study,
                contribution=other,
            )

    def state(self, study: str, contribution: str, caller: Caller) -> ContributionState:
        """What is here of a contribution; for its holder and the coordinator."""
        row = self._row(study, contribution)
        manifest = self._studies.manifest(study)
        is_coordinator = caller.machine is not None and caller.machine.role == "coordinator"
        confirm(caller, manifest.coordinator if is_coordinator else manifest.holder(row.holder))
        return self._state(study, contribution)

    def complete(self, study: str, caller: Caller) -> list[ContributionState]:
        """Every complete contribution to a study, in the manifest's order of holders; not for holders."""
        manifest = self._studies.manifest(study)
        if caller.person is None or not caller.person.scopes & {Scope.OPERATOR, Scope.AUDITOR}:
            confirm(caller, manifest.coordinator)
        table = tables.contributions
        with reading(self._database) as connection:
            rows = connection.execute(select(table).where(table.c.study == study, table.c.state == "complete")).all()
        order = [holder.name for holder in manifest.holders]
        return [_summary(row, ()) for row in sorted(rows, key=lambda row: order.index(row.holder))]

    def chunk_length(self, study: str, contribution: str, number: int, caller: Caller) -> int:
        """How many bytes a chunk must have, if the caller may send it."""
        row = self._own(study, contribution, caller)
        document = _document(row)
        if VECTOR not in self._components(row):
            raise Problem(Kind.NOT_FOUND, f"{self._site.name} holds no component that has chunks", study=study)
        if number >= document.chunks:
            raise Problem(Kind.NOT_FOUND, f"the contribution has {document.chunks} chunks", study=study)
        return _length(document, number)

    def put_chunk(self, study: str, contribution: str, number: int, data: bytes | bytearray, caller: Caller) -> None:
        """Keep a chunk of the vector. The same bytes again change nothing; others are refused."""
        expected = self.chunk_length(study, contribution, number, caller)
        if len(data) != expected:
            raise Problem(Kind.INVALID, f"chunk {number} has {expected} bytes, not {len(data)}", study=study)
        table = tables.chunks
        this = (table.c.contribution == contribution) & (table.c.number == number)
        with self._store.guard(contribution):
            row = self._row(study, contribution)
            with reading(self._database) as connection:
                checksum = connection.execute(select(table.c.sha256).where(this)).scalar()
            if checksum is not None:
                with suppress(
                    LocalError
                ):  # one that was damaged on disk is replaced: the commitment decides in the end
                    if self._store.get_chunk(contribution, number, self._key(row), checksum) == data:
                        return
                    raise Problem(Kind.CONFLICT, f"chunk {number} came with other bytes before", study=study)
            with self._database.begin() as connection:
                self._awaited(connection, row)
                connection.execute(delete(table).where(this))
            key = self._key(row)
            checksum = self._store.put_chunk(contribution, number, key, data)
            with self._database.begin() as connection:
                self._awaited(connection, row)
                connection.execute(insert(table).values(contribution=contribution, number=number, sha256=checksum))

    def receipt(self, study: str, contribution: str, caller: Caller) -> Signed[Receipt]:
        """The holder has sent everything: the vector is verified, and the server signs for the whole."""
        self._own(study, contribution, caller)
        with self._store.guard(contribution):
            row = self._row(study, contribution)
            if row.state == "complete":
                return Signed[Receipt].model_validate_json(row.receipt)
            with self._database.begin() as connection:
                self._awaited(connection, row)
            missing = self._missing(row)
            if missing:
                raise Problem(Kind.NOT_READY, "chunks are missing", study=study, missing=[list(one) for one in missing])
            self._verify(row)
            with self._database.begin() as connection:
                self._awaited(connection, row)
                receipt = receipt_of(self._site, row, "accepted")
                table = tables.contributions
                connection.execute(
                    update(table)
                    .where(table.c.contribution == contribution)
                    .values(state="complete", receipt=text_of(receipt))
                )
        return receipt

    def withdraw(self, study: str, contribution: str, caller: Caller) -> Signed[Receipt]:
        """The holder takes its contribution back, before the study is sealed. Repeated, it returns the same receipt."""
        self._own(study, contribution, caller)
        with self._store.guard(contribution):
            with self._database.begin() as connection:
                row = _known(self._find(connection, study, contribution))
                if row.state == "withdrawn":
                    receipt = Signed[Receipt].model_validate_json(row.receipt)
                else:
                    self._studies.require_open(connection, study)
                    receipt = forget(connection, self._site, row, "withdrawn")
            forgotten(self._database)
            self._store.erase_chunks(contribution)
        return receipt

    def load(self, contribution: str) -> tuple[Words, ...]:
        """This server's two components of a complete contribution. Raises LocalError if they are gone or damaged."""
        table = tables.contributions
        with reading(self._database) as connection:
            row = connection.execute(select(table).where(table.c.contribution == contribution)).first()
        if row is None or row.state != "complete":
            raise LocalError(f"contribution {contribution}: {'unknown' if row is None else row.state}")
        document, party = _document(row), self._studies.party(row.study)
        seeds = {opening.component: opening.seed for opening in self._openings(row)}
        ring = SHARED_RINGS[document.bits]

        def part(component: int) -> Seeded | Explicit:
            seed = seeds[component]
            return Explicit(self._vector(row)) if seed is None else Seeded(bytes.fromhex(seed), component)

        mine, other = part(party), part((party + 1) % 3)
        algebra = Algebra.XOR if document.form == "records" else Algebra.ADD
        return DealtShare(party, document.shape, ring, algebra, mine, other).components()

    def _vector(self, row: Row[Any]) -> Words:
        """Filled chunk by chunk: the vector is in memory once."""
        document = _document(row)
        try:
            return SHARED_RINGS[document.bits].read(document.shape, self._content(row))
        except ShareError as error:
            raise LocalError(f"contribution {row.contribution}: {error}") from error

    def _verify(self, row: Row[Any]) -> None:
        nonce = next((one.nonce for one in self._openings(row) if one.component == VECTOR), None)
        if nonce is None:
            return
        content = Commitment(bytes.fromhex(nonce))
        for data in self._content(row):
            content.update(data)
        if not content.opens(_document(row).commitments[VECTOR]):
            raise Problem(Kind.INVALID, f"component {VECTOR} is not the one committed to", study=row.study)

    def _content(self, row: Row[Any]) -> Iterator[bytes]:
        key, table = self._key(row), tables.chunks
        with reading(self._database) as connection:
            held = connection.execute(
                select(table.c.number, table.c.sha256)
                .where(table.c.contribution == row.contribution)
                .order_by(table.c.number)
            ).all()
        for number, checksum in held:
            yield self._store.get_chunk(row.contribution, number, key, checksum)

    def _state(self, study: str, contribution: str) -> ContributionState:
        row = self._row(study, contribution)
        return _summary(row, self._missing(row) if row.state == "offered" else ())

    def _missing(self, row: Row[Any]) -> tuple[tuple[int, int], ...]:
        if VECTOR not in self._components(row):
            return ()
        table = tables.chunks
        with reading(self._database) as connection:
            held = connection.execute(select(table.c.number).where(table.c.contribution == row.contribution)).scalars()
            return _gaps(held, _document(row).chunks)

    def _components(self, row: Row[Any]) -> tuple[int, int]:
        party = self._studies.party(row.study)
        return party, (party + 1) % 3

    def _awaited(self, connection: Connection, row: Row[Any]) -> None:
        """Within a transaction: the contribution can still grow."""
        self._studies.require_open(connection, row.study)
        state = _known(self._find(connection, row.study, row.contribution)).state
        if state != "offered":
            raise Problem(Kind.CONFLICT, f"the contribution is {state}", study=row.study)

    def _own(self, study: str, contribution: str, caller: Caller) -> Row[Any]:
        row = self._row(study, contribution)
        confirm(caller, self._studies.manifest(study).holder(row.holder))
        return row

    def _row(self, study: str, contribution: str) -> Row[Any]:
        with reading(self._database) as connection:
            return _known(self._find(connection, study, contribution))

    def _find(self, connection: Connection, study: str, contribution: str) -> Row[Any] | None:
        table = tables.contributions
        return connection.execute(
            select(table).where(table.c.contribution == contribution, table.c.study == study)
        ).first()

    def _key(self, row: Row[Any]) -> bytes:
        if row.wrapped_key is None:
            raise LocalError(f"contribution {row.contribution}: {row.state}")
        return self._store.vault.unwrap(_key_name(row.contribution), row.wrapped_key)

    def _openings(self, row: Row[Any]) -> tuple[Opening, ...]:
        return _OPENINGS.validate_json(decrypt(self._key(row), _openings_name(row.contribution), row.openings))


def _document(row: Row[Any]) -> Contribution:
    return Signed[Contribution].model_validate_json(row.offer).document


def _length(document: Contribution, number: int) -> int:
    return min(document.chunk_bytes, document.vector_bytes - number * document.chunk_bytes)


def _gaps(held: Iterable[int], total: int) -> tuple[tuple[int, int], ...]:
    """The ranges, first and last, of the numbers below `total` that are not held."""
    found, expected = [], 0
    for number in (*sorted(held), total):
        if number > expected:
            found.append((expected, number - 1))
        expected = number + 1
    return tuple(found)


def _summary(row: Row[Any], missing: tuple[tuple[int, int], ...]) -> ContributionState:
    return ContributionState(
        contribution=row.contribution,
        holder=row.holder,
        state=row.state,
        missing=missing,
        receipt=row.receipt and Signed[Receipt].model_validate_json(row.receipt),
    )


def _known(row: Row[Any] | None) -> Row[Any]:
    if row is None:
        raise Problem(Kind.NOT_FOUND, "this server does not know the contribution")
    return row


def _key_name(contribution: str) -> str:
    return f"contribution/{contribution}"


def _openings_name(contribution: str) -> str:
    return f"contribution/{contribution}/openings"
