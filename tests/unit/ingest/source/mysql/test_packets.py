"""Packets on the wire become events, however they are cut."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from dblake.ingest.source.mysql.packets import DumpEnded, Packets
from tests.support.certificates import Certificate, create_authority, create_signed
from tests.unit.ingest.source.mysql.binlog import packet

EVENTS = [b"a" * 40, b"b", b"c" * 300_000, b"d" * 19]
BYTES = b"".join(packet(b"\0" + event) for event in EVENTS)


class Wire:
    """Both ends of a connection."""

    def __init__(self, tls: Certificate | None = None) -> None:
        self.server, client = socket.socketpair()
        if tls:
            self.server, client = encrypted(self.server, client, tls)
        self.client = client
        self.packets = Packets(SimpleNamespace(_sock=client))

    def some(self) -> list[bytes]:
        """Return what arrives within a second."""
        came = self.packets.receive(1.0)
        assert came is not None
        return list(came)

    def all(self, count: int) -> list[bytes]:
        found: list[bytes] = []
        while len(found) < count:
            came = self.packets.receive(5.0)
            assert came is not None, "nothing comes any more"
            found += came
        return found

    def send(self, data: bytes) -> None:
        threading.Thread(target=self.server.sendall, args=(data,), daemon=True).start()


def encrypted(
    server: socket.socket, client: socket.socket, certificate: Certificate
) -> tuple[socket.socket, socket.socket]:
    """Return both ends after the TLS handshake."""
    of_server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    of_server.load_cert_chain(certificate.certificate, certificate.key)
    trusting = ssl.create_default_context(cafile=str(certificate.certificate.parent / "ca.crt"))
    with ThreadPoolExecutor(1) as other:
        accepted = other.submit(of_server.wrap_socket, server, server_side=True)
        connected = trusting.wrap_socket(client, server_hostname="wire")
        return accepted.result(), connected


@pytest.fixture
def wire() -> Iterator[Wire]:
    wire = Wire()
    yield wire
    wire.server.close()
    wire.client.close()


@pytest.mark.parametrize("size", [1, 3, 5, 44, 45, 46, 10_000])
def test_receive_bytes_cut_anywhere_yields_whole_events(wire: Wire, size: int) -> None:
    short = [event for event in EVENTS if len(event) < 1000] * 3
    data = b"".join(packet(b"\0" + event) for event in short)
    found: list[bytes] = []
    for at in range(0, len(data), size):
        wire.server.sendall(data[at : at + size])
        found += wire.packets.receive(5.0) or ()
    assert found == short


def test_receive_long_event_complete(wire: Wire) -> None:
    wire.send(BYTES)
    assert wire.all(4) == EVENTS


def test_receive_over_tls(tmp_path: Path) -> None:
    wire = Wire(create_signed(tmp_path, "wire", create_authority(tmp_path, "ca")))
    assert wire.packets.receive(0.05) is None
    wire.send(BYTES * 40)
    assert wire.all(160) == EVENTS * 40
    assert wire.packets.receive(0.05) is None
    wire.server.close()
    wire.client.close()


@pytest.mark.parametrize("size", [0xFFFFFF - 2, 0xFFFFFF - 1, 0xFFFFFF, 2 * 0xFFFFFF - 1, 2 * 0xFFFFFF + 5])
def test_receive_event_of_several_packets_joined(wire: Wire, size: int) -> None:
    long = b"x" * (size - 5) + b"12345"
    wire.send(packet(b"\0" + long) + packet(b"\0next"))
    assert wire.all(2) == [long, b"next"]


def test_receive_timeout_none_and_partial_event_empty(wire: Wire) -> None:
    assert wire.packets.receive(0.05) is None
    wire.server.sendall(BYTES[:20])
    assert wire.some() == []
    wire.server.sendall(BYTES[20:60])
    assert wire.some() == [EVENTS[0], EVENTS[1]]


def test_receive_error_raised_after_preceding_events(wire: Wire) -> None:
    wire.server.sendall(packet(b"\0last") + packet(b"\xff\xd4\x04#HY000Could not find"))
    assert wire.some() == [b"last"]
    for _ in range(2):
        with pytest.raises(DumpEnded) as ended:
            wire.packets.receive(1.0)
        assert (ended.value.number, ended.value.text) == (1236, "Could not find")


@pytest.mark.parametrize("data", [packet(b"\xfe\0\0\x02\0"), b""])
def test_receive_end_of_stream_raises_dump_ended(wire: Wire, data: bytes) -> None:
    wire.server.sendall(data)
    wire.server.shutdown(socket.SHUT_WR)
    with pytest.raises(DumpEnded) as ended:
        wire.packets.receive(1.0)
    assert ended.value.number == 0
