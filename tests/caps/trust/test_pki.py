import stat
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from ipaddress import ip_address

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from caps.errors import DomainError
from caps.trust import pki

START = datetime(2030, 1, 1, tzinfo=UTC)
END = START + timedelta(days=90)
S1 = pki.role_uri("mpc-server", "S1")
NAMES = {"subject": "S1", "uris": [S1], "hosts": ["s1.example", "10.0.0.1"]}
TIMES = {"not_before": START, "not_after": END}


@pytest.fixture(scope="module")
def authority():
    return pki.Authority.create("test", **TIMES)


@pytest.fixture(scope="module")
def key():
    return pki.generate_key()


def extension(certificate, kind):
    return certificate.extensions.get_extension_for_class(kind)


def test_role_uri():
    assert S1 == "caps:mpc-server/S1"


@pytest.mark.parametrize(
    ("role", "name"), [("", "S1"), ("mpc-server", ""), ("a/b", "x"), ("holder", "x y"), ("H", "x")]
)
def test_role_uri_refuses_what_could_be_misread(role, name):
    with pytest.raises(DomainError):
        pki.role_uri(role, name)


def test_approved_certificate_says_who_and_for_what(authority, key):
    certificate = authority.approve(pki.request(key, **NAMES), **NAMES, **TIMES)
    names = extension(certificate, x509.SubjectAlternativeName).value
    assert pki.role_uris(certificate) == [S1]
    assert names.get_values_for_type(x509.DNSName) == ["s1.example"]
    assert names.get_values_for_type(x509.IPAddress) == [ip_address("10.0.0.1")]
    assert (certificate.not_valid_before_utc, certificate.not_valid_after_utc) == (START, END)
    assert set(extension(certificate, x509.ExtendedKeyUsage).value) == {
        ExtendedKeyUsageOID.CLIENT_AUTH,
        ExtendedKeyUsageOID.SERVER_AUTH,
    }
    assert extension(certificate, x509.BasicConstraints).value == x509.BasicConstraints(ca=False, path_length=None)
    usage = extension(certificate, x509.KeyUsage).value
    assert usage.digital_signature
    assert not usage.key_cert_sign
    certificate.verify_directly_issued_by(authority.certificate)


def test_chain_satisfies_an_independent_verifier(authority, key):
    certificate = authority.issue(key.public_key(), **NAMES, **TIMES)
    store = Store([authority.certificate])
    server = (
        PolicyBuilder().store(store).time(START + timedelta(days=1)).build_server_verifier(x509.DNSName("s1.example"))
    )
    assert server.verify(certificate, []) == [certificate, authority.certificate]
    late = PolicyBuilder().store(store).time(END + timedelta(days=1)).build_client_verifier()
    with pytest.raises(VerificationError):
        late.verify(certificate, [])


@pytest.mark.parametrize(
    "change", [{"uris": [pki.role_uri("mpc-server", "S2")]}, {"hosts": ["s1.example"]}, {"subject": "S2"}]
)
def test_approval_of_other_names_than_asked_for_is_refused(authority, key, change):
    with pytest.raises(DomainError):
        authority.approve(pki.request(key, **NAMES), **{**NAMES, **change}, **TIMES)


def test_forged_request_is_refused(authority, key):
    der = bytearray(pki.request(key, **NAMES).public_bytes(Encoding.DER))
    der[-1] ^= 1
    with pytest.raises(DomainError, match="not signed"):
        authority.approve(x509.load_der_x509_csr(bytes(der)), **NAMES, **TIMES)


def test_request_for_another_curve_is_refused(authority):
    asked = pki.request(ec.generate_private_key(ec.SECP384R1()), **NAMES)
    with pytest.raises(DomainError, match="P-256"):
        authority.approve(asked, **NAMES, **TIMES)


def test_request_without_names_is_refused(authority, key):
    subject = pki.request(key, **NAMES).subject
    asked = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, SHA256())
    with pytest.raises(DomainError, match="no names"):
        authority.approve(asked, **NAMES, **TIMES)


def test_times_need_a_zone(authority, key):
    with pytest.raises(DomainError):
        authority.issue(key.public_key(), **NAMES, not_before=START.replace(tzinfo=None), not_after=END)


def test_pin_is_of_the_key_and_survives_renewal(authority, key):
    first = authority.issue(key.public_key(), **NAMES, **TIMES)
    renewed = authority.issue(key.public_key(), **NAMES, not_before=END, not_after=END + timedelta(days=90))
    other = authority.issue(pki.generate_key().public_key(), **NAMES, **TIMES)
    spki = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    assert pki.spki_pin(first) == pki.spki_pin(renewed) == sha256(spki).digest()
    assert pki.spki_pin(other) != pki.spki_pin(first)


def test_files(authority, key, tmp_path):
    pki.write_key(tmp_path / "key", key)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert pki.read_key(tmp_path / "key").private_numbers() == key.private_numbers()
    with pytest.raises(FileExistsError):
        pki.write_key(tmp_path / "key", key)
    pki.write_pem(tmp_path / "pem", authority.certificate)
    assert pki.read_certificate(tmp_path / "pem") == authority.certificate


def test_key_stays_out_of_repr(authority):
    assert "key" not in repr(authority)
