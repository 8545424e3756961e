"""Finds what is wrong with a party's home and its connections to the other parties of a study, and how to fix it.

Every check yields a `Finding`. Nothing is changed anywhere. Other parties are only asked for public pages (`/healthz`,
`/readyz`, `/v1/openapi.json`) and whether they accept this party's certificate. Latency is the median round trip of
small requests on one connection. Bandwidth is measured by fetching the OpenAPI document up to thirty times or for a
second, so it is a lower bound for traffic towards this machine. Time is an argument.
"""

from __future__ import annotations

import os
import socket
import ssl
import stat
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from enum import StrEnum
from http.client import HTTPException, HTTPSConnection
from json import loads
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from sqlalchemy.exc import DBAPIError

from caps import __version__
from caps.basics.schemes import SCHEMES
from caps.errors import CapsError
from caps.service.database import connect, reading, sqlite_url
from caps.service.migrations import revisions
from caps.service.room import LEAST_ROOM
from caps.service.tokens import Tokens
from caps.study import Manifest, Policy
from caps.trust import home as party
from caps.trust import pki, signing
from caps.trust.cards import Card
from caps.trust.denials import read_denials
from caps.trust.tls import RENEW_WITHIN, NotTheParty, client_context

TIMEOUT = 5.0
SKEW_WARNS, SKEW_FAILS = timedelta(seconds=5), timedelta(minutes=2)
"""Documents and ledgers contain times, and certificates begin five minutes early: see `caps.trust.home.SKEW`."""
SLOW_ROUND = 0.25
"""Seconds of a round trip above which runs are slow: every round between servers takes as long."""
SLOW_BYTES = 1_000_000
LITTLE_ROOM = 1 << 30
_PINGS = 7
_MEASURED = 1.0
_MOST_FETCHES = 30
"""Each leaves a line in the other party's log."""
_HEALTH = 1 << 20
_WHOLE = "PRAGMA quick_check(1)"
_RENEW = (
    "renew it: `caps pki request HOME ...` (keys stay), `caps pki approve` at the authority, `caps pki install`; "
    "a running service picks it up by itself"
)

Clock = Callable[[], datetime]


class Status(StrEnum):
    """How a check went."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


class Blame(StrEnum):
    """The kind of a failure, which decides the exit code of `caps doctor`."""

    SETTING = "setting"
    IDENTITY = "identity"
    REACH = "reach"


@dataclass(frozen=True)
class Finding:
    """The result of one check of one party and, if it did not pass, how to fix it."""

    subject: str
    check: str
    status: Status
    detail: str
    fix: str = ""
    blame: Blame = Blame.SETTING

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON object."""
        return {name: str(getattr(self, name)) for name in ("subject", "check", "status", "detail", "fix", "blame")}


@dataclass(frozen=True)
class Subject:
    """Another party, as a manifest or its card describes it. Holders have no url because nobody calls them."""

    role: str
    name: str
    pin: str
    signing_key: str
    url: str | None
    mesh: str | None

    def __str__(self) -> str:
        return f"{self.role}/{self.name}"

    @property
    def uri(self) -> str:
        """Its role as a certificate writes it."""
        return pki.role_uri(self.role, self.name)


def of_manifest(manifest: Manifest) -> list[Subject]:
    """Every party of a study."""
    servers = [Subject("mpc-server", s.name, s.pin, s.signing_key, s.url, s.mesh) for s in manifest.servers]
    c = manifest.coordinator
    holders = [Subject("holder", h.name, h.pin, h.signing_key, None, None) for h in manifest.holders]
    return [*servers, Subject("coordinator", c.name, c.pin, c.signing_key, c.url, None), *holders]


def of_cards(cards: Iterable[Card]) -> list[Subject]:
    """Every party in a bundle of cards."""
    return [Subject(c.role, c.name, c.pin, c.signing_key, c.url, c.mesh) for c in cards]


class _Failed(Exception):
    """A check failed that all later checks depend on."""

    def __init__(self, check: str, detail: str, fix: str, blame: Blame) -> None:
        super().__init__(detail)
        self.check, self.detail, self.fix, self.blame = check, detail, fix, blame


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True)
class Doctor:
    """Examines one home, and the other parties from there. `state` is CAPS_STATE, HOME/state by default; `database` is
    CAPS_DATABASE, SQLite in the state by default. `bandwidth`: whether to measure it, which takes a second each.
    """

    home: Path
    state: Path | None = None
    database: str | None = None
    clock: Clock = _now
    timeout: float = TIMEOUT
    bandwidth: bool = True
    versions: dict[str, str] = field(default_factory=dict, init=False)

    def examine(self, others: Sequence[Subject] = (), *, scheme: str | None = None) -> Iterator[Finding]:
        """Yields every finding as it is made. `scheme`: of the study that is to be run, if there is one."""
        yield from self.examine_home()
        me = self._me()
        if scheme is not None and me is not None and me[0] == "mpc-server":
            yield from self._scheme(scheme)
        for other in others:
            if me is not None and (other.role, other.name) == me:
                yield from self._examine_myself(other)
            if other.url is not None:
                yield from self.examine_party(other)
            if other.mesh is not None and me is not None and me[0] == "mpc-server" and other.name != me[1]:
                yield self._mesh(me[1], other)
        yield from self._versions()

    def examine_others(self, others: Sequence[Subject]) -> Iterator[Finding]:
        """Yields what can be seen of the other parties from here: of those that have an address, and of versions."""
        me = self._me()
        for other in others:
            if other.url is not None and (other.role, other.name) != me:
                yield from self.examine_party(other)
        yield from self._versions()

    def _me(self) -> tuple[str, str] | None:
        try:
            return party.party_of(self.home)
        except (CapsError, OSError, ValueError):
            return None

    def examine_home(self) -> Iterator[Finding]:
        """Checks files, permissions, keys, certificate, authority, database and disk space."""
        if not self.home.is_dir():
            yield _bad("home", "files", f"{self.home} is not a directory", "point CAPS_HOME at the party's home")
            return
        yield from self._permissions()
        yield from self._certificate()
        yield self._signing_key()
        me = self._me()
        if me is not None and me[0] == "mpc-server":
            yield from self._server_files()
        if me is not None:
            yield self._denied(me[0])
            yield self._database(me[0])
        yield from self._tokens()
        yield self._room()

    def _permissions(self) -> Iterator[Finding]:
        needed = (party.CERTIFICATE, party.PRIVATE_KEY, party.AUTHORITY, party.SIGNING_KEY)
        missing = [name for name in needed if not (self.home / name).is_file()]
        if missing:
            fix = "make keys with `caps pki request HOME ...`, and install the certificates with `caps pki install`"
            yield _bad("home", "files", f"missing: {', '.join(missing)}", fix)
        open_ = []
        for name in party.SECRETS:
            path = self.home / name
            if path.exists() and stat.S_IMODE(path.stat().st_mode) & 0o027:
                open_.append(name)
        if open_:
            fix = f"chmod 600 {' '.join(str(self.home / name) for name in open_)}; assume that others know these keys"
            yield _bad("home", "permissions", f"other users can read or change {', '.join(open_)}", fix)
        elif stat.S_IMODE(self.home.stat().st_mode) & 0o022:
            yield _bad("home", "permissions", "other users can write into the home", f"chmod 700 {self.home}")
        else:
            yield _good("home", "permissions", "only their owner can read the secrets")

    def _certificate(self) -> Iterator[Finding]:
        try:
            own = party.read_certificate(self.home / party.CERTIFICATE)
            root = party.read_certificate(self.home / party.AUTHORITY)
        except (CapsError, OSError) as error:
            yield _bad("home", "certificate", str(error), "`caps pki install HOME CERTIFICATE AUTHORITY`")
            return
        roles = pki.role_uris(own)
        if len(roles) != 1:
            yield _identity(
                "home", "role", f"the certificate has {len(roles)} roles", "request a new one with one role"
            )
        else:
            yield _good("home", "role", roles[0])
        try:
            own.verify_directly_issued_by(root)
            yield _good("home", "chain", f"issued by {root.subject.rfc4514_string()}")
        except (ValueError, TypeError, InvalidSignature):
            yield _identity(
                "home",
                "chain",
                "the certificate was not issued by the authority in authority.pem",
                "compare `caps pki show` of both files with the authority's own; install what the authority sends",
            )
        yield self._expiry("home", "expiry", own)
        yield self._expiry("home", "authority", root)
        try:
            fits = pki.read_key(self.home / party.PRIVATE_KEY).public_key() == own.public_key()
        except (CapsError, OSError, ValueError):
            yield _bad("home", "key", "private-key.pem cannot be read", "restore it from this party's backup")
            return
        if fits:
            yield _good("home", "key", f"fits the certificate; pin {pki.spki_pin(own).hex()[:16]}...")
        else:
            yield _identity(
                "home",
                "key",
                "private-key.pem is not the key of certificate.pem",
                "restore the key; a new key has a new pin and can only take part in new studies",
            )

    def _expiry(self, subject: str, check: str, certificate: x509.Certificate) -> Finding:
        now, begin, end = self.clock(), certificate.not_valid_before_utc, certificate.not_valid_after_utc
        if now >= end:
            return _identity(subject, check, f"expired on {end:%Y-%m-%d %H:%M} UTC", _RENEW)
        if now < begin:
            fix = "set this machine's clock (NTP); if it is right, request a new certificate"
            return _identity(subject, check, f"is not valid before {begin:%Y-%m-%d %H:%M} UTC", fix)
        left = f"valid until {end:%Y-%m-%d}, {(end - now).days} days"
        if end - now < RENEW_WITHIN:
            return Finding(subject, check, Status.WARNING, left, _RENEW, Blame.IDENTITY)
        return _good(subject, check, left)

    def _signing_key(self) -> Finding:
        try:
            key = signing.read_signing_key(self.home / party.SIGNING_KEY)
        except (CapsError, OSError, ValueError):
            return _bad("home", "signing key", "signing-key.pem cannot be read", "restore it from this party's backup")
        return _good("home", "signing key", f"{signing.public_hex(key)[:16]}...")

    def _scheme(self, scheme: str) -> Iterator[Finding]:
        try:
            admitted = Policy.read(self.home / party.POLICY).schemes
        except CapsError:  # a finding already
            return
        if scheme in admitted:
            yield _good("home", "scheme", f"policy.yaml admits {scheme}")
        else:
            detail = f"the study's scheme is {scheme}, but policy.yaml only admits {', '.join(admitted)}"
            yield _bad("home", "scheme", detail, f"add {scheme} to `schemes` in policy.yaml, or refuse the study")

    def _denied_pins(self) -> set[str]:
        path = self.home / party.POLICY
        try:
            return {one.pin for one in read_denials(path)} if path.exists() else set()
        except CapsError:  # told by `_denied`
            return set()

    def _denied(self, role: str) -> Finding:
        """The keys that are denied here. A running service keeps its last good list, but a start would have none."""
        path = self.home / party.POLICY
        try:
            found = read_denials(path, alone=role != "mpc-server") if path.exists() else []
        except CapsError as error:
            return _bad("home", "denied keys", str(error), "fix policy.yaml; `caps pki revoke` writes the list")
        listed = [
            f"{one.pin[:16]}... since {one.since or 'some time'} ({one.reason or 'no reason given'})" for one in found
        ]
        return _good("home", "denied keys", "; ".join(listed) or "none")

    def _server_files(self) -> Iterator[Finding]:
        try:
            Policy.read(self.home / party.POLICY)
            yield _good("home", "policy", "policy.yaml is valid")
        except CapsError as error:
            yield _bad("home", "policy", str(error), "fix policy.yaml; `caps policy new` writes one with every member")
        path = self.home / party.STORAGE_KEY
        if path.exists() and path.stat().st_size == 32:
            yield _good("home", "storage key", "present; back it up separately from the shares")
        elif path.exists():
            yield _bad("home", "storage key", "is not 32 bytes long", "restore it: without it every share here is lost")
        else:
            detail = "not there yet; the first start makes it"
            fix = "if this server has ever held shares, restore the key before starting it"
            yield Finding("home", "storage key", Status.WARNING, detail, fix)

    def _database(self, role: str) -> Finding:
        """The database is only read: it must answer, be whole, and have the revision that this software needs."""
        package = f"services.{role.replace('-', '_')}.migrations"
        file = None if self.database else self._state / "state.db"
        if file is not None and not file.exists():
            return _good("home", "database", f"none at {file} yet; the first start makes it")
        try:
            engine = connect(self.database or sqlite_url(self._state / "state.db"))
        except CapsError as error:
            return _bad("home", "database", str(error), "correct CAPS_DATABASE")
        try:
            with reading(engine) as connection:
                if engine.dialect.name == "sqlite" and connection.exec_driver_sql(_WHOLE).scalar() != "ok":
                    fix = "stop the service, keep the file, and restore a backup: docs/operations.md"
                    return _bad("home", "database", "the file is damaged", fix)
                found, needed = revisions(connection, package)
        except ModuleNotFoundError:
            return Finding("home", "database", Status.SKIPPED, "answers; its service is not installed here")
        except CapsError as error:
            return _bad("home", "database", str(error), "use the version of CaPS that belongs to this database")
        except DBAPIError as error:
            fix = "check that it runs and CAPS_DATABASE is right; for a file, that its owner runs this command"
            return Finding("home", "database", Status.FAILED, f"cannot be read: {error.orig}", fix, Blame.REACH)
        finally:
            engine.dispose()
        if found not in (None, needed):
            detail = f"is at revision {found}, and this software needs {needed}"
            return _bad("home", "database", detail, f"stop the service, back up, then `python -m {package}`")
        return _good("home", "database", f"answers; {'empty' if found is None else f'revision {found}'}")

    @property
    def _state(self) -> Path:
        return self.state or self.home / "state"

    def _tokens(self) -> Iterator[Finding]:
        """Whether people can still call. A party without any tokens has nobody to lose."""
        try:
            listed = Tokens(self.home / party.TOKENS).listed()
        except CapsError as error:
            yield _bad("home", "tokens", str(error), "restore it from this party's backup, or make new tokens")
            return
        ends = [(datetime.fromisoformat(str(one["expires"])), str(one["name"])) for one in listed.values()]
        late = sorted(name for end, name in ends if end <= self.clock())
        if not late:
            if ends:
                yield _good("home", "tokens", f"{len(ends)} valid, the first until {min(ends)[0]:%Y-%m-%d}")
            return
        detail = f"{len(late)} of {len(ends)} expired: {', '.join(late)}"
        fix = "`caps token create HOME ...` for those who still need one; `caps token revoke` removes the others"
        if len(late) == len(ends):
            yield _bad("home", "tokens", detail, fix)
        else:
            yield Finding("home", "tokens", Status.WARNING, detail, fix)

    def _room(self) -> Finding:
        state = self._state
        place = next(path for path in (state, *state.parents) if path.exists())
        found = os.statvfs(place)
        free, whole = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
        detail = f"{free / 1e9:.1f} of {whole / 1e9:.1f} GB free at {place}"
        if free < LEAST_ROOM or (found.f_files and not found.f_favail):
            what = detail if free < LEAST_ROOM else f"no file can be added at {place}: all inodes are taken"
            return _bad("home", "disk", f"full: {what}", "free some space: requests that write are answered with 507")
        if free < LITTLE_ROOM:
            return Finding(
                "home", "disk", Status.WARNING, detail, "free some space, or move CAPS_STATE to a larger disk"
            )
        return _good("home", "disk", detail)

    def _examine_myself(self, entry: Subject) -> Iterator[Finding]:
        """Checks that a study names this party's keys."""
        subject = str(entry)
        try:
            own = pki.spki_pin(party.read_certificate(self.home / party.CERTIFICATE)).hex()
            key = signing.public_hex(signing.read_signing_key(self.home / party.SIGNING_KEY))
        except (CapsError, OSError, ValueError):
            yield Finding(subject, "own pin", Status.SKIPPED, "the keys here cannot be read")
            return
        if (own, key) == (entry.pin, entry.signing_key):
            yield _good(subject, "own pin", "the study names the keys of this home")
        else:
            fix = "restore the keys that the study names, or agree on a new study with a new card: `caps pki card`"
            yield _identity(subject, "own pin", "the study does not name the keys of this home", fix)

    def examine_party(self, other: Subject) -> Iterator[Finding]:
        """Checks name, port, TLS, role, pin, health, version, clock, latency and bandwidth of a REST interface."""
        subject = str(other)
        if other.pin in self._denied_pins():
            yield _identity(subject, "denied", "its key is denied here", "work with it under a new key, in a new study")
            return
        target = urlsplit(other.url or "")
        host, port = target.hostname or "", target.port or 443
        try:
            addresses = self._resolve(host, port)
            yield _good(subject, "name", f"{host} is {', '.join(addresses)}")
            yield _good(subject, "port", f"{port} is open, {1000 * self._connect(host, port):.1f} ms")
            connection, certificate = self._handshake(other, host, port)
        except _Failed as error:
            yield Finding(subject, error.check, Status.FAILED, error.detail, error.fix, error.blame)
            return
        try:
            yield _good(subject, "tls", "TLS 1.3; authority, host name, role and pin are correct")
            yield self._expiry(subject, "expiry", certificate)
            yield from self._ask(other, connection)
        except (OSError, HTTPException, ValueError) as error:
            if self._expired():
                fix = "renew this party's certificate first: nobody accepts one that has expired"
            else:
                fix = "see the other party's log; a TLS alert means that it does not accept this party's certificate"
            yield Finding(subject, "rest", Status.FAILED, f"it hung up: {_words(error)}", fix, Blame.REACH)
        finally:
            connection.close()

    def _expired(self) -> bool:
        """Whether this party's own certificate has."""
        return party.read_certificate(self.home / party.CERTIFICATE).not_valid_after_utc <= self.clock()

    def _resolve(self, host: str, port: int) -> list[str]:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError:
            fix = f"add {host} to the DNS or to /etc/hosts, or correct the address in the study"
            raise _Failed("name", f"{host} cannot be resolved", fix, Blame.REACH) from None
        return sorted({str(address[0]) for *_, address in found})

    def _connect(self, host: str, port: int) -> float:
        begun = time.perf_counter()
        try:
            socket.create_connection((host, port), self.timeout).close()
        except OSError as error:
            fix = f"check that the service runs and listens there (CAPS_LISTEN), and that firewalls allow TCP {port}"
            raise _Failed("port", f"{host}:{port}: {_words(error)}", fix, Blame.REACH) from None
        return time.perf_counter() - begun

    def _handshake(self, other: Subject, host: str, port: int) -> tuple[HTTPSConnection, x509.Certificate]:
        try:
            context = client_context(
                self.home / party.AUTHORITY,
                certificate=self.home / party.CERTIFICATE,
                private_key=self.home / party.PRIVATE_KEY,
                role=other.uri,
                pin=other.pin,
            )
        except OSError as error:
            raise _Failed("tls", f"own files: {_words(error)}", "fix the home first", Blame.SETTING) from None
        connection = HTTPSConnection(host, port, timeout=self.timeout, context=context)
        try:
            connection.connect()
            assert isinstance(connection.sock, ssl.SSLSocket)
            return connection, x509.load_der_x509_certificate(connection.sock.getpeercert(True) or b"")
        except NotTheParty as error:
            connection.close()
            check = "pin" if "does not have the key" in str(error) else "role"
            fix = (
                "another party answers there: compare `caps pki show` at the other party with the study by telephone; "
                "a party with a new key needs a new study"
            )
            raise _Failed(check, str(error), fix, Blame.IDENTITY) from None
        except ssl.SSLCertVerificationError as error:
            connection.close()
            raise _unverified(error, host) from None
        except OSError as error:
            connection.close()
            fix = "check that this is a CaPS service with TLS 1.3, and that no proxy intercepts the connection"
            raise _Failed("tls", _words(error), fix, Blame.REACH) from None

    def _ask(self, other: Subject, connection: HTTPSConnection) -> Iterator[Finding]:
        subject, times, skew = str(other), [], timedelta()
        health: dict[str, Any] = {}
        for _ in range(_PINGS):
            begun, at = time.perf_counter(), self.clock()
            status, headers, body = _get(connection, "/healthz")
            times.append(time.perf_counter() - begun)
            if status != 200:
                yield _bad(subject, "health", f"answered with status {status}", "see its log")
                return
            health = loads(body)
            # The header is rounded down to whole seconds: the true time is half a second later on average.
            told = parsedate_to_datetime(headers["date"]) + timedelta(seconds=0.5)
            skew = told - at - timedelta(seconds=times[-1] / 2)
        yield _good(subject, "health", f"{health.get('service')} {health.get('name')} is alive")
        version = str(health.get("version"))
        self.versions[subject] = version
        yield self._ready(subject, connection)
        yield self._accepted(other, connection)
        yield self._skew(subject, skew)
        latency = statistics.median(times)
        detail = f"{1000 * latency:.1f} ms per round trip"
        if latency > SLOW_ROUND:
            fix = "every round of a run takes this long: move the servers closer together, or avoid a VPN's detour"
            yield Finding(subject, "latency", Status.WARNING, detail, fix)
        else:
            yield _good(subject, "latency", detail)
        if self.bandwidth:
            yield self._bandwidth(subject, connection)

    def _ready(self, subject: str, connection: HTTPSConnection) -> Finding:
        status, _, body = _get(connection, "/readyz")
        if status == 200:
            return _good(subject, "ready", "ready to work")
        reasons = "; ".join(map(str, loads(body).get("reasons", []))) or f"status {status}"
        return Finding(subject, "ready", Status.WARNING, f"not ready: {reasons}"[:500], "fix this at the other party")

    def _accepted(self, other: Subject, connection: HTTPSConnection) -> Finding:
        """Checks that the other party accepts this one's certificate. Servers do not call each other's REST routes."""
        subject, me = str(other), self._me()
        welcome = {"mpc-server": ("coordinator", "holder"), "coordinator": ("mpc-server", "holder")}
        if me is None or me[0] not in welcome[other.role]:
            return Finding(subject, "accepted", Status.SKIPPED, "a party of this role does not call the other")
        status, _, _ = _get(connection, "/v1/studies")
        if status in (401, 403):
            fix = "both must trust the same authority.pem, and this certificate must have one role"
            return _identity(subject, "accepted", f"does not accept this party's certificate ({status})", fix)
        return _good(subject, "accepted", f"accepts this party as {me[0]}/{me[1]}")

    def _skew(self, subject: str, skew: timedelta) -> Finding:
        seconds = skew.total_seconds()
        detail = f"its clock is {abs(seconds):.0f} s {'ahead of' if seconds > 0 else 'behind'} this one"
        fix = "run NTP (chrony, systemd-timesyncd) on both machines"
        if abs(skew) >= SKEW_FAILS:
            return _bad(subject, "clock", detail, fix)
        if abs(skew) >= SKEW_WARNS:
            return Finding(subject, "clock", Status.WARNING, detail, fix)
        return _good(subject, "clock", "within seconds of this one")

    def _bandwidth(self, subject: str, connection: HTTPSConnection) -> Finding:
        got, begun, spent = 0, time.perf_counter(), 0.0
        for _ in range(_MOST_FETCHES):
            status, _, body = _get(connection, "/v1/openapi.json")
            if status != 200:
                return Finding(subject, "bandwidth", Status.SKIPPED, f"the document's status is {status}")
            got += len(body)
            spent = time.perf_counter() - begun
            if spent > _MEASURED:
                break
        rate = got / spent
        detail = f"at least {rate / 1e6:.1f} MB/s towards this machine"
        if rate < SLOW_BYTES:
            return Finding(subject, "bandwidth", Status.WARNING, detail, "ask for a faster link; shares are large")
        return _good(subject, "bandwidth", detail)

    def _mesh(self, mine: str, other: Subject) -> Finding:
        """Only checks that the port is open: a server with a full mesh accepts nobody, so a handshake would hang."""
        subject = str(other)
        if not _dials(mine, other.name):
            return Finding(subject, "mesh", Status.SKIPPED, f"{other.name} connects to {mine}, not the reverse")
        host, _, port = (other.mesh or "").rpartition(":")
        try:
            seconds = self._connect(host.strip("[]"), int(port))
        except _Failed as error:
            fix = f"see that {other.name} runs, and that firewalls let TCP {port} from {mine} through (CAPS_MESH)"
            return Finding(subject, "mesh", Status.FAILED, error.detail, fix, Blame.REACH)
        return _good(subject, "mesh", f"{other.mesh} is open, {1000 * seconds:.1f} ms")

    def _versions(self) -> Iterator[Finding]:
        if not self.versions:
            return
        me = self._me()
        mine = {f"{me[0]}/{me[1]}": __version__} if me is not None else {}
        servers = {v for who, v in {**self.versions, **mine}.items() if who.startswith("mpc-server/")}
        if len(servers) > 1:
            told = ", ".join(f"{who} {v}" for who, v in sorted(self.versions.items()) if who.startswith("mpc-server/"))
            fix = "upgrade all of them: servers of different versions do not start a run together"
            yield _bad("federation", "versions", f"MPC servers differ: {told}", fix)
        elif set(self.versions.values()) != {__version__}:
            told = ", ".join(f"{who} {v}" for who, v in sorted(self.versions.items()))
            detail = f"this is {__version__}; {told}"
            yield Finding("federation", "versions", Status.WARNING, detail, "upgrade the older ones between runs")
        else:
            yield _good("federation", "versions", f"all run {__version__}")


def _dials(mine: str, other: str) -> bool:
    """Whether an MPC server connects to another: each does to those before it."""
    names = max((scheme.server_names for scheme in SCHEMES.values()), key=len)
    return mine in names and other in names[: names.index(mine)]


def _get(connection: HTTPSConnection, path: str) -> tuple[int, dict[str, str], bytes]:
    connection.request("GET", path)
    response = connection.getresponse()
    body = response.read(_HEALTH * 8)
    return response.status, {key.lower(): value for key, value in response.getheaders()}, body


def _unverified(error: ssl.SSLCertVerificationError, host: str) -> _Failed:
    match error.verify_code:
        case 10:
            return _Failed("expiry", "its certificate has expired", "the other party must renew it", Blame.IDENTITY)
        case 9:
            fix = "compare the clocks of both machines; if they are right, the other party must renew it"
            return _Failed("expiry", "its certificate is not valid yet", fix, Blame.IDENTITY)
        case 62 | 64:
            fix = f"the other party must request a certificate for {host} (`caps pki request --host {host}`)"
            return _Failed("tls", f"its certificate does not name {host}", fix, Blame.IDENTITY)
    fix = "both parties must have the same authority.pem; compare with `caps pki show`"
    return _Failed("chain", f"another authority issued its certificate ({error.verify_message})", fix, Blame.IDENTITY)


def _words(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {(error.reason or type(error).__name__).replace('_', ' ').lower()}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return type(error).__name__


def _good(subject: str, check: str, detail: str) -> Finding:
    return Finding(subject, check, Status.OK, detail)


def _bad(subject: str, check: str, detail: str, fix: str) -> Finding:
    return Finding(subject, check, Status.FAILED, detail, fix)


def _identity(subject: str, check: str, detail: str, fix: str) -> Finding:
    return Finding(subject, check, Status.FAILED, detail, fix, Blame.IDENTITY)
