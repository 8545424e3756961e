"""Party cards, which organisations give to the author of a manifest. `card.json` contains only public information."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal, Self

from pydantic import ValidationError, model_validator

from caps.basics import canonical
from caps.basics.document import Address, Document, Hex32, Name, Url
from caps.errors import DomainError
from caps.trust import pki, signing

Role = Literal["mpc-server", "coordinator", "holder"]
ROLES: tuple[Role, ...] = ("mpc-server", "coordinator", "holder")


class Party(Document):
    """An organisation's keys: SHA-256 of its TLS public key, and its Ed25519 public key."""

    name: Name
    pin: Hex32
    signing_key: Hex32


class Card(Document):
    """One party: its role, name, keys and addresses.

    url: of its REST interface; a holder has none, because it only calls others. mesh: where an MPC server's peers
    connect.
    """

    role: Role
    name: Name
    pin: Hex32
    signing_key: Hex32
    url: Url | None = None
    mesh: Address | None = None

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        """Servers and the coordinator have addresses; holders do not."""
        for member, roles in (("url", ("mpc-server", "coordinator")), ("mesh", ("mpc-server",))):
            if (getattr(self, member) is None) == (self.role in roles):
                rule = "is required" if self.role in roles else "must be left out"
                raise ValueError(f"{member}: {rule} for role {self.role}")
        return self

    @classmethod
    def of_site(cls, home: Path, *, url: str | None = None, mesh: str | None = None) -> Card:
        """The card of the party with this home. Role and name come from its certificate. Raises DomainError."""
        certificate = pki.read_certificate(home / "certificate.pem")
        roles = pki.role_uris(certificate)
        role, _, name = roles[0].removeprefix("caps:").partition("/") if len(roles) == 1 else ("", "", "")
        if role not in ROLES:
            raise DomainError(f"{home / 'certificate.pem'}: the certificate must have exactly one role")
        key = signing.read_signing_key(home / "signing-key.pem")
        card = {
            "role": role,
            "name": name,
            "pin": pki.spki_pin(certificate).hex(),
            "signing_key": signing.public_hex(key),
            "url": url,
            "mesh": mesh,
        }
        return cls.of_json(card, str(home))

    @classmethod
    def read(cls, path: Path) -> Card:
        """The card in a file. Raises DomainError with the place of the error."""
        try:
            return cls.of_json(canonical.parse(path.read_bytes()), str(path))
        except OSError as error:
            raise DomainError(f"{path}: cannot be read: {error.strerror}") from None

    @classmethod
    def of_json(cls, value: object, source: str) -> Card:
        """The card in a value of JSON. source: where it is from, for errors. Raises DomainError."""
        try:
            return cls.model_validate_json(canonical.dump(value))
        except ValidationError as error:
            first = error.errors()[0]
            place = "".join(f"{part}: " for part in first["loc"])
            raise DomainError(f"{source}: {place}{first['msg'].removeprefix('Value error, ')}") from None

    def write(self, path: Path) -> None:
        """Write the card as canonical JSON."""
        value = {name: member for name, member in self.to_json().items() if member is not None}
        path.write_bytes(canonical.dump(value) + b"\n")


def read_bundle(folder: Path) -> list[Card]:
    """All cards in a folder: its `*.json` files, and `card.json` one level below. Raises DomainError.

    Servers come first, then coordinators, then holders, each sorted by name.
    """
    paths: Iterable[Path] = sorted([*folder.glob("*.json"), *folder.glob("*/card.json")])
    cards = [Card.read(path) for path in paths]
    if not cards:
        raise DomainError(f"{folder}: there are no party cards here; each party makes one with `caps pki card`")
    seen: set[tuple[str, str]] = set()
    for card in cards:
        if (card.role, card.name) in seen:
            raise DomainError(f"{folder}: there are two cards for {card.role} {card.name}")
        seen.add((card.role, card.name))
    return sorted(cards, key=lambda card: (ROLES.index(card.role), card.name))
