"""Whose keys a manifest has: what cards and certificates say, and what they do not."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from caps.audit.parties import parties
from caps.audit.verification import verify
from caps.errors import DomainError
from caps.study import Manifest
from caps.trust import pki
from caps.trust.cards import Card
from caps.trust.home import write_certificate
from tests.kit.study import NOW, Keys, example_manifest, example_release

MANIFEST, KEYS = example_manifest()


def authority(name: str = "Ours") -> pki.Authority:
    return pki.Authority.create(name, not_before=NOW, not_after=NOW + timedelta(days=9))


def certify(folder: Path, issuer: pki.Authority, keys: Keys, role: str, name: str, of: str | None = None) -> None:
    key = keys[of or name].tls.public_key()
    uris = [pki.role_uri(role, name)]
    until = NOW + timedelta(days=1)
    issued = issuer.issue(key, subject=name, uris=uris, hosts=["localhost"], not_before=NOW, not_after=until)
    write_certificate(folder / f"{name}.pem", issued)


def write_cards(folder: Path, manifest: Manifest) -> None:
    for server in manifest.servers:
        Card(**{"role": "mpc-server", **server.to_json()}).write(folder / f"{server.name}.json")
    coordinator = manifest.coordinator.to_json()
    Card(**{"role": "coordinator", **coordinator}).write(folder / "coordinator.json")
    for holder in manifest.holders:
        members = {name: getattr(holder, name) for name in ("name", "pin", "signing_key")}
        Card(role="holder", **members).write(folder / f"{holder.name}.json")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Cards of all parties, and certificates of one authority, which is in `authority.pem` one level up."""
    cards = tmp_path / "cards"
    cards.mkdir()
    write_cards(cards, MANIFEST)
    issuer = authority()
    write_certificate(tmp_path / "authority.pem", issuer.certificate)
    for role, names in (
        ("mpc-server", [one.name for one in MANIFEST.servers]),
        ("coordinator", ["coordinator"]),
        ("holder", [one.name for one in MANIFEST.holders]),
    ):
        for name in names:
            certify(cards, issuer, KEYS, role, name)
    return cards


def checks(folder: Path) -> dict[str, tuple[bool | None, str]]:
    certificate = example_release(MANIFEST, KEYS).certificate
    found = verify(certificate, cards=folder, authority=folder.parent / "authority.pem", now=NOW)
    return {one.name: (one.passed, one.explanation) for one in found if one.name in ("cards", "authority")}


def test_keys_that_are_the_organisations_are_the_same(folder: Path) -> None:
    found = parties(MANIFEST, cards=folder, authority=folder.parent / "authority.pem")
    assert [one.name for one in found] == ["S1", "S2", "S3", "coordinator", *(one.name for one in MANIFEST.holders)]
    assert all(one.card and one.certified for one in found)
    assert [passed for passed, _ in checks(folder).values()] == [True, True]


def test_without_cards_nothing_is_said() -> None:
    assert {(one.card, one.certified) for one in parties(MANIFEST)} == {(None, None)}


@pytest.mark.parametrize("member", ["pin", "signing_key"])
def test_a_card_with_another_key_is_found(folder: Path, member: str) -> None:
    card = Card.read(folder / "S2.json")
    card.model_copy(update={member: "0" * 64}).write(folder / "S2.json")
    assert checks(folder)["cards"] == (False, "S2: not the keys on the card")
    assert checks(folder)["authority"][0] is True


def test_a_party_without_a_card_or_certificate_is_not_checked(folder: Path) -> None:
    (folder / "S3.json").unlink()
    (folder / "S3.pem").unlink()
    for name in ("cards", "authority"):
        passed, words = checks(folder)[name]
        assert passed is None
        assert "of S3 was given" in words


def test_a_certificate_of_another_authority_is_found(folder: Path) -> None:
    certify(folder, authority(), KEYS, "mpc-server", "S1")
    assert checks(folder)["authority"] == (False, "S1: not the keys that the authority certified")


def test_a_certificate_for_another_key_or_role_is_found(folder: Path) -> None:
    issuer = authority()
    write_certificate(folder.parent / "authority.pem", issuer.certificate)
    for name in ("S1", "S2", "S3"):
        certify(folder, issuer, KEYS, "mpc-server", name, of="S1")
    certify(folder, issuer, KEYS, "holder", "coordinator")
    found = {
        one.name: one.certified for one in parties(MANIFEST, cards=folder, authority=folder.parent / "authority.pem")
    }
    assert [found[name] for name in ("S1", "S2", "S3", "coordinator")] == [True, False, False, None]


def test_files_that_cannot_be_read_are_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "authority.pem").write_text("no certificate")
    with pytest.raises(DomainError, match=r"authority\.pem"):
        parties(MANIFEST, cards=folder, authority=tmp_path / "authority.pem")
    assert [passed for passed, _ in checks(folder).values()] == [False, False]
