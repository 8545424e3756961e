"""What each server does for `python -m bench engine`: the tasks, timed at one party."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bench.timing import shared, timed, values
from caps.shares.ring import Z16, Z64, Words
from services.mpc_server.engine.comparison import equal, less_than
from services.mpc_server.engine.context import Context
from services.mpc_server.engine.runtime import Runtime
from services.mpc_server.engine.shares import AShare
from services.mpc_server.engine.verbs import gram, lift, multiply, reveal


def one_hot(rows: int, columns: int) -> Words:
    """A 0-1 matrix of `columns` one-hot columns in blocks of 5, the shape of a table with 5 categories a column."""
    codes = values("codes", (rows, columns // 5), Z64) % np.uint64(5)
    table: Words = (codes[:, :, None] == np.arange(5)).reshape(rows, columns).astype(Z16.dtype)
    return table


async def measure(party: Runtime, repeats: int) -> dict[str, Any]:
    """Every engine measurement: best and median of `repeats`, all parties starting together."""
    a, b = values("a", (1_000_000,), Z64), values("b", (1_000_000,), Z64)
    x, y = shared(party, a, "x"), shared(party, b, "y")
    quarter = np.uint64(2)
    small_a, small_b = a[:100_000] >> quarter, b[:100_000] >> quarter
    small_b[::2] = small_a[::2]
    p, q = shared(party, small_a, "p"), shared(party, small_b, "q")
    one, three = shared(party, np.ones(1, Z64.dtype), "one"), shared(party, np.full(1, 3, Z64.dtype), "three")

    async def thousand(ctx: Context) -> AShare:
        product = one
        for i in range(1000):
            product = await multiply(ctx.step(i), product, three)
        return product

    report = {
        "mul_1e6": await checked(party, "mul", lambda ctx: multiply(ctx, x, y), a * b, repeats),
        "less_than_1e5": await checked(party, "less", lambda ctx: less_than(ctx, p, q), small_a < small_b, repeats),
        "equal_1e5": await checked(party, "equal", lambda ctx: equal(ctx, p, q), small_a == small_b, repeats),
        "sequential_mul_1000": await checked(
            party, "sequential", thousand, np.array([pow(3, 1000, 1 << 64)], np.uint64), repeats
        ),
    }
    for rows, columns in ((614, 45), (50_000, 45), (50_000, 200)):
        table = one_hot(rows, columns)
        columns_shared = shared(party, table, f"table {rows}x{columns}")

        async def count(ctx: Context, table_share: AShare = columns_shared) -> AShare:
            counts = await gram(ctx.step("gram"), table_share)
            return await lift(ctx.step("lift"), counts[np.triu_indices(counts.shape[1])], ring=Z64)

        doubles = table.astype(np.float64)
        expected = (doubles.T @ doubles)[np.triu_indices(columns)]
        del doubles
        name = f"gram_{rows}x{columns}"
        report[name] = await checked(party, name, count, expected, repeats)
    return report


async def checked(
    party: Runtime, name: str, step: Callable[[Context], Any], expected: np.ndarray[Any, Any], repeats: int
) -> dict[str, Any]:
    """Run a step once to warm up and check it, then time it."""
    ctx = party.context.step(f"{name}-check")
    await check(party, ctx, await party.execute(step(ctx.step("warm"))), expected)
    return await timed(party, name, step, repeats)


async def check(party: Runtime, ctx: Context, result: AShare, expected: np.ndarray[Any, Any]) -> None:
    """Open the result and compare it: a benchmark of wrong results is worth nothing."""
    opened = await party.execute(reveal(ctx.step("check"), result))
    if not np.array_equal(opened, expected.astype(opened.dtype)):
        raise RuntimeError(f"{ctx.path.decode()} computed something else than numpy")
