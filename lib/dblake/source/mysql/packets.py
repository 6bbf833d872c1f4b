"""The wire below the log: asks the server for its binlog and takes the packets that come apart into events.

First step of the log's path. Promises each event whole and as the server sent it, checksum included, whatever the
packets it came in; the only work done per event is to find where the next one begins. What an event means is left to
``events`` and ``frames``, connecting and its errors to ``connection``.

Protocol: MySQL documentation of the source, COM_REGISTER_SLAVE, COM_BINLOG_DUMP and "Protocol::Packet".
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterable
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pymysql
from pymysql.constants import COMMAND

HEARTBEAT_SECONDS = 2.0
"""How often the server speaks while it has nothing to send, so that a dead connection is told from a quiet log."""

_ROOM = 4 << 20
_FULL = 0xFFFFFF
"""The length of a packet that is continued by the next one."""
_EVENT, _ERROR = b"\0", b"\xff"
_HEAD = 4
"""Bytes before a packet's own: its length, three of them, and its number."""
_LENGTH = struct.Struct("<I").unpack_from
_NOTHING_MORE = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class DumpEnded(Exception):
    """The server ended the stream: with an error of this number and text, or (0) because it shuts down."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(number)
        self.number = number
        self.text = text


def start_dump(conn: pymysql.Connection, *, flavour: str, server_id: int, label: str, file: str, offset: int) -> None:
    """Makes a connection a replica's: from here on only events come, from ``offset`` of ``file`` on, without end.

    The offset must be one that 32 bits hold. Checksums are asked for as the file has them: events arrive byte for
    byte as written, so that their sizes add up to places in the file and a damaged one can be told.
    """
    period = int(HEARTBEAT_SECONDS * 1e9)
    settings = [
        "SET @source_binlog_checksum = 'CRC32', @master_binlog_checksum = 'CRC32'",
        f"SET @source_heartbeat_period = {period}, @master_heartbeat_period = {period}",
    ]
    if flavour == "mariadb":
        # The highest there is: the server then sends its own event types as they are.
        settings.append("SET @mariadb_slave_capability = 4")
    with conn.cursor() as cur:
        for statement in settings:
            cur.execute(statement)
    name = label.encode()[:60]
    replica = struct.pack("<IB", server_id, len(name)) + name + struct.pack("<BBHII", 0, 0, 0, 0, 0)
    conn._execute_command(COMMAND.COM_REGISTER_SLAVE, replica)
    conn._read_packet()
    conn._execute_command(COMMAND.COM_BINLOG_DUMP, struct.pack("<IHI", offset, 0, server_id) + file.encode())


class Events:
    """Events that came together, in the packets they came in: ``events[n]`` is one of them, checksum included.

    ``data`` holds the packets, of one event each; the n-th begins at ``packets[n]``, and the last number is the end.
    It is theirs only until the next ones are received.
    """

    HEAD = _HEAD + 1
    """Bytes between the beginning of a packet and that of its event."""

    def __init__(self, data: bytes | memoryview, packets: list[int]) -> None:
        self.data, self.packets = data, packets

    @cached_property
    def bounds(self) -> npt.NDArray[np.int64]:
        """``packets`` as an array."""
        return np.array(self.packets, np.int64)

    @classmethod
    def of(cls, events: Iterable[bytes]) -> Events:
        """Events that are in no packets, or came in several."""
        packets, parts = [0], []
        for event in events:
            parts += [bytes(cls.HEAD), event]
            packets.append(packets[-1] + cls.HEAD + len(event))
        return cls(b"".join(parts), packets)

    def __len__(self) -> int:
        return len(self.packets) - 1

    def __getitem__(self, number: int) -> bytes:
        return bytes(self.data[self.packets[number] + Events.HEAD : self.packets[number + 1]])


class Packets:
    """Takes events from the socket of a started dump."""

    def __init__(self, conn: pymysql.Connection) -> None:
        self._socket: socket.socket = conn._sock
        self._room = memoryview(bytearray(_ROOM))
        self._begin = self._end = 0
        """Of what has come and is no whole packet yet."""
        self._wanted = _HEAD
        self._parts: list[bytes] = []
        self._ended: DumpEnded | None = None

    def receive(self, seconds: float) -> Events | None:
        """The events of what is there now, or comes within ``seconds``; None if nothing came, not even a part of one.

        Raises DumpEnded, and OSError if the connection is gone.
        """
        if self._ended:
            raise self._ended
        self._make_room()
        self._socket.settimeout(max(seconds, 0.0001))
        try:
            if not self._take_in():
                raise DumpEnded(0, "")
        except TimeoutError:
            return None
        # What has come meanwhile costs less if it is looked at together.
        self._socket.settimeout(0.0)
        try:
            while self._end < len(self._room) and self._take_in():
                pass
        except _NOTHING_MORE:
            pass
        return self._split() if self._end >= self._wanted else Events(b"", [0])

    def _make_room(self) -> None:
        """Brings the start of the packet that is yet to come whole to the front, with room for all of it."""
        rest = self._room[self._begin : self._end]
        if self._wanted > len(self._room):
            self._room = memoryview(bytearray(self._wanted))
        self._room[: len(rest)] = rest
        self._begin, self._end = 0, len(rest)

    def _take_in(self) -> int:
        size = self._socket.recv_into(self._room[self._end :])
        self._end += size
        return size

    def _split(self) -> Events:
        """The events that are complete; the start of the next one stays."""
        data = self._room[: self._end]
        packets, at, last = [0], 0, len(data) - _HEAD
        while at <= last:
            at += _HEAD + (_LENGTH(data, at)[0] & _FULL)
            packets.append(at)
        self._wanted = _HEAD
        if at > len(data):
            packets.pop()
            self._wanted = at - packets[-1]
        self._begin = packets[-1]
        events = Events(data, packets)
        return Events.of(self._joined(data, packets)) if self._parts or not _whole(events) else events

    def _joined(self, data: memoryview, packets: list[int]) -> list[bytes]:
        """The events of packets of which some are parts of one, or the server's last word."""
        events: list[bytes] = []
        for at, stop in pairwise(packets):
            packet = bytes(data[at + _HEAD : stop])
            self._parts.append(packet)
            if len(packet) == _FULL:
                continue
            packet = b"".join(self._parts)
            self._parts = []
            if packet[:1] != _EVENT:
                self._ended = _why(packet)
                if not events:
                    raise self._ended
                break
            events.append(packet[1:])
        return events


def _whole(events: Events) -> bool:
    """True if each packet is an event of its own."""
    sizes = np.diff(events.bounds)
    if ((sizes <= _HEAD) | (sizes == _HEAD + _FULL)).any():
        return False
    return not np.frombuffer(events.data, np.uint8)[events.bounds[:-1] + _HEAD].any()


def _why(packet: bytes) -> DumpEnded:
    if packet[:1] == _ERROR:
        return DumpEnded(int.from_bytes(packet[1:3], "little"), packet[9:].decode("utf-8", "replace"))
    return DumpEnded(0, "")
