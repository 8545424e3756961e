"""Who the caller is, and what each route allows.

Machines present a certificate from the study's authority with one role URI; people send a bearer token. Every route
states who may call it with an `Allow` among its dependencies; an application with a route without one cannot be built.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache

from cryptography import x509
from fastapi import Request
from starlette.types import Scope as AsgiScope

from caps.errors import DomainError
from caps.service.problems import Problem
from caps.service.tokens import Person, Scope
from caps.trust.pki import role_uri, role_uris, spki_pin
from caps.wire.problems import Kind

CERTIFICATE = "caps.certificate"
"""The key in the ASGI scope where `caps.service.serve` puts the client's certificate, DER or None."""

CALLER = "caps.caller"


@dataclass(frozen=True)
class Machine:
    """A service of the federation: its role, its name, and the SHA-256 of its key, which a manifest must confirm."""

    role: str
    name: str
    pin: str


@dataclass(frozen=True)
class Caller:
    """A machine, a person, or nobody. expired: when the token of somebody who is nobody by now expired."""

    machine: Machine | None = None
    person: Person | None = None
    expired: datetime | None = field(default=None, compare=False)

    def __str__(self) -> str:
        if self.machine is not None:
            return f"{self.machine.role}/{self.machine.name}"
        return f"person/{self.person.name}" if self.person is not None else "nobody"


NOBODY = Caller()


@lru_cache(maxsize=1024)
def machine_of(certificate: bytes | None) -> Machine | None:
    """The machine that a certificate, already verified by TLS, belongs to; None without exactly one role."""
    if certificate is None:
        return None
    try:
        found = x509.load_der_x509_certificate(certificate)
        (uri,) = role_uris(found)
        role, _, name = uri.removeprefix("caps:").partition("/")
        if role_uri(role, name) != uri:
            return None
    except (ValueError, DomainError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        return None
    return Machine(role, name, spki_pin(found).hex())


def caller_of(scope: AsgiScope) -> Caller:
    """The caller that was identified."""
    caller = scope.get(CALLER, NOBODY)
    assert isinstance(caller, Caller)
    return caller


class Allow:
    """A dependency that allows machines with certain roles and people with certain scopes; everybody if `public`."""

    def __init__(self, *, machines: Collection[str] = (), scopes: Collection[Scope] = (), public: bool = False) -> None:
        self.machines = frozenset(machines)
        self.scopes = frozenset(scopes)
        self.public = public

    async def __call__(self, request: Request) -> Caller:
        """The caller, as handlers get it. A coroutine, because FastAPI would call a function in a thread."""
        return self.check(caller_of(request.scope))

    def check(self, caller: Caller) -> Caller:
        """The caller. Raises a problem, 401 or 403, if it is not allowed."""
        if self.public:
            return caller
        if caller.machine is not None and caller.machine.role in self.machines:
            return caller
        if caller.person is not None and caller.person.scopes & self.scopes:
            return caller
        if caller == NOBODY:
            raise unauthenticated(caller)
        allowed = sorted([*(f"machines with role {role}" for role in self.machines), *(f"{s}s" for s in self.scopes)])
        raise Problem(Kind.FORBIDDEN, f"only {' and '.join(allowed)} may do this, not {caller}")


def unauthenticated(caller: Caller) -> Problem:
    """The problem for a caller that presents neither a certificate of the federation nor a valid token."""
    detail, more = "neither a certificate with a role of this federation nor a valid token was presented", {}
    if caller.expired is not None:
        detail = f"your token expired on {caller.expired:%Y-%m-%d}"
        more = {"hint": "ask the operator of this service for a new one, which `caps token create` makes"}
    return Problem(Kind.UNAUTHENTICATED, detail, headers={"WWW-Authenticate": 'Bearer realm="caps"'}, **more)


def machine(caller: Caller) -> Machine:
    """The machine behind a caller. Raises a problem if the caller is not a machine."""
    if caller.machine is None:
        raise Problem(Kind.FORBIDDEN, "only machines may do this")
    return caller.machine
