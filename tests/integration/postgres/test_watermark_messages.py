"""Watermarks as messages in the log: what they need of the source, and a lake that changes between the two kinds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dblake.base.core.log_places import lsn_number
from dblake.base.core.schema import Column, TableSchema
from dblake.base.core.source import Check
from dblake.ingest.source.postgres.catalog_queries import read_facts
from dblake.ingest.source.postgres.connection import open_cursor
from dblake.ingest.source.postgres.init import plan_init, run_init
from dblake.ingest.source.postgres.preflight import findings
from dblake.ingest.source.postgres.settings import PostgresSettings
from dblake.ingest.source.postgres.source import PostgresSource
from tests.support.backends import PostgresBackend
from tests.support.lake import CaptureLake
from tests.support.postgres import Database

T = "public.t"
ITEMS = TableSchema(T, (Column("id", "integer", False, 1), Column("v", "text")))


def unmet(checks: list[Check]) -> list[tuple[str, str, str]]:
    return [(check.check, check.detail, check.fix) for check in checks if not check.ok]


def unmet_for(settings: PostgresSettings, version: int) -> dict[str, tuple[str, str]]:
    """Return the unmet findings, with their fixes, of a server that is like the source's but for its version."""
    with open_cursor(settings, purpose="test") as cur:
        facts = read_facts(cur, settings)
        server = replace(facts.server, version=version, version_text=str(version // 10_000))
        checks = [(each.name, each.check(cur)) for each in findings(replace(facts, server=server), settings)]
    return {name: (check.detail, check.fix) for name, check in checks if not check.ok}


def test_messages_need_no_object_and_no_write_privilege(database: Database, tmp_path: Path) -> None:
    backend = PostgresBackend(database, watermarks="messages")
    backend.create(ITEMS)
    backend.run("INSERT INTO t SELECT n, 'a' FROM generate_series(1, 20) n")
    source, lake = backend.source("public.*"), CaptureLake(tmp_path)
    assert backend.settings is not None
    role, server = backend.settings.user, database.server
    backend.run(f"ALTER ROLE {role} SET default_transaction_read_only = on")
    assert backend.value("SELECT count(*) FROM pg_namespace WHERE nspname = 'dblake'") == 0
    writable = "SELECT count(*) FROM pg_class WHERE relkind IN ('r', 'p') AND has_table_privilege(%s, oid, 'UPDATE')"
    assert backend.value(writable, role) == 0
    assert unmet(source.preflight()) == []
    lake.dump(T)
    lake.capture(source, chunk_size=6)
    assert lake.state(T) == {(row["id"],): row for row in backend.rows(T)}
    assert len(lake.state(T)) == 20

    function = "pg_catalog.pg_logical_emit_message(boolean, text, text)"
    backend.run(f"REVOKE EXECUTE ON FUNCTION {function} FROM PUBLIC")
    grant = f'GRANT EXECUTE ON FUNCTION {function} TO "{role}"'
    assert unmet(source.preflight()) == [
        ("watermark_privileges", f"role {role} may not call pg_logical_emit_message", grant)
    ]
    assert plan_init(backend.settings, server.user, server.password).statements == ("BEGIN;", f"{grant};", "COMMIT;")
    run_init(backend.settings, server.user, server.password)
    assert unmet(source.preflight()) == []
    backend.close()


def test_versions_without_messages_or_standby_log_are_named(database: Database) -> None:
    backend = PostgresBackend(database, watermarks="messages")
    backend.create(ITEMS)
    backend.source("public.*")
    assert backend.settings is not None
    assert unmet_for(backend.settings, 130010) == {
        "watermark_messages": ("PostgreSQL 13 does not send log messages; 14 does", "set source.watermarks to table"),
    }
    assert unmet_for(replace(backend.settings, primary=("127.0.0.1", 1)), 150004)["standby_version"] == (
        "PostgreSQL 15 does not decode its log on a standby; 16 does",
        "set source.host to the primary, and remove source.primary",
    )
    backend.close()


def test_slot_keeps_log_from_last_heartbeat_on(database: Database, tmp_path: Path) -> None:
    """Otherwise nothing could show at the next start that the log has it."""
    backend, lake = PostgresBackend(database, watermarks="messages"), CaptureLake(tmp_path)
    backend.create(ITEMS)
    source = backend.source("public.*")
    for key in range(3):
        backend.run(f"INSERT INTO t VALUES ({key}, 'a')")
        lake.capture(source)
        # Rows of one batch come in no particular order.
        newest = max(row["lsn"] for row in lake.landing().to_pylist() if row["kind"] == "heartbeat")
        assert backend.confirmed() == newest < lsn_number(lake.reached.resume.token)
    backend.close()


def test_lake_changes_between_table_and_messages(database: Database, tmp_path: Path) -> None:
    backend, lake = PostgresBackend(database), CaptureLake(tmp_path)
    backend.create(ITEMS)
    backend.source("public.*")
    assert backend.settings is not None
    with_table = backend.settings
    with_messages = replace(with_table, watermarks="messages")
    for key, settings in enumerate((with_table, with_messages, with_messages, with_table, with_table, with_messages)):
        lake.dump(T)
        backend.run(f"INSERT INTO t VALUES ({key}, 'a')")
        lake.capture(PostgresSource(settings))
        assert lake.state(T) == {(row["id"],): row for row in backend.rows(T)}
    assert lake.reached.resume.incarnation == 1
    backend.close()
