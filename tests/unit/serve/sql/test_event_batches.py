"""The rows of a stream for Spark, read without a JVM: typed, whole, the same every time, never a silent hole."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dblake.base.core.errors import ConsumeError, StateNotReady, UsageError
from dblake.base.lake.log import Application, record_batch
from dblake.serve.consume.partition import Partition
from dblake.serve.sql.event_batches import EventBatches, StreamRequest
from dblake.serve.sql.event_columns import EVENT_COLUMNS
from dblake.serve.sql.event_stream import auto_cdc
from dblake.serve.sql.lake import Lake
from tests.support.plain_lake import PlainLake, event_rows, when
from tests.support.schemas import table_schema

ORDERS = table_schema("public.orders", "id integer key", "total numeric(10,2)", "note text")
OTHER = table_schema("public.other", "id integer key")
KEYLESS = table_schema("public.log", "line text")


def row(number: int, total: str | None = "1.50", note: str | None = "first") -> dict[str, str | None]:
    return {"id": str(number), "total": total, "note": note}


@pytest.fixture
def lake(tmp_path: Path) -> PlainLake:
    """Return a lake whose state holds three rows of batch 1."""
    lake = PlainLake(tmp_path / "warehouse")
    for schema in (ORDERS, OTHER):
        lake.schema(schema)
    lake.land(1, {
        ORDERS: [(n, "c", str(n), row(n)) for n in (1, 2, 3)], OTHER: [(4, "c", "1", {"id": "1"})],
    })
    lake.fold(1)
    return lake


def stream(lake: PlainLake, **settings: Any) -> EventBatches:
    return EventBatches(StreamRequest(lake.paths, **{"schema": ORDERS, **settings}))


def read_all(batches: EventBatches, at: str) -> tuple[list[list[dict[str, Any]]], str]:
    """Return the rows of each batch until nothing more comes, and the last checkpoint."""
    found = list[list[dict[str, Any]]]()
    while True:
        tables, end = batches.read(at)
        if end == at:
            return found, end
        if rows := rows_of(tables):
            found.append(rows)
        at = end


def rows_of(tables: Sequence[pa.Table]) -> list[dict[str, Any]]:
    return [one for table in tables for one in table.to_pylist()]


def short(rows: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(one["_op"], one["_lsn"], one["id"], one["total"], one["note"]) for one in rows]


def test_bootstrap_then_events_are_typed(lake: PlainLake) -> None:
    lake.land(2, {ORDERS: [(11, "d", "1", None), (12, "c", "4", row(4, "x", None))], OTHER: [(13, "d", "1", None)]})
    batches = stream(lake)
    found, _ = read_all(batches, batches.begin())
    rows = [one for batch in found for one in batch]
    money = Decimal("1.50")
    assert sorted(short(rows[:3])) == [("r", n, n, money, "first") for n in (1, 2, 3)]
    assert short(rows[3:]) == [("d", 11, 1, None, None), ("c", 12, 4, None, None)]
    assert [one["_origin"] for one in rows] == ["state"] * 3 + ["log"] * 2
    assert [(one["_lossy"], one["_missing"]) for one in rows[3:]] == [([], []), (["total"], [])]
    assert [rows[3][name] for name in ("_txid", "_committed_at", "_incarnation", "_seq")] == ["700", when(11), 1, 0]
    assert list(rows[0]) == [*ORDERS.names, *EVENT_COLUMNS]


def test_unsent_columns_are_those_of_the_lake(lake: PlainLake) -> None:
    """An update that does not carry a column leaves its value, from state or from an earlier event."""
    lake.land(2, {ORDERS: [
        (11, "u", "1", {"id": "1", "total": "7.00"}), (12, "c", "4", row(4, "4.00", "long")),
        (13, "u", "4", {"id": "4", "total": "5.00"}), (14, "f", "2", {"note": "filled"}),
        (15, "u", "9", {"id": "9", "total": "9.00"}),
    ]})
    batches = stream(lake, start="1/4")
    found, _ = read_all(batches, batches.begin())
    (rows,) = found
    assert short(rows) == [
        ("u", 11, 1, Decimal("7.00"), "first"), ("c", 12, 4, Decimal("4.00"), "long"),
        ("u", 13, 4, Decimal("5.00"), "long"), ("f", 14, 2, Decimal("1.50"), "filled"),
        ("u", 15, 9, Decimal("9.00"), None),
    ]
    assert [one["_missing"] for one in rows] == [[], [], [], [], ["note"]]


def test_truncate_is_an_event_per_row(lake: PlainLake) -> None:
    lake.land(2, {ORDERS: [
        (11, "c", "4", row(4)), (12, "d", "2", None), (13, "t", None, None), (14, "c", "5", row(5)),
    ]})
    batches = stream(lake, start="1/4")
    ((*_, five),) = found = read_all(batches, batches.begin())[0]
    assert sorted(short(found[0][2:5])) == [("t", 13, n, None, None) for n in (1, 3, 4)]
    assert short([five]) == [("c", 14, 5, Decimal("1.50"), "first")]


def test_truncate_removes_rows_of_its_own_transaction(lake: PlainLake) -> None:
    rows = event_rows(ORDERS, 2, [(11, "c", "4", row(4)), (11, "t", None, None), (11, "c", "5", row(5))]).to_pylist()
    for seq, one in enumerate(rows):
        one |= {"seq": seq, "last_in_txn": seq == 2}
    lake.append(pa.Table.from_pylist(rows, schema=event_rows(ORDERS, 2, []).schema), 2)
    batches = stream(lake, start="1/4")
    ((first, *removed, last),) = read_all(batches, batches.begin())[0]
    assert [(one["_op"], one["id"]) for one in (first, last)] == [("c", 4), ("c", 5)]
    assert sorted((one["_op"], one["_seq"], one["id"]) for one in removed) == [("t", 1, n) for n in (1, 2, 3, 4)]


@pytest.mark.parametrize("max_events", [1, 2, 1000])
def test_batches_are_repeated_exactly(lake: PlainLake, max_events: int) -> None:
    """Each batch again, by a reader that knows only its two checkpoints, and after more has come."""
    lake.land(2, {ORDERS: [(11, "u", "1", {"id": "1", "total": "7.00"}), (12, "d", "2", None)]})
    batches = stream(lake, max_events=max_events)
    at, parts = batches.begin(), list[tuple[str, str, list[dict[str, Any]]]]()
    while True:
        tables, end = batches.read(at)
        if end == at:
            break
        parts.append((at, end, rows_of(tables)))
        at = end
    lake.land(3, {ORDERS: [(21, "d", "1", None)]})
    lake.fold(3)
    assert sum(len(rows) for _, _, rows in parts) == 5
    assert len(parts) >= {1: 3, 2: 2, 1000: 1}[max_events]
    for start, end, rows in parts:
        assert rows_of(stream(lake, max_events=max_events).read_between(start, end)) == rows
    # And the stream goes on after them.
    assert [short(rows) for rows in read_all(stream(lake), at)[0]] == [[("d", 21, 1, None, None)]]


def test_bounded_stream_ends_at_what_events_held(lake: PlainLake) -> None:
    batches = stream(lake, start="1/4", max_events=1)
    at = batches.begin()
    lake.land(2, {ORDERS: [(11, "d", "1", None), (12, "d", "2", None)]})
    batches.end_at_newest()
    tables, at = batches.read(at)
    lake.land(3, {ORDERS: [(21, "d", "3", None)]})
    found, at = read_all(batches, at)
    assert [short(rows) for rows in (rows_of(tables), *found)] == [
        [("d", 11, 1, None, None)], [("d", 12, 2, None, None)],
    ]
    batches.end_at_newest()
    assert [short(rows) for rows in read_all(batches, at)[0]] == [[("d", 21, 3, None, None)]]


def test_partition_and_columns_are_filtered(lake: PlainLake) -> None:
    lake.land(2, {ORDERS: [(n + 10, "u", str(n), row(n, note="second")) for n in (1, 2, 3)]})
    schema = Lake(lake.paths).table("orders")._stream_schema(["note"])
    assert schema.names == ("id", "note")
    shares = []
    for number in range(2):
        batches = stream(lake, schema=schema, partition=Partition("mod", 2, (number,)))
        rows = [one for batch in read_all(batches, batches.begin())[0] for one in batch]
        shares.append(sorted((one["id"], one["note"]) for one in rows))
    assert shares == [[(2, "first"), (2, "second")], [(n, note) for n in (1, 3) for note in ("first", "second")]]


def test_added_column_is_null_in_older_rows(lake: PlainLake) -> None:
    wider = table_schema("public.orders", "id integer key", "total numeric(12,2)", "note text", "more: integer[]")
    lake.schema(wider, lsn=11, batch=2)
    lake.land(2, {wider: [(12, "c", "4", {**row(4), "more": "{1,2}"}), (13, "u", "1", {"id": "1", "more": "{3}"})]})
    batches = stream(lake, schema=Lake(lake.paths).table("orders")._stream_schema(None))
    rows = [one for batch in read_all(batches, batches.begin())[0] for one in batch]
    assert [(one["id"], one["more"], one["note"]) for one in sorted(rows, key=lambda one: one["_lsn"])] == [
        (1, None, "first"), (2, None, "first"), (3, None, "first"), (4, "{1,2}", "first"), (1, "{3}", "first"),
    ]


def test_removed_events_end_the_stream_by_name(lake: PlainLake) -> None:
    lake.land(2, {ORDERS: [(11, "d", "1", None)]})
    batches = stream(lake)
    _, at = read_all(batches, batches.begin())
    lake.land(3, {ORDERS: [(21, "d", "2", None)]})
    lake.land(4, {ORDERS: [(31, "d", "3", None)]})
    lake.fold(4)
    record_batch(lake.paths.events, Application.consolidation("shop"), 3)
    with pytest.raises(ConsumeError, match=r"table public\.orders: events after the checkpoint passed their retention"):
        stream(lake).read(at)
    # A new stream begins with the rows of now.
    batches = stream(lake)
    assert read_all(batches, batches.begin())[0] == []


def test_stream_without_events_is_not_ready(tmp_path: Path) -> None:
    with pytest.raises(StateNotReady, match="source shop: there are no events yet"):
        stream(PlainLake(tmp_path)).begin()


def test_auto_cdc_needs_a_primary_key(lake: PlainLake) -> None:
    lake.schema(KEYLESS)
    lake.land(2, {KEYLESS: [(11, "c", (), {"line": "one"})]})
    lake.fold(2)
    table = Lake(lake.paths).table("log")
    with pytest.raises(UsageError, match=r"table public\.log has no primary key"):
        table.auto_cdc()
    with pytest.raises(UsageError, match=r"table public\.log has no column lin"):
        table._stream_schema(["lin"])
    batches = stream(lake, schema=KEYLESS)
    assert [one["line"] for one in rows_of(batches.read(batches.begin())[0])] == ["one"]


def test_auto_cdc_names_keys_sequence_and_deletes() -> None:
    assert auto_cdc(ORDERS) == {
        "keys": ["id"], "sequence_by": "struct(_incarnation, _lsn, _seq)", "apply_as_deletes": "_op IN ('d', 't')",
        "except_column_list": list(EVENT_COLUMNS), "stored_as_scd_type": 1,
    }
