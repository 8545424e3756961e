"""TLS of the REST interfaces: version 1.3 only, one authority, and a check that the peer is the intended party.

A client that knows a peer's role and pin checks both right after the handshake, before it sends a byte of a request.
Certificates may be renewed while a service runs: new handshakes use the current files, open connections continue.
"""

from __future__ import annotations

import logging
import select
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any, TypeVar

from cryptography import x509

from caps.errors import LocalError
from caps.trust.home import AUTHORITY, CERTIFICATE, PRIVATE_KEY
from caps.trust.pki import read_certificate, role_uris, spki_pin

RENEW_WITHIN = timedelta(days=30)
"""A certificate that expires sooner causes a warning."""

Context = TypeVar("Context", bound=ssl.SSLContext)

log = logging.getLogger("caps.trust.tls")


class NotTheParty(LocalError, ssl.SSLError):
    """The authority issued the peer's certificate, but not to the intended party."""

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True)
class Credentials:
    """Paths of PEM files: a party's certificate and key, and the authority that all parties trust."""

    certificate: Path
    private_key: Path
    authority: Path

    @classmethod
    def of(cls, home: Path) -> Credentials:
        """Those of a party's home (`caps.trust.home`)."""
        return cls(home / CERTIFICATE, home / PRIVATE_KEY, home / AUTHORITY)

    def stamp(self) -> tuple[object, ...]:
        """A value that changes whenever a file does; a file that is briefly missing counts as a change."""
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
    """The context of a service: people have no client certificate, machines have one from this authority."""
    context = hardened(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    context.load_cert_chain(credentials.certificate, credentials.private_key)
    context.load_verify_locations(credentials.authority)
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


_UNREADABLE = (OSError, ValueError, LocalError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType)


class RenewedContext(ssl.SSLContext):
    """A service's context that follows its files: each handshake uses their contents as soon as these are valid.

    A certificate that is not currently valid, or whose role or key differs from what this service started with, is not
    used, and the log says why. Studies name the key, so another key is another party, which needs a restart.
    """

    _credentials: Credentials
    _current: ssl.SSLContext
    _seen: tuple[object, ...]
    _identity: tuple[list[str], bytes]
    _complaint: str | None
    _lock: Lock
    not_after: datetime
    """When the certificate in use expires."""
    renewals: int
    """How often a renewed certificate has come into use."""

    @classmethod
    def of(cls, credentials: Credentials) -> RenewedContext:
        """A context for these files. Raises OSError if they cannot be used."""
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
        """Check the files now. Every handshake does this itself."""
        with self._lock:
            stamp = self._credentials.stamp()
            if stamp == self._seen:
                return
            try:
                current = server_context(self._credentials)
                certificate = read_certificate(self._credentials.certificate)
                self._accept(certificate)
            except _UNREADABLE as error:  # perhaps half written: checked again later
                self._complain(str(error) if isinstance(error, LocalError) else "the files do not fit together")
                return
            self._current, self._seen, self._complaint = current, stamp, None
            self.renewals += 1
            self.not_after = certificate.not_valid_after_utc
            log.info('{"event": "certificate renewed", "until": "%s"}', self.not_after.isoformat())

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        """A connection whose handshake uses the newest certificate."""
        self.renew()
        return self._current.wrap_bio(*args, **kwargs)

    def wrap_socket(self, *args: Any, **kwargs: Any) -> ssl.SSLSocket:
        """The same on a socket."""
        self.renew()
        return self._current.wrap_socket(*args, **kwargs)

    def _accept(self, certificate: x509.Certificate) -> None:
        roles, pin = _identity(certificate)
        if roles != self._identity[0]:
            raise LocalError("the new certificate has a different role")
        if pin != self._identity[1]:
            raise LocalError("the new certificate has a different key, which current studies do not name: restart")
        if not certificate.not_valid_before_utc <= datetime.now(UTC) < certificate.not_valid_after_utc:
            raise LocalError("the new certificate is not currently valid")

    def _complain(self, why: str) -> None:
        if why != self._complaint:
            self._complaint = why
            log.warning('{"event": "certificate not taken into service", "reason": "%s"}', why)


class PeopleContext(ssl.SSLContext):
    """The context of a port for people only: a certificate that browsers trust, and none is asked of them.

    It follows its files: each handshake uses their contents as soon as they fit together.
    """

    _files: tuple[Path, Path]
    _current: ssl.SSLContext
    _seen: tuple[object, ...]

    @classmethod
    def of(cls, certificate: Path, private_key: Path) -> PeopleContext:
        """A context for these files; the certificate's may have a chain. Raises OSError if they cannot be used."""
        context = cls(ssl.PROTOCOL_TLS_SERVER)
        context._files = certificate, private_key
        context._seen, context._current = context._stamps(), context._loaded()
        return context

    def _stamps(self) -> tuple[object, ...]:
        return tuple(map(_stamp, self._files))

    def _loaded(self) -> ssl.SSLContext:
        found = hardened(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        found.load_cert_chain(*self._files)
        return found

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        """A connection whose handshake uses the newest certificate."""
        stamps = self._stamps()
        if stamps != self._seen:
            with suppress(OSError):  # perhaps half written: the next handshake looks again
                self._current, self._seen = self._loaded(), stamps
        return self._current.wrap_bio(*args, **kwargs)


def _identity(certificate: x509.Certificate) -> tuple[list[str], bytes]:
    return role_uris(certificate), spki_pin(certificate)


def client_context(
    authority: Path,
    *,
    certificate: Path | None = None,
    private_key: Path | None = None,
    role: str | None = None,
    pin: str | None = None,
    denies: Callable[[str], bool] | None = None,
) -> ssl.SSLContext:
    """The context of a caller. `role`, a URI, and `pin`, 64 hexadecimal digits, identify the intended peer; `denies`
    says of a pin that its key is not accepted.
    """
    context = hardened(_ClientContext(ssl.PROTOCOL_TLS_CLIENT))
    context.expected, context.denies = (role, pin), denies
    context.load_verify_locations(authority)
    if certificate is not None:
        context.load_cert_chain(certificate, private_key)
    return context


class _ClientContext(ssl.SSLContext):
    expected: tuple[str | None, str | None] = (None, None)
    denies: Callable[[str], bool] | None = None

    def wrap_socket(self, *args: Any, **kwargs: Any) -> ssl.SSLSocket:
        """Shake hands, within the socket's time-out for all of it, then check who answered."""
        connection = super().wrap_socket(*args, **(kwargs | {"do_handshake_on_connect": False}))
        try:
            _shake_hands(connection)
            self._check(connection.getpeercert(True))
        except BaseException:
            connection.close()
            raise
        return connection

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        """Refused if a role or pin is expected: an event loop completes the handshake later, out of sight."""
        if self.expected != (None, None) or self.denies is not None:
            raise LocalError("a peer's role and pin can only be checked on sockets")
        return super().wrap_bio(*args, **kwargs)

    def _check(self, certificate: bytes | None) -> None:
        role, pin = self.expected
        if role is None and pin is None and self.denies is None:
            return
        try:
            found = x509.load_der_x509_certificate(certificate or b"")
            roles = role_uris(found)
        except (ValueError, x509.DuplicateExtension):
            raise NotTheParty("the peer's certificate cannot be read") from None
        if role is not None and roles != [role]:
            raise NotTheParty(f"the peer is not {role}")
        if pin is not None and spki_pin(found).hex() != pin:
            raise NotTheParty(f"{role or 'the peer'} does not have the key that the study names")
        if self.denies is not None and self.denies(spki_pin(found).hex()):
            raise NotTheParty(f"the key of {role or 'the peer'} is denied here")


def _shake_hands(connection: ssl.SSLSocket) -> None:
    """Complete a handshake. The base class bounds the time between two pieces only."""
    limit = connection.gettimeout()
    until = None if limit is None else monotonic() + limit
    ready = select.poll()
    ready.register(connection, select.POLLIN)
    connection.setblocking(False)
    try:
        while True:
            try:
                return connection.do_handshake()
            except ssl.SSLWantReadError:
                ready.modify(connection, select.POLLIN)
            except ssl.SSLWantWriteError:
                ready.modify(connection, select.POLLOUT)
            left = None if until is None else until - monotonic()
            if (left is not None and left <= 0) or not ready.poll(None if left is None else 1000 * left):
                raise TimeoutError("the TLS handshake takes too long")
    finally:
        connection.settimeout(limit)
