"""CRC-32 validation of many consecutive events in one pass; each event ends with the CRC-32 of its own bytes.

The CRC-32 of valid events in a row depends on where they end, not on their contents: the register holds the same
constant (the residue) after each of them alone, and the bytes that follow change it in a way that is linear over GF(2)
and known from their number. So one call of zlib's and a table lookup validate all of them, with the same 32 bits of
certainty as one by one. Measured on events of 30 to 80 bytes: 0.05 microseconds an event, against 0.64 with one call
for each; of the 11 million events of the MySQL benchmark that is 6.5 seconds, about the whole duration of capture.

Between ``packets`` and ``runs``. Which event is damaged is left to ``transactions``, which validates one by one.
"""

from __future__ import annotations

from functools import cache
from zlib import crc32

import numpy as np
import numpy.typing as npt

from dblake.ingest.source.mysql.events import CRC32_RESIDUE

_Registers = npt.NDArray[np.uint32]

_BLOCK_BYTES = 1 << 20
"""Bytes that are validated together."""


def all_crc32_valid(events: memoryview, sizes: npt.NDArray[np.int64]) -> bool:
    """Return True if every event is valid; ``events`` holds events of these sizes, in bytes, without gaps."""
    stops = np.cumsum(sizes)
    first = at = 0
    while first < len(sizes):
        last = int(np.searchsorted(stops, at + _BLOCK_BYTES, "right"))
        # An event longer than a block is validated alone.
        last = max(last, first + 1)
        stop = int(stops[last - 1])
        behind = stop - stops[first : last - 1]
        if crc32(events[at:stop]) != int(np.bitwise_xor.reduce(_zero_shift_table()[behind])) ^ CRC32_RESIDUE:
            return False
        first, at = last, stop
    return True


@cache
def _zero_shift_table() -> _Registers:
    """Return, for each number of zero bytes, the register they leave if it held the residue before them."""
    table = np.empty(_BLOCK_BYTES, np.uint32)
    table[0] = CRC32_RESIDUE
    step = _one_byte_shift()
    filled = 1
    while filled < _BLOCK_BYTES:
        table[filled : 2 * filled] = _shift(step, table[:filled])
        # Twice as many bytes: the step applied to its own result for each byte of a register.
        step = np.stack([_shift(step, row) for row in step])
        filled *= 2
    return table


def _one_byte_shift() -> _Registers:
    """Return how one zero byte changes a register, for each of its bytes and each value of that byte."""
    # zlib inverts a register's bits before and after each call.
    zero = crc32(b"\0", 0xFFFF_FFFF)
    values = [[crc32(b"\0", 0xFFFF_FFFF ^ value << 8 * place) ^ zero for value in range(256)] for place in range(4)]
    return np.array(values, np.uint32)


def _shift(step: _Registers, registers: _Registers) -> _Registers:
    shifted: _Registers = step[0][registers & 0xFF]
    for place in range(1, 4):
        shifted = shifted ^ step[place][registers >> 8 * place & 0xFF]
    return shifted
