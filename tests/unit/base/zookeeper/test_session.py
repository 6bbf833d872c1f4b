"""The internals of kazoo that a session relies on to learn the time-out that the servers grant.

``Session`` wraps ``client._connection._connect``, for which kazoo has no public replacement. A new version of kazoo
that changes one of these internals fails here, not in production.
"""

from __future__ import annotations

import inspect
import socket
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss
from kazoo.protocol.connection import ConnectionHandler

from dblake.base.core.errors import ProgressUnavailable
from dblake.base.core.zookeeper_url import ZookeeperUrl
from dblake.base.zookeeper.session import Session, mapped_errors

SERVER = ZookeeperUrl.parse("zookeeper://127.0.0.1:1/x?session_timeout=10")


def test_kazoo_client_has_connection_with_connect_method() -> None:
    connection = KazooClient(hosts=SERVER.hosts)._connection
    assert isinstance(connection, ConnectionHandler)
    assert list(inspect.signature(connection._connect).parameters) == ["host", "hostip", "port"]


def test_kazoo_connects_through_replaceable_method() -> None:
    """The connection calls ``self._connect`` and uses its result, so a replaced attribute is called."""
    source = inspect.getsource(ConnectionHandler)
    assert source.count("read_timeout, connect_timeout = self._connect(") == 1


def test_kazoo_read_timeout_is_two_thirds_of_granted_one() -> None:
    source = inspect.getsource(ConnectionHandler._connect)
    assert "read_timeout = negotiated_session_timeout * 2.0 / 3.0" in source
    assert "return read_timeout, connect_timeout" in source


@pytest.mark.parametrize("granted", [4.0, 10.0])
def test_session_timeout_follows_granted_one(monkeypatch: pytest.MonkeyPatch, granted: float) -> None:
    """The servers grant a time-out in seconds; kazoo returns two thirds of it in milliseconds."""
    address: list[Any] = []

    def connect(*arguments: Any) -> tuple[float, float]:
        address.extend(arguments)
        return granted * 1000 * 2 / 3, granted * 1000

    session = Session(SERVER)
    client = SimpleNamespace(_connection=SimpleNamespace(_connect=connect))
    session._track_timeout(client)
    assert session.timeout == 10.0
    assert client._connection._connect("host", "127.0.0.1", 1) == (granted * 1000 * 2 / 3, granted * 1000)
    assert address == ["host", "127.0.0.1", 1]
    assert session.timeout == pytest.approx(granted)


def test_unreachable_server_is_named_with_its_cause() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        for hosts, cause in (
            ("127.0.0.1:1", "connection refused"), ("no.such.host.invalid:2181", "host"),
            (f"127.0.0.1:{port}", "it accepts connections but no session"),
        ):
            server = ZookeeperUrl.parse(f"zookeeper://{hosts}/x")
            with pytest.raises(ProgressUnavailable, match=f"ZooKeeper at {hosts} does not answer: .*{cause}"), \
                    mapped_errors(server):
                raise ConnectionLoss
