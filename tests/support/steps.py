"""A source in whose chunk windows a test can act: between a chunk's low watermark, its read and its high watermark.

Nothing is replaced: every call goes on to the source itself. A step is named by where it happens and the table being
read: ``{("low", "public.t"): act}``. ``low`` is after the low watermark and before the read, ``read`` after the read
and before the high watermark, ``high`` after that. A step happens once, at the table's first chunk; a step for all
chunks stands under ``("every low", "public.t")`` and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from dblake.core.position import ResumePoint
from dblake.core.schema import TableSchema
from dblake.core.source import (
    HEARTBEAT_ROW,
    Check,
    ChunkRead,
    ChunkReader,
    ChunkRequest,
    LogRetention,
    LogStream,
    ServerIdentity,
    Source,
    TableFingerprint,
)

Steps = Mapping[tuple[str, str], Callable[[], None]]


class Stepped:
    """The source with the steps."""

    def __init__(self, source: Source, steps: Steps) -> None:
        self._source, self._steps = source, steps
        self._taken: set[tuple[str, str]] = set()
        self.name, self.schema_changes_in_log = source.name, source.schema_changes_in_log

    def take(self, where: str, table: str) -> None:
        """Takes the step there, if there is one."""
        if (where, table) in self._steps and (where, table) not in self._taken:
            self._taken.add((where, table))
            self._steps[where, table]()
        if (f"every {where}", table) in self._steps:
            self._taken.add((f"every {where}", table))
            self._steps[f"every {where}", table]()

    def require_all_taken(self) -> None:
        """A step that never happened tests nothing."""
        assert self._steps.keys() == self._taken

    def preflight(self) -> list[Check]:
        return self._source.preflight()

    def require(self) -> None:
        self._source.require()

    def identity(self) -> ServerIdentity:
        return self._source.identity()

    def is_promoted_replica(self, known: ServerIdentity, resume: ResumePoint) -> bool:
        return self._source.is_promoted_replica(known, resume)

    def tables(self) -> Sequence[TableSchema]:
        return self._source.tables()

    def table_fingerprints(self) -> Sequence[TableFingerprint]:
        return self._source.table_fingerprints()

    def log_retention(self, resume: ResumePoint | None) -> LogRetention:
        return self._source.log_retention(resume)

    def row_estimates(self, tables: Sequence[str]) -> Mapping[str, int]:
        return self._source.row_estimates(tables)

    def terminate_stale_reader(self) -> None:
        self._source.terminate_stale_reader()

    def recreate_slot(self) -> None:
        self._source.recreate_slot()

    def open_log(self, resume: ResumePoint | None, incarnation: int) -> LogStream:
        return self._source.open_log(resume, incarnation)

    def open_reader(self) -> ChunkReader:
        return _SteppedReader(self, self._source.open_reader())


class _SteppedReader:
    def __init__(self, stepped: Stepped, reader: ChunkReader) -> None:
        self._stepped, self._reader = stepped, reader
        self._read: str | None = None

    @property
    def format(self) -> str:
        return self._reader.format

    def mark(self, reader: int, value: str) -> None:
        self._reader.mark(reader, value)
        if reader != HEARTBEAT_ROW and self._read is not None:
            table, self._read = self._read, None
            self._stepped.take("high", table)

    def split_points(self, table: str, parts: int, rows: int) -> Sequence[tuple[str, ...]]:
        return self._reader.split_points(table, parts, rows)

    def read(self, request: ChunkRequest, deliver: Callable[[pa.BinaryArray, TableSchema], None]) -> ChunkRead:
        self._stepped.take("low", request.table)
        read = self._reader.read(request, deliver)
        self._read = request.table
        self._stepped.take("read", request.table)
        return read

    def close(self) -> None:
        self._reader.close()
