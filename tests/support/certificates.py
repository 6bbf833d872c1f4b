"""Certificates for tests: an authority, and servers' certificates that it signs."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate and its key, as files in PEM."""

    certificate: Path
    key: Path


def authority(folder: Path, name: str) -> Certificate:
    """A CA that nobody else knows."""
    made = Certificate(folder / f"{name}.crt", folder / f"{name}.key")
    _openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}",
             "-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign",
             "-keyout", made.key, "-out", made.certificate)
    return made


def signed(folder: Path, host: str, by: Certificate) -> Certificate:
    """A server's certificate, for this host and no other."""
    made = Certificate(folder / f"{host}.server.crt", folder / f"{host}.server.key")
    request, extensions = folder / f"{host}.csr", folder / f"{host}.ext"
    extensions.write_text(f"subjectAltName=DNS:{host}\n", encoding="ascii")
    _openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={host}", "-keyout", made.key, "-out", request)
    _openssl("x509", "-req", "-in", request, "-CA", by.certificate, "-CAkey", by.key, "-CAcreateserial", "-days", "2",
             "-extfile", extensions, "-out", made.certificate)
    return made


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
