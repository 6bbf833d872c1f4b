"""A managed database's whole life with dblake: preflight, ``--init``, capture, dump, failover; no role is a superuser.

The stand-ins have the roles, procedures and refusals of the provider's documentation. What the provider itself does
there, such as a restart or a failover, the test does as the server's superuser.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from dblake.base.core.errors import PrerequisitesNotMet
from dblake.base.core.source import Check
from dblake.ingest.source.mysql.init import run_init as run_mysql_init
from dblake.ingest.source.mysql.settings import MysqlSettings
from dblake.ingest.source.mysql.source import MysqlSource
from dblake.ingest.source.postgres.embedded import EmbeddedPostgres
from dblake.ingest.source.postgres.init import run_init as run_postgres_init
from dblake.ingest.source.postgres.settings import PostgresSettings
from dblake.ingest.source.postgres.source import PostgresSource
from tests.integration.test_managed_servers import RDS_PROCEDURES
from tests.support.backends import PostgresBackend
from tests.support.failover import gaps, incarnations, move, promote, wait_until_synced
from tests.support.mysql import Flavour
from tests.support.mysql_backend import MysqlBackend
from tests.support.mysql_cluster import cluster_of
from tests.support.postgres import Database, note_postgres
from tests.support.proxy import Proxy
from tests.support.rig import Rig, T
from tests.support.standby import standby_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SECONDS = 240
"""Servers and capture start and replay beside one another."""
MASTER = ("master", "right")
RDS_PRIVILEGES = (
    "SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, RELOAD, PROCESS, REFERENCES, INDEX, ALTER, SHOW DATABASES,"
    " CREATE TEMPORARY TABLES, LOCK TABLES, EXECUTE, REPLICATION SLAVE, REPLICATION CLIENT, CREATE VIEW, SHOW VIEW,"
    " CREATE ROUTINE, ALTER ROUTINE, CREATE USER, EVENT, TRIGGER"
)
"""What the master user of RDS has: all but SUPER, FILE, SHUTDOWN and CREATE TABLESPACE."""


def unmet(checks: Sequence[Check]) -> dict[str, tuple[str, str]]:
    """Return the details and fixes of the unmet checks of a server whose objects are not created yet."""
    return {check.check: (check.detail, check.fix) for check in checks if not check.ok}


def test_cloud_sql_for_postgres_from_preflight_to_failover(tmp_path: Path) -> None:
    """The administrator has CREATEROLE and REPLICATION, and may change no setting."""
    with EmbeddedPostgres(tmp_path / "primary", version=18, settings={"wal_level": "replica"}) as primary:
        note_postgres(primary)
        database = Database(primary, "postgres")
        database.run(
            "CREATE ROLE cloudsqlsuperuser",
            "CREATE ROLE master LOGIN CREATEROLE CREATEDB REPLICATION PASSWORD 'right' IN ROLE cloudsqlsuperuser",
            "ALTER DATABASE postgres OWNER TO master", "CREATE TABLE public.t (id int PRIMARY KEY)",
            "ALTER TABLE public.t OWNER TO master",
        )
        settings = PostgresSettings(
            "shop", "127.0.0.1", primary.port, "postgres", "cap_postgres", "secret", ("public.*",), tls="disable"
        )
        assert unmet(PostgresSource(replace(settings, user="master", password="right")).preflight())["wal_level"] == (
            "wal_level is replica", "set the flag cloudsql.logical_decoding to on; the instance restarts"
        )
        with pytest.raises(PrerequisitesNotMet, match="wal_level is replica; --init has changed nothing") as rejected:
            run_postgres_init(settings, *MASTER)
        assert "cloudsql.logical_decoding" in str(rejected.value)
        database.run("DROP TABLE public.t")
        primary.restart(wal_level="logical")
        with standby_of(primary, tmp_path / "standby", sync_replication_slots="on") as standby:
            backend = PostgresBackend(database)
            backend.admin = MASTER
            rig = Rig(backend, tmp_path, ("ALTER TABLE public.t OWNER TO master",))
            assert backend.settings is not None
            assert unmet(PostgresSource(backend.settings).preflight()) == {}
            with Proxy(primary.port) as proxy:
                rig.configure(port=proxy.port)
                rig.lake.dump(T)
                with rig.load(seed=3):
                    rig.catch_up()
                wait_until_synced(standby, primary, rig)
                process = rig.start()
                rig.wait_for_batches(2, by=process, seconds=SECONDS)
                primary.stop(crash=True)
                promote(standby, rig)
                proxy.redirect(standby.port)
                with rig.load(seed=4):
                    rig.lake.dump(T)
                    rig.wait_for_batches(5, by=process, seconds=SECONDS)
                process.terminate()
                assert process.wait(timeout=120) == 0
            rig.configure()
            rig.catch_up()
            assert rig.lake.reached.resume.incarnation == 1 and gaps(rig) == []
            assert [dump["state"] for dump in rig.lake.dumps()] == ["done", "done"]
            assert unmet(PostgresSource(backend.settings).preflight()) == {}
            rig.verify()


@pytest.mark.parametrize("flavour", ["mariadb", "mysql"])
def test_rds_for_mysql_from_preflight_to_failover(flavour: Flavour, tmp_path: Path) -> None:
    """The master user has no SUPER; the binlog is removed at once until its retention is set by a procedure."""
    with cluster_of(flavour, tmp_path, size=2) as cluster:
        primary = cluster.primary
        primary.run(
            *RDS_PROCEDURES, "CREATE USER master@'%' IDENTIFIED BY 'right'",
            f"GRANT {RDS_PRIVILEGES} ON *.* TO master@'%' WITH GRANT OPTION", "CREATE DATABASE public",
            "CREATE TABLE public.t (id int PRIMARY KEY)",
        )
        settings = MysqlSettings(
            "shop", flavour, "127.0.0.1", primary.port, "cap", "it's a secret", ("public.*",), tls="disable"
        )
        primary.run("SET GLOBAL binlog_row_metadata = 'MINIMAL'")
        as_master = MysqlSource(replace(settings, user="master", password="right"))
        found = unmet(as_master.preflight())
        assert found["binlog_retention"] == (
            "the server removes the binlog as soon as it can: each stop is a gap",
            "CALL mysql.rds_set_configuration('binlog retention hours', 168)",
        )
        assert found["binlog_row_metadata"][1] == "set binlog_row_metadata to FULL in the instance's DB parameter group"
        primary.run("SET GLOBAL binlog_row_metadata = 'FULL'")
        run_mysql_init(settings, *MASTER)
        assert unmet(MysqlSource(settings).preflight()) == {}
        primary.run("DROP TABLE public.t")
        backend = MysqlBackend(primary)
        backend.admin = MASTER
        rig = Rig(backend, tmp_path)
        with Proxy(primary.port) as proxy:
            rig.configure(port=proxy.port)
            process = rig.start()
            with rig.load(seed=3):
                rig.lake.dump(T)
                rig.wait_for_batches(5, by=process, seconds=SECONDS)
            move(rig, cluster, proxy, process, crash=True)
            with rig.load(seed=4):
                rig.lake.dump(T)
                rig.wait_for_batches(5, by=process, seconds=SECONDS)
            process.terminate()
            assert process.wait(timeout=120) == 0
        rig.configure()
        rig.catch_up()
        assert incarnations(rig) == ["moved"]
        assert [dump["state"] for dump in rig.lake.dumps()] == ["done", "done"]
        # The retention that --init set has come along.
        assert backend.settings is not None and unmet(MysqlSource(backend.settings).preflight()) == {}
        rig.verify()
