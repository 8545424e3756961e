"""The light join at a holder: pseudonyms of its rows from all three servers, and the positions of its rows from S1.

    ids, shuffled -> blinded -> evaluated by each server -> tags -> S1 -> positions

Every row is sent, padding rows included, so that nothing here reveals how many rows the table has. Rows are shuffled,
so that nothing reveals where in the file a row is. Each stage is a file that only grows, batch by batch. All blinds are
derived from one seed: an interrupted stage resumes with the same bytes, and servers count a repeated batch once.

    FOLDER/seed, ids, places     the start: ids of all padded rows, and where among them the table's rows are
    FOLDER/blinded, evaluated-*  elements, sent to the servers and returned by each
    FOLDER/tags                  what S1 receives; `told` marks that it has
    FOLDER/positions             the end; then only ids and places stay, to contribute the same people again
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from caps.basics.files import erase, sync_path, write_private
from caps.basics.uniform import Uniform
from caps.data.joinkey import Ids, random_ids
from caps.data.linkage import ELEMENT_BYTES, ID_BYTES, POSITION_BYTES, TAG_BYTES
from caps.data.oprf import Client
from caps.errors import PeerViolation
from caps.service.problems import Problem
from caps.service.site import Site
from caps.study import Holder, Manifest, Server
from caps.study.table import Rows
from caps.wire import media
from caps.wire.problems import Kind
from services.holder.peers import LONG_TIMEOUT, PeerProblem, ask
from services.holder.retry_queue import RetryQueue
from services.holder.sharing import Entropy

BATCH = 4096
"""Elements in one request."""
_SEED, _IDS, _PLACES, _BLINDED, _TAGS, _TOLD, _POSITIONS = (
    "seed",
    "ids",
    "places",
    "blinded",
    "tags",
    "told",
    "positions",
)


class Unmatched(Exception):
    """Some servers did not do what they were asked. `retry_after`: the longest wait that one of them asked for."""

    def __init__(self, problems: Mapping[str, PeerProblem]) -> None:
        super().__init__("the matching is not finished")
        self.problems: dict[str, dict[str, Any]] = {name: problem.document for name, problem in problems.items()}
        waits = [problem.retry_after for problem in problems.values() if problem.retry_after is not None]
        self.retry_after = max(waits, default=None)

    @property
    def retryable(self) -> bool:
        """Whether trying again may help: no server has refused for good."""
        return all(problem["retryable"] for problem in self.problems.values())


def joins_by_tags(manifest: Manifest, holder: Holder) -> bool:
    """Whether the positions of a holder's rows come from S1."""
    return manifest.join is not None and manifest.join.protocol == "oprf" and holder.brings == "columns"


def begin(holder: Holder, rows: Rows, folder: Path, entropy: Entropy) -> None:
    """Durably fix what will be asked for: the ids of all padded rows, in random order, and the seed of their blinds."""
    assert holder.capacity is not None
    assert rows.ids is not None
    count, capacity = len(rows.ids), holder.capacity
    order = Uniform(entropy(32)).permutation(capacity)
    shuffled = np.empty((capacity, ID_BYTES), np.uint8)
    shuffled[order] = np.concatenate([rows.ids, random_ids(capacity - count)])
    folder.mkdir(mode=0o700)
    write_private(folder / _SEED, entropy(32))
    write_private(folder / _IDS, shuffled.tobytes())
    write_private(folder / _PLACES, order[:count].astype("<u4").tobytes())
    sync_path(folder)
    sync_path(folder.parent)


def places(folder: Path, rows: Rows, *, same_table: bool) -> npt.NDArray[np.int64]:
    """Where the rows of a table are among the shuffled ids. Raises a problem if the table has people who are not."""
    if same_table:  # this covers rows without a key, whose ids are random and differ each time
        return np.frombuffer((folder / _PLACES).read_bytes(), "<u4").astype(np.int64)
    assert rows.ids is not None
    known, wanted = _words(_ids(folder)), _words(rows.ids)
    order = np.argsort(known)
    found = order[np.minimum(np.searchsorted(known[order], wanted), len(known) - 1)]
    if not np.array_equal(known[found], wanted):
        detail = (
            "the table has people who were not in the table first matched in this study; servers answer only one query "
            "for each row, so contribute a table with none but those people"
        )
        raise Problem(Kind.CONFLICT, detail)
    return found.astype(np.int64)


def _words(ids: Ids) -> npt.NDArray[np.bytes_]:
    """The ids as sortable keys. The suffix keeps numpy from dropping trailing zeros."""
    marked = np.concatenate([ids, np.ones((len(ids), 1), np.uint8)], axis=1)
    return np.ascontiguousarray(marked).view(f"S{ID_BYTES + 1}").reshape(-1)


def _ids(folder: Path) -> Ids:
    return np.frombuffer((folder / _IDS).read_bytes(), np.uint8).reshape(-1, ID_BYTES)


@dataclass(frozen=True)
class _Growing:
    """A file of `total` items, written in batches."""

    path: Path
    item: int
    total: int

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self.path.stat().st_size if self.path.exists() else 0

    def missing(self) -> Iterator[tuple[int, int]]:
        """First item and end of each batch that is missing or incomplete."""
        done = self.size // self.item
        if done < self.total:
            done -= done % BATCH
        for first in range(done, self.total, BATCH):
            yield first, min(first + BATCH, self.total)

    def write(self, first: int, data: bytes) -> None:
        """Write a batch and sync it to disk, replacing whatever was at that place and after it."""
        with os.fdopen(os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.truncate(first * self.item)
            file.seek(first * self.item)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def read(self, first: int, end: int) -> bytes:
        """Some items."""
        with self.path.open("rb") as file:
            file.seek(first * self.item)
            return file.read((end - first) * self.item)


class Matcher:
    """Goes through the stages as a task of the retry queue. What is done is not repeated."""

    def __init__(self, site: Site, retries: RetryQueue) -> None:
        self._site = site
        self._retries = retries

    def evaluated(self, folder: Path, server: str) -> int:
        """Bytes of evaluations received from a server so far."""
        path = folder / f"evaluated-{server}"
        return path.stat().st_size if path.exists() else 0

    def positions(self, manifest: Manifest, holder: Holder, folder: Path) -> npt.NDArray[np.int64]:
        """The position of every shuffled id. Raises Unmatched; call again if that is retryable."""
        assert holder.capacity is not None
        path = folder / _POSITIONS
        if not path.exists():
            if not (folder / _TOLD).exists():
                self._evaluate(manifest, folder, holder.capacity)
                self._finalise(manifest, folder, holder.capacity)
            found = self._matched(manifest, folder, holder.capacity)
            _replace(path, found)
        for name in (_SEED, _BLINDED, _TAGS, _TOLD, *(f"evaluated-{server.name}" for server in manifest.servers)):
            erase(folder / name)
        return np.frombuffer(path.read_bytes(), "<u4").astype(np.int64)

    def _evaluate(self, manifest: Manifest, folder: Path, capacity: int) -> None:
        client, ids = Client((folder / _SEED).read_bytes()), _ids(folder)
        blinded = _Growing(folder / _BLINDED, ELEMENT_BYTES, capacity)
        for first, end in blinded.missing():
            self._retries.check()
            blinded.write(first, client.blind(ids[first:end], first=first))
        with ThreadPoolExecutor(len(manifest.servers)) as pool:
            asked = {
                server.name: pool.submit(copy_context().run, self._ask, manifest.study_id, server, folder, blinded)
                for server in manifest.servers
            }
        problems: dict[str, PeerProblem] = {}
        for name, done in asked.items():
            try:
                done.result()
            except PeerProblem as problem:
                problems[name] = problem
        if problems:
            raise Unmatched(problems)

    def _ask(self, study: str, server: Server, folder: Path, blinded: _Growing) -> None:
        """Get all evaluations from one server."""
        evaluated = _Growing(folder / f"evaluated-{server.name}", ELEMENT_BYTES, blinded.total)
        with self._site.calls(server, timeout=LONG_TIMEOUT) as client:
            for first, end in evaluated.missing():
                self._retries.check()
                batch = blinded.read(first, end)
                answer = ask(
                    client, server.name, "POST", f"/v1/studies/{study}/oprf", content=batch, headers=media.BYTES_BODY
                ).content
                if len(answer) != len(batch):
                    raise _wrong(server.name, "returned a different number of elements than it was sent")
                evaluated.write(first, answer)

    def _finalise(self, manifest: Manifest, folder: Path, capacity: int) -> None:
        client, ids = Client((folder / _SEED).read_bytes()), _ids(folder)
        names = [server.name for server in manifest.servers]
        parts = [_Growing(folder / f"evaluated-{name}", ELEMENT_BYTES, capacity) for name in names]
        tags = _Growing(folder / _TAGS, TAG_BYTES, capacity)
        for first, end in tags.missing():
            self._retries.check()
            evaluations = [part.read(first, end) for part in parts]
            try:
                found = client.finalise(ids[first:end], evaluations, first=first)
            except PeerViolation as error:
                erase(parts[error.party].path)
                name = names[error.party]
                problem = _wrong(name, "returned evaluations that are not group elements")
                raise Unmatched({name: problem}) from None
            tags.write(first, found.tobytes())

    def _matched(self, manifest: Manifest, folder: Path, capacity: int) -> bytes:
        """Send S1 the tags, once, and ask for the positions."""
        server, told = manifest.servers[0], folder / _TOLD
        path = f"/v1/studies/{manifest.study_id}"
        try:
            with self._site.calls(server, timeout=LONG_TIMEOUT) as client:
                if not told.exists():
                    tags = (folder / _TAGS).read_bytes()
                    ask(client, server.name, "PUT", f"{path}/tags", content=tags, headers=media.BYTES_BODY)
                    write_private(told, b"")
                found = ask(client, server.name, "GET", f"{path}/positions").content
            positions = np.frombuffer(found[: capacity * POSITION_BYTES], "<u4")
            assert manifest.slots is not None
            if len(found) != capacity * POSITION_BYTES or len(np.unique(positions)) != capacity:
                raise _wrong(server.name, "did not return exactly one position for each row")
            if int(positions.max()) >= manifest.slots:
                raise _wrong(server.name, "returned positions outside the joint table")
        except PeerProblem as problem:
            raise Unmatched({server.name: problem}) from None
        return found


def _replace(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}")
    erase(temporary)
    write_private(temporary, data)
    temporary.rename(path)
    sync_path(path.parent)


def _wrong(party: str, what: str) -> PeerProblem:
    return PeerProblem.own(Kind.PEER_FAILED, f"{party} {what}", party=party, retryable=False)
