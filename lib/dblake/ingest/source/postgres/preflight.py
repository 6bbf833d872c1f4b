"""Checks every prerequisite of a PostgreSQL source and returns the statement that corrects each unmet one.

Guarantee: all problems at once, in an order in which their fixes can be run one after another; nothing is changed; no
row, password or connection string is shown. This module checks the server, the role and dblake's own objects;
``preflight_tables`` checks the captured tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from psycopg2 import sql
from psycopg2.extensions import connection

from dblake.base.core.errors import SourceError
from dblake.base.core.source import Check
from dblake.ingest.source.postgres import ddl_trigger, statements
from dblake.ingest.source.postgres.capture_objects import Publication, Slot
from dblake.ingest.source.postgres.catalog_facts import CatalogFacts, Server
from dblake.ingest.source.postgres.catalog_queries import read_facts
from dblake.ingest.source.postgres.connection import connect
from dblake.ingest.source.postgres.driver_errors import lacks_connect_privilege, translate_errors
from dblake.ingest.source.postgres.finding import Finding
from dblake.ingest.source.postgres.future_tables import check_future_tables
from dblake.ingest.source.postgres.preflight_tables import table_findings
from dblake.ingest.source.postgres.preflight_watermarks import check_watermarks
from dblake.ingest.source.postgres.primary import FIRST_VERSION as STANDBY_LOG_VERSION
from dblake.ingest.source.postgres.settings import PLUGIN, PostgresSettings

_VERSIONS = range(13, 19)
ALL_OPERATIONS = "publish = 'insert, update, delete, truncate'"


def preflight(settings: PostgresSettings) -> list[Check]:
    """Return all checks; only ``connect`` if the capture role cannot connect."""
    try:
        conn = connect(settings, purpose="preflight")
    except SourceError as error:
        if lacks_connect_privilege(error):
            return [Check("connect", False, f"role {settings.user} may not connect to the database",
                          statements.grant_connect_text(settings))]
        return [Check("connect", False, error.what, error.next_step)]
    try:
        return run_checks(conn, settings)
    finally:
        conn.close()


def run_checks(conn: connection, settings: PostgresSettings) -> list[Check]:
    """Return all checks, over a connection of the capture role or of an administrator."""
    with translate_errors(settings), conn.cursor() as cur:
        cur.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            facts = read_facts(cur, settings)
        finally:
            cur.execute("COMMIT")
        return [finding.check(cur) for finding in [*findings(facts, settings), check_output_plugin(facts.server)]]


def findings(facts: CatalogFacts, settings: PostgresSettings) -> Iterator[Finding]:
    """Return the findings that follow from the facts, in the order in which their fixes can be run."""
    yield Finding("connect")
    yield from _check_server(facts.server, settings, has_slot=facts.slot is not None)
    yield _check_encoding(facts.server)
    yield _check_role(facts, settings)
    yield from check_watermarks(facts, settings)
    yield from table_findings(facts, settings)
    yield from _check_publication(facts, settings)
    yield check_future_tables(facts, settings)
    yield from _check_slot(facts, settings)
    if settings.log_ddl:
        yield from _check_ddl_triggers(facts, settings)


def _check_server(server: Server, settings: PostgresSettings, *, has_slot: bool) -> Iterator[Finding]:
    major = server.version // 10_000
    yield Finding(
        "server_version", ok=major in _VERSIONS,
        detail="" if major in _VERSIONS else f"PostgreSQL {server.version_text}; dblake supports 13 to 18",
        fix="use a server of version 13 to 18",
    )
    yield from _check_recovery(server, settings)
    provider = server.provider
    yield Finding("provider", detail=f"{provider.title}; see docs/managed.md" if provider else "")
    logical = server.wal_level == "logical"
    yield Finding(
        "wal_level", ok=logical, detail="" if logical else f"wal_level is {server.wal_level}",
        fix=_set_setting(server, "wal_level", "logical"),
    )
    slots_free = has_slot or server.slots < server.max_slots
    yield Finding(
        "replication_slots", ok=slots_free,
        detail="" if slots_free else f"all {server.max_slots} replication slots are in use",
        fix=_set_setting(server, "max_replication_slots", server.slots + 5),
    )
    senders_free = server.wal_senders < server.max_wal_senders
    yield Finding(
        "wal_senders", ok=senders_free, detail="" if senders_free else f"all {server.max_wal_senders} are in use",
        fix=_set_setting(server, "max_wal_senders", server.wal_senders + 5),
    )
    yield Finding("slot_retention", detail="; ".join(_describe_retention(server)))


def _check_recovery(server: Server, settings: PostgresSettings) -> Iterator[Finding]:
    """Yield whether the server is what the configuration has: a standby with ``source.primary``, else a primary."""
    if settings.primary is None:
        detail = "the server is a standby: it does not accept watermarks" if server.is_standby else ""
        yield Finding("standby", ok=not detail, detail=detail, fix="set source.host to the primary"
                      + (", or source.primary to its address" if server.version >= STANDBY_LOG_VERSION else ""))
        return
    detail = "" if server.is_standby else (
        "the server at source.host is no standby (any more): watermarks written elsewhere never reach its log"
    )
    yield Finding(
        "log_standby", ok=not detail, detail=detail, fix="remove source.primary; or set source.host to a standby"
    )
    is_old = server.version < STANDBY_LOG_VERSION
    yield Finding(
        "standby_version", ok=not is_old,
        detail=f"PostgreSQL {server.version_text} does not decode its log on a standby; 16 does" if is_old else "",
        fix="set source.host to the primary, and remove source.primary",
    )


def _check_encoding(server: Server) -> Finding:
    if server.encoding == "UTF8":
        return Finding("encoding")
    if server.encoding == "SQL_ASCII":
        return Finding("encoding", detail="SQL_ASCII: bytes that are not UTF-8 are stored as hex and listed in _lossy")
    return Finding("encoding", detail=f"{server.encoding}: the server converts it to UTF-8")


def _describe_retention(server: Server) -> Iterator[str]:
    if server.slot_keep_size == "-1":
        yield "max_slot_wal_keep_size is unlimited: while capture is stopped, its log can fill the server's disk"
    else:
        yield f"max_slot_wal_keep_size is {server.slot_keep_size}: the slot is lost if capture falls further behind"
    if server.slot_idle_timeout != "0":
        yield f"idle_replication_slot_timeout is {server.slot_idle_timeout}: the slot is lost if capture stops longer"


def _set_setting(server: Server, setting: str, value: str | int) -> sql.Composable | str:
    """Return what changes a setting that needs a restart; a managed server rejects ALTER SYSTEM."""
    if server.provider:
        return server.provider.set_parameter(setting, str(value))
    return sql.SQL(f"ALTER SYSTEM SET {setting} = {{}}; -- then restart the server").format(sql.Literal(value))


def _check_role(facts: CatalogFacts, settings: PostgresSettings) -> Finding:
    role = facts.role
    if role is None:
        return Finding(
            "role", ok=False, detail=f"there is no role {settings.user}",
            fix=statements.create_role(
                settings, sql.SQL("'<the password of source.password>'"), facts.server.provider
            ),
        )
    if not (role.can_login and role.can_replicate):
        return Finding(
            "role", ok=False, detail=f"role {settings.user} lacks LOGIN or REPLICATION",
            fix=statements.grant_replication(settings, facts.server.provider),
        )
    if role.is_superuser:
        return Finding(
            "role", detail=f"role {settings.user} is a superuser; capture needs only LOGIN and REPLICATION",
            fix=statements.alter_role(settings, "NOSUPERUSER"),
        )
    return Finding("role")


def _check_publication(facts: CatalogFacts, settings: PostgresSettings) -> Iterator[Finding]:
    publication = facts.publication
    if publication is None:
        yield Finding(
            "publication", ok=False, detail=f"there is no publication {settings.publication}",
            fix=statements.create_publication(settings, [t for t in facts.tables if t.is_publishable]),
        )
        return
    yield Finding("publication")
    yield _check_publication_tables(facts, publication, settings)
    yield Finding(
        "publication_operations", ok=publication.has_all_operations,
        detail="" if publication.has_all_operations else "it does not publish insert, update, delete and truncate",
        fix=statements.set_publication(settings, ALL_OPERATIONS),
    )
    partitioned = [] if publication.is_via_root else [t.qualified for t in facts.tables if t.is_partitioned]
    yield Finding.of_names(
        "publication_partitions", "changes of partitions are published under the partitions' names: ", partitioned,
        fix=statements.set_publication(settings, "publish_via_partition_root = true"),
    )
    narrowed = [t for t in facts.tables if t.oid in publication.narrowed]
    yield Finding.of_names(
        "publication_filters", "a column list or row filter hides changes of ", [t.qualified for t in narrowed],
        fix=statements.script([statements.drop_tables(settings, narrowed), statements.add_tables(settings, narrowed)]),
    )
    yield Finding(
        "publication_generated_columns", ok=not publication.has_generated_columns,
        detail="it publishes generated columns, which chunks do not have" if publication.has_generated_columns else "",
        fix=statements.set_publication(settings, "publish_generated_columns = none"),
    )


def _check_publication_tables(facts: CatalogFacts, publication: Publication, settings: PostgresSettings) -> Finding:
    missing = [t for t in facts.tables if t.is_publishable and not publication.publishes(t.oid, t.schema_oid)]
    marks = facts.watermarks
    is_published = marks and marks.oid is not None and publication.publishes(marks.oid, marks.schema_oid)
    lacks_marks = settings.has_watermark_table and not is_published
    names = [t.qualified for t in missing] + (["the watermark table"] if lacks_marks else [])
    finding = Finding.of_names(
        "publication_tables", "not published: ", names,
        fix=statements.add_tables(settings, missing, watermarks=lacks_marks), tables=[t.qualified for t in missing],
    )
    # Without the watermark table no dump could end.
    return replace(finding, affects="source") if lacks_marks else finding


def _check_slot(facts: CatalogFacts, settings: PostgresSettings) -> Iterator[Finding]:
    slot = facts.slot
    if slot is None:
        yield Finding(
            "slot", ok=False,
            detail=f"there is no slot {settings.slot}; if capture has run before, the log since its last run is a gap",
            fix=statements.create_slot(settings, facts.server.version),
        )
        return
    unusable = "" if is_usable(slot, facts.server) else (
        f"slot {settings.slot} is {'temporary, ' if slot.is_temporary else ''}"
        f"{'copied from the primary, ' if slot.is_synced else ''}{slot.kind},"
        f" of plugin {slot.plugin} and database {slot.database}"
    )
    yield Finding("slot", ok=not unusable, detail=unusable,
                  fix="set source.slot to another name, then run --init")
    lost, is_expiring = slot.wal_status == "lost", slot.wal_status == "unreserved"
    yield Finding(
        "slot_log", ok=not lost and not is_expiring,
        detail=f"the slot is lost: {slot.loss}, a gap" if lost
        else "the server may remove log the slot still needs at its next checkpoint" if is_expiring else "",
        fix="run capture --accept-gap, which recreates the slot and dumps all tables again" if lost
        else "run capture now; raise max_slot_wal_keep_size",
    )
    is_own = slot.holder is not None and slot.holder == f"dblake {settings.name} log"
    yield Finding(
        "slot_active", ok=slot.active_pid is None or is_own,
        detail="" if slot.active_pid is None
        else f"{'capture' if is_own else 'another client'} reads from it: server process {slot.active_pid}",
        fix="" if is_own else sql.SQL("SELECT pg_terminate_backend({})").format(sql.Literal(slot.active_pid)),
    )


def _check_ddl_triggers(facts: CatalogFacts, settings: PostgresSettings) -> Iterator[Finding]:
    is_supported = facts.server.version >= ddl_trigger.FIRST_VERSION
    yield Finding("log_ddl", ok=is_supported, detail="" if is_supported else "log messages require PostgreSQL 14",
                  fix="set source.log_ddl to false")
    yield Finding(
        "ddl_triggers", ok=facts.has_ddl_triggers,
        detail="" if facts.has_ddl_triggers else "the event triggers for log_ddl are missing or disabled",
        fix=statements.script(ddl_trigger.create(settings)),
    )


def is_usable(slot: Slot, server: Server) -> bool:
    """Return True if capture can read from the slot: plugin, kind and database match, and it is not temporary."""
    required = (PLUGIN, "logical", server.database, False, False)
    return (slot.plugin, slot.kind, slot.database, slot.is_temporary, slot.is_synced) == required


def check_output_plugin(server: Server) -> Finding:
    """Check that the server allows pgoutput: newer servers reject plugins that ``output_plugin_libraries`` omits."""
    listed = [part.strip(' "') for part in (server.plugins or "").split(",") if part.strip()]
    if server.plugins is None or PLUGIN in listed:
        return Finding("output_plugin")
    names = [*listed, PLUGIN]
    # One literal for each name; a single literal would be one name.
    statement = sql.SQL("ALTER SYSTEM SET output_plugin_libraries = {}; SELECT pg_reload_conf()").format(
        sql.SQL(", ").join(map(sql.Literal, names))
    )
    step = server.provider.set_parameter("output_plugin_libraries", ", ".join(names)) if server.provider else statement
    return Finding("output_plugin", ok=False, detail=f"output_plugin_libraries does not list {PLUGIN}", fix=step)
