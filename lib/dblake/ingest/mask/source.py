"""A source with masked columns: everything that comes from it is masked before capture receives it.

Wraps a source and is itself a Source. Guarantees: every schema it returns is the masked one, so nothing downstream has
to know of masks; rows of a table with rules are masked or not returned. Masked key values leave it encrypted, because
capture stores where a dump resumes in its progress documents.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from dblake.base.core.errors import SourceError
from dblake.base.core.mask_rules import key_is_masked
from dblake.base.core.position import ResumePoint
from dblake.base.core.schema import TableSchema
from dblake.base.core.source import (
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
    UnfitTable,
)
from dblake.ingest.mask.masks import Masking, Masks
from dblake.ingest.mask.rows import mask_chunk, mask_log, merge_by_position
from dblake.ingest.source.checks import require_met
from dblake.landing.columns import COPY, KIND, PAYLOAD, ROW, SCHEMA, SCHEMA_ID


class MaskedSource:
    """A Source whose catalog, log and chunks are masked; see Source for the methods."""

    def __init__(self, source: Source, masks: Masks) -> None:
        self._source, self._masks = source, masks
        self._has_checked_rules = False
        self.name, self.schema_changes_in_log = source.name, source.schema_changes_in_log

    # Prerequisites: the source's own, and one for the rules.

    def preflight(self) -> list[Check]:
        checks = self._source.preflight()
        if any(check.check == "connect" and not check.ok for check in checks):
            return checks
        return [*checks, self._check_rules()]

    def require(self) -> Mapping[str, UnfitTable]:
        unfit = self._source.require()
        if not self._has_checked_rules:
            # Once: a table dropped later needs no mask, and its rule must not end capture of the others.
            require_met(self.name, [self._check_rules()])
            self._has_checked_rules = True
        return unfit

    def _check_rules(self) -> Check:
        tables = self._source.tables()
        self._masks.set_tables(tables)
        faults = self._masks.faults(tables)
        return Check("masks", not faults, "; ".join(faults), "correct `mask` in the configuration" if faults else "")

    # Catalog: schemas and fingerprints are masked.

    def tables(self) -> Sequence[TableSchema]:
        tables = self._source.tables()
        self._masks.set_tables(tables)
        return [self._masked_schema(table) for table in tables]

    def table_fingerprints(self) -> Sequence[TableFingerprint]:
        return [self._masked_fingerprint(current) for current in self._source.table_fingerprints()]

    def _masked_fingerprint(self, current: TableFingerprint) -> TableFingerprint:
        schema, fingerprint = self._masked_schema(current.schema), self._masks.fingerprint
        return replace(current, schema=schema, columns={
            name: replace(column, type=column.type + fingerprint(name, schema.table))
            for name, column in current.columns.items() if name in schema.names
        })

    def _masked_schema(self, schema: TableSchema) -> TableSchema:
        masking = self._masks.masking_of(schema)
        return masking.schema if masking else schema

    def log_retention(self, resume: ResumePoint | None) -> LogRetention:
        return self._source.log_retention(resume)

    def row_estimates(self, tables: Sequence[str]) -> Mapping[str, int]:
        return self._source.row_estimates(tables)

    # Log and chunks: rows are masked.

    def identity(self) -> ServerIdentity:
        return self._source.identity()

    def find_continuation(self, known: ServerIdentity, resume: ResumePoint) -> ResumePoint | None:
        return self._source.find_continuation(known, resume)

    def terminate_stale_reader(self) -> None:
        self._source.terminate_stale_reader()

    def recreate_slot(self) -> None:
        self._source.recreate_slot()

    def open_log(self, resume: ResumePoint | None, incarnation: int) -> LogStream:
        return _MaskedLog(self._source.open_log(resume, incarnation), self._masks)

    def open_reader(self) -> ChunkReader:
        return _MaskedReader(self._source.open_reader(), self._masks)


class _MaskedLog:
    """A LogStream with masked rows and schemas; see LogStream for the methods."""

    def __init__(self, log: LogStream, masks: Masks) -> None:
        self._log, self._masks = log, masks
        self._schemas: dict[str, tuple[TableSchema, Masking | None]] = {}

    @property
    def start(self) -> ResumePoint:
        return self._log.start

    def read(self, *, max_bytes: int, max_rows: int, seconds: float) -> LogPiece | None:
        piece = self._log.read(max_bytes=max_bytes, max_rows=max_rows, seconds=seconds)
        return piece and replace(piece, rows=self._mask(piece.rows))

    def _mask(self, rows: pa.Table) -> pa.Table:
        self._collect_schemas(rows)
        ids = [name for name in pc.unique(rows[SCHEMA_ID]).to_pylist() if name is not None]
        if unknown := [name for name in ids if name not in self._schemas]:
            raise SourceError(
                f"the log has rows of schemas that it has not declared: {', '.join(unknown)}",
                next_step="run this again",
            )
        masked = {name: masking for name in ids if (masking := self._schemas[name][1])}
        if not masked:
            return rows
        changes = pc.and_(pc.equal(rows[KIND], ROW), pc.is_in(rows[SCHEMA_ID], pa.array(list(masked))))
        others = self._replace_schemas(rows.filter(pc.invert(pc.fill_null(changes, False))), masked)
        return merge_by_position([others, *(
            mask_log(of_schema, self._schemas[name][0], masking) for name, masking in masked.items()
            if (of_schema := rows.filter(pc.and_(changes, pc.equal(rows[SCHEMA_ID], name)))).num_rows
        )])

    def _collect_schemas(self, rows: pa.Table) -> None:
        for row in rows.filter(pc.equal(rows[KIND], SCHEMA)).select([SCHEMA_ID, PAYLOAD]).to_pylist():
            schema = TableSchema.from_json(row[PAYLOAD])
            self._schemas[row[SCHEMA_ID]] = schema, self._masks.masking_of(schema)

    @staticmethod
    def _replace_schemas(rows: pa.Table, masked: dict[str, Masking]) -> pa.Table:
        """Return rows without values (schemas, and rows that only name one) with the masked schemas. They are few."""
        is_masked = pc.fill_null(pc.is_in(rows[SCHEMA_ID], pa.array(list(masked))), False)
        replaced = rows.filter(is_masked).to_pylist()
        for row in replaced:
            schema = masked[row[SCHEMA_ID]].schema
            row[SCHEMA_ID] = schema.schema_id
            if row[KIND] == SCHEMA:
                row[PAYLOAD] = schema.to_json().encode()
        return merge_by_position(
            [rows.filter(pc.invert(is_masked)), pa.Table.from_pylist(replaced, schema=rows.schema)]
        )

    def acknowledge(self, point: ResumePoint) -> None:
        self._log.acknowledge(point)

    def keep_alive(self) -> None:
        self._log.keep_alive()

    def close(self) -> None:
        self._log.close()


class _MaskedReader:
    """A ChunkReader with masked rows; see ChunkReader. ``format`` depends on the table that is being read."""

    def __init__(self, reader: ChunkReader, masks: Masks) -> None:
        self._reader, self._masks = reader, masks
        self.format = reader.format

    def mark(self, reader: int, value: str) -> None:
        self._reader.mark(reader, value)

    def beat(self, name: str) -> None:
        self._reader.beat(name)

    def read_mark(self, reader: int) -> str:
        return self._reader.read_mark(reader)

    def split_points(self, table: str, parts: int, rows: int) -> Sequence[tuple[str, ...]]:
        keys = self._reader.split_points(table, parts, rows)
        return [self._masks.encrypt_key(key) for key in keys] if self._masks.encrypts_keys(table) else keys

    def read(self, request: ChunkRequest, deliver: Callable[[pa.BinaryArray, TableSchema], None]) -> ChunkRead:
        table, sent_format = request.table, self._reader.format
        # Supplied rows are resumed by their place, which is no key.
        is_encrypted = request.rows is None and self._masks.encrypts_keys(table)

        def decrypt(key: tuple[str, ...] | None) -> tuple[str, ...] | None:
            return self._masks.decrypt_key(table, key) if is_encrypted and key is not None else key

        def deliver_masked(payload: pa.BinaryArray, schema: TableSchema) -> None:
            masking = self._masks.masking_of(schema)
            self.format = COPY if masking else sent_format
            if masking is None:
                deliver(payload, schema)
                return
            if request.keys is not None and masking.masks_key:
                raise key_is_masked(table)
            deliver(mask_chunk(payload, sent_format, schema, masking), masking.schema)

        read = self._reader.read(
            replace(request, after=decrypt(request.after), upto=decrypt(request.upto)), deliver_masked
        )
        masking = self._masks.masking_of(read.schema)
        last = read.last_key
        if is_encrypted and last is not None:
            last = self._masks.encrypt_key(last)
        return replace(read, schema=masking.schema if masking else read.schema, last_key=last)

    def close(self) -> None:
        self._reader.close()
