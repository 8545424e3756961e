"""The owner's own ledger: which tables went to which studies, and what all studies together cost the persons in them.

Servers limit what a population's studies cost, but they know populations by name only. The holder knows its tables.
Both add up in the same way (`caps.dp.privacy.population`): a study counts with its whole budget from the moment its
contribution is fixed, and no longer counts once all servers have signed that it was withdrawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from caps.dp.privacy import together
from caps.dp.privacy.zcdp import folded_epsilon
from caps.errors import DomainError
from caps.study import Manifest
from caps.wire.holder import Goal, HolderLedger, LedgerEntry, Loss, PopulationLoss, StudyLoss, TableLoss


@dataclass(frozen=True)
class Given:
    """A contribution: to which study, from which rows (None if they were not fingerprinted), and what became of it."""

    manifest: Manifest
    contribution: str
    at: str
    goal: Goal
    fingerprint: str | None

    @property
    def counted(self) -> bool:
        """Whether servers have it, may have it or may get it."""
        return self.goal is not Goal.WITHDRAWN

    @property
    def population(self) -> str:
        """The name of the persons."""
        return self.manifest.privacy.population


def loss_of(studies: Iterable[Manifest]) -> Loss | None:
    """What studies cost one person who is in all of them; each study counts once. None if there is no study.

    epsilon is stated at the sum of the studies' deltas, and is None if nothing can be promised any more.
    """
    listed = list({study.study_id: study for study in studies}.values())
    if not listed:
        return None
    total = together(study.reservation for study in listed)
    delta = sum((study.privacy.exact_delta for study in listed), Fraction(0))
    try:
        epsilon = float(folded_epsilon(total.rho, total.allowance, delta))
    except DomainError:
        epsilon = None
    return Loss(
        studies=len(listed),
        rho=float(total.rho),
        epsilon=epsilon,
        delta=float(delta),
        relation=total.neighbouring.relation.value,
        multiplicity=total.neighbouring.multiplicity,
    )


def study_loss(given: Sequence[Given], manifest: Manifest, fingerprint: str | None, *, loaded: bool) -> StudyLoss:
    """What a study would add for its population, and what the owner should know before contributing.

    fingerprint: of the table that is loaded for it.
    """
    population = manifest.privacy.population
    others = [one for one in given if one.counted and one.manifest.study_id != manifest.study_id]
    same = [one.manifest for one in others if one.population == population]
    after = loss_of([*same, manifest])
    assert after is not None
    warnings = []
    if loaded and fingerprint is None:
        warnings.append("this table was loaded before tables were fingerprinted; load it again to have it compared")
    elif fingerprint is not None:
        warnings += _renamed([*others, Given(manifest, "", "", Goal.PUSHING, fingerprint)], fingerprint)
    return StudyLoss(population=population, before=loss_of(same), after=after, warnings=warnings)


def ledger_of(given: Sequence[Given]) -> HolderLedger:
    """The whole ledger."""
    counted = [one for one in given if one.counted]
    populations = sorted({one.population for one in counted})
    prints = sorted({one.fingerprint for one in counted if one.fingerprint is not None})
    return HolderLedger(
        entries=[_entry(one) for one in given],
        populations=[
            PopulationLoss(population=name, loss=loss)
            for name in populations
            if (loss := loss_of(one.manifest for one in counted if one.population == name)) is not None
        ],
        tables=[
            TableLoss(
                fingerprint=found,
                populations=sorted({one.population for one in counted if one.fingerprint == found}),
                loss=loss,
            )
            for found in prints
            if (loss := loss_of(one.manifest for one in counted if one.fingerprint == found)) is not None
        ],
        total=loss_of(one.manifest for one in counted),
        warnings=[warning for found in prints for warning in _renamed(counted, found)],
    )


def _renamed(counted: Sequence[Given], fingerprint: str) -> list[str]:
    """A warning if these rows are counted under more than one name."""
    mine = [one for one in counted if one.fingerprint == fingerprint]
    names = sorted({one.population for one in mine})
    if len(names) < 2:
        return []
    loss = loss_of(one.manifest for one in mine)
    assert loss is not None
    shown = (
        "nothing can be promised" if loss.epsilon is None else f"epsilon {loss.epsilon:.3g} at delta {loss.delta:.2g}"
    )
    return [
        f"the same rows (table {fingerprint[:12]}) go by the names {', '.join(names)}: servers count each of these "
        f"populations apart, but the losses of these persons add up to {shown}"
    ]


def _entry(one: Given) -> LedgerEntry:
    privacy = one.manifest.privacy
    return LedgerEntry(
        study=one.manifest.study_id,
        title=one.manifest.title,
        population=one.population,
        contribution=one.contribution,
        at=one.at,
        state=one.goal,
        counted=one.counted,
        fingerprint=one.fingerprint,
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        rho=float(one.manifest.reservation.rho),
    )
