"""Trust the private certificate authority of a store, in delta-rs, Arrow and Spark alike.

Place: below ``storage``. Guarantee: a client trusts the authority in addition to the system's, not instead of them, so
no other connection of the process fails for it. delta-rs has no option of its own for it, only ``SSL_CERT_FILE`` of
the whole process, which Python's connections that use the system's authorities read, too.
"""

from __future__ import annotations

import atexit
import os
import shutil
import ssl
import tempfile
import warnings
from functools import cache
from pathlib import Path

from dblake.base.core.errors import ConfigError

#: The Java trust store has no secrets; Java wants a password for it.
TRUST_STORE_PASSWORD = "changeit"  # noqa: S105


def read_authority(file: str) -> str:
    """Return the certificates in a PEM file. Raises ConfigError if it cannot be read or holds none."""
    try:
        text = Path(file).read_text(encoding="ascii")
        ssl.create_default_context(cadata=text)
    except (ssl.SSLError, ValueError) as error:
        raise _unusable(file, "it holds no certificate") from error
    except OSError as error:
        raise _unusable(file, error.strerror) from error
    return text


def _unusable(file: str, reason: str | None) -> ConfigError:
    return ConfigError(
        f"storage.ca: the file {file} cannot be used: {reason}", next_step="name a PEM file with the authority"
    )


@cache
def bundle(authority: str) -> str:
    """Return the path of a PEM file with the system's certificates and these."""
    # As Python finds them, which includes those that the user gave in SSL_CERT_FILE.
    system = ssl.create_default_context().get_ca_certs(binary_form=True)
    path = _folder() / f"{abs(hash(authority))}.pem"
    path.write_text("".join([*map(ssl.DER_cert_to_PEM_cert, system), authority]), encoding="ascii")
    return str(path)


@cache
def trust_store(authority: str) -> str:
    """Return the path of a Java trust store with the same certificates."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12
    from cryptography.utils import CryptographyDeprecationWarning

    file = Path(bundle(authority))
    with warnings.catch_warnings():
        # Some of the system's certificates have odd serial numbers.
        warnings.simplefilter("ignore", CryptographyDeprecationWarning)
        certificates = x509.load_pem_x509_certificates(file.read_bytes())
    named = [pkcs12.PKCS12Certificate(one, f"{number}".encode()) for number, one in enumerate(certificates)]
    path = file.with_suffix(".p12")
    password = BestAvailableEncryption(TRUST_STORE_PASSWORD.encode())
    path.write_bytes(pkcs12.serialize_java_truststore(named, password))
    return str(path)


def trust_in_process(authority: str) -> None:
    """Make delta-rs trust an authority from now on."""
    os.environ["SSL_CERT_FILE"] = bundle(authority)


@cache
def _folder() -> Path:
    folder = tempfile.mkdtemp(prefix="dblake-ca-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
