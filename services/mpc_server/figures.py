"""An MPC server's figures for its operator: mesh, ledger, runs. Read when /metrics is requested."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from fractions import Fraction

from caps.dp.privacy import together
from caps.errors import party_name
from caps.service.metrics import Reading, Source
from caps.study import Policy
from services.mpc_server.storage.heads import Heads
from services.mpc_server.storage.ledger import Ledger, LedgerBroken
from services.mpc_server.transport.keeper import MeshKeeper

_LEDGER_LASTS = 60.0
"""Seconds before the ledger is verified again, which reads every record."""


def mesh_figures(keeper: MeshKeeper) -> Source:
    """The state of the mesh."""

    def source() -> Iterator[Reading]:
        state = keeper.state
        yield Reading("caps_mesh_connected", state.phase == "connected")
        yield Reading("caps_mesh_made", state.meshes)
        for peer, trouble in state.troubles.items():
            yield Reading("caps_peer_trouble", trouble is not None, (party_name(peer),))

    return source


def ledger_figures(
    ledger: Ledger, policy: Policy, heads: Heads | None = None, *, monotonic: Callable[[], float] = time.monotonic
) -> Source:
    """Whether the chain holds, with all this server has signed, and what is left of each population's budget here."""
    cached: tuple[float, list[Reading]] | None = None

    def source() -> list[Reading]:
        nonlocal cached
        if cached is None or monotonic() - cached[0] > _LEDGER_LASTS:
            cached = monotonic(), list(_ledger(ledger, policy, heads))
        return cached[1]

    return source


def _ledger(ledger: Ledger, policy: Policy, heads: Heads | None) -> Iterator[Reading]:
    try:
        count = ledger.verify()
        if heads is not None:
            heads.verify()
    except LedgerBroken:
        yield Reading("caps_ledger_sound", 0)
        return
    yield Reading("caps_ledger_sound", 1)
    yield Reading("caps_ledger_records", count)
    taken = ledger.taken()
    for population in sorted({*policy.populations, *taken}):
        studies, budget = taken.get(population, []), policy.population_budget(population)
        left = Fraction(0) if budget is None else budget.left(studies, together(studies).neighbouring)
        yield Reading("caps_ledger_rho_left", float(left), (population,))
