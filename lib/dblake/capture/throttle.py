"""How long a chunk reader rests after a chunk, so that a dump keeps to its budget by itself.

Promises a rest that leaves the reader at work for its share of the time at most, and one that doubles while the
database answers late. What is measured, and what of it a person has changed meanwhile, is left to ``dumps``.
"""

from __future__ import annotations

from dblake.capture.requests import Throttle
from dblake.capture.settings import DumpSettings

_LEAST, _MOST = 0.1, 30.0


class Pace:
    """One reader's."""

    def __init__(self, settings: DumpSettings) -> None:
        self._settings = settings
        self._backed_off = 0.0

    def rest(self, wanted: Throttle, *, worked: float, latency: float) -> float:
        """Seconds to rest after a chunk that took ``worked`` and whose watermark was written within ``latency``."""
        settings = self._settings
        share = settings.share if wanted.share is None else wanted.share
        delay = settings.delay if wanted.delay is None else wanted.delay
        bound = settings.max_latency if wanted.max_latency is None else wanted.max_latency
        if bound is not None and latency > bound:
            self._backed_off = min(max(2 * self._backed_off, worked, _LEAST), _MOST)
        else:
            self._backed_off = self._backed_off / 2 if self._backed_off > _LEAST else 0.0
        return max(delay, worked / share - worked) + self._backed_off
