"""How much binlog the server holds beyond what has landed, and how long it keeps it.

For ``status`` and preflight. Returns bytes and seconds; which of them is a problem is left to the caller.
"""

from __future__ import annotations

from collections.abc import Mapping

from pymysql.cursors import Cursor

from dblake.base.core.source import LogRetention
from dblake.ingest.source.mysql.log_position import LogPosition

_DAY_SECONDS = 86_400


def log_retention(cur: Cursor, resume: LogPosition | None) -> LogRetention:
    """Return the log's retention for a capture that resumes at a position. Servers expire log by age alone."""
    sizes = list_log_files(cur)
    names = list(sizes)
    cur.execute("SHOW GLOBAL VARIABLES LIKE '%expire_logs%'")
    seconds = retention_seconds({str(name): str(value) for name, value in cur.fetchall()})
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


def retention_seconds(variables: Mapping[str, str]) -> float | None:
    """Return the age at which the server expires log, in seconds, from its settings; None if it never does."""
    seconds = float(variables.get("binlog_expire_logs_seconds", 0))
    seconds = seconds or _DAY_SECONDS * float(variables.get("expire_logs_days", 0))
    return None if variables.get("binlog_expire_logs_auto_purge") == "OFF" or not seconds else seconds
