"""The certificates by which the machines of CaPS authenticate each other.

A role is a SAN URI like `caps:mpc-server/S1`. A party makes its own keys and sends a request; the authority approves
what its operator states, never what the request merely asks for. Because an authority could certify anybody, peers also
compare `spki_pin`, which is in the signed study. Keys are P-256, which every browser supports.

Time is an argument throughout, as timezone-aware datetimes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from caps.basics.files import write_private
from caps.errors import DomainError

_ROLE = re.compile(r"[a-z][a-z-]*")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

PrivateKey = ec.EllipticCurvePrivateKey
PublicKey = ec.EllipticCurvePublicKey


def role_uri(role: str, name: str) -> str:
    """The SAN URI that identifies a certificate's owner, for example `caps:mpc-server/S1`."""
    if not _ROLE.fullmatch(role) or not _NAME.fullmatch(name):
        raise DomainError(f"{role!r} and {name!r} are not a valid role and name")
    return f"caps:{role}/{name}"


def role_uris(certificate: x509.Certificate) -> list[str]:
    """Every CaPS role in a certificate. To check an identity, require exactly one."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [uri for uri in names.get_values_for_type(x509.UniformResourceIdentifier) if uri.startswith("caps:")]


def spki_pin(certificate: x509.Certificate) -> bytes:
    """SHA-256 of the DER SubjectPublicKeyInfo. It identifies the key, so it survives a certificate's renewal."""
    return sha256(certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).digest()


def generate_key() -> PrivateKey:
    """A fresh P-256 key."""
    return ec.generate_private_key(ec.SECP256R1())


def request(
    key: PrivateKey, *, subject: str, uris: Sequence[str] = (), hosts: Sequence[str] = ()
) -> x509.CertificateSigningRequest:
    """Ask an authority to certify `key` for these role URIs and host names or addresses."""
    return (
        x509.CertificateSigningRequestBuilder()
        .subject_name(_common_name(subject))
        .add_extension(_alternative_names(uris, hosts), critical=False)
        .sign(key, SHA256())
    )


@dataclass(frozen=True)
class Authority:
    """A certificate authority: a self-signed certificate and its key."""

    certificate: x509.Certificate
    key: PrivateKey = field(repr=False)

    @classmethod
    def create(cls, name: str, *, not_before: datetime, not_after: datetime) -> Authority:
        """A new authority, which may certify parties but no further authorities."""
        key = generate_key()
        subject = _common_name(name)
        certificate = (
            _builder(subject, subject, key.public_key(), not_before, not_after)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(key_cert_sign=True, crl_sign=True), critical=True)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
            .sign(key, SHA256())
        )
        return cls(certificate, key)

    def issue(
        self,
        public_key: PublicKey,
        *,
        subject: str,
        uris: Sequence[str] = (),
        hosts: Sequence[str] = (),
        not_before: datetime,
        not_after: datetime,
    ) -> x509.Certificate:
        """Certify a key for both ends of TLS. Pre-conditions: the caller knows the key is the subject's."""
        issuer = self.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        return (
            _builder(_common_name(subject), self.certificate.subject, public_key, not_before, not_after)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(digital_signature=True), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]),
                critical=False,
            )
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer), critical=False)
            .add_extension(_alternative_names(uris, hosts), critical=False)
            .sign(self.key, SHA256())
        )

    def approve(
        self,
        asked: x509.CertificateSigningRequest,
        *,
        subject: str,
        uris: Sequence[str] = (),
        hosts: Sequence[str] = (),
        not_before: datetime,
        not_after: datetime,
    ) -> x509.Certificate:
        """Certify the key of a request for the names given here, if those are the names it asks for.

        Raises DomainError if the request was not signed by the key it carries, asks for other names, or is not P-256.
        """
        key = asked.public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
            raise DomainError("the request's key is not on P-256")
        try:
            key.verify(asked.signature, asked.tbs_certrequest_bytes, ec.ECDSA(SHA256()))
        except InvalidSignature:
            raise DomainError("the request is not signed by the key it carries") from None
        if asked.subject != _common_name(subject):
            raise DomainError(f"the request's subject is not {subject!r}")
        try:
            names = asked.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            raise DomainError("the request contains no names") from None
        if set(names) != set(_alternative_names(uris, hosts)):
            raise DomainError("the request's names differ from those approved")
        return self.issue(key, subject=subject, uris=uris, hosts=hosts, not_before=not_before, not_after=not_after)


def write_key(path: Path, key: PrivateKey) -> None:
    """Write a private key as PKCS #8 PEM that only its owner may read. An existing file is never overwritten."""
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    write_private(path, pem)


def read_key(path: Path) -> PrivateKey:
    """Read a private key that `write_key` wrote."""
    key = load_pem_private_key(path.read_bytes(), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise DomainError(f"{path}: not an elliptic-curve key")
    return key


def write_pem(path: Path, document: x509.Certificate | x509.CertificateSigningRequest) -> None:
    """Write a certificate or a request as PEM."""
    path.write_bytes(document.public_bytes(Encoding.PEM))


def read_certificate(path: Path) -> x509.Certificate:
    """Read one PEM certificate."""
    return x509.load_pem_x509_certificate(path.read_bytes())


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _alternative_names(uris: Sequence[str], hosts: Sequence[str]) -> x509.SubjectAlternativeName:
    if not uris and not hosts:
        raise DomainError("a certificate must have at least one URI or host")
    return x509.SubjectAlternativeName([*map(x509.UniformResourceIdentifier, uris), *map(_host, hosts)])


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: PublicKey, not_before: datetime, not_after: datetime
) -> x509.CertificateBuilder:
    if not_before.tzinfo is None or not_after.tzinfo is None:
        raise DomainError("certificate times must have a timezone")
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(not_before)
        .not_valid_after(not_after)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _key_usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
