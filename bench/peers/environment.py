"""The virtual environments that peers run in, each made from its list of requirements when first needed.

SPU 0.9.5 wants NumPy 1 and a Python no newer than 3.11, so it cannot share CaPS's environment; `opendp` and
`smartnoise-synth` want `mbi` 1, and versions of opendp that differ.
"""

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = {
    "peers": "requirements.txt",
    "opendp": "opendp.requirements.txt",
    "smartnoise": "smartnoise.requirements.txt",
}
"""By environment: `.venv-NAME` beside `.venv`."""
WANTED = (3, 11)
PROBE = "import ensurepip, sys, venv; sys.exit(sys.version_info[:2] != (3, 11))"
INSTALL_SECONDS = 900


class PeersUnavailable(Exception):
    """The peers cannot be installed here; the message says why."""


def peers_python() -> str:
    """The interpreter of `.venv-peers`, for spu and mpyc. Raises PeersUnavailable."""
    return python_of("peers")


def python_of(name: str) -> str:
    """The interpreter of `.venv-NAME`, which is made, or made anew when its requirements have changed.

    Raises PeersUnavailable.
    """
    environment, requirements = ROOT / f".venv-{name}", Path(__file__).with_name(REQUIREMENTS[name])
    python, stamp = environment / "bin" / "python", environment / "requirements.sha256"
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()
    if python.exists() and stamp.exists() and stamp.read_text() == digest:
        return str(python)
    _run(f"make .venv-{name}", [find_python(), "-m", "venv", "--clear", str(environment)])
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:"]
    _run("install the peers", [*install, "--requirement", str(requirements)])
    stamp.write_text(digest)
    return str(python)


def find_python() -> str:
    """A Python 3.11 that can make virtual environments: on the path, the running one, or one of pyenv's."""
    for candidate in _candidates():
        try:
            probe = subprocess.run([candidate, "-c", PROBE], capture_output=True, timeout=30, check=False)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if probe.returncode == 0:
            return candidate
    raise PeersUnavailable("no Python 3.11 with venv and ensurepip on the path, running, or installed by pyenv")


def _candidates() -> Iterator[str]:
    on_path = shutil.which("python3.11")
    if on_path is not None:
        yield on_path
    if sys.version_info[:2] == WANTED:
        yield sys.executable
    yield from map(str, sorted(Path.home().glob(".pyenv/versions/3.11.*/bin/python3.11"), reverse=True))


def _run(purpose: str, command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeersUnavailable(f"cannot {purpose}: {type(error).__name__}") from error
    if done.returncode != 0:
        said = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        raise PeersUnavailable(f"cannot {purpose}: {said[-1] if said else f'status {done.returncode}'}")
