"""A federation in a directory: made once, then started, looked at, stopped and removed, by any later command.

DIR/federation.json     its parties and their ports; what makes the directory a federation's
DIR/config.toml         a site for each person of each party, for the `caps` command; DIR/env points at it
DIR/authority, cards    the authority with its key; the parties' public cards
DIR/parties/NAME        a party's home, with its state and its people's tokens
DIR/logs, run           what services write; which processes they are
DIR/sample              a study with tables of invented persons
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, cast

import httpx
from pydantic import ValidationError

import caps
from caps.basics.document import Document, Name, first_mistake
from caps.basics.files import held_alone, private_directory, replace_private, write_private
from caps.basics.naming import alike_in_ascii, shown
from caps.basics.schemes import SCHEMES, Scheme, SchemeName
from caps.errors import DomainError, LocalError
from caps.federation import sample
from caps.federation.parties import (
    COORDINATOR,
    HOST,
    MODULES,
    Place,
    equip,
    make_authority,
    mesh_of,
    places_in,
    policy_text,
)
from caps.federation.processes import Process, begin
from caps.service.app import instant
from caps.service.tokens import Scope
from caps.trust import home as party
from caps.trust.cards import Role
from caps.trust.tls import NotTheParty, client_context
from caps.wire.health import Health

RECORD, CONFIG, ENVIRONMENT, LOCK, IGNORED = "federation.json", "config.toml", "env", ".lock", ".gitignore"
AUTHORITY, CARDS, PARTIES, LOGS, RUN, SAMPLE = "authority", "cards", "parties", "logs", "run", "sample"
MADE = (CONFIG, ENVIRONMENT, AUTHORITY, CARDS, PARTIES, LOGS, RUN, SAMPLE, LOCK, IGNORED, RECORD)
"""All that is in a federation's directory by our doing; the record last, because it allows to remove the rest."""
TOKEN_DAYS = 90
READY_SECONDS = 180.0
"""The first start after a change of the engine compiles it, at every server."""
STOP_SECONDS = 20.0
LAST_LINES = 12
_TAIL = 8192
_POLL = 0.05
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)


class NotStarted(LocalError):
    """A service ended, or was not ready in time; the message has its last lines."""


class PartyRecord(Document):
    """A party and its ports, which it keeps: studies name them."""

    role: Role
    name: Name
    port: int
    mesh_port: int | None = None


class FederationRecord(Document):
    """federation.json. study: the sample's id."""

    version: Literal[1] = 1
    made: str
    scheme: SchemeName
    parties: tuple[PartyRecord, ...]
    study: str


@dataclass(frozen=True)
class Condition:
    """A service as it is now. since: when it was started, if it runs. why: why it is not ready."""

    place: Place
    state: Literal["ready", "not ready", "stopped"]
    since: str | None
    why: str = ""


class LocalFederation:
    """The federation in a directory."""

    def __init__(self, directory: Path, record: FederationRecord) -> None:
        self.directory = directory.resolve()
        self.record = record
        self.scheme = SCHEMES[record.scheme]
        self.places = {
            one.name: Place(one.role, one.name, self.directory / PARTIES / one.name, one.port, one.mesh_port)
            for one in record.parties
        }

    @classmethod
    def create(
        cls, directory: Path, holders: Sequence[str], *, scheme: Scheme, now: datetime, token_days: int = TOKEN_DAYS
    ) -> LocalFederation:
        """Make a federation in a new or empty directory: whole, or not at all. Raises DomainError."""
        _check_names(holders, scheme)
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise DomainError(f"{directory} exists and is not empty; choose another directory")
        directory.parent.mkdir(parents=True, exist_ok=True)
        draft = directory.with_name(f".{directory.name}.{secrets.token_hex(4)}")
        draft.mkdir(mode=0o700)
        try:
            record = _make(draft, holders, scheme, now, token_days)
            draft.rename(directory)
        except BaseException:
            shutil.rmtree(draft)
            raise
        found = cls(directory, record)
        found.write_environment()
        return found

    @classmethod
    def read(cls, directory: Path) -> LocalFederation:
        """The federation in a directory. Raises DomainError if the directory is not a federation's."""
        path = directory / RECORD
        try:
            return cls(directory, FederationRecord.model_validate_json(path.read_bytes()))
        except OSError:
            raise DomainError(
                f"{directory} is not a federation's directory: it has no {RECORD}; `caps federation new` makes one"
            ) from None
        except ValidationError as error:
            raise DomainError(f"{path}: {first_mistake(error)}") from None

    @property
    def authority(self) -> Path:
        """The certificate that everybody trusts."""
        return self.directory / AUTHORITY / party.AUTHORITY

    @property
    def config(self) -> Path:
        """The configuration with all sites."""
        return self.directory / CONFIG

    def variables(self) -> dict[str, str]:
        """What a shell needs in its environment: the configuration, the coordinator's URL and the sample's id."""
        return {
            "CAPS_CONFIG": str(self.config),
            "COORDINATOR": self.places[COORDINATOR].url,
            "STUDY": self.record.study,
        }

    def write_environment(self, **further: str) -> None:
        """Write DIR/env, for `. DIR/env`, with these variables and further ones."""
        lines = [f"export {name}={shlex.quote(value)}" for name, value in (self.variables() | further).items()]
        if shutil.which("caps") is None:
            lines.append(f'export PATH={shlex.quote(str(Path(sys.executable).parent))}:"$PATH"')
        replace_private(self.directory / ENVIRONMENT, ("\n".join(lines) + "\n").encode())

    def token(self, name: str, scope: str) -> str:
        """The token of a person at a party."""
        return (self.places[name].home / f"{scope}.token").read_text().strip()

    def log(self, name: str) -> Path:
        """The file that a service writes to."""
        return self.directory / LOGS / f"{name}.log"

    def process(self, name: str) -> Process | None:
        """A service's process; None if it does not run."""
        found = Process.read(self.directory / RUN / f"{name}.json")
        return found if found is not None and found.lives() else None

    def start(self, *, now: Callable[[], datetime], seconds: float = READY_SECONDS) -> list[str]:
        """Start the services that do not run, and wait until all are ready. Returns whom it started.

        Raises NotStarted with the last lines of the service that failed; the others go on.
        """
        with self._alone():
            if str(self.config) not in (self.directory / ENVIRONMENT).read_text():  # the directory was moved
                self.write_environment()
            missing = [name for name in self.places if self.process(name) is None]
            for name in missing:
                self._begin(self.places[name], instant(now()))
        wait_ready(
            self.places.values(),
            self.authority,
            runs=lambda name: self.process(name) is not None,
            log=self.log,
            seconds=seconds,
        )
        return missing

    def stop(self, *, seconds: float = STOP_SECONDS) -> dict[str, bool]:
        """Stop the services that run, holders first and servers last. Returns for each whether it ended by itself."""
        with self._alone():
            return self._stop(seconds)

    def status(self) -> list[Condition]:
        """Every service as it is now."""
        return [self._condition(place) for place in self.places.values()]

    def clean(self) -> list[str]:
        """Stop all services, and remove all that the federation made. Returns what is left of others in there."""
        with self._alone():
            self._stop(STOP_SECONDS)
            for name in MADE:
                path = self.directory / name
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
        left = sorted(path.name for path in self.directory.iterdir())
        if not left:
            self.directory.rmdir()
        return left

    def _begin(self, place: Place, since: str) -> None:
        if find_spec("services") is None:
            raise DomainError("the services are not installed here; install the whole of CaPS, not only its client")
        root = str(Path(caps.__file__).parents[1])
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("CAPS_")}
        process = begin(
            [sys.executable, "-m", MODULES[place.role]],
            directory=place.home,
            environment={**inherited, "PYTHONPATH": path, **place.settings(mesh_of(self.places))},
            log=self.log(place.name),
            since=since,
        )
        process.keep(self.directory / RUN / f"{place.name}.json")

    def _stop(self, seconds: float) -> dict[str, bool]:
        running = {name: process for name in reversed(self.places) if (process := self.process(name)) is not None}
        ended = {name: process.stop(seconds) for name, process in running.items()}
        for name in ended:
            (self.directory / RUN / f"{name}.json").unlink(missing_ok=True)
        return {name: ended[name] for name in self.places if name in ended}

    def _condition(self, place: Place) -> Condition:
        process = self.process(place.name)
        if process is None:
            ended = (self.directory / RUN / f"{place.name}.json").exists()
            lines = last_lines(self.log(place.name), 1) if ended else ""
            return Condition(place, "stopped", None, f"it ended by itself: {lines}" if ended else "")
        with _caller(place, self.authority) as client:
            why = unready(client)
        return Condition(place, "not ready" if why else "ready", process.since, why or "")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Only one command at a time changes which services run."""
        descriptor = held_alone(self.directory / LOCK)
        if descriptor is None:
            raise DomainError(f"another command starts or stops {self.directory}; wait until it is done")
        try:
            yield
        finally:
            os.close(descriptor)


def wait_ready(
    places: Iterable[Place],
    authority: Path,
    *,
    runs: Callable[[str], bool],
    log: Callable[[str], Path],
    seconds: float,
) -> None:
    """Wait until services are ready. Raises NotStarted with the last lines of the one that is not."""
    deadline = time.monotonic() + seconds
    for place in places:
        with _caller(place, authority) as client:
            while True:
                if not runs(place.name):
                    raise NotStarted(f"{place.name} ended. Its last lines:\n{last_lines(log(place.name))}")
                if (why := unready(client)) is None:
                    break
                if time.monotonic() > deadline:
                    told = f"{place.name} is not ready after {seconds:g} s: {why}. Its last lines:"
                    raise NotStarted(f"{told}\n{last_lines(log(place.name))}")
                time.sleep(_POLL)


def unready(client: httpx.Client) -> str | None:
    """Why a service is not ready; None if it is."""
    try:
        answer = client.get("/readyz")
    except httpx.TransportError:
        return "it does not answer"
    except NotTheParty:
        return "another party answers at its address"
    if answer.status_code == 200:
        return None
    try:
        return "; ".join(Health.model_validate_json(answer.content).reasons) or f"status {answer.status_code}"
    except ValidationError:
        return f"status {answer.status_code}"


def last_lines(log: Path, most: int = LAST_LINES) -> str:
    """The end of a log."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-most:])
    except FileNotFoundError:
        return ""


def _caller(place: Place, authority: Path) -> httpx.Client:
    context = client_context(authority, role=f"caps:{place.role}/{place.name}")
    return httpx.Client(base_url=place.url, verify=context, timeout=5, trust_env=False)


def _check_names(holders: Sequence[str], scheme: Scheme) -> None:
    if not holders:
        raise DomainError("a federation must have at least one holder")
    for name in holders:
        if not _NAME.fullmatch(name):
            raise DomainError(
                f"{shown(name)!r} cannot be a holder's name: use 1 to 63 letters, digits, dots, dashes or underscores"
            )
    sites = [site for site, *_ in _sites(scheme.server_names, holders)]
    if (pair := alike_in_ascii(sites)) is not None:
        raise DomainError(f"the names {pair[0]} and {pair[1]} look alike; choose other names for holders")
    if repeated := sorted({site for site in sites if sites.count(site) > 1}):
        raise DomainError(f"two parties or sites would be called {repeated[0]}; choose other names for holders")


def _make(directory: Path, holders: Sequence[str], scheme: Scheme, now: datetime, token_days: int) -> FederationRecord:
    for name in (PARTIES, LOGS, RUN, SAMPLE, CARDS):
        private_directory(directory / name)
    places = places_in(directory / PARTIES, scheme, holders)
    make_authority(directory / AUTHORITY, now=now)
    for place in places.values():
        equip(
            place.home,
            place.role,
            place.name,
            ["localhost", HOST],
            authority=directory / AUTHORITY,
            tokens=place.home,
            token_days=token_days,
            policy=policy_text(),
            now=now,
        )
        party.card(place.home, url=place.public_url, mesh=place.mesh).write(directory / CARDS / f"{place.name}.json")
    study = sample.write(directory / SAMPLE, places, scheme, holders)
    record = FederationRecord(
        made=instant(now),
        scheme=cast(SchemeName, scheme.name),
        parties=tuple(
            PartyRecord(role=cast(Role, one.role), name=one.name, port=one.port, mesh_port=one.mesh_port)
            for one in places.values()
        ),
        study=study.study_id,
    )
    write_private(directory / IGNORED, b"*\n")  # keys and tokens are nobody's to commit, wherever this lies
    write_private(directory / CONFIG, _config(places, scheme.server_names, holders).encode())
    write_private(directory / RECORD, record.model_dump_json(indent=1).encode() + b"\n")
    return record


def _sites(servers: Sequence[str], holders: Sequence[str]) -> Iterator[tuple[str, str, Scope]]:
    """Every site with its party and the scope of its token. Commands use the first three where no site is named."""
    yield "coordinator", COORDINATOR, Scope.OPERATOR
    yield "holder", holders[0], Scope.OWNER
    yield "server", servers[0], Scope.OPERATOR
    yield "analyst", COORDINATOR, Scope.ANALYST
    yield "auditor", COORDINATOR, Scope.AUDITOR
    for name in holders:
        yield name, name, Scope.OWNER
        yield f"{name}-operator", name, Scope.OPERATOR
    for name in servers:
        yield name, name, Scope.OPERATOR
        yield f"{name}-auditor", name, Scope.AUDITOR


def _config(places: Mapping[str, Place], servers: Sequence[str], holders: Sequence[str]) -> str:
    """The sites, with paths from the file, so that the directory can be moved."""
    lines = ["# Every person of every party. Paths are relative to this file."]
    for site, name, scope in _sites(servers, holders):
        lines += [
            f'[sites."{site}"]',
            f'url = "{places[name].url}"',
            f'token_file = "{PARTIES}/{name}/{scope}.token"',
            f'authority = "{AUTHORITY}/{party.AUTHORITY}"',
            "",
        ]
    return "\n".join(lines)
