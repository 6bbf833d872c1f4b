"""Pages over HTTP: what was published is served, nothing else, and only to read."""

from __future__ import annotations

import http.client

import pytest

from dblake.base.core.errors import UsageError
from dblake.operate.status.page_server import PageServer


def request(server: PageServer, method: str, path: str, host: str = "127.0.0.1") -> tuple[int, str, bytes]:
    connection = http.client.HTTPConnection(host, server.port, timeout=10)
    connection.request(method, path)
    answer = connection.getresponse()
    return answer.status, answer.headers["Content-Type"], answer.read()


def test_page_server_serves_newest_of_what_was_published() -> None:
    with PageServer("127.0.0.1", 0) as server:
        assert request(server, "GET", "/metrics")[0] == 503
        server.publish("/metrics", "text/plain", b"old")
        server.publish("/metrics", "text/plain", b"new")
        assert request(server, "GET", "/metrics?x=1") == (200, "text/plain", b"new")
        assert request(server, "HEAD", "/metrics") == (200, "text/plain", b"")
        assert [request(server, "GET", path)[0] for path in ("/", "/../metrics")] == [404] * 2
        assert [request(server, method, "/metrics")[0] for method in ("POST", "PUT", "DELETE")] == [501] * 3


def test_port_in_use_is_named() -> None:
    with PageServer("127.0.0.1", 0) as server, pytest.raises(UsageError, match="cannot be opened"):
        PageServer("127.0.0.1", server.port)


def test_page_server_listens_on_ipv6() -> None:
    with PageServer("::1", 0) as server:
        server.publish("/metrics", "text/plain", b"new")
        assert request(server, "GET", "/metrics", "::1")[0] == 200
