"""What a study costs the servers, from the costs that the engine's protocols declare: for `caps.study.planning`."""

from __future__ import annotations

from collections import Counter

from caps.data.domain import Layout
from caps.dp.noise.plans import GaussianPlan, GeometricPlan, GumbelPlan, LaplacePlan
from caps.dp.oracle import Plan, measurement_plan, overlaps_plan, selection_plan
from caps.dp.privacy import Gaussian, Laplace, Neighbouring, Role
from caps.errors import DomainError
from caps.study.forecast import Spend
from caps.study.manifest import Manifest, columns_bits, held_bytes
from caps.study.planning import Costs, SpendCost, StepCost
from services.mpc_server.engine import compute, conversion, join, release, sampling, steps
from services.mpc_server.engine.registry import REGISTRY

_DECLARING = (compute, conversion, join, release, sampling, steps)  # imported for what they put into the registry


def costs_of(manifest: Manifest) -> Costs:
    """Rounds and bytes of a run, at most. Raises DomainError for the paper's samplers, whose noise is not planned."""
    if not manifest.algorithm.certified:
        raise DomainError(f"the costs of {manifest.algorithm.noise} noise are not declared; only those of joint noise")
    forecast = manifest.forecast
    selects = any(spend.role is Role.SELECT for spend in forecast.spends)
    return Costs(
        compute=_compute(manifest),
        prepare=_declared("count_bits", n=manifest.layout.cells) if selects else StepCost(),
        spends=tuple(_spend(manifest, spend, forecast.weight) for spend in forecast.spends),
    )


def _compute(manifest: Manifest) -> StepCost:
    """COMPUTE ANSWERS, if every holder contributes; joined rows, as if every table had the same persons.

    Of the dummies, half belong to their set: that is their number without noise.
    """
    if not manifest.joined:
        return _declared("compute_answers", **answers_sizes_of(manifest))
    assert manifest.join is not None
    tables, layout, reach = manifest.joined, manifest.layout, manifest.dummies // 2
    attributes = [manifest.columns_of(holder).domain().names for holder in tables]
    extents = [join.TableExtent(holder.capacity or 0, names) for holder, names in zip(tables, attributes, strict=True)]
    numbers = Counter({tuple(range(len(tables))): min(extent.rows for extent in extents)})
    for chosen in join.sets_of(len(tables)):
        numbers[chosen] += reach
        numbers.update({(table,): reach for table in chosen})
    needed = layout.domain.names if manifest.join.mode == "inner" else ()
    matching = join.supposed(numbers, attributes, layout.cliques, needed)
    joined = _declared("join_answers", **join.join_sizes(extents, matching, layout, reach=reach))
    if manifest.overlaps is not None:
        joined += _noise(overlaps_plan(manifest.overlaps).noise, manifest.overlap_sets)
    rows = len(manifest.holders) - len(tables)
    if not rows:
        return joined
    added = _declared("add_marginals", **compute.marginals_sizes([manifest.layout] * rows, manifest.counted_bits))
    return StepCost(max(joined.rounds, added.rounds), (joined + added).sent)


def answers_sizes_of(manifest: Manifest) -> dict[str, int]:
    """The sizes in the cost of `compute_answers` if every holder contributes: as `answers_sizes`, without shares."""
    layout = manifest.layout
    rows = [holder for holder in manifest.holders if holder.brings == "rows"]
    columns = [holder for holder in manifest.holders if holder.brings == "columns"]
    sizes = compute.NO_ANSWERS.copy()
    if rows:
        sizes |= compute.marginals_sizes([layout] * len(rows), manifest.counted_bits)
    if columns:
        assert manifest.slots is not None
        brought = manifest.brought
        used = layout.domain.project({name for clique in layout.cliques for name in clique})
        lower = sum((brought[name] - 1) * size for name, size in zip(used.names, used.sizes, strict=True))
        sizes |= {"u": len(columns), "g": lower, "h": max(brought[name] for name in used.names)}
        bits = 8 * held_bytes(columns_bits(manifest.slots))
        sizes |= compute.count_sizes(Layout(used, layout.cliques), manifest.slots, bits)
    return sizes


def _spend(manifest: Manifest, spend: Spend, weight: int) -> SpendCost:
    neighbouring = manifest.task.neighbouring
    if spend.role is Role.INITIAL:
        sizes = [manifest.domain.cells(clique) for clique in manifest.program.initial(manifest.task)]
        online, noise = StepCost(), StepCost()
        for size in sizes:
            online += _declared("noisy_counts", n=size)
            noise += _noise(_plan(spend, weight, neighbouring), size)
        return SpendCost(online, noise)
    if spend.role is Role.SELECT:
        online = _declared("error_scores", n=spend.cells, m=spend.candidates)
        online += _declared("noisy_argmax", n=spend.candidates)
    else:
        online = _declared("noisy_counts", n=spend.cells)
    noise = _noise(_plan(spend, weight, neighbouring), spend.draws // spend.releases)
    return SpendCost(online.times(spend.releases), noise.times(spend.releases))


def _plan(spend: Spend, weight: int, neighbouring: Neighbouring) -> Plan:
    if isinstance(spend.mechanism, Gaussian | Laplace):
        return measurement_plan(spend.mechanism)
    return selection_plan(spend.mechanism, weight, neighbouring)


def _noise(plan: Plan, draws: int) -> StepCost:
    """Of `engine.steps.draw_noise`."""
    match plan:
        case GaussianPlan():
            table = plan.table
            j = len(plan.coefficients)
            return _declared("discrete_gaussian", n=draws, p=table.index_bits, w=table.width, j=j, k=64)
        case LaplacePlan():
            return _declared("discrete_laplace", n=draws, k=64, **_digits(plan.geometric))
        case GumbelPlan():
            table = plan.table
            cells = _declared("gumbel", n=draws, p=table.index_bits, w=table.width, f=plan.free)
            return cells + _declared("signed_from_bits", n=draws, w=plan.width)
        case GeometricPlan():
            return _declared("geometric", n=draws, **_digits(plan)) + _declared(
                "from_bits", n=draws, w=plan.width, k=64
            )


def _digits(plan: GeometricPlan) -> dict[str, int]:
    return {"p": max(table.index_bits for table in plan.tables), "w": plan.width, "d": len(plan.tables)}


def _declared(name: str, **sizes: int) -> StepCost:
    declaration = REGISTRY[name]
    first, second, third = (declaration.sent_by(party, **sizes) for party in range(3))
    return StepCost(declaration.rounds_for(**sizes), (first, second, third))
