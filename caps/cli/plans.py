"""How `caps study plan` shows a plan: what it promises, what it costs, how far counts will be off."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from caps.cli.output import facts, heading, listing, short, views

if TYPE_CHECKING:
    from caps.study.planning import Planned, RelativeError, StudyPlan
    from caps.study.simulation import Simulation

_SHOWN = 8
"""Tables that are listed unless all are asked for."""


def plan_views(
    plan: "StudyPlan",
    errors: "Sequence[RelativeError] | None",
    simulation: "Simulation | None",
    *,
    persons: int | None,
    full: bool,
) -> Iterator[Any]:
    """The essentials; with `full`, also every figure that the plan has."""
    yield heading(plan.title)
    yield facts(dict(_essentials(plan)))
    yield ""
    if errors is None:
        yield from _errors(plan, full=full)
        yield "With --persons N the errors are shown relative to so many persons."
    else:
        yield from _relative_errors(errors, full=full)
    if persons is not None:
        yield ""
        yield plan.advice(persons)
    if simulation is not None:
        yield ""
        yield from _simulated(simulation, full=full)
    if full:
        document = plan.to_json()
        yield ""
        yield from document.pop("words")  # type: ignore[misc]
        yield ""
        yield from views(
            {name: document[name] for name in ("spends", "uploads", "memory", "fits", "costs") if document[name]}
        )
    else:
        yield ""
        yield "Every figure, and who sees what: --full"


def wished_words(error: float, persons: int, found: "Planned | None") -> Iterator[str]:
    """Which epsilon brings an error that somebody wished for."""
    if found is None:
        yield (
            f"With no epsilon that this study can run with are so few as {error:.2%} of {persons:,} persons in the "
            "wrong cell of the average table: ask for fewer or smaller tables, or take coarser columns."
        )
        return
    yield (
        f"Epsilon {found.epsilon} is the least, with two digits, at which at most {error:.1%} of {persons:,} persons "
        f"are in the wrong cell of the average table, if each is measured once: {found.error:.2%}."
    )
    if float(found.epsilon) > 3:
        yield "That is a weak guarantee; 1 or less is usual for health data."


def _essentials(plan: "StudyPlan") -> Iterator[tuple[str, str]]:
    from caps.study.memory import size_shown
    from caps.study.planning import duration_shown

    yield "study", short(plan.study)
    yield "guarantee", f"epsilon {plan.epsilon} at delta {plan.delta}"
    rounds = f", at most {plan.rounds} rounds" if plan.rounds else ""
    yield "algorithm", f"{plan.algorithm} in {plan.scheme}{rounds}"
    waiting = plan.waiting_seconds
    if waiting is not None:
        yield "run time", f"servers wait for each other for about {duration_shown(waiting)}; computing comes on top"
    memory = f"about {size_shown(plan.memory.total)} at each server"
    if plan.fits is not None:
        largest, seconds = size_shown(plan.fits.model_bytes), duration_shown(plan.fits.seconds)
        yield "fits", f"at most about {seconds} at the coordinator, of models of up to {largest}"
        memory += f", {size_shown(plan.fits.memory)} at the coordinator"
    yield "memory", memory
    yield "uploads", ", ".join(f"{one.holder} {size_shown(sum(one.sent))}" for one in plan.uploads[:_SHOWN])


def _picked(found: Sequence[Any], full: bool) -> tuple[list[Any], str]:
    """The tables with most cells of each kind, or all; and what to say about the others."""
    if full or len(found) <= _SHOWN:
        return list(found), ""
    ordered = sorted(found, key=lambda one: (one.measured != "always", -one.cells))
    kinds = [[one for one in ordered if (one.measured == "always") is first] for first in (True, False)]
    few = min(len(kinds[0]), _SHOWN // 2)
    chosen = [*kinds[0][:few], *kinds[1][: _SHOWN - few]]
    return chosen, f"These are {len(chosen)} of {len(found)} tables, those with most cells; all: --full"


def _errors(plan: "StudyPlan", *, full: bool) -> Iterator[Any]:
    chosen, rest = _picked(plan.marginals, full)
    rows = [
        {
            "table": " x ".join(one.attributes),
            "cells": f"{one.cells:,}",
            "measured": one.measured,
            "± persons": f"{1.96 * one.deviation:,.0f}",
        }
        for one in chosen
    ]
    yield listing(rows, ("table", "cells", "measured", "± persons"), "Errors of a count, 95 %", right=_RIGHT)
    if rest:
        yield rest


_RIGHT = ("cells", "± persons", "of a mean cell", "misplaced")


def _relative_errors(errors: "Sequence[RelativeError]", *, full: bool) -> Iterator[Any]:
    chosen, rest = _picked(errors, full)
    rows = [
        {
            "table": " x ".join(one.attributes),
            "cells": f"{one.cells:,}",
            "measured": one.measured,
            "± persons": f"{one.half_width:,.0f}",
            "of a mean cell": f"{one.of_average_cell:.1%}",
            "misplaced": f"{one.misplaced:.1%}",
        }
        for one in chosen
    ]
    columns = ("table", "cells", "measured", "± persons", "of a mean cell", "misplaced")
    yield listing(rows, columns, "Errors of a count, 95 %; persons in the wrong cell", right=_RIGHT)
    if rest:
        yield rest


def _simulated(simulation: "Simulation", *, full: bool) -> Iterator[Any]:
    from caps.study.memory import size_shown

    worst = sorted(simulation.errors, key=lambda one: -one.misplaced)[: None if full else _SHOWN // 2]
    rows = [
        {
            "table": " x ".join(one.attributes),
            "cells": f"{one.cells:,}",
            "measured": one.measured,
            "misplaced": f"{one.misplaced:.1%}",
        }
        for one in worst
    ]
    yield (
        f"Simulated in the clear on {simulation.persons:,} INVENTED persons, with the real algorithm and noise: "
        f"{simulation.error:.1%} of them are in the wrong cell of the average table asked for. "
        f"{simulation.rounds} rounds; {simulation.seconds:.1f} s on this machine for the coordinator's part; "
        f"a model of {size_shown(simulation.model_bytes)}."
    )
    yield listing(rows, ("table", "cells", "measured", "misplaced"), "The worst of them", right=_RIGHT)
