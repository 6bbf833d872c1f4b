"""A memory database as a Source: opens its log and its chunk readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dblake.base.core.names import TableFilter, split_qualified
from dblake.base.core.position import ResumePoint
from dblake.base.core.schema import TableSchema
from dblake.base.core.source import Check, ColumnFingerprint, LogRetention, ServerIdentity, TableFingerprint, UnfitTable
from dblake.ingest.source.memory.chunks import MemoryChunkReader
from dblake.ingest.source.memory.database import MemoryDatabase
from dblake.ingest.source.memory.log import MemoryLogStream


class MemorySource:
    """See Source. ``patterns`` select the captured tables; ``slot`` defaults to the source's name."""

    schema_changes_in_log = False

    def __init__(
        self, database: MemoryDatabase, *, name: str = "memory", patterns: Sequence[str] = ("*.*",), slot: str = ""
    ) -> None:
        self._database = database
        self._slot = slot or name
        self._table_filter = TableFilter(list(patterns))
        self.name = name

    def preflight(self) -> list[Check]:
        """Return no checks: the database has no prerequisites."""
        return []

    def require(self) -> Mapping[str, UnfitTable]:
        """Return no tables: the database has no prerequisites."""
        return {}

    def identity(self) -> ServerIdentity:
        return ServerIdentity(self._database.server, self._database.life)

    def find_continuation(self, known: ServerIdentity, resume: ResumePoint) -> ResumePoint | None:  # noqa: ARG002 - there are no replicas
        return None

    def tables(self) -> Sequence[TableSchema]:
        return [schema for schema in self._database.schemas() if self._table_filter(*split_qualified(schema.table))]

    def table_fingerprints(self) -> Sequence[TableFingerprint]:
        return [
            TableFingerprint(schema, {c.name: ColumnFingerprint(f"{c.type} key {c.key}") for c in schema.columns})
            for schema in self.tables()
        ]

    def log_retention(self, resume: ResumePoint | None) -> LogRetention:  # noqa: ARG002 - the slot has its own position
        if self._slot not in self._database.slots:
            return LogRetention(lost=True)
        behind = self._database.end - self._database.slots[self._slot].confirmed
        return LogRetention(behind=behind, kept=behind)

    def row_estimates(self, tables: Sequence[str]) -> Mapping[str, int]:
        return {table: len(self._database.rows(table)) for table in tables}

    def terminate_stale_reader(self) -> None:
        """Do nothing: no connection holds the slot after its end."""

    def recreate_slot(self) -> None:
        if self._slot not in self._database.slots:
            self._database.make_slot(self._slot)

    def open_log(self, resume: ResumePoint | None, incarnation: int) -> MemoryLogStream:
        return MemoryLogStream(self._database, self._slot, self._table_filter, resume, incarnation)

    def open_reader(self) -> MemoryChunkReader:
        return MemoryChunkReader(self._database, self.name)
