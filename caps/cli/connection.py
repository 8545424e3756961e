"""The service that a command talks to and the token it uses: from options, environment, or a named site in the config.

    # ~/.config/caps/config.toml
    [sites.coordinator]
    url = "https://coordinator.example:8443"
    token_file = "coordinator.token"      # relative to this file
    authority = "authority.pem"

Without `--url` and `--site`, a command uses the site named after the service it needs: coordinator, holder or server.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from caps.errors import DomainError

if TYPE_CHECKING:
    from caps.client import Client

CONFIG = Path("~/.config/caps/config.toml")
_MEMBERS = frozenset({"url", "token_file", "authority"})


@dataclass(frozen=True)
class Connection:
    """A service's address and the caller's credentials."""

    url: str
    token: str | None
    authority: Path | None

    def client(self) -> Client:
        """A client for this service."""
        from caps.client import Client

        return Client(self.url, token=self.token, authority=self.authority)


@dataclass(frozen=True)
class Given:
    """What the command line and the environment say. `token` takes precedence over `token_file`."""

    url: str | None = None
    token: str | None = None
    token_file: Path | None = None
    authority: Path | None = None
    site: str | None = None
    config: Path | None = None

    def connection(self, default_site: str) -> Connection:
        """The connection to use. Options override the site's settings; a site's token is only sent to that site."""
        site = self._site(default_site)
        url = self.url or site.get("url")
        if url is None:
            raise typer.BadParameter(f"no {default_site} is known; use --url, CAPS_URL, or a site in {CONFIG}")
        token_file = self.token_file or site.get("token_file")
        token = self.token
        if token is None and token_file is not None:
            token = Path(token_file).read_text().strip()
        authority = self.authority or site.get("authority")
        return Connection(url, token, authority)

    def _site(self, default: str) -> dict[str, Any]:
        if self.url is not None and self.site is None:
            return {}
        path = (self.config or CONFIG).expanduser()
        sites = read_sites(path)
        name = self.site or default
        if name not in sites and self.site is not None:
            raise typer.BadParameter(f"{path} has no site {name}")
        return sites.get(name, {})


def read_sites(path: Path) -> dict[str, dict[str, Any]]:
    """The sites in a configuration, with absolute paths; empty if there is no file."""
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
