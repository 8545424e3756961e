"""`python -m tests.kit.crashing_service MODULE`: a service that kills itself where `tests.kit.crashing.arm` says.

The points are those at which something lasting happens, of whatever kind, so that all services have them:

    committing, committed   before and after a commit that writes to the database
    calling, called         before a request to another party, and after its answer came
    renaming, renamed       before and after a file or a folder gets its final name
    answering               before the answer to a request that changes something leaves
    exchange, waiting       MPC servers only, as `tests.kit.crashing` says: in the middle of steps
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import httpx

from tests.kit.crashing import Fuse, install_answers, install_commits, install_exchanges
from tests.kit.wrapping import run

POINTS = ("committing", "committed", "calling", "called", "renaming", "renamed", "answering")


def install(fuse: Fuse) -> None:
    """Wrap what a service does at every point."""
    install_commits(fuse, ("INSERT", "UPDATE", "DELETE"))
    _install_calls(fuse)
    _install_renames(fuse)
    install_answers(fuse, lambda scope, _: scope["method"] not in ("GET", "HEAD"))


def _install_calls(fuse: Fuse) -> None:
    send = httpx.Client.send

    def wrapped(self: httpx.Client, request: httpx.Request, **keywords: Any) -> httpx.Response:
        fuse.reach("calling")
        response = send(self, request, **keywords)
        fuse.reach("called")
        return response

    httpx.Client.send = wrapped


def _install_renames(fuse: Fuse) -> None:
    for name in ("rename", "replace"):
        original = getattr(os, name)

        def wrapped(*arguments: Any, original: Any = original, **keywords: Any) -> None:
            fuse.reach("renaming")
            original(*arguments, **keywords)
            fuse.reach("renamed")

        setattr(os, name, wrapped)


if __name__ == "__main__":
    fuse = Fuse(Path(os.environ["CAPS_HOME"]))
    install(fuse)
    if sys.argv[1] == "services.mpc_server":
        install_exchanges(fuse)
    run()
