"""What an algorithm may request, as known in advance: servers need this to refuse everything else.

A program follows from the manifest alone: the algorithm's name and parameters, and the task. The loops that decide
round by round are the coordinator's (`services.coordinator.algorithms`). Every module here that registers a program is
found automatically. See docs/adding-a-mechanism.md.
"""

from importlib import import_module
from pkgutil import iter_modules

from caps.dp.programs.base import Program, Task, all_pairs, names, pairs_for, program

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["Program", "Task", "all_pairs", "names", "pairs_for", "program"]
