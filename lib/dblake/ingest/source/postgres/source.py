"""PostgreSQL as a Source: opens the log, the chunk readers and the checks over one set of settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dblake.base.core.position import ResumePoint
from dblake.base.core.schema import TableSchema
from dblake.base.core.source import Check, ChunkReader, LogRetention, ServerIdentity, TableFingerprint, UnfitTable
from dblake.ingest.source.checks import unfit_tables
from dblake.ingest.source.postgres import catalog, fingerprints, log_retention, primary, slot, standby, timeline
from dblake.ingest.source.postgres.chunks import PgChunkReader
from dblake.ingest.source.postgres.connection import connect, open_cursor
from dblake.ingest.source.postgres.log import PgLogStream
from dblake.ingest.source.postgres.own_publication import has_unpublished, publish_owned_tables
from dblake.ingest.source.postgres.preflight import preflight
from dblake.ingest.source.postgres.settings import PostgresSettings
from dblake.ingest.source.postgres.watermarks import MarkPlace
from dblake.ingest.source.replica import check_replica, open_chunk_reader

_CHECKED_BY_OPEN_LOG = ("slot", "replication_slots", "wal_senders")


class PostgresSource:
    """See Source for the methods."""

    schema_changes_in_log = False

    def __init__(self, settings: PostgresSettings) -> None:
        self._settings = settings
        self._primary = settings.at_primary()
        self.name = settings.name

    def preflight(self) -> list[Check]:
        return [*self._check(), *check_replica(self._primary, self._require_standby)]

    def _check(self) -> list[Check]:
        return [*preflight(self._settings), *primary.check_primary(self._settings)]

    def require(self) -> Mapping[str, UnfitTable]:
        # ``open_log`` checks the slot, because it has the resume point.
        checks = self._check()
        if has_unpublished(checks):
            with open_cursor(self._primary, purpose="publication") as cur:
                is_published = publish_owned_tables(cur, self._primary) > 0
            checks = self._check() if is_published else checks
        checks = [c for c in checks if not c.check.startswith(_CHECKED_BY_OPEN_LOG)]
        return unfit_tables(self.name, checks)

    def identity(self) -> ServerIdentity:
        return timeline.identity(self._settings)

    def find_continuation(self, known: ServerIdentity, resume: ResumePoint) -> ResumePoint | None:
        return resume if timeline.is_promoted_replica(self._settings, known, resume) else None

    def tables(self) -> Sequence[TableSchema]:
        with open_cursor(self._settings, purpose="tables") as cur:
            tables = catalog.captured_tables(cur, self._settings.table_filter, self._settings.watermark_schema)
        return [table.schema for table in tables]

    def table_fingerprints(self) -> Sequence[TableFingerprint]:
        with open_cursor(self._settings, purpose="tables") as cur:
            return fingerprints.table_fingerprints(cur, self._settings)

    def log_retention(self, resume: ResumePoint | None) -> LogRetention:  # noqa: ARG002 - the slot has its own position
        with open_cursor(self._settings, purpose="status") as cur:
            return log_retention.log_retention(cur, self._settings)

    def row_estimates(self, tables: Sequence[str]) -> Mapping[str, int]:
        with open_cursor(self._settings, purpose="status") as cur:
            return log_retention.row_estimates(cur, tables)

    def terminate_stale_reader(self) -> None:
        with open_cursor(self._settings, purpose="catalog") as cur:
            slot.terminate_reader(cur, self._settings)

    def recreate_slot(self) -> None:
        with open_cursor(self._settings, purpose="slot") as cur:
            slot.recreate_slot(cur, self._settings)

    def open_log(self, resume: ResumePoint | None, incarnation: int) -> PgLogStream:
        return PgLogStream(self._settings, connect(self._settings, purpose="catalog"), resume, incarnation)

    def open_reader(self) -> ChunkReader:
        places: dict[int, MarkPlace] = {}

        def open_one(settings: PostgresSettings) -> ChunkReader:
            return PgChunkReader(settings, connect(settings, purpose="chunks"), places)

        return open_chunk_reader(self._primary, open_one, self._require_standby)

    def _require_standby(self, replica: PostgresSettings) -> None:
        has_log = self._settings.primary is not None
        standby.require_standby(replica, timeline.identity(self._primary), has_log=has_log)
