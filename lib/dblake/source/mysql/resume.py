"""Places in the binlog: how a resume token spells one, and how one becomes a number that orders transactions.

A token is ``file:offset@created`` and, after a blank, the GTIDs up to there: ``binlog.000003:1547@1732200000 …``.
``created`` is when the server began the file, in seconds since 1970: after a RESET the same names come back, with
other contents. Offsets are unwrapped past the 4 GiB that an event's own 32 bits can say.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_TOKEN = re.compile(r"(.+):(\d+)@(\d+)(?: (.+))?", re.DOTALL)
_FILE_BITS = 36
_FIRST = 4
"""The offset of a file's first event: the magic number comes before it."""


@dataclass(frozen=True, slots=True)
class Place:
    """An offset in a binlog file."""

    file: str
    offset: int = _FIRST
    created: int = 0
    gtids: str = ""

    @classmethod
    def parse(cls, token: str) -> Place:
        """A token's. Raises ValueError for any other text."""
        match = _TOKEN.fullmatch(token)
        if not match:
            raise ValueError(f"no place in a binlog: {token}")
        return cls(match[1], int(match[2]), int(match[3]), match[4] or "")

    def __str__(self) -> str:
        return f"{self.file}:{self.offset}"

    @property
    def token(self) -> str:
        """As ResumePoint keeps it."""
        return f"{self}@{self.created}" + (f" {self.gtids}" if self.gtids else "")


def lsn(file: str, offset: int) -> int:
    """The number of the transaction whose first event lies there: later files and later offsets are greater.

    >>> lsn("binlog.999999", 4) < lsn("binlog.1000000", 4)
    True
    """
    return file_number(file) << _FILE_BITS | offset


def file_number(file: str) -> int:
    """The number in a file's name, which has no fixed width. Raises ValueError if there is none."""
    return int(file.rpartition(".")[2])


def unwrapped(low: int, near: int) -> int:
    """The first offset not before ``near`` whose last 32 bits are ``low``.

    >>> unwrapped(100, 0xFFFF_FF00) == 0x1_0000_0064
    True
    """
    return near + (low - near & 0xFFFF_FFFF)
