"""TLS for tests: authorities, certificates good and bad, services on loopback, and whoever calls them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
from fastapi import FastAPI

from caps.errors import party_name
from caps.service.serve import STOP_TIMEOUT, make_server
from caps.trust import pki
from caps.trust.tls import Credentials, client_context
from tests.kit.waiting import until

HOUR = timedelta(hours=1)


def make_authority(now: datetime, name: str = "test") -> pki.Authority:
    """An authority that is good for two days around `now`."""
    return pki.Authority.create(name, not_before=now - 48 * HOUR, not_after=now + 48 * HOUR)


class Authority:
    """An authority in a folder, and the credentials it issues. Times are around now, for TLS looks at the clock."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self.folder = folder
        self.now = datetime.now(UTC)
        self.authority = make_authority(self.now, name)
        self.root = folder / f"{name}.pem"
        pki.write_pem(self.root, self.authority.certificate)

    def issue(
        self,
        label: str,
        *roles: str,
        hosts: Sequence[str] = ("127.0.0.1", "localhost"),
        expires: timedelta = HOUR,
        trusts: Path | None = None,
        key: pki.PrivateKey | None = None,
    ) -> Credentials:
        """A key and a certificate with these role URIs, such as `caps:holder/clinic-a`; none, if none is given."""
        key = pki.generate_key() if key is None else key
        certificate = self.authority.issue(
            key.public_key(),
            subject=label,
            uris=roles,
            hosts=hosts,
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
        """Of one of the MPC servers."""
        name = party_name(party)
        return self.issue(label or name, pki.role_uri("mpc-server", name), expires=expires, trusts=trusts)


def pin_of(credentials: Credentials) -> str:
    """The pin of a certificate, as manifests spell it."""
    return pki.spki_pin(pki.read_certificate(credentials.certificate)).hex()


@contextmanager
def serving(
    app: FastAPI, credentials: Credentials, listener: socket.socket | None = None, *, stop_within: int = STOP_TIMEOUT
) -> Iterator[str]:
    """Serve over TLS in a thread, on a free port of 127.0.0.1 or where somebody listens already; yields the URL.

    Stops at the end, after `stop_within` seconds even if requests still run.
    """
    listener = listener or socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    server = make_server(app, credentials, host="127.0.0.1", port=port)
    server.config.timeout_graceful_shutdown = stop_within
    thread = threading.Thread(target=server.run, args=([listener],), name="service", daemon=True)
    thread.start()
    try:
        until(lambda: server.started or not thread.is_alive())
        assert thread.is_alive(), "the service did not start"
        yield f"https://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(30)
        listener.close()
        assert not thread.is_alive(), "the service did not stop"


def calling(
    url: str,
    authority: Path,
    *,
    me: Credentials | None = None,
    token: str | None = None,
    role: str | None = None,
    pin: str | None = None,
) -> httpx.Client:
    """A client with a certificate, or a token, or nothing; `role` and `pin` say whom it must meet."""
    context = client_context(
        authority,
        certificate=me and me.certificate,
        private_key=me and me.private_key,
        role=role,
        pin=pin,
    )
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return httpx.Client(base_url=url, verify=context, headers=headers, timeout=20, trust_env=False)
