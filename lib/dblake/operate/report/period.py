"""The period that a report shows, divided into buckets, and the past before it that its tables are compared with.

Place: below the readers of ``report``. Guarantee: however long the period and however many the tables, a series has at
most ``_MAX_BUCKETS`` buckets, and the counts of all tables at most ``_MAX_CELLS`` cells.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property

from dblake.base.core.errors import UsageError

_DURATION = re.compile(r"([1-9][0-9]{0,5})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_WIDTHS = tuple(timedelta(minutes=n) for n in (1, 2, 5, 10, 15, 30, 60, 120, 360, 720, 1440, 10080))
_MAX_BUCKETS = 1440
_MAX_CELLS = 8_000_000
_MIN_BUCKETS = 10
_PAST = 2
"""The length of the past in periods: a daily event has then occurred twice before."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_duration(text: str) -> timedelta:
    """Return a number with s, m, h or d as a time. Raises UsageError for anything else, and below a minute."""
    match = _DURATION.fullmatch(text)
    duration = timedelta(seconds=int(match[1]) * _SECONDS[match[2]]) if match else timedelta(0)
    if duration < timedelta(minutes=1):
        raise UsageError(f"{text} is no duration of a minute or more",
                         next_step="give a number and s, m, h or d, such as 24h")
    return duration


@dataclass(frozen=True)
class Period:
    """``shown`` buckets of ``width`` up to ``end``, and ``past`` further ones before them."""

    end: datetime
    width: timedelta
    shown: int
    past: int

    @property
    def start(self) -> datetime:
        """Where the first shown bucket begins."""
        return self.end - self.shown * self.width

    @property
    def origin(self) -> datetime:
        """Where the past begins, from which buckets are numbered."""
        return self.start - self.past * self.width

    @property
    def buckets(self) -> int:
        """The number of shown buckets and of buckets of the past."""
        return self.past + self.shown

    @cached_property
    def minutes(self) -> float:
        """A bucket's width in minutes."""
        return self.width / timedelta(minutes=1)

    def begins_at(self, bucket: int) -> datetime:
        """Return where a bucket begins."""
        return self.origin + bucket * self.width

    def bucket_of(self, time: datetime) -> int:
        """Return the number of the bucket that holds a time; it may lie outside the period."""
        return (time - self.origin) // self.width

    def sql(self, column: str, begin: datetime) -> str:
        """Return the number of a time's bucket since ``begin`` as SQL of DuckDB."""
        return f"((epoch_us({column}) - {_microseconds(begin - _EPOCH)}) // {_microseconds(self.width)})::INTEGER"


def choose_period(since: timedelta, now: datetime, first: datetime | None, tables: int) -> Period:
    """Return the period of length ``since`` up to now, shorter if the first change is newer than it would begin.

    ``tables`` is the number of tables to count, ``first`` the time of the first change, None without any.
    """
    if first is not None and first <= now:
        since = min(since, now - first + timedelta(minutes=1))
    limit = max(min(_MAX_BUCKETS, _MAX_CELLS // ((1 + _PAST) * max(tables, 1))), _MIN_BUCKETS)
    width = next((w for w in _WIDTHS if since <= limit * w), _WIDTHS[-1])
    end = _EPOCH + (-(-(now - _EPOCH) // width)) * width
    shown = max(-(-since // width), _MIN_BUCKETS)
    past = _PAST * shown
    if first is not None:
        past = max(min(past, -(-(end - shown * width - first) // width)), 0)
    return Period(end, width, shown, past)


def _microseconds(duration: timedelta) -> int:
    return duration // timedelta(microseconds=1)
