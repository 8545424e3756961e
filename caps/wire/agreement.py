"""What somebody agrees to who approves a study, in words: the same on the command's screen and on pages."""

from __future__ import annotations

import math

from caps.study import Holder, Manifest
from caps.wire.holder import Loss, ServerBudget
from caps.wire.server import PopulationState

_SCHEMES = {
    "rep3": "three honest servers; any two together see all your data",
    "rep3-active": "three servers; one may cheat; two see all your data",
    "rep4": "four servers; one may cheat; two together see all your data",
}


def trust(manifest: Manifest) -> str:
    """On whom it rests that nobody sees the data."""
    return _SCHEMES[manifest.scheme]


def factor(manifest: Manifest) -> float:
    """How many times as likely anything that anybody concludes may become by one person's data."""
    return math.exp(min(float(manifest.privacy.exact_epsilon), 100.0))


def protection(manifest: Manifest) -> str:
    """The guarantee."""
    privacy = manifest.privacy
    return (
        f"epsilon {privacy.epsilon}, delta {float(privacy.exact_delta):.2g}: nothing anybody "
        f"concludes is more than {factor(manifest):.3g} times as likely because one person's data are in it"
    )


def published(manifest: Manifest) -> str:
    """What everybody sees in the end."""
    what = "synthetic rows" + (", noisy counts" if manifest.publication.measurements else "")
    proof = "" if manifest.algorithm.certified else "; its noise has NO proven guarantee"
    return f"{what}; the method is {manifest.algorithm.name}{proof}"


def leaks(manifest: Manifest) -> tuple[str, ...]:
    """What parties learn besides."""
    covered = manifest.leaks or (
        "servers see the sizes that the study fixes"
        + (" and noisy numbers of persons in common" if manifest.overlaps is not None else ""),
    )
    then = "the owner is left out" if manifest.inputs.refused == "leave-out" else "the run ends"
    return (*covered, f"everybody sees whose data fail the servers' checks; {then}")


def brought(manifest: Manifest, holder: Holder) -> list[str]:
    """The columns that a holder brings."""
    return [column.name for column in manifest.columns_of(holder).columns]


def shared(manifest: Manifest, holder: Holder) -> str:
    """What the shares are shares of that leave a holder."""
    form = manifest.form_of(holder)
    if form.form == "marginals":
        return f"{manifest.layout.cells:,} counts of your rows"
    return f"your rows, padded to {form.shape[0]:,}"


def cost(loss: Loss | None) -> str:
    """What studies cost persons so far."""
    if loss is None:
        return "nothing yet"
    return f"{epsilon_of(loss.epsilon)} in {loss.studies} {'study' if loss.studies == 1 else 'studies'}"


def epsilon_of(epsilon: float | None) -> str:
    """A loss."""
    return "more than can be promised" if epsilon is None else f"epsilon {epsilon:.3g}"


def left(server: str, state: PopulationState | None, problem: str | None) -> str:
    """What a population has left on a server."""
    if state is None:
        return f"{server} does not say: {problem}"
    if state.epsilon is None:
        return f"{server} refuses this population"
    return f"{server}: epsilon {state.left:.3g} of {state.epsilon:g}"


def left_at(budget: ServerBudget) -> str:
    """The same, of what a server said."""
    return left(budget.server, budget.state, budget.problem)
