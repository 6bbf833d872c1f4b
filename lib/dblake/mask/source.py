"""A source some of whose columns are masked: all that comes from it has been masked before capture sees it.

Stands between a source and capture and is itself a Source. Promises that every schema it tells of is the masked one,
so that nothing downstream knows what a column was, and that rows of a table with rules come masked or not at all.
Key values that are masked leave it sealed: capture keeps where a dump goes on in its notes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from dblake.core.errors import SourceError
from dblake.core.position import ResumePoint
from dblake.core.schema import TableSchema
from dblake.core.source import (
    Check,
    ChunkRead,
    ChunkReader,
    ChunkRequest,
    LogPiece,
    LogRetention,
    LogStream,
    ServerIdentity,
    Source,
    TableFingerprint,
)
from dblake.landing.columns import COPY, KIND, PAYLOAD, ROW, SCHEMA, SCHEMA_ID
from dblake.mask.rows import in_order, masked_lines, masked_log
from dblake.mask.rules import Masking, Masks, key_is_masked
from dblake.source.checks import require_met


class MaskedSource:
    """See Source for the methods."""

    def __init__(self, source: Source, masks: Masks) -> None:
        self._source, self._masks = source, masks
        self.name, self.schema_changes_in_log = source.name, source.schema_changes_in_log

    def preflight(self) -> list[Check]:
        checks = self._source.preflight()
        if any(check.check == "connect" and not check.ok for check in checks):
            return checks
        return [*checks, self._check()]

    def require(self) -> None:
        self._source.require()
        require_met(self.name, [self._check()])

    def _check(self) -> Check:
        tables = self._source.tables()
        self._masks.look(tables)
        wrong = self._masks.wrong(tables)
        return Check("masks", not wrong, "; ".join(wrong), "correct `mask` in the configuration" if wrong else "")

    def identity(self) -> ServerIdentity:
        return self._source.identity()

    def is_promoted_replica(self, known: ServerIdentity, resume: ResumePoint) -> bool:
        return self._source.is_promoted_replica(known, resume)

    def tables(self) -> Sequence[TableSchema]:
        found = self._source.tables()
        self._masks.look(found)
        return [self._schema(table) for table in found]

    def table_fingerprints(self) -> Sequence[TableFingerprint]:
        return [self._standing(now) for now in self._source.table_fingerprints()]

    def _standing(self, now: TableFingerprint) -> TableFingerprint:
        schema, told = self._schema(now.schema), self._masks.standing
        return replace(now, schema=schema, columns={
            name: replace(column, type=column.type + told(name, schema.table))
            for name, column in now.columns.items() if name in schema.names
        })

    def _schema(self, schema: TableSchema) -> TableSchema:
        masking = self._masks.of(schema)
        return masking.schema if masking else schema

    def log_retention(self, resume: ResumePoint | None) -> LogRetention:
        return self._source.log_retention(resume)

    def row_estimates(self, tables: Sequence[str]) -> Mapping[str, int]:
        return self._source.row_estimates(tables)

    def terminate_stale_reader(self) -> None:
        self._source.terminate_stale_reader()

    def recreate_slot(self) -> None:
        self._source.recreate_slot()

    def open_log(self, resume: ResumePoint | None, incarnation: int) -> LogStream:
        return _MaskedLog(self._source.open_log(resume, incarnation), self._masks)

    def open_reader(self) -> ChunkReader:
        return _MaskedReader(self._source.open_reader(), self._masks)


class _MaskedLog:
    """See LogStream for the methods."""

    def __init__(self, log: LogStream, masks: Masks) -> None:
        self._log, self._masks = log, masks
        self._known: dict[str, tuple[TableSchema, Masking | None]] = {}

    @property
    def start(self) -> ResumePoint:
        return self._log.start

    def read(self, *, max_bytes: int, max_rows: int, seconds: float) -> LogPiece | None:
        piece = self._log.read(max_bytes=max_bytes, max_rows=max_rows, seconds=seconds)
        return piece and replace(piece, rows=self._masked(piece.rows))

    def _masked(self, rows: pa.Table) -> pa.Table:
        self._learn(rows)
        ids = [name for name in pc.unique(rows[SCHEMA_ID]).to_pylist() if name is not None]
        if unknown := [name for name in ids if name not in self._known]:
            raise SourceError(f"the log has rows of schemas it has not told: {', '.join(unknown)}",
                              next_step="run again")
        masked = {name: masking for name in ids if (masking := self._known[name][1])}
        if not masked:
            return rows
        changes = pc.and_(pc.equal(rows[KIND], ROW), pc.is_in(rows[SCHEMA_ID], pa.array(list(masked))))
        rest = self._renamed(rows.filter(pc.invert(pc.fill_null(changes, False))), masked)
        return in_order([rest, *(
            masked_log(of_it, self._known[name][0], masking) for name, masking in masked.items()
            if (of_it := rows.filter(pc.and_(changes, pc.equal(rows[SCHEMA_ID], name)))).num_rows
        )])

    def _learn(self, rows: pa.Table) -> None:
        for told in rows.filter(pc.equal(rows[KIND], SCHEMA)).select([SCHEMA_ID, PAYLOAD]).to_pylist():
            schema = TableSchema.from_json(told[PAYLOAD])
            self._known[told[SCHEMA_ID]] = schema, self._masks.of(schema)

    @staticmethod
    def _renamed(rows: pa.Table, masked: dict[str, Masking]) -> pa.Table:
        """What holds no values: schemas, and what only names one. These are few."""
        touched = pc.fill_null(pc.is_in(rows[SCHEMA_ID], pa.array(list(masked))), False)
        few = rows.filter(touched).to_pylist()
        for row in few:
            schema = masked[row[SCHEMA_ID]].schema
            row[SCHEMA_ID] = schema.schema_id
            if row[KIND] == SCHEMA:
                row[PAYLOAD] = schema.to_json().encode()
        return in_order([rows.filter(pc.invert(touched)), pa.Table.from_pylist(few, schema=rows.schema)])

    def acknowledge(self, point: ResumePoint) -> None:
        self._log.acknowledge(point)

    def keep_alive(self) -> None:
        self._log.keep_alive()

    def close(self) -> None:
        self._log.close()


class _MaskedReader:
    """See ChunkReader for the methods. ``format`` changes with the table that is being read."""

    def __init__(self, reader: ChunkReader, masks: Masks) -> None:
        self._reader, self._masks = reader, masks
        self.format = reader.format

    def mark(self, reader: int, value: str) -> None:
        self._reader.mark(reader, value)

    def split_points(self, table: str, parts: int, rows: int) -> Sequence[tuple[str, ...]]:
        keys = self._reader.split_points(table, parts, rows)
        return [self._masks.seal(key) for key in keys] if self._masks.seals(table) else keys

    def read(self, request: ChunkRequest, deliver: Callable[[pa.BinaryArray, TableSchema], None]) -> ChunkRead:
        table, sent = request.table, self._reader.format
        sealed = self._masks.seals(table)

        def open_key(key: tuple[str, ...] | None) -> tuple[str, ...] | None:
            return self._masks.unseal(table, key) if sealed and key is not None else key

        def masked(payload: pa.BinaryArray, schema: TableSchema) -> None:
            masking = self._masks.of(schema)
            self.format = COPY if masking else sent
            if masking is None:
                deliver(payload, schema)
                return
            if request.keys is not None and masking.of_key:
                raise key_is_masked(table)
            deliver(masked_lines(payload, sent, schema, masking), masking.schema)

        read = self._reader.read(
            replace(request, after=open_key(request.after), upto=open_key(request.upto)), masked
        )
        masking = self._masks.of(read.schema)
        last = self._masks.seal(read.last_key) if sealed and read.last_key is not None else read.last_key
        return replace(read, schema=masking.schema if masking else read.schema, last_key=last)

    def close(self) -> None:
        self._reader.close()
