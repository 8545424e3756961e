"""A party's site: the directory with its keys, its identity, and how it calls others.

    CAPS_HOME/certificate.pem private-key.pem authority.pem   TLS identity
    CAPS_HOME/signing-key.pem                                 Ed25519 key for signatures
    CAPS_HOME/tokens.json                                     digests of people's tokens
    CAPS_HOME/policy.yaml                                     an MPC server's own rules

A party's role and name come from its certificate and are stored nowhere else.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path

import httpx

from caps.errors import DomainError
from caps.service.app import Clock, instant, utc_now
from caps.service.identity import Caller, Machine, machine
from caps.service.logs import level_of, trace
from caps.service.metrics import Metrics, Reading, sizes_of
from caps.service.problems import Problem
from caps.service.supervision import Supervisor
from caps.service.tokens import Tokens
from caps.study import Coordinator, Holder, Server
from caps.trust import pki, signing
from caps.trust.cards import Party
from caps.trust.home import SIGNING_KEY, TOKENS
from caps.trust.timely import TimelyTransport
from caps.trust.tls import Credentials, client_context
from caps.wire.problems import Kind


@dataclass(frozen=True)
class Settings:
    """A service's directories, address and database. Only `from_environment` reads the environment."""

    home: Path
    data: Path
    host: str
    port: int
    database: str
    log_level: str = "INFO"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """Reads CAPS_HOME and the optional CAPS_STATE, CAPS_LISTEN (host:port), CAPS_DATABASE (URL), CAPS_LOG_LEVEL."""
        if "CAPS_HOME" not in environment:
            raise DomainError("CAPS_HOME is not set; set it to the directory with this party's keys")
        home = Path(environment["CAPS_HOME"]).absolute()
        data = Path(environment.get("CAPS_STATE", home / "state")).absolute()
        host, colon, port = environment.get("CAPS_LISTEN", "127.0.0.1:8443").rpartition(":")
        if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise DomainError("CAPS_LISTEN must be host:port")
        host = host.removeprefix("[").removesuffix("]")
        database = environment.get("CAPS_DATABASE", f"sqlite:///{data / 'state.db'}")
        return cls(home, data, host, int(port), database, level_of(environment.get("CAPS_LOG_LEVEL", "INFO")))


class Site:
    """One party, as its service sees it."""

    def __init__(self, settings: Settings, *, role: str, clock: Clock = utc_now) -> None:
        self.settings = settings
        self.clock = clock
        home = settings.home
        self.credentials = Credentials.of(home)
        roles = pki.role_uris(pki.read_certificate(self.credentials.certificate))
        if len(roles) != 1 or not roles[0].startswith(f"caps:{role}/"):
            raise DomainError(f"{self.credentials.certificate}: the certificate must have one role, {role}")
        self.role = role
        self.name = roles[0].partition("/")[2]
        self.signing_key = signing.read_signing_key(home / SIGNING_KEY)
        self.tokens = Tokens(home / TOKENS)
        settings.data.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.metrics = Metrics(role, self.name)
        self.supervisor = Supervisor(self.metrics)
        self.metrics.read(self._certificates)
        self.metrics.read(sizes_of(settings.data))
        self._expiries: tuple[tuple[object, ...], dict[str, datetime]] | None = None

    @cached_property
    def pin(self) -> str:
        """SHA-256 of this party's TLS public key."""
        return pki.spki_pin(pki.read_certificate(self.credentials.certificate)).hex()

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
            own.authority, certificate=own.certificate, private_key=own.private_key, role=role, pin=pin
        )
        hooks = {"request": [trace]}
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

    def _certificates(self) -> list[Reading]:
        return [
            Reading("caps_certificate_expiry_seconds", (end - self.now()).total_seconds(), (name,))
            for name, end in self.expiries().items()
        ]


def speaks_for(caller: Caller, party: Server | Coordinator | Holder) -> bool:
    """Whether the caller is a machine with this party's role, name and key."""
    found = caller.machine
    return found is not None and (f"caps:{found.role}/{found.name}", found.pin) == (party.role, party.pin)


def confirm(caller: Caller, party: Server | Coordinator | Holder) -> Machine:
    """The machine behind a caller. Raises a problem unless it has this party's role, name and key."""
    found = machine(caller)
    if f"caps:{found.role}/{found.name}" != party.role:
        raise Problem(Kind.FORBIDDEN, f"only {party.role} may do this, not {caller}")
    if found.pin != party.pin:
        raise Problem(Kind.FORBIDDEN, f"{party.role} does not have the key that the study names")
    return found
