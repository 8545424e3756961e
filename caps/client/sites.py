"""Sites: the services that a person uses, by name, with their addresses and the person's credentials.

# ~/.config/caps/config.toml
[sites.coordinator]
url = "https://coordinator.example:8443"
token_file = "coordinator.token"      # relative to this file
authority = "authority.pem"
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from caps.errors import DomainError

CONFIG = Path("~/.config/caps/config.toml")
_MEMBERS = frozenset({"url", "token_file", "authority"})


def read_sites(path: Path) -> dict[str, dict[str, Any]]:
    """The sites in a configuration, with absolute paths; empty if there is no file. Raises DomainError."""
    if not path.exists():
        return {}
    try:
        value = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise DomainError(f"{path}: {error}") from None
    sites = value.get("sites", {})
    if not isinstance(sites, dict) or not all(isinstance(site, dict) for site in sites.values()):
        raise DomainError(f"{path}: sites must be tables like [sites.coordinator]")
    for name, site in sites.items():
        unknown = sorted(site.keys() - _MEMBERS)
        if unknown or not all(isinstance(member, str) for member in site.values()):
            what = f"unknown: {', '.join(unknown)}" if unknown else "each must be text"
            raise DomainError(f"{path}: sites.{name}: only url, token_file and authority are allowed; {what}")
        for member in ("token_file", "authority"):
            if member in site:
                site[member] = path.parent / Path(site[member]).expanduser()
    return sites
