"""Cases of COMPUTE ANSWERS for `CASES`: drawn schemas, tables and partitions, and numpy's counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from caps.data.domain import MISSING, Attribute, Domain, Layout
from caps.shares.ring import Z16, Z32, Z64, Ring, Words
from services.mpc_server.engine import compute, counting, size, validity
from services.mpc_server.engine.compute import ColumnsInput, HorizontalInput
from services.mpc_server.engine.context import Context
from services.mpc_server.engine.paper import counting as paper
from services.mpc_server.engine.shares import AShare
from tests.kit.cases.base import Call, Source, case


def listed(protocol: Callable[..., Any]) -> Callable[..., Any]:
    """The protocol with the shares of its one list as arguments of their own, which is how a world deals them."""

    async def call(ctx: Context, *shares: AShare, **kwargs: Any) -> Any:
        return await protocol(ctx, shares, **kwargs)

    return call


def described(protocol: Callable[..., Any]) -> Callable[..., Any]:
    """The protocol with shares as arguments; `inputs` tells, one function each, what they are."""

    async def call(ctx: Context, *shares: AShare, inputs: Sequence[Callable[[Any], Any]], **kwargs: Any) -> Any:
        return await protocol(ctx, [make(share) for make, share in zip(inputs, shares, strict=True)], **kwargs)

    return call


def horizontal(holder: str, cliques: Any = None) -> Callable[[Any], HorizontalInput]:
    return lambda share: HorizontalInput(holder, share, cliques)


def columns(holder: str, attributes: tuple[str, ...]) -> Callable[[Any], ColumnsInput]:
    return lambda share: ColumnsInput(holder, attributes, share)


def in_words(ring: Ring, one_hot: np.ndarray, s: np.random.Generator) -> Words:
    """One-hot columns as servers hold them: above the 24 bits that were shared stands what sums of shares leave."""
    words = ring.encode(one_hot)
    return words if ring == Z16 else words + (s.integers(0, 1 << 8, words.shape, Z32.dtype) << np.uint32(24))


def drawn_layout(s: Source, largest: int = 4, degree: int = 3) -> Layout:
    nullable = s.sizes.random(largest) < 0.5
    attributes = [Attribute(f"a{i}", s.count(1, 4), bool(nullable[i])) for i in range(s.count(1, largest))]
    domain = Domain(tuple(attributes))
    all_cliques = [clique for p in range(1, degree + 1) for clique in combinations(domain.names, p)]
    chosen = s.sizes.permutation(len(all_cliques))[: s.count(1, len(all_cliques))]
    return Layout(domain, tuple(all_cliques[i] for i in chosen))


def drawn_codes(s: Source, domain: Domain, rows: int) -> np.ndarray:
    """Codes with missing values where the schema allows them; or all first, or all last categories."""
    sizes = np.array(domain.sizes)
    if s.fill == "zeros":
        return np.zeros((rows, len(sizes)), int)
    if s.fill == "ones":
        return np.tile(sizes - 1, (rows, 1))
    codes = s.values.integers(0, sizes, (rows, len(sizes)))
    nullable = np.array([attribute.nullable for attribute in domain.attributes])
    return np.where(nullable & (s.values.random(codes.shape) < 0.2), MISSING, codes)


def first_value(tables: Sequence[np.ndarray]) -> np.ndarray:
    """What the precedence rule says: the first table that has a value decides."""
    merged = tables[0]
    for table in tables[1:]:
        merged = np.where(merged == MISSING, table, merged)
    return merged


def drawn_mistakes(s: Source, count: int) -> np.ndarray:
    """Which of `count` contributions are to be wrong."""
    return s.values.random(count) < (0.4 if s.fill == "random" else 0.0)


@case(validity.toss)
def _(s: Source) -> Call:
    def check(words: Words) -> None:
        assert words.shape == (4,)
        assert len(set(words.tolist())) == 4

    return Call((), {}, None, {}, check)


@case(validity.check_totals, listed(validity.check_totals))
def _(s: Source) -> Call:
    layout, count = drawn_layout(s), s.count(1, 4)
    tables = [layout.marginals(drawn_codes(s, layout.domain, s.count(0, 20))) for _ in range(count)]
    full = [i for i, q in enumerate(layout.cliques) if all(not a.nullable for a in attributes_of(layout.domain, q))]
    wrong = drawn_mistakes(s, count) & (len(full) > 1)
    for table in np.flatnonzero(wrong):
        tables[table][layout.offsets[full[-1]]] += 1
    bits = s.count(16, 32)
    sizes = {size.marginal_inputs: count, size.combinations: validity.combinations_of_totals([layout], bits)}
    arguments = tuple(Z64.encode(table) for table in tables)
    return Call(arguments, sizes, ~wrong, {"layouts": [layout] * count, "bits": bits})


def attributes_of(domain: Domain, clique: Sequence[str]) -> list[Attribute]:
    return [domain.attributes[domain.position(name)] for name in clique]


@case(compute.add_marginals, described(compute.add_marginals))
def _(s: Source) -> Call:
    layout, ring, count = drawn_layout(s), s.ring(Z16, Z32), s.count(1, 4)
    tables = [layout.marginals(drawn_codes(s, layout.domain, s.count(0, 20))) for _ in range(count)]
    bits = s.count(8, min(ring.bits, 32 - (count - 1).bit_length()))
    kwargs = {"inputs": [horizontal(f"H{i}") for i in range(count)], "layout": layout, "bits": bits}
    sizes = {size.marginal_inputs: count, size.marginal_cells: count * layout.cells, size.count_bits: bits}
    sizes[size.combinations] = validity.combinations_of_totals([layout], bits)
    expect = (np.sum(tables, axis=0), np.ones(count, bool))
    # Whatever a holder says beyond the bits that count is cut off.
    claims = [ring.encode(table) | (s.words(ring, table.shape) >> bits << bits) for table in tables]
    return Call(tuple(claims), sizes, expect, kwargs)


@case(validity.check_one_hot, listed(validity.check_one_hot))
def _(s: Source) -> Call:
    domains, ring = [drawn_layout(s).domain for _ in range(s.count(1, 4))], s.ring(Z16, Z32)
    tables = [domain.one_hot(drawn_codes(s, domain, s.count(1, 40))) for domain in domains]
    arguments = [in_words(ring, table, s.values) for table in tables]
    wrong = drawn_mistakes(s, len(domains))
    for number in np.flatnonzero(wrong):
        arguments[number][-1, 0] = 2
    sizes = {size.column_inputs: len(domains), size.word_bits: ring.bits}
    return Call(tuple(arguments), sizes, ~wrong, {"blocks": [domain.sizes for domain in domains]})


async def coalesce_all(ctx: Context, *blocks: AShare, holders: Sequence[int]) -> Any:
    ends = np.cumsum(holders)
    return await counting.coalesce(ctx, [blocks[end - count : end] for end, count in zip(ends, holders, strict=True)])


@case(counting.coalesce, coalesce_all)
def _(s: Source) -> Call:
    rows = s.count(1, 30)
    domains = [Domain((Attribute("a", s.count(1, 5), nullable=True),)) for _ in range(s.count(1, 3))]
    holders, ring = [s.count(1, 5) for _ in domains], s.ring(Z16, Z32)
    if sum(holders) == len(holders):
        holders[0] = 2
    arguments, expect = [], []
    for domain, count in zip(domains, holders, strict=True):
        tables = [drawn_codes(s, domain, rows) for _ in range(count)]
        if s.fill == "random":
            tables = [np.where(s.values.random(table.shape) < 0.5, MISSING, table) for table in tables]
        arguments += [ring.encode(domain.one_hot(table)) for table in tables]
        expect.append(ring.encode(domain.one_hot(first_value(tables))))
    lower = sum((count - 1) * domain.width for domain, count in zip(domains, holders, strict=True))
    sizes = {size.rows: rows, size.lower_columns: lower, size.most_holders: max(holders), size.word_bits: ring.bits}
    return Call(tuple(arguments), sizes, tuple(expect), {"holders": holders})


@case(counting.count)
def _(s: Source) -> Call:
    layout, rows, ring = drawn_layout(s, largest=5, degree=4), s.count(1, 60), s.ring(Z16, Z32)
    codes = drawn_codes(s, layout.domain, rows)
    columns_ = in_words(ring, layout.domain.one_hot(codes), s.values)
    return Call((columns_,), counting.count_sizes(layout, rows, ring.bits), layout.marginals(codes), {"layout": layout})


@case(paper.count_paper)
def _(s: Source) -> Call:
    layout, rows = drawn_layout(s), s.count(1, 30)
    codes = drawn_codes(s, layout.domain, rows)
    return Call((Z64.encode(codes),), paper.paper_sizes(layout, rows), layout.marginals(codes), {"layout": layout})


@case(compute.compute_answers, described(compute.compute_answers))
def _(s: Source) -> Call:
    """Some rows at one holder each, the others in columns, of which the first attribute is brought twice."""
    layout, ring = drawn_layout(s), s.ring(Z16, Z32)
    domain, rows = layout.domain, s.count(1, 30)
    own = [drawn_codes(s, domain, s.count(0, 20)) for _ in range(s.count(0, 2))]
    spread = [drawn_codes(s, domain, rows), drawn_codes(s, domain, rows)]
    twice = domain.project(domain.names[:1])
    joined = spread[0].copy()
    joined[:, 0] = first_value([spread[1][:, 0], spread[0][:, 0]])
    arguments = (
        *(Z32.encode(layout.marginals(codes)) for codes in own),
        in_words(ring, twice.one_hot(spread[1][:, :1]), s.values),
        in_words(ring, domain.one_hot(spread[0]), s.values),
    )
    inputs = [horizontal(f"H{i}") for i in range(len(own))] + [columns("C", twice.names), columns("D", domain.names)]
    sizes = sizes_of(inputs, arguments, layout)
    expect = (layout.marginals(np.concatenate([*own, joined])), np.ones(len(inputs), bool))
    return Call(arguments, sizes, expect, {"inputs": inputs, "layout": layout})


class Extent:
    """What of a share its cost depends on."""

    def __init__(self, words: Words) -> None:
        self.shape = words.shape
        self.ring = {ring.dtype: ring for ring in (Z16, Z32)}[words.dtype]


def sizes_of(inputs: Sequence[Callable[[Any], Any]], arguments: Sequence[Words], layout: Layout, *more: Any) -> Any:
    made = [make(Extent(words)) for make, words in zip(inputs, arguments, strict=True)]
    return compute.answers_sizes(made, layout, *more)
