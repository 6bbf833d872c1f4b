"""Consolidated changes for a subscription that is behind: each key that changed once, as state has it.

Place: between ``state_rows``, which reads state, and ``stream``. Guarantee: applied to what a consumer had at
``since``, the changes of a table lead to its rows at state's frontier. They come as a truncate, if there was one, then
the rows of the changed keys, then the deletes of those without a row. Each has the position of an event of its own, not
after the key's newest one. The order is the same each time, so a number of changes is a point to resume from.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dblake.base.core.arrays import join_chunks
from dblake.base.core.op import Op
from dblake.base.core.position import Position
from dblake.base.core.schema import TableSchema
from dblake.base.lake.frontier import Frontier, read_frontier
from dblake.base.lake.layout import Paths
from dblake.serve.consume.cursor import Bootstrap, Cursor
from dblake.serve.consume.event_rows import ROWS_AT_ONCE
from dblake.serve.consume.event_table import EventTable
from dblake.serve.consume.filters import Selection
from dblake.serve.consume.key_set import KeySet
from dblake.serve.consume.model import STATE, Event
from dblake.serve.consume.row_images import RowImages
from dblake.serve.consume.schemas import Schemas
from dblake.serve.consume.start import find_unbuilt
from dblake.serve.consume.state_rows import NewestState, StateRows, VersionRemoved
from dblake.transform.state.fold import key_texts

CatchUpMode = Literal["events", "consolidated", "auto"]

_MIN_BYTES = 1 << 20
"""Of event files: fewer are replayed sooner than their keys are counted."""
_MAX_EVENTS = 20_000_000
"""Keys and positions of the events of a span are in memory: about 100 bytes each."""
_MIN_EVENTS_PER_KEY, _EVENTS_PER_TABLE = 2, 2000
"""To open and to read a table of state takes as long as to deliver some thousand events."""
_MAX_ROWS_PER_EVENT = 10
"""State is read as a whole, in less than a tenth of the time that an event takes to become a row of Python."""
_COLUMNS = ("table", "op", "key", "schema_id", "lsn", "seq")


@dataclass(frozen=True)
class ChangedKeys:
    """Keys of a table that events touch, in order of their texts, with the position of each one's newest event.

    ``truncated`` is the newest truncate; the keys are those with an event after it.
    """

    keys: pa.Array
    lsn: npt.NDArray[np.int64]
    seq: npt.NDArray[np.int64]
    truncated: tuple[int, int] | None
    events: int


class CatchUp:
    """Plans and reads the consolidated changes of one source."""

    def __init__(
        self, paths: Paths, events: EventTable, schemas: Schemas, selection: Selection, mode: CatchUpMode
    ) -> None:
        self._paths, self._events, self._schemas, self._selection = paths, events, schemas, selection
        self._mode, self._is_open = mode, mode != "events"
        self._read: dict[tuple[Position, Position], dict[str, ChangedKeys]] = {}

    def plan(self, cursor: Cursor) -> Cursor | None:
        """Return the cursor of consolidated changes from ``cursor`` to state's frontier; None if events are replayed.

        They are considered once, by the first poll of a subscription that is not in a bootstrap. Events are replayed
        if another incarnation has begun, a table has no key or another one, or its state is behind.
        """
        is_first, self._is_open = self._is_open, False
        following = self._plan(cursor) if is_first and cursor.bootstrap is None else None
        if is_first and following is None:
            self.finish()
        return following

    def finish(self) -> None:
        """Release the changed keys, about 100 bytes for each event of the span."""
        self._read.clear()

    def _plan(self, cursor: Cursor) -> Cursor | None:
        frontier = read_frontier(self._paths)
        if not self._can_reach(frontier, cursor):
            return None
        position = frontier.position
        assert position is not None, "it can be reached"
        self._schemas.refresh()
        span = Bootstrap(position, frontier.batch, {}, since=cursor.position, since_batch=cursor.batch)
        changed = self._changed(span)
        if not changed or not changed.keys() <= frontier.versions.keys():
            return None
        if find_unbuilt(self._paths, changed, self._events.run):
            return None
        tables = {table: NewestState(self._paths, table) for table in sorted(changed)}
        if self._mode == "auto" and not _is_worthwhile(changed, tables):
            return None
        versions = {table: state.readable_version(frontier) for table, state in tables.items()}
        return replace(
            cursor, position=position, batch=frontier.batch, newest=position, reached=frontier.batch,
            bootstrap=replace(span, versions=versions),
        )

    def _can_reach(self, frontier: Frontier, cursor: Cursor) -> bool:
        """Return whether events and state of the selected tables are at a frontier in the cursor's incarnation."""
        at = frontier.position
        if at is None or at <= cursor.position or at.incarnation != cursor.position.incarnation:
            return False
        if not cursor.batch < frontier.batch <= self._events.batch:
            return False
        if self._mode == "auto" and self._events.bytes_after(cursor.batch) < _MIN_BYTES:
            return False
        return not any(map(self._selection.has_table, frontier.behind))

    def _changed(self, span: Bootstrap) -> dict[str, ChangedKeys]:
        """Return the changed keys by table; none if a table cannot be consolidated, or there are too many events."""
        assert span.since is not None, "the caller checked"
        ends = span.since, span.position
        if ends in self._read:
            return self._read[ends]
        selected = [table for table in self._schemas.tables() if self._selection.has_table(table)]
        after_since = self._selection.predicate(selected, span.since, span.position, span.since_batch)
        parts, events = defaultdict[str, list[pa.Table]](list), 0
        for portion in self._events.read_columns(after_since, _COLUMNS):
            rows = self._schemas.recorded(portion.select(_COLUMNS))
            events += rows.num_rows
            if events > _MAX_EVENTS:
                return {}
            for table in rows["table"].unique().to_pylist():
                of_table = rows.filter(pc.equal(rows["table"], table))
                names = self._key_names(table, of_table["schema_id"].unique().to_pylist())
                if not names:
                    return {}
                parts[table].append(_key_rows(of_table, names))
        changed = {table: _newest(pa.concat_tables(each)) for table, each in parts.items()}
        self._read = {ends: changed}
        return changed

    def _key_names(self, table: str, schema_ids: list[str | None]) -> tuple[str, ...]:
        """Return the names of a table's key; none if it has no key, or its schemas have different ones."""
        newest = self._schemas.get(table, None).primary_key
        keys = {self._schemas.get(table, schema_id).primary_key for schema_id in schema_ids}
        return tuple(newest) if keys == {newest} else ()

    def rows(self, span: Bootstrap, schema: TableSchema) -> ConsolidatedRows:
        """Return the changes of one table of a span. Raises VersionRemoved if its events can no longer be read so."""
        changed = self._changed(span).get(schema.table)
        if changed is None:
            raise VersionRemoved(schema.table)
        rows = StateRows(self._paths, schema, span.versions[schema.table], span.position, self._selection,
                         self._events, KeySet(changed.keys))
        return ConsolidatedRows(self._paths.source, schema, rows, changed, span.position)


def _is_worthwhile(changed: Mapping[str, ChangedKeys], tables: Mapping[str, NewestState]) -> bool:
    """Return whether the changes cost less than the events, by the number of both and of the rows of state."""
    events, keys = sum(each.events for each in changed.values()), sum(len(each.keys) for each in changed.values())
    if events < _MIN_EVENTS_PER_KEY * keys or events - keys < _EVENTS_PER_TABLE * len(tables):
        return False
    return sum(state.count_rows() for state in tables.values()) <= _MAX_ROWS_PER_EVENT * events


@dataclass
class ConsolidatedRows:
    """The changes of one table, with the columns of ``schema``; read as a bootstrap's rows are."""

    source: str
    schema: TableSchema
    rows: StateRows
    changed: ChangedKeys
    position: Position

    def read(self, skip: int = 0) -> Iterator[list[Event]]:
        """Yield the changes after the first ``skip``, up to ROWS_AT_ONCE at a time."""
        changed = self.changed
        if changed.truncated is not None:
            if not skip:
                yield [self._event(Op.TRUNCATE, *changed.truncated, None)]
            skip = max(skip - 1, 0)
        present = self.rows.read_keys()
        if skip < len(present):
            columns = self._count_columns()
            for rows in self.rows.read(skip):
                # A consumer may have the values of columns that state's row lacks.
                yield [replace(row, op=Op.UPDATE) if len(row.after or ()) < columns else row for row in rows]
        gone = np.flatnonzero(~pc.is_in(changed.keys, present).to_numpy(zero_copy_only=False))
        gone = gone[max(skip - len(present), 0):]
        images = RowImages(self.source, self.schema, (), self.position)
        for start in range(0, len(gone), ROWS_AT_ONCE):
            some = gone[start:start + ROWS_AT_ONCE]
            yield [
                self._event(Op.DELETE, lsn, seq, images.key_parts(key))
                for key, lsn, seq in zip(changed.keys.take(pa.array(some)).to_pylist(), changed.lsn[some].tolist(),
                                         changed.seq[some].tolist(), strict=True)
            ]

    def _count_columns(self) -> int:
        """Return the number of columns that are delivered of a whole row."""
        kept = self.rows.selection.columns_of(self.schema)
        return len(self.schema.columns if kept is None else kept.intersection(self.schema.names))

    def _event(self, op: Op, lsn: int, seq: int, parts: tuple[str, ...] | None) -> Event:
        schema, at = self.schema, Position(self.position.incarnation, lsn, seq)
        key = None if parts is None else dict(zip(schema.primary_key, parts, strict=True))
        return Event(
            self.source, schema.table, op, at, key, key, None, None, None, False, STATE, schema.schema_id, schema
        )


def _key_rows(rows: pa.Table, names: tuple[str, ...]) -> pa.Table:
    """Return the text of the key, NULL for a truncate, and the position of each row."""
    is_row = pc.not_equal(rows["op"], Op.TRUNCATE)
    truncates, changes = rows.filter(pc.invert(is_row)), rows.filter(is_row)
    texts = [pa.nulls(truncates.num_rows, pa.string())]
    if changes.num_rows:
        texts.append(key_texts(join_chunks(changes["key"]), names))
    both = pa.concat_tables([truncates, changes]).select(["lsn", "seq"])
    return both.append_column("key", pa.chunked_array(texts, pa.string()))


def _newest(rows: pa.Table) -> ChangedKeys:
    """Return each key once, with its newest position, of the rows after the newest truncate."""
    lsn, seq = rows["lsn"].to_numpy(), rows["seq"].to_numpy()
    order = np.lexsort((seq, lsn))
    keys, lsn, seq = rows["key"].take(pa.array(order)), lsn[order], seq[order]
    truncates = np.flatnonzero(keys.is_null().to_numpy())
    truncated = (int(lsn[truncates[-1]]), int(seq[truncates[-1]])) if len(truncates) else None
    first = int(truncates[-1]) + 1 if len(truncates) else 0
    numbered = pa.table({"key": keys.slice(first), "row": np.arange(first, len(lsn))})
    newest = numbered.group_by("key").aggregate([("row", "max")]).sort_by("key")
    at = newest["row_max"].to_numpy()
    return ChangedKeys(join_chunks(newest["key"]), lsn[at], seq[at], truncated, rows.num_rows)
