"""Which build of the software this is: a digest of all that decides which bytes a server sends under a run's masks.

Two builds that sent different messages under the same masks would give away what the masks hide. So the digest is part
of what a run's randomness is derived from and of the run's record, and servers compare it first. It covers:

- every source file of `caps` and of the MPC server, by name and content. All of them, since a list of those that matter
  would be wrong one day; and nothing that differs between two installations of the same, such as paths and times;
- the declared protocols, including those of other packages, and the version of the noise tables;
- the versions of Python (without its patch level) and of numpy, whose arithmetic is behind every message;
- in a run whose algorithm comes from another package, the sources of that package (`with_mechanism`). Other runs do not
  depend on it, so servers on which different packages are installed still compute together.

The version of `cryptography` is not: what it computes is fixed by standards to the last bit, and its security updates
must not have to wait for runs.
"""

from __future__ import annotations

import platform
import sys
from functools import cache
from hashlib import sha256
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from pkgutil import walk_packages

import caps
import services.mpc_server
from caps.basics import canonical
from caps.dp.noise.tables import VERSION
from caps.dp.programs.base import registered
from services.mpc_server import engine
from services.mpc_server.engine.registry import REGISTRY

_COMPILED = f"{engine.__name__}.rep3_active.proof."
"""Registers nothing, and takes a second to load: that is left to the first proof."""


@cache
def build_digest() -> str:
    """The build of this process, 64 hexadecimal digits."""
    for module in walk_packages(engine.__path__, f"{engine.__name__}."):
        if not module.name.startswith(_COMPILED):
            import_module(module.name)  # so that the registry is complete, whoever asks
    parts = {
        "sources": {
            package.__name__: source_digests(Path(folder))
            for package in (caps, services.mpc_server)
            for folder in package.__path__
        },
        "protocols": {name: declaration.described() for name, declaration in REGISTRY.items()},
        "noise": VERSION,
        "python": ".".join(platform.python_version_tuple()[:2]),
        "numpy": version("numpy"),
    }
    return canonical.digest("build", parts).hex()


def with_mechanism(build: str, algorithm: str) -> str:
    """The build for runs of an algorithm: another one if the algorithm comes from another package."""
    if not brought(algorithm):
        return build
    return canonical.digest("build", {"build": build, "mechanism": _mechanism_digests(algorithm)}).hex()


def brought(algorithm: str) -> bool:
    """Whether another package brings an algorithm."""
    known = registered(algorithm)
    return known is not None and known.__module__.partition(".")[0] != caps.__name__


@cache
def _mechanism_digests(algorithm: str) -> dict[str, str]:
    """The sources of the package that registered an algorithm."""
    known = registered(algorithm)
    assert known is not None
    top = import_module(known.__module__.partition(".")[0])
    found: dict[str, str] = {}
    for folder in getattr(top, "__path__", ()):
        found |= source_digests(Path(folder))
    if top.__file__ is not None:
        found[Path(top.__file__).name] = sha256(Path(top.__file__).read_bytes()).hexdigest()
    return found


def source_digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every source file under a folder, by its path from there."""
    return {path.relative_to(folder).as_posix(): sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*.py")}


def brief(digest: str) -> str:
    """A digest, shortened for messages."""
    return f"{digest[:12]}..."


if __name__ == "__main__":
    sys.stdout.write(f"{build_digest()}\n")
