"""One ZooKeeper session: connects at the first request, bounds every request in time, and maps the client's errors.

Guarantees: no call blocks without a limit; a lost connection is reopened and the request retried for as long as
``patience_seconds``, then it is a retryable error; an expired session is replaced silently, because only the lease
depends on it and detects that its node is gone. Messages never hold a secret or a document.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionClosedError,
    ConnectionLoss,
    InvalidACLError,
    KazooException,
    NoAuthError,
    OperationTimeoutError,
    RequestTimeoutError,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.retry import KazooRetry
from kazoo.security import make_digest_acl
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential

from dblake.base.core.connection_faults import network_fault
from dblake.base.core.errors import ConfigError, ProgressUnavailable
from dblake.base.core.zookeeper_url import ZookeeperUrl

_TRANSIENT = (
    ConnectionLoss, SessionExpiredError, ConnectionClosedError, OperationTimeoutError, RequestTimeoutError,
    SessionMovedError, KazooTimeoutError,
)
_PROBE_SECONDS = 0.5
_MAX_PAUSE_SECONDS = 1.0
"""The maximum pause between two attempts to connect."""
_PATIENCE_TIMEOUTS = 3
_READ_TIMEOUT_FRACTION = 1.5
"""kazoo's read time-out is two thirds of the session's time-out; this turns it back."""

# The client warns at every attempt to connect; our own messages report what matters.
logging.getLogger("kazoo").setLevel(logging.ERROR)


class Session:
    """A session with one ensemble. Several threads may use it.

    ``timeout`` is the session's time-out in seconds: the requested one, then the one that the servers grant.
    """

    def __init__(self, server: ZookeeperUrl) -> None:
        self._server = server
        self._lock = threading.Lock()
        self._client: Any = None
        self.timeout = server.session_timeout

    @property
    def patience_seconds(self) -> float:
        """How long a request is retried while the ensemble does not answer, in seconds."""
        return _PATIENCE_TIMEOUTS * self.timeout

    def request(self, start: Callable[[KazooClient], Any], *, once: bool = False) -> Any:
        """Return the result of the asynchronous request that ``start`` starts; retry it unless ``once``.

        Raises ProgressUnavailable if ZooKeeper does not answer, ConfigError if it denies access, and kazoo's own
        exceptions about nodes. A request whose response was lost may have been executed.
        """
        if once:
            return self._request(start)
        retry = Retrying(
            retry=retry_if_exception_type(ProgressUnavailable), stop=stop_after_delay(self.patience_seconds),
            wait=wait_exponential(multiplier=0.1, max=_MAX_PAUSE_SECONDS), reraise=True,
        )
        return retry(self._request, start)

    def _request(self, start: Callable[[KazooClient], Any]) -> Any:
        client = self._connect()
        with mapped_errors(self._server):
            return start(client).get(timeout=self.timeout)

    def _connect(self) -> Any:
        with self._lock:
            if self._client is None:
                client = self._new_client()
                with mapped_errors(self._server):
                    client.start(timeout=self._server.session_timeout)
                self._client = client
            return self._client

    def _new_client(self) -> Any:
        server, secret = self._server, self._server.read_password()
        client = KazooClient(
            hosts=server.hosts, timeout=server.session_timeout,
            connection_retry=KazooRetry(max_tries=-1, max_delay=_MAX_PAUSE_SECONDS),
            auth_data=[("digest", f"{server.user}:{secret}")] if secret else None,
            default_acl=[make_digest_acl(server.user, secret, all=True)] if secret else None,
            use_ssl=server.tls != "disable", verify_certs=server.tls == "verify", check_hostname=server.tls == "verify",
            ca=server.ca or None, certfile=server.certificate or None, keyfile=server.key or None,
        )
        self._track_timeout(client)
        return client

    def _track_timeout(self, client: Any) -> None:
        """Set ``timeout`` to what the servers grant, at every connect; they may grant less than requested.

        kazoo has no public way: its connection handler computes the read time-out from the granted one and passes it
        to no one else. ``tests/unit/base/zookeeper/test_session.py`` pins the internals used here.
        """
        connection = client._connection
        connect = connection._connect

        def connect_and_track(*address: Any) -> Any:
            read_timeout_ms, connect_timeout = connect(*address)
            self.timeout = read_timeout_ms * _READ_TIMEOUT_FRACTION / 1000
            return read_timeout_ms, connect_timeout

        connection._connect = connect_and_track

    def close(self) -> None:
        """Close the session; its ephemeral nodes are deleted with it."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            with suppress(KazooException, OSError):
                client.stop()
                client.close()


@contextmanager
def mapped_errors(server: ZookeeperUrl) -> Iterator[None]:
    """Turn the client's errors into ours, except those about nodes."""
    try:
        yield
    except _TRANSIENT as error:
        raise ProgressUnavailable(
            f"ZooKeeper at {server.hosts} does not answer: {_find_cause(server)}",
            next_step="check that the ensemble is up, has a majority and is reachable from here; then run this again",
        ) from error
    except (NoAuthError, AuthFailedError, InvalidACLError) as error:
        raise ConfigError(
            f"ZooKeeper at {server.hosts}: access denied for this user at {server.root}",
            next_step="correct user and password in its URL (`progress`, `checkpoint` or `group`), or the ACL of nodes",
        ) from error


def _find_cause(server: ZookeeperUrl) -> str:
    """Return why servers cannot be reached, by a connection to each: the client keeps its causes to itself."""
    causes = list[str]()
    for address in server.hosts.split(","):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _PROBE_SECONDS).close()
        except OSError as error:
            fault = network_fault(error)
            causes.append(fault.cause if fault else "no connection")
        else:
            causes.append("it accepts connections but no session, as without a majority or with other TLS settings")
    return "; ".join(dict.fromkeys(causes))
