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


def planes_of(filed: Filed, *, left: bool, right: bool) -> bits.Planes:
    """The left side of gates, their right side, or both; nothing if there are none."""
    gates, words = filed.gates, filed.size().gate_words
    return bits.Planes(
        bits.side(((one.a, one.c, one.e) for one in gates), words) if words and left else None,
        bits.side(((one.b, one.d, one.f) for one in gates), words) if words and right else None,
    )


def assemble(filed: Filed, planes: bits.Planes, toss: Toss, label: bytes, *, q: int = Q) -> Statement:
    """The statement about one prover as a party knows it."""
    return Statement(filed.size(), planes, list(_sources(filed)), toss, label, q)


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
