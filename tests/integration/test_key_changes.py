"""Changes of a key whose log lacks columns, on real servers: the new key's row keeps the values of the old one's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dblake.base.lake.tables import open_table
from dblake.transform.reconcile.stream import reconcile_once
from dblake.transform.state.run import run_state
from tests.support.consumers import LOCAL_SESSION
from tests.support.lake import CaptureLake
from tests.support.reshaped import Reshaped, reshaped
from tests.support.sql_rows import sql_rows

T = "public.docs"
Rows = dict[int, tuple[Any, ...]]


def big(number: int) -> str:
    return f"{number} " * 2000


CREATE = {
    "postgres": (
        f"CREATE TABLE {T} (id int PRIMARY KEY, v varchar(20), big text)",
        f"ALTER TABLE {T} ALTER COLUMN big SET STORAGE EXTERNAL",
    ),
    "mysql": (f"CREATE TABLE {T} (id int PRIMARY KEY, v varchar(20), big longtext)",),
}
#: Each list is one transaction.
CHANGES = (
    ["UPDATE public.docs SET id = 100 WHERE id = 3"],
    ["UPDATE public.docs SET id = 40 WHERE id = 4", "UPDATE public.docs SET id = 41 WHERE id = 40",
     "UPDATE public.docs SET v = 'chain' WHERE id = 41"],
    ["UPDATE public.docs SET id = 90 WHERE id = 1", "UPDATE public.docs SET id = 1 WHERE id = 2",
     "UPDATE public.docs SET id = 2 WHERE id = 90"],
    [f"INSERT INTO public.docs VALUES (50, 'new', '{big(50)}')", "UPDATE public.docs SET id = 51 WHERE id = 50"],
    ["UPDATE public.docs SET id = 60, big = 'short' WHERE id = 6"],
    # The row of an updated value moves; its old key is used again.
    [f"UPDATE public.docs SET big = '{big(70)}' WHERE id = 7", "UPDATE public.docs SET id = 71 WHERE id = 7",
     "INSERT INTO public.docs VALUES (7, 'again', NULL)"],
    ["UPDATE public.docs SET id = 101 WHERE id = 100"],
)
#: Those after which no key has been that of several rows, and a row that goes to another key and back.
IN_WINDOW = (
    CHANGES[0], CHANGES[1], CHANGES[4],
    ["UPDATE public.docs SET id = 80 WHERE id = 8"], ["UPDATE public.docs SET id = 8 WHERE id = 80"],
    CHANGES[6],
)
#: Before a chunk is read: a key is that of another row.
BEFORE_READ = ("DELETE FROM public.docs WHERE id = 5", "UPDATE public.docs SET id = 5 WHERE id = 7")
#: A swap, and a key that is used again.
AMBIGUOUS = (
    CHANGES[2], ["UPDATE public.docs SET id = 70 WHERE id = 5", "INSERT INTO public.docs VALUES (5, 'new', '')"],
)


@pytest.fixture(params=["database", "mariadb", pytest.param("mysql", marks=pytest.mark.slow)])
def world(request: pytest.FixtureRequest) -> Iterator[Reshaped]:
    with reshaped(request.getfixturevalue(request.param)) as world:
        world.run(*CREATE[world.kind], *(f"INSERT INTO {T} VALUES ({n}, 'a', '{big(n)}')" for n in range(1, 9)))
        yield world


def change(world: Reshaped, statements: list[str]) -> None:
    """Execute statements in one transaction; MySQL and MariaDB then log only what changed."""
    is_mysql = world.kind == "mysql"
    server: Any = world.backend.server if is_mysql else world.backend.database  # type: ignore[union-attr]
    with closing(server.connect()) as connection, connection.cursor() as cursor:
        for statement in [*["SET SESSION binlog_row_image = 'MINIMAL'"][:is_mysql], "BEGIN", *statements, "COMMIT"]:
            cursor.execute(statement)


def _advance(lake: CaptureLake) -> None:
    reconcile_once(LOCAL_SESSION, lake.paths)
    assert not [result.error for result in run_state(LOCAL_SESSION, lake.paths) if result.error]


def _expected(world: Reshaped) -> Rows:
    return {int(row["id"] or 0): (row["v"], row["big"]) for row in world.backend.rows(T)}


def _rows(lake: CaptureLake, view: str) -> Rows:
    return {row["id"]: (row["v"], row["big"]) for row in sql_rows(lake.paths, f"SELECT id, v, big FROM {view}")}


def _state(lake: CaptureLake) -> Rows:
    rows = open_table(lake.paths.state("public", "docs")).to_pyarrow_table().to_pylist()
    assert not [row for row in rows if row["_missing"]]
    return {row["id"]: (row["v"], row["big"]) for row in rows if not row["_deleted"]}


@pytest.mark.parametrize("together", [
    pytest.param(True, id="one step"), pytest.param(False, id="a step each", marks=pytest.mark.slow),
])
def test_changed_key_keeps_values_that_log_lacks(world: Reshaped, tmp_path: Path, together: bool) -> None:
    """Live rows equal the source before state has folded; state and the history do after it."""
    lake, source = CaptureLake(tmp_path), world.backend.source("public.*")
    lake.dump(T, keys=[(str(number),) for number in range(1, 9)])
    lake.capture(source, redump=False)
    _advance(lake)
    for statements in CHANGES:
        change(world, statements)
        if not together:
            lake.capture(source, redump=False)
            _advance(lake)
            assert _state(lake) == _expected(world), statements
    lake.capture(source, redump=False)
    partial = [row for row in lake.decoded() if row["op"] == "c" and "big" not in row["after"]]
    assert len(partial) == 9, "the log repeats the values"
    reconcile_once(LOCAL_SESSION, lake.paths)
    expected = _expected(world)
    assert _rows(lake, "docs_live") == expected
    _advance(lake)
    newest = "docs_history WHERE _valid_to IS NULL AND len(_missing) = 0"
    assert _state(lake) == _rows(lake, "docs") == _rows(lake, "docs_live") == _rows(lake, newest) == expected


def test_key_changed_in_window_keeps_values_of_chunk_row(world: Reshaped, tmp_path: Path) -> None:
    """Only the chunk has the rows' values. PostgreSQL's snapshot shows also which row of several it read."""
    lake, source = CaptureLake(tmp_path), world.backend.source("public.*")
    is_exact = world.kind == "postgres"

    def change_before_read() -> None:
        for statement in BEFORE_READ:
            change(world, [statement])

    def change_in_window() -> None:
        for statements in [*IN_WINDOW, *(AMBIGUOUS if is_exact else ())]:
            change(world, statements)

    lake.dump(T)
    steps = {("read", T): change_in_window} | ({("low", T): change_before_read} if is_exact else {})
    lake.capture(source, redump=False, steps=steps)
    partial = [row for row in lake.decoded() if row["op"] == "c" and "big" not in row["after"]]
    assert len(partial) == (11 if is_exact else 6), "the log repeats the values"
    reconcile_once(LOCAL_SESSION, lake.paths)
    expected = _expected(world)
    assert _rows(lake, "docs_live") == expected
    _advance(lake)
    assert _state(lake) == _rows(lake, "docs") == expected
