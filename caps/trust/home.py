"""The life of a party's keys: request by the owner, approval by the authority, installation, card and kit.

Private keys are made in the party's home and never leave it. What leaves is a request, which the authority answers with
a certificate, and a card, which studies quote. `caps.service.site` describes the layout of the home.

Time is an argument throughout, as timezone-aware datetimes.
"""

from __future__ import annotations

import io
import os
import secrets
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID

from caps.basics.files import write_private
from caps.errors import DomainError
from caps.trust import pki, signing

if TYPE_CHECKING:
    from caps.trust.cards import Card

ROLES = ("mpc-server", "holder", "coordinator")
AUTHORITY_DAYS = 3650
PARTY_DAYS = 365
SKEW = timedelta(minutes=5)
"""Certificates are valid from this much earlier, to tolerate slow clocks."""

CERTIFICATE, PRIVATE_KEY, AUTHORITY = "certificate.pem", "private-key.pem", "authority.pem"
SIGNING_KEY, REQUEST, TOKENS, POLICY, CARD = "signing-key.pem", "request.csr", "tokens.json", "policy.yaml", "card.json"
AUTHORITY_KEY = "authority-key.pem"
STORAGE_KEY = "storage-key"
"""An MPC server's key that wraps the keys of the shares it stores."""
SECRETS = (PRIVATE_KEY, SIGNING_KEY, TOKENS, STORAGE_KEY)
_INSTALLED = Path(__file__).parents[1] / "kits"
_KITS = _INSTALLED if _INSTALLED.is_dir() else Path(__file__).parents[2] / "deploy" / "party"
"""deploy/party, which a wheel contains as caps/kits."""

_README = """\
# {role} {name}

A CaPS home: point CAPS_HOME at this directory.

| file | what |
|---|---|
| certificate.pem, authority.pem | this party's certificate and its issuer's |
| card.json | the public card that studies quote: key pin, signing key, address |
{policy}| private-key.pem, signing-key.pem | the keys, made here; they never leave this party |
| tokens.json | digests of people's tokens: `caps token create` |

{keys}
"""
_WITH_KEYS = "**This kit contains private keys.** Move it only between machines of this party, then erase the copy."
_WITHOUT_KEYS = "This kit contains no private keys: add this party's two, which `caps pki request` made."


@dataclass(frozen=True)
class Names:
    """What a certificate or a request names: subject, roles, hosts, and the SHA-256 of the public key."""

    subject: str
    roles: tuple[str, ...]
    hosts: tuple[str, ...]
    pin: str

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON object."""
        return {"subject": self.subject, "roles": list(self.roles), "hosts": list(self.hosts), "pin": self.pin}


def create_authority(directory: Path, name: str, *, now: datetime, days: int = AUTHORITY_DAYS) -> pki.Authority:
    """Create an authority in `directory`; only its owner can read its key. An existing one is never replaced."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    _refuse_existing(directory / AUTHORITY_KEY)
    authority = pki.Authority.create(name, not_before=now - SKEW, not_after=_end(now, days))
    pki.write_key(directory / AUTHORITY_KEY, authority.key)
    pki.write_pem(directory / AUTHORITY, authority.certificate)
    return authority


def read_authority(directory: Path) -> pki.Authority:
    """The authority in a directory."""
    certificate = read_certificate(directory / AUTHORITY)
    return pki.Authority(certificate, pki.read_key(_existing(directory / AUTHORITY_KEY)))


def request_party(home: Path, role: str, name: str, hosts: Sequence[str]) -> Names:
    """Make a party's keys in its home, and a request for a certificate. Existing keys are kept: a renewal."""
    _known(role)
    if not hosts:
        raise DomainError("a party must have at least one host name or address")
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not (home / PRIVATE_KEY).exists():
        pki.write_key(home / PRIVATE_KEY, pki.generate_key())
    if not (home / SIGNING_KEY).exists():
        signing.write_signing_key(home / SIGNING_KEY, signing.generate_signing_key())
    if role == "mpc-server" and not (home / STORAGE_KEY).exists():
        write_private(home / STORAGE_KEY, secrets.token_bytes(32))
    key = pki.read_key(home / PRIVATE_KEY)
    asked = pki.request(key, subject=name, uris=[pki.role_uri(role, name)], hosts=hosts)
    pki.write_pem(home / REQUEST, asked)
    return names_of(asked)


def read_request(path: Path) -> x509.CertificateSigningRequest:
    """Read one PEM request."""
    try:
        return x509.load_pem_x509_csr(_existing(path).read_bytes())
    except ValueError:
        raise DomainError(f"{path}: not a certificate request") from None


def read_certificate(path: Path) -> x509.Certificate:
    """Read one PEM certificate."""
    try:
        return pki.read_certificate(_existing(path))
    except ValueError:
        raise DomainError(f"{path}: not a certificate") from None


def names_of(document: x509.Certificate | x509.CertificateSigningRequest) -> Names:
    """The names in a certificate or a request. A request's names are only what it asks for."""
    subject = document.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    try:
        names = list(document.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        names = []
    return Names(
        str(subject[0].value) if subject else "",
        tuple(sorted(str(one.value) for one in names if isinstance(one, x509.UniformResourceIdentifier))),
        tuple(sorted(str(one.value) for one in names if not isinstance(one, x509.UniformResourceIdentifier))),
        _pin(document.public_key()),
    )


def approve_request(
    authority: pki.Authority,
    asked: x509.CertificateSigningRequest,
    role: str,
    name: str,
    hosts: Sequence[str],
    *,
    now: datetime,
    days: int = PARTY_DAYS,
) -> x509.Certificate:
    """Certify a request for exactly this role, name and hosts. Raises DomainError if it asks for anything else.

    Pre-conditions: the operator has compared the request's pin with its owner's over a channel nobody else controls.
    """
    _known(role)
    end = _end(now, days)
    if end > authority.certificate.not_valid_after_utc:
        until = authority.certificate.not_valid_after_utc.date()
        raise DomainError(f"a certificate of {days} days would outlast the authority, which expires on {until}")
    uris = [pki.role_uri(role, name)]
    return authority.approve(asked, subject=name, uris=uris, hosts=hosts, not_before=now - SKEW, not_after=end)


def write_certificate(path: Path, certificate: x509.Certificate) -> None:
    """Write a certificate as PEM. A renewal replaces the existing file."""
    pki.write_pem(path, certificate)


def install(home: Path, certificate: Path, authority: Path, *, now: datetime) -> Names:
    """Install a certificate. Raises DomainError unless it is valid, fits the home's key, and matches the request."""
    issued, root = read_certificate(certificate), read_certificate(authority)
    names = names_of(issued)
    if names.pin != _pin(pki.read_key(_existing(home / PRIVATE_KEY)).public_key()):
        raise DomainError("the certificate is not for the key in this home")
    if names_of(read_request(home / REQUEST)) != names:
        raise DomainError("the certificate's names differ from those in this home's request")
    if len(pki.role_uris(issued)) != 1:
        raise DomainError("the certificate must have exactly one role")
    try:
        issued.verify_directly_issued_by(root)
    except (ValueError, TypeError, InvalidSignature):
        raise DomainError("the certificate was not issued by this authority") from None
    if not issued.not_valid_before_utc <= now < issued.not_valid_after_utc:
        start, end = issued.not_valid_before_utc, issued.not_valid_after_utc
        raise DomainError(f"the certificate is only valid from {start:%Y-%m-%d} to {end:%Y-%m-%d}")
    pki.write_pem(home / AUTHORITY, root)
    pki.write_pem(home / CERTIFICATE, issued)
    return names


def party_of(home: Path) -> tuple[str, str]:
    """Role and name of a home's party, from its certificate, or from its request if there is no certificate yet."""
    installed = (home / CERTIFICATE).exists()
    document = read_certificate(home / CERTIFICATE) if installed else read_request(home / REQUEST)
    roles = [uri for uri in names_of(document).roles if uri.startswith("caps:")]
    if len(roles) != 1:
        raise DomainError(f"{home}: the certificate or request must have exactly one role")
    role, _, name = roles[0].removeprefix("caps:").partition("/")
    return role, name


def card(home: Path, *, url: str | None = None, mesh: str | None = None) -> Card:
    """The public card of a home's party, as studies quote it. Raises DomainError."""
    from caps.trust.cards import Card

    _existing(home / CERTIFICATE)
    _existing(home / SIGNING_KEY)
    return Card.of_site(home, url=url, mesh=mesh)


def kit(home: Path, *, policy: str, with_keys: bool = False) -> dict[str, bytes]:
    """The files of a party's kit by name: its home, and how to run it with docker compose. `policy` is for a server
    whose home has none.

    Private files are only included on request. Raises DomainError unless the home is installed and has a card.
    """
    if not (home / CARD).exists():
        raise DomainError(f"{home / CARD}: there is no card yet; write it with `caps pki card`")
    role, name = party_of(home)
    files = {file: _existing(home / file).read_bytes() for file in (CERTIFICATE, AUTHORITY, CARD)}
    described = ""
    if role == "mpc-server":
        own = home / POLICY
        files[POLICY] = own.read_bytes() if own.exists() else policy.encode()
        described = "| policy.yaml | the studies in which this server takes part |\n"
    if with_keys:
        files |= {file: _existing(home / file).read_bytes() for file in (PRIVATE_KEY, SIGNING_KEY)}
        files |= {file: (home / file).read_bytes() for file in (TOKENS, STORAGE_KEY) if (home / file).exists()}
    keys = _WITH_KEYS if with_keys else _WITHOUT_KEYS
    files["README.md"] = _README.format(role=role, name=name, policy=described, keys=keys).encode()
    return {f"home/{name}": content for name, content in files.items()} | _template(role)


def _template(role: str) -> dict[str, bytes]:
    """The files that run the party with docker compose."""
    folder = _KITS / {"mpc-server": "server"}.get(role, role)
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def package(home: Path, out: Path, *, now: datetime, policy: str, with_keys: bool = False) -> list[str]:
    """Write a party's kit: a compressed tar if `out` has its suffix, else a directory. Returns its file names."""
    files = kit(home, policy=policy, with_keys=with_keys)
    _refuse_existing(out)
    if not out.name.endswith((".tar.gz", ".tgz")):
        (out / "home").mkdir(parents=True, mode=0o700)
        for name, content in files.items():
            with _create(out / name, _mode(name)) as file:
                file.write(content)
        return sorted(files)
    role, party = party_of(home)
    with _create(out, 0o600) as file, tarfile.open(fileobj=file, mode="w:gz") as tar:
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(f"caps-{role}-{party}/{name}")
            entry.size, entry.mode = len(content), _mode(name)
            entry.mtime = int(now.timestamp())
            tar.addfile(entry, io.BytesIO(content))
    return sorted(files)


def _mode(name: str) -> int:
    return 0o600 if Path(name).name in SECRETS else 0o644


def describe(path: Path) -> dict[str, Any]:
    """The contents of a certificate, a request or a card: its party, expiry and key."""
    content = _existing(path).read_bytes()
    if b"BEGIN CERTIFICATE REQUEST" in content:
        return {"kind": "request", **names_of(read_request(path)).to_json()}
    if b"BEGIN CERTIFICATE" in content:
        found = read_certificate(path)
        return {
            "kind": "certificate",
            **names_of(found).to_json(),
            "issuer": found.issuer.rfc4514_string(),
            "from": found.not_valid_before_utc.isoformat(),
            "until": found.not_valid_after_utc.isoformat(),
        }
    from caps.trust.cards import Card

    return {"kind": "card", **Card.read(path).to_json()}


def _pin(key: object) -> str:
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise DomainError("the key is not on an elliptic curve")
    return sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def _known(role: str) -> None:
    if role not in ROLES:
        raise DomainError(f"{role!r} is not a role; the roles are {', '.join(ROLES)}")


def _end(now: datetime, days: int) -> datetime:
    if days < 1:
        raise DomainError("a certificate must be valid for at least one day")
    return now + timedelta(days=days)


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise DomainError(f"{path}: there is no such file")
    return path


def _refuse_existing(path: Path) -> None:
    if path.exists():
        raise DomainError(f"{path}: already exists and is not replaced; move it away first")


def _create(path: Path, mode: int) -> io.BufferedWriter:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb")
