"""Certificates for tests: an authority, servers' certificates that it signs, and ones that sign themselves."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate and its key, as files in PEM."""

    certificate: Path
    key: Path


def authority(folder: Path, name: str) -> Certificate:
    """A CA that nothing else trusts."""
    made = Certificate(folder / f"{name}.crt", folder / f"{name}.key")
    _create(made, name, [
        x509.BasicConstraints(ca=True, path_length=None),
        x509.KeyUsage(key_cert_sign=True, crl_sign=False, digital_signature=False, content_commitment=False,
                      key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
                      decipher_only=False),
    ])
    return made


def signed(folder: Path, host: str, by: Certificate) -> Certificate:
    """A server's certificate, for this host and no other."""
    made = Certificate(folder / f"{host}.server.crt", folder / f"{host}.server.key")
    _create(made, host, [x509.SubjectAlternativeName([x509.DNSName(host)])], by)
    return made


def self_signed(folder: Path, host: str) -> Certificate:
    """A certificate for this host that is its own authority."""
    made = Certificate(folder / f"{host}.crt", folder / f"{host}.key")
    _create(made, host, [
        x509.BasicConstraints(ca=True, path_length=None), x509.SubjectAlternativeName([x509.DNSName(host)]),
    ])
    return made


def _create(made: Certificate, name: str, extensions: list[x509.ExtensionType], by: Certificate | None = None) -> None:
    key = signer = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    subject = issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    if by is not None:
        signer = serialization.load_pem_private_key(by.key.read_bytes(), None)  # type: ignore[assignment]
        issuer = x509.load_pem_x509_certificate(by.certificate.read_bytes()).subject
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
        .serial_number(x509.random_serial_number()).not_valid_before(now - _DAY).not_valid_after(now + _DAY)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    for extension in extensions:
        critical = isinstance(extension, x509.BasicConstraints | x509.KeyUsage)
        builder = builder.add_extension(extension, critical=critical)
    made.certificate.write_bytes(builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    made.key.write_bytes(key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ))
    made.key.chmod(0o600)
