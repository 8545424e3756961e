"""The light join at a server: its part of the pseudonyms' key, evaluated for holders; and at S1, the matching of tags.

    evaluate (all servers) -> tags (S1) -> positions (S1), to each holder its own

What protects people here is that guesses are few and come to an end: every holder may have as many elements evaluated
as it has padded rows, a repeated batch is free, and the study's key is forgotten when its inputs are sealed. What is
stored is encrypted under a key that is forgotten with it. The tags of a study are final once anybody has been given
positions, because different tags would move everybody's rows. docs/joining.md says who learns what.

`caps.data.oprf` is imported where it is used: it unpacks a library, which only studies with such a join need.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
from sqlalchemy import Connection, Engine, Row

from caps.data.linkage import ELEMENT_BYTES, TAG_BYTES
from caps.errors import DomainError, LocalError
from caps.service import logs
from caps.service.identity import Caller, machine
from caps.service.problems import Problem
from caps.service.quotas import Slots
from caps.service.site import Site, confirm
from caps.study import Holder, Manifest
from caps.wire.problems import Kind
from services.mpc_server.intake.studies import Studies
from services.mpc_server.storage.rows import matching as rows
from services.mpc_server.storage.rows import studies as study_rows
from services.mpc_server.storage.shares import KEY_BYTES, ShareStore, new_key

MOST_ELEMENTS = 1 << 15
"""The most elements of one batch: a few seconds of work."""
MOST_EVALUATIONS = 4
"""Batches that are evaluated at the same time; of one holder in one study, one."""
MATCHING_SERVER = "S1"

log = logging.getLogger("caps.matching")


@dataclass(frozen=True, repr=False)
class _Secrets:
    """One server's secrets in one study: its part of the OPRF key, the key of the order, the key of what is stored."""

    scalar: bytes
    order: bytes
    data: bytes

    @classmethod
    def fresh(cls) -> _Secrets:
        from caps.data.oprf import ServerKey

        return cls(ServerKey.fresh().scalar, new_key(), new_key())

    @classmethod
    def from_bytes(cls, data: bytes) -> _Secrets:
        return cls(data[:KEY_BYTES], data[KEY_BYTES : 2 * KEY_BYTES], data[2 * KEY_BYTES :])

    def to_bytes(self) -> bytes:
        return self.scalar + self.order + self.data


class Matching:
    """All joins by tags of one server."""

    def __init__(self, site: Site, studies: Studies, database: Engine, store: ShareStore) -> None:
        self._site = site
        self._studies = studies
        self._database = database
        self._store = store
        self._evaluating = Slots("evaluations", total=MOST_EVALUATIONS, each=1, seconds=1)

    def batch_length(self, study: str, caller: Caller) -> int:
        """The most bytes of a batch. Raises a problem if the caller may not send one."""
        self._party(study, caller)
        return MOST_ELEMENTS * ELEMENT_BYTES

    def evaluate(self, study: str, elements: bytes, caller: Caller) -> bytes:
        """This server's multiples of a batch of blinded elements.

        It is counted before it is evaluated. The same batch again is neither counted nor evaluated again.
        """
        from caps.data.oprf import ServerKey

        _, holder = self._party(study, caller)
        count = len(elements) // ELEMENT_BYTES
        if not 0 < count <= MOST_ELEMENTS or len(elements) % ELEMENT_BYTES:
            detail = f"a batch must have 1 to {MOST_ELEMENTS} elements of {ELEMENT_BYTES} bytes each"
            raise Problem(Kind.INVALID, detail, study=study)
        batch = sha256(elements).hexdigest()
        with self._evaluating.taken((study, holder.name)):
            with self._database.begin() as connection:
                secrets = self._secrets(connection, study)
                if self._new(connection, study, holder, batch, count):
                    rows.count(connection, study, holder.name, batch, count)
            name = _evaluated_name(study, batch)
            with suppress(LocalError):  # not evaluated yet, or a crash came between
                if evaluated := self._store.get(name, secrets.data):
                    return evaluated
                raise Problem(Kind.INVALID, "this batch was refused before, because of an element in it", study=study)
            try:
                evaluated = ServerKey(secrets.scalar).evaluate(elements)
            except DomainError:
                self._store.put(name, secrets.data, b"")
                raise
            self._store.put(name, secrets.data, evaluated)
            with self._database.begin() as connection:
                self._studies.require_open(connection, study)
        logs.say(log, "evaluated", study=study, holder=holder.name, elements=count)
        return evaluated

    def _new(self, connection: Connection, study: str, holder: Holder, batch: str, count: int) -> bool:
        """Whether a batch is new. Raises a problem if it exceeds what the holder may have evaluated."""
        if rows.is_counted(connection, study, holder.name, batch):
            return False
        assert holder.capacity is not None
        left = holder.capacity - rows.evaluated(connection, study, holder.name)
        if count > left:
            logs.say(log, "refused to evaluate", study=study, holder=holder.name, elements=count, left=left)
            detail = (
                f"{holder.name} may have {holder.capacity} elements evaluated in this study, as many as it has rows; "
                f"{left} of them are left"
            )
            raise Problem(Kind.FORBIDDEN, detail, study=study)
        return True

    def tags_length(self, study: str, caller: Caller) -> int:
        """How many bytes the caller's tags must have."""
        _, holder = self._party(study, caller, matching=True)
        assert holder.capacity is not None
        return holder.capacity * TAG_BYTES

    def put_tags(self, study: str, data: bytes, caller: Caller) -> None:
        """Keep a holder's tags. They may be replaced until positions have been given."""
        _, holder = self._party(study, caller, matching=True)
        expected = self.tags_length(study, caller)
        if len(data) != expected:
            detail = f"the tags of {holder.name} must have {expected} bytes, padding included, not {len(data)}"
            raise Problem(Kind.INVALID, detail, study=study)
        repeats = len(data) // TAG_BYTES - len(np.unique(np.frombuffer(data, np.dtype((np.void, TAG_BYTES)))))
        if repeats:
            detail = f"{repeats} tags of {holder.name} are duplicates: keys must be unique within a holder"
            raise Problem(Kind.INVALID, detail, study=study)
        digest = sha256(data).hexdigest()
        with self._store.guard(_folder(study)):
            with self._database.begin() as connection:
                secrets = self._secrets(connection, study)
                known = self._replaceable(connection, study, holder.name, digest)
            if known == digest:
                return
            self._store.put(_tags_name(study, digest), secrets.data, data)
            with self._database.begin() as connection:
                self._studies.require_open(connection, study)
                rows.replace_tags(connection, study, holder.name, digest)
            if known is not None:
                self._store.erase(_tags_name(study, known))
        logs.say(log, "tags received", study=study, holder=holder.name)

    def _replaceable(self, connection: Connection, study: str, holder: str, digest: str) -> str | None:
        """The digest of a holder's stored tags. Raises a problem if different ones come too late."""
        here = rows.tags_of(connection, study)
        known = next((row.sha256 for row in here if row.holder == holder), None)
        if known != digest and any(row.given for row in here):
            raise Problem(Kind.CONFLICT, "positions were already given for the tags sent before", study=study)
        return known

    def positions(self, study: str, caller: Caller) -> bytes:
        """The position of each of the caller's rows, in the order of its tags: 4 bytes each, little-endian."""
        manifest, holder = self._party(study, caller, matching=True)
        with self._store.guard(_folder(study)):
            with self._database.begin() as connection:
                secrets = self._secrets(connection, study)
                here = rows.tags_of(connection, study)
            present = {row.holder for row in here}
            absent = [one.name for one in manifest.holders if one.capacity is not None and one.name not in present]
            if absent:
                raise Problem(Kind.NOT_READY, "some holders have not sent their tags yet", study=study, holders=absent)
            if not all(row.given for row in here):
                self._match(manifest, here, secrets)
                with self._database.begin() as connection:
                    self._studies.require_open(connection, study)
                    rows.give(connection, study)
                logs.say(log, "matched", study=study, holders=len(here))
            return self._store.get(_positions_name(study, holder.name), secrets.data)

    def _match(self, manifest: Manifest, here: Sequence[Row[Any]], secrets: _Secrets) -> None:
        from caps.data.oprf import positions

        study, size = manifest.study_id, manifest.slots
        assert size is not None
        tags = {
            row.holder: np.frombuffer(self._store.get(_tags_name(study, row.sha256), secrets.data), np.uint8).reshape(
                -1, TAG_BYTES
            )
            for row in here
        }
        match = positions(tags, secrets.order, size=size)
        for name, found in match.positions.items():
            self._store.put(_positions_name(study, name), secrets.data, found.astype("<u4").tobytes())

    def _party(self, study: str, caller: Caller, *, matching: bool = False) -> tuple[Manifest, Holder]:
        """The caller as a holder in a study that joins by tags, at this server. Raises a problem otherwise."""
        manifest = self._studies.manifest(study)
        name = machine(caller).name
        holder = next((one for one in manifest.holders if one.name == name), None)
        if holder is None:
            raise Problem(Kind.FORBIDDEN, f"{caller} is not a holder of this study", study=study)
        confirm(caller, holder)
        if manifest.join is None or manifest.join.protocol != "oprf":
            raise Problem(Kind.NOT_FOUND, "this study does not join by tags", study=study)
        if holder.capacity is None:
            raise Problem(Kind.FORBIDDEN, f"{name} contributes nothing that is joined by tags", study=study)
        if matching and self._site.name != MATCHING_SERVER:
            raise Problem(Kind.NOT_FOUND, f"tags are matched at {MATCHING_SERVER}, not here", study=study)
        return manifest, holder

    def _secrets(self, connection: Connection, study: str) -> _Secrets:
        """Within a transaction: the keys of an open study, which are made on first use."""
        self._studies.require_open(connection, study)
        row, vault = study_rows.find(connection, study), self._store.vault
        if row is not None and row.join_key is not None:
            return _Secrets.from_bytes(vault.unwrap(_folder(study), row.join_key))
        secrets = _Secrets.fresh()
        study_rows.set_join_key(connection, study, vault.wrap(_folder(study), secrets.to_bytes()))
        return secrets


def _folder(study: str) -> str:
    return f"{study}/join"


def _evaluated_name(study: str, batch: str) -> str:
    return f"{_folder(study)}/evaluated/{batch}"


def _tags_name(study: str, digest: str) -> str:
    return f"{_folder(study)}/tags/{digest}"


def _positions_name(study: str, holder: str) -> str:
    return f"{_folder(study)}/positions/{holder}"
