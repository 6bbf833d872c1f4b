"""Every prerequisite of a PostgreSQL source, met or not, each with the statement that mends it.

Promises: all problems at once, in an order in which their fixes can be run one after another; nothing is changed; no
row, password or connection string is shown. A check that is ``ok`` and has a detail is met, with something to know.
This module checks the server, the role and what dblake needs of its own; ``preflight_tables`` the captured tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from psycopg2 import sql
from psycopg2.extensions import connection

from dblake.core.errors import SourceError
from dblake.core.names import abbreviated
from dblake.core.source import Check
from dblake.source.postgres import ddl_trigger, statements
from dblake.source.postgres.catalog_facts import (
    WATERMARK_ROWS,
    Publication,
    Server,
    Slot,
    Survey,
    survey,
    tried_plugin,
)
from dblake.source.postgres.connection import connect, explained
from dblake.source.postgres.finding import Finding
from dblake.source.postgres.preflight_tables import table_findings
from dblake.source.postgres.settings import PostgresSettings

_VERSIONS = range(13, 19)
ALL_OPERATIONS = "publish = 'insert, update, delete, truncate'"
#: Reasons that may pass, which the connection's own words leave at the driver's class.
_UNREACHABLE = (
    ("Connection refused", "connection refused: nothing listens there"),
    ("timeout expired", "no answer: timed out"),
    ("No route to host", "no route to that host"),
    ("Network is unreachable", "the network is unreachable"),
    ("too many clients", "the server takes no more connections"),
    ("starting up", "the server is starting up"),
)


def preflight(settings: PostgresSettings) -> list[Check]:
    """All checks; only the one named ``connect`` if the capture role cannot even connect."""
    try:
        conn = connect(settings, purpose="preflight")
    except SourceError as error:
        if "CONNECT privilege" in str(error.__cause__):
            return [Check("connect", False, f"role {settings.user} may not connect to the database",
                          statements.grant_connect_text(settings))]
        return [Check("connect", False, _reason(error), error.next_step)]
    try:
        return checks(conn, settings)
    finally:
        conn.close()


def checks(conn: connection, settings: PostgresSettings) -> list[Check]:
    """All checks over a connection of the capture role's, or of an administrator's."""
    with explained(settings), conn.cursor() as cur:
        cur.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            facts = survey(cur, settings)
        finally:
            cur.execute("COMMIT")
        tried = tried_plugin(cur, settings) if settings.plugin != "pgoutput" else ""
        found = [*findings(facts, settings), output_plugin(facts.server, settings, tried)]
        return [finding.check(cur) for finding in found]


def findings(facts: Survey, settings: PostgresSettings) -> Iterator[Finding]:
    """What the facts mean."""
    yield Finding("connect")
    yield from _server(facts.server, has_slot=facts.slot is not None)
    yield _encoding(facts.server, settings)
    yield _role(facts, settings)
    yield from _watermarks(facts, settings)
    yield from table_findings(facts, settings)
    if settings.plugin == "pgoutput":
        yield from _publication(facts, settings)
    yield from _slot(facts, settings)
    if settings.log_ddl:
        yield from _ddl_triggers(facts, settings)


def _reason(error: SourceError) -> str:
    text = str(error.__cause__)
    return next((f"{meaning} (source.host, source.port)" for words, meaning in _UNREACHABLE if words in text),
                error.what)


def _server(server: Server, *, has_slot: bool) -> Iterator[Finding]:
    major = server.version // 10_000
    yield Finding(
        "server_version", ok=major in _VERSIONS,
        detail="" if major in _VERSIONS else f"PostgreSQL {server.version_text}; dblake is for 13 to 18",
        fix="use a server of version 13 to 18",
    )
    yield Finding(
        "standby", ok=not server.standby,
        detail="this is a standby: watermarks cannot be written here" if server.standby else "",
        fix="set source.host to the primary",
    )
    logical = server.wal_level == "logical"
    yield Finding(
        "wal_level", ok=logical, detail="" if logical else f"wal_level is {server.wal_level}",
        fix=sql.SQL("ALTER SYSTEM SET wal_level = 'logical'; -- then restart the server"),
    )
    slots_free = has_slot or server.slots < server.max_slots
    yield Finding(
        "replication_slots", ok=slots_free,
        detail="" if slots_free else f"all {server.max_slots} replication slots are in use",
        fix=_raise("max_replication_slots", server.slots),
    )
    senders_free = server.wal_senders < server.max_wal_senders
    yield Finding(
        "wal_senders", ok=senders_free, detail="" if senders_free else f"all {server.max_wal_senders} are in use",
        fix=_raise("max_wal_senders", server.wal_senders),
    )
    yield Finding("slot_retention", detail="; ".join(_retention(server)))


def _encoding(server: Server, settings: PostgresSettings) -> Finding:
    if server.encoding == "UTF8":
        return Finding("encoding")
    if server.encoding == "SQL_ASCII":
        return Finding("encoding", detail="SQL_ASCII: bytes that are no UTF-8 are kept as hex and named in _lossy")
    if settings.plugin == "wal2json":
        return Finding("encoding", ok=False, detail=f"{server.encoding}: wal2json does not convert it to UTF-8",
                       fix="set source.plugin to pgoutput, for which the server converts it")
    return Finding("encoding", detail=f"{server.encoding}: the server converts it to UTF-8")


def _retention(server: Server) -> Iterator[str]:
    if server.slot_keep_size == "-1":
        yield "max_slot_wal_keep_size is unlimited: the log of a long stopped capture can fill the server's disk"
    else:
        yield f"max_slot_wal_keep_size is {server.slot_keep_size}: the slot is lost once capture is further behind"
    if server.slot_idle_timeout != "0":
        yield f"idle_replication_slot_timeout is {server.slot_idle_timeout}: so is the slot of a capture stopped longer"


def _raise(setting: str, used: int) -> sql.Composable:
    return sql.SQL(f"ALTER SYSTEM SET {setting} = {used + 5}; -- then restart the server")


def _role(facts: Survey, settings: PostgresSettings) -> Finding:
    role = facts.role
    if role is None:
        return Finding(
            "role", ok=False, detail=f"there is no role {settings.user}",
            fix=statements.create_role(settings, sql.SQL("'<the password of source.password>'")),
        )
    if not (role.may_login and role.may_replicate):
        return Finding(
            "role", ok=False, detail=f"role {settings.user} lacks LOGIN or REPLICATION",
            fix=statements.alter_role(settings, "LOGIN REPLICATION"),
        )
    if role.superuser:
        return Finding(
            "role", detail=f"role {settings.user} is a superuser; capture needs far less",
            fix=statements.alter_role(settings, "NOSUPERUSER"),
        )
    return Finding("role")


def _watermarks(facts: Survey, settings: PostgresSettings) -> Iterator[Finding]:
    found = facts.watermarks
    create = [statements.create_watermark_table(settings)]
    if found is None:
        create.insert(0, statements.create_watermark_schema(settings))
        detail = f"there is no schema {settings.watermark_schema}"
    elif found.oid is None:
        detail = "it does not exist"
    else:
        create.insert(0, statements.move_watermark_table(settings))
        detail = "" if found.well_formed else "it is not (id int primary key, value varchar(36)), or not a plain table"
    yield Finding("watermark_table", ok=not detail, detail=detail, fix=statements.script(create))
    rows = found.rows if found else None
    missing = "" if rows is None else abbreviated([str(n) for n in WATERMARK_ROWS if n not in rows])
    yield Finding(
        "watermark_rows", ok=rows is not None and not missing,
        detail="they cannot be seen yet" if rows is None else f"missing: {missing}" if missing else "",
        fix=statements.insert_watermark_rows(settings),
    )
    granted = found is not None and found.may_use_schema and found.may_read_and_update
    yield Finding(
        "watermark_privileges", ok=granted,
        detail="" if granted else f"role {settings.user} may not read and update the watermark table",
        fix=statements.script([
            statements.grant_usage(settings, [settings.watermark_schema]), statements.grant_watermarks(settings),
        ]),
    )


def _publication(facts: Survey, settings: PostgresSettings) -> Iterator[Finding]:
    publication = facts.publication
    if publication is None:
        yield Finding(
            "publication", ok=False, detail=f"there is no publication {settings.publication}",
            fix=statements.create_publication(settings, [t for t in facts.tables if t.publishable]),
        )
        return
    yield Finding("publication")
    yield _publication_tables(facts, publication, settings)
    yield Finding(
        "publication_operations", ok=publication.all_operations,
        detail="" if publication.all_operations else "it does not publish insert, update, delete and truncate",
        fix=statements.set_publication(settings, ALL_OPERATIONS),
    )
    parted = [] if publication.via_root else [t.qualified for t in facts.tables if t.partitioned]
    yield Finding(
        "publication_partitions", ok=not parted,
        detail=f"changes of partitions come under the partitions' names: {abbreviated(parted)}" if parted else "",
        fix=statements.set_publication(settings, "publish_via_partition_root = true"),
    )
    cut = [t for t in facts.tables if t.oid in publication.narrowed]
    yield Finding(
        "publication_filters", ok=not cut,
        detail=f"a column list or row filter hides changes of {abbreviated([t.qualified for t in cut])}" if cut else "",
        fix=statements.script([statements.drop_tables(settings, cut), statements.add_tables(settings, cut)]),
    )
    yield Finding(
        "publication_generated_columns", ok=not publication.generated_columns,
        detail="it publishes generated columns, which chunks do not have" if publication.generated_columns else "",
        fix=statements.set_publication(settings, "publish_generated_columns = none"),
    )


def _publication_tables(facts: Survey, publication: Publication, settings: PostgresSettings) -> Finding:
    missing = [t for t in facts.tables if t.publishable and not publication.holds(t.oid, t.schema_oid)]
    marks = facts.watermarks
    no_marks = marks is None or marks.oid is None or not publication.holds(marks.oid, marks.schema_oid)
    names = [t.qualified for t in missing] + (["the watermark table"] if no_marks else [])
    return Finding(
        "publication_tables", ok=not names, detail=f"not published: {abbreviated(names)}" if names else "",
        fix=statements.add_tables(settings, missing, watermarks=no_marks),
    )


def _slot(facts: Survey, settings: PostgresSettings) -> Iterator[Finding]:
    slot = facts.slot
    if slot is None:
        yield Finding(
            "slot", ok=False,
            detail=f"there is no slot {settings.slot}; if capture has run before, the log since then is a gap",
            fix=statements.create_slot(settings, facts.server.version),
        )
        return
    unusable = "" if usable(slot, facts.server, settings) else (
        f"slot {settings.slot} is {'temporary, ' if slot.temporary else ''}{slot.kind},"
        f" of plugin {slot.plugin} and database {slot.database}"
    )
    yield Finding("slot", ok=not unusable, detail=unusable,
                  fix="set source.slot to another name, then run --init; or source.plugin to the slot's")
    lost, going = slot.wal_status == "lost", slot.wal_status == "unreserved"
    yield Finding(
        "slot_log", ok=not lost and not going,
        detail="the slot is lost: the server removed log it still needed, a gap" if lost
        else "the server may remove log the slot still needs at its next checkpoint" if going else "",
        fix="run capture --accept-gap, which makes the slot anew and dumps all tables again" if lost
        else "run capture now; raise max_slot_wal_keep_size",
    )
    ours = slot.holder is not None and slot.holder == f"dblake {settings.name} log"
    yield Finding(
        "slot_active", ok=slot.active_pid is None or ours,
        detail="" if slot.active_pid is None
        else f"{'capture runs' if ours else 'somebody else reads from it'}: server process {slot.active_pid}",
        fix="" if ours else sql.SQL("SELECT pg_terminate_backend({})").format(sql.Literal(slot.active_pid)),
    )


def _ddl_triggers(facts: Survey, settings: PostgresSettings) -> Iterator[Finding]:
    able = facts.server.version >= ddl_trigger.FIRST_VERSION
    yield Finding("log_ddl", ok=able, detail="" if able else "before version 14 the log has no messages",
                  fix="set source.log_ddl to false")
    yield Finding(
        "ddl_triggers", ok=facts.ddl_triggers,
        detail="" if facts.ddl_triggers else "the event triggers that log_ddl asks for are not there, or do not fire",
        fix=statements.script(ddl_trigger.create(settings)),
    )


def usable(slot: Slot, server: Server, settings: PostgresSettings) -> bool:
    """True if capture can read from a slot of this kind."""
    wanted = (settings.plugin, "logical", server.database, False)
    return (slot.plugin, slot.kind, slot.database, slot.temporary) == wanted


def output_plugin(server: Server, settings: PostgresSettings, tried: Literal["", "missing", "refused"]) -> Finding:
    """Whether the server has and may use the output plugin: newer ones refuse those that are not listed."""
    name, plugin = "output_plugin", settings.plugin
    if tried == "missing":
        return Finding(name, ok=False, detail=f"the server has no output plugin {plugin}",
                       fix=f"install {plugin} on the server (a package such as postgresql-15-wal2json)")
    listed = [part.strip(' "') for part in (server.plugins or "").split(",") if part.strip()]
    if tried != "refused" and (server.plugins is None or plugin in listed):
        return Finding(name)
    # One literal for each: all in one would be one name. The list is shown to superusers only.
    add = sql.SQL("ALTER SYSTEM SET output_plugin_libraries = {}; SELECT pg_reload_conf()").format(
        sql.SQL(", ").join(map(sql.Literal, [*(listed or ("pgoutput", "test_decoding")), plugin]))
    )
    hidden = sql.SQL(" -- and what else it lists now" if server.plugins is None else "")
    return Finding(name, ok=False, detail=f"output_plugin_libraries does not list {plugin}",
                   fix=sql.SQL("{}{}").format(add, hidden))
