"""Contributions: what holders share into studies, checked on arrival against what they signed.

An offer carries the signed statement and the openings of this server's components, which the study's scheme assigns;
seeds are verified at once, a vector when all of its chunks are there. What may follow on what is in `states`.
A chunk's file is on disk before the row that counts it; a key is forgotten before the files it encrypts are unlinked.
So a server that was killed goes on where it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import Connection, Engine, Row

from caps.errors import LocalError, ShareError
from caps.service.database import reading
from caps.service.identity import Caller
from caps.service.problems import Problem
from caps.service.site import Site, confirm
from caps.service.tokens import Scope
from caps.shares.ring import SHARED_RINGS, Words
from caps.shares.sharing import Explicit, Seeded
from caps.wire import Commitment, Contribution, ContributionState, Offer, Opening, Receipt, Signed, commitment
from caps.wire.problems import Kind
from services.mpc_server.intake.studies import Studies, forget, receipt_of, text_of
from services.mpc_server.storage import states
from services.mpc_server.storage.rows import contributions as rows
from services.mpc_server.storage.shares import ShareStore, decrypt, encrypt, forgotten, new_key

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
            raise Problem(Kind.INVALID, "the id in the address is not that of the contribution", study=study)
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
            "wrapped_key": self._store.vault.wrap(_key_name(contribution), key),
            "openings": encrypt(key, _openings_name(contribution), _OPENINGS.dump_json(offer.openings)),
        }
        with self._database.begin() as connection:
            known = self._find(connection, study, contribution)
            if known is None:
                self._studies.require_open(connection, study)
                self._be_the_only_one(connection, study, holder.name)
                rows.add(connection, **row)
        return self._state(study, contribution), known is None

    def _check_openings(self, document: Contribution, openings: tuple[Opening, ...]) -> None:
        study = document.study
        scheme, held = self._studies.manifest(study).sharing, self._components(study)
        if sorted(opening.component for opening in openings) != sorted(held):
            raise Problem(Kind.INVALID, f"{self._site.name} holds components {_enumerated(held)}", study=study)
        for opening in openings:
            if (opening.seed is not None) != (opening.component in scheme.seeded):
                detail = f"only components {_enumerated(scheme.seeded)} have seeds"
                raise Problem(Kind.INVALID, detail, study=study)
            if opening.seed is None:
                continue
            content = commitment(bytes.fromhex(opening.nonce), bytes.fromhex(opening.seed))
            if content != document.commitments[opening.component]:
                detail = f"component {opening.component} is not the one committed to"
                raise Problem(Kind.INVALID, detail, study=study)

    def _be_the_only_one(self, connection: Connection, study: str, holder: str) -> None:
        other = rows.present(connection, study, holder)
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
        with reading(self._database) as connection:
            found = rows.of_study(connection, study)
        whole = [row for row in found if row.state == states.Contribution.COMPLETE]
        order = [holder.name for holder in manifest.holders]
        return [_summary(row, ()) for row in sorted(whole, key=lambda row: order.index(row.holder))]

    def chunk_length(self, study: str, contribution: str, number: int, caller: Caller) -> int:
        """How many bytes a chunk must have, if the caller may send it."""
        row = self._own(study, contribution, caller)
        document = _document(row)
        if self._vector_component(study) is None:
            raise Problem(Kind.NOT_FOUND, f"{self._site.name} holds no component that has chunks", study=study)
        if number >= document.chunks:
            raise Problem(Kind.NOT_FOUND, f"the contribution has {document.chunks} chunks", study=study)
        return _length(document, number)

    def put_chunk(self, study: str, contribution: str, number: int, data: bytes | bytearray, caller: Caller) -> None:
        """Keep a chunk of the vector. The same bytes again change nothing; others are refused."""
        expected = self.chunk_length(study, contribution, number, caller)
        if len(data) != expected:
            raise Problem(Kind.INVALID, f"chunk {number} has {expected} bytes, not {len(data)}", study=study)
        with self._store.guard(contribution):
            row = self._row(study, contribution)
            with reading(self._database) as connection:
                checksum = rows.checksum(connection, contribution, number)
            if checksum is not None:
                # One that was damaged on disk is replaced: the commitment decides in the end.
                with suppress(LocalError):
                    if self._store.get_chunk(contribution, number, self._key(row), checksum) == data:
                        return
                    raise Problem(Kind.CONFLICT, f"chunk {number} was sent with other content before", study=study)
            with self._database.begin() as connection:
                self._awaited(connection, row)
                rows.drop_chunk(connection, contribution, number)
            key = self._key(row)
            checksum = self._store.put_chunk(contribution, number, key, data)
            with self._database.begin() as connection:
                self._awaited(connection, row)
                rows.add_chunk(connection, contribution, number, checksum)

    def receipt(self, study: str, contribution: str, caller: Caller) -> Signed[Receipt]:
        """The holder has sent everything: the vector is verified, and the server signs for the whole."""
        self._own(study, contribution, caller)
        with self._store.guard(contribution):
            row = self._row(study, contribution)
            if row.state == states.Contribution.COMPLETE:
                return Signed[Receipt].model_validate_json(row.receipt)
            with self._database.begin() as connection:
                self._awaited(connection, row)
            missing = self._missing(row)
            if missing:
                raise Problem(Kind.NOT_READY, "chunks are missing", study=study, missing=[list(one) for one in missing])
            self._verify(row)
            with self._database.begin() as connection:
                self._awaited(connection, row)
                event = states.ContributionEvent.COMPLETE
                receipt = receipt_of(self._site, row, event)
                rows.change(connection, contribution, event, receipt=text_of(receipt))
        return receipt

    def withdraw(self, study: str, contribution: str, caller: Caller) -> Signed[Receipt]:
        """The holder takes its contribution back, before the study is sealed. Repeated, it returns the same receipt."""
        self._own(study, contribution, caller)
        with self._store.guard(contribution):
            with self._database.begin() as connection:
                row = _known(self._find(connection, study, contribution))
                if row.state == states.Contribution.WITHDRAWN:
                    receipt = Signed[Receipt].model_validate_json(row.receipt)
                else:
                    self._studies.require_open(connection, study)
                    receipt = forget(connection, self._site, row, states.ContributionEvent.WITHDRAW)
            forgotten(self._database)
            self._store.erase_chunks(contribution)
        return receipt

    def load(self, contribution: str) -> tuple[Words, ...]:
        """This server's components of a complete contribution, in the order in which the scheme has it keep them.

        Raises LocalError if they are gone or damaged.
        """
        with reading(self._database) as connection:
            row = rows.find(connection, contribution)
        if row is None or row.state != states.Contribution.COMPLETE:
            raise LocalError(f"contribution {contribution}: {'unknown' if row is None else row.state}")
        document = _document(row)
        seeds = {opening.component: opening.seed for opening in self._openings(row)}

        def part(component: int) -> Seeded | Explicit:
            seed = seeds[component]
            return Explicit(self._vector(row)) if seed is None else Seeded(bytes.fromhex(seed), component)

        ring = SHARED_RINGS[document.bits]
        return tuple(part(component).words(document.shape, ring) for component in self._components(row.study))

    def _vector(self, row: Row[Any]) -> Words:
        """Filled chunk by chunk: the vector is in memory once."""
        document = _document(row)
        try:
            return SHARED_RINGS[document.bits].read(document.shape, self._content(row))
        except ShareError as error:
            raise LocalError(f"contribution {row.contribution}: {error}") from error

    def _verify(self, row: Row[Any]) -> None:
        component = self._vector_component(row.study)
        if component is None:
            return
        nonces = {opening.component: opening.nonce for opening in self._openings(row)}
        content = Commitment(bytes.fromhex(nonces[component]))
        for data in self._content(row):
            content.update(data)
        if not content.opens(_document(row).commitments[component]):
            raise Problem(Kind.INVALID, f"component {component} is not the one committed to", study=row.study)

    def _content(self, row: Row[Any]) -> Iterator[bytes]:
        key = self._key(row)
        with reading(self._database) as connection:
            held = rows.chunks_of(connection, row.contribution)
        for number, checksum in held.items():
            yield self._store.get_chunk(row.contribution, number, key, checksum)

    def _state(self, study: str, contribution: str) -> ContributionState:
        row = self._row(study, contribution)
        return _summary(row, self._missing(row) if row.state == states.Contribution.OFFERED else ())

    def _missing(self, row: Row[Any]) -> tuple[tuple[int, int], ...]:
        if self._vector_component(row.study) is None:
            return ()
        with reading(self._database) as connection:
            return _gaps(rows.chunks_of(connection, row.contribution), _document(row).chunks)

    def _components(self, study: str) -> tuple[int, ...]:
        """The components that this server holds, in the scheme's order."""
        return self._studies.manifest(study).sharing.held[self._studies.party(study)]

    def _vector_component(self, study: str) -> int | None:
        """The one of them that travels as a vector, in chunks, if there is one."""
        seeded = self._studies.manifest(study).sharing.seeded
        return next((component for component in self._components(study) if component not in seeded), None)

    def _awaited(self, connection: Connection, row: Row[Any]) -> None:
        """Within a transaction: the contribution can still grow."""
        self._studies.require_open(connection, row.study)
        state = _known(self._find(connection, row.study, row.contribution)).state
        if state != states.Contribution.OFFERED:
            raise Problem(Kind.CONFLICT, f"the contribution is {state}", study=row.study)

    def _own(self, study: str, contribution: str, caller: Caller) -> Row[Any]:
        row = self._row(study, contribution)
        confirm(caller, self._studies.manifest(study).holder(row.holder))
        return row

    def _row(self, study: str, contribution: str) -> Row[Any]:
        with reading(self._database) as connection:
            return _known(self._find(connection, study, contribution))

    def _find(self, connection: Connection, study: str, contribution: str) -> Row[Any] | None:
        row = rows.find(connection, contribution)
        return row if row is not None and row.study == study else None

    def _key(self, row: Row[Any]) -> bytes:
        if row.wrapped_key is None:
            raise LocalError(f"contribution {row.contribution}: {row.state}")
        return self._store.vault.unwrap(_key_name(row.contribution), row.wrapped_key)

    def _openings(self, row: Row[Any]) -> tuple[Opening, ...]:
        return _OPENINGS.validate_json(decrypt(self._key(row), _openings_name(row.contribution), row.openings))


def _document(row: Row[Any]) -> Contribution:
    return Signed[Contribution].model_validate_json(row.offer).document


def _enumerated(components: Iterable[int]) -> str:
    return " and ".join(map(str, components))


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
