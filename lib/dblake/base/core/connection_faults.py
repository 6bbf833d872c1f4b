"""Why a server cannot be used: the causes that drivers of databases and HTTP clients report, with what corrects them.

Place: below sources and outputs, which know whose server it is. The one place that matches the text of libpq, which has
no codes for failed connections; other clients are recognized by the exceptions of the standard library that they wrap.
Guarantee: neither cause nor next step has a value, a statement or a driver's own text.
"""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass

_REACH = "check that the server is up and reachable at {host}, then run again"
_WRONG_HOST_CODES = (62, 64)
"""OpenSSL's codes for a certificate of another host name or address."""
_PLAIN_ANSWERS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "PACKET_LENGTH")
"""Parts of OpenSSL's reasons for an answer that is not TLS."""


@dataclass(frozen=True, slots=True)
class ConnectionFault:
    """A cause, and what to do about it; ``is_permanent`` if a retry without a change fails again.

    The step names configuration keys as {host}, {user}, {password}, {database}, {tls} and {tls_ca}.
    """

    cause: str
    step: str
    is_permanent: bool = True

    def next_step(self, **keys: str) -> str:
        """Return the step with the names of the configuration's keys."""
        return self.step.format(**keys)


UNKNOWN_HOST = ConnectionFault("unknown host", "correct {host}")
UNTRUSTED = ConnectionFault(
    "the server's certificate cannot be verified", "name its CA's file in {tls_ca}, or set {tls} to require"
)
NO_CA_FILE = ConnectionFault(
    "there is no CA file to verify the server with", "name one in {tls_ca}, or set {tls} to require"
)
OTHER_HOST = ConnectionFault("the server's certificate is for another host", "correct {host}")
NO_TLS = ConnectionFault("the server does not speak TLS", "enable it on the server, or set {tls} to disable")
TLS_REQUIRED = ConnectionFault("the server requires TLS", "set {tls} to verify or require")
WRONG_PASSWORD = ConnectionFault("wrong password, or no such role", "correct {password} or {user}")
NO_PASSWORD = ConnectionFault("the server requires a password", "set {password}")
REJECTED_HOST = ConnectionFault(
    "the server's pg_hba.conf rejects this connection", "add a line for this user and host to it"
)
NO_LOGIN = ConnectionFault("the role cannot log in", "correct {user}, or allow the role to log in")
NO_CONNECT = ConnectionFault("the role may not connect to the database", "grant the role CONNECT on the database")
NO_DATABASE = ConnectionFault("the database cannot be used", "create it, or correct {database}")
UNRESOLVED = ConnectionFault("the host name cannot be resolved now", _REACH, is_permanent=False)
REFUSED = ConnectionFault("connection refused: no server listens there", _REACH, is_permanent=False)
TIMED_OUT = ConnectionFault("connection timed out", _REACH, is_permanent=False)
NO_ROUTE = ConnectionFault("no route to that host", _REACH, is_permanent=False)
NO_NETWORK = ConnectionFault("the network is unreachable", _REACH, is_permanent=False)
LOST = ConnectionFault("the connection was lost", _REACH, is_permanent=False)
BUSY = ConnectionFault("the server has reached its connection limit", _REACH, is_permanent=False)
STARTING = ConnectionFault("the server is starting up", _REACH, is_permanent=False)

_LIBPQ = (
    # Errors that pass, although their text also contains a part of one below.
    ("Temporary failure in name resolution", UNRESOLVED),
    ("too many connections for", BUSY),
    ("not currently accepting connections", STARTING),
    ("password authentication failed", WRONG_PASSWORD),
    ("no password supplied", NO_PASSWORD),
    ("pg_hba.conf", REJECTED_HOST),
    ("could not translate host name", UNKNOWN_HOST),
    ("certificate verify failed", UNTRUSTED),
    ("root certificate file", NO_CA_FILE),
    ("server certificate for", OTHER_HOST),
    ("does not support SSL", NO_TLS),
    ('role "', NO_LOGIN),
    ("CONNECT privilege", NO_CONNECT),
    ('database "', NO_DATABASE),
    ("Connection refused", REFUSED),
    ("timeout expired", TIMED_OUT),
    ("No route to host", NO_ROUTE),
    ("Network is unreachable", NO_NETWORK),
    ("too many clients", BUSY),
    ("starting up", STARTING),
    ("closed the connection", LOST),
    ("terminating connection", LOST),
    ("SSL connection has been closed", LOST),
)
"""Parts of the messages of libpq and the server, in English; the first that is contained counts."""
_ERRNO = {
    errno.ECONNREFUSED: REFUSED, errno.ETIMEDOUT: TIMED_OUT, errno.EHOSTUNREACH: NO_ROUTE,
    errno.ENETUNREACH: NO_NETWORK, errno.ECONNRESET: LOST, errno.EPIPE: LOST, errno.ECONNABORTED: LOST,
}


def libpq_fault(text: str) -> ConnectionFault | None:
    """Return what the message of a failed connection to PostgreSQL means; None for any other."""
    return next((fault for part, fault in _LIBPQ if part in text), None)


def network_fault(error: BaseException | None) -> ConnectionFault | None:
    """Return what an exception of the standard library means that an error is, wraps or follows; None without one."""
    return next((fault for one in _wrapped(error) if (fault := _fault_of(one))), None)


def _wrapped(error: BaseException | None) -> Iterator[BaseException]:
    seen = list[BaseException]()
    waiting = [error]
    while waiting:
        one = waiting.pop(0)
        if one is None or one in seen:
            continue
        seen.append(one)
        yield one
        inner = (arg for arg in one.args if isinstance(arg, BaseException))
        # PyMySQL keeps what it wraps in an attribute of its own.
        waiting += [*inner, getattr(one, "original_exception", None), one.__cause__, one.__context__]


def _fault_of(error: BaseException) -> ConnectionFault | None:
    if isinstance(error, socket.gaierror):
        return UNRESOLVED if error.errno == socket.EAI_AGAIN else UNKNOWN_HOST
    if isinstance(error, ssl.SSLCertVerificationError):
        return OTHER_HOST if error.verify_code in _WRONG_HOST_CODES else UNTRUSTED
    if isinstance(error, ssl.SSLError):
        return NO_TLS if any(part in (error.reason or "") for part in _PLAIN_ANSWERS) else LOST
    if isinstance(error, TimeoutError):
        return TIMED_OUT
    return _ERRNO.get(error.errno or 0) if isinstance(error, OSError) else None
