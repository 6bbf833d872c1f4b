"""What preflight prints for each provider's server that refuses what a server of one's own accepts, typed out.

The facts are those of a server that is not prepared: no logical log, no slot left, a log that is removed.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from psycopg2 import sql

from dblake.ingest.source.mysql.catalog_facts import Server as MysqlServer
from dblake.ingest.source.mysql.connection import ServerVersion
from dblake.ingest.source.mysql.log_retention import Retention
from dblake.ingest.source.mysql.preflight_log import check_log
from dblake.ingest.source.mysql.settings import MysqlSettings
from dblake.ingest.source.postgres.catalog_facts import CatalogFacts, Server
from dblake.ingest.source.postgres.preflight import check_output_plugin, findings
from dblake.ingest.source.postgres.settings import PostgresSettings
from dblake.ingest.source.provider import POSTGRES_ROLES, Provider, find_mysql_provider, find_postgres_provider

POSTGRES = PostgresSettings("shop", "db", 5432, "shop", "dblake", "secret", ("public.*",))
CREATE_ROLE = "CREATE ROLE \"dblake\" LOGIN REPLICATION PASSWORD '<the password of source.password>'"
RDS_ROLE = (
    "CREATE ROLE \"dblake\" LOGIN PASSWORD '<the password of source.password>'; GRANT rds_replication TO \"dblake\""
)


def postgres_facts(provider: Provider | None) -> CatalogFacts:
    """Return the facts of an empty database on a server with its settings at their defaults, all slots taken."""
    server = Server(
        160004, "16.4", "shop", is_standby=False, wal_level="replica", max_slots=10, slots=10, max_wal_senders=10,
        wal_senders=10, encoding="UTF8", slot_keep_size="-1", slot_idle_timeout="0", plugins="test_decoding",
        provider=provider,
    )
    return CatalogFacts(
        server=server, role=None, is_superuser=False, tables=(), collations=(), schemas=(), names=(), unlogged=(),
        watermarks=None, publication=None, slot=None, has_ddl_triggers=False, may_emit_messages=True,
    )


@pytest.mark.parametrize(
    ("roles", "has_aurora_version", "wal_level", "where", "role"),
    [
        (["rds_superuser"], False, "set rds.logical_replication to 1 in the instance's DB parameter group, then reboot",
         "the instance's DB parameter group", RDS_ROLE),
        (["rds_superuser"], True, "set rds.logical_replication to 1 in the DB cluster parameter group, then reboot",
         "the DB cluster parameter group", RDS_ROLE),
        (["cloudsqlsuperuser"], False, "set the flag cloudsql.logical_decoding to on; the instance restarts",
         "the instance's database flags", CREATE_ROLE),
        (["alloydbsuperuser", "cloudsqlsuperuser"], False,
         "set the flag alloydb.logical_decoding to on; the instance restarts", "the instance's database flags",
         CREATE_ROLE),
        (["azure_pg_admin"], False, "set wal_level to LOGICAL in the server parameters, then restart",
         "the server parameters", CREATE_ROLE),
        (["supabase_admin"], False,
         "set wal_level to logical in the database's settings (supabase postgres-config update)",
         "the database's settings (supabase postgres-config update)", CREATE_ROLE),
    ],
)
def test_postgres_provider_gets_its_own_steps(
    roles: list[str], has_aurora_version: bool, wal_level: str, where: str, role: str
) -> None:
    assert set(roles) <= set(POSTGRES_ROLES)
    facts = postgres_facts(find_postgres_provider(roles, has_aurora_version=has_aurora_version))
    found = [*findings(facts, POSTGRES), check_output_plugin(facts.server)]
    steps = {each.name: each.fix for each in found if not each.ok}
    assert {name: steps[name] for name in ("wal_level", "replication_slots", "wal_senders", "output_plugin")} == {
        "wal_level": wal_level,
        "replication_slots": f"set max_replication_slots to 15 in {where}",
        "wal_senders": f"set max_wal_senders to 15 in {where}",
        "output_plugin": f"set output_plugin_libraries to test_decoding, pgoutput in {where}",
    }
    assert text_of(steps["role"]) == role


def test_server_of_ones_own_gets_statements() -> None:
    facts = postgres_facts(find_postgres_provider([], has_aurora_version=False))
    steps = {each.name: each.fix for each in findings(facts, POSTGRES) if not each.ok}
    assert text_of(steps["wal_level"]) == "ALTER SYSTEM SET wal_level = 'logical'; -- then restart the server"
    assert text_of(steps["role"]) == CREATE_ROLE


def text_of(step: sql.Composable | str) -> str:
    """Return a step as text; without a connection, names and literals without special characters are quoted here."""
    if isinstance(step, sql.Composed):
        return "".join(text_of(part) for part in step.seq)
    if isinstance(step, sql.Identifier):
        return ".".join(f'"{name}"' for name in step.strings)
    if isinstance(step, sql.Literal):
        return f"'{step.wrapped}'"
    return step.string if isinstance(step, sql.SQL) else str(step)


UNPREPARED = {
    "log_bin": "OFF", "binlog_format": "MIXED", "binlog_row_metadata": "MINIMAL", "binlog_order_commits": "ON",
}


@pytest.mark.parametrize(
    ("version", "variables", "has_rds", "log_bin", "where", "retention"),
    [
        ("8.0.36", {}, True, "turn automated backups on: set the instance's backup retention period to 1 day or more",
         "the instance's DB parameter group", "CALL mysql.rds_set_configuration('binlog retention hours', 168)"),
        ("8.0.36", {"aurora_version": "3.07"}, True,
         "set binlog_format to ROW in the DB cluster parameter group, then reboot the writer",
         "the DB cluster parameter group", "CALL mysql.rds_set_configuration('binlog retention hours', 168)"),
        ("8.0.36-google", {}, False, "turn point-in-time recovery (binary logging) on", "the instance's database flags",
         ""),
        ("8.0.36", {"aad_auth_only": "OFF"}, False, "set log_bin to ON in the server parameters",
         "the server parameters", ""),
    ],
)
def test_mysql_provider_gets_its_own_steps(
    version: str, variables: Mapping[str, str], has_rds: bool, log_bin: str, where: str, retention: str
) -> None:
    provider = find_mysql_provider(version, variables, has_rds_procedures=has_rds)
    server = MysqlServer(
        ServerVersion("mysql", (8, 0, 36)), UNPREPARED, is_replica=False, retention=Retention(provider, seconds=0)
    )
    settings = MysqlSettings("shop", "mysql", "db", 3306, "dblake", "secret", ("shop.*",))
    assert {check.check: check.fix for check in check_log(server, settings) if not check.ok} == {
        "log_bin": log_bin,
        "binlog_format": f"set binlog_format to ROW in {where}",
        "binlog_row_metadata": f"set binlog_row_metadata to FULL in {where}",
        "binlog_retention": retention,
    }
