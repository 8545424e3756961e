"""A holder's contribution: its data split into components, kept in files until the servers have them.

The result is that of `caps.shares.sharing.deal`, made piece by piece, so that neither the one-hot columns nor the
random components are ever in memory as a whole. Marginals are always shared in Z_2^32: a ring chosen by their size
would reveal whether the holder has fewer than 65,536 rows.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from caps.basics.files import sync_path, write_private
from caps.basics.schemes import Scheme
from caps.data.domain import MISSING, Domain, Layout
from caps.data.joinkey import random_ids
from caps.data.kept import give_back
from caps.data.linkage import RowFormat, in_order
from caps.errors import DomainError
from caps.service.site import Site
from caps.shares.prss import SEED_BYTES, expand_stream
from caps.shares.ring import SHARED_RINGS, Z8, Words
from caps.shares.sharing import COMPONENT_LABEL, Algebra
from caps.study import Holder, Manifest
from caps.study.manifest import Form
from caps.study.table import Rows
from caps.wire import Commitment, Contribution, Offer, Opening, Signed, commitment
from services.holder.counting import count_marginals

CHUNK_BYTES = 4 << 20
_PIECE_BYTES = 4 << 20
_SECRETS = "secrets.json"

Entropy = Callable[[int], bytes]


@dataclass(frozen=True, repr=False)
class Secrets:
    """The seeds of the components that the scheme has sent as seeds, and the nonces of all commitments."""

    scheme: Scheme
    seeds: tuple[bytes, ...]
    nonces: tuple[bytes, ...]

    @classmethod
    def draw(cls, entropy: Entropy, scheme: Scheme) -> Secrets:
        """Fresh secrets. `entropy(n)` returns n random bytes, as `secrets.token_bytes` does."""
        seeded = len(scheme.seeded)
        drawn = [entropy(SEED_BYTES) for _ in range(seeded + scheme.components)]
        if len(set(drawn)) != len(drawn) or any(len(one) != SEED_BYTES for one in drawn):
            raise DomainError("the entropy source must return as many fresh bytes as it is asked for")
        return cls(scheme, tuple(drawn[:seeded]), tuple(drawn[seeded:]))

    @property
    def seeded(self) -> dict[int, bytes]:
        """Seeds by component."""
        return dict(zip(self.scheme.seeded, self.seeds, strict=True))

    def opening(self, component: int) -> Opening:
        """A component as the servers that hold it receive it."""
        seed = self.seeded.get(component)
        return Opening(
            component=component, nonce=self.nonces[component].hex(), seed=None if seed is None else seed.hex()
        )

    def to_bytes(self) -> bytes:
        """As JSON."""
        return json.dumps({"seeds": [s.hex() for s in self.seeds], "nonces": [n.hex() for n in self.nonces]}).encode()

    @classmethod
    def from_bytes(cls, data: bytes, scheme: Scheme) -> Secrets:
        """The inverse of `to_bytes`."""
        value = json.loads(data)
        seeds, nonces = (tuple(map(bytes.fromhex, value[name])) for name in ("seeds", "nonces"))
        return cls(scheme, seeds, nonces)


@dataclass(frozen=True, repr=False)
class Counts:
    """The marginals of a study's layout, counted where the rows are; words of Z_2^32."""

    marginals: npt.NDArray[np.uint32]

    def column(self, layout: Layout, name: str) -> npt.NDArray[np.int64]:
        """How many rows have each value of a column, by the smallest marginal with it."""
        clique = min((one for one in layout.cliques if name in one), key=len)
        table = self.marginals[layout.part(clique)].astype(np.int64).reshape(layout.domain.shape(clique))
        others = tuple(axis for axis, one in enumerate(layout.domain.clique(clique)) if one != name)
        return np.asarray(table.sum(axis=others))


@dataclass(frozen=True)
class Parcel:
    """The directory with one contribution's secrets and vector, which is erased once the servers have signed."""

    folder: Path
    scheme: Scheme

    def offer(self, contribution: Signed[Contribution], party: int) -> Offer:
        """What server `party` (counted from 0) receives first."""
        secrets = Secrets.from_bytes((self.folder / _SECRETS).read_bytes(), self.scheme)
        return offer(contribution, secrets, party)

    def chunk(self, number: int, size: int) -> bytes:
        """Chunk `number` of the vector, which is cut into chunks of `size` bytes."""
        with (self.folder / _vector(self.scheme)).open("rb") as file:
            file.seek(number * size)
            return file.read(size)


def _vector(scheme: Scheme) -> str:
    """The name of the file with the vector."""
    return f"component-{scheme.vector}"


def offer(contribution: Signed[Contribution], secrets: Secrets, party: int) -> Offer:
    """The statement and the openings of one server's components."""
    return Offer(contribution=contribution, openings=tuple(map(secrets.opening, secrets.scheme.held[party])))


def stated(form: Form, study: str, holder: str, commitments: tuple[str, ...], at: str) -> Contribution:
    """The document that the holder signs."""
    return Contribution.model_validate(
        {
            "study": study,
            "holder": holder,
            "form": form.form,
            "bits": form.bits,
            "shape": form.shape,
            "commitments": commitments,
            "chunk_bytes": CHUNK_BYTES,
            "at": at,
        }
    )


def prepare(
    site: Site, manifest: Manifest, holder: Holder, rows: Rows | Counts, folder: Path, entropy: Entropy
) -> Signed[Contribution]:
    """Count or spread the rows, share them, and durably write all that a push needs into `folder`."""
    form = manifest.form_of(holder)
    secrets = Secrets.draw(entropy, manifest.sharing)
    folder.mkdir(mode=0o700)
    if isinstance(rows, Counts):
        pieces: Iterator[Words] = iter([rows.marginals])
    elif form.form == "marginals":
        pieces = iter([count_marginals(manifest.layout, rows.codes)])
    elif form.form == "columns":
        pieces = one_hot_pieces(manifest.columns_of(holder).domain(), rows, form.shape[0])
    else:
        pieces = record_pieces(manifest, holder, rows)
    last = write_vector(folder / _vector(manifest.sharing), pieces, form, secrets)
    write_private(folder / _SECRETS, secrets.to_bytes())
    sync_path(folder)
    sync_path(folder.parent)
    seeded = secrets.seeded
    commitments = tuple(
        commitment(secrets.nonces[component], seeded[component]) if component in seeded else last
        for component in range(manifest.sharing.components)
    )
    statement = stated(form, manifest.study_id, site.name, commitments, site.instant())
    statement.check(manifest)
    return Signed[Contribution].by(statement, site.name, site.signing_key)


def one_hot_pieces(domain: Domain, rows: Rows, slots: int) -> Iterator[Words]:
    """The slots x width columns, a few slots at a time. A slot without a row is zero."""
    if rows.slots is None:
        found = np.arange(len(rows.codes), dtype=np.int32)
    else:
        found = np.full(slots, _NOBODY, np.int32)
        found[rows.slots] = np.arange(len(rows.codes), dtype=np.int32)
    step = max(1, _PIECE_BYTES // (2 * domain.width))
    for start in range(0, slots, step):
        yield domain.one_hot(_codes_at(rows, found[start : start + step], min(step, slots - start)))
        give_back(rows.codes)


_NOBODY = -1


def _codes_at(rows: Rows, found: npt.NDArray[np.int32], count: int) -> npt.NDArray[np.int32]:
    """The codes of `count` rows by their places among all rows; missing for places that are not given or nobody's."""
    codes = np.full((count, rows.codes.shape[1]), MISSING, np.int32)
    taken = np.flatnonzero(found != _NOBODY)
    codes[taken] = rows.codes[found[taken]]
    return codes


def record_pieces(manifest: Manifest, holder: Holder, rows: Rows) -> Iterator[Words]:
    """Rows with hashed identifiers, and padding rows, sorted by identifier so that nothing tells them apart."""
    assert holder.capacity is not None
    assert rows.ids is not None
    packing = RowFormat(manifest.columns_of(holder).domain())
    count, capacity = len(rows.codes), holder.capacity
    ids = np.concatenate([rows.ids, random_ids(capacity - count)])
    order = in_order(ids)
    step = max(1, _PIECE_BYTES // (8 * packing.row_bytes))  # while they are packed, every bit takes a byte
    for start in range(0, capacity, step):
        part = order[start : start + step]
        codes = _codes_at(rows, np.where(part < count, part, _NOBODY).astype(np.int32), len(part))
        yield packing.pack(ids[part], codes).astype(Z8.dtype)
        give_back(rows.codes)


def write_vector(path: Path, pieces: Iterator[Words], form: Form, secrets: Secrets) -> str:
    """Write the vector to a file: the value minus (for records, XOR) the seeded components. Returns its commitment."""
    streams = [expand_stream(seed, COMPONENT_LABEL + bytes([i]), form.bytes) for i, seed in secrets.seeded.items()]
    ring, algebra = SHARED_RINGS[form.bits], Algebra.XOR if form.form == "records" else Algebra.ADD
    committed = Commitment(secrets.nonces[secrets.scheme.vector])
    written = 0
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        for piece in pieces:
            rest = ring.encode(piece).reshape(-1)
            for stream in streams:
                rest = algebra.remove(rest, ring.from_bytes(stream(rest.size * ring.itemsize)))
            data = ring.to_bytes(rest)
            committed.update(data)
            written += file.write(data)
        file.flush()
        os.fsync(file.fileno())
    if written != form.bytes:
        raise DomainError(f"the contribution has a size of {written} bytes; the study expects {form.bytes}")
    return committed.hex()
