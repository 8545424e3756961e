"""Large products of a party's own components, by its workers: what the verbs of every scheme are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from caps.shares.ring import Ring, Words
from services.mpc_server.engine.jobs import Deviations, Grams, Mix, Quadratic
from services.mpc_server.engine.kernels import gram_of_parts, is_one_factor, matmul_mod
from services.mpc_server.engine.shares import AShare
from services.mpc_server.engine.verbs import Coins
from services.mpc_server.engine.workers import Workers


def gram_mixes(workers: Workers, parts: Sequence[AShare], mixes: tuple[Mix, ...], modulo: Ring) -> tuple[Words, ...]:
    """x^T x modulo 2^k for each mix x of the components of a matrix that comes in parts; higher bits mean nothing."""
    components = tuple(share.components for share in parts)
    if is_one_factor(modulo):
        totals = workers.totals(Grams(components, mixes, modulo))
        return tuple(total.astype(modulo.dtype) for total in totals)
    return tuple(_gram(components, mix, modulo) for mix in mixes)


def _gram(components: Sequence[tuple[Words, ...]], mix: Mix, modulo: Ring) -> Words:
    chosen = [mix.first] if mix.second is None else [mix.first, mix.second]
    summands = [tuple(part[place] for place in chosen) for part in components]
    return gram_of_parts(summands, modulo=modulo, mixed=np.subtract if mix.opposite else np.add)


def combinations(
    workers: Workers,
    x: AShare,
    forms: tuple[Quadratic, ...],
    *,
    spread: Callable[[Words, Words], Words],
    columns: int,
    row_coins: Callable[[int, int], Coins],
    column_coins: Coins,
) -> list[Words]:
    """R V C for each form V of what the components of x are spread to.

    Rows are combined first, in blocks: their number is what costs time.
    """
    job = Deviations(x.components, forms, spread, columns, row_coins, column_coins.shape[1])
    chosen = column_coins.astype(x.ring.dtype)
    return [matmul_mod(total.astype(x.ring.dtype).T, chosen) for total in workers.totals(job)]
