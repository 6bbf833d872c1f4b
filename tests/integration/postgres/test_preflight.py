"""Every prerequisite of a PostgreSQL source: broken on a real server, reported by name, corrected by its fix."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psycopg2
import pytest

from dblake.base.core.errors import PositionLost, PrerequisitesNotMet, SourceError
from dblake.base.core.source import Check, InitPlan
from dblake.ingest.source.postgres.catalog_queries import read_facts
from dblake.ingest.source.postgres.connection import connect, connect_replication
from dblake.ingest.source.postgres.embedded import EmbeddedPostgres
from dblake.ingest.source.postgres.init import plan_init, run_init
from dblake.ingest.source.postgres.preflight import check_output_plugin, findings, preflight
from dblake.ingest.source.postgres.settings import PostgresSettings
from dblake.ingest.source.postgres.source import PostgresSource
from tests.support.postgres import Database, note_postgres

HOME = Path(__file__).parents[3]

SHOP = (
    "CREATE TABLE orders (id int PRIMARY KEY, note text)",
    "CREATE TABLE log (at timestamptz, what text)",
    "CREATE TABLE parts (id int, region text, PRIMARY KEY (id, region)) PARTITION BY LIST (region)",
    "CREATE TABLE parts_eu PARTITION OF parts FOR VALUES IN ('eu')",
    'CREATE TABLE "we""ird; drop" (id int PRIMARY KEY, "or""der" text)',
    "INSERT INTO orders VALUES (1, 'a')",
)


def settings_for(database: Database) -> PostgresSettings:
    return PostgresSettings(
        name=database.name, host="127.0.0.1", port=database.server.port, database=database.name,
        user=f"cap_{database.name}", password="it's a \"secret\"", patterns=("public.*",), tls="disable",
        slot=f"s_{database.name}", publication="p",
    )


def init(database: Database, settings: PostgresSettings) -> InitPlan:
    return run_init(settings, database.server.user, database.server.password)


@pytest.fixture
def settings(database: Database) -> Iterator[PostgresSettings]:
    """Create a shop and prepare it with ``--init``."""
    database.run(*SHOP)
    settings = settings_for(database)
    init(database, settings)
    yield settings
    database.run(f"DROP OWNED BY {settings.user}", f"DROP ROLE {settings.user}")


def find_check(settings: PostgresSettings, name: str) -> Check:
    (check,) = [c for c in preflight(settings) if c.check == name]
    return check


def unmet(settings: PostgresSettings) -> list[str]:
    return [c.check for c in preflight(settings) if not c.ok]


def test_init_meets_all_checks(settings: PostgresSettings) -> None:
    assert unmet(settings) == []


# Check, statements that break it, part of the detail, the fix. {role} and {slot} are the test's.
BROKEN = [
    ("watermark_table", ["DROP SCHEMA dblake CASCADE"], "there is no schema dblake",
     'CREATE SCHEMA "dblake";\nCREATE TABLE "dblake"."watermark" (id int PRIMARY KEY, value varchar(36));'),
    ("watermark_table", ["DROP TABLE dblake.watermark"], "it does not exist",
     'CREATE TABLE "dblake"."watermark" (id int PRIMARY KEY, value varchar(36));'),
    ("watermark_table", ["ALTER TABLE dblake.watermark DROP CONSTRAINT watermark_pkey"],
     "it is not a plain table (id int primary",
     'ALTER TABLE "dblake"."watermark" RENAME TO "watermark_before";\n'
     'CREATE TABLE "dblake"."watermark" (id int PRIMARY KEY, value varchar(36));'),
    ("watermark_rows", ["DELETE FROM dblake.watermark WHERE id IN (0, 7)"], "missing: 0, 7",
     """INSERT INTO "dblake"."watermark" (id, value) SELECT id, '' FROM generate_series(0, 8) AS id"""
     " ON CONFLICT DO NOTHING"),
    ("watermark_privileges", ["REVOKE UPDATE ON dblake.watermark FROM {role}"], "may not read and update",
     'GRANT USAGE ON SCHEMA "dblake" TO "{role}";\nGRANT SELECT, UPDATE ON TABLE "dblake"."watermark" TO "{role}";'),
    ("role", ["ALTER ROLE {role} NOREPLICATION"], "lacks LOGIN or REPLICATION",
     'ALTER ROLE "{role}" LOGIN REPLICATION'),
    ("schema_privileges", ["REVOKE USAGE ON SCHEMA public FROM PUBLIC", "REVOKE USAGE ON SCHEMA public FROM {role}"],
     "may not use schema public", 'GRANT USAGE ON SCHEMA "public" TO "{role}"'),
    ("table_privileges", ['REVOKE SELECT ON orders, "we""ird; drop" FROM {role}'],
     'may not read public."we""ird; drop", public.orders',
     'GRANT SELECT ON TABLE "public"."we""ird; drop", "public"."orders" TO "{role}"'),
    ("row_security", ["ALTER TABLE orders ENABLE ROW LEVEL SECURITY"], "public.orders",
     'ALTER ROLE "{role}" BYPASSRLS'),
    ("column_names", ["ALTER TABLE orders ADD _lsn int", 'ALTER TABLE orders ADD "Note" text'],
     "public.orders._lsn, public.orders.Note",
     'ALTER TABLE "public"."orders" RENAME COLUMN "_lsn" TO "lsn_2";\n'
     'ALTER TABLE "public"."orders" RENAME COLUMN "Note" TO "Note_2";'),
    ("replica_identity", ["ALTER TABLE orders REPLICA IDENTITY NOTHING"], "public.orders",
     'ALTER TABLE "public"."orders" REPLICA IDENTITY DEFAULT;'),
    ("replica_identity", ["ALTER TABLE parts_eu REPLICA IDENTITY NOTHING"], "public.parts_eu",
     'ALTER TABLE "public"."parts_eu" REPLICA IDENTITY DEFAULT;'),
    ("replica_identity", ["ALTER TABLE parts REPLICA IDENTITY FULL"], "public.parts_eu",
     'ALTER TABLE "public"."parts_eu" REPLICA IDENTITY FULL;'),
    ("replica_identity",
     ["ALTER TABLE orders ALTER note SET NOT NULL, ADD UNIQUE (note)",
      "ALTER TABLE orders REPLICA IDENTITY USING INDEX orders_note_key"],
     "public.orders", 'ALTER TABLE "public"."orders" REPLICA IDENTITY DEFAULT;'),
    ("replica_identity",
     ["CREATE UNIQUE INDEX i ON orders (id)", "ALTER TABLE orders REPLICA IDENTITY USING INDEX i", "DROP INDEX i"],
     "public.orders", 'ALTER TABLE "public"."orders" REPLICA IDENTITY DEFAULT;'),
    ("key_constraint",
     ["ALTER TABLE orders DROP CONSTRAINT orders_pkey, ADD PRIMARY KEY (id) INCLUDE (note) DEFERRABLE"],
     "deferrable, or not valid in all partitions: two rows may share a key for a time, and the log does not show which"
     " of them changes: public.orders",
     'ALTER TABLE "public"."orders" DROP CONSTRAINT "orders_pkey",'
     ' ADD CONSTRAINT "orders_pkey" PRIMARY KEY (id) INCLUDE (note);'),
    ("key_constraint",
     ["ALTER TABLE parts DROP CONSTRAINT parts_pkey", "ALTER TABLE ONLY parts ADD PRIMARY KEY (id, region)"],
     "public.parts", 'ALTER TABLE "public"."parts" DROP CONSTRAINT "parts_pkey",'
     ' ADD CONSTRAINT "parts_pkey" PRIMARY KEY (id, region);'),
    ("publication", ["DROP PUBLICATION p"], "there is no publication p",
     'CREATE PUBLICATION "p" FOR TABLE "public"."we""ird; drop", "public"."orders", "public"."parts",'
     ' "dblake"."watermark" WITH (publish_via_partition_root = true)'),
    ("publication_tables", ["ALTER PUBLICATION p DROP TABLE orders, dblake.watermark"],
     "not published: public.orders, the watermark table",
     'ALTER PUBLICATION "p" ADD TABLE "public"."orders", "dblake"."watermark"'),
    ("publication_operations", ["ALTER PUBLICATION p SET (publish = 'insert, update')"], "does not publish",
     """ALTER PUBLICATION "p" SET (publish = 'insert, update, delete, truncate')"""),
    ("publication_partitions", ["ALTER PUBLICATION p SET (publish_via_partition_root = false)"], "public.parts",
     'ALTER PUBLICATION "p" SET (publish_via_partition_root = true)'),
    ("publication_filters", ["ALTER PUBLICATION p SET TABLE orders (id), parts WHERE (id > 0), dblake.watermark"],
     "hides changes of public.orders, public.parts",
     'ALTER PUBLICATION "p" DROP TABLE "public"."orders", "public"."parts";\n'
     'ALTER PUBLICATION "p" ADD TABLE "public"."orders", "public"."parts";'),
    ("slot", ["SELECT pg_drop_replication_slot('{slot}')"], "there is no slot {slot}",
     "SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')"),
]


@pytest.mark.parametrize(("check", "provoke", "detail", "fix"), BROKEN, ids=lambda v: v if isinstance(v, str) else "")
def test_broken_prerequisite_is_reported_and_fixed(
    settings: PostgresSettings, database: Database, check: str, provoke: list[str], detail: str, fix: str
) -> None:
    own = {"role": settings.user, "slot": settings.slot}
    database.run(*(statement.format(**own) for statement in provoke))

    broken = find_check(settings, check)

    assert not broken.ok
    assert detail.format(**own) in broken.detail
    assert broken.fix == fix.format(**own)
    database.run(broken.fix)
    assert find_check(settings, check) == Check(check, True)


def test_problems_are_reported_together_in_fix_order(settings: PostgresSettings, database: Database) -> None:
    database.run(
        "DROP SCHEMA dblake CASCADE", "DROP PUBLICATION p", f"REVOKE SELECT ON orders FROM {settings.user}",
        f"SELECT pg_drop_replication_slot('{settings.slot}')", "ALTER TABLE orders REPLICA IDENTITY NOTHING",
    )

    problems = [c for c in preflight(settings) if not c.ok]

    assert [c.check for c in problems] == [
        "watermark_table", "watermark_rows", "watermark_privileges", "table_privileges", "replica_identity",
        "publication", "slot",
    ]
    database.run(*(c.fix for c in problems))
    # A table that was not publishable before its identity was fixed is now missing from the publication.
    assert unmet(settings) == ["publication_tables"]
    database.run(find_check(settings, "publication_tables").fix)
    assert unmet(settings) == []


# Met, with a detail: check, statements that cause it, detail, fix.
INFORMATIVE = [
    ("role", ["ALTER ROLE {role} SUPERUSER"], "role {role} is a superuser; capture needs only LOGIN and REPLICATION",
     'ALTER ROLE "{role}" NOSUPERUSER'),
    ("unlogged_tables", ["CREATE UNLOGGED TABLE cache (id int PRIMARY KEY)"],
     "unlogged tables are not captured: public.cache", 'ALTER TABLE "public"."cache" SET LOGGED;'),
    ("generated_columns", ["ALTER TABLE orders ADD \"Twice\" int GENERATED ALWAYS AS (id * 2) STORED"],
     'generated columns are not captured, because the log omits them: public.orders."Twice"', ""),
    ("primary_key", [],
     "no primary key and no replica identity, so not captured: once published, their UPDATE and DELETE would fail"
     " at the source: public.log",
     'ALTER TABLE "public"."log" REPLICA IDENTITY FULL;\nALTER PUBLICATION "p" ADD TABLE "public"."log";'),
    ("primary_key", ["ALTER PUBLICATION p ADD TABLE log"],
     "no primary key, so captured from the log and not dumped: public.log; published without a replica identity, so"
     " their UPDATE and DELETE FAIL at the source: public.log",
     'ALTER TABLE "public"."log" REPLICA IDENTITY FULL;'),
    ("primary_key", ["ALTER TABLE log REPLICA IDENTITY FULL"],
     "no primary key, so captured from the log and not dumped: public.log", ""),
    ("encoding", [], "", ""),
    ("slot_retention", [],
     "max_slot_wal_keep_size is unlimited: while capture is stopped, its log can fill the server's disk", ""),
]


@pytest.mark.parametrize(
    ("check", "provoke", "detail", "fix"), INFORMATIVE, ids=lambda v: v if isinstance(v, str) else ""
)
def test_met_prerequisite_reports_detail(
    settings: PostgresSettings, database: Database, check: str, provoke: list[str], detail: str, fix: str
) -> None:
    database.run(*(statement.format(role=settings.user) for statement in provoke))

    informed = find_check(settings, check)

    shown = Check(check, True, detail.format(role=settings.user), fix.format(role=settings.user))
    assert replace(informed, tables={}, affects="source") == shown
    if fix:
        database.run(informed.fix)
        assert find_check(settings, check).fix == ""


def test_keyless_table_stays_writable_after_init(settings: PostgresSettings, database: Database) -> None:
    database.run("INSERT INTO log VALUES (now(), 'x')", "UPDATE log SET what = 'y'", "DELETE FROM log")


@pytest.mark.parametrize(
    ("patterns", "detail", "fix"),
    [
        (("public.ordres",), "no table matches public.ordres",
         "correct source.tables, or create the tables; similar names: public.orders"),
        (("public.*", "audit.*"), "no table matches audit.*", "correct source.tables, or create the tables"),
        (("public.*", "!public.*"), "the patterns exclude every table", "correct source.tables"),
    ],
)
def test_pattern_without_match_is_unmet(
    settings: PostgresSettings, patterns: tuple[str, ...], detail: str, fix: str
) -> None:
    check = find_check(replace(settings, patterns=patterns), "tables")
    assert replace(check, affects="source") == Check("tables", False, detail, fix)
    # A pattern whose last table was dropped does not stop the others.
    assert check.affects == ("nothing" if patterns == ("public.*", "audit.*") else "source")


def test_exclusion_without_match_is_reported(settings: PostgresSettings) -> None:
    check = find_check(replace(settings, patterns=("public.*", "!public.audit_*")), "tables")
    assert check == Check("tables", True, "no table matches the exclusion !public.audit_*")


@pytest.mark.parametrize(
    ("change", "detail", "fix"),
    [
        ({"password": "wrong"}, "wrong password", "correct source.password"),
        ({"user": "no_such_role"}, "wrong password", "correct source.password"),
        ({"host": "no.such.host.invalid"}, "unknown host", "correct source.host"),
        ({"port": 1}, ":1: connection refused: no server listens there",
         "check that the server is up"),
        ({"tls": "verify"}, "does not speak TLS", "set source.tls to disable"),
        ({"tls": "require"}, "does not speak TLS", "set source.tls to disable"),
        ({"database": "no_such_database"}, "the database cannot be used", "correct source.database"),
    ],
    ids=["password", "user", "host", "port", "verify", "require", "database"],
)
def test_failed_connection_names_cause_and_setting(
    settings: PostgresSettings, change: dict[str, object], detail: str, fix: str
) -> None:
    (check,) = preflight(replace(settings, **change))  # type: ignore[arg-type]
    assert (check.check, check.ok) == ("connect", False)
    assert detail in check.detail
    assert fix in check.fix
    assert settings.password not in repr(check)


@pytest.mark.parametrize(
    ("close", "reopen"),
    [
        ("ALTER ROLE {user} CONNECTION LIMIT 0", "ALTER ROLE {user} CONNECTION LIMIT -1"),
        ("ALTER DATABASE {database} CONNECTION LIMIT 0", "ALTER DATABASE {database} CONNECTION LIMIT -1"),
        ("ALTER DATABASE {database} ALLOW_CONNECTIONS false", "ALTER DATABASE {database} ALLOW_CONNECTIONS true"),
    ],
    ids=["limit of the role", "limit of the database", "closed database"],
)
def test_temporary_connection_limit_is_retryable(
    settings: PostgresSettings, database: Database, close: str, reopen: str
) -> None:
    with closing(database.server.connect()) as conn, conn.cursor() as cur:
        conn.autocommit = True
        cur.execute(close.format(user=settings.user, database=database.name))
        try:
            with pytest.raises(SourceError) as refused:
                connect(settings, purpose="tables")
        finally:
            cur.execute(reopen.format(user=settings.user, database=database.name))
    assert refused.value.retryable
    connect(settings, purpose="tables").close()


def test_physical_slot_is_rejected(settings: PostgresSettings, database: Database) -> None:
    database.run(f"SELECT pg_create_physical_replication_slot('phys_{database.name}')")
    other = replace(settings, slot=f"phys_{database.name}")

    check = find_check(other, "slot")

    assert not check.ok
    assert check.detail == f"slot phys_{database.name} is physical, of plugin None and database None"
    with pytest.raises(PrerequisitesNotMet, match="--init does not replace it"):
        init(database, other)
    with pytest.raises(PrerequisitesNotMet, match=f"slot phys_{database.name} belongs to plugin None"):
        PostgresSource(other).open_log(None, 1)
    database.run(f"SELECT pg_drop_replication_slot('phys_{database.name}')")


def test_server_that_does_not_allow_plugin_is_unmet(settings: PostgresSettings) -> None:
    """Only servers since the minor releases of August 2026 have the setting."""
    with closing(connect(settings, purpose="test")) as conn, conn.cursor() as cur:
        server = read_facts(cur, settings).server
        check = check_output_plugin(replace(server, plugins="other")).check(cur)
    assert (check.ok, check.detail) == (False, "output_plugin_libraries does not list pgoutput")
    assert check.fix.startswith("ALTER SYSTEM SET output_plugin_libraries = 'other', 'pgoutput'")


@pytest.mark.parametrize(("purpose", "ok"), [("log", True), ("other", False)])
def test_slot_in_use_names_server_process(
    settings: PostgresSettings, database: Database, purpose: str, ok: bool
) -> None:
    as_purpose = settings if ok else replace(settings, name="other")
    stream = connect_replication(as_purpose)
    cursor = stream.cursor()
    cursor.start_replication(slot_name=settings.slot, options={"proto_version": "1", "publication_names": "p"})
    try:
        check = find_check(settings, "slot_active")
        ((pid,),) = database.rows("SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", [settings.slot])
        assert check.ok is ok
        assert f"server process {pid}" in check.detail
        assert check.fix == ("" if ok else f"SELECT pg_terminate_backend({pid})")
    finally:
        stream.close()


def test_toasted_key_is_unmet_on_affected_versions(
    settings: PostgresSettings, database: Database
) -> None:
    database.run("CREATE TABLE named (name text PRIMARY KEY)")
    with database.connect().cursor() as cursor:
        facts = read_facts(cursor, settings)
    details = {}
    for version in (130006, 130007, 140002, 140003, 160000):
        old = replace(facts, server=replace(facts.server, version=version))
        (finding,) = [f for f in findings(old, settings) if f.name == "toasted_identity"]
        details[version] = (finding.ok, "public.named" in finding.detail)
    assert details == {
        130006: (False, True), 130007: (True, False), 140002: (False, True), 140003: (True, False),
        160000: (True, False),
    }


def test_init_plan_prints_statements_without_password(database: Database) -> None:
    database.run(*SHOP)
    settings = settings_for(database)
    plan = plan_init(settings, database.server.user, database.server.password)
    role = settings.user
    assert plan.statements == (
        "BEGIN;",
        f"CREATE ROLE \"{role}\" LOGIN REPLICATION PASSWORD '<the password of source.password>';",
        f'GRANT CONNECT ON DATABASE "{database.name}" TO "{role}";',
        f'GRANT USAGE ON SCHEMA "public" TO "{role}";',
        'GRANT SELECT ON TABLE "public"."we""ird; drop", "public"."log", "public"."orders", "public"."parts"'
        f' TO "{role}";',
        f'ALTER DEFAULT PRIVILEGES FOR ROLE "postgres" IN SCHEMA "public" GRANT SELECT ON TABLES TO "{role}";',
        'CREATE SCHEMA "dblake";',
        'CREATE TABLE "dblake"."watermark" (id int PRIMARY KEY, value varchar(36));',
        """INSERT INTO "dblake"."watermark" (id, value) SELECT id, '' FROM generate_series(0, 8) AS id"""
        " ON CONFLICT DO NOTHING;",
        f'GRANT USAGE ON SCHEMA "dblake" TO "{role}";',
        f'GRANT SELECT, UPDATE ON TABLE "dblake"."watermark" TO "{role}";',
        'CREATE PUBLICATION "p" FOR TABLE "public"."we""ird; drop", "public"."orders", "public"."parts",'
        ' "dblake"."watermark" WITH (publish_via_partition_root = true);',
        "COMMIT;",
        f"SELECT pg_create_logical_replication_slot('{settings.slot}', 'pgoutput');",
    )
    assert database.rows("SELECT count(*) FROM pg_roles WHERE rolname = %s", [role]) == [(0,)]
    no_key, later = plan.warnings
    assert "public.log" in no_key
    assert later == (
        "later tables of public are not published: UPDATE and DELETE would fail in public.log."
        " Next: run preflight --init after creating tables there"
    )


def test_init_again_adds_new_tables_only(settings: PostgresSettings, database: Database) -> None:
    assert plan_init(settings, database.server.user, database.server.password).statements == ()
    database.run("CREATE TABLE late (id int PRIMARY KEY)")
    done = init(database, settings)
    assert done.statements == (
        "BEGIN;",
        'ALTER PUBLICATION "p" ADD TABLE "public"."late";',
        "COMMIT;",
    )
    assert unmet(settings) == []


def test_changed_collation_library_suspends_dumps(postgres15_database: Database) -> None:
    """An update of the operating system may leave the key's index out of order, so that chunks miss rows."""
    # The other servers are built without ICU.
    database = postgres15_database
    database.run(*SHOP)
    settings = replace(settings_for(database), user=database.server.user, password=database.server.password)
    assert find_check(settings, "collation_versions") == Check("collation_versions", True)
    database.run(
        "CREATE COLLATION own (provider = icu, locale = 'und')",
        "CREATE TABLE named (name text COLLATE own PRIMARY KEY, other text)",
        "CREATE TABLE plain (name text PRIMARY KEY)",
        "UPDATE pg_collation SET collversion = '0.1' WHERE collname = 'own'",
        "UPDATE pg_database SET datcollversion = '0.2' WHERE datname = current_database()",
    )
    check = find_check(settings, "collation_versions")
    assert (check.ok, check.affects) == (False, "dump")
    assert "public.named (own (0.1, now " in check.detail
    assert "public.plain (the database (0.2, now " in check.detail
    assert set(check.tables) == {"public.named", "public.plain", "public.parts"}
    for statement in check.fix.splitlines():
        if "COLLATION VERSION" not in statement:
            database.run(statement)
    assert set(find_check(settings, "collation_versions").tables) == {"public.plain", "public.parts"}


_STORAGE = "remove the tables from source.tables, or keep their rows in plain logged tables"


@pytest.mark.parametrize(
    ("statements", "detail", "fix"),
    [
        (["CREATE TABLE odd (id int PRIMARY KEY) USING columns_{own}"],
         "public.odd (public.odd has the access method columns_{own})", ["ALTER TABLE odd SET ACCESS METHOD heap"]),
        (["CREATE TABLE parts_us PARTITION OF parts FOR VALUES IN ('us') USING columns_{own}"],
         "public.parts (public.parts_us has the access method columns_{own})", ["DROP TABLE parts_us"]),
        (["CREATE UNLOGGED TABLE parts_us PARTITION OF parts FOR VALUES IN ('us')"],
         "public.parts (partition public.parts_us is unlogged)", ["ALTER TABLE parts_us SET LOGGED"]),
        (["CREATE FOREIGN DATA WRAPPER w", "CREATE SERVER s FOREIGN DATA WRAPPER w",
          "ALTER TABLE parts DROP CONSTRAINT parts_pkey",
          "CREATE FOREIGN TABLE parts_us PARTITION OF parts FOR VALUES IN ('us') SERVER s"],
         "public.parts (partition public.parts_us is a foreign table)", ["DROP FOREIGN TABLE parts_us"]),
        (["CREATE TABLE chunk () INHERITS (orders)", "ALTER EXTENSION plpgsql ADD TABLE chunk"],
         "public.orders (extension plpgsql keeps its rows in public.chunk)",
         ["ALTER EXTENSION plpgsql DROP TABLE chunk", "DROP TABLE chunk"]),
        (["CREATE SCHEMA _chunks", "CREATE TABLE _chunks.c () INHERITS (orders)",
          "ALTER EXTENSION plpgsql ADD SCHEMA _chunks"],
         "public.orders (extension plpgsql keeps its rows in _chunks.c)",
         ["ALTER EXTENSION plpgsql DROP SCHEMA _chunks", "DROP SCHEMA _chunks CASCADE"]),
        (["CREATE FUNCTION citus_truncate_trigger() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
          "CREATE TRIGGER t AFTER TRUNCATE ON orders EXECUTE FUNCTION citus_truncate_trigger()"],
         "public.orders (Citus keeps its rows in shards)", ["DROP TRIGGER t ON orders"]),
    ],
    ids=["access method", "of a partition", "unlogged partition", "foreign partition", "extension's child",
         "child in extension's schema", "Citus"],
)
def test_rows_logged_elsewhere_suspend_their_table(
    settings: PostgresSettings, database: Database, statements: list[str], detail: str, fix: list[str]
) -> None:
    """A dump would find no rows, or rows that no event changes, and agree with state on them."""
    own = database.name
    database.run(f"CREATE ACCESS METHOD columns_{own} TYPE TABLE HANDLER heap_tableam_handler")
    database.run(*(statement.format(own=own) for statement in statements))

    check = find_check(settings, "table_storage")

    assert (check.ok, check.affects) == (False, "log")
    assert check.detail == f"the log lacks changes of their rows under their names: {detail.format(own=own)}"
    assert list(check.tables) == [detail.split(maxsplit=1)[0]]
    assert check.fix.startswith(_STORAGE)
    database.run(*fix)
    assert find_check(settings, "table_storage") == Check("table_storage", True)


def test_init_publishes_and_grants_later_tables(database: Database) -> None:
    """A pattern that takes all of a schema means tomorrow's tables, of every owner, too."""
    settings = replace(settings_for(database), patterns=("app.*", "other.*", "!other.cache"))
    owner = f"owner_{database.name}"
    database.run(
        f"CREATE ROLE {owner}", f"CREATE SCHEMA app AUTHORIZATION {owner}", "CREATE SCHEMA other",
        "CREATE TABLE app.a (id int PRIMARY KEY)", "CREATE TABLE other.a (id int PRIMARY KEY)",
    )
    try:
        done = init(database, settings)
        assert done.warnings == (
            "later tables of app are published: one without a primary key and without a replica identity will reject"
            " UPDATE and DELETE. Next: give each table a primary key",
        )
        assert find_check(settings, "future_tables") == Check("future_tables", True)
        for creator in (owner, "postgres"):
            database.run(f"SET ROLE {creator}; CREATE TABLE app.of_{creator} (id int PRIMARY KEY)")
        assert unmet(settings) == []
        assert plan_init(settings, database.server.user, database.server.password) == InitPlan((), ())
        database.run("CREATE TABLE other.b (id int PRIMARY KEY)")
        assert unmet(settings) == ["table_privileges", "publication_tables"]
    finally:
        database.run(f"DROP OWNED BY {settings.user}", f"DROP ROLE {settings.user}", f"DROP OWNED BY {owner} CASCADE",
                     f"DROP ROLE {owner}")


def test_schema_that_cannot_be_published_is_noted(settings: PostgresSettings, database: Database) -> None:
    """Its fix publishes it once the obstacle is gone."""
    note = find_check(settings, "future_tables")
    assert note == Check(
        "future_tables", True, "tables that are created later wait for preflight --init:"
        " public is not published as a whole (UPDATE and DELETE would fail in public.log)",
    )
    database.run("DROP TABLE log")
    note = find_check(settings, "future_tables")
    assert note.fix == 'ALTER PUBLICATION "p" ADD TABLES IN SCHEMA "public";'
    database.run(note.fix)
    assert find_check(settings, "future_tables") == Check("future_tables", True)


def test_init_without_privilege_is_rejected(settings: PostgresSettings, database: Database) -> None:
    database.run("DROP SCHEMA dblake CASCADE")
    with pytest.raises(PrerequisitesNotMet, match=f"user {settings.user} lacks a privilege that --init needs"):
        run_init(settings, settings.user, settings.password)
    with pytest.raises(PrerequisitesNotMet, match="--admin-password-env"):
        run_init(settings, database.server.user, "wrong")


def test_capture_role_has_least_privileges(settings: PostgresSettings, database: Database) -> None:
    conn = connect(settings, purpose="test")
    try:
        with conn.cursor() as cursor:
            cursor.execute("SELECT rolsuper, rolcreaterole, rolcreatedb, rolbypassrls, rolreplication FROM pg_roles"
                           " WHERE rolname = current_user")
            assert cursor.fetchone() == (False, False, False, False, True)
            cursor.execute("UPDATE dblake.watermark SET value = 'x' WHERE id = 1")
            assert cursor.rowcount == 1
            cursor.execute('SELECT count(*) FROM public.orders, public.parts, public."we""ird; drop"')
            for forbidden in (
                "UPDATE public.orders SET note = ''", "DELETE FROM dblake.watermark",
                "CREATE TABLE public.mine (x int)", "BEGIN; LOCK TABLE public.orders IN SHARE MODE",
            ):
                with pytest.raises(psycopg2.errors.InsufficientPrivilege):
                    cursor.execute(forbidden)
    finally:
        conn.close()
    stream = connect_replication(settings)
    try:
        cursor = stream.cursor()
        cursor.start_replication(slot_name=settings.slot, options={"proto_version": "1", "publication_names": "p"})
    finally:
        stream.close()


@pytest.mark.slow
def test_thousand_tables_take_as_many_queries_as_one(settings: PostgresSettings, database: Database) -> None:
    database.run("ALTER DEFAULT PRIVILEGES IN SCHEMA public REVOKE SELECT ON TABLES FROM " + settings.user,
                 "DO $$ BEGIN FOR i IN 1..1000 LOOP"
                 " EXECUTE format('CREATE TABLE t%s (id int PRIMARY KEY)', i); END LOOP; END $$")
    queries: list[int] = []
    for patterns in (("public.orders",), ("public.*",)):
        with database.connect().cursor() as cursor:
            counting = _Counting(cursor)
            facts = read_facts(counting, replace(settings, patterns=patterns))
        queries.append(counting.queries)
    assert len(facts.tables) == 1004
    assert queries[0] == queries[1]
    assert "and 990 more" in find_check(settings, "table_privileges").detail
    database.run(find_check(settings, "table_privileges").fix, find_check(settings, "publication_tables").fix)
    assert unmet(settings) == []


class _Counting:
    """A cursor that counts its statements."""

    def __init__(self, cursor: object) -> None:
        self._cursor, self.queries = cursor, 0

    def execute(self, *arguments: object) -> None:
        self.queries += 1
        self._cursor.execute(*arguments)  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> object:
        return getattr(self._cursor, name)


# --- tests with a server of their own

@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """Start a server of the newest version with minimal limits."""
    folder = tmp_path_factory.mktemp("small")
    settings = {"fsync": "off", "max_replication_slots": "1", "max_wal_senders": "1", "max_slot_wal_keep_size": "1MB"}
    with EmbeddedPostgres(folder / "data", version=18, settings=settings) as server:
        note_postgres(server)
        yield server


def own_settings(server: EmbeddedPostgres) -> PostgresSettings:
    """Return settings whose patterns leave a table out, so that --init does not publish the schema as a whole."""
    return PostgresSettings(
        name="small", host="127.0.0.1", port=server.port, database="postgres", user=server.user,
        password=server.password, patterns=("public.*", "!public.left_out"), tls="disable",
    )


def test_exhausted_slots_and_senders_are_unmet(small: EmbeddedPostgres) -> None:
    settings = own_settings(small)
    admin = small.connect().cursor()
    admin.execute("CREATE TABLE IF NOT EXISTS public.t (id int PRIMARY KEY)")
    admin.execute("SELECT pg_create_physical_replication_slot('other')")

    checks = {c.check: c for c in preflight(settings)}

    assert checks["replication_slots"] == Check(
        "replication_slots", False, "all 1 replication slots are in use",
        "ALTER SYSTEM SET max_replication_slots = 6; -- then restart the server",
    )
    admin.execute("SELECT pg_drop_replication_slot('other')")
    admin.execute("SELECT pg_create_logical_replication_slot('dblake_small', 'pgoutput')")
    stream = connect_replication(settings)
    try:
        assert find_check(settings, "replication_slots").ok
        assert find_check(settings, "wal_senders").detail == "all 1 are in use"
    finally:
        stream.close()
    admin.execute("SELECT pg_drop_replication_slot('dblake_small')")


def test_generated_key_column_is_unmet(settings: PostgresSettings, database: Database) -> None:
    database.run(
        "ALTER TABLE orders ADD n int GENERATED ALWAYS AS (id * 2) STORED",
        "ALTER TABLE orders DROP CONSTRAINT orders_pkey, ADD PRIMARY KEY (id, n)",
    )
    assert find_check(settings, "generated_columns") == Check(
        "generated_columns", False,
        "the primary key contains a generated column, which the log omits: public.orders",
        "remove the tables from source.tables",
        {"public.orders": "its primary key contains a generated column, which the log omits"}, "log",
    )


def test_published_generated_columns_are_unmet(small: EmbeddedPostgres) -> None:
    settings = own_settings(small)
    run_init(settings, small.user, small.password)
    admin = small.connect().cursor()
    admin.execute("ALTER PUBLICATION dblake_small SET (publish_generated_columns = stored)")
    check = find_check(settings, "publication_generated_columns")
    assert not check.ok
    admin.execute(check.fix)
    assert find_check(settings, "publication_generated_columns") == Check("publication_generated_columns", True)


def test_identity_with_generated_column_is_unmet(small: EmbeddedPostgres) -> None:
    settings = own_settings(small)
    run_init(settings, small.user, small.password)
    admin = small.connect().cursor()
    for table, key in (("full_key", "PRIMARY KEY"), ("keyless", "")):
        admin.execute(f"CREATE TABLE {table} (id int {key}, n int GENERATED ALWAYS AS (id * 2) STORED)")
        admin.execute(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
        admin.execute(f"INSERT INTO {table} VALUES (1)")
    check = find_check(settings, "replica_identity")
    assert (check.ok, check.fix) == (False, 'ALTER TABLE "public"."full_key" REPLICA IDENTITY DEFAULT;')
    admin.execute(check.fix)
    assert replace(find_check(settings, "primary_key"), tables={}, affects="source") == Check(
        "primary_key", True,
        "no primary key and no replica identity, so not captured: once published, their UPDATE and DELETE would fail"
        " at the source: public.keyless", "",
    )
    # Tables that --init publishes remain writable at the source.
    run_init(settings, small.user, small.password)
    admin.execute("UPDATE full_key SET id = 2")
    admin.execute("UPDATE keyless SET id = 2")
    admin.execute("DROP TABLE full_key, keyless")


def test_lost_slot_is_reported_and_not_recreated(small: EmbeddedPostgres) -> None:
    settings = own_settings(small)
    run_init(settings, small.user, small.password)
    admin = small.connect().cursor()
    for _ in range(4):
        admin.execute("SELECT pg_logical_emit_message(false, 'x', repeat('x', 1000000))")
        admin.execute("SELECT pg_switch_wal()")
    admin.execute("CHECKPOINT")

    check = find_check(settings, "slot_log")

    assert not check.ok
    assert check.detail == "the slot is lost: the server removed log it still needed, a gap"
    assert "--accept-gap" in check.fix
    with pytest.raises(PositionLost, match="dblake_small is lost"):
        run_init(settings, small.user, small.password)
    admin.execute("SELECT wal_status FROM pg_replication_slots WHERE slot_name = 'dblake_small'")
    assert admin.fetchone() == ("lost",)
    admin.execute("SELECT pg_drop_replication_slot('dblake_small')")


def test_wal_level_replica_is_unmet(small: EmbeddedPostgres) -> None:
    small.restart(wal_level="replica")
    try:
        assert find_check(own_settings(small), "wal_level") == Check(
            "wal_level", False, "wal_level is replica",
            "ALTER SYSTEM SET wal_level = 'logical'; -- then restart the server",
        )
    finally:
        small.restart(wal_level="logical")
    assert find_check(own_settings(small), "wal_level") == Check("wal_level", True)


def test_init_without_wal_level_changes_nothing(small: EmbeddedPostgres) -> None:
    small.restart(wal_level="replica")
    settings = replace(own_settings(small), user="missing_role", slot="none", publication="none")
    try:
        with pytest.raises(PrerequisitesNotMet, match="wal_level is replica; --init has changed nothing") as refused:
            run_init(settings, small.user, small.password)
        assert "ALTER SYSTEM SET wal_level" in refused.value.next_step
        assert [warning for warning in plan_init(settings, small.user, small.password).warnings
                if warning.startswith("wal_level is replica. Next: ALTER SYSTEM")]
        with closing(small.connect()) as conn, conn.cursor() as cur:
            cur.execute("SELECT count(*) FROM pg_roles WHERE rolname = 'missing_role'")
            assert cur.fetchone() == (0,)
    finally:
        small.restart(wal_level="logical")


@pytest.mark.parametrize(
    ("change", "admin", "next_step"),
    [({"tls": "require"}, None, "source.tls"), ({}, "no_such_admin", "--admin-user and --admin-password-env")],
)
def test_init_that_cannot_connect_names_setting(
    small: EmbeddedPostgres, change: dict[str, str], admin: str | None, next_step: str
) -> None:
    with pytest.raises(PrerequisitesNotMet) as refused:
        run_init(replace(own_settings(small), **change), admin or small.user, small.password)  # type: ignore[arg-type]
    assert next_step in refused.value.next_step


def test_standby_is_unmet(small: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> None:
    small.stop()
    signal = Path(small._data) / "standby.signal"
    signal.touch(mode=0o644)
    try:
        small.start()
        check = find_check(own_settings(small), "standby")
        assert (check.ok, check.fix) == (False, "set source.host to the primary, or source.primary to its address")
    finally:
        small.stop()
        signal.unlink()
        small.start()


@pytest.mark.parametrize(
    ("encoding", "detail"),
    [
        ("SQL_ASCII", "SQL_ASCII: bytes that are not UTF-8 are stored as hex and listed in _lossy"),
        ("LATIN1", "LATIN1: the server converts it to UTF-8"),
    ],
)
def test_other_encoding_is_met_with_detail(small: EmbeddedPostgres, encoding: str, detail: str) -> None:
    admin = small.connect().cursor()
    admin.execute(f"CREATE DATABASE enc ENCODING {encoding} TEMPLATE template0")
    try:
        assert find_check(replace(own_settings(small), database="enc"), "encoding") == Check("encoding", True, detail)
    finally:
        admin.execute("DROP DATABASE enc")


# --- the job

def job(
    tmp_path: Path, settings: PostgresSettings, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    conf = tmp_path / "shop.yaml"
    conf.write_text(json.dumps({
        "warehouse": "./warehouse", "progress": "file:./progress",
        "source": {
            "name": settings.name, "type": "postgres", "host": settings.host, "port": settings.port,
            "database": settings.database, "user": settings.user, "password": "${env:SHOP_PASSWORD}",
            "tls": settings.tls, "tables": list(settings.patterns), "slot": settings.slot,
            "publication": settings.publication,
        },
    }))
    paths = {"PYTHONPATH": f"{HOME / 'lib'}:{HOME}", "SHOP_PASSWORD": settings.password}
    return subprocess.run(
        [sys.executable, str(HOME / "jobs/preflight.py"), "--conf", str(conf), *arguments],
        capture_output=True, text=True, env=os.environ | paths | environment, check=False, timeout=60,
    )


def test_preflight_job_prepares_empty_database(database: Database, tmp_path: Path) -> None:
    database.run(*SHOP)
    settings = settings_for(database)
    admin = ("--admin-user", database.server.user, "--admin-password-env", "ADMIN_PASSWORD")
    secret = {"ADMIN_PASSWORD": database.server.password}

    before = job(tmp_path, settings, "--json")
    script = job(tmp_path, settings, "--init", "--dry-run", *admin, **secret)
    done = job(tmp_path, settings, "--init", *admin, **secret)
    after = job(tmp_path, settings, "--json")
    shown = job(tmp_path, settings)

    assert before.returncode == 78
    assert [c["check"] for c in json.loads(before.stdout)] == ["connect"]
    assert script.returncode == 0
    assert script.stdout.splitlines()[0] == "BEGIN;"
    assert "\n-- manual step: no primary key and no replica identity" in script.stdout
    assert done.returncode == 0, done.stderr
    assert after.returncode == 0
    assert {tuple(c) for c in json.loads(after.stdout)} == {
        ("check", "ok", "detail", "fix", "tables", "affects")
    }
    assert shown.returncode == 0
    assert "✓" in shown.stdout
    assert "✗" not in shown.stdout
    everything = "".join(run.stdout + run.stderr for run in (before, script, done, after, shown))
    assert settings.password not in everything
    assert database.server.password not in everything
    database.run(f"DROP OWNED BY {settings.user}", f"DROP ROLE {settings.user}")


@pytest.mark.parametrize(
    "arguments", [("--dry-run",), ("--init",), ("--init", "--admin-user", "x"), ("--admin-user", "x")],
    ids=" ".join,
)
def test_preflight_job_invalid_options_exit_64(database: Database, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    assert job(tmp_path, settings_for(database), *arguments).returncode == 64
