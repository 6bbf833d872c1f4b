"""How fast the log may be read, and whether at all: the limits that operators set while capture runs.

Place: beside ``loop``, which asks before each read. Guarantees: a pause expires, so that a forgotten one does not use
up the log that the database retains. A store that fails leaves the last limits in force. Limits of dumps are left to
``throttle``.
"""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta

from dblake.base.core.errors import ProgressUnavailable, UsageError
from dblake.ingest.capture.documents import document_errors
from dblake.ingest.capture.progress import ProgressStore

MAX_MB_PER_SECOND = 1e6
MAX_PAUSE_MINUTES = 7 * 24 * 60.0
_LIMITS = "log/limits"
_READ_SECONDS = 1.0
"""The maximum age of the limits that a running capture applies."""
_PIECE_SECONDS = 0.25
"""A throttled piece is worth so many seconds, so that the rate is even and a changed limit applies soon."""
_MIN_PIECE_BYTES = 65_536
_MB = 1_000_000


@dataclass(frozen=True, slots=True)
class LogLimits:
    """Megabytes of log payload a second, None for no limit; and until when the log is not read (UTC, ISO 8601)."""

    mb_per_second: float | None = None
    paused_until: str | None = None


def read_log_limits(store: ProgressStore) -> LogLimits:
    """Return the limits in force; a pause whose time has passed is none. Raises ConfigError for another document."""
    document = store.read(_LIMITS)
    with document_errors(_LIMITS, "set the limits again with `capture throttle` and `capture pause`, or delete it"):
        limits = LogLimits(**document) if document else LogLimits()
        is_over = limits.paused_until is not None and datetime.fromisoformat(limits.paused_until) <= datetime.now(UTC)
    return replace(limits, paused_until=None) if is_over else limits


def throttle_log(store: ProgressStore, mb_per_second: float | None) -> LogLimits:
    """Limit a running and each later capture to a rate, None for no limit; return all limits in force."""
    _require_number(mb_per_second)
    return _save(store, replace(read_log_limits(store), mb_per_second=mb_per_second))


def pause_log(store: ProgressStore, minutes: float) -> LogLimits:
    """Stop reading the log for some minutes from now; return all limits in force."""
    _require_number(minutes)
    until = (datetime.now(UTC) + timedelta(minutes=minutes)).isoformat(timespec="seconds")
    return _save(store, replace(read_log_limits(store), paused_until=until))


def resume_log(store: ProgressStore) -> LogLimits:
    """End a pause; return the limits that stay in force."""
    return _save(store, replace(read_log_limits(store), paused_until=None))


def _require_number(value: float | None) -> None:
    if value is not None and not math.isfinite(value):
        raise UsageError(f"not a number: {value}", next_step="give a finite one")


def _save(store: ProgressStore, limits: LogLimits) -> LogLimits:
    store.write(_LIMITS, asdict(limits))
    return limits


class LogThrottle:
    """The limits as one running capture applies them."""

    def __init__(self, store: ProgressStore) -> None:
        self._store = store
        self._limits = LogLimits()
        self._read_at = float("-inf")
        self._owed, self._paid_at = 0.0, 0.0

    @property
    def paused_until(self) -> str | None:
        """Until when the log is not read, as of the last ``seconds_to_wait``; None if it is."""
        return self._limits.paused_until

    def seconds_to_wait(self) -> float:
        """Return for how long the log must not be read; 0 if it may be."""
        if time.monotonic() - self._read_at >= _READ_SECONDS:
            with suppress(ProgressUnavailable):
                self._limits = read_log_limits(self._store)
            self._read_at = time.monotonic()
        if self._limits.paused_until is not None:
            return _READ_SECONDS
        if not self._limits.mb_per_second:
            return 0.0
        self._pay(self._limits.mb_per_second)
        return self._owed / (self._limits.mb_per_second * _MB)

    def max_bytes(self, limit: int) -> int:
        """Return how many bytes one piece of log may have, at most ``limit``."""
        if not self._limits.mb_per_second:
            return limit
        return min(limit, max(_MIN_PIECE_BYTES, int(self._limits.mb_per_second * _MB * _PIECE_SECONDS)))

    def count(self, size: int) -> None:
        """Count the bytes of a piece that was read against the rate."""
        if rate := self._limits.mb_per_second:
            self._pay(rate)
            self._owed += size

    def _pay(self, rate: float) -> None:
        """Let the bytes pass that the rate has allowed since the last call."""
        now = time.monotonic()
        self._owed, self._paid_at = max(0.0, self._owed - (now - self._paid_at) * rate * _MB), now
