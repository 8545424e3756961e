"""Certificates for tests that speak TLS: of parties, and those nobody should accept."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from caps.errors import party_name
from caps.trust import pki
from caps.trust.tls import Credentials
from services.mpc_server.transport.tls import ROLE

HOUR = timedelta(hours=1)


class Kit:
    """Writes an authority and credentials of parties into a folder."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self.folder = folder
        self.now = datetime.now(UTC)
        self.authority = pki.Authority.create(name, not_before=self.now - 48 * HOUR, not_after=self.now + 48 * HOUR)
        self.root = folder / f"{name}.pem"
        pki.write_pem(self.root, self.authority.certificate)

    def credentials(
        self,
        label: str,
        uris: Sequence[str],
        *,
        expires: timedelta = HOUR,
        trusts: Path | None = None,
    ) -> Credentials:
        key = pki.generate_key()
        certificate = self.authority.issue(
            key.public_key(),
            subject=label,
            uris=uris,
            hosts=["127.0.0.1"],
            not_before=self.now - 24 * HOUR,
            not_after=self.now + expires,
        )
        paths = Credentials(self.folder / f"{label}.pem", self.folder / f"{label}.key", trusts or self.root)
        pki.write_pem(paths.certificate, certificate)
        pki.write_key(paths.private_key, key)
        return paths

    def party(
        self, party: int, label: str | None = None, *, expires: timedelta = HOUR, trusts: Path | None = None
    ) -> Credentials:
        uris = [pki.role_uri(ROLE, party_name(party))]
        return self.credentials(label or party_name(party), uris, expires=expires, trusts=trusts)
