"""The stream of one source: bootstrap, then whole transactions in commit order, with named control entries between.

Place: between the readers of Delta files and ``subscription``, which merges sources and stores checkpoints. Guarantee:
each ``poll`` continues exactly after the cursor. Where events after it are missing or were replaced, a control entry
names the reason and a bootstrap follows: a consumer never meets a silent hole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import pyarrow as pa

from dblake.base.core.errors import ConsumeError, StateNotReady
from dblake.base.core.position import Position
from dblake.base.core.schema import TableSchema
from dblake.base.lake.incarnations import is_continued, is_recorded
from dblake.base.lake.layout import Paths
from dblake.serve.consume.catch_up import CatchUp, CatchUpMode, ConsolidatedRows
from dblake.serve.consume.cursor import Bootstrap, Cursor
from dblake.serve.consume.event_rows import EventBuilder
from dblake.serve.consume.event_table import EventTable
from dblake.serve.consume.filters import Selection
from dblake.serve.consume.landed_events import LandedEvents
from dblake.serve.consume.model import Control, ControlKind, Event, Transaction
from dblake.serve.consume.read_ahead import read_ahead
from dblake.serve.consume.redecodes import ReplacedEvents, replaced_since
from dblake.serve.consume.schemas import Schemas
from dblake.serve.consume.start import begin_at, begin_bootstrap
from dblake.serve.consume.state_rows import StateRows, VersionRemoved
from dblake.serve.consume.transactions import SpooledEvents, schemas_of, whole_transactions

_NO_TABLE = "-"
"""The table of a bootstrap that has begun and has no tables."""

_CONSOLIDATED = {
    ControlKind.BOOTSTRAP_STARTED: ControlKind.CONSOLIDATED_STARTED,
    ControlKind.BOOTSTRAP_FINISHED: ControlKind.CONSOLIDATED_FINISHED,
}

Step = tuple[Transaction, Cursor]
"""A transaction or control entry, and the cursor after it."""


class SourceStream:
    """The selected changes of one source, from a cursor or, without one, from ``start``."""

    def __init__(
        self, paths: Paths, selection: Selection, start: str, cursor: Cursor | None,
        readers: Mapping[str, TableSchema] | None = None, *, is_live: bool = False, catch_up: CatchUpMode = "events",
    ) -> None:
        """``readers`` are the schemas that the consumer was written for, by table; other tables have their own.

        With ``is_live`` what has landed is delivered before it is in events. ``catch_up`` is how the first poll comes
        from the cursor to state's frontier.
        """
        self.source = paths.source
        self.cursor = cursor
        self.events = EventTable(paths)
        self._is_drained = self._is_at_tail = False
        self._paths, self._selection, self._start = paths, selection, start
        self._schemas = Schemas(paths)
        self._landed, self._is_live = LandedEvents(paths, self.events, self._schemas), is_live
        self._catch_up = CatchUp(paths, self.events, self._schemas, selection, catch_up)
        self._builder = EventBuilder(paths.source, selection, self._schemas.get, readers or {})

    def poll(self) -> Iterator[Step]:
        """Yield what the newest version of the tables has after the cursor, and advance the cursor.

        Raises StateNotReady if state must run before a bootstrap; the next poll tries again.
        """
        is_drained = not self.events.refresh() and self._is_drained
        self._is_drained = self._is_at_tail = False
        cursor = self.cursor
        if cursor is None:
            if self.events.batch == 0:
                raise StateNotReady(
                    f"source {self.source}: there are no events yet",
                    next_step="run reconcile and state, then this again",
                )
            self._schemas.refresh()
            cursor = self._advance(begin_at(self._paths, self.events, self._start, self._selection))
        elif is_drained:
            self._is_drained = True
            yield from self._tail()
            return
        else:
            yield from self._find_discontinuity(cursor)
        cursor = self.cursor or cursor
        cursor = self._advance(self._catch_up.plan(cursor) or cursor)
        if cursor.bootstrap is not None:
            yield from self._bootstrap(cursor)
            self.events.refresh()
            cursor = self.cursor or cursor
        if self.events.incarnation > cursor.position.incarnation and not is_recorded(self._paths, self.events.batch):
            # Reconcile is about to append how the incarnation begins; the next poll finds it.
            return
        if self.events.batch >= cursor.batch:
            yield from self._changes(cursor)
        self._is_drained = True
        yield from self._tail()

    def has_next(self) -> bool:
        """Return whether there is something new to read; known of a local disk only."""
        return self.events.has_next() or (self._is_at_tail and self._landed.has_next())

    def rewind(self, cursor: Cursor | None) -> None:
        """Continue from a cursor: what was read ahead of it, by a ``poll`` that was given up, is read again."""
        if cursor != self.cursor:
            self.cursor, self._is_drained = cursor, False

    def _advance(self, cursor: Cursor) -> Cursor:
        self.cursor = cursor
        return cursor

    def _find_discontinuity(self, cursor: Cursor) -> Iterator[Step]:
        """Yield control entries, and begin a bootstrap, if events after the cursor do not continue those before it."""
        events = self.events
        if events.batch < cursor.batch and self._landed.refresh() < cursor.batch:
            raise self._replaced(f"events end at batch {events.batch}, before the checkpoint's batch {cursor.batch}")
        # A redecode may add events to old batches; what it changed is announced below.
        if events.run == cursor.run and cursor.newest and events.has_after(cursor.newest, cursor.batch):
            raise self._replaced(f"batches up to the checkpoint's, {cursor.batch}, have events that are new to it")
        replaced: list[ReplacedEvents] = []
        if events.run > cursor.run:
            replaced = [
                one for one in replaced_since(self._paths, cursor.run)
                if one.run <= events.run and cursor.has_events_since(one.first) and self._selection.has_table(one.table)
            ]
        is_expired = events.consolidated > cursor.oldest_needed
        if not replaced and not is_expired:
            self._advance(replace(cursor, run=events.run))
            return
        # First: until state can be read, nothing is delivered, so that the next poll tries again.
        self._schemas.refresh()
        following = begin_bootstrap(self._paths, events, self._selection)
        for one in replaced:
            yield self._control(ControlKind.REDECODED, cursor, one.table, from_batch=one.first, to_batch=one.last)
        if is_expired:
            yield self._control(ControlKind.GAP, cursor, reason="events after the checkpoint passed their retention",
                                expired_batch=events.consolidated)
        self._advance(following)

    def _replaced(self, reason: str) -> ConsumeError:
        return ConsumeError(
            f"source {self.source}: {reason}: the tables were replaced, or restored from a backup",
            next_step="begin with --from bootstrap; in a group, with another `group.url`",
        )

    def _control(
        self, kind: ControlKind, cursor: Cursor, table: str | None = None, bootstrap: str = "", **details: Any
    ) -> Step:
        if self._selection.partition is not None:
            details["partition"] = asdict(self._selection.partition)
        control = Control(kind, self.source, cursor.position, table, details)
        return Transaction(self.source, cursor.position, None, (), control, bootstrap), cursor

    def _bootstrap(self, cursor: Cursor) -> Iterator[Step]:
        """Yield state at one point; begin again if maintenance removed the versions of a bootstrap that took long."""
        try:
            yield from self._read_state(cursor)
        except VersionRemoved as removed:
            following = begin_bootstrap(self._paths, self.events, self._selection)
            known = cursor.bootstrap
            if known is not None and following.bootstrap is not None and known.versions == following.bootstrap.versions:
                raise StateNotReady(
                    f"table {removed}: its state table cannot be read", next_step="run state, then this again"
                ) from None
            yield self._control(ControlKind.GAP, self.cursor or cursor, reason="the bootstrap's state was removed")
            yield from self._read_state(self._advance(following))

    def _read_state(self, cursor: Cursor) -> Iterator[Step]:
        """Yield state at one point, from where the cursor is in it, between its two control entries."""
        bootstrap = cursor.bootstrap
        assert bootstrap is not None, "the caller checked"
        self._schemas.refresh()
        if not bootstrap.table:
            bootstrap = replace(bootstrap, table=min(bootstrap.versions, default=_NO_TABLE))
            cursor = self._advance(replace(cursor, bootstrap=bootstrap))
            yield self._state_control(ControlKind.BOOTSTRAP_STARTED, cursor, bootstrap)
        for table in sorted(bootstrap.versions):
            if table < bootstrap.table:
                continue
            schema = self._schemas.at_batch(table, bootstrap.batch)
            delivered = self._builder.delivered_schema(schema)
            self._require_partition(schema)
            done = bootstrap.rows if table == bootstrap.table else 0
            cursor = replace(cursor, bootstrap=replace(bootstrap, table=table, rows=done))
            if cursor.schemas.get(table) != delivered.schema_id:
                cursor = self._advance(replace(cursor, schemas={**cursor.schemas, table: delivered.schema_id}))
                yield self._control(ControlKind.SCHEMA, cursor, table, bootstrap.id, schema_id=delivered.schema_id)
            for events in self._state_rows(bootstrap, schema).read(done):
                done += len(events)
                cursor = self._advance(replace(cursor, bootstrap=replace(bootstrap, table=table, rows=done)))
                found = self._builder.resolve(events)
                yield Transaction(self.source, bootstrap.position, None, found, bootstrap=bootstrap.id), cursor
        cursor = self._advance(replace(cursor, bootstrap=None))
        self._catch_up.finish()
        yield self._state_control(ControlKind.BOOTSTRAP_FINISHED, cursor, bootstrap)

    def _state_rows(self, bootstrap: Bootstrap, schema: TableSchema) -> StateRows | ConsolidatedRows:
        if bootstrap.since is not None:
            return self._catch_up.rows(bootstrap, schema)
        version = bootstrap.versions[schema.table]
        return StateRows(self._paths, schema, version, bootstrap.position, self._selection, self.events)

    def _state_control(self, kind: ControlKind, cursor: Cursor, bootstrap: Bootstrap) -> Step:
        """Return the control entry at the beginning or the end of a bootstrap, or of consolidated changes."""
        details: dict[str, Any] = {"tables": sorted(bootstrap.versions)}
        if bootstrap.since is not None:
            kind = _CONSOLIDATED[kind]
            details["since"] = str(bootstrap.since)
        return self._control(kind, cursor, bootstrap=bootstrap.id, **details)

    def _changes(self, cursor: Cursor) -> Iterator[Step]:
        """Yield the whole transactions after the cursor."""
        waiting = self.events.find_open_transaction()
        end = self.events.batch if waiting is None else waiting.batch - 1
        if end > cursor.batch:
            self._schemas.refresh()
        tables = [table for table in self._schemas.tables() if self._selection.has_table(table)]
        wanted = self._selection.predicate(tables, cursor.position, waiting.before if waiting else None, cursor.batch)
        recorded = (self._schemas.recorded(rows) for _, rows in self.events.read(wanted))
        yield from self._transactions(read_ahead(rows for rows in recorded if rows.num_rows), cursor)
        cursor = self.cursor or cursor
        if self.events.incarnation > cursor.position.incarnation and waiting is None:
            yield from self._enter(Position(self.events.incarnation, 0), cursor)
            cursor = self.cursor or cursor
        newest = cursor.newest
        if end > cursor.batch:
            newest = waiting.before if waiting else self.events.newest
        self._advance(replace(cursor, batch=max(end, cursor.batch), newest=newest))

    def _tail(self) -> Iterator[Step]:
        """Yield the whole transactions after the cursor that have landed and are not in events."""
        is_bounded = self._is_at_tail = self._is_live
        while is_bounded and (cursor := self.cursor) is not None and (tail := self._landed.read(cursor)) is not None:
            wanted = self._selection.predicate(self._schemas.tables(), cursor.position, None, cursor.batch)
            yield from self._transactions([self._schemas.recorded(wanted.filter(tail.events))], cursor)
            reached, newest = self.cursor or cursor, cursor.newest
            newest = max(newest, tail.position) if newest and tail.position else newest
            self._landed.finish(tail, cursor, self._advance(replace(reached, batch=tail.batch, newest=newest)))
            is_bounded = tail.is_bounded

    def _transactions(self, portions: Iterable[pa.Table], cursor: Cursor) -> Iterator[Step]:
        """Yield the transactions of selected rows in order of position, and advance the cursor."""
        for group in whole_transactions(portions, self._builder):
            for events, batch in group:
                last = events[-1]
                yield from self._announce(events, last.position)
                cursor = self.cursor or cursor
                newest = cursor.newest
                self.cursor = cursor = Cursor(
                    last.position, max(batch - 1, cursor.batch), cursor.run, cursor.schemas, cursor.bootstrap,
                    max(batch, cursor.reached), max(newest, last.position) if newest else None,
                )
                yield Transaction(self.source, last.position, last.committed_at, events), cursor

    def _announce(self, events: Sequence[Event], position: Position) -> Iterable[Step]:
        """Return the control entries that come before a transaction."""
        cursor = self.cursor
        assert cursor is not None, "poll sets it"
        if position.incarnation == cursor.position.incarnation and not isinstance(events, SpooledEvents):
            known = cursor.schemas
            for event in events:
                if known.get(event.table) != event.schema_id:
                    break
            else:
                return ()
        return self._announcements(events, position, cursor)

    def _announcements(self, events: Sequence[Event], position: Position, cursor: Cursor) -> Iterator[Step]:
        if position.incarnation > cursor.position.incarnation:
            yield from self._enter(Position(position.incarnation, 0), cursor)
            cursor = self.cursor or cursor
        for table, schema_id in schemas_of(events):
            if cursor.schemas.get(table) != schema_id:
                schema = self._builder.schema(table, schema_id)
                self._require_partition(schema)
                cursor = self._advance(replace(cursor, schemas={**cursor.schemas, table: schema_id}))
                yield self._control(ControlKind.SCHEMA, cursor, table, schema_id=schema_id)

    def _enter(self, beginning: Position, cursor: Cursor) -> Iterator[Step]:
        """Yield the control entries of a new incarnation: that log before it is missing, if it is, and its number."""
        left, following = cursor.position.incarnation, replace(cursor, position=beginning)
        if not is_continued(self._paths, left, beginning.incarnation):
            gap, _ = self._control(ControlKind.GAP, following, reason=f"the log after incarnation {left} is missing")
            # A consumer that ends between the two meets both again.
            yield gap, cursor
        self._advance(following)
        yield self._control(ControlKind.INCARNATION, following, incarnation=beginning.incarnation)

    def _require_partition(self, schema: TableSchema) -> None:
        if self._selection.partition is not None:
            self._selection.partition.require_integer_key(schema)
