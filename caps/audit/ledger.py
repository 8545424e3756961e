"""A server's ledger, checked without its help: its chain, the heads that the server signed, what populations cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from caps.basics import canonical
from caps.dp.privacy import PopulationBudget, Reservation, folded_epsilon, together
from caps.errors import DomainError
from caps.study.policy import Policy
from caps.trust import signing
from caps.wire import LedgerHead, Signed

_GENESIS = "0" * 64


def broken_at(records: Iterable[dict[str, Any]]) -> int | None:
    """The number of the first record of a server's ledger that does not continue its chain; None if all do."""
    previous = _GENESIS
    for number, record in enumerate(records):
        content = {name: value for name, value in record.items() if name != "hash"}
        found = canonical.digest("ledger-record", {"record": content}).hex()
        if (record.get("number"), record.get("previous"), record.get("hash")) != (number, previous, found):
            return number
        previous = found
    return None


@dataclass(frozen=True, slots=True)
class HeadVerdict:
    """A head that somebody keeps of a server's ledger. holds: None if the server did not sign it: it proves nothing."""

    kept_by: str
    number: int
    at: str
    run: str
    holds: bool | None
    verdict: str


def compared(
    records: Sequence[Mapping[str, Any]], name: str, signing_key: str, kept: Mapping[str, Sequence[Signed[LedgerHead]]]
) -> list[HeadVerdict]:
    """Every head of this server's ledger, by who keeps it, with the verdict; heads of other servers are passed over."""
    hashes = {record.get("number"): record.get("hash") for record in records}
    verdicts = []
    for keeper, heads in kept.items():
        for head in heads:
            said = head.document
            if said.server != name:
                continue
            holds: bool | None = hashes.get(said.number) == said.hash
            verdict = "in the ledger" if holds else "NOT IN THE LEDGER, which was rolled back or rewritten"
            try:
                signing.verify(signing_key, said.kind, said.to_json(), head.signature)
            except signing.SignatureRefused:
                holds, verdict = None, f"not signed by {name}: it proves nothing"
            verdicts.append(HeadVerdict(keeper, said.number, said.at, said.run, holds, verdict))
    return verdicts


@dataclass(frozen=True, slots=True)
class PopulationSpending:
    """What the runs in a ledger have set aside of a population's budget.

    used: epsilon of all together at `delta`; None if nothing can be promised any more. limit, left: by the server's
    policy; None without one, or if it does not know the population. left is for one more study of the same kind.
    """

    population: str
    runs: int
    delta: float
    used: float | None
    limit: float | None
    left: float | None


def spending(records: Iterable[Mapping[str, Any]], policy: Policy | None = None) -> list[PopulationSpending]:
    """By population, what was reserved and not given back. Raises DomainError if a record is not of a ledger.

    Without a policy, epsilon is at the sum of the studies' deltas; with one, at its `population_delta`.
    """
    taken: dict[str, dict[str, tuple[Reservation, Fraction]]] = {}
    for record in records:
        if record.get("kind") == "reserve":
            try:
                reservation = Reservation.from_json({name: record[name] for name in Reservation.MEMBERS})
                delta = Fraction(record["privacy"]["delta"])
                taken.setdefault(str(record["population"]), {})[str(record["run"])] = reservation, delta
            except (KeyError, TypeError, ValueError):
                raise DomainError(f"record {record.get('number')}: not a reservation") from None
        elif record.get("kind") == "release":
            taken.get(str(record.get("population")), {}).pop(str(record.get("run")), None)
    names = {*taken, *(() if policy is None else policy.populations)}
    return [_spent(name, list(taken.get(name, {}).values()), policy) for name in sorted(names)]


def _spent(population: str, runs: Sequence[tuple[Reservation, Fraction]], policy: Policy | None) -> PopulationSpending:
    reservations = [reservation for reservation, _ in runs]
    budget = None if policy is None else policy.population_budget(population)
    delta = sum((delta for _, delta in runs), Fraction(0)) if budget is None else budget.delta
    used = _epsilon(together(reservations), delta) if reservations else 0.0
    left = None if budget is None else _left(budget, reservations)
    return PopulationSpending(
        population, len(runs), float(delta), used, None if budget is None else float(budget.epsilon), left
    )


def _left(budget: PopulationBudget, taken: Sequence[Reservation]) -> float:
    kind = together(taken).neighbouring
    rho = budget.left(taken, kind)
    return 0.0 if rho == 0 else _epsilon(Reservation(rho, kind), budget.delta) or 0.0


def _epsilon(reservation: Reservation, delta: Fraction) -> float | None:
    try:
        return float(folded_epsilon(reservation.rho, reservation.allowance, delta))
    except DomainError:  # delta does not cover the distances
        return None
