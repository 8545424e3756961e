"""From filed claims to the statement that one party proves or checks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from caps.shares.ring import Words
from services.mpc_server.engine.rep3_active.proof import bits
from services.mpc_server.engine.rep3_active.proof.deviations import DeviationSource
from services.mpc_server.engine.rep3_active.proof.field import Q
from services.mpc_server.engine.rep3_active.proof.filed import Filed
from services.mpc_server.engine.rep3_active.proof.matrices import MatrixSource, Side, symmetric
from services.mpc_server.engine.rep3_active.proof.source import Source, Toss
from services.mpc_server.engine.rep3_active.proof.statement import Statement
from services.mpc_server.engine.rep3_active.proof.words import WordSource


def assemble(filed: Filed, toss: Toss, label: bytes, *, left: bool, right: bool, q: int = Q) -> Statement:
    """The statement about one prover as a party knows it: its left side, its right side, or both."""
    size = filed.size()
    left_planes = right_planes = None
    if filed.gates and left:
        planes = [[one.a for one in filed.gates], [one.c for one in filed.gates], [one.e for one in filed.gates]]
        left_planes = bits.side(planes, size.gate_words)
    if filed.gates and right:
        planes = [[one.b for one in filed.gates], [one.d for one in filed.gates], [one.f for one in filed.gates]]
        right_planes = bits.side(planes, size.gate_words)
    return Statement(size, left_planes, right_planes, list(_sources(filed)), toss, label, q)


def _sources(filed: Filed) -> Iterator[Source]:
    equations = iter(filed.size().equations)
    for (ring_bits, left_bits), claims in filed.words.items():
        yield WordSource(claims, next(equations), left_bits, b"words/%d/%d" % (ring_bits, left_bits))
    for number, claim in enumerate(filed.grams):
        label = b"gram/%d" % number
        left = None if claim.lefts is None else Side(claim.lefts, label)
        right = None if claim.rights is None else Side(claim.rights, label)
        e, f = (None if one is None else symmetric(one) for one in (claim.e, claim.f))
        pairs = [(left, right, False), (left, right, True)]
        yield MatrixSource(next(equations), step=2, pairs=pairs, e=e, f=f, labels=(label, label))
    for number, claim in enumerate(filed.matrices):
        labels = (b"rows/%d" % number, b"columns/%d" % number)
        a, d = _sides(claim.lefts, *labels)
        b, c = _sides(claim.rights, *reversed(labels))
        pairs = [(a, b, False), (d, c, True)]
        yield MatrixSource(next(equations), step=1, pairs=pairs, e=claim.e, f=claim.f, labels=labels)
    for deviation in filed.deviations:
        yield DeviationSource(deviation, next(equations))


def _sides(matrices: Sequence[Words] | None, first: bytes, second: bytes) -> tuple[Side | None, Side | None]:
    if matrices is None:
        return None, None
    one, other = matrices
    return Side([one], first), Side([other], second)
