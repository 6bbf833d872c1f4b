"""Landing tables from things a test can spell: changes of the log, chunk rows, low and high watermarks.

``Change`` is one row change as the source makes it; ``events`` says what decoding makes of it, ``land`` writes the
real table, one commit a batch, with the bytes PostgreSQL would send.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pyarrow as pa

from dblake.core.position import Position, ResumePoint
from dblake.core.schema import TableSchema
from dblake.core.source import ServerIdentity
from dblake.landing.columns import LANDING
from dblake.landing.table import Landing, Reached
from dblake.source.memory.encode import (
    UNCHANGED,
    copy_line,
    pgoutput_delete,
    pgoutput_insert,
    pgoutput_truncate,
    pgoutput_update,
)
from tests.model.dblog import ChunkRow, Event, High, Image, Key, Landed, Low


@dataclass(frozen=True)
class Change:
    """One row change of the log: c, u, d or t. ``old_key`` is set where an update changes the key.

    A column that ``after`` lacks was not sent. ``last`` is set where the transaction ends with it, ``whole`` where
    ``after`` has every column.
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
        """What decoding makes of it."""
        if self.old_key is None:
            return [Event(self.position, self.batch, self.lease_epoch, self.table, self.op, self.key, self.after,
                          self.txid, None, self.schema_id, self.whole)]
        after = Position(self.position.incarnation, self.position.lsn, self.position.seq + 1)
        return [
            Event(self.position, self.batch, self.lease_epoch, self.table, "d", self.old_key, None, self.txid,
                  None, self.schema_id),
            Event(after, self.batch, self.lease_epoch, self.table, "c", self.key, self.after, self.txid, None,
                  self.schema_id, self.whole),
        ]


Thing = Change | ChunkRow | Low | High


def for_model(things: Iterable[Thing]) -> list[Landed]:
    """The same landing as the specification wants it."""
    return [part for thing in things for part in (thing.events() if isinstance(thing, Change) else [thing])]


def land(path: str, source: str, things: Sequence[Thing], schemas: Mapping[str, TableSchema]) -> None:
    """Writes the things to a landing table, new or not, a commit for each batch; the schemas go with the first."""
    landing = Landing(path, source)
    first = landing.reached is None
    for batch, group in groupby(things, key=lambda thing: thing.batch):
        members = list(group)
        rows = [landing_row(thing, schemas) for thing in members]
        if first:
            rows = [schema_row(batch, members[0].lease_epoch, schema) for schema in schemas.values()] + rows
            first = False
        reached = Reached(batch, members[0].lease_epoch, ServerIdentity("server", "log"), ResumePoint(1, "0/0"))
        landing.commit(pa.Table.from_pylist(rows, schema=LANDING), reached)


def schema_row(batch: int, lease_epoch: int, schema: TableSchema) -> dict[str, Any]:
    """What landing says of a table's schema."""
    return {
        "batch": batch, "lease_epoch": lease_epoch, "incarnation": 1, "lsn": 0, "seq": 0, "kind": "schema",
        "table": schema.table, "schema_id": schema.schema_id, "format": "json", "payload": schema.to_json().encode(),
    }


def landing_row(thing: Thing, schemas: Mapping[str, TableSchema]) -> dict[str, Any]:
    """A thing as a row of landing. ``schemas`` has each table's first one by its name, later ones by their ids."""
    named = thing.schema_id if isinstance(thing, (Change, ChunkRow)) else ""
    schema = schemas.get(named) or schemas[thing.table]
    row: dict[str, Any] = {
        "batch": thing.batch, "lease_epoch": thing.lease_epoch, "table": thing.table, "incarnation": 1,
        "schema_id": schema.schema_id, "last_in_txn": isinstance(thing, Change) and thing.last,
    }
    if isinstance(thing, ChunkRow):
        payload = copy_line([thing.after[name] for name in schema.names])
        return row | {"kind": "chunk", "seq": thing.number * 2, "chunk_id": thing.chunk_id, "format": "copy",
                      "payload": payload}
    row |= {"incarnation": thing.position.incarnation, "lsn": thing.position.lsn, "seq": thing.position.seq,
            "committed_at": thing.position.lsn}
    if isinstance(thing, Low):
        return row | {"kind": "low", "chunk_id": thing.chunk_id}
    row["txid"] = thing.txid
    if isinstance(thing, High):
        return row | {"kind": "high", "chunk_id": thing.chunk_id, "format": "json", "payload": thing.end.to_json()}
    kind = "truncate" if thing.op == "t" else "row"
    return row | {"kind": kind, "format": "pgoutput", "payload": _message(thing, schema)}


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
