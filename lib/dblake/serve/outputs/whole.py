"""Complete the partial images of a batch, so that every event that leaves a row carries all of its columns.

Place: between a feed and an output with ``rows: whole``. Rows are read as of the point before the batch, from state
and the events after its frontier, and the batch's own events are folded over them. Guarantee: a column that an event
lacks afterwards is one whose value the lake does not know, because no event or dump has carried it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import pyarrow as pa

from dblake.base.core.errors import ConsumeError, PointOutOfRange, StateError, StateNotReady
from dblake.base.core.op import Op
from dblake.base.core.position import Position
from dblake.base.lake.layout import Paths
from dblake.serve.consume.filters import Selection
from dblake.serve.consume.model import STATE, Event, Transaction
from dblake.serve.consume.row_images import build_rows
from dblake.serve.consume.transactions import SpooledEvents, StoredEvents
from dblake.serve.read.event_log import EventLog
from dblake.serve.read.points import Point
from dblake.serve.read.reading import LakeReading, open_reading_at
from dblake.serve.read.resolve import resolve
from dblake.serve.read.rows import read_state_rows
from dblake.transform.state.fold import key_texts

_EVENTS_AT_ONCE = 8192
Key = tuple[str, tuple[str | None, ...]]
"""A table, and the values of its key in the key's order."""


class RowLookup:
    """Rows of one source by key, as of a position."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths

    def find(self, keys: Iterable[Key], at: Position) -> dict[Key, Event]:
        """Return the rows that exist, as events of origin ``state``; their images lack what is not known.

        Raises ConsumeError if the lake no longer holds the rows of that position.
        """
        by_table = defaultdict[str, list[tuple[str | None, ...]]](list)
        for table, key in keys:
            by_table[table].append(key)
        if not by_table:
            return {}
        try:
            reading = self._open(at)
            if reading is None:
                return {}
            tables = [name for name in by_table if name in reading.tables]
            return {key: row for name in tables for key, row in self._rows(reading, name, by_table[name], at)}
        except (PointOutOfRange, StateError) as error:
            raise ConsumeError(
                f"source {self._paths.source}: whole rows cannot be read: {error.what}",
                next_step="begin with --from bootstrap, or set the output's `rows` to sent",
            ) from error

    def _open(self, at: Position) -> LakeReading | None:
        """Open a reading at a position; None if nothing was before it. Raises StateNotReady if events end before it."""
        log = EventLog(self._paths)
        newest = log.newest_complete()
        if newest is None or newest.position < at:
            raise StateNotReady(
                f"source {self._paths.source}: events have not reached the rows that are to be completed",
                next_step="run reconcile, then this again",
            )
        if not log.consolidated:
            first = log.oldest()
            if first is None or at < first.position:
                return None
        return open_reading_at(self._paths, resolve(Point(str(at), at), log, self._paths), log)

    def _rows(
        self, reading: LakeReading, table: str, keys: list[tuple[str | None, ...]], at: Position
    ) -> Iterator[tuple[Key, Event]]:
        rows_at = reading.table(table)
        schema = reading.schemas(table)[-1].schema
        maps = pa.array([list(zip(schema.primary_key, key, strict=True)) for key in keys],
                        pa.map_(pa.string(), pa.string()))
        texts = key_texts(maps, schema.primary_key)
        for rows in read_state_rows(rows_at, texts):
            for part in build_rows(self._paths, schema, rows, at):
                for row in part:
                    yield key_of(row), row


@dataclass
class _FoldedRows:
    """The rows of some keys while events are folded over them."""

    rows: dict[Key, Event]
    moved: dict[Key, Event] = field(default_factory=dict)
    """Rows that the present transaction has deleted."""
    lsn: tuple[int, int] = (0, 0)

    def complete(self, event: Event, kept: frozenset[str] | None) -> None:
        """Supply the columns that an event lacks, and apply it."""
        transaction = event.position.incarnation, event.position.lsn
        if transaction != self.lsn:
            self.lsn = transaction
            self.moved.clear()
        if event.op == Op.TRUNCATE:
            for key in [key for key in self.rows if key[0] == event.table]:
                del self.rows[key]
        if event.key is None:
            return
        key = key_of(event)
        row = self.rows.pop(key, None)
        if event.op in (Op.DELETE, Op.CREATE):
            if row is not None:
                self.moved.setdefault(key, row)
            row = None if event.key_before is None else self.moved.get(old_key_of(event))
        if event.op == Op.DELETE:
            return
        if row is not None:
            supply(event, row, kept)
        self.rows[key] = event


class WholeRows:
    """Completes the batches of one subscription, or of a group's member: each has one of the group's partitions."""

    def __init__(self, paths: Paths, selection: Selection, *, is_group: bool = False) -> None:
        self._lookup, self._selection = RowLookup(paths), selection
        self._is_divided = is_group or selection.partition is not None
        self._kept: dict[str, frozenset[str] | None] = {}

    def complete(self, batch: Sequence[Transaction]) -> Sequence[Transaction]:
        """Return the transactions with whole rows; those that are kept in a file are completed as they are read."""
        completed, small = list[Transaction](), list[Transaction]()
        for transaction in batch:
            # A control entry ends a bootstrap, whose rows have older positions than the changes after it.
            if isinstance(transaction.events, SpooledEvents) or transaction.control is not None:
                self._fold([event for one in small for event in one.events])
                completed += small
                small = []
            if isinstance(transaction.events, SpooledEvents):
                completed.append(replace(transaction, events=WholeEvents(self, transaction.events)))
            else:
                small.append(transaction)
        self._fold([event for one in small for event in one.events])
        return [*completed, *small]

    def parts(self, events: Iterable[Event]) -> Iterator[list[Event]]:
        """Yield the events of a large transaction, completed, in parts."""
        part: list[Event] = []
        for event in events:
            # Both halves of a key change are in one part.
            if len(part) >= _EVENTS_AT_ONCE and event.key_before is None:
                self._fold(part)
                yield part
                part = []
            part.append(event)
        self._fold(part)
        yield part

    def _fold(self, events: Sequence[Event]) -> None:
        """Complete events that follow each other."""
        partial = [event for event in events if self._is_partial(event)]
        if not partial:
            return
        keys = {key_of(event) if event.key_before is None else old_key_of(event) for event in partial}
        rows = _FoldedRows(self._lookup.find(keys, events[0].position.predecessor))
        for event in events:
            if event.key_before is not None and self._is_divided and self._is_partial(event):
                self._supply_foreign(event)
            rows.complete(event, self._columns(event))

    def _supply_foreign(self, event: Event) -> None:
        """Complete a row that may come from another partition, whose events are not in the batch."""
        row = self._lookup.find([key_of(event)], event.position).get(key_of(event))
        if row is not None:
            supply(event, row, self._columns(event))

    def _is_partial(self, event: Event) -> bool:
        if event.after is None or event.key is None or event.origin == STATE:
            return False
        kept = self._columns(event)
        return len(event.after) < len(event.schema.columns if kept is None else kept)

    def _columns(self, event: Event) -> frozenset[str] | None:
        if event.schema_id not in self._kept:
            kept = self._selection.columns_of(event.schema)
            self._kept[event.schema_id] = None if kept is None else kept.intersection(event.schema.names)
        return self._kept[event.schema_id]


class WholeEvents(StoredEvents):
    """The events of a transaction that lie in a file, with whole rows."""

    def __init__(self, whole: WholeRows, events: SpooledEvents) -> None:
        self._whole, self._events = whole, events

    def __len__(self) -> int:
        return len(self._events)

    def __iter__(self) -> Iterator[Event]:
        return (event for part in self._whole.parts(self._events) for event in part)

    def _find(self, number: int) -> Event:
        return next(islice(self, number, None))


def key_of(event: Event) -> Key:
    """Return what identifies an event's row; it has a key."""
    assert event.key is not None, "the caller checked"
    return event.table, tuple(event.key.get(name) for name in event.schema.primary_key)


def old_key_of(event: Event) -> Key:
    """Return what identified an event's row before its key changed."""
    assert event.key_before is not None, "the caller checked"
    return event.table, tuple(event.key_before.get(name) for name in event.schema.primary_key)


def supply(event: Event, row: Event, kept: frozenset[str] | None) -> None:
    """Give an event the columns that it lacks and a row has, in the schema's order; ``kept`` are those delivered."""
    after, complete = dict(event.after or {}), row.after or {}
    lacking = [name for name in event.schema.names
               if name not in after and name in complete and (kept is None or name in kept)]
    if not lacking:
        return
    after |= {name: complete[name] for name in lacking}
    event.after = {name: after[name] for name in event.schema.names if name in after}
    event.undecoded = [*event.undecoded, *(name for name in lacking if name in row.undecoded)]
