"""One table's events as typed Arrow tables, from one checkpoint of a subscription to the next.

Place: between ``consume``, whose bootstrap, order, whole transactions and filters it keeps, and ``event_stream``, which
gives the rows to Spark. Guarantee: the rows between two checkpoints are the same every time. Where a subscription would
begin another bootstrap, because events after the checkpoint were replaced or removed, this is an error: rows that a
stream has delivered cannot be taken back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import pyarrow as pa

from dblake.base.core.errors import ConsumeError, StateNotReady
from dblake.base.core.op import Op
from dblake.base.core.position import Position
from dblake.base.core.schema import TableSchema
from dblake.base.lake.layout import Paths
from dblake.serve.consume.cursor import Cursor, parse_checkpoint, write_checkpoint
from dblake.serve.consume.event_table import EventTable
from dblake.serve.consume.filters import Selection
from dblake.serve.consume.model import Control, ControlKind, Event, Transaction
from dblake.serve.consume.partition import Partition
from dblake.serve.consume.start import BOOTSTRAP, begin_at
from dblake.serve.consume.subscription import Subscription, SubscriptionSettings
from dblake.serve.read.reading import TableReading, open_reading
from dblake.serve.read.rows import read_state_rows
from dblake.serve.sql.event_columns import as_deletes, as_rows

_ROWS_AT_ONCE = 8192
_CHARACTERS_AT_ONCE = 32 << 20
"""Rows become columns of texts in parts that end with either."""
_WHERE = "the stream's checkpoint"
_BEGINNING = Position(1, 0)


@dataclass(frozen=True)
class StreamRequest:
    """What a stream delivers: the columns of ``schema``, from ``start`` on, about ``max_events`` at a time."""

    paths: Paths
    schema: TableSchema
    start: str = BOOTSTRAP
    partition: Partition | None = None
    max_events: int = 50_000

    @property
    def selection(self) -> Selection:
        """The subscription's filter."""
        return Selection([self.schema.table], {self.schema.table: self.schema.names}, self.partition)


class EventBatches:
    """Reads the batches of one stream."""

    def __init__(self, request: StreamRequest) -> None:
        self._request, self._table = request, request.schema.table
        self._selection = request.selection
        settings = SubscriptionSettings(
            self._selection, request.start, schemas={self._table: request.schema}, live=False
        )
        self._subscription = Subscription([request.paths], settings)
        self._at: str | None = None
        self._limit: Position | None = None
        self._is_done = self._expects_bootstrap = False
        self._reason = "events were replaced"

    def begin(self) -> str:
        """Return the checkpoint before the first event: which state a bootstrap reads is fixed in it.

        Raises StateNotReady if there is nothing to begin with, and what ``begin_at`` raises.
        """
        paths, events = self._request.paths, EventTable(self._request.paths)
        events.refresh()
        if events.batch == 0:
            raise StateNotReady(
                f"source {paths.source}: there are no events yet", next_step="run reconcile and state, then this again"
            )
        cursor = begin_at(paths, events, self._request.start, self._selection)
        return write_checkpoint({paths.source: cursor}, self._selection.identity)

    def end_at_newest(self) -> None:
        """Deliver nothing that is newer than what events hold now."""
        events = EventTable(self._request.paths)
        events.refresh()
        self._limit, self._is_done = events.position_of_batch(events.batch) or _BEGINNING, False

    def read(self, start: str) -> tuple[list[pa.Table], str]:
        """Return the next rows after a checkpoint, whole transactions, and the checkpoint after them."""
        if self._at != start:
            self._open(start)
        transactions, end, events, is_drained = list[Transaction](), start, 0, True
        for transaction in self._subscription.poll():
            if self._limit is not None and transaction.position > self._limit:
                # It was read, but is not delivered: the next read begins before it.
                self._at, is_drained = None, False
                break
            self._require_continuation(transaction.control)
            transactions.append(transaction)
            end, events = transaction.checkpoint, events + len(transaction.events)
            if events >= self._request.max_events:
                is_drained = False
                break
        if is_drained and not self._is_done:
            # Past batches without events of the table; where the end is fixed only once, so that it is reached.
            end, self._is_done = self._subscription.checkpoint(), self._limit is not None
        if self._at is not None:
            self._at = end
        return self._as_tables(transactions), end

    def read_between(self, start: str, end: str) -> list[pa.Table]:
        """Return the rows between two checkpoints that ``read`` has returned."""
        self._open(start)
        self._at, last, transactions = None, self._progress(end), list[Transaction]()
        for transaction in self._subscription.poll():
            if self._progress(transaction.checkpoint) > last:
                break
            self._require_continuation(transaction.control)
            transactions.append(transaction)
        return self._as_tables(transactions)

    def _open(self, checkpoint: str) -> None:
        self._subscription.rollback(checkpoint)
        self._at = checkpoint
        bootstrap = self._cursor(checkpoint).bootstrap
        self._expects_bootstrap = bootstrap is not None and not bootstrap.table

    def _cursor(self, checkpoint: str) -> Cursor:
        return parse_checkpoint(checkpoint, self._selection.identity, _WHERE)[self._request.paths.source]

    def _progress(self, checkpoint: str) -> tuple[bool, Position, str, int]:
        """Return what compares checkpoints of one stream: the rows of its bootstrap come before all others."""
        cursor = self._cursor(checkpoint)
        if cursor.bootstrap is None:
            return True, cursor.position, "", 0
        return False, _BEGINNING, cursor.bootstrap.table, cursor.bootstrap.rows

    def _require_continuation(self, control: Control | None) -> None:
        """Raise ConsumeError if a bootstrap begins that the stream did not begin with."""
        if control is None:
            return
        if control.kind is ControlKind.REDECODED:
            self._reason = "events were decoded again"
        elif control.kind is ControlKind.GAP:
            self._reason = str(control.details.get("reason", self._reason))
        elif control.kind is ControlKind.BOOTSTRAP_STARTED:
            if not self._expects_bootstrap:
                raise ConsumeError(
                    f"table {self._table}: {self._reason}, and a stream cannot take back rows that it delivered",
                    next_step="empty its target and start it with a new checkpoint location; in a pipeline, run "
                              "--full-refresh for the target",
                )
            self._expects_bootstrap = False

    def _as_tables(self, transactions: Sequence[Transaction]) -> list[pa.Table]:
        """Return events as rows; what an event does not carry is read as of the last of them."""
        schema = self._request.schema
        until = transactions[-1].position if transactions else _BEGINNING
        reading = _Reading(self._request.paths, self._table, f"{until.incarnation}/{until.lsn}")
        tables = []
        events = (event for transaction in transactions for event in transaction.events)
        for is_truncate, group in groupby(events, lambda event: event.op == Op.TRUNCATE):
            if is_truncate:
                tables += [as_deletes(rows, event, schema) for event in group for rows in self._rows_before(event)]
            else:
                tables += [as_rows(part, schema, reading.find) for part in _parts(group)]
        return [table for table in tables if table.num_rows]

    def _rows_before(self, truncate: Event) -> Iterator[pa.Table]:
        before = str(truncate.position.predecessor)
        return read_state_rows(_Reading(self._request.paths, self._table, before).table)


class _Reading:
    """The table as of a point, opened when it is first asked."""

    def __init__(self, paths: Paths, table: str, at: str) -> None:
        self._open = partial(open_reading, paths, at)
        self._name = table
        self._table: TableReading | None = None

    @property
    def table(self) -> TableReading:
        if self._table is None:
            self._table = self._open().table(self._name)
        return self._table

    def find(self, keys: pa.Array) -> pa.Table:
        """Return the rows of some keys."""
        return pa.concat_tables(read_state_rows(self.table, keys), promote_options="default")


def _parts(events: Iterator[Event]) -> Iterator[list[Event]]:
    part, size = list[Event](), 0
    for event in events:
        part.append(event)
        size += sum(len(text) for text in (event.after or event.before or {}).values() if text is not None)
        if len(part) == _ROWS_AT_ONCE or size >= _CHARACTERS_AT_ONCE:
            yield part
            part, size = [], 0
    if part:
        yield part
