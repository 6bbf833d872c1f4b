"""Rows of a query's result as the packets that the server sent, undecoded and many at a time.

The driver sends the query and reads the description of the columns. From there on the packets are split by their
lengths alone: the only work per row is to find its end. A row of 16 MiB or more, which spans several packets, is
joined. Protocol: MySQL documentation of the source, "Protocol::Packet" and "Text Resultset".
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pymysql
from pymysql.connections import MySQLResult
from pymysql.constants import COMMAND, CR

_BUFFER_BYTES = 2 << 20
_HEADER_BYTES = 4
_MAX_PACKET_BYTES = 0xFFFFFF
"""The length of a packet that is continued by the next one."""
_EOF, _ERROR = 0xFE, 0xFF
"""First bytes of packets that are not rows: no row that fits into the buffer begins with either."""
_NULL = 0xFB
"""First byte of a value that is NULL; smaller ones are lengths, greater ones announce lengths of more bytes."""


class ResultRows:
    """Reads results on one connection; ``rows`` and ``last`` describe the latest one."""

    def __init__(self, conn: pymysql.Connection) -> None:
        self._connection = conn
        self._buffer = bytearray(_BUFFER_BYTES)
        self.rows = 0
        self.last = b""
        """The last row's packet, empty if there was none."""

    def read(self, query: str, deliver: Callable[[pa.BinaryArray], None]) -> None:
        """Run a query and deliver its rows as they arrive. A failure leaves the connection unusable."""
        self.rows, self.last = 0, b""
        conn = self._connection
        conn._execute_command(COMMAND.COM_QUERY, query)
        head = MySQLResult(conn)
        head.init_unbuffered_query()
        # The rest of the result is read here, not by the driver.
        head.unbuffered_active = False
        self._file = conn._rfile
        self._bounds = [0]
        # The driver's read-ahead first; after that its buffer is empty, and the socket is read past it.
        ahead = self._file.read1(len(self._buffer))
        self._buffer[: len(ahead)] = ahead
        self._filled = 0
        has_ended = self._split(len(ahead))
        while not has_ended:
            if self._filled == len(self._buffer):
                self._deliver(deliver)
                if self._filled == len(self._buffer):
                    self._read_long_row(deliver)
            has_ended = self._split(self._file.raw.readinto(memoryview(self._buffer)[self._filled :]))
        self._deliver(deliver)

    def _split(self, count: int) -> bool:
        """Find the packets in ``count`` more bytes. Returns True once the result has ended."""
        if not count:
            raise _connection_lost()
        self._filled += count
        buffer, filled, bounds = self._buffer, self._filled, self._bounds
        length_at, append = struct.Struct("<I").unpack_from, bounds.append
        position, count_before, last = bounds[-1], len(bounds), filled - _HEADER_BYTES
        while position <= last:
            end = position + _HEADER_BYTES + (length_at(buffer, position)[0] & _MAX_PACKET_BYTES)
            if end > filled:
                break
            append(end)
            position = end
        return len(bounds) > count_before and self._has_ended()

    def _has_ended(self) -> bool:
        """Return True if the last packet ends the result; nothing follows such a packet. Raises the server's error."""
        start = self._bounds[-2] + _HEADER_BYTES
        first = self._buffer[start]
        if first < _EOF:
            return False
        if first == _ERROR:
            pymysql.err.raise_mysql_exception(bytes(self._buffer[start : self._bounds[-1]]))
        self._bounds.pop()
        return True

    def _deliver(self, deliver: Callable[[pa.BinaryArray], None]) -> None:
        """Deliver the whole rows in the buffer; the rest moves to its beginning."""
        bounds = np.frombuffer(array("i", self._bounds), np.int32)
        count, end = len(bounds) - 1, int(bounds[-1])
        if count:
            # Headers alternate with rows: every second packet is a row.
            offsets = np.empty(2 * count + 1, np.int32)
            offsets[::2] = bounds
            offsets[1::2] = bounds[:-1] + _HEADER_BYTES
            packets = pa.BinaryArray.from_buffers(
                pa.binary(), 2 * count, [None, pa.py_buffer(offsets), pa.py_buffer(self._buffer)]
            )
            rows = packets.take(pa.array(np.arange(1, 2 * count, 2, dtype=np.int32)))
            self.rows += count
            self.last = bytes(self._buffer[int(offsets[-2]) : end])
            deliver(rows)
        self._filled -= end
        self._buffer[: self._filled] = self._buffer[end : end + self._filled]
        self._bounds = [0]

    def _read_long_row(self, deliver: Callable[[pa.BinaryArray], None]) -> None:
        """Deliver the row that fills the buffer and exceeds it, alone."""
        length = int.from_bytes(self._buffer[:3], "little")
        row = self._buffer[_HEADER_BYTES:] + self._read_exactly(length - (len(self._buffer) - _HEADER_BYTES))
        while length == _MAX_PACKET_BYTES:
            length = int.from_bytes(self._read_exactly(_HEADER_BYTES)[:3], "little")
            row += self._read_exactly(length)
        self._filled = 0
        self.rows += 1
        self.last = bytes(row)
        deliver(pa.array([self.last], pa.binary()))

    def _read_exactly(self, count: int) -> bytes:
        # Past the driver's buffer, which would read ahead.
        data = bytearray(count)
        rest = memoryview(data)
        while rest:
            read = self._file.raw.readinto(rest)
            if not read:
                raise _connection_lost()
            rest = rest[read:]
        return bytes(data)


def split_values(packet: bytes) -> list[bytes | None]:
    """Return a row's values as the server wrote them; None is NULL."""
    values: list[bytes | None] = []
    position = 0
    while position < len(packet):
        first = packet[position]
        position += 1
        if first == _NULL:
            values.append(None)
            continue
        width = {0xFC: 2, 0xFD: 3, 0xFE: 8}.get(first, 0)
        length = int.from_bytes(packet[position : position + width], "little") if width else first
        position += width
        values.append(packet[position : position + length])
        position += length
    return values


def _connection_lost() -> Any:
    return pymysql.err.OperationalError(CR.CR_SERVER_LOST, "the connection ended in the middle of a result")
