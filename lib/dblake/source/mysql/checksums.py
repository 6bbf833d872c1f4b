"""Are many events sound, by one pass over all of them? Each ends with the CRC-32 of what comes before.

What CRC-32 says of sound events one behind the other does not depend on what is in them, only on where they end: the
register is the same constant after each of them alone, and what follows an event moves it on in a way that is linear
(over GF(2)) and known from the number of bytes. So all of them are judged by one call of zlib's and a look into a
table, and any one that is damaged shows as it would alone: with 32 bits of certainty.

Between ``packets`` and ``runs``. Which event is damaged is left to who looks at them one by one.
"""

from __future__ import annotations

from functools import cache
from zlib import crc32

import numpy as np
import numpy.typing as npt

from dblake.source.mysql.events import SOUND

_Numbers = npt.NDArray[np.uint32]

_AT_ONCE = 1 << 20
"""Bytes that are judged together."""


def sound(events: memoryview, sizes: npt.NDArray[np.int64]) -> bool:
    """True if events of these sizes, one behind the other, are sound, all of them."""
    stops = np.cumsum(sizes)
    first = at = 0
    while first < len(sizes):
        last = int(np.searchsorted(stops, at + _AT_ONCE, "right"))
        # One that is too long stands for itself.
        last = max(last, first + 1)
        stop = int(stops[last - 1])
        behind = stop - stops[first : last - 1]
        if crc32(events[at:stop]) != int(np.bitwise_xor.reduce(_moved_on()[behind])) ^ SOUND:
            return False
        first, at = last, stop
    return True


@cache
def _moved_on() -> _Numbers:
    """What each number of zero bytes makes of a register that holds SOUND."""
    table = np.empty(_AT_ONCE, np.uint32)
    table[0] = SOUND
    step = _one_byte()
    known = 1
    while known < _AT_ONCE:
        table[known : 2 * known] = _apply(step, table[:known])
        # Twice as many bytes: the same again on what it makes of each byte of a register.
        step = np.stack([_apply(step, row) for row in step])
        known *= 2
    return table


def _one_byte() -> _Numbers:
    """How one zero byte moves a register on, for each byte of it and each value of that."""
    # zlib turns every bit of a register over, before and after.
    zero = crc32(b"\0", 0xFFFF_FFFF)
    values = [[crc32(b"\0", 0xFFFF_FFFF ^ value << 8 * place) ^ zero for value in range(256)] for place in range(4)]
    return np.array(values, np.uint32)


def _apply(step: _Numbers, registers: _Numbers) -> _Numbers:
    moved: _Numbers = step[0][registers & 0xFF]
    for place in range(1, 4):
        moved = moved ^ step[place][registers >> 8 * place & 0xFF]
    return moved
