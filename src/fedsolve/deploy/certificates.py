"""Keys and certificates: those of a trial are made here, and those at a site are read here."""

from __future__ import annotations

import hashlib
import ipaddress
import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

from fedsolve.errors import DataError

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509 import Certificate as Certificate
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError as error:
    raise DataError("deploying needs Flower: pip install 'fedsolve[flower]'") from error

DAYS = 90  # for which a certificate of the server holds
AUTHORITY_DAYS = 1825  # and that of the authority, which sites have
SOON = 21  # days before its end from which a certificate is said to end


# --- made for a trial ---


def authority() -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """A new authority: its key, and a certificate that it signed itself."""
    key, name = _key(), _name("fedsolve trial authority")
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        _builder(name, name, key, datetime.now(UTC) + timedelta(days=AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return key, builder.sign(key, hashes.SHA384())


def server_certificate(
    ca_key: ec.EllipticCurvePrivateKey, ca: x509.Certificate, host: str
) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """A key and a certificate for the host that sites know the server by, and for localhost."""
    names: list[x509.GeneralName] = []
    for name in dict.fromkeys((host, "localhost", "127.0.0.1")):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(name.strip("[]"))))
        except ValueError:
            names.append(x509.DNSName(name))
    key = _key()
    end = min(datetime.now(UTC) + timedelta(days=DAYS), ca.not_valid_after_utc)
    builder = (
        _builder(_name(host), ca.subject, key, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
    )
    return key, builder.sign(ca_key, hashes.SHA384())


def node_pair() -> tuple[str, str]:
    """A new key pair of a site's node, in OpenSSH's format: the private half, then the public one."""
    key = _key()
    private = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.OpenSSH, s.NoEncryption()).decode()
    public = key.public_key().public_bytes(s.Encoding.OpenSSH, s.PublicFormat.OpenSSH).decode()
    return private, public + "\n"


def key_text(key: ec.EllipticCurvePrivateKey) -> str:
    """A private key as PEM, without a password."""
    return key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption()).decode()


def certificate_text(certificate: x509.Certificate) -> str:
    """A certificate in the format PEM."""
    return certificate.public_bytes(s.Encoding.PEM).decode()


def _key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, end: datetime
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # clocks differ
        .not_valid_after(end)
    )


# --- read at a site or at the server ---


def public_pem(path: Path) -> str:
    """The public key in a file of OpenSSH's format, as PEM: so Flower knows it."""
    try:
        line = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} is not a public key: {error}") from error
    return check_public(line.decode(errors="replace"), str(path))


def check_public(line: str, whose: str) -> str:
    """A public key in OpenSSH's format, as PEM; refused where it is none."""
    try:
        key = s.load_ssh_public_key(line.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise DataError(f"{whose} is not a public key: {error}") from error
    return key.public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo).decode()


def public_half(path: Path) -> str:
    """The public half of the private key in a file, as PEM; refuses keys that Flower does not take."""
    return _private(path).public_key().public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo).decode()


def public_line(path: Path) -> str:
    """The same in OpenSSH's format, a line."""
    return _private(path).public_key().public_bytes(s.Encoding.OpenSSH, s.PublicFormat.OpenSSH).decode()


def _private(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = s.load_ssh_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:  # TypeError: it has a password
        raise DataError(f"{path} is not a private key in OpenSSH format without a password ({error})") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise DataError(f"{path} must be an ECDSA key on a NIST curve: ssh-keygen -t ecdsa -b 384")
    return key


def fingerprint(pem: str) -> str:
    """The first 16 digits of a public key's SHA-256."""
    return hashlib.sha256(pem.encode()).hexdigest()[:16]


def subject_and_end(path: Path) -> tuple[str, datetime]:
    """Of the last certificate in a file: whose it is, and until when it is valid."""
    last = read_all(path)[-1]
    return last.subject.rfc4514_string(), last.not_valid_after_utc


def end_of(path: Path) -> datetime:
    """Until when the last certificate in a file is valid: where there are several, it is the newest."""
    return subject_and_end(path)[1]


def read_all(path: Path) -> list[x509.Certificate]:
    """The certificates in a file; one at least."""
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise DataError(f"{path} is not a certificate ({error})") from error


def check_certificates(text: str, whose: str) -> None:
    """Refuse a text that holds no certificates."""
    try:
        x509.load_pem_x509_certificates(text.encode())
    except ValueError as error:
        raise DataError(f"{whose} holds no certificate ({error})") from error


def read_authority(key: Path, certificate: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """The key of an authority and its certificate, which belong together."""
    return _private_pem(key, ca := read_all(certificate)[0]), ca


def check_server(
    chain: Sequence[x509.Certificate], key: Path, authorities: Sequence[x509.Certificate], host: str
) -> ec.EllipticCurvePrivateKey:
    """The key of a server's certificate; refused where it does not serve: by its key, authority, name or time."""
    secret, first = _private_pem(key, chain[0]), chain[0]
    if days_left(first.not_valid_after_utc) < 0:
        raise DataError(
            f"the certificate ended on {first.not_valid_after_utc:%Y-%m-%d}; ask your authority for another"
        )
    if not _issued(chain, authorities):
        raise DataError("the certificate is not signed by an authority of ca.crt, which sites know; see --authority")
    try:
        told = first.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        names = [*told.get_values_for_type(x509.DNSName), *map(str, told.get_values_for_type(x509.IPAddress))]
    except x509.ExtensionNotFound:
        names = []
    if host.strip("[]") not in names:
        raise DataError(f"the certificate is for {', '.join(names) or 'no name'}, and sites reach the server as {host}")
    return secret


def _issued(chain: Sequence[x509.Certificate], authorities: Sequence[x509.Certificate]) -> bool:
    """Whether each certificate is signed by the next, and the last one by an authority."""

    def signed(child: x509.Certificate, parent: x509.Certificate) -> bool:
        try:
            child.verify_directly_issued_by(parent)
        except (ValueError, TypeError, InvalidSignature):
            return False
        return True

    inner = all(signed(child, parent) for child, parent in pairwise(chain))
    return inner and any(signed(chain[-1], authority) for authority in authorities)


def _private_pem(path: Path, certificate: x509.Certificate) -> ec.EllipticCurvePrivateKey:
    """The private key in a file, which must be that of a certificate."""
    try:
        key = s.load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise DataError(f"{path} is not a private key without a password ({error})") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise DataError(f"{path} is not the key of the certificate beside it, or none on an elliptic curve")
    return key


def authority_fingerprint(authorities: Sequence[x509.Certificate]) -> str:
    """A short text that is the same wherever the same authorities are trusted: to compare by telephone."""
    digests = sorted(each.fingerprint(hashes.SHA256()) for each in authorities)
    digits = hashlib.sha256(b"".join(digests)).hexdigest()[:32]
    return " ".join(digits[start : start + 4] for start in range(0, len(digits), 4))


def days_left(end: datetime) -> int:
    """Whole days until then; negative where it is past."""
    return math.floor((end - datetime.now(UTC)) / timedelta(days=1))


def same_certificate(pem: str, path: Path) -> bool:
    """Whether a certificate is the first one in a file."""
    return x509.load_pem_x509_certificate(pem.encode()) == read_all(path)[0]
