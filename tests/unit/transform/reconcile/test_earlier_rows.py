"""The end of a dump: keys are compared only where a table has earlier rows, and by Spark only where they are many."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import dblake.transform.reconcile.join_choice
from dblake.base.core.position import Position
from dblake.base.core.schema import Column, TableSchema
from dblake.base.lake.layout import Paths
from dblake.base.lake.query import query_rows
from dblake.landing.control import ChunkEnd, DumpStart
from dblake.transform.reconcile.reconciler import Reconciler
from tests.model import dblog as model
from tests.model.dblog import ChunkRow, High, Low
from tests.support.landed import Change, LandedRecord, land, to_model

T = TableSchema("public.t", (Column("id", "integer", False, 1), Column("v", "text")))
OTHER = TableSchema("public.other", T.columns)


class _NeedsSpark(Exception):
    """Reconcile requires a session."""


def no_session() -> SparkSession:
    raise _NeedsSpark


def put(batch: int, lsn: int, table: str = T.table, key: str = "7") -> Change:
    return Change(batch, 1, Position(1, lsn), lsn, table, "c", (key,), {"id": key, "v": "a"}, last=True)


def dump(batch: int, low: int) -> list[LandedRecord]:
    """Return a dump of ``t``: a chunk of one row, and the empty last chunk."""
    end = ChunkEnd(f"d{low}", 1, low, 0, T.schema_id, 1, batch)
    last = ChunkEnd(f"d{low}", 2, low + 20, 0, T.schema_id, 0, batch, began=DumpStart(1, low, 0))
    first, second = f"k{low}", f"last{low}"
    return [
        Low(batch, 1, T.table, first, Position(1, low)),
        ChunkRow(batch, 1, T.table, first, 0, ("1",), {"id": "1", "v": "x"}),
        High(batch, 1, T.table, first, Position(1, low + 10), low + 10, end),
        Low(batch, 1, T.table, second, Position(1, low + 20)),
        High(batch, 1, T.table, second, Position(1, low + 30), low + 30, last),
    ]


def reconcile(folder: Path, *batches: Sequence[LandedRecord]) -> Paths:
    """Land and reconcile batch after batch."""
    paths = Paths(str(folder), "shop")
    for number, records in enumerate(batches, 1):
        land(paths.landing, "shop", records, {T.table: T, OTHER.table: OTHER})
        reconciler = Reconciler(no_session, paths)
        reconciler.catch_up()
        reconciler.reconcile(number)
    return paths


def test_first_dump_ends_without_session(tmp_path: Path) -> None:
    paths = reconcile(tmp_path, [put(1, 5, OTHER.table)], [*dump(2, 20), put(2, 60)])
    rows = query_rows(paths.events, "SELECT lsn, op FROM t ORDER BY lsn")
    assert [(row["lsn"], row["op"]) for row in rows] == [(5, "c"), (30, "r"), (60, "c")]


@pytest.mark.parametrize(
    "batches",
    [
        pytest.param([[put(1, 10), *dump(1, 20)]], id="log row of the same batches"),
        pytest.param([[put(1, 10)], dump(2, 20)], id="event"),
        pytest.param([[*dump(1, 20), *dump(1, 80)]], id="chunk row of the same batches"),
        pytest.param([dump(1, 20), dump(2, 80)], id="chunk row before"),
    ],
)
def test_dump_of_table_with_earlier_row_compares_keys(
    tmp_path: Path, batches: Sequence[Sequence[LandedRecord]]
) -> None:
    """A key that the dump should have returned is deleted at its end, as in the model; few keys need no session."""
    assert stored(reconcile(tmp_path, *batches)) == expected(record for batch in batches for record in batch)


def test_dump_that_returned_all_earlier_keys_needs_no_spark(tmp_path: Path) -> None:
    paths = reconcile(tmp_path, [put(1, 10, key="1"), put(1, 12, OTHER.table), *dump(1, 20)])
    rows = query_rows(paths.events, 'SELECT lsn, op FROM t ORDER BY lsn, "table"')
    assert [(row["lsn"], row["op"]) for row in rows] == [(10, "c"), (12, "c"), (30, "r")]


@pytest.mark.parametrize("low", [5, 40])
def test_chunk_of_another_time_does_not_count_as_return(tmp_path: Path, low: int) -> None:
    """A chunk that closed before the dump began, or after it ended, has the key."""
    end = ChunkEnd("other", 1, low, 0, T.schema_id, 1, 1)
    other: list[LandedRecord] = [
        Low(1, 1, T.table, "other", Position(1, low)),
        ChunkRow(1, 1, T.table, "other", 0, ("7",), {"id": "7", "v": "x"}),
        High(1, 1, T.table, "other", Position(1, low + 3 if low < 20 else 55), low + 3, end),
    ]
    records = [put(1, 4), *other, *dump(1, 20)]
    assert stored(reconcile(tmp_path, records)) == expected(records)
    assert (50, "d") in expected(records)


def test_many_keys_are_compared_by_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dblake.transform.reconcile.join_choice, "_COMPARED_ROWS", 1)
    with pytest.raises(_NeedsSpark):
        reconcile(tmp_path, [put(1, 10)], dump(2, 20))


def stored(paths: Paths) -> list[tuple[int, str]]:
    return [(row["lsn"], row["op"]) for row in query_rows(paths.events, "SELECT lsn, op FROM t ORDER BY lsn, seq")]


def expected(records: Iterable[LandedRecord]) -> list[tuple[int, str]]:
    """Return what the model makes of the records."""
    return [(event.position.lsn, event.op) for event in model.reconcile(to_model(list(records)))[0]]
