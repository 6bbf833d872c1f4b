"""The protocol below the log: request the binlog from the server and split the received packets into events.

First step of the log's path. Guarantee: each event is whole and as the server sent it, checksum included, however it
was divided into packets. The only work per event is to find where the next one begins. The meaning of events is left
to ``transactions``, connecting to ``connection``, errors to ``driver_errors``.

Protocol: MySQL documentation of the source, COM_REGISTER_SLAVE, COM_BINLOG_DUMP and "Protocol::Packet".
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pymysql
from pymysql.constants import COMMAND

from dblake.ingest.source.mysql.settings import MysqlSettings

HEARTBEAT_SECONDS = 2.0
"""Interval of the server's heartbeats while it has no events to send; they distinguish an idle log from a dead
connection."""

_BUFFER_BYTES = 4 << 20
_MAX_PACKET_BYTES = 0xFFFFFF
"""The length of a packet that is continued by the next one."""
_EVENT, _ERROR = b"\0", b"\xff"
_HEAD_BYTES = 4
"""Before a packet's content: its length in 3 bytes, and its number."""
_NON_BLOCK = 1
_LENGTH = struct.Struct("<I").unpack_from
_WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class DumpEnded(Exception):
    """The server has ended the stream: with an error of this number and text, or (0) because it shuts down."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(number)
        self.number = number
        self.text = text


def start_dump(
    conn: pymysql.Connection, settings: MysqlSettings, *, file: str, offset: int, waits: bool = True
) -> None:
    """Turn a connection into a replica's, which receives the binlog's events from ``offset`` of ``file`` on.

    The offset must fit into 32 bits. Without ``waits`` the server ends the stream where its log ends. Checksums are
    requested as the file has them, so that events arrive byte for byte as written. Then their sizes add up to offsets
    in the file, and a damaged event can be detected.
    """
    period = int(HEARTBEAT_SECONDS * 1e9)
    statements = [
        "SET @source_binlog_checksum = 'CRC32', @master_binlog_checksum = 'CRC32'",
        f"SET @source_heartbeat_period = {period}, @master_heartbeat_period = {period}",
    ]
    if settings.flavour == "mariadb":
        # The highest level: the server then sends its own event types unchanged.
        statements.append("SET @mariadb_slave_capability = 4")
    with conn.cursor() as cur:
        for statement in statements:
            cur.execute(statement)
    name = f"dblake {settings.name}".encode()[:60]
    replica = struct.pack("<IB", settings.server_id, len(name)) + name + struct.pack("<BBHII", 0, 0, 0, 0, 0)
    conn._execute_command(COMMAND.COM_REGISTER_SLAVE, replica)
    conn._read_packet()
    request = struct.pack("<IHI", offset, 0 if waits else _NON_BLOCK, settings.server_id) + file.encode()
    conn._execute_command(COMMAND.COM_BINLOG_DUMP, request)


class PacketEvents:
    """The events of one read, in their packets: ``events[n]`` is one event, checksum included.

    ``data`` holds the packets, of one event each; the n-th begins at ``packets[n]``, and the last number is the end.
    The data is valid only until the next read.
    """

    HEAD_BYTES = _HEAD_BYTES + 1
    """Bytes of a packet before its event."""

    def __init__(self, data: bytes | memoryview, packets: list[int]) -> None:
        self.data, self.packets = data, packets

    @cached_property
    def bounds(self) -> npt.NDArray[np.int64]:
        """``packets`` as an array, computed once."""
        return np.array(self.packets, np.int64)

    @classmethod
    def of(cls, events: Iterable[bytes]) -> PacketEvents:
        """Return events that are in no packets, or came in several, in packets of their own."""
        packets, parts = [0], []
        for event in events:
            parts += [bytes(cls.HEAD_BYTES), event]
            packets.append(packets[-1] + cls.HEAD_BYTES + len(event))
        return cls(b"".join(parts), packets)

    def __len__(self) -> int:
        return len(self.packets) - 1

    def __iter__(self) -> Iterator[bytes]:
        return (self[number] for number in range(len(self)))

    def __getitem__(self, number: int) -> bytes:
        return bytes(self.data[self.packets[number] + PacketEvents.HEAD_BYTES : self.packets[number + 1]])


class Packets:
    """Receives events from the socket of a started dump."""

    def __init__(self, conn: pymysql.Connection) -> None:
        self._socket: socket.socket = conn._sock
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._begin = self._end = 0
        """Bounds of the bytes received that are no whole packet yet."""
        self._needed = _HEAD_BYTES
        """Bytes until the next packet, or its head, is whole."""
        self._parts: list[bytes] = []
        self._ended: DumpEnded | None = None

    def receive(self, seconds: float) -> PacketEvents | None:
        """Return the events that are available now or arrive within ``seconds``; None if no byte arrived.

        Raises DumpEnded, and OSError if the connection is lost.
        """
        if self._ended:
            raise self._ended
        self._move_rest()
        self._socket.settimeout(max(seconds, 0.0001))
        try:
            if not self._fill():
                raise DumpEnded(0, "")
        except TimeoutError:
            return None
        # Events are handled at less cost together, so take all that has arrived by now.
        self._socket.settimeout(0.0)
        try:
            while self._end < len(self._buffer) and self._fill():
                pass
        except _WOULD_BLOCK:
            pass
        return self._split() if self._end >= self._needed else PacketEvents(b"", [0])

    def _move_rest(self) -> None:
        """Move the incomplete packet to the front of the buffer, and make the buffer large enough for it."""
        rest = self._buffer[self._begin : self._end]
        if self._needed > len(self._buffer):
            self._buffer = memoryview(bytearray(self._needed))
        self._buffer[: len(rest)] = rest
        self._begin, self._end = 0, len(rest)

    def _fill(self) -> int:
        size = self._socket.recv_into(self._buffer[self._end :])
        self._end += size
        return size

    def _split(self) -> PacketEvents:
        """Return the complete events; the incomplete packet stays in the buffer."""
        data = self._buffer[: self._end]
        packets, end, last = [0], 0, len(data) - _HEAD_BYTES
        while end <= last:
            end += _HEAD_BYTES + (_LENGTH(data, end)[0] & _MAX_PACKET_BYTES)
            packets.append(end)
        self._needed = _HEAD_BYTES
        if end > len(data):
            packets.pop()
            self._needed = end - packets[-1]
        self._begin = packets[-1]
        events = PacketEvents(data, packets)
        return PacketEvents.of(self._join(data, packets)) if self._parts or not _are_single(events) else events

    def _join(self, data: memoryview, packets: list[int]) -> list[bytes]:
        """Reassemble events that span several packets; stop at the packet that ends the stream."""
        events: list[bytes] = []
        for start, stop in pairwise(packets):
            packet = bytes(data[start + _HEAD_BYTES : stop])
            self._parts.append(packet)
            if len(packet) == _MAX_PACKET_BYTES:
                continue
            packet = b"".join(self._parts)
            self._parts = []
            if packet[:1] != _EVENT:
                self._ended = _read_end(packet)
                if not events:
                    raise self._ended
                break
            events.append(packet[1:])
        return events


def _are_single(events: PacketEvents) -> bool:
    """Return True if each packet is one event."""
    sizes = np.diff(events.bounds)
    if ((sizes <= _HEAD_BYTES) | (sizes == _HEAD_BYTES + _MAX_PACKET_BYTES)).any():
        return False
    return not np.frombuffer(events.data, np.uint8)[events.bounds[:-1] + _HEAD_BYTES].any()


def _read_end(packet: bytes) -> DumpEnded:
    if packet[:1] == _ERROR:
        return DumpEnded(int.from_bytes(packet[1:3], "little"), packet[9:].decode("utf-8", "replace"))
    return DumpEnded(0, "")
