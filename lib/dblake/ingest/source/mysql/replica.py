"""Whether a replica can supply chunks while its primary's log is captured.

Place: behind ``source.replica``. A replica must have the primary's rows and no others, and commit in the primary's
order: otherwise a chunk with its low watermark may lack an earlier change. That a chunk has its low watermark is left
to ``ingest.source.replica``.
"""

from __future__ import annotations

from collections.abc import Mapping

from pymysql.cursors import Cursor

from dblake.base.core.errors import Unsupported
from dblake.ingest.source.mysql.connection import ServerVersion, open_cursor, version_of
from dblake.ingest.source.mysql.settings import MysqlSettings

_VARIABLES = (
    "read_only", "replica_parallel_workers", "slave_parallel_workers", "slave_parallel_threads",
    "replica_preserve_commit_order", "slave_preserve_commit_order", "gtid_slave_pos", "binlog_order_commits",
)
_SHOW_REPLICA = ServerVersion("mysql", (8, 0, 22))
_FILTERS = ("replicate_do_", "replicate_ignore_", "replicate_wild_", "replicate_rewrite_")
"""MariaDB has its filters as variables, MySQL in the state of its replication."""


def require_replica(replica: MysqlSettings) -> None:
    """Raise Unsupported if a server's rows may differ from the log's primary; SourceError if it is unreachable."""
    with open_cursor(replica, purpose="replica") as cur:
        names = ", ".join(f"'{name}'" for name in _VARIABLES)
        cur.execute(f"SHOW GLOBAL VARIABLES WHERE variable_name IN ({names}) OR variable_name LIKE 'replicate%'")
        variables = {name.lower(): value for name, value in cur.fetchall()}
        why = _find_fault(cur, replica, variables)
    if why is not None:
        raise Unsupported(
            f"source {replica.name}: chunks cannot be read from the replica at {replica.host}:{replica.port}: {why[0]}",
            next_step=why[1],
        )


def _find_fault(cur: Cursor, replica: MysqlSettings, variables: dict[str, str]) -> tuple[str, str] | None:
    """Return why the replica is unfit, with the next step; None if it is fit."""
    if variables.get("read_only") not in ("ON", "1"):
        return "it accepts writes of its own", "SET GLOBAL read_only = ON there"
    if replica.flavour == "mysql":
        variables |= {name: value for channel in read_replication(cur) for name, value in channel.items()}
    if filters := sorted(name for name, value in variables.items() if name.startswith(_FILTERS) and value):
        return f"it leaves out tables ({', '.join(filters)})", "remove the replication filters"
    if replica.flavour == "mysql":
        if not keeps_commit_order(variables):
            return "it commits in another order than its primary", "SET GLOBAL replica_preserve_commit_order = ON there"
        if variables.get("binlog_order_commits") not in ("ON", "1"):
            return "its commits show in another order than logged", "SET GLOBAL binlog_order_commits = ON there"
        return None
    # MariaDB commits in order within a domain only.
    domains = {gtid.split("-")[0] for gtid in variables.get("gtid_slave_pos", "").split(",") if gtid}
    if len(domains) > 1 and variables.get("slave_parallel_threads") not in ("0", None):
        return "it applies several GTID domains in parallel", "SET GLOBAL slave_parallel_threads = 0 there"
    return None


def keeps_commit_order(variables: Mapping[str, str]) -> bool:
    """Return True if a MySQL replica commits in its primary's order, by its variables."""
    workers = variables.get("replica_parallel_workers", variables.get("slave_parallel_workers", "0"))
    order = variables.get("replica_preserve_commit_order", variables.get("slave_preserve_commit_order", "OFF"))
    return workers in ("0", "1") or order in ("ON", "1")


def read_replication(cur: Cursor) -> list[dict[str, str]]:
    """Return the state of each replication channel of a MySQL server, by column in lower case; empty on a primary."""
    cur.execute("SHOW REPLICA STATUS" if version_of(cur.connection) >= _SHOW_REPLICA else "SHOW SLAVE STATUS")
    names = [column[0].lower() for column in cur.description]
    return [dict(zip(names, map(str, row), strict=True)) for row in cur.fetchall()]
