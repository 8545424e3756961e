"""`make demo`: two owners share a table with three servers, which count on the shares and tell nobody a row.

Real processes, real mutual TLS, generated data. What is shown is the engine: no differential privacy yet, so the counts
that the servers open at the end are exact. That is why the data is generated.
"""

from __future__ import annotations

import secrets
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from caps.errors import party_name
from caps.ring import Z16, Z64, Words
from caps.sharing import Algebra, DealtShare, Explicit, Seeded, deal
from services.mpc_server.engine.arithmetic import gram, reveal
from services.mpc_server.engine.comparison import argmax
from services.mpc_server.engine.context import Context, Party, together
from services.mpc_server.engine.conversion import lift
from services.mpc_server.engine.shares import concatenate
from services.mpc_server.local import run_task

COLUMNS = {
    "age": ["0-17", "18-39", "40-64", "65+"],
    "smoker": ["no", "former", "yes"],
    "diagnosis": ["none", "asthma", "COPD", "diabetes", "hypertension"],
}
LABELS = [f"{column}={category}" for column, categories in COLUMNS.items() for category in categories]
ROWS = {"hospital A": 3_000, "hospital B": 2_000}


def generated_rows(count: int) -> Words:
    """One-hot rows with something to find: old smokers tend to have COPD."""
    coin = np.frombuffer(secrets.token_bytes(8 * count * 4), np.uint64).reshape(4, count)
    age, smoker, diagnosis = (
        (coin[i] % np.uint64(len(categories))).astype(int) for i, categories in enumerate(COLUMNS.values())
    )
    diagnosis = np.where((age == 3) & (smoker == 2) & (coin[3] % np.uint64(4) > 0), 2, diagnosis)
    blocks = [
        codes[:, None] == np.arange(len(categories))
        for codes, categories in zip((age, smoker, diagnosis), COLUMNS.values(), strict=True)
    ]
    return np.concatenate(blocks, axis=1).astype(Z16.dtype)


def cross_pairs() -> tuple[Words, Words]:
    """Index pairs of categories that belong to different columns."""
    column = np.repeat(np.arange(len(COLUMNS)), [len(categories) for categories in COLUMNS.values()])
    left, right = np.triu_indices(len(LABELS), 1)
    different = column[left] != column[right]
    return left[different], right[different]


async def serve(party: Party, directory: str, rows: list[int]) -> dict[str, Any]:
    """What each server does: read its shares, count all pairs, find the most frequent, open the two results."""
    tables = []
    for owner, count in enumerate(rows):
        stored = read_share(Path(directory), owner, party.context.party, count)
        tables.append(party.context.share(*stored.components()))
    started = time.perf_counter()
    pairs = cross_pairs()

    async def count_and_find(ctx: Context) -> tuple[Words, Words, Words]:
        small = await gram(ctx.step("gram"), concatenate(tables))
        counts = await lift(ctx.step("lift"), small[pairs], ring=Z64)
        best, where = await argmax(ctx.step("argmax"), counts)
        opened: tuple[Words, Words, Words] = tuple(
            await together(
                reveal(ctx.step("best"), best), reveal(ctx.step("where"), where), reveal(ctx.step("counts"), counts)
            )
        )
        return opened

    best, where, counts = await party.execute(count_and_find(party.context.step("demo")))
    traffic = party.channel.traffic
    return {
        "best": int(best),
        "where": int(where),
        "counts": counts.tolist(),
        "seconds": time.perf_counter() - started,
        "rounds": traffic.rounds,
        "sent": traffic.sent,
    }


def write_shares(directory: Path, owner: int, table: Words) -> int:
    """An owner's part: split the table and hand each server its two components. Returns the bytes handed over."""
    for share in deal(table, entropy=secrets.token_bytes):
        for name, part in (("mine", share.mine), ("next", share.next)):
            path = directory / party_name(share.party) / f"owner{owner}-{name}"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(part.seed if isinstance(part, Seeded) else part.vector.tobytes())
    return sum(path.stat().st_size for path in directory.glob(f"*/owner{owner}-*"))


def read_share(directory: Path, owner: int, party: int, rows: int) -> DealtShare:
    """A server's part of what `write_shares` wrote. Components 0 and 1 are seeds, 2 is the vector."""
    shape = (rows, len(LABELS))

    def part(name: str, component: int) -> Seeded | Explicit:
        stored = (directory / f"owner{owner}-{name}").read_bytes()
        return Seeded(stored, component) if component < 2 else Explicit(np.frombuffer(stored, Z16.dtype).reshape(shape))

    return DealtShare(party, shape, Z16, Algebra.ADD, part("mine", party), part("next", (party + 1) % 3))


def main() -> int:
    """Run the demonstration and compare with the clear."""
    print("CaPS demo: three MPC servers count on secret shares, over mutual TLS.")
    print("ATTENTION: all parties on one host, so non-collusion is NOT met; generated data; no DP noise yet.\n")
    tables = {owner: generated_rows(count) for owner, count in ROWS.items()}
    with tempfile.TemporaryDirectory(prefix="caps-demo-") as scratch:
        for number, (owner, table) in enumerate(tables.items()):
            uploaded = write_shares(Path(scratch), number, table)
            print(f"  {owner}: {len(table):,} rows split into three shares, {uploaded / 1e3:,.0f} kB uploaded")
        print("  starting S1, S2, S3 as processes of their own ...", flush=True)
        directories = {p: {"directory": f"{scratch}/{party_name(p)}"} for p in range(3)}
        reports = run_task("deploy.demo:serve", {"rows": list(ROWS.values())}, per_party=directories, timeout=120)

    pairs = cross_pairs()
    clear = np.concatenate(list(tables.values())).astype(np.int64)
    expected = (clear.T @ clear)[pairs]
    first = reports[0]
    left, right = (LABELS[index[first["where"]]] for index in pairs)
    print(f"\n  {len(expected)} two-way counts computed on shares of {len(clear):,} rows")
    print(f"  most frequent combination: {left} and {right}, {first['best']:,} people")
    for party, report in enumerate(reports):
        print(
            f"  {party_name(party)}: {report['rounds']} rounds, {report['sent'] / 1e3:.1f} kB sent, "
            f"{report['seconds'] * 1e3:.0f} ms"
        )
    agree = all(report["counts"] == expected.tolist() and report["best"] == expected.max() for report in reports)
    print(f"  equal to the counts in the clear: {'yes' if agree else 'NO'}")
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
