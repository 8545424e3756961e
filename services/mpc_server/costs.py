"""What a study costs the servers, from the costs that the engine's protocols declare: for `caps.study.planning`."""

from __future__ import annotations

from collections import Counter

from caps.basics.schemes import REP3, REP3_ACTIVE, REP4, SCHEMES
from caps.data.domain import Layout
from caps.dp.noise.plans import GaussianPlan, GeometricPlan, GumbelPlan, LaplacePlan
from caps.dp.noise.tables import AliasTable
from caps.dp.oracle import MOST_PLANS, Plan, comparison_plan, measurement_plan, overlaps_plan, selection_plan
from caps.dp.privacy import Gaussian, GaussianBatch, GaussianErrors, Laplace, Neighbouring, Role
from caps.errors import DomainError
from caps.study.forecast import Spend
from caps.study.manifest import Manifest, columns_bits, held_bytes
from caps.study.planning import Costs, SpendCost, StepCost
from services.mpc_server.engine import alignment, compute, conversion, counting, join, release, sampling, size, steps
from services.mpc_server.engine.cost import Size, Sizes
from services.mpc_server.engine.registry import REGISTRY

VALIDATION: dict[str, StepCost] = {
    REP3.name: StepCost(),
    REP3_ACTIVE.name: StepCost(4, (12288,) * REP3_ACTIVE.parties),
    REP4.name: StepCost(2, (512,) * REP4.parties),
}
"""What one validation of all pending messages costs, by scheme (`services.mpc_server.engine.guard`); bytes roughly."""
_OPENINGS, _JOINED_OPENINGS = 4, 8
"""Openings of COMPUTE ANSWERS, without and with a join on shares."""
_PLANE = 64
"""Elements of a word of bit planes."""
_DECLARING = (
    compute,
    counting,
    conversion,
    join,
    release,
    sampling,
    steps,
)  # imported because they register protocols


def costs_of(manifest: Manifest) -> Costs:
    """Upper bounds on rounds and bytes of a run. Raises DomainError for the paper's samplers, which have no plan."""
    if not manifest.algorithm.certified:
        raise DomainError(f"the costs of {manifest.algorithm.noise} noise are not declared; only those of joint noise")
    forecast = manifest.forecast
    selects = any(spend.candidates for spend in forecast.spends)
    spends = forecast.spends if forecast.again is None else (*forecast.spends, forecast.again)
    return Costs(
        compute=_compute(manifest),
        prepare=_declared(manifest.scheme, "count_bits", {size.elements: manifest.layout.cells})
        if selects
        else StepCost(),
        spends=tuple(_spend(manifest, spend, forecast.weight) for spend in spends),
        checks=_checks(manifest),
    )


def _checks(manifest: Manifest) -> StepCost:
    """What servers prove to each other before openings: at most one validation for every opening and execution.

    COMPUTE ANSWERS opens the checks of inputs and verdicts, with a join also tags and numbers of rows; every release
    draws its noise in an execution of its own and opens one value.
    """
    opened = _JOINED_OPENINGS if manifest.joined else _OPENINGS
    forecast = manifest.forecast
    requests = sum(spend.requests for spend in forecast.spends)
    requests += forecast.again.requests if forecast.again else 0
    return VALIDATION[manifest.scheme].times(opened + 2 * requests)


def _compute(manifest: Manifest) -> StepCost:
    """COMPUTE ANSWERS, if every holder contributes; joined rows, as if every table had the same persons.

    Half of the dummies belong to their set: that is their number without noise.
    """
    if not manifest.joined:
        return _declared(manifest.scheme, "compute_answers", answers_sizes_of(manifest))
    assert manifest.join is not None
    tables, layout, reach = manifest.joined, manifest.layout, manifest.dummies // 2
    attributes = [manifest.columns_of(holder).domain().names for holder in tables]
    extents = [join.TableExtent(holder.capacity or 0, names) for holder, names in zip(tables, attributes, strict=True)]
    numbers = Counter({tuple(range(len(tables))): min(extent.rows for extent in extents)})
    for chosen in alignment.sets_of(len(tables)):
        numbers[chosen] += reach
        numbers.update({(table,): reach for table in chosen})
    needed = layout.domain.names if manifest.join.mode == "inner" else ()
    matching = alignment.supposed(numbers, attributes, layout.cliques, needed)
    joined = _declared(manifest.scheme, "join_answers", join.join_sizes(extents, matching, layout, reach=reach))
    if manifest.overlaps is not None:
        joined += _noise(manifest.scheme, overlaps_plan(manifest.overlaps).noise, manifest.overlap_sets)
    rows = len(manifest.holders) - len(tables)
    if not rows:
        return joined
    added = _declared(
        manifest.scheme, "add_marginals", compute.marginals_sizes([manifest.layout] * rows, manifest.counted_bits)
    )
    return StepCost(max(joined.rounds, added.rounds), (joined + added).sent)


def answers_sizes_of(manifest: Manifest) -> dict[Size, int]:
    """The sizes in the cost of `compute_answers` if every holder contributes: as `answers_sizes`, without shares."""
    layout = manifest.layout
    rows = [holder for holder in manifest.holders if holder.brings == "rows"]
    columns = [holder for holder in manifest.holders if holder.brings == "columns"]
    sizes = dict(compute.NO_ANSWERS)
    if rows:
        sizes |= compute.marginals_sizes([layout] * len(rows), manifest.counted_bits)
    if columns:
        assert manifest.slots is not None
        brought = manifest.brought
        used = layout.domain.project({name for clique in layout.cliques for name in clique})
        sizes |= {
            size.column_inputs: len(columns),
            size.lower_columns: sum((brought[n] - 1) * width for n, width in zip(used.names, used.sizes, strict=True)),
            size.most_holders: max(brought[name] for name in used.names),
        }
        bits = 8 * held_bytes(columns_bits(manifest.slots))
        sizes |= counting.count_sizes(Layout(used, layout.cliques), manifest.slots, bits)
    return sizes


def _spend(manifest: Manifest, spend: Spend, weight: int) -> SpendCost:
    neighbouring = manifest.task.neighbouring
    if isinstance(spend.mechanism, GaussianBatch):
        return _batch(manifest, spend, spend.mechanism)
    if spend.role is Role.COMPARE:
        sizes = {size.elements: spend.cells, size.sums: spend.candidates}
        noise = _noise(manifest.scheme, _plan(spend, weight, neighbouring), spend.draws)
        return SpendCost(_declared(manifest.scheme, "noisy_errors", sizes), noise)
    if spend.role is Role.INITIAL:
        online, noise = StepCost(), StepCost()
        plan = _plan(spend, weight, neighbouring)
        for cells, times in Counter(manifest.domain.cells_of(manifest.program.initial(manifest.task))).items():
            online += _declared(manifest.scheme, "noisy_counts", {size.elements: cells}).times(times)
            noise += _noise(manifest.scheme, plan, cells).times(times)
        return SpendCost(online, noise)
    if spend.role is Role.SELECT:
        online = _declared(manifest.scheme, "error_scores", {size.elements: spend.cells, size.sums: spend.candidates})
        online += _declared(manifest.scheme, "noisy_argmax", {size.elements: spend.candidates})
    else:
        online = _declared(manifest.scheme, "noisy_counts", {size.elements: spend.cells})
    noise = _noise(manifest.scheme, _plan(spend, weight, neighbouring), spend.draws // spend.releases)
    return SpendCost(online.times(spend.releases), noise.times(spend.releases))


def _batch(manifest: Manifest, spend: Spend, mechanism: GaussianBatch) -> SpendCost:
    """A batch of all cells that it may have. If its division is not known, with the dearest noise that it may have."""
    initial, neighbouring = manifest.program.initial(manifest.task), manifest.task.neighbouring
    online = _declared(manifest.scheme, "noisy_counts", {size.elements: spend.draws})
    if spend.role is Role.INITIAL:
        plan = measurement_plan(mechanism.part(mechanism.PARTS // len(initial), neighbouring))
        return SpendCost(online, _noise(manifest.scheme, plan, spend.draws))
    parts = [parts for power in range(mechanism.PARTS.bit_length()) for parts in (1 << power, 3 << power)]
    draws = spend.draws + _PLANE * min(MOST_PLANS, len(manifest.layout.cliques))  # each kind fills planes of its own
    costs = [
        _noise(manifest.scheme, measurement_plan(mechanism.part(one, neighbouring)), draws)
        for one in parts
        if one <= mechanism.PARTS
    ]
    sent = tuple(max(server) for server in zip(*(cost.sent for cost in costs), strict=True))
    return SpendCost(online, StepCost(max(cost.rounds for cost in costs), sent))


def _plan(spend: Spend, weight: int, neighbouring: Neighbouring) -> Plan:
    if isinstance(spend.mechanism, Gaussian | Laplace):
        return measurement_plan(spend.mechanism)
    if isinstance(spend.mechanism, GaussianErrors):
        return comparison_plan(spend.mechanism)
    assert not isinstance(spend.mechanism, GaussianBatch)
    return selection_plan(spend.mechanism, weight, neighbouring)


def _noise(scheme: str, plan: Plan, draws: int) -> StepCost:
    """Of `engine.steps.draw_noise`."""
    match plan:
        case GaussianPlan():
            sizes = {size.terms: len(plan.coefficients), size.ring_bits: 64}
            return _declared(scheme, "discrete_gaussian", _table(plan.table, draws) | sizes)
        case LaplacePlan():
            return _declared(scheme, "discrete_laplace", _digits(plan.geometric, draws) | {size.ring_bits: 64})
        case GumbelPlan():
            cells = _declared(scheme, "gumbel", _table(plan.table, draws) | {size.free_bits: plan.free})
            return cells + _declared(scheme, "signed_from_bits", {size.elements: draws, size.width: plan.width})
        case GeometricPlan():
            in_ring = {size.elements: draws, size.width: plan.width, size.ring_bits: 64}
            return _declared(scheme, "geometric", _digits(plan, draws)) + _declared(scheme, "from_bits", in_ring)


def _table(table: AliasTable, draws: int) -> dict[Size, int]:
    return {size.elements: draws, size.index_bits: table.index_bits, size.width: table.width}


def _digits(plan: GeometricPlan, draws: int) -> dict[Size, int]:
    widest = max(table.index_bits for table in plan.tables)
    return {
        size.elements: draws,
        size.index_bits: widest,
        size.width: plan.width,
        size.digits: len(plan.tables),
    }


def _declared(scheme: str, name: str, sizes: Sizes) -> StepCost:
    cost = REGISTRY[name].costs[scheme]
    return StepCost(
        cost.rounds_for(sizes), tuple(cost.sent_by(party, sizes) for party in range(SCHEMES[scheme].parties))
    )
