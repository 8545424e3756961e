"""Whether the keys in a manifest are those of the organisations: compared with their cards and certificates.

A certificate of a release cannot answer this itself, because the keys are in its own manifest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from caps.errors import DomainError
from caps.study.manifest import Manifest
from caps.trust import pki
from caps.trust.cards import Card, Party, Role, read_bundle
from caps.trust.home import read_certificate


@dataclass(frozen=True, slots=True)
class PartyKeys:
    """A party of a manifest with its keys. card, certified: whether a card has the same keys, and whether the authority
    certified the pin for this role and name; None if there is no card or no certificate to tell.
    """

    role: Role
    name: str
    pin: str
    signing_key: str
    card: bool | None = None
    certified: bool | None = None


def parties(manifest: Manifest, *, cards: Path | None = None, authority: Path | None = None) -> list[PartyKeys]:
    """Every party of a manifest, compared with what is given. Raises DomainError if a file cannot be read.

    cards: a folder with cards, as `caps pki card` writes them, and certificates: `*.pem`, `*/certificate.pem`.
    authority: PEM file of the federation's authority.
    """
    known = {} if cards is None else {(card.role, card.name): card for card in read_bundle(cards)}
    root = None if authority is None else read_certificate(authority)
    issued = {} if cards is None or root is None else dict(_certificates(cards))
    return [
        PartyKeys(
            role,
            party.name,
            party.pin,
            party.signing_key,
            _same(party, known.get((role, party.name))),
            None if root is None else _certified(party, issued.get(pki.role_uri(role, party.name)), root),
        )
        for role, party in _all(manifest)
    ]


def _all(manifest: Manifest) -> Iterator[tuple[Role, Party]]:
    yield from (("mpc-server", server) for server in manifest.servers)
    yield "coordinator", manifest.coordinator
    yield from (("holder", holder) for holder in manifest.holders)


def _same(party: Party, card: Card | None) -> bool | None:
    return None if card is None else (card.pin, card.signing_key) == (party.pin, party.signing_key)


def _certificates(folder: Path) -> Iterator[tuple[str, list[x509.Certificate]]]:
    found: dict[str, list[x509.Certificate]] = {}
    for path in sorted([*folder.glob("*.pem"), *folder.glob("*/certificate.pem")]):
        try:
            certificate = read_certificate(path)
        except DomainError:
            continue  # another kind of PEM file, such as a request
        for role in pki.role_uris(certificate):
            found.setdefault(role, []).append(certificate)
    yield from found.items()


def _certified(party: Party, issued: Iterable[x509.Certificate] | None, root: x509.Certificate) -> bool | None:
    """Whether one of these certificates, which all are for this role and name, is for this key and the authority's."""
    if not issued:
        return None
    return any(pki.spki_pin(one).hex() == party.pin and _issued_by(one, root) for one in issued)


def _issued_by(certificate: x509.Certificate, root: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(root)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def differences(found: Iterable[PartyKeys], member: str) -> Mapping[str, list[str]]:
    """By verdict (`same`, `differs`, `unknown`), the parties of which `member` says so."""
    words = {True: "same", False: "differs", None: "unknown"}
    sorted_out: dict[str, list[str]] = {"same": [], "differs": [], "unknown": []}
    for one in found:
        sorted_out[words[getattr(one, member)]].append(one.name)
    return sorted_out
