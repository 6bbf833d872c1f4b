"""Schema changes of captured tables: on the live log, inside a chunk's window, and while no capture runs."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet
from psycopg2.extensions import cursor

from dblake.base.core.schema import TableSchema
from dblake.ingest.capture.saved_fingerprint import SavedFingerprint, stale_reason
from dblake.ingest.capture.stale_tables import StaleTable, read_stale_tables, set_dump
from dblake.ingest.source.postgres import fingerprints
from tests.support.backends import PostgresBackend
from tests.support.lake import CaptureLake
from tests.support.postgres import Database
from tests.support.reshaped import CHANGES, INSERT, KINDS, UPDATE, Change, Reshaped, T, find_misplaced, reshaped, t


def cases(*short: str, servers: Iterable[str] = KINDS) -> list[ParameterSet]:
    """Return each change on each of the ``servers`` that know it; those not in ``short`` are slow."""
    return [
        pytest.param(server, name, id=f"{name}-{server}", marks=[] if server in short else pytest.mark.slow)
        for server in servers for name, change in CHANGES.items() if KINDS[server] in change.on
    ]


@pytest.fixture(params=["database", "mariadb", pytest.param("mysql", marks=pytest.mark.slow)])
def world(request: pytest.FixtureRequest) -> Iterator[Reshaped]:
    with reshaped(request.getfixturevalue(request.param)) as world:
        yield world


@pytest.fixture
def postgres_world(database: Database) -> Iterator[Reshaped]:
    with reshaped(database) as world:
        yield world


@pytest.fixture
def lake(tmp_path: Path) -> CaptureLake:
    return CaptureLake(tmp_path)


def require_same(world: Reshaped, lake: CaptureLake, table: str) -> None:
    """Assert that state equals the source in every column, and that no event has a value under another column."""
    there = world.sorted_rows(table)
    state = sorted(lake.state(table).values(), key=lambda row: int(row["id"] or 0))
    assert [{name: row.get(name, "absent") for name in there[0]} for row in state] == there
    assert find_misplaced(event.after or {} for event in lake.reconciled()[0]) == []


def dumps(lake: CaptureLake) -> list[tuple[str, str]]:
    return [(dump["table"], dump["state"]) for dump in lake.dumps()]


@pytest.mark.parametrize(("world", "name"), cases("database", "mariadb"), indirect=["world"])
def test_change_between_captures_converges(world: Reshaped, lake: CaptureLake, name: str) -> None:
    change = CHANGES[name]
    source = world.create()
    lake.dump(T)
    lake.capture(source)
    world.change(change)
    lake.capture(source)
    require_same(world, lake, change.table)
    world.run(change.insert.format(30))
    lake.capture(source)
    require_same(world, lake, change.table)
    expected = [(T, "done")] + [(change.table, "done")] * (world.kind in change.redumped)
    # pgoutput shows the new name after the first dump, and not that no row had the former name since: one more dump.
    is_renamed = change.table != T or name == "swapped"
    is_repeated = world.kind == "postgres" and is_renamed and len(dumps(lake)) > len(expected)
    assert dumps(lake) == expected + [(change.table, "done")] * is_repeated
    assert read_stale_tables(lake.store) == []


@pytest.mark.parametrize(("world", "name"), cases("database"), indirect=["world"])
def test_change_in_chunk_read_converges(world: Reshaped, lake: CaptureLake, name: str) -> None:
    change_in_window(world, lake, CHANGES[name], "read")


@pytest.mark.slow
@pytest.mark.parametrize("where", ["low", "high"])
@pytest.mark.parametrize(("world", "name"), cases(servers=("database", "mariadb", "mysql")), indirect=["world"])
def test_change_beside_chunk_read_converges(world: Reshaped, lake: CaptureLake, name: str, where: str) -> None:
    change_in_window(world, lake, CHANGES[name], where)


def change_in_window(world: Reshaped, lake: CaptureLake, change: Change, where: str) -> None:
    source = world.create()
    lake.dump(T)
    lake.capture(source, chunk_size=2, steps={(where, T): lambda: world.change(change)}, new_tables="dump")
    # A table that was recreated is suspended until its privileges are granted; it is dumped when it returns.
    lake.capture(source, new_tables="dump")
    require_same(world, lake, change.table)


def test_change_without_later_row_lands_from_chunk(world: Reshaped, lake: CaptureLake) -> None:
    source = world.create()
    lake.dump(T)
    lake.capture(source)
    world.run(INSERT.format(20), *CHANGES["added"].on[world.kind])
    lake.capture(source)
    require_same(world, lake, T)
    # The log's last schema is the former one; the chunks' schema is newer.
    landed = [row for row in lake.landing().to_pylist() if row["kind"] == "schema"]
    newest = max(landed, key=lambda row: (row["incarnation"], row["lsn"], row["seq"]))
    assert [column["name"] for column in json.loads(newest["payload"])["columns"]] == ["id", "a", "n", "b", "c"]


def test_change_without_effect_on_values_is_ignored(postgres_world: Reshaped, lake: CaptureLake) -> None:
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


def test_nullability_change_lands_on_live_stream(postgres_world: Reshaped) -> None:
    world = postgres_world
    source = world.create()
    landed: list[tuple[str, bool]] = []
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
                        landed += [(c.name, c.nullable) for c in columns if c.name == "b"]
    assert landed == [("b", False), ("b", True), ("b", False)]


def test_rewrite_during_fingerprint_is_detected_by_next(postgres_world: Reshaped) -> None:
    world = postgres_world
    world.create()
    assert isinstance(world.backend, PostgresBackend) and world.backend.settings

    class Interrupted(cursor):  # type: ignore[misc]
        """Rewrites the table between the queries for its columns and for its file."""

        def execute(self, query: Any, vars: Any = None) -> None:
            if query == fingerprints._FILES:
                world.run(*CHANGES["rewritten"].on["postgres"])
            super().execute(query, vars)

    connection = world.backend.database.connect()
    with closing(connection), connection.cursor() as plain, connection.cursor(cursor_factory=Interrupted) as slow:
        before = SavedFingerprint.from_catalog(fingerprints.table_fingerprints(plain, world.backend.settings)[0])
        during = fingerprints.table_fingerprints(slow, world.backend.settings)[0]
        after = fingerprints.table_fingerprints(plain, world.backend.settings)[0]
    reason = stale_reason(before, during) or stale_reason(SavedFingerprint.from_catalog(during), after)
    assert reason == "its columns were rewritten"


def test_redump_off_reports_stale_table_once(
    world: Reshaped, lake: CaptureLake, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    source = world.create()
    lake.dump(T)
    lake.capture(source, redump=False)
    world.change(CHANGES["added"])
    for _ in range(2):
        lake.capture(source, redump=False)
    (stale,) = read_stale_tables(lake.store)
    assert (stale.table, stale.dump_id) == (T, None)
    assert [r.message for r in caplog.records if "dump start --table 'public.t'" in r.message] == [
        f"table public.t changed without row events: {stale.why}. Next: dump start --table 'public.t'"
    ]
    assert dumps(lake) == [(T, "done")]
    dump_id = lake.dump(T)
    set_dump(lake.store, [T], dump_id)
    assert read_stale_tables(lake.store) == [StaleTable(T, stale.why, dump_id)]
    for _ in range(2):
        lake.capture(source, redump=False)
    assert read_stale_tables(lake.store) == []
    require_same(world, lake, T)
