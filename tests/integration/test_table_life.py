"""The life of a captured table: first dump, suspension by name while others go on, return, removal."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dblake.base.core.source import Source
from dblake.ingest.capture.loop import Until
from dblake.ingest.capture.stale_tables import read_stale_tables
from dblake.ingest.capture.table_life import read_lives
from dblake.operate.status.table_problems import dump_problems, life_problems, stale_table_problems
from tests.support.backends import Row
from tests.support.lake import CaptureLake
from tests.support.mysql import MysqlServer
from tests.support.postgres import Database
from tests.support.reshaped import Reshaped, reshaped

A, B, NEW = "public.a", "public.b", "public.new"
#: ``preflight --init`` publishes the schema, too.
UNPUBLISH = f"ALTER PUBLICATION p DROP TABLES IN SCHEMA public, TABLE {B}"
TABLES = tuple(
    statement for name in (A, B)
    for statement in (f"CREATE TABLE {name} (id int PRIMARY KEY, v varchar(9))", f"INSERT INTO {name} VALUES (1, 'x')")
)


@pytest.fixture(params=["database", "mariadb", pytest.param("mysql", marks=pytest.mark.slow)])
def world(request: pytest.FixtureRequest) -> Iterator[Reshaped]:
    with reshaped(request.getfixturevalue(request.param)) as world:
        world.run(*TABLES)
        yield world


@pytest.fixture
def postgres_world(request: pytest.FixtureRequest) -> Iterator[Reshaped]:
    with reshaped(request.getfixturevalue("database")) as world:
        world.run(*TABLES)
        yield world


@pytest.fixture
def lake(tmp_path: Path) -> CaptureLake:
    return CaptureLake(tmp_path)


def lives(lake: CaptureLake) -> dict[str, str]:
    return {table: life.state.value for table, life in read_lives(lake.store).items()}


def rows(lake: CaptureLake, table: str) -> list[Row]:
    return sorted((dict(row) for row in lake.state(table).values()), key=lambda row: int(row["id"] or 0))


@contextmanager
def running(lake: CaptureLake, source: Source, **settings: Any) -> Iterator[Callable[[Callable[[], bool]], None]]:
    """Run capture beside the block, which gets a function that waits for a condition."""
    stop, raised = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            defaults: dict[str, Any] = {"heartbeat_seconds": 0.2, "new_tables": "dump"}
            lake.capture(source, until=Until(), stop=stop, **defaults | settings)
        except BaseException as error:  # noqa: BLE001 - raised in the test's thread
            raised.append(error)

    def wait_for(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 20
        while not condition():
            assert not raised, raised
            assert time.monotonic() < deadline, (lives(lake), lake.dumps())
            time.sleep(0.05)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield wait_for
    finally:
        stop.set()
        thread.join(30)
    assert not raised, raised
    assert not thread.is_alive()


def capture(lake: CaptureLake, source: Source, **settings: Any) -> None:
    defaults: dict[str, Any] = {"new_tables": "dump"}
    lake.capture(source, **defaults | settings)


def landed(lake: CaptureLake, table: str) -> int:
    """Return how many row changes of a table have landed."""
    return sum(row["kind"] == "row" and row["table"] == table for row in lake.landing().to_pylist())


def test_first_dump_of_all_tables_is_automatic(world: Reshaped, lake: CaptureLake) -> None:
    capture(lake, world.backend.source("public.*"))
    assert rows(lake, A) == world.sorted_rows(A) != []
    # The next scan completes the tables.
    capture(lake, world.backend.source("public.*"))
    assert lives(lake) == {A: "followed", B: "followed"}
    assert [dump["table"] for dump in lake.dumps()] == [A, B]


@pytest.mark.parametrize(
    "patterns", [["public.*"], pytest.param(["public.*", "!public.other"], marks=pytest.mark.slow)],
    ids=["whole schema", "with an exclusion"],
)
def test_new_table_is_dumped_while_capture_runs(world: Reshaped, lake: CaptureLake, patterns: list[str]) -> None:
    """Where the patterns take all of a schema, --init has published and granted its later tables."""
    source = world.backend.source(*patterns)
    with running(lake, source) as wait_for:
        wait_for(lambda: lives(lake) == {A: "followed", B: "followed"})
        world.run(f"CREATE TABLE {NEW} (id int PRIMARY KEY, v varchar(9))", f"INSERT INTO {NEW} VALUES (1, 'x')")
        if len(patterns) > 1:
            wait_for(lambda: lives(lake).get(NEW) == "suspended")
            world.grant()
        wait_for(lambda: lives(lake).get(NEW) == "followed")
    assert rows(lake, NEW) == world.sorted_rows(NEW)


def test_role_that_owns_publication_adds_tables(postgres_world: Reshaped, lake: CaptureLake) -> None:
    """Only those that it owns, too: PostgreSQL lets no other role publish a table."""
    world, foreign, late = postgres_world, "public.foreign_owned", f"INSERT INTO {NEW} VALUES (2, 'y')"
    backend = world.backend
    source = backend.source("public.*")
    assert backend.settings is not None
    role = backend.settings.user
    world.run("ALTER PUBLICATION p DROP TABLES IN SCHEMA public", f"ALTER PUBLICATION p OWNER TO {role}",
              f"GRANT CREATE ON SCHEMA public TO {role}")
    with running(lake, source) as wait_for:
        wait_for(lambda: lives(lake) == {A: "followed", B: "followed"})
        world.run(f"SET ROLE {role}; CREATE TABLE {NEW} (id int PRIMARY KEY, v varchar(9));"
                  f" INSERT INTO {NEW} VALUES (1, 'x')")
        world.run(f"CREATE TABLE {foreign} (id int PRIMARY KEY)")
        wait_for(lambda: lives(lake).get(NEW) == "followed" and foreign in lives(lake))
        world.run(late)
        wait_for(lambda: landed(lake, NEW) == 1)
    assert lives(lake)[foreign] == "suspended"
    assert rows(lake, NEW) == world.sorted_rows(NEW)
    assert len(rows(lake, NEW)) == 2


@pytest.mark.parametrize(("new_tables", "state"), [("ask", "incomplete"), ("ignore", "incomplete")])
def test_new_table_without_dump_is_incomplete(
    postgres_world: Reshaped, lake: CaptureLake, new_tables: str, state: str
) -> None:
    source = postgres_world.backend.source("public.*")
    capture(lake, source, new_tables=new_tables)
    assert lives(lake) == {A: state, B: state}
    assert lake.dumps() == []
    lake.dump(A)
    capture(lake, source, new_tables=new_tables)
    capture(lake, source, new_tables=new_tables)
    assert lives(lake) == {A: "followed", B: state}


def test_table_that_leaves_patterns_is_dumped_on_return(world: Reshaped, lake: CaptureLake) -> None:
    """Its changes in between are in no log that capture read."""
    backend = world.backend
    capture(lake, backend.source("public.*"))
    capture(lake, backend.source("public.*", f"!{B}"))
    assert lives(lake)[B] == "removed"
    world.run(f"UPDATE {B} SET v = 'y'", f"INSERT INTO {B} VALUES (2, 'z')")
    capture(lake, backend.source("public.*", f"!{B}"))
    world.run(f"DELETE FROM {B} WHERE id = 1")
    capture(lake, backend.source("public.*"))
    assert rows(lake, B) == world.sorted_rows(B)
    assert len(world.sorted_rows(B)) == 1


def test_table_without_key_is_incomplete(world: Reshaped, lake: CaptureLake) -> None:
    full = [f"ALTER TABLE {NEW} REPLICA IDENTITY FULL"] if world.kind == "postgres" else []
    world.run(f"CREATE TABLE {NEW} (v varchar(9))", f"INSERT INTO {NEW} VALUES ('x')", *full)
    source = world.backend.source("public.*")
    capture(lake, source)
    capture(lake, source)
    assert lives(lake) == {A: "followed", B: "followed", NEW: "incomplete"}
    assert "no primary key" in read_lives(lake.store)[NEW].reason


def test_dropped_table_is_removed(world: Reshaped, lake: CaptureLake) -> None:
    source = world.backend.source("public.*")
    capture(lake, source)
    world.run(f"DROP TABLE {B}")
    capture(lake, source)
    assert lives(lake) == {A: "followed", B: "removed"}


def test_queued_dump_of_dropped_table_fails_by_name(world: Reshaped, lake: CaptureLake) -> None:
    """It is no problem of the source once the table is gone, and one again if the table returns."""
    source = world.backend.source("public.*")
    capture(lake, source)
    dump_id = lake.dump(B)
    world.run(f"DROP TABLE {B}")
    capture(lake, source)
    capture(lake, source)
    (failed,) = [dump for dump in lake.dumps() if dump["id"] == dump_id]
    assert failed["state"] == "failed"
    assert B in failed["error"]
    assert lives(lake) == {A: "followed", B: "removed"}
    assert problems(lake) == []
    world.run(f"CREATE TABLE {B} (id int PRIMARY KEY, v varchar(9))", f"INSERT INTO {B} VALUES (3, 'z')")
    world.grant()
    for _ in range(3):
        capture(lake, source)
    assert lives(lake) == {A: "followed", B: "followed"}
    assert rows(lake, B) == world.sorted_rows(B) != []
    assert problems(lake) == []


def problems(lake: CaptureLake) -> list[str]:
    """Return the codes of what ``status`` names of single tables."""
    found, dumps, stale = read_lives(lake.store), lake.dumps(), read_stale_tables(lake.store)
    named = [*dump_problems(dumps, found), *life_problems(found), *stale_table_problems(stale, dumps, found)]
    return [problem["code"] for problem in named]


UNFIT = {
    "not published": ((UNPUBLISH,), (f"ALTER PUBLICATION p ADD TABLE {B}",)),
    "row filter": (
        (f"ALTER PUBLICATION p DROP TABLE {B}", f"ALTER PUBLICATION p ADD TABLE {B} WHERE (id > 5)"),
        (f"ALTER PUBLICATION p DROP TABLE {B}", f"ALTER PUBLICATION p ADD TABLE {B}"),
    ),
    "identity": (
        (f"ALTER TABLE {B} ADD u int GENERATED ALWAYS AS IDENTITY", f"CREATE UNIQUE INDEX u ON {B} (u)",
         f"ALTER TABLE {B} REPLICA IDENTITY USING INDEX u"),
        (f"ALTER TABLE {B} REPLICA IDENTITY DEFAULT",),
    ),
    "privilege": ((f"REVOKE SELECT ON {B} FROM cap",), (f"GRANT SELECT ON {B} TO cap",)),
    "row security": (
        (f"ALTER TABLE {B} ENABLE ROW LEVEL SECURITY",), (f"ALTER TABLE {B} DISABLE ROW LEVEL SECURITY",),
    ),
}


@pytest.mark.parametrize("what", UNFIT)
def test_unfit_table_is_suspended_and_others_go_on(
    postgres_world: Reshaped, lake: CaptureLake, what: str
) -> None:
    world, (broken, repaired) = postgres_world, UNFIT[what]
    source = world.backend.source("public.*")
    assert world.backend.settings is not None
    role = world.backend.settings.user

    def run(*statements: str) -> None:
        world.run(*(s.replace(" cap", f" {role}") for s in statements))

    with running(lake, source) as wait_for:
        wait_for(lambda: lives(lake) == {A: "followed", B: "followed"})
        run(*broken)
        wait_for(lambda: lives(lake)[B] == "suspended")
        run(f"UPDATE {B} SET v = 'y'", f"INSERT INTO {B} (id, v) VALUES (2, 'z')", f"INSERT INTO {A} VALUES (2, 'z')")
        wait_for(lambda: landed(lake, A) == 1)
    # The next start goes on as well.
    run(f"INSERT INTO {A} VALUES (3, 'z')")
    capture(lake, source)
    assert lives(lake) == {A: "followed", B: "suspended"}
    assert rows(lake, A) == world.sorted_rows(A)
    run(*repaired)
    capture(lake, source)
    capture(lake, source)
    assert lives(lake) == {A: "followed", B: "followed"}
    assert [{k: row[k] for k in ("id", "v")} for row in rows(lake, B)] == [
        {k: row[k] for k in ("id", "v")} for row in world.sorted_rows(B)
    ]
    assert len(rows(lake, B)) == 2


def test_complete_table_returns_although_new_ones_are_ignored(postgres_world: Reshaped, lake: CaptureLake) -> None:
    """Its changes while it was not published are in no log; a gap in that time changes nothing."""
    world = postgres_world
    source = world.backend.source("public.*")
    capture(lake, source)
    capture(lake, source)
    world.run(UNPUBLISH, f"INSERT INTO {B} VALUES (2, 'z')")
    capture(lake, source, new_tables="ignore")
    assert lives(lake) == {A: "followed", B: "suspended"}
    world.backend.drop_slot()
    capture(lake, source, new_tables="ignore", accept_gap=True)
    world.run(f"ALTER PUBLICATION p ADD TABLE {B}")
    capture(lake, source, new_tables="ignore")
    capture(lake, source, new_tables="ignore")
    assert lives(lake) == {A: "followed", B: "followed"}
    assert rows(lake, B) == world.sorted_rows(B)
    assert len(rows(lake, B)) == 2


def test_changes_of_suspended_table_alone_end_nothing(postgres_world: Reshaped, lake: CaptureLake) -> None:
    """Nothing of such a piece of the log lands."""
    world = postgres_world
    with running(lake, world.backend.source("public.*")) as wait_for:
        wait_for(lambda: lives(lake) == {A: "followed", B: "followed"})
        world.run(f"ALTER TABLE {B} REPLICA IDENTITY NOTHING")
        wait_for(lambda: lives(lake)[B] == "suspended")
        for number in range(2, 6):
            world.run(f"INSERT INTO {B} VALUES ({number}, 'z')")
            time.sleep(0.1)
        world.run(f"INSERT INTO {A} VALUES (2, 'z')")
        wait_for(lambda: landed(lake, A) == 1)
    assert landed(lake, B) == 0


def test_capture_goes_on_while_all_tables_are_dropped(world: Reshaped, lake: CaptureLake) -> None:
    schema = "DATABASE" if world.kind == "mysql" else "SCHEMA"
    with running(lake, world.backend.source("public.*")) as wait_for:
        wait_for(lambda: lives(lake) == {A: "followed", B: "followed"})
        world.run(f"DROP {schema} public" + ("" if world.kind == "mysql" else " CASCADE"))
        wait_for(lambda: lives(lake) == {A: "removed", B: "removed"})
        world.run(f"CREATE {schema} public", *TABLES)
        world.grant()
        wait_for(lambda: lives(lake) == {A: "followed", B: "followed"})
    assert rows(lake, A) == world.sorted_rows(A) != []


def test_table_hidden_by_catalog_is_named(mariadb: MysqlServer, lake: CaptureLake) -> None:
    """A role without privileges does not see a table, and the log has its changes."""
    with reshaped(mariadb) as world:
        world.run(*TABLES)
        source = world.backend.source("public.*", "!public.none")
        role = mariadb.rows("SELECT concat(quote(user), '@', quote(host)) FROM mysql.user WHERE user = 'cap'")[0][0]
        with running(lake, source) as wait_for:
            wait_for(lambda: lives(lake) == {A: "followed", B: "followed"})
            world.run(f"CREATE TABLE {NEW} (id int PRIMARY KEY, v varchar(9))", f"INSERT INTO {NEW} VALUES (1, 'x')")
            wait_for(lambda: lives(lake).get(NEW) == "suspended")
            assert "it is new" in read_lives(lake.store)[NEW].reason
            world.run(f"GRANT SELECT ON {NEW} TO {role}")
            wait_for(lambda: lives(lake)[NEW] == "followed")
            dumps = len(lake.dumps())
            world.run(f"REVOKE SELECT ON {NEW} FROM {role}")
            wait_for(lambda: lives(lake)[NEW] == "suspended")
            assert "the log does not show that it was dropped" in read_lives(lake.store)[NEW].reason
            world.run(f"UPDATE {NEW} SET v = 'y'", f"GRANT SELECT ON {NEW} TO {role}")
            wait_for(lambda: lives(lake)[NEW] == "followed")
            assert len(lake.dumps()) == dumps
            assert "table_privileges" not in read_lives(lake.store)[NEW].reason
            wait_for(lambda: rows(lake, NEW) == world.sorted_rows(NEW))
            # Privileges belong to a name.
            other = "public.other"
            world.run(f"DROP TABLE {NEW}", f"RENAME TABLE {B} TO {other}")
            wait_for(lambda: [lives(lake).get(name) for name in (NEW, B, other)] == ["removed", "removed", "suspended"])
            world.run(f"DROP TABLE {other}")
            wait_for(lambda: lives(lake)[other] == "removed")


def test_columns_that_log_does_not_type_wait(mariadb: MysqlServer, lake: CaptureLake) -> None:
    """MariaDB logs UUIDs and addresses as binary strings; only the catalog shows which of them is which."""
    uuid = "f6010000-0000-4000-8000-000000000001"
    with reshaped(mariadb) as world:
        world.run(*TABLES)
        source = world.backend.source("public.*", "!public.none")
        with running(lake, source) as wait_for:
            wait_for(lambda: lives(lake) == {A: "followed", B: "followed"})
            world.run(
                f"CREATE TABLE {NEW} (id int PRIMARY KEY, u uuid, four inet4, six inet6, raw binary(16))",
                f"INSERT INTO {NEW} VALUES (1, '{uuid}', '127.0.0.1', '::1', 'x')",
            )
            wait_for(lambda: NEW in lives(lake) and "it is new" in read_lives(lake.store)[NEW].reason)
            world.run(f"INSERT INTO {NEW} (id, u) VALUES (2, '{uuid}')", f"INSERT INTO {A} VALUES (2, 'z')")
            wait_for(lambda: landed(lake, A) == 1)
            world.grant()
            wait_for(lambda: lives(lake)[NEW] == "followed")
            world.run(f"INSERT INTO {NEW} (id, u) VALUES (3, '{uuid}')")
            wait_for(lambda: landed(lake, NEW) == 1)
            world.run(f"INSERT INTO {NEW} (id, u) VALUES (4, '{uuid}')", f"ALTER TABLE {NEW} MODIFY u varchar(36)")
        capture(lake, source)
    assert [(row["id"], row["u"]) for row in rows(lake, NEW)] == [(str(n), uuid) for n in (1, 2, 3, 4)]
    schemas = [schema for schema in lake.schemas(lake.landing()).values() if schema.table == NEW]
    types = [[c.type for c in schema.columns if c.name != "u"] for schema in schemas]
    assert types
    assert all(each == ["int", "inet4", "inet6", "binary(16)"] for each in types)


def lake_has_open_dumps(lake: CaptureLake) -> bool:
    return any(dump["state"] in ("queued", "running") for dump in lake.dumps())


def test_row_security_fails_dump_and_deletes_nothing(postgres_world: Reshaped, lake: CaptureLake) -> None:
    """The policy would hide rows from the chunk, and the end of the dump would delete them."""
    world = postgres_world
    source = world.backend.source("public.*")
    capture(lake, source)
    world.run(f"INSERT INTO {B} SELECT n, 'x' FROM generate_series(2, 10) n")
    capture(lake, source)
    lake.dump(B)
    hide = f"CREATE POLICY few ON {B} USING (id <= 3)", f"ALTER TABLE {B} ENABLE ROW LEVEL SECURITY"
    capture(lake, source, steps={("low", B): lambda: world.run(*hide)})
    assert [dump["state"] for dump in lake.dumps()][-1] == "failed"
    assert "row security" in lake.dumps()[-1]["error"]
    assert len(rows(lake, B)) == 10


def test_publication_changed_and_restored_redumps(postgres_world: Reshaped, lake: CaptureLake) -> None:
    """No scan of the catalog sees the time in between, in which deletes were not published."""
    world = postgres_world
    source = world.backend.source("public.*")
    capture(lake, source)
    world.run(
        "ALTER PUBLICATION p SET (publish = 'insert')", f"DELETE FROM {A}",
        "ALTER PUBLICATION p SET (publish = 'insert, update, delete, truncate')",
    )
    capture(lake, source)
    assert rows(lake, A) == []


def test_column_dropped_and_added_again_redumps(postgres_world: Reshaped, lake: CaptureLake) -> None:
    """State keeps the last values of a dropped column; the new one's are NULL."""
    world = postgres_world
    source = world.backend.source("public.*")
    capture(lake, source)
    world.run(f"ALTER TABLE {A} DROP v")
    capture(lake, source)
    dumps = len(lake.dumps())
    world.run(f"ALTER TABLE {A} ADD v varchar(9)")
    capture(lake, source)
    assert len(lake.dumps()) == dumps + 1
    assert rows(lake, A) == world.sorted_rows(A) == [{"id": "1", "v": None}]


def test_writes_while_unlogged_redump(postgres_world: Reshaped, lake: CaptureLake) -> None:
    """A table of a publication FOR ALL TABLES may be SET UNLOGGED, written and SET LOGGED."""
    world = postgres_world
    source = world.backend.source("public.*")
    world.run("DROP PUBLICATION p", "CREATE PUBLICATION p FOR ALL TABLES WITH (publish_via_partition_root)")
    capture(lake, source)
    world.run(f"ALTER TABLE {A} SET UNLOGGED", f"INSERT INTO {A} VALUES (2, 'y')", f"ALTER TABLE {A} SET LOGGED")
    capture(lake, source)
    assert rows(lake, A) == world.sorted_rows(A)
    dumps = len(lake.dumps())
    world.run(f"TRUNCATE {B}")
    capture(lake, source)
    assert rows(lake, B) == []
    assert len(lake.dumps()) in (dumps, dumps + 1)


def test_table_set_unlogged_is_suspended_until_logged(postgres_world: Reshaped, lake: CaptureLake) -> None:
    """State must not keep its rows as if nothing changed. One that was never logged is only left out."""
    world = postgres_world
    source = world.backend.source("public.*")
    world.run("DROP PUBLICATION p", "CREATE PUBLICATION p FOR ALL TABLES WITH (publish_via_partition_root)")
    capture(lake, source)
    world.run(f"CREATE UNLOGGED TABLE {NEW} (id int PRIMARY KEY)", f"ALTER TABLE {A} SET UNLOGGED", f"TRUNCATE {A}")
    capture(lake, source)
    assert lives(lake) == {A: "suspended", B: "followed"}
    world.run(f"ALTER TABLE {A} SET LOGGED")
    capture(lake, source)
    assert lives(lake) == {A: "followed", B: "followed"}
    assert rows(lake, A) == world.sorted_rows(A) == []


@pytest.mark.parametrize("gone", [
    "DROP TABLE {leaf}", "TRUNCATE {leaf}", "ALTER TABLE {root} DETACH PARTITION {leaf}",
])
def test_partition_filled_and_emptied_between_scans_redumps(
    postgres_world: Reshaped, lake: CaptureLake, gone: str
) -> None:
    """The log has its rows, but not how they went, and the catalog of before and after is the same."""
    world, root, leaf = postgres_world, "public.parts", "public.parts_1"
    world.run(
        f"CREATE TABLE {root} (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        f"CREATE TABLE public.parts_0 PARTITION OF {root} FOR VALUES FROM (0) TO (10)",
    )
    source = world.backend.source("public.*", "!public.parts_*")
    capture(lake, source)
    world.run(f"INSERT INTO {root} VALUES (1, 'x')")
    capture(lake, source)
    dumps = len(lake.dumps())
    world.run(
        f"CREATE TABLE {leaf} PARTITION OF {root} FOR VALUES FROM (10) TO (20)",
        f"INSERT INTO {root} VALUES (2, 'x'), (11, 'y')", gone.format(root=root, leaf=leaf),
    )
    capture(lake, source)
    capture(lake, source)
    assert len(lake.dumps()) == dumps + 1
    assert rows(lake, root) == world.sorted_rows(root) == [{"id": "1", "v": "x"}, {"id": "2", "v": "x"}]


def test_generated_key_column_suspends_its_table(postgres_world: Reshaped, lake: CaptureLake) -> None:
    world = postgres_world
    world.run(f"CREATE TABLE {NEW} (a int, g int GENERATED ALWAYS AS (a * 2) STORED, PRIMARY KEY (a, g))")
    source = world.backend.source("public.*")
    world.run(f"INSERT INTO {NEW} VALUES (1)")
    capture(lake, source)
    capture(lake, source)
    assert lives(lake) == {A: "followed", B: "followed", NEW: "suspended"}
    assert rows(lake, A) == world.sorted_rows(A)


LOOSE = f"ALTER TABLE {B} DROP CONSTRAINT b_pkey, ADD PRIMARY KEY (id) DEFERRABLE INITIALLY DEFERRED"
TIGHT = f"ALTER TABLE {B} DROP CONSTRAINT b_pkey, ADD PRIMARY KEY (id)"
SHIFTS = (
    f"UPDATE {B} SET id = id + 1",
    f"UPDATE {B} SET id = 5 - id WHERE id IN (2, 3)",
)
"""Statements that give two rows one key for a moment, as a deferrable key allows."""


def test_key_deferrable_while_capture_is_down_dumps_table(database: Database, lake: CaptureLake) -> None:
    """The log of that time has no right order, and the catalog no longer shows why."""
    with reshaped(database) as world:
        world.run(*TABLES, f"INSERT INTO {B} SELECT n, 'x' FROM generate_series(2, 20) n")
        world.run(f"ALTER TABLE {B} REPLICA IDENTITY FULL")
        source = world.backend.source("public.*")
        lake.dump(B)
        lake.capture(source)
        world.run(LOOSE, *SHIFTS, TIGHT)
        lake.capture(source)
        lake.capture(source)
        assert [dump["state"] for dump in lake.dumps()] == ["done", "done"]
        assert rows(lake, B) == world.sorted_rows(B)


def test_deferrable_key_suspends_its_table(database: Database, lake: CaptureLake) -> None:
    """The log names the row that leaves a key like the one that takes it, so no order of events is right."""
    with reshaped(database) as world:
        world.run(*TABLES, f"INSERT INTO {B} SELECT n, 'x' FROM generate_series(2, 20) n")
        source = world.backend.source("public.*")
        with running(lake, source) as wait_for:
            wait_for(lambda: lives(lake) == {A: "followed", B: "followed"})
            world.run(LOOSE, f"ALTER TABLE {B} REPLICA IDENTITY FULL", *SHIFTS)
            wait_for(lambda: lives(lake)[B] == "suspended")
            assert "the primary key is deferrable" in read_lives(lake.store)[B].reason
            assert landed(lake, B) == 0
            (check,) = [check for check in source.preflight() if not check.ok]
            world.run(check.fix, f"INSERT INTO {B} VALUES (1, 'y')")
            wait_for(lambda: lives(lake)[B] == "followed")
        capture(lake, source)
        assert rows(lake, B) == world.sorted_rows(B)
        assert len(world.sorted_rows(B)) == 21


def test_damaged_table_fails_its_dump_only(postgres_world: Reshaped, lake: CaptureLake) -> None:
    world = postgres_world
    source = world.backend.source("public.*")
    assert world.backend.settings is not None
    role, revoked = world.backend.settings.user, threading.Event()

    def revoke() -> None:
        if not revoked.is_set():
            revoked.set()
            world.run(f"REVOKE SELECT ON {A} FROM {role}")

    lake.dump(A)
    lake.dump(B)
    lake.capture(source, steps={("low", A): revoke}, redump=False)
    assert {dump["table"]: dump["state"] for dump in lake.dumps()} == {A: "failed", B: "done"}
    assert "read" in (lake.dumps()[0]["error"] or "")
    assert rows(lake, B) == world.sorted_rows(B)
