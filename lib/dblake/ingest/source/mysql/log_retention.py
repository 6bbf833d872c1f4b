"""How much binlog the server holds beyond what has landed, and how long it keeps it.

For ``status`` and preflight. Returns bytes and seconds; which of them is a problem is left to the caller. Amazon RDS
and Aurora remove binlog by a setting of their own, whatever the server's settings are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pymysql
from pymysql.cursors import Cursor

from dblake.base.core.source import LogRetention
from dblake.ingest.source.mysql.driver_errors import lacks_privilege
from dblake.ingest.source.mysql.log_position import LogPosition
from dblake.ingest.source.provider import Provider, find_mysql_provider

_DAY_SECONDS = 86_400
VARIABLES = (
    "binlog_expire_logs_seconds", "expire_logs_days", "binlog_expire_logs_auto_purge", "version", "basedir",
    "aurora_version", "aad_auth_only", "cloudsql_iam_authentication",
)
"""The settings that ``read_retention`` needs."""
RDS_SHOW = "mysql.rds_show_configuration"
_RDS_HOURS = "binlog retention hours"


@dataclass(frozen=True, slots=True)
class Retention:
    """How long a server keeps its binlog. ``seconds`` is None if it never expires, 0 if it is removed at once.

    A managed server has a ``provider``. ``is_readable`` is False if the provider's setting may not be read.
    """

    provider: Provider | None = None
    seconds: float | None = None
    is_readable: bool = True


def log_retention(cur: Cursor, resume: LogPosition | None) -> LogRetention:
    """Return the log's retention for a capture that resumes at a position. Servers expire log by age alone."""
    sizes = list_log_files(cur)
    names = list(sizes)
    cur.execute("SHOW GLOBAL VARIABLES WHERE Variable_name IN %s", (VARIABLES,))
    seconds = read_retention(cur, {str(name): str(value) for name, value in cur.fetchall()}).seconds
    kept = sum(sizes.values())
    if resume is None:
        return LogRetention(kept=kept, seconds=seconds)
    if resume.file not in sizes:
        return LogRetention(kept=kept, seconds=seconds, lost=True)
    later = names[names.index(resume.file) :]
    behind = max(sum(sizes[name] for name in later) - resume.offset, 0)
    return LogRetention(behind=behind, kept=kept, seconds=seconds)


def list_log_files(cur: Cursor) -> dict[str, int]:
    """Return the binlog's files, oldest first, with their sizes in bytes."""
    cur.execute("SHOW BINARY LOGS")
    return {str(name): int(size) for name, size, *_ in cur.fetchall()}


def read_retention(cur: Cursor, variables: Mapping[str, str]) -> Retention:
    """Return how long the server keeps its binlog, from ``VARIABLES`` and what its provider shows."""
    cur.execute(
        "SELECT count(*) FROM information_schema.ROUTINES WHERE ROUTINE_SCHEMA = 'mysql' AND ROUTINE_NAME = %s",
        (RDS_SHOW.partition(".")[2],),
    )
    provider = find_mysql_provider(variables.get("version", ""), variables, has_rds_procedures=bool(cur.fetchone()[0]))
    if provider is None or not provider.expires_log_early:
        return Retention(provider, _server_seconds(variables))
    try:
        cur.execute(f"CALL {RDS_SHOW}")
        hours = {str(name): value for name, value, *_ in cur.fetchall()}.get(_RDS_HOURS)
    except pymysql.Error as error:
        if not lacks_privilege(error):
            raise
        return Retention(provider, None, is_readable=False)
    return Retention(provider, 3600 * float(hours or 0))


def _server_seconds(variables: Mapping[str, str]) -> float | None:
    """Return the age at which the server expires log, in seconds, from its settings; None if it never does."""
    seconds = float(variables.get("binlog_expire_logs_seconds", 0))
    seconds = seconds or _DAY_SECONDS * float(variables.get("expire_logs_days", 0))
    return None if variables.get("binlog_expire_logs_auto_purge") == "OFF" or not seconds else seconds
