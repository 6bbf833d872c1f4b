"""PostgreSQL as a Source: opens the log, the chunk readers and the checks over one set of settings."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from dblake.core.position import ResumePoint
from dblake.core.schema import TableSchema
from dblake.core.source import Check, LogRetention, ServerIdentity, TableFingerprint
from dblake.source.checks import require_met
from dblake.source.postgres import catalog as catalogue
from dblake.source.postgres import standing, statements, timeline
from dblake.source.postgres.chunks import PgChunkReader
from dblake.source.postgres.connection import asking, connect
from dblake.source.postgres.log import PgLogStream
from dblake.source.postgres.preflight import preflight
from dblake.source.postgres.settings import PostgresSettings

_JUDGED_BY_OPEN_LOG = ("connect", "slot", "replication_slots", "wal_senders")

logger = logging.getLogger(__name__)


class PostgresSource:
    """See Source for the methods."""

    schema_changes_in_log = False

    def __init__(self, settings: PostgresSettings) -> None:
        self._settings = settings
        self.name = settings.name

    def preflight(self) -> list[Check]:
        return preflight(self._settings)

    def require(self) -> None:
        # What concerns the slot is judged when the log is opened, which knows where it has to resume.
        require_met(self.name, (c for c in self.preflight() if not c.check.startswith(_JUDGED_BY_OPEN_LOG)))

    def identity(self) -> ServerIdentity:
        return timeline.identity(self._settings)

    def is_promoted_replica(self, known: ServerIdentity, resume: ResumePoint) -> bool:
        return timeline.is_promoted_replica(self._settings, known, resume)

    def tables(self) -> Sequence[TableSchema]:
        with asking(self._settings, purpose="tables") as cur:
            found = catalogue.captured_tables(cur, self._settings.wanted, self._settings.watermark_schema)
        return [table.schema for table in found]

    def table_fingerprints(self) -> Sequence[TableFingerprint]:
        with asking(self._settings, purpose="tables") as cur:
            return standing.table_fingerprints(cur, self._settings)

    def log_retention(self, resume: ResumePoint | None) -> LogRetention:  # noqa: ARG002 - the slot knows
        with asking(self._settings, purpose="status") as cur:
            return standing.log_retention(cur, self._settings)

    def row_estimates(self, tables: Sequence[str]) -> Mapping[str, int]:
        with asking(self._settings, purpose="status") as cur:
            return standing.row_estimates(cur, tables)

    def terminate_stale_reader(self) -> None:
        with asking(self._settings, purpose="catalogue") as cur:
            cur.execute(
                "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
                " WHERE slot_name = %s AND active_pid IS NOT NULL",
                (self._settings.slot,),
            )
            if cur.rowcount:
                logger.info("source %s: ended another connection's hold of the slot", self.name)

    def recreate_slot(self) -> None:
        with asking(self._settings, purpose="slot") as cur:
            slot = (self._settings.slot,)
            cur.execute("SELECT wal_status = 'lost' FROM pg_replication_slots WHERE slot_name = %s", slot)
            found = cur.fetchone()
            if found and found[0]:
                cur.execute("SELECT pg_drop_replication_slot(%s)", slot)
            if not found or found[0]:
                cur.execute(statements.create_slot(self._settings, cur.connection.server_version))
                logger.info("source %s: made the slot anew", self.name)

    def open_log(self, resume: ResumePoint | None, incarnation: int) -> PgLogStream:
        return PgLogStream(self._settings, connect(self._settings, purpose="catalogue"), resume, incarnation)

    def open_reader(self) -> PgChunkReader:
        return PgChunkReader(self._settings, connect(self._settings, purpose="chunks"))
