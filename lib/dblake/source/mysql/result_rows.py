"""The rows of a query's result as the packets the server sent, undecoded and many at a time.

The driver sends the query and reads the description of the columns; from there the packets are cut out of what the
socket gives, by their lengths alone (MySQL documentation of the source: "Protocol::Packet", "Text Resultset"). Nothing
is done for each row but to find its end. A packet of 16 MiB or more, which goes on in the next, is put together.
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

_PIECE_BYTES = 2 << 20
_HEADER = 4
_CONTINUED = 0xFFFFFF
"""The length of a packet that goes on in the next one."""
_EOF, _ERROR = 0xFE, 0xFF
"""First bytes of packets that are no rows: no row that fits into a piece begins with either."""


class ResultRows:
    """Reads results on one connection; ``rows`` and ``last`` tell of the result read last."""

    def __init__(self, conn: pymysql.Connection) -> None:
        self._connection = conn
        self._buffer = bytearray(_PIECE_BYTES)
        self.rows = 0
        self.last = b""
        """The last row's packet, empty if there was none."""

    def read(self, query: str, deliver: Callable[[pa.BinaryArray], None]) -> None:
        """Runs the query and hands its rows over as they come. A failure leaves the connection unusable."""
        self.rows, self.last = 0, b""
        conn = self._connection
        conn._execute_command(COMMAND.COM_QUERY, query)
        head = MySQLResult(conn)
        head.init_unbuffered_query()
        # From here on nobody but us reads what is left of the result.
        head.unbuffered_active = False
        self._file = conn._rfile
        self._bounds = [0]
        # What the driver has read ahead comes first; after that its buffer is empty, and the socket is read past it.
        ahead = self._file.read1(len(self._buffer))
        self._buffer[: len(ahead)] = ahead
        self._filled = 0
        ended = self._find_rows(len(ahead))
        while not ended:
            if self._filled == len(self._buffer):
                self._hand_over(deliver)
                if self._filled == len(self._buffer):
                    self._read_long_row(deliver)
            ended = self._find_rows(self._file.raw.readinto(memoryview(self._buffer)[self._filled :]))
        self._hand_over(deliver)

    def _find_rows(self, count: int) -> bool:
        """Finds the rows in ``count`` more bytes that have come; True once the result's end is there."""
        if not count:
            raise _lost()
        self._filled += count
        buffer, filled, bounds = self._buffer, self._filled, self._bounds
        length_at, append = struct.Struct("<I").unpack_from, bounds.append
        position, before, most = bounds[-1], len(bounds), filled - _HEADER
        while position <= most:
            end = position + _HEADER + (length_at(buffer, position)[0] & _CONTINUED)
            if end > filled:
                break
            append(end)
            position = end
        return len(bounds) > before and self._ended()

    def _ended(self) -> bool:
        """Looks whether the last packet is the result's last: whatever ends a result, nothing follows it."""
        start = self._bounds[-2] + _HEADER
        first = self._buffer[start]
        if first < _EOF:
            return False
        if first == _ERROR:
            pymysql.err.raise_mysql_exception(bytes(self._buffer[start : self._bounds[-1]]))
        self._bounds.pop()
        return True

    def _hand_over(self, deliver: Callable[[pa.BinaryArray], None]) -> None:
        """Delivers the whole rows in the buffer; what follows them moves to its beginning."""
        bounds = np.frombuffer(array("i", self._bounds), np.int32)
        count, end = len(bounds) - 1, int(bounds[-1])
        if count:
            # Headers and rows in turn, of which every second one is taken.
            offsets = np.empty(2 * count + 1, np.int32)
            offsets[::2] = bounds
            offsets[1::2] = bounds[:-1] + _HEADER
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
        """Delivers the row that begins the buffer and is longer than it, alone."""
        length = int.from_bytes(self._buffer[:3], "little")
        row = self._buffer[_HEADER:] + self._exactly(length - (len(self._buffer) - _HEADER))
        while length == _CONTINUED:
            length = int.from_bytes(self._exactly(_HEADER)[:3], "little")
            row += self._exactly(length)
        self._filled = 0
        self.rows += 1
        self.last = bytes(row)
        deliver(pa.array([self.last], pa.binary()))

    def _exactly(self, count: int) -> bytes:
        # Past the driver's buffer, like all else: it would read ahead.
        data = bytearray(count)
        room = memoryview(data)
        while room:
            read = self._file.raw.readinto(room)
            if not read:
                raise _lost()
            room = room[read:]
        return bytes(data)


def values(packet: bytes) -> list[bytes | None]:
    """A row's values as the server wrote them."""
    found: list[bytes | None] = []
    position = 0
    while position < len(packet):
        first = packet[position]
        position += 1
        if first == 0xFB:
            found.append(None)
            continue
        width = {0xFC: 2, 0xFD: 3, 0xFE: 8}.get(first, 0)
        length = int.from_bytes(packet[position : position + width], "little") if width else first
        position += width
        found.append(packet[position : position + length])
        position += length
    return found


def _lost() -> Any:
    return pymysql.err.OperationalError(CR.CR_SERVER_LOST, "the connection ended in the middle of a result")
