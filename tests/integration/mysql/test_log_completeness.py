"""Statements and server settings that would leave changes out of the log, or rows in the lake."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from dblake.base.core.errors import PrerequisitesNotMet
from dblake.base.core.position import ResumePoint
from dblake.ingest.capture.table_life import read_lives
from dblake.ingest.source.mysql.catalog_facts import CatalogFacts, Server
from dblake.ingest.source.mysql.connection import ServerVersion
from dblake.ingest.source.mysql.preflight import findings
from dblake.ingest.source.mysql.settings import MysqlSettings
from dblake.ingest.source.mysql.source import MysqlSource
from tests.support.lake import CaptureLake
from tests.support.mysql import MysqlServer
from tests.support.mysql_backend import MysqlBackend
from tests.support.reshaped import Reshaped, reshaped

A, B = "public.a", "public.b"
TABLES = tuple(
    statement for name in (A, B)
    for statement in (f"CREATE TABLE {name} (id int PRIMARY KEY, v int)", f"INSERT INTO {name} VALUES (1, 1), (2, 2)")
)


@pytest.fixture(params=["mariadb", pytest.param("mysql", marks=pytest.mark.slow)])
def world(request: pytest.FixtureRequest) -> Iterator[Reshaped]:
    with reshaped(request.getfixturevalue(request.param)) as world:
        world.run(*TABLES)
        yield world


@pytest.fixture
def lake(tmp_path: Path) -> CaptureLake:
    return CaptureLake(tmp_path)


def dumped(world: Reshaped, lake: CaptureLake) -> MysqlSource:
    source = world.backend.source("public.*")
    lake.capture(source, new_tables="dump")
    assert len(lake.state(A)) == len(lake.state(B)) == 2
    assert isinstance(source, MysqlSource)
    return source


@pytest.mark.parametrize("statement", [f"TRUNCATE TABLE {A}", f"DROP TABLE {A}"])
def test_set_statement_prefix_hides_nothing(request: pytest.FixtureRequest, lake: CaptureLake, statement: str) -> None:
    with reshaped(request.getfixturevalue("mariadb")) as world:
        world.run(*TABLES)
        source = dumped(world, lake)
        world.run(f"SET STATEMENT max_statement_time=60 FOR {statement}")
        lake.capture(source, new_tables="dump")
        assert (len(lake.state(A)), len(lake.state(B))) == (0, 2)


def test_dropped_database_empties_its_tables(world: Reshaped, lake: CaptureLake) -> None:
    source = dumped(world, lake)
    world.run("DROP DATABASE public", "CREATE DATABASE public", *TABLES[2:], f"DELETE FROM {B} WHERE id = 1")
    world.grant()
    lake.capture(source, new_tables="ignore")
    assert (lake.state(A), list(lake.state(B))) == ({}, [("2",)])


def test_statement_logged_change_suspends_and_redumps(world: Reshaped, lake: CaptureLake) -> None:
    """Only its table is concerned; the dump after it reads what the log lacks."""
    source = dumped(world, lake)
    with one_session(world) as execute:
        execute("SET SESSION binlog_format = 'STATEMENT'")
        execute(f"UPDATE {A} SET v = v + 10")
    world.run(f"INSERT INTO {B} VALUES (3, 3)")
    lake.capture(source, new_tables="dump")
    assert (read_lives(lake.store)[A].state.value, len(lake.state(B))) == ("suspended", 3)
    lake.capture(source, new_tables="dump")
    assert sorted(row["v"] or "" for row in lake.state(A).values()) == ["11", "12"]


@contextmanager
def one_session(world: Reshaped) -> Iterator[Callable[[str], object]]:
    """Yield a function that executes statements in one session of an administrator."""
    assert isinstance(world.backend, MysqlBackend)
    with closing(world.backend.server.connect()) as connection, connection.cursor() as cursor:
        yield cursor.execute


@pytest.mark.timeout(120)
def test_log_filters_and_restarted_container(tmp_path: Path, lake: CaptureLake) -> None:
    """One server of its own: binlog-do-db without the watermark schema, then with it, then under another host name."""
    with MysqlServer("mariadb", tmp_path / "data", "--binlog-do-db=shop") as server:
        server.run("CREATE DATABASE shop", "CREATE TABLE shop.t (id int PRIMARY KEY)", "CREATE DATABASE other",
                   "CREATE TABLE other.t (id int PRIMARY KEY)")
        backend = MysqlBackend(server)
        source = backend.source("shop.*", "other.*")
        with pytest.raises(PrerequisitesNotMet, match=r"watermark_log: .* out of its log, so that no dump could end"):
            source.require()
        server.restart("--binlog-do-db=dblake")
        unfit = source.require()
        assert set(unfit) == {"other.t"}
        assert "binlog_filters" in unfit["other.t"].reason
        resume = source.open_log(None, 1).start
        identity = source.identity()
        assert not set(server.rows("SELECT @@hostname")[0][0]) <= set(identity.server)
        assert identity.same_as(replace(identity, server=f"{identity.server}@pod-7:3306"))
        assert isinstance(source, MysqlSource)
        source.open_log(ResumePoint(1, resume.token), 1).close()


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_statement_in_other_letter_case_names_its_table(tmp_path: Path, lake: CaptureLake) -> None:
    """A server that stores names in lower case writes statements to its log as they were typed."""
    with MysqlServer("mariadb", tmp_path / "data", "--lower-case-table-names=1") as server:
        server.run("CREATE DATABASE shop", "CREATE TABLE shop.t (id int PRIMARY KEY)", "INSERT INTO shop.t VALUES (1)")
        backend = MysqlBackend(server)
        source = backend.source("shop.*")
        lake.capture(source, new_tables="dump")
        assert len(lake.state("shop.t")) == 1
        server.run("TRUNCATE TABLE SHOP.T", "INSERT INTO Shop.t VALUES (2)")
        lake.capture(source, new_tables="dump")
        assert sorted(lake.state("shop.t")) == [("2",)]


SETTINGS = MysqlSettings("shop", "mysql", "db", 3306, "cap", "x", ("*.*",))
VARIABLES = {"log_bin": "ON", "server_id": "1"}


@pytest.mark.parametrize(
    ("flavour", "variables", "unmet"),
    [
        ("mysql", {"log_replica_updates": "ON", "replica_preserve_commit_order": "ON"}, set()),
        ("mysql", {"log_replica_updates": "OFF", "replica_preserve_commit_order": "ON"}, {"replica_log"}),
        ("mysql", {"log_replica_updates": "ON", "replica_parallel_workers": "4"}, {"replica_order"}),
        ("mysql", {"log_slave_updates": "ON", "slave_parallel_workers": "4", "slave_preserve_commit_order": "ON"},
         set()),
        ("mysql", {"log_replica_updates": "ON", "replica_parallel_workers": "1"}, set()),
        ("mariadb", {"log_slave_updates": "OFF"}, {"replica_log"}),
        ("mariadb", {"log_slave_updates": "ON", "slave_parallel_workers": "4"}, set()),
    ],
)
def test_replica_without_log_or_order_is_rejected(flavour: str, variables: dict[str, str], unmet: set[str]) -> None:
    version = ServerVersion("mysql" if flavour == "mysql" else "mariadb", (11, 4, 0))
    facts = CatalogFacts(Server(version, VARIABLES | variables, is_replica=True), None, (), (), {}, None)
    settings = replace(SETTINGS, flavour=version.flavour)
    checks = {check.check: check.ok for check in findings(facts, settings)}
    assert {name for name in ("replica_log", "replica_order") if not checks.get(name, True)} == unmet
    primary = replace(facts, server=replace(facts.server, is_replica=False))
    assert all(check.ok for check in findings(primary, settings) if check.check.startswith("replica_"))
