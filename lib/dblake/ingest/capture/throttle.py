"""How fast dumps may read: the limits set at run time, and each chunk reader's pause after a chunk.

Guarantee: a reader works for at most its share of the time, and its pause doubles while the database writes watermarks
slowly. Measuring a chunk's duration and latency is left to ``dumps``.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from dblake.ingest.capture.documents import document_errors
from dblake.ingest.capture.progress import ProgressStore
from dblake.ingest.capture.settings import DumpSettings

_THROTTLE = "dumps/throttle"
_MIN_BACKOFF_SECONDS, _MAX_BACKOFF_SECONDS = 0.1, 30.0


@dataclass(frozen=True, slots=True)
class Throttle:
    """Limits for all dumps of the source, set at run time; None keeps the configured value. See DumpSettings."""

    chunk_size: int | None = None
    delay: float | None = None
    share: float | None = None
    max_latency: float | None = None


def read_throttle(store: ProgressStore) -> Throttle:
    """Return the limits that ``set_throttle`` wrote last; all None without any."""
    document = store.read(_THROTTLE)
    with document_errors(_THROTTLE, "set the limits again with `dump throttle`, or delete the document"):
        return Throttle(**document) if document else Throttle()


def set_throttle(store: ProgressStore, throttle: Throttle) -> None:
    """Set the limits of all dumps of the source, running ones included; readers apply them to their next chunk."""
    store.write(_THROTTLE, asdict(throttle))


class DumpThrottle:
    """The pauses of one chunk reader."""

    def __init__(self, settings: DumpSettings) -> None:
        self._settings = settings
        self._backoff = 0.0

    def pause_after(self, throttle: Throttle, *, worked: float, latency: float) -> float:
        """Return the seconds to pause after a chunk.

        ``worked`` is how long the chunk took and ``latency`` how long its low watermark took to write, in seconds.
        """
        settings = self._settings
        share = settings.share if throttle.share is None else throttle.share
        delay = settings.delay if throttle.delay is None else throttle.delay
        max_latency = settings.max_latency if throttle.max_latency is None else throttle.max_latency
        if max_latency is not None and latency > max_latency:
            self._backoff = min(max(2 * self._backoff, worked, _MIN_BACKOFF_SECONDS), _MAX_BACKOFF_SECONDS)
        else:
            self._backoff = self._backoff / 2 if self._backoff > _MIN_BACKOFF_SECONDS else 0.0
        return max(delay, worked / share - worked) + self._backoff
