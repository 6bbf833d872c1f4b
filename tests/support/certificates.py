"""TLS certificates for tests: an authority, server certificates signed by it, and self-signed certificates."""

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
    """Paths of a certificate and its private key, both PEM."""

    certificate: Path
    key: Path


def create_authority(folder: Path, name: str) -> Certificate:
    """Create a certificate authority that no other test trusts."""
    created = Certificate(folder / f"{name}.crt", folder / f"{name}.key")
    _create(created, name, [
        x509.BasicConstraints(ca=True, path_length=None),
        x509.KeyUsage(key_cert_sign=True, crl_sign=False, digital_signature=False, content_commitment=False,
                      key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
                      decipher_only=False),
    ])
    return created


def create_signed(folder: Path, host: str, by: Certificate) -> Certificate:
    """Create a server certificate, signed by ``by``, that is valid for this host only."""
    created = Certificate(folder / f"{host}.server.crt", folder / f"{host}.server.key")
    _create(created, host, [x509.SubjectAlternativeName([x509.DNSName(host)])], by)
    return created


def create_self_signed(folder: Path, host: str) -> Certificate:
    """Create a certificate for this host that is its own authority."""
    created = Certificate(folder / f"{host}.crt", folder / f"{host}.key")
    _create(created, host, [
        x509.BasicConstraints(ca=True, path_length=None), x509.SubjectAlternativeName([x509.DNSName(host)]),
    ])
    return created


def _create(
    target: Certificate, name: str, extensions: list[x509.ExtensionType], by: Certificate | None = None
) -> None:
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
    target.certificate.write_bytes(builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    target.key.write_bytes(key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ))
    target.key.chmod(0o600)
