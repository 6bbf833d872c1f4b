"""Points in the history of a source, as users write them: a position, a commit time at the source, or ``now``.

Guarantee: a point means the same everywhere it is accepted. ``incarnation/lsn`` is the end of that transaction, with
``seq`` the event itself, even within a transaction. Which event a time means is ``resolve``'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from dblake.base.core.errors import UsageError
from dblake.base.core.position import Position

NOW = "now"


@dataclass(frozen=True, slots=True)
class Point:
    """A point as written: a ``position`` (its ``seq`` is Position.MAX if none was given), a ``time``, or now."""

    text: str
    position: Position | None = None
    time: datetime | None = None


def parse_point(text: str) -> Point:
    """Parse ``1/4711``, ``1/4711/2``, an ISO 8601 time (UTC unless it names a zone) or ``now``.

    Raises UsageError for anything else.
    """
    text = text.strip()
    try:
        if text.lower() == NOW:
            return Point(text)
        if "/" in text:
            position = Position.parse(text)
            has_seq = text.count("/") == 2
            return Point(text, position if has_seq else position.end_of_transaction)
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"{text!r} is no point: neither a position nor a time", next_step="write 1/4711, 2024-01-31T12:00:00 or now"
        ) from None
    return Point(text, time=moment if moment.tzinfo else moment.replace(tzinfo=UTC))


def describe(position: Position, time: datetime | None = None) -> str:
    """Return a position as users write it, with its commit time if known."""
    text = f"{position.incarnation}/{position.lsn}"
    if position.seq < Position.MAX:
        text = f"{text}/{position.seq}"
    return text if time is None else f"{text} ({time.astimezone(UTC).isoformat().replace('+00:00', 'Z')})"
