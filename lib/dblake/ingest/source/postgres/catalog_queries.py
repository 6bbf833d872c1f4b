"""Reads the facts of ``catalog_facts``, in a handful of queries.

Guarantee: a thousand tables take as many queries as one, and privileges are always those of the capture role, whichever
role connects.
"""

from __future__ import annotations

from psycopg2 import sql
from psycopg2.extensions import cursor

from dblake.base.core.names import TableFilter
from dblake.ingest.source.postgres import catalog, ddl_trigger
from dblake.ingest.source.postgres.capture_objects import WATERMARK_TABLE, Publication, Slot, WatermarkTable
from dblake.ingest.source.postgres.catalog_facts import CatalogFacts, Role, Server, WholeSchema
from dblake.ingest.source.postgres.collations import read_changed_collations
from dblake.ingest.source.postgres.settings import PostgresSettings
from dblake.ingest.source.postgres.slot_loss import describe_loss
from dblake.ingest.source.postgres.table_facts import Identity, Table
from dblake.ingest.source.postgres.table_storage import read_foreign_storage
from dblake.ingest.source.provider import POSTGRES_ROLES, find_postgres_provider

_SERVER = """
SELECT current_setting('server_version_num')::int, current_setting('server_version'), current_database(),
       pg_is_in_recovery(), current_setting('wal_level'),
       current_setting('max_replication_slots')::int, (SELECT count(*)::int FROM pg_replication_slots),
       current_setting('max_wal_senders')::int, (SELECT count(*)::int FROM pg_stat_replication),
       current_setting('server_encoding'), current_setting('max_slot_wal_keep_size'),
       coalesce(current_setting('idle_replication_slot_timeout', true), '0'),
       (SELECT setting FROM pg_settings WHERE name = 'output_plugin_libraries')
"""
_PROVIDER = """
SELECT ARRAY(SELECT rolname::text FROM pg_roles WHERE rolname = ANY(%(roles)s)),
       EXISTS (SELECT FROM pg_proc WHERE proname = 'aurora_version')
"""
# Amazon RDS grants REPLICATION to no role; membership of rds_replication replaces it.
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
             WHERE attrelid = c.oid AND attgenerated <> '' AND NOT attisdropped ORDER BY attnum),
       (SELECT ARRAY[conname::text, regexp_replace(pg_get_constraintdef(oid), ' DEFERRABLE.*$', '')]
        FROM pg_constraint WHERE conrelid = c.oid AND contype = 'p')
FROM pg_class c LEFT JOIN pg_roles r ON r.rolname = %(user)s
WHERE c.oid = ANY(%(oids)s::oid[])
"""
# Each partition logs its own rows and has its own identity. Only columns before INCLUDE belong to a key.
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
# pg_database_owner owns schemas and no tables. A role that reads everything requires no default privileges.
_SCHEMAS = """
SELECT n.oid, n.nspname, coalesce(has_schema_privilege(r.oid, n.oid, 'USAGE'), false), o.names, o.alterable
FROM pg_namespace n LEFT JOIN pg_roles r ON r.rolname = %(user)s
CROSS JOIN LATERAL (
  SELECT coalesce(array_agg(o.rolname::text ORDER BY o.rolname), '{}') AS names,
         coalesce(array_agg(o.rolname::text ORDER BY o.rolname) FILTER (WHERE pg_has_role(o.oid, 'MEMBER')), '{}')
         AS alterable
  FROM pg_roles o
  WHERE (o.oid = n.nspowner OR EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = n.oid AND c.relowner = o.oid
                                       AND c.relkind IN ('r', 'p')))
  AND o.rolname <> 'pg_database_owner' AND o.oid IS DISTINCT FROM r.oid AND NOT coalesce(r.rolsuper, false)
  AND NOT EXISTS (SELECT FROM pg_roles a WHERE a.rolname = 'pg_read_all_data' AND pg_has_role(r.oid, a.oid, 'USAGE'))
  AND NOT EXISTS (SELECT FROM pg_default_acl d, aclexplode(d.defaclacl) x
                  WHERE d.defaclrole = o.oid AND d.defaclnamespace IN (0, n.oid) AND d.defaclobjtype = 'r'
                  AND x.privilege_type = 'SELECT' AND x.grantee IN (0, r.oid))
) o
WHERE n.nspname !~ '^pg_' AND n.nspname NOT IN ('information_schema', %(watermark_schema)s)
ORDER BY n.nspname
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
SELECT s.plugin, s.slot_type, s.database, s.temporary, s.wal_status, s.active_pid, a.application_name,
       pg_is_in_recovery() AND coalesce((to_jsonb(s) ->> 'synced')::bool, false),
       coalesce(to_jsonb(s) ->> 'invalidation_reason', ''), coalesce((to_jsonb(s) ->> 'conflicting')::bool, false)
FROM pg_replication_slots s LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid
WHERE s.slot_name = %(slot)s
"""


_EMIT = """
SELECT coalesce(bool_or(has_function_privilege(r.oid, p.oid, 'EXECUTE')), false)
FROM pg_proc p, pg_roles r WHERE p.proname = 'pg_logical_emit_message' AND r.rolname = %(user)s
AND p.pronamespace = 'pg_catalog'::regnamespace AND p.proargtypes[2] = 'text'::regtype
"""


def read_facts(cur: cursor, settings: PostgresSettings) -> CatalogFacts:
    """Read all facts; they are consistent only if ``cur`` is in a REPEATABLE READ transaction."""
    parameters = {
        "user": settings.user, "publication": settings.publication, "slot": settings.slot,
        "watermark_schema": settings.watermark_schema, "watermark_table": WATERMARK_TABLE,
    }
    cur.execute(_PROVIDER, {"roles": list(POSTGRES_ROLES)})
    roles, has_aurora_version = cur.fetchone()
    cur.execute(_SERVER)
    provider = find_postgres_provider(roles, has_aurora_version=has_aurora_version)
    server = Server(*(*cur.fetchone(), provider))
    cur.execute(_ROLE, parameters)
    role = cur.fetchone()
    everything = catalog.captured_tables(cur, TableFilter(["*.*"]), settings.watermark_schema)
    captured = [t for t in everything if settings.table_filter(t.schema_name, t.table_name)]
    cur.execute(_UNLOGGED, parameters)
    unlogged = tuple((s, t) for s, t in cur.fetchall() if settings.table_filter(s, t))
    cur.execute(_SLOT, parameters)
    slot = cur.fetchone()
    cur.execute(_EMIT, parameters)
    may_emit_messages = cur.fetchone()[0]
    cur.execute("SELECT current_setting('is_superuser')::bool")
    is_superuser = cur.fetchone()[0]
    cur.execute(_SCHEMAS, parameters)
    schemas = tuple(
        WholeSchema(oid, name, can_use, tuple(owners), tuple(alterable))
        for oid, name, can_use, owners, alterable in cur.fetchall() if settings.table_filter.takes_all_of(name)
    )
    return CatalogFacts(
        server=server,
        role=Role(*role) if role else None,
        is_superuser=is_superuser,
        collations=read_changed_collations(cur, server.version, [t.oid for t in captured]),
        schemas=schemas,
        tables=_read_tables(cur, captured, settings.user),
        names=tuple((t.schema_name, t.table_name) for t in everything) + unlogged,
        unlogged=unlogged,
        watermarks=_read_watermarks(cur, settings, parameters),
        publication=_read_publication(cur, server.version, parameters),
        slot=Slot(*(*slot[:8], describe_loss(*slot[8:]))) if slot else None,
        has_ddl_triggers=ddl_trigger.are_enabled(cur, settings),
        may_emit_messages=may_emit_messages,
    )


def _read_tables(cur: cursor, captured: list[catalog.CatalogTable], user: str) -> tuple[Table, ...]:
    oids = [t.oid for t in captured]
    parameters = {"oids": oids, "user": user}
    cur.execute(_TABLES, parameters)
    facts = {row[0]: row[1:] for row in cur.fetchall()}
    cur.execute(_IDENTITIES, parameters)
    identities: dict[int, list[Identity]] = {}
    for oid, *identity in cur.fetchall():
        identities.setdefault(oid, []).append(Identity(*identity))
    storage = read_foreign_storage(cur, oids)
    # A table dropped since the schemas were read has no facts.
    return tuple(
        Table(
            t.oid, t.schema_name, t.table_name, t.schema, t.has_generated_key, t.has_loose_key,
            storage.get(t.oid, ""), tuple(identities[t.oid]), *facts[t.oid],
        )
        for t in captured
        if t.oid in facts and t.oid in identities
    )


def _read_watermarks(
    cur: cursor, settings: PostgresSettings, parameters: dict[str, str]
) -> WatermarkTable | None:
    cur.execute(_WATERMARKS, parameters)
    row = cur.fetchone()
    if row is None:
        return None
    schema_oid, oid, is_well_formed, can_use_schema, can_read_and_update, is_readable = row
    rows = None
    if is_well_formed and is_readable:
        cur.execute(sql.SQL("SELECT id FROM {}").format(sql.Identifier(settings.watermark_schema, WATERMARK_TABLE)))
        rows = frozenset(row[0] for row in cur.fetchall())
    return WatermarkTable(schema_oid, oid, bool(is_well_formed), can_use_schema, can_read_and_update, rows)


def _read_publication(cur: cursor, version: int, parameters: dict[str, str]) -> Publication | None:
    cur.execute(_PUBLICATION.format(generated="pubgencols <> 'n'" if version >= 180000 else "false"), parameters)
    publication = cur.fetchone()
    if publication is None:
        return None
    is_narrowed = "prattrs IS NOT NULL OR prqual IS NOT NULL" if version >= 150000 else "false"
    cur.execute(f"SELECT prrelid, {is_narrowed} FROM pg_publication_rel WHERE prpubid = %s", (publication[0],))
    members = cur.fetchall()
    schemas: list[tuple[int]] = []
    if version >= 150000:
        cur.execute("SELECT pnnspid FROM pg_publication_namespace WHERE pnpubid = %s", (publication[0],))
        schemas = cur.fetchall()
    return Publication(
        frozenset(oid for oid, _ in members),
        frozenset(oid for (oid,) in schemas),
        frozenset(oid for oid, narrowed in members if narrowed),
        *publication,
    )
