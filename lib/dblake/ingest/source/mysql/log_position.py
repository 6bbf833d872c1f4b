"""Positions in the binlog: the text of a resume token, and the number that orders transactions.

A token is ``file:offset@created`` and, after a blank, the GTIDs executed up to there:
``binlog.000003:1547@1732200000 =…``. With ``=`` the set has exactly the transactions of the log before the position.
Without it, as earlier versions wrote it, it may lack some that were being committed when capture began. ``created`` is
when the server began the file, in seconds since 1970: after a RESET the same file names return with other contents.
Offsets are unwrapped past the 4 GiB that an event's own 32 bits can hold.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_TOKEN = re.compile(r"(.+):(\d+)@(\d+)(?: (=?)(.*))?", re.DOTALL)
FIRST_OFFSET = 4
"""The offset of a file's first event, behind the magic number."""


@dataclass(frozen=True, slots=True)
class LogPosition:
    """An offset in a binlog file, with the file's creation time and the GTIDs executed up to there.

    ``is_exact`` is True if ``gtids`` names all transactions before the position, and no other.
    """

    file: str
    offset: int = FIRST_OFFSET
    created: int = 0
    gtids: str = ""
    is_exact: bool = False

    @classmethod
    def parse(cls, token: str) -> LogPosition:
        """Return a token's position. Raises ValueError for any other text."""
        match = _TOKEN.fullmatch(token)
        if not match:
            raise ValueError(f"not a binlog position: {token}")
        return cls(match[1], int(match[2]), int(match[3]), match[5] or "", bool(match[4]))

    def __str__(self) -> str:
        return f"{self.file}:{self.offset}"

    @property
    def token(self) -> str:
        """The position as a ResumePoint stores it."""
        mark = "=" if self.is_exact else ""
        return f"{self}@{self.created}" + (f" {mark}{self.gtids}" if mark or self.gtids else "")


def unwrap_offset(low: int, near: int) -> int:
    """Return the first offset at or after ``near`` whose last 32 bits are ``low``.

    >>> unwrap_offset(100, 0xFFFF_FF00) == 0x1_0000_0064
    True
    """
    return near + (low - near & 0xFFFF_FFFF)
