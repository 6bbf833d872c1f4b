"""Places in a source's log, as its own tools print them, and the numbers that order its transactions.

Place: below sources, which number transactions, and everything that takes such a place from a user. A number orders as
the place does, within one incarnation.
"""

from __future__ import annotations

import re

LSN = re.compile(r"[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}")
"""PostgreSQL's notation of an LSN."""
BINLOG = re.compile(r"([^:]+\.\d+):(\d+)")
"""A binlog file and an offset in it."""
_OFFSET_BITS = 36


def lsn_number(text: str) -> int:
    """Return the number of an LSN in PostgreSQL's notation, ``16/B374D848``."""
    high, low = text.split("/")
    return (int(high, 16) << 32) | int(low, 16)


def binlog_number(file: str, offset: int) -> int:
    """Return the number of the transaction whose first event is at an offset; it rises with files and offsets.

    The number in a file's name has no fixed width.

    >>> binlog_number("binlog.999999", 4) < binlog_number("binlog.1000000", 4)
    True
    """
    return int(file.rpartition(".")[2]) << _OFFSET_BITS | offset


def binlog_place(number: int) -> tuple[int, int]:
    """Return the number of the file, and the offset, of ``binlog_number``."""
    return number >> _OFFSET_BITS, number & ((1 << _OFFSET_BITS) - 1)
