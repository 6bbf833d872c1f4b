"""Checks what the server logs: whole rows with all their columns, in the order of commits, and for how long.

Place: part of ``preflight``, from the facts of ``catalog_facts``. Guarantee: a server without an unmet check logs every
change of a row with the names and full types of its columns; images may lack columns, which is noted.
"""

from __future__ import annotations

from collections.abc import Iterator

from dblake.base.core.source import Check
from dblake.ingest.source.mysql import statements
from dblake.ingest.source.mysql.catalog_facts import Server
from dblake.ingest.source.mysql.finding import finding
from dblake.ingest.source.mysql.settings import MysqlSettings

_SHORT_RETENTION_SECONDS = 7 * 86_400
KEPT_HOURS = _SHORT_RETENTION_SECONDS // 3600
"""The longest that Amazon RDS allows."""
_LOST_IN_CRASH = {
    "sync_binlog": "a crash of the server's machine may lose log that has landed, which is a gap then",
    "innodb_flush_log_at_trx_commit":
        "a crash of the server may lose rows whose log remains, so that state has them until the next dump",
}


def check_log(server: Server, settings: MysqlSettings) -> Iterator[Check]:
    """Yield the checks of the settings of the binlog."""
    provider = server.retention.provider

    def require(variable: str, value: str, why: str, *, is_note: bool = False) -> Check:
        current = server.variables.get(variable, value)
        return finding(
            variable, f"{variable} is {current}: {why}" if current != value else "",
            statements.set_variable(settings, variable, f"'{value}'", provider), is_note=is_note,
        )

    yield finding(
        "log_bin", "" if server.is_on("log_bin") else "the server writes no log",
        provider.set_parameter("log_bin", "ON") if provider else "start the server with the option --log-bin",
    )
    yield require("binlog_format", "ROW", "changes are logged as statements, which cannot be applied to rows")
    yield require(
        "binlog_row_image", "FULL",
        "columns that a change does not touch are not logged; they are filled in from dumps and earlier changes",
        is_note=True,
    )
    yield require("binlog_row_metadata", "FULL", "the log lacks the names and the full types of columns")
    if settings.flavour == "mysql":
        yield finding(
            "binlog_order_commits",
            "" if server.is_on("binlog_order_commits")
            else "a dump may read a row older than the log before it: commits show in another order than logged",
            statements.set_variable(settings, "binlog_order_commits", "ON", provider),
        )
        partial = server.variables.get("binlog_row_value_options", "")
        yield finding(
            "binlog_row_value_options",
            f"it is {partial}: of changed JSON only differences are logged" if partial else "",
            statements.set_variable(settings, "binlog_row_value_options", "''", provider),
        )
    for variable, loss in _LOST_IN_CRASH.items():
        value = server.variables.get(variable, "1")
        yield finding(
            variable, f"{variable} is {value}: {loss}" if value != "1" else "",
            statements.set_variable(settings, variable, "1", provider), is_note=True,
        )
    if settings.flavour == "mysql":
        mode = server.variables.get("gtid_mode", "ON")
        yield finding(
            "gtid_mode", f"gtid_mode is {mode}: a failover to a replica is a gap, and dumps all tables"
            if mode != "ON" else "", "enable GTIDs on all servers of the topology", is_note=True,
        )
    yield _check_retention(server)


def _check_retention(server: Server) -> Check:
    """Return the check of how long binlog is kept. A server that removes it at once is not fit for capture."""
    retention = server.retention
    if not retention.is_readable and retention.provider:
        return finding(
            "binlog_retention", f"how long {retention.provider.title} keeps the binlog may not be read",
            f"run preflight --init; or {statements.keep_log(KEPT_HOURS)}", is_note=True,
        )
    if retention.seconds is None:
        return finding(
            "binlog_retention", "the server never expires old log: it can fill the server's disk", is_note=True
        )
    if retention.seconds >= _SHORT_RETENTION_SECONDS:
        return finding("binlog_retention")
    fix = statements.keep_log(KEPT_HOURS) if retention.provider and retention.provider.expires_log_early else ""
    if not retention.seconds:
        return finding("binlog_retention", "the server removes the binlog as soon as it can: each stop is a gap", fix)
    return finding(
        "binlog_retention",
        f"the server expires log after {retention.seconds / 3600:g} hours: a capture stopped for longer finds a gap",
        fix, is_note=True,
    )
