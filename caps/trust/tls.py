"""TLS of the REST interfaces: 1.3 only, one authority, and a peer that is who the caller means.

A client that knows a peer's role and pin checks both right after the handshake, before a byte of a request is sent.
Certificates may be renewed while a service runs: handshakes use what the files hold, connections that stand go on.
"""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from cryptography import x509

from caps.errors import LocalError
from caps.trust.home import AUTHORITY, CERTIFICATE, PRIVATE_KEY
from caps.trust.pki import read_certificate, role_uris, spki_pin

RENEW_WITHIN = timedelta(days=30)
"""Certificates that end sooner are complained of."""

Context = TypeVar("Context", bound=ssl.SSLContext)

log = logging.getLogger("caps.trust.tls")


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

    @classmethod
    def of(cls, home: Path) -> Credentials:
        """Those of a party's home (`caps.trust.home`)."""
        return cls(home / CERTIFICATE, home / PRIVATE_KEY, home / AUTHORITY)

    def stamp(self) -> tuple[object, ...]:
        """Changes whenever a file does; a file that is missing for a moment counts as a change."""
        return tuple(_stamp(path) for path in (self.certificate, self.private_key, self.authority))


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def hardened(context: Context) -> Context:
    """The same context with what holds everywhere: TLS 1.3 alone, and no resumption."""
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
    if context.protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # a resumed session would not look at the certificate again
    return context


def server_context(credentials: Credentials) -> ssl.SSLContext:
    """For a service: people come without a certificate, machines with one, and no other authority's is accepted."""
    context = hardened(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    context.load_cert_chain(credentials.certificate, credentials.private_key)
    context.load_verify_locations(credentials.authority)
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


_UNREADABLE = (OSError, ValueError, LocalError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType)


class RenewedContext(ssl.SSLContext):
    """A service's context that follows its files: each handshake uses what they hold, as soon as that is sound.

    A certificate that is not valid now, names another role or has another key than the one this service began with is
    not taken, and the log says why: studies name the key, so another one is a new party, and takes a restart.
    """

    _credentials: Credentials
    _current: ssl.SSLContext
    _seen: tuple[object, ...]
    _identity: tuple[list[str], bytes]
    _complaint: str | None
    _lock: Lock
    not_after: datetime
    """When the certificate in service ends."""
    renewals: int
    """How often a renewed certificate was taken into service."""

    @classmethod
    def of(cls, credentials: Credentials) -> RenewedContext:
        """Raises OSError if the files are of no use."""
        context = cls(ssl.PROTOCOL_TLS_SERVER)
        context._credentials = credentials
        context._seen = credentials.stamp()
        context._current = server_context(credentials)
        certificate = read_certificate(credentials.certificate)
        context._identity, context.not_after = _identity(certificate), certificate.not_valid_after_utc
        context._complaint = None
        context._lock = Lock()
        context.renewals = 0
        return context

    def renew(self) -> None:
        """Look at the files now. Handshakes do so by themselves."""
        with self._lock:
            stamp = self._credentials.stamp()
            if stamp == self._seen:
                return
            try:
                current = server_context(self._credentials)
                certificate = read_certificate(self._credentials.certificate)
                self._accept(certificate)
            except _UNREADABLE as error:  # perhaps half written: looked at again
                self._complain(str(error) if isinstance(error, LocalError) else "the files do not fit together")
                return
            self._current, self._seen, self._complaint = current, stamp, None
            self.renewals += 1
            self.not_after = certificate.not_valid_after_utc
            log.info('{"event": "certificate renewed", "until": "%s"}', self.not_after.isoformat())

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        """A connection that shakes hands with the newest certificate."""
        self.renew()
        return self._current.wrap_bio(*args, **kwargs)

    def wrap_socket(self, *args: Any, **kwargs: Any) -> ssl.SSLSocket:
        """The same on a socket."""
        self.renew()
        return self._current.wrap_socket(*args, **kwargs)

    def _accept(self, certificate: x509.Certificate) -> None:
        roles, pin = _identity(certificate)
        if roles != self._identity[0]:
            raise LocalError("the new certificate names another role")
        if pin != self._identity[1]:
            raise LocalError("the new certificate has another key, which studies under way do not name: restart")
        if not certificate.not_valid_before_utc <= datetime.now(UTC) < certificate.not_valid_after_utc:
            raise LocalError("the new certificate is not valid now")

    def _complain(self, why: str) -> None:
        if why != self._complaint:
            self._complaint = why
            log.warning('{"event": "certificate not taken into service", "reason": "%s"}', why)


def _identity(certificate: x509.Certificate) -> tuple[list[str], bytes]:
    return role_uris(certificate), spki_pin(certificate)


def client_context(
    authority: Path,
    *,
    certificate: Path | None = None,
    private_key: Path | None = None,
    role: str | None = None,
    pin: str | None = None,
) -> ssl.SSLContext:
    """For a caller. `role` and `pin` say whom it must meet: a role URI, and 64 hexadecimal digits."""
    context = hardened(_ClientContext(ssl.PROTOCOL_TLS_CLIENT))
    context.expected = (role, pin)
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
