"""LSNs and transaction ids as numbers: PostgreSQL's notations, and ids of 32 bits.

Place: below everything that compares positions of the log. A number orders as the LSN does.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def widen(xids: npt.NDArray[np.int64], near: int) -> npt.NDArray[np.int64]:
    """Return 64-bit transaction ids for 32-bit ones: those nearest to the 64-bit id ``near`` of about the same time."""
    return near + ((xids - near + 0x8000_0000) & 0xFFFF_FFFF) - 0x8000_0000


def lsn_text(number: int) -> str:
    """Return a number in PostgreSQL's LSN notation."""
    return f"{number >> 32:X}/{number & 0xFFFF_FFFF:X}"
