"""Ports for test servers: free, and outside the range of outgoing connections."""

from __future__ import annotations

import random
import socket

import pytest

from dblake.ingest.source.postgres.ports import free_port


def test_free_port_skips_port_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    free = free_port()
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(random, "sample", lambda population, count: [server.getsockname()[1], free])
        assert free_port() == free


def test_free_port_outside_outgoing_range() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        for _ in range(50):
            with socket.create_connection(server.getsockname()) as client:
                assert client.getsockname()[1] >= 32768 > free_port()
