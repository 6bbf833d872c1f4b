"""The batch being filled: log pieces and chunk rows, until one commit takes them all.

Chunk readers add from their own threads and block while the batch is full, so a dump never outruns landing and never
takes more memory than a batch. The log loop adds without blocking.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblake.base.core.position import Position, ResumePoint
from dblake.base.core.schema import TableSchema
from dblake.ingest.capture.open_chunk import OpenChunk
from dblake.landing.columns import CAPTURED, CHUNK, JSON, LANDING, MOVED, SCHEMA, VERIFY_CHUNK
from dblake.landing.control import MoveMark


class Closed(Exception):
    """Capture ends; the batch accepts no more rows."""


class NoRoom(Exception):
    """The batch stayed full for too long."""


@dataclass(slots=True)
class Batch:
    """A batch ready to land: its LANDING rows, where the log resumes after it, and the chunks whose windows it closes.

    ``heartbeats`` are the names of the heartbeats among its rows; ``heartbeat`` is the row's value at ``resume``, empty
    if that is not known.
    """

    number: int
    rows: pa.Table
    resume: ResumePoint
    closes: list[OpenChunk] = field(default_factory=list)
    heartbeats: set[str] = field(default_factory=set)
    heartbeat: str = ""


class BatchBuilder:
    """Collects rows into numbered batches. A batch counts payload bytes and rows against its limits.

    A full batch is to be committed. While that has to wait for the commit before it, the batch may grow to ``stretch``
    times its limits.
    """

    def __init__(
        self, *, first: int, lease_epoch: int, resume: ResumePoint, max_bytes: int, max_rows: int, stretch: int = 1,
        heartbeat: str = "",
    ) -> None:
        self._lease_epoch, self._stretch = lease_epoch, stretch
        self._max_bytes, self._max_rows = max_bytes, max_rows
        self._changed = threading.Condition()
        self._closed = False
        self._schemas: set[str] = set()
        self._template_key: tuple[str, str, str, str, int] | None = None
        self._template = CAPTURED.empty_table()
        self._log_position = Position(resume.incarnation, 0)
        self.number = first
        self.resume, self._heartbeat = resume, heartbeat
        self._start()

    def _start(self) -> None:
        self._log: list[pa.Table] = []
        self._chunks: list[pa.Table] = []
        self._closes: list[OpenChunk] = []
        self._heartbeats: set[str] = set()
        self._bytes = self._rows = 0

    @property
    def rows(self) -> int:
        """The number of rows in the batch being filled."""
        return self._rows

    @property
    def log_position(self) -> Position:
        """The position of the last row of the log that was added."""
        return self._log_position

    @property
    def is_full(self) -> bool:
        """True if the batch has reached a limit and should be committed."""
        return self._bytes >= self._max_bytes or self._rows >= self._max_rows

    @property
    def has_room(self) -> bool:
        """True if rows may be added before the batch is committed."""
        return self._bytes < self._stretch * self._max_bytes and self._rows < self._stretch * self._max_rows

    def add_log(
        self, rows: list[pa.Table], size: int, resume: ResumePoint, closes: list[OpenChunk],
        heartbeats: set[str], heartbeat: str,
    ) -> None:
        """Add one piece of log as CAPTURED rows, watermark rows included; ``size`` is its payload in bytes.

        ``heartbeats`` are the names of its heartbeats, ``heartbeat`` is the row's value behind it. None of the tables
        is empty. Never blocks.
        """
        with self._changed:
            for table in rows:
                self._log.append(table)
                self._rows += table.num_rows
            self._bytes += size
            self.resume = resume
            self._closes += closes
            self._heartbeats |= heartbeats
            self._heartbeat = heartbeat
            if rows:
                last = rows[0]
                self._log_position = Position(resume.incarnation, last["lsn"][-1].as_py(), last["seq"][-1].as_py())

    def add_move(self, mark: MoveMark) -> None:
        """Add the row that begins an incarnation in which another server continues the log. Call it first."""
        with self._changed:
            self._log.append(moved_row(self.resume.incarnation, mark))
            self._rows += 1

    def add_chunk(
        self, chunk: OpenChunk, schema: TableSchema, first_row: int, payload: pa.BinaryArray, format_: str, *,
        wait_seconds: float = float("inf"),
    ) -> None:
        """Add rows of a chunk, numbered from ``first_row``, and their schema before the first ones that have it.

        Blocks while the batch has no room; raises NoRoom after ``wait_seconds``, and Closed once the builder is closed.
        """
        with self._changed:
            self._await_room(wait_seconds)
            chunk.add_batch(self.number)
            if schema.schema_id not in self._schemas:
                self._schemas.add(schema.schema_id)
                self._chunks.append(schema_row(schema, self._log_position))
                self._rows += 1
            self._chunks.append(self._chunk_rows(chunk, schema.schema_id, first_row, payload, format_))
            self._rows += len(payload)
            self._bytes += payload.nbytes

    def wait_for_room(self) -> None:
        """Block while the batch has no room. Raises Closed once the builder is closed."""
        with self._changed:
            self._await_room(float("inf"))

    def _await_room(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self.has_room and not self._closed:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise NoRoom
            self._changed.wait(None if remaining == float("inf") else remaining)
        if self._closed:
            raise Closed

    def _chunk_rows(
        self, chunk: OpenChunk, schema_id: str, first_row: int, payload: pa.BinaryArray, format_: str
    ) -> pa.Table:
        """Return one delivery as CAPTURED rows; deliveries of a table share their constant columns."""
        count = len(payload)
        kind = VERIFY_CHUNK if chunk.verify else CHUNK
        template_key = (kind, chunk.table, schema_id, format_, self._log_position.incarnation)
        if self._template_key != template_key or self._template.num_rows < count:
            self._template_key, self._template = template_key, _chunk_template(*template_key, count)
        columns = dict(zip(CAPTURED.names, self._template.slice(0, count).columns, strict=True))
        columns |= {"chunk_id": pa.repeat(chunk.chunk_id, count), "payload": payload}
        if first_row:
            columns["seq"] = pc.add(columns["seq"], first_row * 2)
        return pa.table(columns, schema=CAPTURED)

    def take(self) -> Batch:
        """Return the filled batch and start the next one."""
        with self._changed:
            rows = self._to_landing(pa.concat_tables([*self._log, *self._chunks]))
            batch = Batch(self.number, rows, self.resume, self._closes, self._heartbeats, self._heartbeat)
            self._start()
            self.number += 1
            self._changed.notify_all()
            return batch

    def _to_landing(self, rows: pa.Table) -> pa.Table:
        """Return CAPTURED rows as LANDING rows: with batch number, lease epoch and the current time."""
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
        """Unblock the waiting ``add_chunk`` calls, which raise Closed."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def _chunk_template(
    kind: str, table: str, schema_id: str, format_: str, incarnation: int, count: int
) -> pa.Table:
    """Return ``count`` CAPTURED rows of a chunk without payload and chunk id, numbered from 0."""
    values: dict[str, pa.Array] = {
        "incarnation": pa.repeat(pa.scalar(incarnation, pa.int64()), count),
        "seq": pa.array(np.arange(count, dtype=np.int64) * 2),
        "kind": pa.repeat(kind, count),
        "table": pa.repeat(table, count),
        "schema_id": pa.repeat(schema_id, count),
        "last_in_txn": pa.repeat(False, count),
        "format": pa.repeat(format_, count),
    }
    columns = [values[f.name] if f.name in values else pa.nulls(count, f.type) for f in CAPTURED]
    return pa.table(columns, schema=CAPTURED)


def moved_row(incarnation: int, mark: MoveMark) -> pa.Table:
    """Return the CAPTURED row of an incarnation that begins where another server continues the log."""
    row = {
        "incarnation": incarnation, "kind": MOVED, "last_in_txn": False, "format": JSON, "payload": mark.to_json(),
    }
    return pa.Table.from_pylist([row], schema=CAPTURED)


def schema_row(schema: TableSchema, since: Position) -> pa.Table:
    """Return the CAPTURED row that declares a table's schema, as a chunk read it, from a position on."""
    row = {
        "incarnation": since.incarnation, "lsn": since.lsn, "seq": since.seq, "kind": SCHEMA, "table": schema.table,
        "schema_id": schema.schema_id, "last_in_txn": False, "format": JSON, "payload": schema.to_json().encode(),
    }
    return pa.Table.from_pylist([row], schema=CAPTURED)
