"""The position at which files were taken, as the source's own tools print it.

Place: at the edge of the ``dump`` command. Guarantee: the returned start precedes every event that the files may not
reflect, so events at the very position count as later.
"""

from __future__ import annotations

from dblake.base.core.errors import UsageError
from dblake.base.core.log_places import BINLOG, LSN, binlog_number, lsn_number
from dblake.base.core.window import Snapshot
from dblake.landing.control import DumpStart

_POSTGRES = "postgres"


def parse_start(source_type: str, incarnation: int, at: str, snapshot: str | None) -> DumpStart:
    """Return the last position before ``at``, with the snapshot.

    ``at`` is an LSN on PostgreSQL, FILE:OFFSET of the binlog on MySQL and MariaDB. Raises UsageError for other text,
    for a snapshot that is missing (PostgreSQL) or not applicable (the others).
    """
    if source_type == _POSTGRES:
        if not LSN.fullmatch(at):
            raise UsageError("--at is no LSN", next_step="give what pg_current_wal_lsn() returned, as 0/16B3748")
        number = lsn_number(at)
        if snapshot is None:
            raise UsageError(
                "--snapshot is missing: a commit may be in the log before the position, and not in the files",
                next_step="give what pg_current_snapshot() returned in the transaction that exported the files",
            )
        try:
            Snapshot.parse(snapshot)
        except ValueError as error:
            raise UsageError(
                "--snapshot is no snapshot", next_step="give it as pg_current_snapshot() prints it"
            ) from error
    else:
        match = BINLOG.fullmatch(at)
        if not match:
            raise UsageError("--at is no binlog position", next_step="give FILE:OFFSET, as mysql-bin.000042:1547")
        if snapshot is not None:
            raise UsageError("--snapshot is for PostgreSQL", next_step="omit it")
        number = binlog_number(match[1], int(match[2]))
    return DumpStart(incarnation, max(number - 1, 0), 0, snapshot)
