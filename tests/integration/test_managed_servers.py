"""Preflight and ``--init`` on servers that show what a provider's servers show: roles, functions and procedures.

The stand-ins are made from the providers' documentation. What only a provider's own server can show is in
docs/managed.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from dblake.base.core.source import Check
from dblake.ingest.source.mysql import init as mysql_init
from dblake.ingest.source.mysql.preflight import preflight as mysql_preflight
from dblake.ingest.source.mysql.settings import MysqlSettings
from dblake.ingest.source.mysql.source import MysqlSource
from dblake.ingest.source.postgres import init as postgres_init
from dblake.ingest.source.postgres.preflight import preflight as postgres_preflight
from dblake.ingest.source.postgres.settings import PostgresSettings
from tests.support.mysql import MysqlServer, emptied
from tests.support.postgres import Database


def check(checks: list[Check], name: str) -> tuple[bool, str, str]:
    """Return whether a check is met, its detail and its fix."""
    (one,) = [each for each in checks if each.check == name]
    return one.ok, one.detail, one.fix


@pytest.fixture
def settings(database: Database) -> PostgresSettings:
    """Return the settings of a shop whose capture role does not exist yet."""
    database.run("CREATE TABLE orders (id int PRIMARY KEY)")
    name = database.name
    return PostgresSettings(
        "shop", "127.0.0.1", database.server.port, name, f"capture_{name}", "right", ("public.*",), tls="disable"
    )


@pytest.mark.parametrize(
    ("roles", "function", "title"),
    [
        (["rds_superuser", "rds_replication"], False, "Amazon RDS"),
        (["rds_superuser", "rds_replication"], True, "Amazon Aurora"),
        (["cloudsqlsuperuser"], False, "Google Cloud SQL"),
        (["cloudsqlsuperuser", "alloydbsuperuser"], False, "Google AlloyDB"),
        (["azure_pg_admin"], False, "Azure Database"),
        (["supabase_admin"], False, "Supabase"),
    ],
)
def test_provider_of_postgres_is_named(
    database: Database, settings: PostgresSettings, roles: list[str], function: bool, title: str
) -> None:
    server = database.server
    database.run(*(f"CREATE ROLE {role}" for role in roles))
    try:
        if function:
            database.run("CREATE FUNCTION aurora_version() RETURNS text LANGUAGE sql AS 'SELECT ''15.4''::text'")
        admin = replace(settings, user=server.user, password=server.password)
        assert check(postgres_preflight(admin), "provider") == (True, f"{title}; see docs/managed.md", "")
    finally:
        database.run(*(f"DROP ROLE {role}" for role in roles))


def test_init_on_rds_grants_role_instead_of_attribute(database: Database, settings: PostgresSettings) -> None:
    """On Amazon RDS no role may have the attribute REPLICATION: its statement would fail."""
    server, user = database.server, settings.user
    database.run("CREATE ROLE rds_superuser", "CREATE ROLE rds_replication")
    try:
        plan = postgres_init.run_init(settings, server.user, server.password)
        assert [step for step in plan.statements if step.startswith("CREATE ROLE") or "rds_" in step] == [
            f"CREATE ROLE \"{user}\" LOGIN PASSWORD '<the password of source.password>'; "
            f'GRANT rds_replication TO "{user}";',
        ]
        assert check(postgres_preflight(settings), "role") == (True, "", "")
        database.run(f'REVOKE rds_replication FROM "{user}"')
        assert check(postgres_preflight(settings), "role") == (
            False, f"role {user} lacks LOGIN or REPLICATION",
            f'ALTER ROLE "{user}" LOGIN; GRANT rds_replication TO "{user}"',
        )
    finally:
        database.run("DROP ROLE rds_superuser", "DROP ROLE rds_replication")


def test_init_by_administrator_who_is_no_superuser(database: Database, settings: PostgresSettings) -> None:
    """The administrator of Cloud SQL, AlloyDB and Azure: CREATEROLE and REPLICATION, owner of the tables."""
    name = database.name
    admin = f"admin_{name}"
    database.run(
        "CREATE ROLE cloudsqlsuperuser",
        f"CREATE ROLE \"{admin}\" LOGIN CREATEROLE REPLICATION PASSWORD 'right' IN ROLE cloudsqlsuperuser",
        f'ALTER DATABASE "{name}" OWNER TO "{admin}"', f'ALTER TABLE orders OWNER TO "{admin}"',
    )
    try:
        postgres_init.run_init(settings, admin, "right")
        unmet = [each.check for each in postgres_preflight(settings) if not each.ok]
        assert unmet == []
    finally:
        database.run("DROP ROLE cloudsqlsuperuser")


RDS_PROCEDURES = (
    "CREATE TABLE mysql.rds_configuration (name varchar(100) PRIMARY KEY, value varchar(100), description text)",
    "INSERT INTO mysql.rds_configuration VALUES ('binlog retention hours', NULL, 'hours'), ('target delay', '0', '')",
    "CREATE PROCEDURE mysql.rds_show_configuration() SELECT name, value, description FROM mysql.rds_configuration",
    "CREATE PROCEDURE mysql.rds_set_configuration(n varchar(100), v int) "
    "UPDATE mysql.rds_configuration SET value = v WHERE name = n",
)


@pytest.fixture
def rds(mariadb: MysqlServer) -> Iterator[MysqlServer]:
    """Yield a MariaDB server with the procedures of Amazon RDS."""
    with emptied(mariadb) as server:
        server.run("CREATE DATABASE shop", "CREATE TABLE shop.orders (id int PRIMARY KEY)", *RDS_PROCEDURES)
        yield server
        server.run("DROP PROCEDURE mysql.rds_show_configuration", "DROP PROCEDURE mysql.rds_set_configuration",
                   "DROP TABLE mysql.rds_configuration")


def test_retention_of_rds_is_that_of_its_procedure(rds: MysqlServer) -> None:
    """By the server's own settings its log never expires; RDS removes it at once until it is configured."""
    settings = MysqlSettings("shop", "mariadb", "127.0.0.1", rds.port, "cap", "right", ("shop.*",), tls="disable")
    admin = replace(settings, user=rds.user, password=rds.password)
    assert check(mysql_preflight(admin), "provider") == (True, "Amazon RDS; see docs/managed.md", "")
    assert check(mysql_preflight(admin), "binlog_retention") == (
        False, "the server removes the binlog as soon as it can: each stop is a gap",
        "CALL mysql.rds_set_configuration('binlog retention hours', 168)",
    )
    assert check(mysql_preflight(admin), "server_version")[0]
    plan = mysql_init.run_init(settings, rds.user, rds.password)
    assert [step for step in plan.statements if "rds_" in step] == [
        "CALL mysql.rds_set_configuration('binlog retention hours', 168);",
        "GRANT EXECUTE ON PROCEDURE mysql.rds_show_configuration TO 'cap'@'%';",
    ]
    assert check(mysql_preflight(settings), "binlog_retention") == (True, "", "")
    assert mysql_init.plan_init(settings, rds.user, rds.password).statements == ()
    rds.run("CALL mysql.rds_set_configuration('binlog retention hours', 24)")
    assert check(mysql_preflight(settings), "binlog_retention") == (
        True, "the server expires log after 24 hours: a capture stopped for longer finds a gap",
        "CALL mysql.rds_set_configuration('binlog retention hours', 168)",
    )
    retention = MysqlSource(settings).log_retention(None)
    assert retention is not None and retention.seconds == 86_400


def test_retention_of_rds_that_may_not_be_read_is_named(rds: MysqlServer) -> None:
    """A capture role of an earlier version sees the procedure and may not call it."""
    settings = MysqlSettings("shop", "mariadb", "127.0.0.1", rds.port, "cap", "right", ("shop.*",), tls="disable")
    mysql_init.run_init(settings, rds.user, rds.password)
    rds.run("REVOKE EXECUTE ON PROCEDURE mysql.rds_show_configuration FROM 'cap'@'%'",
            "GRANT SELECT ON mysql.proc TO 'cap'@'%'")
    assert check(mysql_preflight(settings), "binlog_retention") == (
        True, "how long Amazon RDS keeps the binlog may not be read",
        "run preflight --init; or CALL mysql.rds_set_configuration('binlog retention hours', 168)",
    )
    retention = MysqlSource(settings).log_retention(None)
    assert retention is not None and retention.seconds is None


def test_settings_of_rds_are_changed_in_its_parameter_group(rds: MysqlServer) -> None:
    settings = MysqlSettings("shop", "mariadb", "127.0.0.1", rds.port, rds.user, rds.password, ("shop.*",),
                             tls="disable")
    rds.run("SET GLOBAL binlog_row_metadata = 'NO_LOG'")
    try:
        assert check(mysql_preflight(settings), "binlog_row_metadata") == (
            False, "binlog_row_metadata is NO_LOG: the log lacks the names and the full types of columns",
            "set binlog_row_metadata to FULL in the instance's DB parameter group",
        )
    finally:
        rds.run("SET GLOBAL binlog_row_metadata = 'FULL'")
