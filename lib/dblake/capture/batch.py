"""The batch being filled: log pieces and chunk rows side by side, until one commit takes them all.

Chunk readers add from their own threads and wait here while the batch is full, so a dump never outruns landing and
never costs more memory than a batch. The log loop adds without waiting.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblake.capture.windows import OpenChunk
from dblake.core.position import Position, ResumePoint
from dblake.core.schema import TableSchema
from dblake.landing.columns import CAPTURED, CHUNK, JSON, LANDING, SCHEMA


class Closed(Exception):
    """The capture ends; nothing more is taken."""


@dataclass(slots=True)
class Filled:
    """A batch ready to land: its rows, where the log can be resumed once it has, and whose windows it closes."""

    number: int
    rows: pa.Table
    resume: ResumePoint
    closes: list[OpenChunk] = field(default_factory=list)
    heartbeats: set[str] = field(default_factory=set)


class BatchBuilder:
    """Gathers rows into numbered batches."""

    def __init__(self, *, first: int, lease_epoch: int, resume: ResumePoint, max_bytes: int, max_rows: int) -> None:
        self._lease_epoch = lease_epoch
        self._max_bytes, self._max_rows = max_bytes, max_rows
        self._changed = threading.Condition()
        self._closed = False
        self._schemas: set[str] = set()
        self._alike: tuple[str, str, str, int] | None = None
        self._template = CAPTURED.empty_table()
        self._where = Position(resume.incarnation, 0)
        self.number = first
        self.resume = resume
        self._start()

    def _start(self) -> None:
        self._log: list[pa.Table] = []
        self._chunks: list[pa.Table] = []
        self._closes: list[OpenChunk] = []
        self._heartbeats: set[str] = set()
        self._bytes = self._rows = 0

    @property
    def rows(self) -> int:
        """How many rows wait."""
        return self._rows

    @property
    def full(self) -> bool:
        """True if the batch should be committed before more is added."""
        return self._bytes >= self._max_bytes or self._rows >= self._max_rows

    def add_log(
        self, rows: list[pa.Table], size: int, resume: ResumePoint, closes: list[OpenChunk], heartbeats: set[str]
    ) -> None:
        """Adds a stretch of log, its watermark rows included. Never waits."""
        with self._changed:
            for table in rows:
                self._log.append(table)
                self._rows += table.num_rows
            self._bytes += size
            self.resume = resume
            self._closes += closes
            self._heartbeats |= heartbeats
            if rows:
                last = rows[0]
                self._where = Position(resume.incarnation, last["lsn"][-1].as_py(), last["seq"][-1].as_py())

    def add_chunk(
        self, chunk: OpenChunk, schema: TableSchema, first_row: int, payload: pa.BinaryArray, format_: str
    ) -> None:
        """Adds rows that a chunk read, numbered from ``first_row``; waits while the batch is full. Raises Closed."""
        with self._changed:
            while self.full and not self._closed:
                self._changed.wait()
            if self._closed:
                raise Closed
            chunk.traced(self.number)
            if schema.schema_id not in self._schemas:
                self._schemas.add(schema.schema_id)
                self._chunks.append(schema_row(schema, self._where))
                self._rows += 1
            self._chunks.append(self._chunk_rows(chunk, schema.schema_id, first_row, payload, format_))
            self._rows += len(payload)
            self._bytes += payload.nbytes

    def _chunk_rows(
        self, chunk: OpenChunk, schema_id: str, first_row: int, payload: pa.BinaryArray, format_: str
    ) -> pa.Table:
        """One delivery's rows. All of a table share the columns that say the same of every row."""
        count = len(payload)
        alike = (chunk.table, schema_id, format_, self._where.incarnation)
        if self._alike != alike or self._template.num_rows < count:
            self._alike, self._template = alike, _chunk_template(*alike, count)
        columns = dict(zip(CAPTURED.names, self._template.slice(0, count).columns, strict=True))
        columns |= {"chunk_id": pa.repeat(chunk.chunk_id, count), "payload": payload}
        if first_row:
            columns["seq"] = pc.add(columns["seq"], first_row * 2)
        return pa.table(columns, schema=CAPTURED)

    def take(self) -> Filled:
        """Takes the batch out and starts the next one."""
        with self._changed:
            rows = pa.concat_tables([*self._log, *self._chunks])
            filled = Filled(self.number, self._stamped(rows), self.resume, self._closes, self._heartbeats)
            self._start()
            self.number += 1
            self._changed.notify_all()
            return filled

    def _stamped(self, rows: pa.Table) -> pa.Table:
        count = rows.num_rows
        now = pa.scalar(time.time_ns() // 1000, pa.int64()).cast(LANDING.field("landed_at").type)
        columns = [
            pa.repeat(pa.scalar(self.number, pa.int64()), count),
            pa.repeat(pa.scalar(self._lease_epoch, pa.int64()), count),
            *rows.columns,
            pa.repeat(now, count),
        ]
        return pa.table(columns, schema=LANDING)

    def close(self) -> None:
        """Frees whoever waits to add, with Closed."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def _chunk_template(table: str, schema_id: str, format_: str, incarnation: int, count: int) -> pa.Table:
    """Chunk rows as they are whatever was read; numbered from the chunk's first row."""
    values: dict[str, pa.Array] = {
        "incarnation": pa.repeat(pa.scalar(incarnation, pa.int64()), count),
        "seq": pa.array(np.arange(count, dtype=np.int64) * 2),
        "kind": pa.repeat(CHUNK, count),
        "table": pa.repeat(table, count),
        "schema_id": pa.repeat(schema_id, count),
        "last_in_txn": pa.repeat(False, count),
        "format": pa.repeat(format_, count),
    }
    return pa.table([values[f.name] if f.name in values else pa.nulls(count, f.type) for f in CAPTURED], schema=CAPTURED)


def schema_row(schema: TableSchema, where: Position) -> pa.Table:
    """The landing row that says how a table looks, as a chunk found it, from a position on."""
    row = {
        "incarnation": where.incarnation, "lsn": where.lsn, "seq": where.seq, "kind": SCHEMA, "table": schema.table,
        "schema_id": schema.schema_id, "last_in_txn": False, "format": JSON, "payload": schema.to_json().encode(),
    }
    return pa.Table.from_pylist([row], schema=CAPTURED)
