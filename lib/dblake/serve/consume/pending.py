"""What a consumer has not been delivered: since when, and how much.

Place: beside ``stream``, with the same reading of the events table. ``status`` and a running output both ask here, so
both show the same figures. Guarantee: the figures are of the table as it is when asked, not of when the consumer last
did something. What has landed and is not in events does not count: that is the lag of ``events``.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from dblake.base.lake.layout import Paths
from dblake.serve.consume.cursor import Cursor
from dblake.serve.consume.event_table import EventTable
from dblake.serve.consume.filters import Selection
from dblake.serve.consume.schemas import Schemas


@dataclass(frozen=True, slots=True)
class Pending:
    """What is pending: the commit time of its oldest transaction, None if nothing is, and about how many bytes.

    ``bytes`` counts event files as a whole, with the tables that the consumer does not select.
    """

    oldest_at: datetime | None = None
    bytes: int = 0

    @property
    def seconds(self) -> float:
        """The age of the oldest pending transaction now; 0 if nothing is pending."""
        if self.oldest_at is None:
            return 0.0
        return max((datetime.now(UTC) - self.oldest_at.astimezone(UTC)).total_seconds(), 0.0)


class PendingEvents:
    """Finds what is pending of one source. One thread uses it; it reads only what is new in the table's log."""

    def __init__(self, paths: Paths) -> None:
        self._events, self._schemas = EventTable(paths), Schemas(paths)

    def find(self, cursor: Cursor, selection: Selection) -> Pending:
        """Return what is pending after a cursor; a transaction that is not in events as a whole is not."""
        events = self._events
        if events.refresh():
            self._schemas.refresh()
        waiting = events.find_open_transaction()
        tables = [table for table in self._schemas.tables() if selection.has_table(table)]
        pending = selection.predicate(tables, cursor.position, waiting.before if waiting else None, cursor.batch)
        oldest = events.oldest_commit(pending)
        return Pending() if oldest is None else Pending(oldest, events.bytes_after(cursor.batch))
