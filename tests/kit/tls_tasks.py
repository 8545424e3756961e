"""Tasks that tests give to three server processes (`services.mpc_server.local`)."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np

from caps.basics.schemes import REP3
from caps.shares.prss import Prss
from caps.shares.ring import Z64
from services.mpc_server.engine.context import Context
from services.mpc_server.engine.runtime import Runtime
from services.mpc_server.engine.shares import AShare, BShare, Owner
from services.mpc_server.engine.verbs import multiply
from services.mpc_server.testing.world import World
from tests.kit.cases.all import CASES
from tests.kit.cases.base import Source


def source(seed: int) -> Source:
    return Source(np.random.default_rng(seed), np.random.default_rng(seed + 1))


def share_for(party: Runtime, seed: int, argument: Any) -> Any:
    """This party's share of an argument that every process knows: all deal alike and keep their own part."""
    owners = [Context(Owner(p, party.context.owner.study, REP3), Prss({}), Prss({})) for p in range(3)]
    return World(seed).share(owners, argument)[party.context.party]


def packed(result: Any) -> Any:
    """A party's result as JSON."""
    if isinstance(result, tuple):
        return [packed(part) for part in result]
    if isinstance(result, AShare | BShare):
        return {
            "kind": type(result).__name__,
            "shape": list(result.shape),
            "dtype": result.components[0].dtype.str,
            "rows": list(result.components[0].shape),
            "components": [base64.b64encode(part.tobytes()).decode() for part in result.components],
        }
    return {"kind": "opened", "values": np.asarray(result).tolist()}


async def run_cases(party: Runtime, names: list[str], seed: int) -> list[dict[str, Any]]:
    """Run one drawn call of each protocol named and return what this party ends up with, and what it cost."""
    results = []
    for name in names:
        protocol, build = CASES[name]
        call = build(source(seed))
        arguments = [share_for(party, seed + i, argument) for i, argument in enumerate(call.args)]
        traffic = party.channel.traffic
        rounds, sent = traffic.rounds, traffic.sent
        result = await party.execute(protocol(party.context.step(name), *arguments, **call.kwargs))
        results.append({"result": packed(result), "rounds": traffic.rounds - rounds, "sent": traffic.sent - sent})
    return results


async def multiply_for_ever(party: Runtime, directory: str) -> None:
    """Keep multiplying, so that a test can do something to one of the parties; a file says that it is in the middle."""
    x = share_for(party, 1, np.ones(1000, Z64.dtype))
    for i in range(1 << 30):
        x = await party.execute(multiply(party.context.step(i), x, x))
        if i == 10:
            (Path(directory) / str(party.context.party)).touch()


async def fail_locally(party: Runtime, culprit: int) -> None:
    """One party passes a share that does not fit; the others do what they should."""
    x = share_for(party, 1, np.ones(10, Z64.dtype))
    y = x[:5] if party.context.party == culprit else x
    for i in range(3):  # one party can finish the first round without the culprit's message, not the second
        await party.execute(multiply(party.context.step(i), x, y))
