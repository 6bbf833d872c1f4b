"""One ZooKeeper session: connects when first asked, asks with a time limit, and explains what goes wrong in our words.

Promises: nothing waits for ever; a lost connection is made again by itself and asked again for as long as
``patience`` says, then it is an error worth another try; a session that expired is replaced by a new one without a
word, since only the lease cares, which sees that its node is gone. Messages never hold a secret or a document.
"""

from __future__ import annotations

import logging
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

from dblake.core.errors import ConfigError, LandingUnavailable
from dblake.core.zookeeper_url import ZookeeperUrl

_PASSING = (
    ConnectionLoss, SessionExpiredError, ConnectionClosedError, OperationTimeoutError, RequestTimeoutError,
    SessionMovedError, KazooTimeoutError,
)
_AGAIN_SECONDS = 1.0
"""How long it rests at most before it tries to connect again."""

# Every try to connect is a warning of the driver's own; what matters of them is said here.
logging.getLogger("kazoo").setLevel(logging.ERROR)


class Session:
    """A session with the ensemble of one place. May be used by several threads."""

    def __init__(self, place: ZookeeperUrl) -> None:
        self._place = place
        self._lock = threading.Lock()
        self._client: Any = None
        self.timeout = place.session_timeout
        """After how many seconds without a sign of life the servers end the session: what they made of our wish."""

    @property
    def patience(self) -> float:
        """For how many seconds an ensemble that does not answer is asked again."""
        return 3 * self.timeout

    def ask(self, does: Callable[[KazooClient], Any], *, once: bool = False) -> Any:
        """What the request that ``does`` starts comes to; asked again if the connection is lost, unless ``once``.

        Raises LandingUnavailable if ZooKeeper does not answer, ConfigError if it refuses us, and kazoo's own
        exceptions for what nodes there are. A request whose answer was lost may have been carried out.
        """
        if once:
            return self._ask(does)
        again = Retrying(
            retry=retry_if_exception_type(LandingUnavailable), stop=stop_after_delay(self.patience),
            wait=wait_exponential(multiplier=0.1, max=_AGAIN_SECONDS), reraise=True,
        )
        return again(self._ask, does)

    def _ask(self, does: Callable[[KazooClient], Any]) -> Any:
        client = self._connected()
        with explained(self._place):
            return does(client).get(timeout=self.timeout)

    def _connected(self) -> Any:
        with self._lock:
            if self._client is None:
                client = self._new_client()
                with explained(self._place):
                    client.start(timeout=self._place.session_timeout)
                self._client = client
            return self._client

    def _new_client(self) -> Any:
        place, secret = self._place, self._place.read_password()
        client = KazooClient(
            hosts=place.hosts, timeout=place.session_timeout,
            connection_retry=KazooRetry(max_tries=-1, max_delay=_AGAIN_SECONDS),
            auth_data=[("digest", f"{place.user}:{secret}")] if secret else None,
            default_acl=[make_digest_acl(place.user, secret, all=True)] if secret else None,
            use_ssl=place.tls != "disable", verify_certs=place.tls == "verify", check_hostname=place.tls == "verify",
            ca=place.ca or None, certfile=place.certificate or None, keyfile=place.key or None,
        )
        # What the servers grant may be less than what was wished for, and is told to nobody but the connection.
        connection = client._connection
        connect = connection._connect

        def connect_and_learn(*address: Any) -> Any:
            read_timeout, connect_timeout = connect(*address)
            self.timeout = read_timeout * 1.5 / 1000
            return read_timeout, connect_timeout

        connection._connect = connect_and_learn
        return client

    def close(self) -> None:
        """Ends the session, and with it the nodes that live as long as it does."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            with suppress(KazooException, OSError):
                client.stop()
                client.close()


@contextmanager
def explained(place: ZookeeperUrl) -> Iterator[None]:
    """Turns the driver's errors into ours, except those that say which nodes there are."""
    try:
        yield
    except _PASSING as error:
        raise LandingUnavailable(
            f"progress: ZooKeeper at {place.hosts} does not answer",
            next_step="see that the ensemble is up, has a majority and is reachable from here; then run again",
        ) from error
    except (NoAuthError, AuthFailedError, InvalidACLError) as error:
        raise ConfigError(
            f"progress: ZooKeeper at {place.hosts} does not let this user at {place.root}",
            next_step="correct user and password in `progress`, or the ACL of the nodes",
        ) from error
