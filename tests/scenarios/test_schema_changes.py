"""Tables that change their shape while they are captured: live, around a chunk, and while no capture runs."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import pytest
from psycopg2.extensions import cursor

from dblake.capture.stale_detector import Known, changed
from dblake.capture.stale_tables import StaleTable, answered, rewritten
from dblake.core.schema import TableSchema
from dblake.source.postgres import standing
from tests.support.backends import PostgresBackend
from tests.support.lake import CaptureLake
from tests.support.postgres import Database
from tests.support.reshaped import CHANGES, INSERT, UPDATE, Change, Reshaped, T, find_misplaced, reshaped, t


@pytest.fixture(params=["database", "wal2json_database", "mariadb", "mysql"])
def world(request: pytest.FixtureRequest) -> Iterator[Reshaped]:
    plugin: Literal["pgoutput", "wal2json"] = "wal2json" if request.param == "wal2json_database" else "pgoutput"
    with reshaped(request.getfixturevalue(request.param), plugin) as world:
        yield world


@pytest.fixture
def postgres_world(database: Database) -> Iterator[Reshaped]:
    with reshaped(database) as world:
        yield world


@pytest.fixture
def lake(tmp_path: Path) -> CaptureLake:
    return CaptureLake(tmp_path)


def of(world: Reshaped, name: str) -> Change:
    change = CHANGES[name]
    if world.kind not in change.on:
        pytest.skip(f"not on {world.kind}")
    return change


def require_same(world: Reshaped, lake: CaptureLake, table: str) -> None:
    """Every column of every row is the source's, and no event ever said of any column what it cannot hold."""
    there = world.sorted_rows(table)
    state = sorted(lake.state(table).values(), key=lambda row: int(row["id"] or 0))
    assert [{name: row.get(name, "absent") for name in there[0]} for row in state] == there
    assert find_misplaced(event.after or {} for event in lake.reconciled()[0]) == []


def dumps(lake: CaptureLake) -> list[tuple[str, str]]:
    return [(dump["table"], dump["state"]) for dump in lake.dumps()]


@pytest.mark.parametrize("name", CHANGES)
def test_between_two_captures(world: Reshaped, lake: CaptureLake, name: str) -> None:
    change = of(world, name)
    source = world.create()
    lake.dump(T)
    lake.capture(source)
    world.change(change)
    lake.capture(source)
    require_same(world, lake, change.table)
    world.run(change.insert.format(30))
    lake.capture(source)
    require_same(world, lake, change.table)
    assert dumps(lake) == [(T, "done")] + [(change.table, "done")] * (world.kind in change.redumped)
    assert rewritten(lake.store) == []


@pytest.mark.parametrize("where", ["low", "read", "high"])
@pytest.mark.parametrize("name", CHANGES)
def test_around_a_chunk(world: Reshaped, lake: CaptureLake, name: str, where: str) -> None:
    change = of(world, name)
    if world.plugin == "wal2json" and where != "read":
        pytest.skip("pgoutput shows what a chunk does; here it is the log that differs")
    source = world.create()
    lake.dump(T)
    lake.capture(source, chunk_size=2, steps={(where, T): lambda: world.change(change)})
    lake.capture(source)
    require_same(world, lake, change.table)


def test_a_change_that_no_row_follows(world: Reshaped, lake: CaptureLake) -> None:
    source = world.create()
    lake.dump(T)
    lake.capture(source)
    world.run(INSERT.format(20), *CHANGES["added"].on[world.kind])
    lake.capture(source)
    require_same(world, lake, T)
    # The log's last word is the table as it was; what the chunks saw is newer.
    told = [row for row in lake.landing().to_pylist() if row["kind"] == "schema"]
    newest = max(told, key=lambda row: (row["incarnation"], row["lsn"], row["seq"]))
    assert [column["name"] for column in json.loads(newest["payload"])["columns"]] == ["id", "a", "n", "b", "c"]


def test_what_changes_no_value_is_let_be(postgres_world: Reshaped, lake: CaptureLake) -> None:
    world = postgres_world
    world.run("CREATE TABLE public.u (id int PRIMARY KEY)")
    source = world.create()
    lake.dump(T)
    lake.capture(source)
    for harmless in ("ADD c text", "ALTER c SET STATISTICS 5", "SET TABLESPACE pg_default", "ALTER b DROP NOT NULL"):
        world.run(f"ALTER TABLE public.t {harmless}", "VACUUM FULL public.u", UPDATE.format(1))
        lake.capture(source)
    assert dumps(lake) == [(T, "done")]
    assert {row.get("c") for row in lake.state(T).values()} == {None}


def test_what_may_be_null_from_now_on_is_told_on_a_live_stream(postgres_world: Reshaped) -> None:
    world = postgres_world
    source = world.create()
    told: list[tuple[str, bool]] = []
    with closing(source.open_log(None, 1)) as stream:
        for change in ("SELECT 1", t("ALTER b DROP NOT NULL"), "ANALYZE public.t", t("ALTER b SET NOT NULL")):
            world.run(change, UPDATE.format(1))
            deadline = time.monotonic() + 20
            rows = 0
            while not rows and time.monotonic() < deadline:
                piece = stream.read(max_bytes=1 << 20, max_rows=1000, seconds=0.1)
                for row in piece.rows.to_pylist() if piece else []:
                    rows += row["kind"] == "row"
                    if row["kind"] == "schema":
                        columns = TableSchema.from_json(row["payload"]).columns
                        told += [(c.name, c.nullable) for c in columns if c.name == "b"]
    assert told == [("b", False), ("b", True), ("b", False)]


def test_a_rewrite_in_the_middle_of_a_look_is_found_by_the_next(postgres_world: Reshaped) -> None:
    world = postgres_world
    world.create()
    assert isinstance(world.backend, PostgresBackend) and world.backend.settings

    class Interrupted(cursor):
        """Rewrites the table once its columns have been asked about, before its file is."""

        def execute(self, query: Any, vars: Any = None) -> None:
            if query == standing._FILES:
                world.run(*CHANGES["rewritten"].on["postgres"])
            super().execute(query, vars)

    connection = world.backend.database.connect()
    with closing(connection), connection.cursor() as plain, connection.cursor(cursor_factory=Interrupted) as looking:
        before = Known.of(standing.table_fingerprints(plain, world.backend.settings)[0])
        during = standing.table_fingerprints(looking, world.backend.settings)[0]
        after = standing.table_fingerprints(plain, world.backend.settings)[0]
    assert (changed(before, during) or changed(Known.of(during), after)) == "its columns were written anew"


def test_asked_not_done(world: Reshaped, lake: CaptureLake, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    source = world.create()
    lake.dump(T)
    lake.capture(source, redump=False)
    world.change(CHANGES["added"])
    for _ in range(2):
        lake.capture(source, redump=False)
    (found,) = rewritten(lake.store)
    assert (found.table, found.dump_id) == (T, None)
    assert [r.message for r in caplog.records if "dump start --table 'public.t'" in r.message] == [
        f"table public.t changed without row events: {found.why}. Next: dump start --table 'public.t'"
    ]
    assert dumps(lake) == [(T, "done")]
    asked = lake.dump(T)
    answered(lake.store, [T], asked)
    assert rewritten(lake.store) == [StaleTable(T, found.why, asked)]
    for _ in range(2):
        lake.capture(source, redump=False)
    assert rewritten(lake.store) == []
    require_same(world, lake, T)
