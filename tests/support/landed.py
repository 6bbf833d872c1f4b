"""Builders of landing tables: changes of the log, chunk rows, low and high watermarks.

``Change`` is one row change as a source emits it; ``Change.events`` returns what decoding makes of it. ``land`` writes
the real table, one commit per batch, with the payload bytes that PostgreSQL sends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pyarrow as pa

from dblake.base.core.position import Position, ResumePoint
from dblake.base.core.schema import TableSchema
from dblake.base.core.source import ServerIdentity
from dblake.ingest.source.memory.encode import (
    UNCHANGED,
    copy_line,
    pgoutput_delete,
    pgoutput_insert,
    pgoutput_truncate,
    pgoutput_update,
)
from dblake.landing.columns import LANDING
from dblake.landing.control import MoveMark
from dblake.landing.table import Landing, Reached
from tests.model.dblog import ChunkRow, Event, High, Image, Key, Landed, Low, Moved


@dataclass(frozen=True)
class Change:
    """One row change of the log: ``op`` is c, u, d or t. ``old_key`` is set if an update changes the key.

    ``after`` lacks the columns that were not sent. ``last`` marks the last change of a transaction, ``whole`` an
    ``after`` with every column.
    """

    batch: int
    lease_epoch: int
    position: Position
    txid: int | None
    table: str
    op: str
    key: Key | None = None
    after: Image | None = None
    old_key: Key | None = None
    last: bool = False
    schema_id: str = ""
    whole: bool = False

    def events(self) -> list[Event]:
        """Return the events that decoding makes of it: two if the key changes."""
        if self.old_key is None:
            return [Event(self.position, self.batch, self.lease_epoch, self.table, self.op, self.key, self.after,
                          self.txid, None, self.schema_id, self.whole)]
        after = Position(self.position.incarnation, self.position.lsn, self.position.seq + 1)
        return [
            Event(self.position, self.batch, self.lease_epoch, self.table, "d", self.old_key, None, self.txid,
                  None, self.schema_id),
            Event(after, self.batch, self.lease_epoch, self.table, "c", self.key, self.after, self.txid, None,
                  self.schema_id, self.whole, self.old_key),
        ]


LandedRecord = Change | ChunkRow | Low | High | Moved
SERVER = "server"
"""The server that landing names."""


def to_model(records: Iterable[LandedRecord]) -> list[Landed]:
    """Return the same landing as the model's input."""
    return [part for record in records for part in (record.events() if isinstance(record, Change) else [record])]


def land(path: str, source: str, records: Sequence[LandedRecord], schemas: Mapping[str, TableSchema]) -> None:
    """Append the records to a landing table, one commit per batch; a new table gets the schemas in its first batch."""
    landing = Landing(path, source)
    first, incarnation = landing.reached is None, 1
    for batch, group in groupby(records, key=lambda record: record.batch):
        members = list(group)
        incarnation = max([incarnation, *(each.incarnation for each in members if isinstance(each, Moved))])
        rows = [landing_row(record, schemas, incarnation) for record in members]
        if first:
            rows = [schema_row(batch, members[0].lease_epoch, schema) for schema in schemas.values()] + rows
            first = False
        reached = Reached(batch, members[0].lease_epoch, ServerIdentity(SERVER, "log"), ResumePoint(incarnation, "0/0"))
        landing.commit(pa.Table.from_pylist(rows, schema=LANDING), reached)


def schema_row(batch: int, lease_epoch: int, schema: TableSchema) -> dict[str, Any]:
    """Return the landing row that records a table's schema."""
    return {
        "batch": batch, "lease_epoch": lease_epoch, "incarnation": 1, "lsn": 0, "seq": 0, "kind": "schema",
        "table": schema.table, "schema_id": schema.schema_id, "format": "json", "payload": schema.to_json().encode(),
    }


def landing_row(
    record: LandedRecord, schemas: Mapping[str, TableSchema], incarnation: int = 1
) -> dict[str, Any]:
    """Return a record as a landing row. ``schemas`` has each table's first schema by name, later ones by schema id."""
    if isinstance(record, Moved):
        return {
            "batch": record.batch, "lease_epoch": record.lease_epoch, "incarnation": record.incarnation,
            "kind": "moved", "last_in_txn": False, "format": "json",
            "payload": MoveMark(record.server, record.incarnation - 1).to_json(),
        }
    named = record.schema_id if isinstance(record, (Change, ChunkRow)) else ""
    schema = schemas.get(named) or schemas[record.table]
    row: dict[str, Any] = {
        "batch": record.batch, "lease_epoch": record.lease_epoch, "table": record.table,
        "incarnation": incarnation,
        "schema_id": schema.schema_id, "last_in_txn": isinstance(record, Change) and record.last,
    }
    if isinstance(record, ChunkRow):
        payload = copy_line([record.after[name] for name in schema.names])
        return row | {"kind": "chunk", "seq": record.number * 2, "chunk_id": record.chunk_id, "format": "copy",
                      "payload": payload}
    row |= {"incarnation": record.position.incarnation, "lsn": record.position.lsn, "seq": record.position.seq,
            "committed_at": record.position.lsn}
    if isinstance(record, Low):
        return row | {"kind": "low", "chunk_id": record.chunk_id}
    row["txid"] = record.txid
    if isinstance(record, High):
        return row | {"kind": "high", "chunk_id": record.chunk_id, "format": "json", "payload": record.end.to_json()}
    kind = "truncate" if record.op == "t" else "row"
    return row | {"kind": kind, "format": "pgoutput", "payload": _message(record, schema)}


def _message(change: Change, schema: TableSchema) -> bytes:
    if change.op == "t":
        return pgoutput_truncate([1])
    after = [change.after.get(name, UNCHANGED) for name in schema.names] if change.after is not None else []
    old = change.old_key if change.old_key is not None else change.key
    identity = [dict(zip(schema.primary_key, old or (), strict=False)).get(name) for name in schema.names]
    if change.op == "d":
        return pgoutput_delete(1, identity)
    if change.op == "c":
        return pgoutput_insert(1, after)
    return pgoutput_update(1, after, identity if change.old_key is not None else None)
