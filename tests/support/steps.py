"""A source that runs a test's actions inside chunk windows: before or after the read, between its two watermarks.

Every call is forwarded to the wrapped source. A step is keyed by its point in the window and the table being read:
``{("low", "public.t"): act}``. ``low`` is after the low watermark and before the read, ``read`` after the read and
before the high watermark, ``high`` after the high watermark. A step runs once, at the table's first chunk; the key
``("every low", "public.t")``, and so on, runs it at every chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from dblake.base.core.position import ResumePoint
from dblake.base.core.schema import TableSchema
from dblake.base.core.source import (
    Check,
    ChunkRead,
    ChunkReader,
    ChunkRequest,
    LogRetention,
    LogStream,
    ServerIdentity,
    Source,
    TableFingerprint,
    UnfitTable,
)

Steps = Mapping[tuple[str, str], Callable[[], None]]


class Stepped:
    """The wrapped source."""

    def __init__(self, source: Source, steps: Steps) -> None:
        self._source, self._steps = source, steps
        self._taken: set[tuple[str, str]] = set()
        self.name, self.schema_changes_in_log = source.name, source.schema_changes_in_log

    def take(self, point: str, table: str) -> None:
        """Run the steps of this point and table, if there are any."""
        if (point, table) in self._steps and (point, table) not in self._taken:
            self._taken.add((point, table))
            self._steps[point, table]()
        if (f"every {point}", table) in self._steps:
            self._taken.add((f"every {point}", table))
            self._steps[f"every {point}", table]()

    def require_all_taken(self) -> None:
        """Raise AssertionError if a step did not run: its test would prove nothing."""
        assert self._steps.keys() == self._taken

    def preflight(self) -> list[Check]:
        return self._source.preflight()

    def require(self) -> Mapping[str, UnfitTable]:
        return self._source.require()

    def identity(self) -> ServerIdentity:
        return self._source.identity()

    def find_continuation(self, known: ServerIdentity, resume: ResumePoint) -> ResumePoint | None:
        return self._source.find_continuation(known, resume)

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

    @format.setter
    def format(self, value: str) -> None:  # the protocol declares an attribute
        self._reader.format = value

    def mark(self, reader: int, value: str) -> None:
        self._reader.mark(reader, value)
        if self._read is not None:
            table, self._read = self._read, None
            self._stepped.take("high", table)

    def beat(self, name: str) -> None:
        self._reader.beat(name)

    def read_mark(self, reader: int) -> str:
        return self._reader.read_mark(reader)

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
