"""The wire below the log: asks the server for its binlog and takes the packets that come apart into events.

First step of the log's path. Promises each event whole and as the server sent it, checksum included, whatever the
packets it came in; work is done per event and per read of the socket, never per row. What an event means is left to
``events`` and ``frames``, connecting and its errors to ``connection``.

Protocol: MySQL documentation of the source, COM_REGISTER_SLAVE, COM_BINLOG_DUMP and "Protocol::Packet".
"""

from __future__ import annotations

import socket
import struct

import pymysql
from pymysql.constants import COMMAND

HEARTBEAT_SECONDS = 2.0
"""How often the server speaks while it has nothing to send, so that a dead connection is told from a quiet log."""

_ROOM = 1 << 20
_FULL = 0xFFFFFF
"""The length of a packet that is continued by the next one."""
_OK, _ERROR = 0x00, 0xFF
_LENGTH = struct.Struct("<I")


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


class Packets:
    """Takes events from the socket of a started dump."""

    def __init__(self, conn: pymysql.Connection) -> None:
        self._socket: socket.socket = conn._sock
        self._room = bytearray(_ROOM)
        self._end = 0
        self._wanted = 4
        self._parts: list[bytes] = []
        self._ended: DumpEnded | None = None

    def receive(self, seconds: float) -> list[bytes] | None:
        """The events of what is there now, or comes within ``seconds``; None if nothing came, not even a part of one.

        Raises DumpEnded, and OSError if the connection is gone.
        """
        if self._ended:
            raise self._ended
        if self._wanted > len(self._room):
            self._room.extend(bytes(self._wanted - len(self._room)))
        self._socket.settimeout(max(seconds, 0.0001))
        try:
            with memoryview(self._room) as view:
                size = self._socket.recv_into(view[self._end :])
        except TimeoutError:
            return None
        if size == 0:
            raise DumpEnded(0, "")
        self._end += size
        return self._split() if self._end >= self._wanted else []

    def _split(self) -> list[bytes]:
        """The events that are complete; the start of the next one stays."""
        data = bytes(memoryview(self._room)[: self._end])
        end, at = self._end, 0
        events: list[bytes] = []
        length_at = _LENGTH.unpack_from
        while True:
            if end - at < 4:
                self._wanted = 4
                break
            size = length_at(data, at)[0] & _FULL
            stop = at + 4 + size
            if stop > end:
                self._wanted = 4 + size
                break
            if size == _FULL or self._parts:
                self._parts.append(data[at + 4 : stop])
                if size < _FULL:
                    events.append(_event(b"".join(self._parts)))
                    self._parts = []
            elif data[at + 4] == _OK:
                events.append(data[at + 5 : stop])
            else:
                self._ended = _why(data[at + 4 : stop])
                if not events:
                    raise self._ended
                break
            at = stop
        self._room[: end - at] = data[at:end]
        self._end = end - at
        return events


def _event(packet: bytes) -> bytes:
    if packet[0] != _OK:
        raise _why(packet)
    return packet[1:]


def _why(packet: bytes) -> DumpEnded:
    if packet[0] == _ERROR:
        return DumpEnded(int.from_bytes(packet[1:3], "little"), packet[9:].decode("utf-8", "replace"))
    return DumpEnded(0, "")
