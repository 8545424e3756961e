"""Which Compose this machine has: v2, a plugin of docker, or Debian's 1.29. Both read our files."""

from __future__ import annotations

import shutil
import subprocess


def compose_command(path: str | None = None) -> tuple[str, ...]:
    """How to call it; v2 if both are there. `path`: where to look, PATH by default. Raises FileNotFoundError."""
    docker = shutil.which("docker", path=path)
    if docker is not None:
        asked = subprocess.run([docker, "compose", "version"], capture_output=True, check=False)
        if asked.returncode == 0:
            return docker, "compose"
    old = shutil.which("docker-compose", path=path)
    if old is None:
        raise FileNotFoundError("neither `docker compose` nor docker-compose is installed")
    return (old,)
