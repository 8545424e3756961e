"""What a service loads, it keeps: the garbage collector is not to search it again and again.

A full collection looks at every object that may be part of a cycle, in one go: no other thread of the process computes
meanwhile. Most of these objects are those of modules, hundreds of thousands of them, and looking at them takes some
tenths of a second in which a service answers nobody, /healthz included. Modules are never garbage, so they are set
apart for good, and a collection takes as long as what requests and runs have made deserves.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from threading import Event

_serving = Event()


def keep_loaded() -> None:
    """Set apart all that is there now. For a service, when it has been put together and before it answers anybody."""
    gc.collect()
    gc.freeze()
    _serving.set()


def load(module: str) -> None:
    """Import a module that takes long to load, and in a service set it apart, too, without a collection on the way.

    A collection before it is set apart would be the pause that is to be avoided. So what is garbage just then is never
    freed: little, unless the module compiles something first.
    """
    if module in sys.modules:
        return
    if not _serving.is_set():
        import_module(module)
        return
    gc.disable()
    try:
        import_module(module)
    finally:
        gc.freeze()
        gc.enable()
