"""Checks the server: its version, that watermarks can be written there, its number and its place as a replica.

Place: part of ``preflight``, from the facts of ``catalog_facts``. What the server logs is left to ``preflight_log``.
"""

from __future__ import annotations

from collections.abc import Iterator

from dblake.base.core.source import Check
from dblake.ingest.source.mysql import statements
from dblake.ingest.source.mysql.catalog_facts import Server
from dblake.ingest.source.mysql.finding import finding
from dblake.ingest.source.mysql.replica import keeps_commit_order
from dblake.ingest.source.mysql.settings import MysqlSettings

_OLDEST = {"mysql": (8, 0, 1), "mariadb": (10, 5, 0)}
"""The first versions whose log describes columns in full (binlog_row_metadata)."""


def check_server(server: Server, settings: MysqlSettings) -> Iterator[Check]:
    """Yield the checks of the server itself."""
    oldest, provider = _OLDEST[settings.flavour], server.retention.provider
    since = ".".join(map(str, oldest[:2]))
    is_old = server.version.number < oldest
    yield finding(
        "server_version", f"{server.version}; dblake supports {since} and newer" if is_old else "",
        f"use a server of version {since} or newer",
    )
    yield finding(
        "read_only", "the server is read-only: watermarks cannot be written there" if server.is_on("read_only") else "",
        "set source.host to the primary",
    )
    number = server.variables.get("server_id", "0")
    is_same = number == str(settings.server_id)
    yield finding(
        "server_id",
        "the server's server_id is 0: it rejects replicas, so its log cannot be read" if number == "0"
        else f"source.server_id is the server's own, {number}" if is_same else "",
        "set source.server_id to a number that neither the server nor a replica of it has" if is_same
        else statements.set_variable(settings, "server_id", "1", provider),
    )
    yield finding("provider", f"{provider.title}; see docs/managed.md" if provider else "", is_note=True)


def check_replica(server: Server, settings: MysqlSettings) -> Iterator[Check]:
    """Yield the checks that only a replica can fail."""
    has_log = server.is_on("log_replica_updates", "log_slave_updates")
    yield finding(
        "replica_log",
        "this is a replica that does not log what it replicates" if server.is_replica and not has_log else "",
        "start the server with the option --log-slave-updates, or set source.host to the primary",
    )
    if settings.flavour == "mariadb":
        return  # commits in the primary's order, within a domain, whatever its parallel mode
    is_ordered = keeps_commit_order(server.variables)
    yield finding(
        "replica_order", "" if not server.is_replica or is_ordered
        else "this is a replica that commits in another order than its primary",
        "STOP REPLICA; " + statements.set_variable(settings, "replica_preserve_commit_order", "ON") + "; START REPLICA",
    )
