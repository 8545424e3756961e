"""A job as it is told to a worker: a header that JSON can hold, and the rows that it cannot make by itself.

Nothing is pickled. Components that are expanded from seeds are told by their seeds; of others, the rows are sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from caps.errors import ShareError
from caps.shares.ring import SHARED_RINGS, Z22, Z64, Ring, Words, ring_of
from caps.shares.sharing import Seeded
from services.mpc_server.engine.jobs import BlockSums, Deviations, Grams, Job, Mix, Quadratic, RowCoins
from services.mpc_server.engine.long import LongWords, Origin, SeededOrigin

Header = dict[str, Any]
Octets = bytes | memoryview


class Task(NamedTuple):
    """What a worker is told."""

    header: Header
    sent: list[Octets]
    """The rows of components that it has no seed of."""


def can_be_told(job: Job) -> bool:
    """Whether a worker can be told all of a job."""
    if isinstance(job, Deviations):
        return isinstance(job.spread, BlockSums) and isinstance(job.row_coins, RowCoins)
    return isinstance(job, Grams)


def told(job: Job) -> Task:
    """A job as a task."""
    operands = _Operands()
    if isinstance(job, Grams):
        header: Header = {
            "kind": "grams",
            "parts": [[operands.place(words) for words in part] for part in job.parts],
            "mixes": [[mix.first, mix.second, mix.opposite] for mix in job.mixes],
            "modulo": job.modulo.bits,
        }
    else:
        assert isinstance(job, Deviations)
        assert isinstance(job.spread, BlockSums)
        assert isinstance(job.row_coins, RowCoins)
        header = {
            "kind": "deviations",
            "components": [operands.place(words) for words in job.components],
            "forms": [[form.left, form.right, form.constant] for form in job.forms],
            "sizes": job.spread.sizes,
            "seed": job.row_coins.seed.hex(),
            "label": job.row_coins.label.hex(),
            "combinations": job.combinations,
            "first": job.first,
        }
    return Task({**header, "operands": operands.told}, operands.sent)


class _Operands:
    """The matrices of a job, each told once."""

    def __init__(self) -> None:
        self.told: list[Header] = []
        self.sent: list[Octets] = []
        self._places: dict[tuple[int, int, int], int] = {}

    def place(self, words: Words | LongWords) -> list[int]:
        """Where a matrix is found: the number of an operand, and the columns of it."""
        if not isinstance(words, LongWords):
            ring = ring_of(words)
            self.told.append({"bits": ring.bits, "shape": words.shape})
            self.sent.append(np.ascontiguousarray(words).reshape(-1).data.cast("B"))
            return [len(self.told) - 1, 0, words.shape[1]]
        key = id(words.origin), words.first, len(words)
        if key not in self._places:
            self._places[key] = len(self.told)
            self.told.append(self._long(words))
        return [self._places[key], words.columns.start, words.columns.stop]

    def _long(self, words: LongWords) -> Header:
        origin, rows = words.origin, [words.first, words.first + len(words)]
        header: Header = {"bits": origin.ring.bits}
        if isinstance(origin, SeededOrigin):
            seeded = origin.seeded
            return {
                **header,
                "shape": origin.shape,
                "rows": rows,
                "seed": seeded.seed.hex(),
                "component": seeded.component,
            }
        self.sent.append(origin.packed(*rows))
        return {**header, "shape": [len(words), origin.shape[1]]}


class _Sent(Origin):
    """Rows that were sent."""

    def __init__(self, octets: Octets, shape: tuple[int, int], ring: Ring) -> None:
        super().__init__(shape, ring)
        self._octets = memoryview(octets)

    def octets(self, start: int, stop: int) -> memoryview:
        return self._octets[start:stop]


def job_of(task: Task) -> Job:
    """The job that a worker is told, on the rows that it is sent."""
    header, sent = task.header, iter(task.sent)
    found: list[LongWords] = []
    for operand in header["operands"]:
        rows, columns = operand["shape"]
        ring = SHARED_RINGS[operand["bits"]]
        if "seed" in operand:
            seeded = Seeded(bytes.fromhex(operand["seed"]), operand["component"])
            found.append(LongWords(SeededOrigin(seeded, (rows, columns), ring), slice(*operand["rows"])))
        else:
            found.append(LongWords(_Sent(next(sent), (rows, columns), ring)))

    def matrix(place: Sequence[int]) -> Any:
        number, left, right = place
        return found[number][:, left:right]

    if header["kind"] == "grams":
        dtype = found[0].dtype
        modulo = Z22 if header["modulo"] == Z22.bits else SHARED_RINGS[header["modulo"]]
        if modulo.dtype != dtype:
            raise ShareError(f"words of {dtype} do not hold {modulo!r}")
        parts = tuple(tuple(map(matrix, part)) for part in header["parts"])
        return Grams(parts, tuple(Mix(*mix) for mix in header["mixes"]), modulo)
    spread = BlockSums(tuple(header["sizes"]))
    coins = RowCoins(bytes.fromhex(header["seed"]), bytes.fromhex(header["label"]), header["combinations"])
    forms = tuple(Quadratic(tuple(left), tuple(right), constant) for left, right, constant in header["forms"])
    components = tuple(map(matrix, header["components"]))
    return Deviations(components, forms, spread, spread.columns, coins, header["combinations"], header["first"])


def apart(header: Header, sent: memoryview) -> Task:
    """A task whose rows came one matrix after another."""
    found: list[Octets] = []
    for operand in header["operands"]:
        if "seed" not in operand:
            rows, columns = operand["shape"]
            size = rows * columns * SHARED_RINGS[operand["bits"]].itemsize
            found.append(sent[:size])
            sent = sent[size:]
    return Task(header, found)


def checking(task: Task, secret: Words) -> Task:
    """The task of foretelling sums, instead of finding them."""
    return Task({**task.header, "secret": secret.tobytes().hex()}, task.sent)


def performed(task: Task) -> bytes:
    """What a worker returns: sums, or what they are combined to."""
    job, secret = job_of(task), task.header.get("secret")
    found = job.totals() if secret is None else job.foretold(np.frombuffer(bytes.fromhex(secret), Z64.dtype))
    return b"".join(one.astype(Z64.dtype, copy=False).tobytes() for one in found)


def unpacked(shapes: Sequence[tuple[int, int]], octets: Octets) -> list[Words]:
    """The inverse, for matrices of these shapes. Raises ShareError if the octets are more or fewer."""
    size = Z64.itemsize * sum(rows * columns for rows, columns in shapes)
    if len(octets) != size:
        raise ShareError(f"results of {size} bytes have {len(octets)}")
    words, found = np.frombuffer(octets, Z64.dtype), []
    for rows, columns in shapes:
        found.append(words[: rows * columns].reshape(rows, columns))
        words = words[rows * columns :]
    return found
