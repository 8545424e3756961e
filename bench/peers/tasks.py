"""The tasks every engine is measured on. Standard library and NumPy (1 or 2) only: both environments import this."""

import secrets
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Kind = Literal[
    "mul", "less_than", "equal", "less_than_ring", "equal_ring", "sequential_mul", "gram", "select", "ping_pong", "ring"
]


@dataclass(frozen=True)
class Task:
    """One measurement. `rows` is the number of elements (of multiplications for `sequential_mul`).

    The kinds `..._ring` ask for the comparison's bit added to the first operand, which no engine can do while the bit
    is shared by exclusive or: they include the conversion that the plain kinds leave out where an engine delays it.
    `select`: the row in which two matrices differ most, by the sum of absolute differences.
    """

    name: str
    kind: Kind
    rows: int
    columns: int = 1

    def resized(self, rows: int) -> "Task":
        return Task(self.name, self.kind, rows, self.columns)


TASKS = (
    Task("mul_1e6", "mul", 1_000_000),
    Task("less_than_1e5", "less_than", 100_000),
    Task("equal_1e5", "equal", 100_000),
    Task("sequential_mul_1000", "sequential_mul", 1_000),
    Task("gram_614x45", "gram", 614, 45),
    Task("gram_50000x45", "gram", 50_000, 45),
    Task("gram_50000x200", "gram", 50_000, 200),
)

PROTOCOL_TASKS = (
    Task("compute_vertical_n614", "gram", 614, 45),
    Task("compute_vertical_n50000", "gram", 50_000, 45),
    Task("select_aim_q45", "select", 45, 25),
    Task("select_aim_q200", "select", 200, 25),
    Task("select_aim_q2000", "select", 2000, 25),
)
"""What SPU can do of the CaPS protocols: products of columns, and a selection without noise. It has no sampler."""

RING_TASKS = (Task("less_than_1e5", "less_than_ring", 100_000), Task("equal_1e5", "equal_ring", 100_000))


def inputs(task: Task) -> tuple[npt.NDArray[np.int64], ...]:
    """Fresh random inputs, within the pre-conditions of every engine measured.

    Multiplication: 31-bit factors, so that an engine without wrap-around has the same answer.
    Comparison: |x - y| < 2**63; every other pair is equal in `equal`.
    Sequential multiplication: the factor is -1, so that no engine overflows.
    Gram: a 0-1 matrix.
    """
    if task.kind == "gram":
        bits = np.frombuffer(secrets.token_bytes((task.rows * task.columns + 7) // 8), dtype=np.uint8)
        return (np.unpackbits(bits)[: task.rows * task.columns].reshape(task.rows, task.columns).astype(np.int64),)
    if task.kind == "sequential_mul":
        return _integers(1, bits=31), np.array([-1], dtype=np.int64)
    if task.kind == "mul":
        return _integers(task.rows, bits=31), _integers(task.rows, bits=31)
    if task.kind == "select":
        shape = (task.rows, task.columns)
        return _integers(task.rows * task.columns, bits=20).reshape(shape), np.zeros(shape, dtype=np.int64)
    x, y = _integers(task.rows, bits=62), _integers(task.rows, bits=62)
    if task.kind in ("equal", "equal_ring"):
        y[::2] = x[::2]
    return x, y


def expected(task: Task, *arrays: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The answer, by NumPy."""
    if task.kind == "gram":
        return exact_gram(arrays[0])
    x, y = arrays
    if task.kind == "select":
        return np.array([[np.abs(x - y).sum(axis=1).argmax()]], dtype=np.int64)
    if task.kind == "mul":
        return x * y
    if task.kind == "sequential_mul":
        return x * np.int64(-1 if task.rows % 2 else 1)
    answer: npt.NDArray[np.bool_] = x < y if task.kind in ("less_than", "less_than_ring") else x == y
    return answer + x if task.kind in ("less_than_ring", "equal_ring") else answer.astype(np.int64)


def exact_gram(x: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """X^T X; exact in float64, for the counts of a 0-1 matrix stay far below 2**53."""
    floats = x.astype(np.float64)
    return (floats.T @ floats).astype(np.int64)


def from_wire(message: dict[str, Any]) -> Task:
    return Task(message["name"], message["kind"], message["rows"], message["columns"])


def _integers(count: int, *, bits: int) -> npt.NDArray[np.int64]:
    words = np.frombuffer(secrets.token_bytes(8 * count), dtype=np.int64)
    return words >> (63 - bits)
