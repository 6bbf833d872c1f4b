"""Chunks whose window begins before landing's oldest batch: newer rows may be missing there, so they do not count."""

from __future__ import annotations

from pathlib import Path

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from dblake.base.core.position import Position
from dblake.base.core.schema import Column, TableSchema
from dblake.base.lake.layout import Paths
from dblake.base.lake.query import query_rows
from dblake.landing.control import CLOSED, DISCARDED, ChunkEnd, DumpStart
from dblake.operate.status.table_problems import window_problems
from dblake.serve.read.reading import open_reading
from dblake.transform.reconcile.reconciler import Reconciler
from dblake.transform.reconcile.windows import LOG_EXPIRED
from tests.model.dblog import ChunkRow, High, Low
from tests.support.landed import Change, LandedRecord, land

T = TableSchema("public.t", (Column("id", "integer", False, 1), Column("v", "text")))


def no_session() -> SparkSession:
    raise AssertionError("this is little work")


def put(batch: int, key: str) -> Change:
    return Change(batch, 1, Position(1, 100 * batch), 7, T.table, "c", (key,), {"id": key, "v": "new"}, last=True)


def imported(batch: int, name: str, keys: str, first_batch: int, began: DumpStart | None = None) -> list[LandedRecord]:
    """Return a chunk with a row per key of files that were taken at the beginning of ``first_batch``."""
    low = 100 * first_batch - 50 if began is None else 100 * batch + len(name)
    end = ChunkEnd("d", 1, low, 0, T.schema_id, len(keys), first_batch, began=began, imported=began is None)
    at = Position(1, 100 * batch + 10 + 10 * "abcd".index(name))
    return [
        Low(batch, 1, T.table, name, Position(1, 100 * batch + 5)),
        *(ChunkRow(batch, 1, T.table, name, n, (k,), {"id": k, "v": "old"}) for n, k in enumerate(keys)),
        High(batch, 1, T.table, name, at, at.lsn, end),
    ]


def reconcile(paths: Paths, last: int) -> None:
    reconciler = Reconciler(no_session, paths)
    reconciler.catch_up()
    reconciler.reconcile(last)


def test_window_older_than_landing_is_discarded(tmp_path: Path) -> None:
    """Neither its rows count nor the end of its dump, which would delete what the discarded rows had kept."""
    paths = Paths(str(tmp_path), "shop")
    files, began = "12", DumpStart(1, 50, 0)
    land(paths.landing, "shop", [put(1, "1"), put(2, "3"), put(3, "4")], {T.table: T})
    reconcile(paths, 3)
    DeltaTable(paths.landing).delete("batch <= 2")
    late = [*imported(4, "a", files, 1), *imported(4, "b", "", 1, began), *imported(4, "c", "5", 3), put(5, "6")]
    land(paths.landing, "shop", late, {T.table: T})
    live = open_reading(paths, is_live=True).events()
    reconcile(paths, 5)
    rows = query_rows(paths.events, "SELECT key, op FROM t ORDER BY incarnation, lsn, seq")
    assert [(dict(row["key"])["id"], row["op"]) for row in rows] == [
        ("1", "c"), ("3", "c"), ("4", "c"), ("5", "r"), ("6", "c")
    ]
    assert live is not None and live.tail is not None and live.tail.num_rows == 2
    windows = query_rows(paths.windows, "SELECT chunk_id, status, reason, rows_emitted FROM t ORDER BY chunk_id")
    assert [tuple(row.values()) for row in windows] == [
        ("a", DISCARDED, LOG_EXPIRED, 0), ("b", DISCARDED, LOG_EXPIRED, 0), ("c", CLOSED, None, 1)
    ]
    assert [(one["code"], one["table"]) for one in window_problems(paths)] == [("rows_discarded", T.table)]
    land(paths.landing, "shop", imported(6, "d", "", 6, DumpStart(1, 600, 0)), {T.table: T})
    reconcile(paths, 6)
    assert window_problems(paths) == []
