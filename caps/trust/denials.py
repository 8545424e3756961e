"""Keys that a party no longer accepts, whatever the authority certified: the member `denied` of its policy.yaml.

    denied:
      - {pin: 4f1c..., since: "2026-11-17T09:00:00Z", reason: "laptop lost"}

A compromised key stays certified until its certificate expires, so every party can deny it by its pin. The file is read
again whenever it changes. One that cannot be read keeps the last good list in force: a typing error must not let a
thief back in.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Annotated, Any

import yaml
from pydantic import Field, StringConstraints, ValidationError, field_validator

from caps.basics.document import Document, Hex32, Title, first_mistake
from caps.basics.files import replace_private
from caps.errors import DomainError
from caps.trust.cards import Party

MEMBER = "denied"
_STATED = re.compile(rf"^{MEMBER}\s*:(?P<rest>.*)$", re.MULTILINE)
_ITEM = re.compile(r"^(?P<indent> *)- ", re.MULTILINE)
_NOTHING = re.compile(r"\s*(\[\s*\])?\s*(#.*)?")

log = logging.getLogger("caps.trust.denials")


class Denial(Document):
    """A key that is not accepted: its pin (`caps pki show`), since when, and why, for the operator's own record."""

    pin: Hex32 = Field(description="SHA-256 of the key, 64 hexadecimal digits: `caps pki show`")
    since: Annotated[str, StringConstraints(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")] | None = Field(
        default=None, description="when it was denied"
    )
    reason: Title | None = Field(default=None, description="why, for the operator's own record")

    @field_validator("since", mode="before")
    @classmethod
    def _written(cls, value: object) -> object:
        """YAML reads a time that is not quoted as one."""
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if isinstance(value, datetime) else value


class Denials:
    """The list in a file, which follows the file. A file that does not exist denies nobody. Safe in threads."""

    def __init__(self, path: Path, *, alone: bool = False) -> None:
        """alone: whether the list is all that the file may contain, as at a party that has no other policy."""
        self._path = path
        self._alone = alone
        self._lock = Lock()
        self._seen: object = object()
        self._denied: dict[str, Denial] = {}
        self._complaint: str | None = None

    def current(self) -> Mapping[str, Denial]:
        """The denied keys by pin."""
        with self._lock:
            stamp = _stamp(self._path)
            if stamp != self._seen:
                self._read(stamp)
            return self._denied

    @property
    def complaint(self) -> str | None:
        """Why the file as it is now is not in force; None if it is."""
        self.current()
        return self._complaint

    def denies(self, pin: str) -> bool:
        """Whether a key is denied."""
        return pin in self.current()

    def objections(self, parties: Iterable[Party]) -> list[str]:
        """What is to be said against working with these parties."""
        return [f"{party.name} has a key that is denied here" for party in parties if self.denies(party.pin)]

    def _read(self, stamp: object) -> None:
        try:
            found = {one.pin: one for one in read_denials(self._path, alone=self._alone)} if stamp is not None else {}
        except DomainError as error:
            self._complaint, self._seen = str(error), stamp
            log.error(
                '{"event": "denied keys not read; the last list stays in force", "denied": %d}', len(self._denied)
            )
            return
        if stamp is None and self._denied:  # a file that vanishes is no reason to trust anybody again
            self._complaint, self._seen = f"{self._path}: it is gone", stamp
            log.error(
                '{"event": "policy is gone; the last list of denied keys stays", "denied": %d}', len(self._denied)
            )
            return
        if found != self._denied:
            log.warning('{"event": "denied keys", "denied": %d}', len(found))
        self._denied, self._seen, self._complaint = found, stamp, None


def read_denials(path: Path, *, alone: bool = False) -> list[Denial]:
    """The denied keys in a policy.yaml, which may say other things unless they must be alone. Raises DomainError."""
    text = _text(path)
    if alone and (others := sorted(map(str, _loaded(path, text).keys() - {MEMBER}))):
        raise DomainError(f"{path}: {others[0]}: only `{MEMBER}` is read here")
    return _parsed(path, text)


def revoke(path: Path, pin: str, *, since: str, reason: str | None) -> bool:
    """Add a key to the list in a policy.yaml, which is made if there is none; the rest of it stays as it is.

    Returns whether it is new. Raises DomainError if the file cannot be read or changed.
    """
    text = _text(path) if path.exists() else ""
    before = _parsed(path, text)
    if any(one.pin == pin for one in before):
        return False
    try:
        denial = Denial(pin=pin, since=since, reason=reason)
    except ValidationError as error:
        raise DomainError(first_mistake(error)) from None
    changed = _extended(path, text, yaml.safe_dump(denial.to_json(), default_flow_style=True, width=10_000).strip())
    if sorted(_parsed(path, changed), key=str) != sorted([*before, denial], key=str) or _rest(changed) != _rest(text):
        raise DomainError(f"{path}: `{MEMBER}` is written in a way that is not understood here; add the pin by hand")
    replace_private(path, changed.encode())
    return True


def _extended(path: Path, text: str, item: str) -> str:
    """The text of a policy with one item more, at the front of a list that is there already."""
    stated = _STATED.search(text)
    if stated is None:
        return f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}{MEMBER}:\n  - {item}\n"
    if _NOTHING.fullmatch(stated["rest"]) is None:
        raise DomainError(f"{path}: write `{MEMBER}` as a list with one line for each key, or add the pin by hand")
    first = _ITEM.match(text, stated.end() + 1)
    indent = "  " if first is None else first["indent"]
    return f"{text[: stated.start()]}{MEMBER}:\n{indent}- {item}{text[stated.end() :] or chr(10)}"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise DomainError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DomainError(f"{path}: not in UTF-8") from None


def _loaded(path: Path, text: str) -> dict[str, Any]:
    try:
        value = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise DomainError(f"{path}: {line}not YAML") from None
    except yaml.YAMLError:
        raise DomainError(f"{path}: not YAML") from None
    if not isinstance(value, dict | None):
        raise DomainError(f"{path}: a policy must be a list of members like `{MEMBER}: [...]`")
    return value or {}


def _rest(text: str) -> dict[str, Any]:
    return {name: value for name, value in (yaml.safe_load(text) or {}).items() if name != MEMBER}


def _parsed(path: Path, text: str) -> list[Denial]:
    listed = _loaded(path, text).get(MEMBER) or []
    if not isinstance(listed, list):
        raise DomainError(f"{path}: {MEMBER}: must be a list")
    found = []
    for place, item in enumerate(listed):
        try:
            found.append(Denial.model_validate(item))
        except ValidationError as error:
            raise DomainError(f"{path}: {MEMBER}[{place}]: {first_mistake(error)}") from None
    return found


def _stamp(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_ino, found.st_size
