"""TLS contexts of the clients that dblake is: of databases, as source or target, and of HTTP services.

Guarantee: the server's certificate and name are verified, unless the configuration wants encryption alone. The error of
a missing CA file is the caller's, who knows the configuration key.
"""

from __future__ import annotations

import ssl
from typing import Literal

Tls = Literal["verify", "require", "disable"]
"""Verify certificate and host name; encrypt only; plain text."""


def client_context(ca_file: str | None, *, is_verified: bool, is_strict: bool = True) -> ssl.SSLContext:
    """Return a context for one kind of server; without ``ca_file`` the system's certificates are trusted.

    ``is_strict`` is false for servers that generate certificates themselves: these, and many companies' own, lack what
    strict verification requires (``ssl.VERIFY_X509_STRICT``). Raises OSError, of which ssl's own errors are kinds, for
    a CA file that cannot be read.
    """
    context = ssl.create_default_context(cafile=ca_file)
    if not is_strict:
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if not is_verified:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def require_stated_protocol(url: str, tls: Tls) -> None:
    """Raise ValueError if a web address and the choice of TLS contradict each other: plain text is an explicit one."""
    if url.startswith("http://") and tls != "disable":
        raise ValueError("http:// is plain text: write https://, or set tls to disable")
    if url.startswith("https://") and tls == "disable":
        raise ValueError("https:// contradicts tls: disable: remove tls, or write http://")
