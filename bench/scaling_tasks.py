"""What each server does for `python -m bench scaling`: one protocol at many sizes, each timed after a barrier."""

from __future__ import annotations

import hashlib
import resource
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from bench.protocols_tasks import NEIGHBOURING, SIGMA2, counted, layout_of, pooled, selection
from bench.timing import barrier, shared, timed, values
from caps.data.domain import Attribute, Clique, Domain, Layout
from caps.dp.oracle import Measurement
from caps.dp.privacy.mechanisms import Gaussian
from caps.shares.prss import expand
from caps.shares.ring import SHARED_RINGS, Z16, Z22, Z64, Ring, Words
from caps.shares.sharing import Seeded
from caps.study.manifest import columns_bits
from caps.study.memory import counting_memory
from services.mpc_server.engine.compute import ColumnsInput, HorizontalInput, compute_answers
from services.mpc_server.engine.jobs import BlockSums, Deviations, Grams, Job, Mix, Quadratic, RowCoins
from services.mpc_server.engine.long import Origin, SeededOrigin, long_words
from services.mpc_server.engine.runtime import Runtime
from services.mpc_server.engine.shares import AShare
from services.mpc_server.engine.steps import Steps, Wanted
from services.mpc_server.engine.validity import COMBINATIONS, check_one_hot
from services.mpc_server.engine.workers import IN_PROCESS, Workers
from services.mpc_server.runs.material import StoredOrigin
from services.mpc_server.storage.shares import ShareStore, StoredVector, Vault, new_key
from services.mpc_server.workers.leader import Crew
from services.mpc_server.workers.pool import Pool

CATEGORIES = 5
BLOCK = 65_536
DEVIATIONS = (Quadratic((1, 0), (1, 2), -1),)
"""What a server of rep3 computes of x^2 - x."""
MADE_ROWS = 4096
"""Rows of shares that are made at once: few, so that their peak of memory is not mistaken for that of counting."""


def pairs(attributes: int, categories: int = CATEGORIES) -> Layout:
    """All one- and two-way marginals of attributes of one size."""
    domain = Domain(tuple(Attribute(f"a{i}", categories) for i in range(attributes)))
    cliques: list[Clique] = [(name,) for name in domain.names]
    return Layout(domain, (*cliques, *combinations(domain.names, 2)))


def columns(party: Runtime, domain: Domain, rows: int, label: str) -> AShare:
    """This party's share of `rows` rows, as a server loads it; made block by block so that nothing else is held."""
    shape, own, ring = (rows, domain.width), party.context.party, SHARED_RINGS[columns_bits(rows)]
    kept = {c: np.empty(shape, ring.dtype) for c in (own, (own + 1) % 3)}
    for start in range(0, rows, MADE_ROWS):
        here = slice(start, min(start + MADE_ROWS, rows))
        size = (here.stop - start, domain.width)
        parts = {c: _random(f"{label}/{start}/{c}", size, ring) for c in (0, 1)}
        if 2 in kept:
            codes = values(f"{label} {start}", (size[0], len(domain.names)), Z64) % np.uint64(CATEGORIES)
            parts[2] = ring.reduce(ring.encode(domain.one_hot(codes.astype(np.int64))) - parts[0] - parts[1])
        for c, words in kept.items():
            words[here] = parts[c]
    return party.context.share(kept[own], kept[(own + 1) % 3])


def _random(label: str, size: tuple[int, int], ring: Ring) -> Words:
    return expand(hashlib.sha256(label.encode()).digest(), b"bench", size, ring)


async def rows(party: Runtime, sizes: list[int], attributes: int, repeats: int) -> dict[str, Any]:
    """COMPUTE ANSWERS of two holders with half of the attributes each; and the float64 products, on the same cores."""
    layout = pairs(attributes)
    names = layout.domain.names
    halves = (names[: attributes // 2], names[attributes // 2 :])
    report: dict[str, Any] = {}
    for n in sizes:
        inputs = [
            ColumnsInput(f"H{i}", half, columns(party, layout.domain.project(half), n, f"{n} H{i}"))
            for i, half in enumerate(halves)
        ]
        before = _peak()
        entry = await timed(party, f"rows{n}", partial(compute_answers, inputs=inputs, layout=layout), repeats)
        entry["share_bytes"] = sum(part.nbytes for one in inputs for part in one.columns.components)
        entry["estimate"] = counting_memory(n, layout)
        entry["peak_before"], entry["peak"] = before, _peak()
        shares = [one.columns for one in inputs]
        blocks = [layout.domain.project(half).sizes for half in halves]
        entry["check"] = await timed(party, f"check{n}", partial(check_one_hot, contributions=shares, blocks=blocks), 1)
        entry["count"] = await timed(party, f"count{n}", partial(counted, columns=shares, layout=layout), 1)
        del inputs, shares
        for name, same in (("gram", True), ("gemm", False)):
            await barrier(party, party.context.step(f"{name}{n}"))
            entry[name] = products(n, layout.domain.width, same=same)
        report[str(n)] = entry
    return report


async def workers(party: Runtime, rows: int, attributes: int, crew: int, directory: str) -> dict[str, Any]:
    """The same on columns that no server holds in memory, with so many workers at each server; 0: in one process.

    As a server has them: seeds, and a vector encrypted on its disk. `alone`: the local work of S2, which has a vector,
    while the others wait: three servers and their workers on the cores of one machine wait for each other.
    """
    layout = pairs(attributes)
    names = layout.domain.names
    halves = (names[: attributes // 2], names[attributes // 2 :])
    folder = Path(directory) / str(party.context.party)
    folder.mkdir()
    store = ShareStore(folder / "shares", Vault(folder))
    domains = [layout.domain.project(half) for half in halves]
    shares = [stored(party, domain, rows, f"H{i}", store) for i, domain in enumerate(domains)]
    inputs = [ColumnsInput(f"H{i}", half, share) for i, (half, share) in enumerate(zip(halves, shares, strict=True))]
    staff = Crew(Pool(crew)) if crew else IN_PROCESS
    party.context = replace(party.context, workers=staff)
    before = _peak()
    entry = await timed(party, "whole", partial(compute_answers, inputs=inputs, layout=layout), 1)
    await barrier(party, party.context.step("alone"))
    if party.context.party == 1:
        entry["alone"] = alone(staff, layout, domains, shares)
    await barrier(party, party.context.step("done"))
    staff.close()
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    entry["peak_before"], entry["peak"] = before, _peak()
    entry["workers"] = {"cpu_seconds": ended.ru_utime + ended.ru_stime, "peak": ended.ru_maxrss * 1024}
    return {f"{rows} x {crew}": entry}


def alone(staff: Workers, layout: Layout, domains: Sequence[Domain], shares: Sequence[AShare]) -> dict[str, Any]:
    """Wall and processor seconds of the leader for the checks and the products of one server."""
    coins = RowCoins(bytes(32), b"/bench", COMBINATIONS)
    checks: list[Job] = []
    for share, domain in zip(shares, domains, strict=True):
        spread = BlockSums(domain.sizes)
        checks.append(Deviations(share.components, DEVIATIONS, spread, spread.columns, coins, COMBINATIONS))
    counting = Grams(tuple(share.components for share in shares), (Mix(0, 1), Mix(1)), Z22)
    jobs: dict[str, list[Job]] = {"check": checks, "count": [counting]}
    found = {}
    for name, some in jobs.items():
        wall, processor = time.perf_counter(), time.process_time()
        for job in some:
            staff.totals(job)
        found[name] = {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - processor}
    return found


def stored(party: Runtime, domain: Domain, rows: int, label: str, store: ShareStore) -> AShare:
    """This party's share of `rows` rows, none of it in memory: components 0 and 1 are seeds, 2 is on disk."""
    ring, shape = SHARED_RINGS[24], (rows, domain.width)
    seeds = [Seeded(hashlib.sha256(f"{label}/{c}".encode()).digest(), c) for c in (0, 1)]
    seeded = [SeededOrigin(seed, shape, ring) for seed in seeds]

    def component(number: int) -> Origin:
        if number < len(seeded):
            return seeded[number]
        key, checksums = new_key(), {}
        for chunk, start in enumerate(range(0, rows, MADE_ROWS)):
            stop = min(start + MADE_ROWS, rows)
            codes = values(f"{label} {start}", (stop - start, len(domain.names)), Z64) % np.uint64(CATEGORIES)
            words = ring.encode(domain.one_hot(codes.astype(np.int64)))
            words = words - seeded[0].rows(start, stop) - seeded[1].rows(start, stop)
            checksums[chunk] = store.put_chunk(label, chunk, key, ring.to_bytes(words))
        vector = StoredVector(store, label, key, checksums, MADE_ROWS * domain.width * ring.itemsize)
        return StoredOrigin(vector, shape, ring)

    return party.context.share(*(long_words(component(c)) for c in party.context.scheme.held[party.context.party]))


def products(rows: int, width: int, *, same: bool) -> dict[str, float]:
    """Seconds of the two float64 products of this size that replicated counting needs: A.T @ A, or A.T @ B."""
    a = values("float", (BLOCK, width), Z16).astype(np.float64)
    b = a if same else a.copy()
    wall, processor = time.perf_counter(), time.process_time()
    for start in range(0, rows, BLOCK):
        here = slice(0, min(BLOCK, rows - start))
        _ = a[here].T @ b[here], a[here].T @ b[here]
    return {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - processor}


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


async def holders(party: Runtime, sizes: list[int], repeats: int) -> dict[str, Any]:
    """COMPUTE ANSWERS of N holders that counted their own rows."""
    layout = pairs(9)
    report = {}
    for n in sizes:
        inputs = []
        for i in range(n):
            codes = (values(f"rows {i}", (20, 9), Z64) % np.uint64(CATEGORIES)).astype(np.int64)
            counts = layout.marginals(codes).astype(np.uint32)
            inputs.append(HorizontalInput(f"H{i}", shared(party, counts, f"holder {i}")))
        report[str(n)] = await timed(
            party, f"holders{n}", partial(compute_answers, inputs=inputs, layout=layout), repeats
        )
    return report


async def queries(party: Runtime, sizes: list[int], repeats: int) -> dict[str, Any]:
    """One selection by AIM's scores among |Q| candidates, and one measurement, with the noise drawn beforehand."""
    return {str(q): await _round(party, layout_of(q), f"q{q}", repeats) for q in sizes}


async def domains(party: Runtime, sizes: list[int], repeats: int) -> dict[str, Any]:
    """The same for nine attributes with more and more categories."""
    return {str(size): await _round(party, pairs(9, size), f"d{size}", repeats) for size in sizes}


async def _round(party: Runtime, layout: Layout, name: str, repeats: int) -> dict[str, Any]:
    codes = values(f"codes {name}", (614, len(layout.domain.names)), Z64) % np.array(layout.domain.sizes, np.uint64)
    counts = layout.marginals(codes.astype(np.int64))
    answers = shared(party, counts.astype(np.uint64), f"counts {name}")
    chosen = selection(layout, counts, "aim")
    clique = max(layout.cliques, key=layout.domain.cells)
    measured = Measurement("measure", clique, Gaussian(SIGMA2))
    wanted = [
        Wanted("select", chosen.plan(NEIGHBOURING), len(layout.cliques)),
        Wanted("measure", measured.plan(), layout.domain.cells(clique)),
    ]

    async def work(steps: Steps) -> None:
        await steps.select(chosen)
        await steps.measure(measured)

    entry = await pooled(party, name, layout, answers, wanted, work, repeats)
    entry["cells"] = layout.cells
    return entry
