"""Whether a standby can supply chunks while its primary's log is captured.

Place: behind ``source.replica`` and ``source.primary``. That a chunk has its low watermark is left to
``ingest.source.replica``.
"""

from __future__ import annotations

from dblake.base.core.errors import Unsupported
from dblake.base.core.names import abbreviated
from dblake.base.core.source import ServerIdentity
from dblake.ingest.source.postgres import catalog, timeline
from dblake.ingest.source.postgres.collations import read_changed_collations
from dblake.ingest.source.postgres.connection import open_cursor
from dblake.ingest.source.postgres.settings import PostgresSettings

_NEXT_STEP = "set source.replica to a standby of source.host, or remove it"
_OF_LOG = "set source.host to a standby of source.primary; or, if it was promoted, remove source.primary"


def require_standby(replica: PostgresSettings, primary: ServerIdentity, *, has_log: bool) -> None:
    """Raise Unsupported unless a server is a physical standby of the primary; SourceError if it is unreachable.

    ``has_log`` is True if its log is captured, too.
    """
    next_step = _OF_LOG if has_log else _NEXT_STEP
    with open_cursor(replica, purpose="replica") as cur:
        cur.execute("SELECT pg_is_in_recovery()")
        (is_standby,) = cur.fetchone()
        tables = catalog.captured_tables(cur, replica.table_filter, replica.watermark_schema)
        changed = read_changed_collations(cur, cur.connection.server_version, [table.oid for table in tables])
    address = f"{replica.host}:{replica.port}"
    if not is_standby:
        raise Unsupported(
            f"source {replica.name}: the server at {address} is not a standby, so chunks cannot be read there",
            next_step=next_step,
        )
    if timeline.identity(replica).server != primary.server:
        raise Unsupported(
            f"source {replica.name}: the standby at {address} is another primary's, so chunks cannot be read there",
            next_step=next_step,
        )
    if changed:
        names = {table.oid: table.schema.table for table in tables}
        raise Unsupported(
            f"source {replica.name}: a chunk from the standby at {address} may lack rows, because its collations have"
            f" other versions than the keys of {abbreviated(sorted({names[each.table] for each in changed}))}",
            next_step="give it the primary's versions of glibc and ICU, or read chunks from the primary",
        )
