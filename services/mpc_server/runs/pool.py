"""Noise drawn ahead, while the coordinator fits its model: which, and how much of it."""

from __future__ import annotations

from caps.study import Manifest
from caps.study.account import Account
from services.mpc_server.engine.steps import NoisePool, Wanted

POOLED = 1 << 18
"""Noise values drawn beforehand, at most: beyond that, drawing twice what is needed costs more than it saves."""


def is_pooled(manifest: Manifest) -> bool:
    """Whether noise is drawn before it is known which marginal it is for.

    Where a measurement draws as much as its marginal has cells, that is known only once it is selected; and noise
    drawn for another number of cells would be other noise, which a repetition after a crash would not repeat.
    """
    return manifest.algorithm.noise == "joint" and manifest.program.draws(manifest.task) is not None


def wanted(manifest: Manifest, account: Account, pool: NoisePool) -> list[Wanted]:
    """All that the step due now may need and the pool does not hold, as far as it has room."""
    enforcer, neighbouring = account.enforcer, manifest.task.neighbouring
    room = POOLED - len(pool)
    found = []
    for one in enforcer.upcoming(enforcer.left):
        noise = Wanted(one.step, one.plan(neighbouring), one.draws)
        if not pool.has(noise):
            room -= noise.draws
            if room < 0:
                break
            found.append(noise)
    return found
