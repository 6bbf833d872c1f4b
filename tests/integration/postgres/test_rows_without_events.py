"""Rows that appear and vanish in bulk: partitions attached, detached, dropped and truncated, tables truncated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from dblake.base.core.source import Source
from tests.model.dblog import Event
from tests.support.backends import PostgresBackend, Row
from tests.support.lake import CaptureLake
from tests.support.postgres import Database
from tests.support.reshaped import KINDS, Reshaped, T, reshaped

ROOT = {
    "postgres": (
        "CREATE TABLE public.t (id int, k int, v text, PRIMARY KEY (id, k)) PARTITION BY RANGE (k)",
        "CREATE TABLE public.t1 PARTITION OF public.t FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE public.t2 PARTITION OF public.t FOR VALUES FROM (10) TO (20) PARTITION BY LIST (k)",
        "CREATE TABLE public.t21 PARTITION OF public.t2 DEFAULT",
    ),
    "mysql": (
        "CREATE TABLE public.t (id int, k int, v varchar(20), PRIMARY KEY (id, k)) PARTITION BY RANGE (k)"
        " (PARTITION t1 VALUES LESS THAN (10), PARTITION t2 VALUES LESS THAN (20))",
    ),
}
PLAIN = ("CREATE TABLE public.t (id int PRIMARY KEY, v varchar(9))", "INSERT INTO public.t VALUES (1, 'a'), (2, 'b')")
FILL = "INSERT INTO public.t VALUES (1, 1, 'a'), (2, 2, 'b'), (3, 11, 'c'), (4, 12, 'd')"


@pytest.fixture(params=["database", "mariadb", pytest.param("mysql", marks=pytest.mark.slow)])
def world(request: pytest.FixtureRequest) -> Iterator[Reshaped]:
    with reshaped(request.getfixturevalue(request.param)) as world:
        yield world


@pytest.fixture
def lake(tmp_path: Path) -> CaptureLake:
    return CaptureLake(tmp_path)


@pytest.fixture
def partitioned(world: Reshaped, lake: CaptureLake) -> Source:
    """Create and dump partitioned ``t``; return its source."""
    world.run(*ROOT[world.kind], FILL)
    source = world.backend.source("public.t")
    lake.dump(T)
    lake.capture(source)
    assert state(lake) == world.sorted_rows(T)
    return source


def state(lake: CaptureLake, table: str = T) -> list[Row]:
    return sorted((dict(row) for row in lake.state(table).values()), key=lambda row: int(row["id"] or 0))


def ops(events: list[Event]) -> list[tuple[str, str, str]]:
    return [(event.table, event.op, event.key[0] if event.key else "") for event in events]


def test_partition_rows_have_root_table_name(world: Reshaped, lake: CaptureLake, partitioned: Source) -> None:
    dumped = lake.reached.batch
    world.run("UPDATE public.t SET k = 15 WHERE id = 1", "UPDATE public.t SET v = 'x' WHERE id = 3",
              "DELETE FROM public.t WHERE id = 2")
    lake.capture(partitioned)
    assert state(lake) == world.sorted_rows(T)
    assert sorted(ops([e for e in lake.reconciled()[0] if e.batch > dumped])) == [
        (T, "c", "1"), (T, "d", "1"), (T, "d", "2"), (T, "u", "3"),
    ]


def test_rows_of_inheriting_table_are_its_own(database: Database, lake: CaptureLake) -> None:
    """The log names a row by the table that holds it, so a dump of the parent must not return the child's rows."""
    backend = PostgresBackend(database)
    backend.run(
        "CREATE TABLE public.parent (id int PRIMARY KEY, v text)",
        "CREATE TABLE public.child (PRIMARY KEY (id)) INHERITS (public.parent)",
        "INSERT INTO public.parent VALUES (1, 'p')", "INSERT INTO public.child VALUES (2, 'c')",
    )
    lake.dump("public.parent", "public.child")
    lake.capture(backend.source("public.*"))
    assert sorted(lake.state("public.parent")) == [("1",)]
    assert sorted(lake.state("public.child")) == [("2",)]


def test_partition_is_a_table_only_once_detached(lake: CaptureLake, database: Database) -> None:
    """The log describes each partition before its first row, which has the root's name."""
    with reshaped(database) as world:
        world.run(*ROOT["postgres"])
        source = world.backend.source("public.*")
        world.run(FILL, "INSERT INTO public.t21 VALUES (5, 13, 'e')", "UPDATE public.t1 SET v = 'x' WHERE id = 1")
        lake.capture(source)
        assert landed_tables(lake) == {T: 1}
        world.run("ALTER TABLE public.t DETACH PARTITION public.t1")
        world.grant()
        world.run("INSERT INTO public.t1 VALUES (6, 6, 'f')", "INSERT INTO public.t VALUES (7, 17, 'g')")
        lake.capture(source)
        assert landed_tables(lake) == {T: 1, "public.t1": 1}
        assert [row["id"] for row in state(lake, "public.t1")] == ["6"]


def landed_tables(lake: CaptureLake) -> Counter[str]:
    """Return the tables that landing describes, with the number of their schemas."""
    return Counter(schema.table for schema in lake.schemas(lake.landing()).values())


WITHOUT_EVENTS: dict[str, dict[str, tuple[str, ...]]] = {
    "dropped": {"postgres": ("DROP TABLE public.t1",), "mysql": ("ALTER TABLE public.t DROP PARTITION t1",)},
    "detached": {"postgres": ("ALTER TABLE public.t DETACH PARTITION public.t2",)},
    "detached below": {"postgres": ("ALTER TABLE public.t2 DETACH PARTITION public.t21",)},
    "emptied": {"postgres": ("TRUNCATE public.t21",), "mysql": ("ALTER TABLE public.t TRUNCATE PARTITION t2",)},
    "exchanged": {"mysql": (
        "CREATE TABLE public.other (id int, k int, v varchar(20), PRIMARY KEY (id, k))",
        "INSERT INTO public.other VALUES (9, 9, 'z')",
        "ALTER TABLE public.t EXCHANGE PARTITION t1 WITH TABLE public.other",
    )},
    "attached": {"postgres": (
        "CREATE TABLE public.t3 (LIKE public.t)", "INSERT INTO public.t3 VALUES (8, 25, 'h')",
        "ALTER TABLE public.t ATTACH PARTITION public.t3 FOR VALUES FROM (20) TO (30)",
    )},
}


IN_WINDOW = ("dropped", "emptied")
"""The changes inside an open window that the short suite keeps."""


def partition_cases() -> Iterator[ParameterSet]:
    """Yield each change on each server that knows it, between captures and inside an open window."""
    servers = ("database", "mariadb", "mysql")
    for server, (name, statements), live in product(servers, WITHOUT_EVENTS.items(), (False, True)):
        if KINDS[server] in statements:
            is_slow = server == "mysql" or (live and name not in IN_WINDOW)
            case = f"{name}-{'live' if live else 'between'}-{server}"
            yield pytest.param(server, name, live, id=case, marks=pytest.mark.slow if is_slow else [])


@pytest.mark.parametrize(("world", "name", "live"), list(partition_cases()), indirect=["world"])
def test_partition_change_converges_after_redump(
    world: Reshaped, lake: CaptureLake, partitioned: Source, name: str, live: bool
) -> None:
    statements = WITHOUT_EVENTS[name][world.kind]
    if live:
        # The partition changes while the chunk's window is open: rows of the chunk no longer exist.
        lake.dump(T)
        lake.capture(partitioned, steps={("read", T): lambda: world.run(*statements)})
    else:
        world.run(*statements)
    lake.capture(partitioned)
    assert state(lake) == world.sorted_rows(T)
    assert {dump["state"] for dump in lake.dumps()} == {"done"}


def test_added_empty_partition_causes_no_redump(world: Reshaped, lake: CaptureLake, partitioned: Source) -> None:
    world.run({
        "postgres": "CREATE TABLE public.t3 PARTITION OF public.t FOR VALUES FROM (20) TO (30)",
        "mysql": "ALTER TABLE public.t ADD PARTITION (PARTITION t3 VALUES LESS THAN (30))",
    }[world.kind], "INSERT INTO public.t VALUES (5, 25, 'e')")
    lake.capture(partitioned)
    assert state(lake) == world.sorted_rows(T)
    assert [dump["state"] for dump in lake.dumps()] == ["done"]


@pytest.mark.parametrize("where", [
    pytest.param("low", marks=pytest.mark.slow), "read", pytest.param("high", marks=pytest.mark.slow),
])
def test_truncate_and_insert_in_window_win_over_chunk(world: Reshaped, lake: CaptureLake, where: str) -> None:
    world.run(*PLAIN)
    source = world.backend.source("public.t")
    lake.dump(T)
    lake.capture(source, steps={
        (where, T): lambda: world.run("TRUNCATE TABLE public.t", "INSERT INTO public.t VALUES (2, 'x'), (3, 'c')"),
    })
    assert state(lake) == [{"id": "2", "v": "x"}, {"id": "3", "v": "c"}]


def test_truncates_within_one_batch_apply_in_order(world: Reshaped, lake: CaptureLake) -> None:
    world.run(*PLAIN)
    source = world.backend.source("public.t")
    lake.dump(T)
    lake.capture(source)
    world.run(
        "INSERT INTO public.t VALUES (3, 'c')", "TRUNCATE TABLE public.t", "INSERT INTO public.t VALUES (2, 'x')",
        "TRUNCATE TABLE public.t", "INSERT INTO public.t VALUES (2, 'y'), (4, 'd')",
        "UPDATE public.t SET v = 'z' WHERE id = 4",
    )
    # One commit for all: none is due before everything has been read.
    lake.capture(source, commits_per_second=0.2)
    truncates = [row["batch"] for row in lake.landing().to_pylist() if row["kind"] == "truncate"]
    assert len(truncates) == 2 and len(set(truncates)) == 1
    assert state(lake) == [{"id": "2", "v": "y"}, {"id": "4", "v": "z"}]


@pytest.mark.parametrize(("name", "restarts"), [("u", False), ("u", True), ("hidden", False)],
                         ids=["captured", "captured_restarted", "not_captured"])
def test_table_renamed_and_back_keeps_rows_written_between(
    database: Database, lake: CaptureLake, name: str, restarts: bool
) -> None:
    """The log has them under the other name alone."""
    with reshaped(database) as world:
        world.run(*PLAIN)
        source = world.backend.source("public.t", "public.u")
        lake.dump(T)
        lake.capture(source)
        world.run(
            "UPDATE public.t SET v = 'c' WHERE id = 1", f"ALTER TABLE public.t RENAME TO {name}",
            f"UPDATE public.{name} SET v = 'd' WHERE id = 2",
        )
        if restarts:
            lake.capture(source)
        world.run(f"ALTER TABLE public.{name} RENAME TO t", "UPDATE public.t SET v = 'e' WHERE id = 1")
        lake.capture(source)
        lake.capture(source)
        assert state(lake) == world.sorted_rows(T) == [{"id": "1", "v": "e"}, {"id": "2", "v": "d"}]


MADE_OF_ENUMS = {
    "enum": ("mood", "'sad'"), "array": ("mood[]", "'{sad,ok}'"), "domain": ("feeling", "'sad'"),
    "composite": ("felt", "'(1,sad)'"), "range": ("moods", "'[sad,ok)'"), "all at once": ("felt[]", "'{\"(1,sad)\"}'"),
}


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[] if name in ("enum", "all at once") else pytest.mark.slow) for name in MADE_OF_ENUMS
])
def test_renamed_enum_label_changes_all_rows(database: Database, lake: CaptureLake, name: str) -> None:
    column, value = MADE_OF_ENUMS[name]
    with reshaped(database) as world:
        world.run(
            "CREATE TYPE mood AS ENUM ('sad', 'ok')", "CREATE DOMAIN feeling AS mood CHECK (value <> 'ok')",
            "CREATE TYPE felt AS (n int, m mood)", "CREATE TYPE moods AS RANGE (subtype = mood)",
            f"CREATE TABLE public.t (id int PRIMARY KEY, v {column})", f"INSERT INTO public.t VALUES (1, {value})",
        )
        source = world.backend.source("public.t")
        lake.dump(T)
        lake.capture(source)
        world.run("ALTER TYPE mood ADD VALUE 'fine'")
        lake.capture(source)
        assert len(lake.dumps()) == 1
        world.run("ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'")
        lake.capture(source)
        assert state(lake) == world.sorted_rows(T) and "blue" in str(state(lake))
        assert [dump["state"] for dump in lake.dumps()] == ["done", "done"]
