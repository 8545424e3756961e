"""Timing a step at one party, all parties starting together."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import count
from statistics import median
from typing import Any

import numpy as np

from caps.shares.prss import expand
from caps.shares.ring import Z64, Ring, Words
from caps.shares.sharing import Algebra, deal
from services.mpc_server.engine.context import Context
from services.mpc_server.engine.runtime import Runtime
from services.mpc_server.engine.shares import AShare


def values(label: str, shape: tuple[int, ...], ring: Ring) -> Words:
    """Public benchmark data, the same at every party."""
    return expand(hashlib.sha256(label.encode()).digest(), b"bench", shape, ring)


def shared(party: Runtime, words: Words, label: str) -> AShare:
    """This party's share of public benchmark data, as a holder would have dealt it."""
    return party.context.share(*dealt_to(party, words, label, Algebra.ADD))


def dealt_to(party: Runtime, words: Words, label: str, algebra: Algebra) -> tuple[Words, ...]:
    """The components of public benchmark data that this party receives, whatever its scheme."""
    ctx, seeds = party.context, (hashlib.sha256(f"{label}/{i}".encode()).digest() for i in count())
    dealt = deal(words, entropy=lambda _: next(seeds), algebra=algebra, scheme=ctx.scheme)
    return dealt[ctx.party].components()


async def timed(party: Runtime, name: str, step: Callable[[Context], Any], repeats: int) -> dict[str, Any]:
    """Run a step `repeats` times against the clock, after a barrier each."""
    return await timed_after(party, name, _nothing, lambda ctx, _: step(ctx), repeats)


async def timed_after(
    party: Runtime,
    name: str,
    prepare: Callable[[Context], Awaitable[Any]],
    step: Callable[[Context, Any], Any],
    repeats: int,
) -> dict[str, Any]:
    """As `timed`, with an untimed preparation before every repetition, whose result the step is given."""
    ctx = party.context.step(name)
    walls, cpus, traffic = [], [], party.channel.traffic
    rounds = sent = 0
    for i in range(repeats):
        prepared = await prepare(ctx.step(f"prepare{i}"))
        await barrier(party, ctx.step(f"ready{i}"))
        rounds, sent = traffic.rounds, traffic.sent
        cpu, wall = time.process_time(), time.perf_counter()
        await party.execute(step(ctx.step(f"run{i}"), prepared))
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
        rounds, sent = traffic.rounds - rounds, traffic.sent - sent
    return {"walls": walls, "cpus": cpus, "rounds": rounds, "sent": sent}


async def _nothing(ctx: Context) -> None:
    return None


async def barrier(party: Runtime, ctx: Context) -> None:
    """Return when all peers have come as far."""
    word = np.zeros(1, Z64.dtype)

    async def meet() -> None:
        peers = ctx.scheme.peers_of(ctx.party)
        await ctx.exchange([(peer, word) for peer in peers], [(peer, word.nbytes) for peer in peers])

    await party.execute(meet())


def summary(parties: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One measurement from what the parties saw: median wall time of the slowest, processor time of all."""
    walls = [max(walls) for walls in zip(*(party["walls"] for party in parties), strict=True)]
    cpus = [sum(cpus) for cpus in zip(*(party["cpus"] for party in parties), strict=True)]
    return {
        "seconds": median(walls),
        "seconds_best": min(walls),
        "cpu_seconds": median(cpus),
        "bytes": sum(party["sent"] for party in parties),
        "bytes_per_server": max(party["sent"] for party in parties),
        "rounds": parties[0]["rounds"],
    }
