"""True claims of every kind, as the three parties file them, and proofs of them without a network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from caps.basics.schemes import REP3
from caps.shares.prss import Prss
from services.mpc_server.engine.context import Context
from services.mpc_server.engine.rep3_active.claims import Claims
from services.mpc_server.engine.rep3_active.proof.assembly import assemble, planes_of
from services.mpc_server.engine.rep3_active.proof.field import Q
from services.mpc_server.engine.rep3_active.proof.protocol import (
    Verdict,
    agree,
    check_left,
    check_right,
    gate_shares,
    prove,
)
from services.mpc_server.engine.rep3_active.proof.source import Toss
from services.mpc_server.engine.rep3_active.proof.statement import Statement
from services.mpc_server.engine.shares import Owner
from tests.kit.recorded_claims import WITHOUT_E

LEFT_KEY, RIGHT_KEY, SEED = b"l" * 32, b"r" * 32, b"s" * 32
PROVER, LEFT, RIGHT = "prover", "left", "right"
ROLES = (PROVER, LEFT, RIGHT)
Rng = np.random.Generator


@dataclass
class Claim:
    """One claim: what is public, what is known on the left and on the right. Arrays, or sequences of arrays."""

    kind: str
    prover: int
    public: dict[str, Any]
    left: dict[str, Any]
    right: dict[str, Any]
    altered: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By role, what a party has in place of the right things."""

    def file(self, guard: Claims, party: int) -> None:
        """As one party files it."""
        role = self.role(party)
        known = self.left if role != RIGHT else dict.fromkeys(self.left)
        known = known | (self.right if role != LEFT else dict.fromkeys(self.right))
        if role == PROVER and self.kind in WITHOUT_E:
            known["e"] = None
        getattr(guard, self.kind)(self.prover, **self.public, **(known | self.altered.get(role, {})))

    def role(self, party: int) -> str:
        return (PROVER, RIGHT, LEFT)[(party - self.prover) % 3]

    def holds(self) -> bool:
        """Whether it is true as the prover has it."""
        has = self.left | self.right | self.altered.get(PROVER, {})
        total = products_of(self.kind, self.public, has)
        if self.kind == "bits":
            return not np.any(total ^ has["e"] ^ has["f"])
        modulus = 1 << self.public["bits"]
        return not np.any((total + has["e"] + has["f"]).astype(object) % modulus)

    def places(self) -> list[tuple[str, int | None]]:
        """All arrays: by name, and by number in a sequence of them."""
        found: list[tuple[str, int | None]] = []
        for name, value in (self.left | self.right).items():
            if isinstance(value, np.ndarray):
                found.append((name, None))
            elif value is not None:
                found += [(name, i) for i in range(len(value))]
        return found

    def alter(self, roles: Iterable[str], place: tuple[str, int | None], rng: Rng, bits: int = 64) -> None:
        """Flip one bit of one array, among the lowest of its elements, in the eyes of some parties."""
        name, number = place
        value = (self.left | self.right)[name]
        array = np.array(value if number is None else value[number])
        at = int(rng.integers(array.size))
        array.reshape(-1)[at] ^= array.dtype.type(1 << int(rng.integers(min(bits, 8 * array.itemsize))))
        changed: Any = array
        if number is not None:
            changed = [*value[:number], array, *value[number + 1 :]]
        for role in roles:
            self.altered.setdefault(role, {})[name] = changed


def uniform(rng: Rng, shape: Any, bits: int) -> Any:
    dtype = np.uint16 if bits <= 16 else np.uint32 if bits <= 32 else np.uint64
    return rng.integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)


def products_of(kind: str, public: dict[str, Any], has: dict[str, Any]) -> Any:
    """What a claim says of products, without e and f."""
    if kind == "bits":
        return has["a"] & has["b"] ^ has.get("c", np.uint64(0)) & has.get("d", np.uint64(0))
    if kind == "words":
        pairs = zip(has["lefts"], has["rights"], strict=True)
        total = sum((x.astype(y.dtype) * y for x, y in pairs), np.zeros_like(has["rights"][0]))
        return total if public["starts"] is None else np.add.reduceat(total, public["starts"], dtype=total.dtype)
    if kind == "gram":
        x, y = np.concatenate(has["left"], axis=1), np.concatenate(has["right"], axis=1)
        return (x.T @ y + y.T @ x)[np.triu_indices(x.shape[1])]
    if kind == "matrices":
        (a, d), (b, c) = has["lefts"], has["rights"]
        return a.T @ b + c.T @ d
    x, y = (np.hstack([one, one.sum(axis=1, dtype=one.dtype, keepdims=True)]) for one in (has["left"], has["right"]))
    rows = public["row_coins"](0, len(x)).astype(x.dtype)
    return rows.T @ (2 * x * y) @ public["column_coins"].astype(x.dtype)


def true_claim(kind: str, prover: int, public: dict[str, Any], left: dict[str, Any], right: dict[str, Any]) -> Claim:
    """The claim with these factors and with e, if it is on the left, or f; the other of the two makes it true."""
    total = products_of(kind, public, left | right)
    side, given, missing = (right, left["e"], "f") if "e" in left else (left, right["f"], "e")
    side[missing] = total ^ given if kind == "bits" else 0 - total - given
    return Claim(kind, prover, public, left, right)


def bits_claim(rng: Rng, prover: int, shape: Any = (3, 2), *, double: bool = True) -> Claim:
    a, b, c, d, e = (uniform(rng, shape, 64) for _ in range(5))
    if not double:
        return true_claim("bits", prover, {}, {"a": a, "e": e}, {"b": b})
    return true_claim("bits", prover, {}, {"a": a, "c": c, "e": e}, {"b": b, "d": d})


def words_claim(
    rng: Rng, prover: int, count: int = 5, *, bits: int = 64, terms: int = 2, segment: int = 0, narrow: bool = False
) -> Claim:
    """segment: how many products are added up in each sum. narrow: left factors are zeros and ones."""
    lefts = [rng.integers(0, 2, count, np.uint8) if narrow else uniform(rng, count, bits) for _ in range(terms)]
    rights = [uniform(rng, count, bits) for _ in range(terms)]
    starts = np.arange(0, count, segment) if segment else None
    public = {"bits": bits, "starts": starts, "left_bits": 1 if narrow else None}
    e = uniform(rng, count if starts is None else starts.size, bits)
    return true_claim("words", prover, public, {"lefts": lefts, "e": e}, {"rights": rights})


def gram_claim(rng: Rng, prover: int, rows: int = 7, widths: Sequence[int] = (2, 3), *, bits: int = 16) -> Claim:
    left, right = ([uniform(rng, (rows, width), bits) for width in widths] for _ in range(2))
    e = uniform(rng, sum(widths) * (sum(widths) + 1) // 2, bits)
    return true_claim("gram", prover, {"bits": bits}, {"left": left, "e": e}, {"right": right})


def matrices_claim(rng: Rng, prover: int, rows: int = 6, shape: tuple[int, int] = (3, 4), *, bits: int = 16) -> Claim:
    (a, b), (c, d) = ([uniform(rng, (rows, width), bits) for width in shape] for _ in range(2))
    e = uniform(rng, shape, bits)
    return true_claim("matrices", prover, {"bits": bits}, {"lefts": (a, d), "e": e}, {"rights": (b, c)})


def transposed(part: Any, buffer: Any) -> Any:
    """What deviations are spread to: the columns, and the sum of them all."""
    filled = buffer[:, : len(part)]
    filled[:-1] = part.T
    filled[-1] = part.sum(axis=1, dtype=part.dtype)
    return filled


def deviations_claim(rng: Rng, prover: int, rows: int = 20, columns: int = 3, *, bits: int = 16) -> Claim:
    x, y = uniform(rng, (rows, columns), bits), uniform(rng, (rows, columns), bits)
    r, c = rng.integers(0, 2, (rows, 48), np.uint8), rng.integers(0, 2, (columns + 1, 48), np.uint8)
    public = {
        "bits": bits,
        "spread": transposed,
        "columns": columns + 1,
        "row_coins": lambda start, count: r[start : start + count],
        "column_coins": c,
    }
    return true_claim("deviations", prover, public, {"left": x, "e": uniform(rng, (48, 48), bits)}, {"right": y})


KINDS: dict[str, Callable[[Rng, int], Claim]] = {
    "bits": bits_claim,
    "bits, one AND": lambda rng, prover: bits_claim(rng, prover, double=False),
    "words of 64": words_claim,
    "words of 22": lambda rng, prover: words_claim(rng, prover, bits=22, segment=2),
    "words of 16": lambda rng, prover: words_claim(rng, prover, bits=16, terms=1),
    "narrow words": lambda rng, prover: words_claim(rng, prover, bits=64, segment=3, narrow=True),
    "gram of 16": gram_claim,
    "gram of 22": lambda rng, prover: gram_claim(rng, prover, bits=22),
    "matrices of 16": matrices_claim,
    "matrices of 64": lambda rng, prover: matrices_claim(rng, prover, bits=64),
    "deviations of 16": deviations_claim,
    "deviations of 24": lambda rng, prover: deviations_claim(rng, prover, bits=24),
}
"""A small claim of every kind."""


def guard_of(claims: Iterable[Claim], party: int) -> Claims:
    """A party's guard with these claims, without a session."""
    guard = Claims(Context(Owner(party, bytes(32), REP3), Prss({}), Prss({})))
    for claim in claims:
        claim.file(guard, party)
    return guard


def statements(claims: Sequence[Claim], *, q: int = Q, seed: bytes = SEED) -> dict[str, Statement]:
    """What the prover of some claims and its verifiers prove or check."""
    prover = claims[0].prover
    found = {}
    for role, party in zip(ROLES, (prover, (prover - 1) % 3, (prover + 1) % 3), strict=True):
        filed = guard_of(claims, party).filed[prover]
        planes = planes_of(filed, left=role != RIGHT, right=role != LEFT)
        found[role] = assemble(filed, planes, Toss(seed), b"test", q=q)
    return found


class Sent(NamedTuple):
    """What a prover sends: `gates` before coins are known, and its proof afterwards."""

    gates: bytes
    shares: bytes
    challenges: bytes


def proved(of: Mapping[str, Statement], keys: tuple[bytes, bytes] = (LEFT_KEY, RIGHT_KEY)) -> Sent:
    """The prover's messages."""
    gates = gate_shares(of[PROVER].planes, keys[1], of[PROVER].q)
    return Sent(gates, *prove(of[PROVER], *keys, gates))


def checked(
    of: Mapping[str, Statement], sent: Sent, keys: tuple[bytes, bytes] = (LEFT_KEY, RIGHT_KEY)
) -> tuple[Verdict, Verdict]:
    """What the left and the right verifier conclude from them."""
    return check_left(of[LEFT], keys[0], sent.gates, sent.shares), check_right(of[RIGHT], keys[1], sent.challenges)


def accepted(
    claims: Sequence[Claim],
    *,
    q: int = Q,
    seed: bytes = SEED,
    keys: tuple[bytes, bytes] = (LEFT_KEY, RIGHT_KEY),
) -> bool:
    """Whether the verifiers accept the proof of some claims, all of one prover."""
    of = statements(claims, q=q, seed=seed)
    return agree(*checked(of, proved(of, keys), keys), q)
