"""MySQL or MariaDB as a Source: opens the log, the chunk readers and the checks over one set of settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath

from dblake.base.core.position import ResumePoint
from dblake.base.core.schema import TableSchema
from dblake.base.core.source import Check, ChunkReader, LogRetention, ServerIdentity, TableFingerprint, UnfitTable
from dblake.ingest.source.checks import unfit_tables
from dblake.ingest.source.mysql import catalog
from dblake.ingest.source.mysql.chunks import MysqlChunkReader
from dblake.ingest.source.mysql.connection import connect, open_cursor
from dblake.ingest.source.mysql.continuation import find_continuation
from dblake.ingest.source.mysql.fingerprints import table_fingerprints
from dblake.ingest.source.mysql.log import MysqlLogStream
from dblake.ingest.source.mysql.log_position import LogPosition
from dblake.ingest.source.mysql.log_retention import log_retention
from dblake.ingest.source.mysql.preflight import preflight
from dblake.ingest.source.mysql.replica import require_replica
from dblake.ingest.source.mysql.settings import MysqlSettings
from dblake.ingest.source.replica import check_replica, open_chunk_reader

# MariaDB has no number that identifies a server: two may have one server_id, but not log files of equal name and age,
# which ``open_log`` compares. Its host name changes whenever a container is replaced.
_IDENTITY = {
    "mysql": "SELECT @@server_uuid, @@log_bin_basename",
    "mariadb": "SELECT @@server_id, @@log_bin_basename",
}


class MysqlSource:
    """A MySQL or MariaDB server. See Source for the methods."""

    schema_changes_in_log = True

    def __init__(self, settings: MysqlSettings) -> None:
        self._settings = settings
        self.name = settings.name

    def preflight(self) -> list[Check]:
        return [*preflight(self._settings), *check_replica(self._settings, require_replica)]

    def require(self) -> Mapping[str, UnfitTable]:
        return unfit_tables(self.name, preflight(self._settings))

    def identity(self) -> ServerIdentity:
        with open_cursor(self._settings, purpose="identity") as cur:
            cur.execute(_IDENTITY[self._settings.flavour])
            server, log = cur.fetchone()
        return ServerIdentity(server=str(server), log=PurePath(log or "").name)

    def find_continuation(self, known: ServerIdentity, resume: ResumePoint) -> ResumePoint | None:  # noqa: ARG002 - by GTIDs
        return find_continuation(self._settings, resume)

    def tables(self) -> Sequence[TableSchema]:
        with open_cursor(self._settings, purpose="tables") as cur:
            tables = catalog.captured_tables(cur, self._settings.table_filter, self._settings.watermark_schema)
        # ``require`` names the others.
        return [table.schema for table in tables if not table.unsupported and not table.versioned]

    def table_fingerprints(self) -> Sequence[TableFingerprint]:
        return table_fingerprints(self.tables())

    def log_retention(self, resume: ResumePoint | None) -> LogRetention:
        with open_cursor(self._settings, purpose="status") as cur:
            return log_retention(cur, LogPosition.parse(resume.token) if resume else None)

    def row_estimates(self, tables: Sequence[str]) -> Mapping[str, int]:
        with open_cursor(self._settings, purpose="status") as cur:
            return catalog.row_estimates(cur, tables)

    def terminate_stale_reader(self) -> None:
        """Do nothing: the server ends the older of two connections with one server id."""

    def recreate_slot(self) -> None:
        """Do nothing: the server has no slots; a reader starts at the log's end."""

    def open_log(self, resume: ResumePoint | None, incarnation: int) -> MysqlLogStream:
        return MysqlLogStream(self._settings, resume, incarnation)

    def open_reader(self) -> ChunkReader:
        return open_chunk_reader(self._settings, self._open_reader, require_replica)

    @staticmethod
    def _open_reader(settings: MysqlSettings) -> ChunkReader:
        return MysqlChunkReader(settings, connect(settings, purpose="chunks"))
