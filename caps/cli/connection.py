"""The service that a command talks to and the token it uses: from options, environment, or a named site in the config.

Without `--url` and `--site`, a command uses the site named after the service it needs: coordinator, holder or server.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from caps.client import Client

_USUAL = ("holder", "server", "coordinator")
"""Names of sites that commands use if none is named."""


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
        from caps.client.sites import CONFIG

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

    def addressed(self, asked: str) -> tuple[Given, str]:
        """The service and the id in `https://host:port/ID` or `SITE/ID`; an id alone changes nothing."""
        where, slash, identity = asked.rpartition("/")
        if not slash:
            return self, asked
        if where.startswith("https://"):
            return replace(self, url=where, site=None), identity
        return replace(self, url=None, site=where), identity

    def _site(self, default: str) -> dict[str, Any]:
        from caps.client.sites import CONFIG, read_sites

        path = (self.config or CONFIG).expanduser()
        sites = read_sites(path)
        if self.url is not None and self.site is None:
            found = {name: site for name, site in sites.items() if site.get("url") == self.url}
            usual = [name for name in (default, *_USUAL) if name in found] or list(found)[:1]
            if len(found) > 1 and usual[0] not in _USUAL and self.token is None and self.token_file is None:
                raise typer.BadParameter(f"{path} has several sites at this address: {', '.join(found)}; use --site")
            return found[usual[0]] if usual else {}
        name = self.site or default
        if name not in sites and self.site is not None:
            known = f"it has {', '.join(sites)}" if sites else "it has no sites, or does not exist"
            raise typer.BadParameter(f"{path} has no site {name}; {known}")
        return sites.get(name, {})
