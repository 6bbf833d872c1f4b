"""MySQL or MariaDB as a Source: opens the log, the chunk readers and the checks over one set of settings."""

from __future__ import annotations

import os.path
from collections.abc import Mapping, Sequence

from dblake.core.position import ResumePoint
from dblake.core.schema import TableSchema
from dblake.core.source import Check, ColumnFingerprint, LogRetention, ServerIdentity, TableFingerprint
from dblake.source.checks import require_met
from dblake.source.mysql import catalog as catalogue
from dblake.source.mysql.chunks import MysqlChunkReader
from dblake.source.mysql.connection import asking, connect
from dblake.source.mysql.log import MysqlLogStream, log_retention
from dblake.source.mysql.preflight import preflight
from dblake.source.mysql.resume import Place
from dblake.source.mysql.settings import MysqlSettings

_WHO = {
    "mysql": "SELECT @@server_uuid, @@log_bin_basename",
    "mariadb": "SELECT CONCAT(@@server_id, '@', @@hostname, ':', @@port), @@log_bin_basename",
}


class MysqlSource:
    """See Source for the methods."""

    schema_changes_in_log = True

    def __init__(self, settings: MysqlSettings) -> None:
        self._settings = settings
        self.name = settings.name

    def preflight(self) -> list[Check]:
        return preflight(self._settings)

    def require(self) -> None:
        require_met(self.name, (check for check in self.preflight() if check.check != "connect"))

    def identity(self) -> ServerIdentity:
        with asking(self._settings, purpose="identity") as cur:
            cur.execute(_WHO[self._settings.flavour])
            server, log = cur.fetchone()
        return ServerIdentity(server=str(server), log=os.path.basename(log or ""))

    def is_promoted_replica(self, known: ServerIdentity, resume: ResumePoint) -> bool:  # noqa: ARG002 - whichever they are
        """A replica has a log of its own, with other files and places."""
        return False

    def tables(self) -> Sequence[TableSchema]:
        with asking(self._settings, purpose="tables") as cur:
            found = catalogue.captured_tables(cur, self._settings.wanted, self._settings.watermark_schema)
        # What is not supported is refused by ``require``.
        return [table.schema for table in found if not table.unsupported and not table.versioned]

    def table_fingerprints(self) -> Sequence[TableFingerprint]:
        # What these do not show (rows that came or went with a part of the table) the log's statements do. NULLs
        # become something else where they are no longer allowed.
        return [
            TableFingerprint(schema, {
                c.name: ColumnFingerprint(f"{c.type} key {c.key}{'' if c.nullable else ' not null'}")
                for c in schema.columns
            })
            for schema in self.tables()
        ]

    def log_retention(self, resume: ResumePoint | None) -> LogRetention:
        with asking(self._settings, purpose="status") as cur:
            return log_retention(cur, Place.parse(resume.token) if resume else None)

    def row_estimates(self, tables: Sequence[str]) -> Mapping[str, int]:
        with asking(self._settings, purpose="status") as cur:
            return catalogue.row_estimates(cur, tables)

    def terminate_stale_reader(self) -> None:
        """The server does that by itself for who comes with the same server id."""

    def recreate_slot(self) -> None:
        """The server keeps its log for nobody: whoever comes reads on from its end."""

    def open_log(self, resume: ResumePoint | None, incarnation: int) -> MysqlLogStream:
        return MysqlLogStream(self._settings, resume, incarnation)

    def open_reader(self) -> MysqlChunkReader:
        return MysqlChunkReader(self._settings, connect(self._settings, purpose="chunks"))
