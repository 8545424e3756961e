"""A guard of `rep3-active` that writes claims down in place of proving them; and what the parties' claims say together.

It answers what a proof cannot: whether every message is covered, whatever a party sends in its place. The claim that
counts is that of the verifiers: what one of them knows on the left, and the other on the right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from caps.basics.schemes import REP3_ACTIVE
from services.mpc_server.engine import guard as guarding
from services.mpc_server.engine.context import Context
from services.mpc_server.engine.guard import Guard
from services.mpc_server.engine.rep3_active.claims import Claims

PARTIES = 3
LEFT = {"bits": "ace", "words": ("lefts", "e"), "gram": ("left", "e"), "matrices": ("lefts", "e")}
RIGHT = {"bits": "bdf", "words": ("rights", "f"), "gram": ("right", "f"), "matrices": ("rights", "f")}
LEFT["deviations"], RIGHT["deviations"] = LEFT["gram"], RIGHT["gram"]
WITHOUT_E = ("gram", "matrices")
"""Claims of which the prover does not know e, the last on the left: it would be a product that nobody else needs."""


@dataclass
class Claim:
    """One claim as one party files it."""

    kind: str
    prover: int
    members: dict[str, Any]

    def side(self, names: Sequence[str]) -> list[Any]:
        return [self.members[name] for name in names]

    @property
    def left(self) -> list[Any]:
        return self.side(LEFT[self.kind])

    @property
    def right(self) -> list[Any]:
        return self.side(RIGHT[self.kind])

    @property
    def public(self) -> list[Any]:
        """What all parties must file alike. Functions are each party's own."""
        secret = {*LEFT[self.kind], *RIGHT[self.kind]}
        return [
            self.kind,
            self.prover,
            *((k, v) for k, v in self.members.items() if k not in secret and not callable(v)),
        ]


class Recorded(Claims):
    """Keeps every claim, and checks none."""

    pending = False
    full = False

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        self.written: list[Claim] = []

    async def check(self, ctx: Context) -> None:
        raise AssertionError("nothing is pending")

    def bits(self, prover: int, **members: Any) -> None:
        self.written.append(Claim("bits", prover, members))

    def words(self, prover: int, **members: Any) -> None:
        self.written.append(Claim("words", prover, {"starts": None, "left_bits": None} | members))

    def gram(self, prover: int, **members: Any) -> None:
        self.written.append(Claim("gram", prover, members))

    def matrices(self, prover: int, **members: Any) -> None:
        self.written.append(Claim("matrices", prover, members))

    def deviations(self, prover: int, **members: Any) -> None:
        self.written.append(Claim("deviations", prover, members))


@contextmanager
def recorded() -> Iterator[list[Recorded]]:
    """While it lasts, sessions of `rep3-active` have recording guards; the list has those of the last session."""
    guards: list[Recorded] = []

    def guard(ctx: Context) -> Guard:
        if ctx.party == 0:
            guards.clear()
        guards.append(Recorded(ctx))
        return guards[-1]

    implementations = guarding.guard._implementations
    proving = implementations[REP3_ACTIVE.name]
    implementations[REP3_ACTIVE.name] = guard
    try:
        yield guards
    finally:
        implementations[REP3_ACTIVE.name] = proving


def assert_alike(guards: Sequence[Recorded]) -> None:
    """All parties filed the same claims: the same public facts, sizes, and what two of them know of each."""
    assert len({len(guard.written) for guard in guards}) == 1
    for claims in zip(*(guard.written for guard in guards), strict=True):
        prover = claims[0].prover
        before, own, after = claims[prover - 1], claims[prover], claims[(prover + 1) % PARTIES]
        np.testing.assert_equal(before.public, own.public)
        np.testing.assert_equal(after.public, own.public)
        left = [*own.left[:-1], before.left[-1]] if own.kind in WITHOUT_E else own.left
        np.testing.assert_equal(before.left, left)
        np.testing.assert_equal(after.right, own.right)
        assert all(part is not None for part in left + own.right)
        assert own.kind not in WITHOUT_E or own.members["e"] is None
        assert all(part is None for part in before.right + after.left)


def violated(guards: Sequence[Recorded]) -> list[int]:
    """The numbers of the claims that do not hold, of those that all parties filed."""
    found = []
    for number, claims in enumerate(zip(*(guard.written for guard in guards), strict=False)):
        prover = claims[0].prover
        before, after = claims[prover - 1], claims[(prover + 1) % PARTIES]
        if _value(claims[0].kind, before, after).any():
            found.append(number)
    return found


def _value(kind: str, before: Claim, after: Claim) -> Any:
    """What should be zero."""
    if kind == "bits":
        (a, c, e), (b, d, f) = before.left, after.right
        assert a.shape == b.shape == c.shape == d.shape == e.shape == f.shape
        return (a & b) ^ (c & d) ^ e ^ f
    (lefts, e), (rights, f) = before.left, after.right
    assert e.shape == f.shape
    total = _wide(e) + _wide(f)
    if kind == "words":
        assert len(lefts) == len(rights)
        starts, left_bits = before.members["starts"], before.members["left_bits"]
        for left, right in zip(lefts, rights, strict=True):
            assert left.shape == right.shape == (left.size,)
            assert left_bits is None or not (_wide(left) >> np.uint64(left_bits)).any()
            product = _wide(left) * _wide(right)
            total = total + (product if starts is None else np.add.reduceat(product, starts))
    elif kind == "gram":
        left, right = (_wide(np.concatenate(parts, axis=1)) for parts in (lefts, rights))
        product = left.T @ right
        total = total + (product + product.T)[np.triu_indices(len(product))]
    elif kind == "matrices":
        (a, d), (b, c) = (map(_wide, parts) for parts in (lefts, rights))
        total = total + a.T @ b + c.T @ d
    else:
        members = before.members
        left, right = (_wide(_spread(side, members)) for side in (lefts, rights))
        rows = _wide(members["row_coins"](0, left.shape[1]))
        total = total + rows.T @ (2 * left * right).T @ _wide(members["column_coins"])
    return total & np.uint64((1 << before.members["bits"]) - 1)


def _spread(matrix: Any, members: dict[str, Any]) -> Any:
    return members["spread"](matrix, np.empty((members["columns"], len(matrix)), matrix.dtype)).copy()


def _wide(words: Any) -> Any:
    return np.asarray(words).astype(np.uint64)
