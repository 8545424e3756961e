"""A party's site: the directory with its keys, its identity, and how it calls others.

    CAPS_HOME/certificate.pem private-key.pem authority.pem   TLS identity
    CAPS_HOME/signing-key.pem                                 Ed25519 key for signatures
    CAPS_HOME/tokens.json                                     digests of people's tokens
    CAPS_HOME/policy.yaml                                     keys that are denied; an MPC server's own rules
    CAPS_HOME/people-certificate.pem people-key.pem           of a port for people only, if there is one

A party's role and name come from its certificate and are stored nowhere else.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path

import httpx

from caps.basics.files import held_alone, private_directory
from caps.errors import DomainError
from caps.service.app import Clock, instant, utc_now
from caps.service.connections import People
from caps.service.environment import Variable
from caps.service.identity import Caller, Machine, machine
from caps.service.logs import level_of, trace
from caps.service.metrics import Metrics, Reading, sizes_of
from caps.service.pages.rendering import Link, Pages
from caps.service.pages.sessions import Sessions
from caps.service.problems import Problem
from caps.service.room import DiskRoom
from caps.service.supervision import Supervisor
from caps.service.tokens import Tokens
from caps.study import Coordinator, Holder, Manifest, Server
from caps.trust import pki, signing
from caps.trust.cards import Party
from caps.trust.denials import Denials
from caps.trust.home import AUTHORITY, CERTIFICATE, POLICY, PRIVATE_KEY, SIGNING_KEY, TOKENS
from caps.trust.timely import TimelyTransport
from caps.trust.tls import Credentials, PeopleContext, client_context
from caps.wire.problems import Kind

HOME = Variable("CAPS_HOME", "the directory with this party's keys, certificates, tokens and policy.yaml")
STATE = Variable("CAPS_STATE", "the directory of all that the service writes", "`state` in CAPS_HOME")
LISTEN = Variable("CAPS_LISTEN", "host:port of the REST interface", "127.0.0.1:8443")
DATABASE = Variable("CAPS_DATABASE", "URL of the database, SQLite or PostgreSQL", "SQLite: `state.db` in CAPS_STATE")
PEOPLE = Variable(
    "CAPS_PEOPLE_LISTEN",
    "host:port of a second port, for people, with people-certificate.pem and people-key.pem of CAPS_HOME",
    "none: people use CAPS_LISTEN",
)
LOG_LEVEL = Variable("CAPS_LOG_LEVEL", "DEBUG, INFO, WARNING or ERROR", "INFO")
VARIABLES = (HOME, STATE, LISTEN, PEOPLE, DATABASE, LOG_LEVEL)
PEOPLE_CERTIFICATE, PEOPLE_KEY = "people-certificate.pem", "people-key.pem"
_ALONE = "lock"
"""The file in CAPS_STATE that a service locks: two processes would erase each other's files and spend budgets twice."""


@dataclass(frozen=True)
class Settings:
    """A service's directories, address and database. Only `from_environment` reads the environment."""

    home: Path
    data: Path
    host: str
    port: int
    database: str
    log_level: str = "INFO"
    people: tuple[str, int] | None = None
    """Host and port for people only, if they have one of their own."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """Reads `VARIABLES`."""
        given = HOME.given(environment)
        if given is None:
            raise DomainError("CAPS_HOME is not set; set it to the directory with this party's keys")
        home = Path(given).absolute()
        data = Path(STATE.given(environment) or home / "state").absolute()
        host, port = _address(LISTEN, LISTEN.given(environment) or LISTEN.default)
        people = PEOPLE.given(environment)
        database = DATABASE.given(environment) or f"sqlite:///{data / 'state.db'}"
        level = level_of(LOG_LEVEL.given(environment) or LOG_LEVEL.default)
        return cls(home, data, host, port, database, level, _address(PEOPLE, people) if people else None)

    def take(self) -> Settings:
        """Keep other processes from this state until this one ends; for a process that is about to serve.

        Raises DomainError, with what to do, if the home is not a party's, or another process has the state.
        """
        _check_home(self.home)
        private_directory(self.data)
        if held_alone(self.data / _ALONE) is None:
            raise DomainError(
                f"another process is using {self.data}; stop it first, or give this one a CAPS_STATE of its own"
            )
        return self


def _address(variable: Variable, text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise DomainError(f"{variable.name} must be host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


class Site:
    """One party, as its service sees it."""

    def __init__(self, settings: Settings, *, role: str, clock: Clock = utc_now, policy: Path | None = None) -> None:
        """policy: an MPC server's rules, of which the denied keys follow the file; other parties have only these."""
        self.settings = settings
        self.clock = clock
        home = settings.home
        _check_home(home)
        self.credentials = Credentials.of(home)
        roles = pki.role_uris(pki.read_certificate(self.credentials.certificate))
        if len(roles) != 1 or not roles[0].startswith(f"caps:{role}/"):
            raise DomainError(f"{self.credentials.certificate}: the certificate must have one role, {role}")
        self.role = role
        self.name = roles[0].partition("/")[2]
        self.signing_key = signing.read_signing_key(home / SIGNING_KEY)
        self.tokens = Tokens(home / TOKENS)
        settings.data.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.sessions = Sessions(settings.data / "sessions.db", self.tokens, clock)
        self.room = DiskRoom(settings.data)
        self.metrics = Metrics(role, self.name)
        self.supervisor = Supervisor(self.metrics)
        self.denials = Denials(policy or home / POLICY, alone=role != "mpc-server")
        if (complaint := self.denials.complaint) is not None:  # there is no earlier list to go by
            raise DomainError(complaint)
        self.metrics.read(self._certificates)
        self.metrics.read(self._denied)
        self.metrics.read(sizes_of(settings.data))
        self._expiries: tuple[tuple[object, ...], dict[str, datetime]] | None = None

    @property
    def people(self) -> People | None:
        """The port for people only, if there is one. Raises OSError if its certificate cannot be used."""
        if self.settings.people is None:
            return None
        home = self.settings.home
        return People(*self.settings.people, PeopleContext.of(home / PEOPLE_CERTIFICATE, home / PEOPLE_KEY))

    @cached_property
    def pin(self) -> str:
        """SHA-256 of this party's TLS public key."""
        return pki.spki_pin(pki.read_certificate(self.credentials.certificate)).hex()

    def pages(self, templates: Path, links: Sequence[Link] = (), *, static: Sequence[Path] = ()) -> Pages:
        """This party's pages, whose own templates and static files are in these folders."""
        return Pages(
            service=self.role,
            name=self.name,
            sessions=self.sessions,
            templates=templates,
            links=links,
            static=static,
        )

    def now(self) -> datetime:
        """The time."""
        return self.clock()

    def instant(self) -> str:
        """The time in the format of documents."""
        return instant(self.clock())

    def is_me(self, party: Party) -> bool:
        """Whether a manifest's entry has this party's name and keys."""
        return (party.name, party.pin, party.signing_key) == (self.name, self.pin, signing.public_hex(self.signing_key))

    def calls(self, party: Server | Coordinator, *, timeout: float) -> httpx.Client:
        """A client for one party of a study, which must have the role and key in the manifest."""
        return self.calls_to(party.url, role=party.role, pin=party.pin, timeout=timeout)

    def calls_to(self, url: str, *, timeout: float, role: str | None = None, pin: str | None = None) -> httpx.Client:
        """A client for an address, which must have a certificate of the authority; of this role and key, if given."""
        own = self.credentials
        context = client_context(
            own.authority,
            certificate=own.certificate,
            private_key=own.private_key,
            role=role,
            pin=pin,
            denies=self.denials.denies,
        )

        def still_trusted(request: httpx.Request) -> None:
            """Also on a connection that was made before the key was denied."""
            if pin is not None and self.denials.denies(pin):
                raise httpx.ConnectError(f"the key of {role or 'this party'} is denied here", request=request)

        hooks = {"request": [trace, still_trusted]}
        transport = TimelyTransport(context)
        return httpx.Client(base_url=url, transport=transport, timeout=timeout, trust_env=False, event_hooks=hooks)

    def expiries(self) -> dict[str, datetime]:
        """When this party's certificate and the authority's expire, according to the current files."""
        stamp = self.credentials.stamp()
        if self._expiries is None or self._expiries[0] != stamp:
            files = {"own": self.credentials.certificate, "authority": self.credentials.authority}
            try:
                ends = {name: pki.read_certificate(path).not_valid_after_utc for name, path in files.items()}
            except (OSError, ValueError):  # perhaps being renewed
                return {} if self._expiries is None else self._expiries[1]
            self._expiries = stamp, ends
        return self._expiries[1]

    def expired(self) -> list[str]:
        """Reasons not to be ready: expired certificates."""
        names = {"own": "this party's certificate", "authority": "the authority's certificate"}
        return [
            f"{names[name]} expired on {end:%Y-%m-%d %H:%M} UTC: renew it, see docs/operations.md"
            for name, end in self.expiries().items()
            if end <= self.now()
        ]

    def _denied(self) -> list[Reading]:
        return [
            Reading("caps_denied_keys", len(self.denials.current())),
            Reading("caps_denied_keys_current", self.denials.complaint is None),
        ]

    def _certificates(self) -> list[Reading]:
        return [
            Reading("caps_certificate_expiry_seconds", (end - self.now()).total_seconds(), (name,))
            for name, end in self.expiries().items()
        ]


def _check_home(home: Path) -> None:
    """Raises DomainError, with what to do, unless a party's keys and certificates are there."""
    if not home.is_dir():
        raise DomainError(f"CAPS_HOME, {home}, is not a directory; set it to the directory with this party's keys")
    missing = [name for name in (CERTIFICATE, PRIVATE_KEY, AUTHORITY, SIGNING_KEY) if not (home / name).exists()]
    if missing:
        raise DomainError(
            f"{home} lacks {', '.join(missing)}: make keys with `caps pki request`, and put certificates there with "
            "`caps pki install`"
        )


def speaks_for(caller: Caller, party: Server | Coordinator | Holder) -> bool:
    """Whether the caller is a machine with this party's role, name and key."""
    found = caller.machine
    return found is not None and (f"caps:{found.role}/{found.name}", found.pin) == (party.role, party.pin)


def takes_part(caller: Caller, manifest: Manifest) -> bool:
    """Whether the caller is a machine with the role, name and key of one of a study's parties."""
    found = caller.machine
    return found is not None and manifest.pins.get(pki.role_uri(found.role, found.name)) == found.pin


def confirm(caller: Caller, party: Server | Coordinator | Holder) -> Machine:
    """The machine behind a caller. Raises a problem unless it has this party's role, name and key."""
    found = machine(caller)
    if f"caps:{found.role}/{found.name}" != party.role:
        raise Problem(Kind.FORBIDDEN, f"only {party.role} may do this, not {caller}")
    if found.pin != party.pin:
        raise Problem(Kind.FORBIDDEN, f"{party.role} does not have the key that the study names")
    return found
