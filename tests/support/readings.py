"""A model history as the tables of a source, without a JVM: landing, then events, schemas and state as far as wanted.

The events are the model's own, appended as reconcile appends them; state is folded by its own code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
from deltalake import CommitProperties, Transaction, write_deltalake
from pyspark.sql import SparkSession

from dblake.base.core.position import Position, ResumePoint
from dblake.base.core.schema import TableSchema
from dblake.base.core.source import ServerIdentity
from dblake.base.lake.layout import Paths
from dblake.base.lake.log import Application
from dblake.base.lake.query import query_rows
from dblake.base.lake.schemas import SCHEMAS, schema_row
from dblake.landing.columns import LANDING
from dblake.landing.table import Landing, Reached
from dblake.serve.read.reading import LakeReading
from dblake.serve.read.rows import read_rows
from dblake.transform.events.files import EVENT_COLUMNS
from dblake.transform.state.run import run_state
from tests.model.dblog import Event, High, Key, fold, reconcile
from tests.support.histories import World, play, random_steps
from tests.support.landed import Change, LandedRecord, landing_row, to_model
from tests.support.landed import schema_row as landed_schema

SOURCE = "shop"
#: State starts tasks on executors only; for threads it reads nothing but the session's master.
NO_SPARK = cast(SparkSession, SimpleNamespace(sparkContext=SimpleNamespace(master="local[2]")))
Rows = dict[Key, dict[str, str | None]]
Fact = tuple[object, ...]
"""Position, table, op, key, after, batch, chunk id and transaction id of an event."""


class HistoryLake:
    """The tables of one history. ``reconcile`` and ``fold_state`` take it further, in any order."""

    def __init__(self, folder: Path, seed: int, length: int = 120) -> None:
        self.world: World = play(random_steps(seed, length), f"h{seed}")
        self.paths = Paths(str(folder), SOURCE)
        self.landing = with_last(self.world.landing)
        self.model, _ = reconcile(to_model(self.landing))
        self.last_batch = max(record.batch for record in self.landing)
        self._done = self._landed = 0
        self._schemas = dict(self.world.tables)
        self._schemas |= {schema.schema_id: schema for schema in self.world.tables.values()}
        self._since = self._first_uses()
        self._ends: dict[int, Position] = {}
        for event in self.model:
            if event.chunk_id is None:
                at = event.position
                self._ends[at.lsn] = max(at, self._ends.get(at.lsn, at))

    def land(self, until: int | None = None) -> None:
        """Land the batches up to ``until``, or all.

        As capture does, a schema lands with the first row or closed chunk that has it.
        """
        landing, until = Landing(self.paths.landing, SOURCE), until or self.last_batch
        for batch, group in groupby(self.landing, key=lambda record: record.batch):
            if not self._landed < batch <= until:
                continue
            self._landed, members = batch, list(group)
            epoch = members[0].lease_epoch
            rows = [
                landed_schema(batch, epoch, schema)
                | {"incarnation": since.incarnation, "lsn": since.lsn, "seq": since.seq}
                for schema, first, since in self._since.values() if first == batch
            ]
            rows += [landing_row(record, self.world.tables) for record in members]
            reached = Reached(batch, epoch, ServerIdentity("server", "log"), ResumePoint(1, "0/0"))
            landing.commit(pa.Table.from_pylist(rows, schema=LANDING), reached)

    def reconcile(self, until: int) -> None:
        """Append the events and schemas of the batches up to ``until``."""
        for batch in range(self._done + 1, until + 1):
            events = [event for event in self.model if event.batch == batch]
            append_batch(self.paths.schemas, self._schema_rows(batch), SCHEMAS, batch)
            append_batch(self.paths.events, [self.row(event) for event in events], EVENT_COLUMNS, batch)
        self._done = max(self._done, until)

    def fold_state(self, until: int | None = None, batches_per_step: int = 1000) -> None:
        """Fold the events into state."""
        for result in run_state(NO_SPARK, self.paths, parallel=1, until_batch=until, batches_per_step=batches_per_step):
            assert result.error is None, str(result.error)

    def expected(self, until: Position, events: Sequence[Event] | None = None) -> dict[str, Rows]:
        """Return the rows of every table after the events up to a position."""
        found: dict[str, Rows] = {}
        for (table, key), row in fold(e for e in events or self.model if e.position <= until).items():
            found.setdefault(table, {})[key] = row
        return found

    def schema(self, event: Event) -> TableSchema:
        """Return the schema of an event."""
        return self._schemas[event.schema_id or event.table]

    def fact(self, event: Event) -> Fact:
        """Return what readings of an event must have."""
        row, at = self.row(event), event.position
        return (
            (at.incarnation, at.lsn, at.seq), event.table, event.op, None if row["key"] is None else dict(row["key"]),
            None if event.after is None else dict(event.after), event.batch, event.chunk_id, event.txid,
        )

    def row(self, event: Event) -> dict[str, Any]:
        """Return an event as a row of the events table."""
        schema, at = self.schema(event), event.position
        key = None if event.key is None else list(zip(schema.primary_key, event.key, strict=True))
        is_log = event.chunk_id is None
        return {
            "incarnation": at.incarnation, "lsn": at.lsn, "seq": at.seq, "table": event.table, "op": event.op,
            "key": key, "before": None, "after": None if event.after is None else list(event.after.items()),
            "schema_id": schema.schema_id, "txid": event.txid, "committed_at": commit_time(at.lsn),
            "last_in_txn": is_log and self._ends[at.lsn] == at, "origin": "log" if is_log else "dump",
            "chunk_id": event.chunk_id, "batch": event.batch, "undecoded": [],
            "partial": event.op == "f" or (event.after is not None and set(event.after) != set(schema.names)),
        }

    def _schema_rows(self, batch: int) -> list[dict[str, Any]]:
        return [schema_row(schema, since, first) for schema, first, since in self._since.values() if first == batch]

    def _first_uses(self) -> dict[str, tuple[TableSchema, int, Position]]:
        found: dict[str, tuple[TableSchema, int, Position]] = {}
        for record in self.landing:
            if isinstance(record, Change):
                schema = self._schemas[record.schema_id or record.table]
            elif isinstance(record, High) and not record.end.reason:
                schema = self._schemas[record.end.schema_id]
            else:
                continue
            found.setdefault(schema.schema_id, (schema, record.batch, record.position))
        return found


def commit_time(lsn: int) -> datetime:
    """Return a transaction's commit time: each fourth one's clock is behind."""
    behind = 15 if lsn // 10 % 4 == 3 else 0
    return datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=lsn - behind)


def with_last(landing: Sequence[LandedRecord]) -> list[LandedRecord]:
    """Mark the last change of each transaction that landed whole."""
    ends: dict[int, Position] = {}
    for record in landing:
        if isinstance(record, Change):
            ends[record.position.lsn] = max(record.position, ends.get(record.position.lsn, record.position))
    return [
        replace(record, last=record.position == ends[record.position.lsn]) if isinstance(record, Change) else record
        for record in landing
    ]


def rows_of(reading: LakeReading, table: str) -> Rows:
    """Return a table's rows by key; values as text."""
    found = reading.table(table)
    rows = [row for part in read_rows(found) for row in part.to_pylist()]
    by_key = {tuple(row[name] for name in found.keys): row for row in rows}
    assert len(by_key) == len(rows), f"{table}: two rows of one key"
    return by_key


def padded(rows: Mapping[Key, Mapping[str, str | None]], columns: Sequence[str]) -> Rows:
    """Return the model's rows with these columns; a column that no event set is NULL."""
    return {key: {name: row.get(name) for name in columns} for key, row in rows.items()}


class EventLake:
    """A source's tables with events written directly, one transaction for each event."""

    def __init__(self, folder: Path) -> None:
        self.paths = Paths(str(folder), SOURCE)
        self.batch = 0

    def append(self, schema: TableSchema, *events: tuple[int, str, str | None, dict[str, str | None] | None]) -> None:
        """Append a batch of one table: ``(lsn, op, key, after)``; a schema that is new comes with it."""
        self.batch += 1
        first = events[0][0]
        known = query_rows(self.paths.schemas, "SELECT schema_id FROM t")
        is_new = schema.schema_id not in {row["schema_id"] for row in known}
        schemas = [schema_row(schema, Position(1, first, 0), self.batch)] if is_new else []
        rows = [
            {
                "incarnation": 1, "lsn": lsn, "seq": 0, "table": schema.table, "op": op, "before": None,
                "key": None if key is None else [(schema.primary_key[0], key)],
                "after": None if after is None else list(after.items()), "schema_id": schema.schema_id, "txid": lsn,
                "committed_at": commit_time(lsn), "last_in_txn": True, "origin": "log", "batch": self.batch,
                "undecoded": [], "partial": after is not None and set(after) != set(schema.names),
            }
            for lsn, op, key, after in events
        ]
        append_batch(self.paths.schemas, schemas, SCHEMAS, self.batch)
        append_batch(self.paths.events, rows, EVENT_COLUMNS, self.batch)

    def fold(self) -> list[str]:
        """Fold the events into state; return the tables that could not take theirs."""
        return [result.table for result in run_state(NO_SPARK, self.paths, parallel=1) if result.error]


def append_batch(path: str, rows: list[dict[str, Any]], schema: pa.Schema, batch: int) -> None:
    """Append rows as reconcile does, with the batch in the commit."""
    properties = CommitProperties(app_transactions=[Transaction(Application.reconcile(SOURCE), batch)])
    write_deltalake(path, pa.Table.from_pylist(rows, schema), mode="append", commit_properties=properties)
