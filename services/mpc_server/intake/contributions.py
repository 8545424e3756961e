"""Contributions: what holders share into studies, checked on arrival against what they signed.

An offer carries the signed statement and the openings of this server's components, which the study's scheme assigns;
seeds are verified at once, a vector when all of its chunks are there. `states` says what may happen when.
A chunk's file is on disk before the row that counts it; a key is forgotten before the files it encrypts are unlinked.
So a server that was killed resumes where it was.
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
from caps.shares.sharing import Seeded
from caps.wire import Commitment, Contribution, ContributionState, Offer, Opening, Receipt, Signed, commitment
from caps.wire.problems import Kind
from services.mpc_server.intake.studies import Studies, forget, receipt_of, text_of
from services.mpc_server.storage import states
from services.mpc_server.storage.rows import contributions as rows
from services.mpc_server.storage.shares import ShareStore, StoredVector, decrypt, encrypt, forgotten, new_key

MOST_CHUNKS = 1 << 16
"""The most chunks of one contribution; each is a file."""

_OPENINGS = TypeAdapter(tuple[Opening, ...])


class Contributions:
    """All contributions to all studies of one server."""

    def __init__(self, site: Site, studies: Studies, database: Engine, store: ShareStore) -> None:
        self._site = site
        self._studies = studies
        self._database = database
        self._store = store

    def offer(self, study: str, contribution: str, offer: Offer, caller: Caller) -> tuple[ContributionState, bool]:
        """A holder begins a contribution. Also returns whether it is new; the same offer again changes nothing."""
        manifest = self._studies.manifest(study)
        document = offer.contribution.document
        holder = manifest.holder(document.holder)
        confirm(caller, holder)
        offer.contribution.verify(holder)
        if document.digest() != contribution:
            raise Problem(Kind.INVALID, "the id in the address is not the id of the contribution sent", study=study)
        document.check(manifest)
        if document.chunks > MOST_CHUNKS:
            raise Problem(Kind.INVALID, f"a contribution may have at most {MOST_CHUNKS} chunks", study=study)
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
                self._studies.require_room(connection, study, holder.name)
                rows.add(connection, **row)
        return self._state(study, contribution), known is None

    def _check_openings(self, document: Contribution, openings: tuple[Opening, ...]) -> None:
        study = document.study
        scheme, held = self._studies.manifest(study).sharing, self._components(study)
        if sorted(opening.component for opening in openings) != sorted(held):
            raise Problem(Kind.INVALID, f"{self._site.name} must get components {_enumerated(held)}", study=study)
        for opening in openings:
            if (opening.seed is not None) != (opening.component in scheme.seeded):
                detail = f"components {_enumerated(scheme.seeded)} must have seeds, and no others"
                raise Problem(Kind.INVALID, detail, study=study)
            if opening.seed is None:
                continue
            content = commitment(bytes.fromhex(opening.nonce), bytes.fromhex(opening.seed))
            if content != document.commitments[opening.component]:
                detail = f"component {opening.component} does not match its commitment"
                raise Problem(Kind.INVALID, detail, study=study)

    def _be_the_only_one(self, connection: Connection, study: str, holder: str) -> None:
        other = rows.present(connection, study, holder)
        if other is not None:
            raise Problem(
                Kind.CONFLICT,
                f"{holder} already has another contribution here; withdraw that one first",
                study=study,
                contribution=other,
            )

    def state(self, study: str, contribution: str, caller: Caller) -> ContributionState:
        """How much of a contribution has arrived; for its holder and the coordinator."""
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
        order = {holder.name: place for place, holder in enumerate(manifest.holders)}
        return [_summary(row, ()) for row in sorted(whole, key=lambda row: order[row.holder])]

    def chunk_length(self, study: str, contribution: str, number: int, caller: Caller) -> int:
        """How many bytes a chunk must have. Raises a problem if the caller may not send it."""
        row = self._own(study, contribution, caller)
        document = _document(row)
        if self._vector_component(study) is None:
            raise Problem(Kind.NOT_FOUND, f"{self._site.name} takes no chunks, only seeds", study=study)
        if number >= document.chunks:
            raise Problem(
                Kind.NOT_FOUND, f"there is no chunk {number}; the contribution has {document.chunks}", study=study
            )
        return _length(document, number)

    def put_chunk(self, study: str, contribution: str, number: int, data: bytes | bytearray, caller: Caller) -> None:
        """Keep a chunk of the vector. Sending the same bytes again changes nothing; different bytes are refused."""
        expected = self.chunk_length(study, contribution, number, caller)
        if len(data) != expected:
            raise Problem(Kind.INVALID, f"chunk {number} must have {expected} bytes, not {len(data)}", study=study)
        with self._store.guard(contribution):
            row = self._row(study, contribution)
            with reading(self._database) as connection:
                checksum = rows.checksum(connection, contribution, number)
            if checksum is not None:
                # A chunk that was damaged on disk is replaced: the commitment decides in the end.
                with suppress(LocalError):
                    if self._store.get_chunk(contribution, number, self._key(row), checksum) == data:
                        return
                    raise Problem(Kind.CONFLICT, f"chunk {number} was sent before with different content", study=study)
            with self._database.begin() as connection:
                self._awaited(connection, row)
                rows.drop_chunk(connection, contribution, number)
            key = self._key(row)
            checksum = self._store.put_chunk(contribution, number, key, data)
            with self._database.begin() as connection:
                self._awaited(connection, row)
                rows.add_chunk(connection, contribution, number, checksum)

    def receipt(self, study: str, contribution: str, caller: Caller) -> Signed[Receipt]:
        """The holder has sent everything: verify the vector, and sign for the whole contribution."""
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
        """The holder withdraws its contribution, at any time unless it is sealed, whether or not it has all arrived.

        The receipt of one that is gone already, withdrawn or erased, is returned as it is.
        """
        self._own(study, contribution, caller)
        with self._store.guard(contribution):
            with self._database.begin() as connection:
                row = _known(self._find(connection, study, contribution))
                if row.state in states.GONE:
                    receipt = Signed[Receipt].model_validate_json(row.receipt)
                else:
                    self._studies.require_unsealed(connection, study, contribution)
                    receipt = forget(connection, self._site, row, states.ContributionEvent.WITHDRAW)
            forgotten(self._database)
            self._store.erase_chunks(contribution)
        return receipt

    def load(self, contribution: str) -> tuple[Words, ...]:
        """This server's components of a complete contribution, in the scheme's order.

        Raises LocalError if they are gone or damaged.
        """
        document, parts = self.parts(contribution)
        ring = SHARED_RINGS[document.bits]
        return tuple(
            part.words(document.shape, ring) if isinstance(part, Seeded) else _held(part, document) for part in parts
        )

    def parts(self, contribution: str) -> tuple[Contribution, tuple[Seeded | StoredVector, ...]]:
        """What its components are made of: seeds, and a vector that is left where it is stored."""
        with reading(self._database) as connection:
            row = rows.find(connection, contribution)
        if row is None or row.state != states.Contribution.COMPLETE:
            raise LocalError(f"contribution {contribution}: {'unknown' if row is None else row.state}")
        document = _document(row)
        seeds = {opening.component: opening.seed for opening in self._openings(row)}

        def part(component: int) -> Seeded | StoredVector:
            seed = seeds[component]
            return self._vector(row) if seed is None else Seeded(bytes.fromhex(seed), component)

        return document, tuple(map(part, self._components(row.study)))

    def _vector(self, row: Row[Any]) -> StoredVector:
        with reading(self._database) as connection:
            held = rows.chunks_of(connection, row.contribution)
        return StoredVector(self._store, row.contribution, self._key(row), held, _document(row).chunk_bytes)

    def _verify(self, row: Row[Any]) -> None:
        component = self._vector_component(row.study)
        if component is None:
            return
        nonces = {opening.component: opening.nonce for opening in self._openings(row)}
        content = Commitment(bytes.fromhex(nonces[component]))
        for data in self._content(row):
            content.update(data)
        if not content.opens(_document(row).commitments[component]):
            raise Problem(Kind.INVALID, f"component {component} does not match its commitment", study=row.study)

    def _content(self, row: Row[Any]) -> Iterator[bytes]:
        yield from self._vector(row).chunks()

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
        """The component that is sent as a vector, in chunks, if this server holds it."""
        seeded = self._studies.manifest(study).sharing.seeded
        return next((component for component in self._components(study) if component not in seeded), None)

    def _awaited(self, connection: Connection, row: Row[Any]) -> None:
        """Within a transaction: require that the contribution still takes chunks."""
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


def _held(vector: StoredVector, document: Contribution) -> Words:
    """A vector as words, filled chunk by chunk, so that it is in memory only once."""
    try:
        return SHARED_RINGS[document.bits].read(document.shape, vector.chunks())
    except ShareError as error:
        raise LocalError(f"contribution {vector.contribution}: {error}") from error


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
        raise Problem(Kind.NOT_FOUND, "this server does not know the contribution; send its offer first")
    return row


def _key_name(contribution: str) -> str:
    return f"contribution/{contribution}"


def _openings_name(contribution: str) -> str:
    return f"contribution/{contribution}/openings"
