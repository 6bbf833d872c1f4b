"""Points in the history of a source, as users write them: a position, a commit time at the source, or ``now``.

Guarantee: a point means the same everywhere it is accepted. ``incarnation/lsn`` is the end of that transaction, with
``seq`` the event itself, even within a transaction. A place in the source's log, as the source writes it, means every
transaction before it, in the newest incarnation. Which event a time means is ``resolve``'s.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from dblake.base.core.errors import UsageError
from dblake.base.core.log_places import BINLOG, LSN, binlog_number, lsn_number
from dblake.base.core.position import Position

NOW = "now"
_GTID = re.compile(r"[0-9A-Fa-f]{8}-[0-9A-Fa-f-]{27}:|\d+-\d+-\d+")


@dataclass(frozen=True, slots=True)
class Point:
    """A point as written: a ``position`` (its ``seq`` is Position.MAX if none was given), a ``time``, or now.

    ``before`` is a place in the log of the newest incarnation: a number that orders as the LSN of a position does.
    """

    text: str
    position: Position | None = None
    time: datetime | None = None
    before: int | None = None


def parse_point(text: str) -> Point:
    """Parse ``1/4711``, ``1/4711/2``, an ISO 8601 time (UTC unless it names a zone), ``now``, or a place in the log.

    Such a place is ``lsn:0/16B3748`` or ``mysql-bin.000042:1547``. Raises UsageError for anything else.
    """
    text = text.strip()
    try:
        if text.lower() == NOW:
            return Point(text)
        if (before := _parse_place(text)) is not None:
            return Point(text, before=before)
        if "/" in text:
            position = Position.parse(text)
            has_seq = text.count("/") == 2
            return Point(text, position if has_seq else position.end_of_transaction)
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"{text!r} is no point: neither a position nor a time", next_step=_next_step(text)
        ) from None
    return Point(text, time=moment if moment.tzinfo else moment.replace(tzinfo=UTC))


def _parse_place(text: str) -> int | None:
    """Return the number of a place in the log; None for other text."""
    prefix, _, lsn = text.partition(":")
    if prefix.lower() == "lsn":
        if not LSN.fullmatch(lsn):
            raise ValueError("no LSN")
        return lsn_number(lsn)
    binlog = BINLOG.fullmatch(text)
    return binlog_number(binlog[1], int(binlog[2])) if binlog else None


def _next_step(text: str) -> str:
    """Return what to write instead of a text that is no point."""
    if LSN.fullmatch(text):
        return f"for an LSN of PostgreSQL write lsn:{text}"
    if _GTID.match(text):
        return "for a GTID set give the place where it ends, FILE:OFFSET of the binlog, or a time"
    if text.isdecimal():
        return f"a position begins with its incarnation: write 1/{text}"
    return "write 1/4711, 2024-01-31T12:00:00, now, lsn:0/16B3748 or mysql-bin.000042:1547"


def describe(position: Position, time: datetime | None = None) -> str:
    """Return a position as users write it, with its commit time if known."""
    text = f"{position.incarnation}/{position.lsn}"
    if position.seq < Position.MAX:
        text = f"{text}/{position.seq}"
    return text if time is None else f"{text} ({time.astimezone(UTC).isoformat().replace('+00:00', 'Z')})"
