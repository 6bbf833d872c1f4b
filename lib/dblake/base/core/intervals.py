"""Let what happens again and again be reported once an interval."""

from __future__ import annotations

import time

REPORT_SECONDS = 60.0
"""How often a job that runs on and on reports what it has done."""


class Interval:
    """A pause between two reports: the first is due at once."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._next = seconds, float("-inf")

    def is_due(self) -> bool:
        """Return True if the pause since the last True is over."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + self._seconds
        return True
