"""Everything preflight and its ``--init`` must know about a database, asked for in a handful of catalogue queries.

A thousand tables take as many queries as one. What the facts mean, and what is to be done about them, is for
``preflight`` and ``init`` to say. All questions about privileges are asked for the capture role, whoever asks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import psycopg2
from psycopg2 import sql
from psycopg2.extensions import cursor

from dblake.core.names import TableFilter, qualified
from dblake.core.schema import TableSchema
from dblake.source.postgres import catalog as catalogue
from dblake.source.postgres import ddl_trigger
from dblake.source.postgres.settings import PostgresSettings

WATERMARK_TABLE = "watermark"
WATERMARK_ROWS = range(9)
"""Row 0 is the heartbeat's, row n chunk reader n's."""

_SERVER = """
SELECT current_setting('server_version_num')::int, current_setting('server_version'), current_database(),
       pg_is_in_recovery(), current_setting('wal_level'),
       current_setting('max_replication_slots')::int, (SELECT count(*)::int FROM pg_replication_slots),
       current_setting('max_wal_senders')::int, (SELECT count(*)::int FROM pg_stat_replication),
       current_setting('server_encoding'), current_setting('max_slot_wal_keep_size'),
       coalesce(current_setting('idle_replication_slot_timeout', true), '0'),
       (SELECT setting FROM pg_settings WHERE name = 'output_plugin_libraries')
"""
# Amazon RDS lets nobody have REPLICATION; membership of its own role stands for it.
_ROLE = """
SELECT oid, rolcanlogin,
       rolreplication OR rolsuper OR EXISTS (
           SELECT FROM pg_roles m WHERE m.rolname = 'rds_replication' AND pg_has_role(r.oid, m.oid, 'MEMBER')),
       rolsuper, rolbypassrls, has_database_privilege(oid, current_database(), 'CONNECT')
FROM pg_roles r WHERE rolname = %(user)s
"""
_TABLES = """
SELECT c.oid, c.relnamespace, c.relkind = 'p',
       coalesce(has_schema_privilege(r.oid, c.relnamespace, 'USAGE'), false),
       coalesce(has_table_privilege(r.oid, c.oid, 'SELECT'), false),
       coalesce(c.relrowsecurity AND NOT r.rolsuper AND NOT r.rolbypassrls
                AND (c.relforcerowsecurity OR NOT pg_has_role(r.oid, c.relowner, 'USAGE')), false),
       ARRAY(SELECT attname::text FROM pg_attribute
             WHERE attrelid = c.oid AND attgenerated <> '' AND NOT attisdropped ORDER BY attnum)
FROM pg_class c LEFT JOIN pg_roles r ON r.rolname = %(user)s
WHERE c.oid = ANY(%(oids)s::oid[])
"""
# Partitions log for themselves, so each has its own identity. Only columns before INCLUDE belong to a key.
_IDENTITIES = """
SELECT coalesce(pg_partition_root(c.oid)::oid, c.oid), n.nspname, c.relname, c.relreplident,
       coalesce(pk.indimmediate AND pk.indisvalid, false), pk.indexrelid IS NOT NULL,
       ri.indexrelid IS NOT NULL,
       coalesce((pk.indkey::int2[])[0:pk.indnkeyatts - 1] <@ (ri.indkey::int2[])[0:ri.indnkeyatts - 1], true),
       EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attstorage IN ('x', 'e')
               AND a.attnum = ANY(CASE c.relreplident WHEN 'i' THEN ri.indkey ELSE pk.indkey END::int2[])),
       current_setting('server_version_num')::int >= 180000
       AND EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attgenerated <> '' AND NOT a.attisdropped
                   AND (c.relreplident = 'f'
                        OR a.attnum = ANY(CASE c.relreplident WHEN 'i' THEN ri.indkey ELSE pk.indkey END::int2[])))
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_index pk ON pk.indrelid = c.oid AND pk.indisprimary
LEFT JOIN pg_index ri ON ri.indrelid = c.oid AND ri.indisreplident
WHERE c.relkind IN ('r', 'p') AND (c.oid = ANY(%(oids)s::oid[]) OR pg_partition_root(c.oid)::oid = ANY(%(oids)s::oid[]))
ORDER BY c.relispartition, n.nspname, c.relname
"""
_UNLOGGED = """
SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND c.relpersistence = 'u' AND n.nspname <> %(watermark_schema)s
ORDER BY n.nspname, c.relname
"""
_WATERMARKS = """
SELECT n.oid, c.oid,
       c.relkind = 'r' AND c.relpersistence = 'p'
       AND (SELECT array_agg(a.attname::text || ' ' || format_type(a.atttypid, a.atttypmod) ORDER BY a.attnum)
            FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)
           = ARRAY['id integer', 'value character varying(36)']
       AND EXISTS (SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = c.oid AND i.indkey::int2[] = '[0:0]={1}'
                   WHERE i.indrelid = c.oid AND i.indisprimary AND i.indimmediate AND a.attname = 'id'),
       coalesce(has_schema_privilege(r.oid, n.oid, 'USAGE'), false),
       coalesce(has_table_privilege(r.oid, c.oid, 'SELECT') AND has_table_privilege(r.oid, c.oid, 'UPDATE'), false),
       coalesce(has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT'), false)
FROM pg_namespace n
LEFT JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = %(watermark_table)s
LEFT JOIN pg_roles r ON r.rolname = %(user)s
WHERE n.nspname = %(watermark_schema)s
"""
_PUBLICATION = """
SELECT oid, puballtables, pubinsert AND pubupdate AND pubdelete AND pubtruncate, pubviaroot, {generated}
FROM pg_publication WHERE pubname = %(publication)s
"""
_SLOT = """
SELECT s.plugin, s.slot_type, s.database, s.temporary, s.wal_status, s.active_pid, a.application_name
FROM pg_replication_slots s LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid
WHERE s.slot_name = %(slot)s
"""


@dataclass(frozen=True, slots=True)
class Server:
    """The server and its settings."""

    version: int
    version_text: str
    database: str
    standby: bool
    wal_level: str
    max_slots: int
    slots: int
    max_wal_senders: int
    wal_senders: int
    encoding: str
    slot_keep_size: str
    slot_idle_timeout: str
    plugins: str | None
    """The output plugins that the server lets be used; None if it lets any be, or shows it to superusers only."""


@dataclass(frozen=True, slots=True)
class Role:
    """The capture role."""

    oid: int
    may_login: bool
    may_replicate: bool
    superuser: bool
    bypasses_row_security: bool
    may_connect: bool


@dataclass(frozen=True, slots=True)
class Identity:
    """What one table, or one partition of it, logs of an updated or deleted row's old version.

    ``kind`` is PostgreSQL's letter: d(efault), f(ull), i(ndex), n(othing). ``key_serves`` is false for a deferrable
    primary key, which PostgreSQL does not log by. ``unpublished`` is true from PostgreSQL 18 on, if generated columns
    are among what identifies rows: it refuses to update or delete them then.
    """

    schema: str
    name: str
    kind: str
    key_serves: bool
    has_key: bool
    has_index: bool
    index_covers_key: bool
    toastable: bool
    unpublished: bool

    @property
    def present(self) -> bool:
        """True if UPDATE and DELETE go through at the source once the table is published."""
        return not self.unpublished and {"d": self.key_serves, "f": True, "i": self.has_index, "n": False}[self.kind]


@dataclass(frozen=True)
class Table:
    """One captured table; a partitioned one with the identities of its partitions, its own first."""

    oid: int
    schema: str
    name: str
    columns: TableSchema
    key_generated: bool
    identities: tuple[Identity, ...]
    schema_oid: int
    partitioned: bool
    may_use_schema: bool
    may_select: bool
    rows_hidden: bool
    generated: list[str]

    @property
    def qualified(self) -> str:
        """``schema.table`` as messages name it."""
        return qualified(self.schema, self.name)

    @property
    def publishable(self) -> bool:
        """True if publishing it makes no write fail at the source."""
        return all(i.present for i in self.identities)


@dataclass(frozen=True, slots=True)
class Watermarks:
    """The watermark table; ``oid`` is None if only its schema is there, ``rows`` if they may not be read."""

    schema_oid: int
    oid: int | None
    well_formed: bool
    may_use_schema: bool
    may_read_and_update: bool
    rows: frozenset[int] | None


@dataclass(frozen=True, slots=True)
class Publication:
    """The publication and what is in it. ``narrowed`` are the tables with a column list or a row filter."""

    tables: frozenset[int]
    schemas: frozenset[int]
    narrowed: frozenset[int]
    oid: int
    all_tables: bool
    all_operations: bool
    via_root: bool
    generated_columns: bool

    def holds(self, table: int, schema: int) -> bool:
        """True if a table's changes are published."""
        return self.all_tables or table in self.tables or schema in self.schemas


@dataclass(frozen=True, slots=True)
class Slot:
    """The replication slot. ``holder`` is the application name of who reads from it, if it is one of ours."""

    plugin: str | None
    kind: str
    database: str | None
    temporary: bool
    wal_status: str | None
    active_pid: int | None
    holder: str | None


@dataclass(frozen=True, slots=True)
class Survey:
    """All facts. ``names`` are those of all tables there are, captured or not; ``publication`` is pgoutput's only."""

    server: Server
    role: Role | None
    tables: tuple[Table, ...]
    names: tuple[tuple[str, str], ...]
    unlogged: tuple[tuple[str, str], ...]
    watermarks: Watermarks | None
    publication: Publication | None
    slot: Slot | None
    ddl_triggers: bool


def survey(cur: cursor, settings: PostgresSettings) -> Survey:
    """Asks the database. The answers are of one moment only if ``cur`` is in a REPEATABLE READ transaction."""
    named = {
        "user": settings.user, "publication": settings.publication, "slot": settings.slot,
        "watermark_schema": settings.watermark_schema, "watermark_table": WATERMARK_TABLE,
    }
    cur.execute(_SERVER)
    server = Server(*cur.fetchone())
    cur.execute(_ROLE, named)
    role = cur.fetchone()
    everything = catalogue.captured_tables(cur, TableFilter(["*.*"]), settings.watermark_schema)
    captured = [t for t in everything if settings.wanted(t.schema_name, t.table_name)]
    cur.execute(_UNLOGGED, named)
    unlogged = tuple((s, t) for s, t in cur.fetchall() if settings.wanted(s, t))
    cur.execute(_SLOT, named)
    slot = cur.fetchone()
    return Survey(
        server=server,
        role=Role(*role) if role else None,
        tables=_tables(cur, captured, settings.user),
        names=tuple((t.schema_name, t.table_name) for t in everything) + unlogged,
        unlogged=unlogged,
        watermarks=_watermarks(cur, settings, named),
        publication=_publication(cur, server.version, named) if settings.plugin == "pgoutput" else None,
        slot=Slot(*slot) if slot else None,
        ddl_triggers=ddl_trigger.enabled(cur, settings),
    )


def _tables(cur: cursor, captured: list[catalogue.CatalogueTable], user: str) -> tuple[Table, ...]:
    asked = {"oids": [t.oid for t in captured], "user": user}
    cur.execute(_TABLES, asked)
    facts = {row[0]: row[1:] for row in cur.fetchall()}
    cur.execute(_IDENTITIES, asked)
    identities: dict[int, list[Identity]] = {}
    for oid, *identity in cur.fetchall():
        identities.setdefault(oid, []).append(Identity(*identity))
    # A table dropped since the catalogue was read has no facts.
    return tuple(
        Table(t.oid, t.schema_name, t.table_name, t.schema, t.key_generated, tuple(identities[t.oid]), *facts[t.oid])
        for t in captured
        if t.oid in facts and t.oid in identities
    )


def _watermarks(cur: cursor, settings: PostgresSettings, named: dict[str, str]) -> Watermarks | None:
    cur.execute(_WATERMARKS, named)
    found = cur.fetchone()
    if found is None:
        return None
    schema_oid, oid, well_formed, may_use_schema, may_read_and_update, i_may_read = found
    rows = None
    if well_formed and i_may_read:
        cur.execute(sql.SQL("SELECT id FROM {}").format(sql.Identifier(settings.watermark_schema, WATERMARK_TABLE)))
        rows = frozenset(row[0] for row in cur.fetchall())
    return Watermarks(schema_oid, oid, bool(well_formed), may_use_schema, may_read_and_update, rows)


def _publication(cur: cursor, version: int, named: dict[str, str]) -> Publication | None:
    cur.execute(_PUBLICATION.format(generated="pubgencols <> 'n'" if version >= 180000 else "false"), named)
    found = cur.fetchone()
    if found is None:
        return None
    cut = "prattrs IS NOT NULL OR prqual IS NOT NULL" if version >= 150000 else "false"
    cur.execute(f"SELECT prrelid, {cut} FROM pg_publication_rel WHERE prpubid = %s", (found[0],))
    members = cur.fetchall()
    schemas: list[tuple[int]] = []
    if version >= 150000:
        cur.execute("SELECT pnnspid FROM pg_publication_namespace WHERE pnpubid = %s", (found[0],))
        schemas = cur.fetchall()
    return Publication(
        frozenset(oid for oid, _ in members),
        frozenset(oid for (oid,) in schemas),
        frozenset(oid for oid, narrowed in members if narrowed),
        *found,
    )


def tried_plugin(cur: cursor, settings: PostgresSettings) -> Literal["", "missing", "refused"]:
    """What keeps the server from using the output plugin, if anything does; ``cur`` is in no transaction.

    No catalogue lists plugins, so one is tried: with a slot that is gone at once, unless the server has to wait for
    transactions, for which the plugin has been loaded already. What else stands in the way is for others to name.
    """
    try:
        cur.execute("SET statement_timeout = '2s'")
        cur.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_create_logical_replication_slot(%s, %s, true)",
            (f"{settings.slot[:50]}_preflight", settings.plugin),
        )
    except psycopg2.errors.UndefinedFile:
        return "missing"
    except psycopg2.Error as error:
        return "refused" if "as an output plugin" in str(error) else ""
    finally:
        cur.execute("RESET statement_timeout")
    return ""
