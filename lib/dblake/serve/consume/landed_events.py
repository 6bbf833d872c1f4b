"""Events that have landed and are not in the events table yet, decoded in this process for one subscription.

Place: between ``read.tail``, which decodes, and ``stream``. Guarantee: what is returned has the positions, order and
images that events will have. Some things are left to events, which the subscription waits for: the end of a whole dump,
a new incarnation, and batches that cannot be decoded. So is a transaction with more than MAX_BYTES of landing files.
"""

from __future__ import annotations

import logging

from dblake.base.core.errors import DblakeError
from dblake.base.lake.layout import Paths
from dblake.serve.consume.cursor import Cursor
from dblake.serve.consume.event_table import EventTable
from dblake.serve.consume.schemas import Schemas
from dblake.serve.read.tail import Tail, read_batches, read_landed_schemas
from dblake.transform.reconcile.landing_files import LandingFiles

MAX_BYTES = 8 << 20
"""Bytes of landing files that are decoded at a time, about."""

logger = logging.getLogger(__name__)


class LandedEvents:
    """Reads landing's tail from one cursor to the next. One thread uses it."""

    def __init__(self, paths: Paths, events: EventTable, schemas: Schemas) -> None:
        self._paths, self._events, self._schemas = paths, events, schemas
        self._landing: LandingFiles | None = None
        self._drained: tuple[int, Cursor] | None = None
        """The newest landing batch that was decoded, and the cursor behind what was delivered of it."""
        self._waits_for = 0
        """The batch that events must reach before the tail is read again."""
        self._is_prepared = False

    @property
    def waits(self) -> bool:
        """Return True if the next transaction that landed comes from events."""
        return self._events.batch < self._waits_for

    def has_next(self) -> bool:
        """Return whether more has landed that can be read; known of a local disk only."""
        return self._landing is not None and not self.waits and self._landing.has_next()

    def refresh(self) -> int:
        """Read landing's newest version, and return its newest batch; 0 without landing."""
        if self._landing is None:
            self._landing = LandingFiles.find(self._paths.landing, self._paths.source)
        else:
            self._landing.refresh()
        return self._landing.newest_batch if self._landing else 0

    def read(self, cursor: Cursor) -> Tail | None:
        """Return events of the batches after the cursor's, with those that it is past; None without a new batch."""
        if self.waits or self.refresh() <= cursor.batch:
            return None
        landing = self._landing
        assert landing is not None, "it has a batch"
        if self._drained == (landing.newest_batch, cursor) or not self._prepare(landing, cursor):
            return None
        if cursor.batch < self._events.batch and self._size(landing, cursor) > MAX_BYTES:
            # A large transaction is open: it is delivered when it is in events.
            self._wait(cursor)
            return None
        try:
            tail = read_batches(landing, cursor.batch, self._schemas.by_id, MAX_BYTES, cursor.position.incarnation)
        except DblakeError as error:
            # Reconcile meets the same error, and ends with it.
            logger.warning("source %s: %s; waiting for events", self._paths.source, error.what)
            self._wait(cursor)
            return None
        if tail:
            self._schemas.add_landed(tail.schemas)
        return tail

    def finish(self, tail: Tail, before: Cursor, after: Cursor) -> None:
        """Note that everything of a tail that was read at ``before`` is delivered, which leads to ``after``."""
        if not tail.is_bounded:
            assert self._landing is not None, "it was read"
            self._drained = self._landing.newest_batch, after
        elif after.batch == before.batch:
            self._wait(after)

    def _wait(self, cursor: Cursor) -> None:
        self._waits_for = max(cursor.batch, self._events.batch) + 1

    def _prepare(self, landing: LandingFiles, cursor: Cursor) -> bool:
        """Read the schemas that landed up to the cursor; return False if events are of another landing table."""
        if self._is_prepared:
            return True
        if not self._events.comes_from(landing.table_id):
            return False
        self._schemas.refresh()
        if cursor.batch > self._events.batch:
            self._schemas.add_landed(read_landed_schemas(landing, self._events.batch + 1, cursor.batch))
        self._is_prepared = True
        return True

    @staticmethod
    def _size(landing: LandingFiles, cursor: Cursor) -> int:
        return sum(file.size for file in landing.files(cursor.batch + 1, landing.newest_batch))
