"""For services that tests run with something wrapped around what they do: `python -m WRAPPER MODULE`."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any

from fastapi import FastAPI

import caps.service.serve


def add_middleware(middleware: type, **settings: Any) -> None:
    """Have whatever the service serves pass through this first."""
    serve = caps.service.serve.serve

    def wrapped(app: FastAPI, *arguments: Any, **keywords: Any) -> None:
        app.add_middleware(middleware, **settings)
        serve(app, *arguments, **keywords)

    caps.service.serve.serve = wrapped


def notes(path: Path) -> Callable[..., None]:
    """What writes its arguments into a file, one JSON object a line."""
    lock = Lock()

    def note(**members: Any) -> None:
        with lock, path.open("a") as out:
            out.write(json.dumps(members) + "\n")

    return note


def run() -> None:
    """Run the module that the command line names, with the rest of the line."""
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
