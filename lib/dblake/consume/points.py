"""Points from which a subscription begins, as users write them.

``incarnation/lsn`` is the end of that transaction, ``incarnation/lsn/seq`` the event itself; a time stands for the last
transaction that committed at or before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from dblake.consume.cursor import END
from dblake.core.errors import UsageError
from dblake.core.position import Position

BOOTSTRAP, NOW = "bootstrap", "now"


@dataclass(frozen=True, slots=True)
class Point:
    """A point as written: a ``position``, a ``time``, now, or a bootstrap."""

    text: str
    position: Position | None = None
    time: datetime | None = None

    @property
    def is_bootstrap(self) -> bool:
        """True for a bootstrap."""
        return self.text == BOOTSTRAP

    @property
    def is_now(self) -> bool:
        """True for the newest complete transaction."""
        return self.text == NOW


def parse_point(text: str) -> Point:
    """Parse ``bootstrap``, ``now``, ``1/4711``, ``1/4711/2`` or an ISO 8601 time, UTC unless it names a zone.

    Raises UsageError for anything else.
    """
    text = text.strip()
    if text in (BOOTSTRAP, NOW):
        return Point(text)
    try:
        if "/" in text:
            position = Position.parse(text)
            has_seq = text.count("/") == 2
            return Point(text, position if has_seq else Position(position.incarnation, position.lsn, END))
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"{text!r} is no point to begin at",
            next_step="write bootstrap, now, a position like 1/4711, or a time like 2026-01-31T12:00:00",
        ) from None
    return Point(text, time=moment if moment.tzinfo else moment.replace(tzinfo=UTC))
