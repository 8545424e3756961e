"""What a run computes on: this server's shares of the sealed inputs, and the counts kept between sessions."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from math import prod
from typing import NamedTuple, TypeAlias

import numpy as np

from caps.errors import LocalError
from caps.shares.ring import SHARED_RINGS, Z64, Ring, Words
from caps.shares.sharing import Seeded
from caps.study import Manifest
from caps.study.memory import MOST_HELD
from services.mpc_server.engine.long import Origin, SeededOrigin, long_words
from services.mpc_server.intake.contributions import Contributions
from services.mpc_server.intake.studies import Sealed, Studies
from services.mpc_server.storage.shares import ShareStore, StoredVector

Share: TypeAlias = tuple[Words, ...]
"""The components that a server holds, in the scheme's order."""
Verdicts: TypeAlias = tuple[int, ...]
"""For each sealed contribution, in order: 1 if it was accepted, 0 if it was found invalid."""


ATTEMPT_BYTES = 16
NO_ATTEMPT = bytes(ATTEMPT_BYTES)


def attempt_of(tokens: Sequence[bytes]) -> bytes:
    """The name of an attempt at COMPUTE: every server draws a part of it."""
    return sha256(b"caps/v1/attempt" + b"".join(sorted(tokens))).digest()[:ATTEMPT_BYTES]


class Kept(NamedTuple):
    """What COMPUTE left: the attempt, this server's share of the counts, and which contributions were accepted."""

    attempt: bytes
    share: Share
    verdicts: Verdicts


class Material:
    """The stores, as one live run sees them."""

    def __init__(
        self,
        manifest: Manifest,
        run: str,
        sealed: Sealed,
        studies: Studies,
        contributions: Contributions,
        store: ShareStore,
    ) -> None:
        self._manifest = manifest
        self._sealed = sealed
        self._studies = studies
        self._contributions = contributions
        self._store = store
        self._name = counts_name(manifest.study_id, run)

    def inputs(self) -> Sequence[tuple[str, str, tuple[str, ...], Share]]:
        """For each sealed contribution, in order: holder, form, attributes, this server's share."""
        found = []
        for contribution in self._sealed.contributions:
            attributes = self._manifest.columns_of(self._manifest.holder(contribution.holder)).domain().names
            share = share_of(self._contributions, contribution.digest())
            found.append((contribution.holder, contribution.form, attributes, share))
        return found

    def counts(self) -> Kept | None:
        """The counts that an earlier session computed, if they were kept."""
        study = self._manifest.study_id
        try:
            data = self._store.get(self._name, self._studies.data_key(study))
        except LocalError:  # never written, or damaged: they are computed again, with the same result
            return None
        cells, flags = self._manifest.layout.cells, len(self._sealed.contributions)
        words = len(self._manifest.sharing.held[self._studies.party(study)]) * cells
        share = np.frombuffer(data, Z64.dtype, words, ATTEMPT_BYTES).reshape(-1, cells)
        start = ATTEMPT_BYTES + words * Z64.dtype.itemsize
        return Kept(data[:ATTEMPT_BYTES], tuple(share), tuple(data[start : start + flags]))

    def keep_counts(self, kept: Kept) -> None:
        """Keep them for a later session."""
        data = kept.attempt + b"".join(part.tobytes() for part in kept.share) + bytes(kept.verdicts)
        self._store.put(self._name, self._studies.data_key(self._manifest.study_id), data)


def share_of(contributions: Contributions, contribution: str) -> Share:
    """This server's share of a contribution. Columns that are long are not held in memory; all else is."""
    document, parts = contributions.parts(contribution)
    ring = SHARED_RINGS[document.bits]
    if document.form != "columns" or prod(document.shape) * ring.dtype.itemsize <= MOST_HELD:
        return contributions.load(contribution)
    rows, columns = document.shape
    return tuple(long_words(_origin(part, (rows, columns), ring)) for part in parts)


class StoredOrigin(Origin):
    """A component that is on disk."""

    def __init__(self, vector: StoredVector, shape: tuple[int, int], ring: Ring) -> None:
        super().__init__(shape, ring)
        self._vector = vector

    def octets(self, start: int, stop: int) -> bytes:
        return self._vector.octets(start, stop)


def _origin(part: Seeded | StoredVector, shape: tuple[int, int], ring: Ring) -> Origin:
    return SeededOrigin(part, shape, ring) if isinstance(part, Seeded) else StoredOrigin(part, shape, ring)


def counts_name(study: str, run: str) -> str:
    """The name of the blob with a run's counts."""
    return f"{study}/{run}/counts"
