"""TLS of the REST interfaces: 1.3 only, one authority, and a peer that is who the caller means.

A client that knows a peer's role and pin checks both right after the handshake, before a byte of a request is sent.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509

from caps.errors import LocalError
from caps.pki import role_uris, spki_pin


class NotTheParty(LocalError, ssl.SSLError):
    """The other end's certificate is the authority's, yet not that of the party meant."""

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True)
class Credentials:
    """Paths of PEM files: a party's certificate and key, and the authority all parties trust."""

    certificate: Path
    private_key: Path
    authority: Path


def server_context(credentials: Credentials) -> ssl.SSLContext:
    """For a service: people come without a certificate, machines with one, and no other authority's is accepted."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(credentials.certificate, credentials.private_key)
    context.load_verify_locations(credentials.authority)
    context.verify_mode = ssl.CERT_OPTIONAL
    context.num_tickets = 0  # a resumed session would not look at the certificate again
    return context


def client_context(
    authority: Path,
    *,
    certificate: Path | None = None,
    private_key: Path | None = None,
    role: str | None = None,
    pin: str | None = None,
) -> ssl.SSLContext:
    """For a caller. `role` and `pin` say whom it must meet: a role URI, and 64 hexadecimal digits."""
    context = _ClientContext(ssl.PROTOCOL_TLS_CLIENT)
    context.expected = (role, pin)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(authority)
    if certificate is not None:
        context.load_cert_chain(certificate, private_key)
    return context


class _ClientContext(ssl.SSLContext):
    expected: tuple[str | None, str | None] = (None, None)

    def wrap_socket(self, *args: Any, **kwargs: Any) -> ssl.SSLSocket:
        """As the base class, which has shaken hands on return, then look who answered."""
        connection = super().wrap_socket(*args, **kwargs)
        try:
            self._check(connection.getpeercert(True))
        except BaseException:
            connection.close()
            raise
        return connection

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        """Refused where a role or pin is expected: an event loop shakes hands later, unseen."""
        if self.expected != (None, None):
            raise LocalError("a peer's role and pin are checked on sockets only")
        return super().wrap_bio(*args, **kwargs)

    def _check(self, certificate: bytes | None) -> None:
        role, pin = self.expected
        if role is None and pin is None:
            return
        try:
            found = x509.load_der_x509_certificate(certificate or b"")
            roles = role_uris(found)
        except (ValueError, x509.DuplicateExtension):
            raise NotTheParty("the other end has a certificate that cannot be read") from None
        if role is not None and roles != [role]:
            raise NotTheParty(f"the other end is not {role}")
        if pin is not None and spki_pin(found).hex() != pin:
            raise NotTheParty(f"{role or 'the other end'} has another key than the study's")
