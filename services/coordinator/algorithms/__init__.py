"""Select-measure-generate loops against an Oracle: pure, so the same loop runs on the clear twin and on the servers.

Modules here that register an algorithm are found automatically: to add a mechanism, add a file. See
docs/adding-a-mechanism.md.
"""

from importlib import import_module
from pkgutil import iter_modules

from caps.dp.programs import Task, all_pairs
from services.coordinator.algorithms.base import (
    Algorithm,
    Outcome,
    Progress,
    Stage,
    algorithm,
    names,
)

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = [
    "Algorithm",
    "Outcome",
    "Progress",
    "Stage",
    "Task",
    "algorithm",
    "all_pairs",
    "names",
]
