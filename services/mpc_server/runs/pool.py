"""Noise drawn ahead, while the coordinator fits its model: which, and how much of it."""

from __future__ import annotations

from caps.study import Manifest
from caps.study.account import Account
from services.mpc_server.engine.steps import NoisePool, Wanted

POOLED = 1 << 18
"""The most noise values drawn ahead: beyond that, drawing twice what is needed costs more than it saves."""


def is_pooled(manifest: Manifest) -> bool:
    """Whether noise is drawn before it is known which marginal it is for.

    If a measurement draws as many values as its marginal has cells, their number is known only once the marginal is
    selected; noise drawn for a different number of cells would be different noise, not repeatable after a crash.
    """
    return manifest.algorithm.noise == "joint" and manifest.program.draws(manifest.task) is not None


def wanted(manifest: Manifest, account: Account, pool: NoisePool) -> list[Wanted]:
    """What the step due now may need and the pool lacks, as far as the pool has room."""
    if account.stopped is not None:
        return []
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
