"""Where the stream cannot simply continue: redecode, a new incarnation; and values that only events hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from dblake.base.core.errors import StateNotReady
from dblake.base.lake.log import Application, commit_files, newest_batch, record_batch
from dblake.base.lake.query import query_rows
from dblake.serve.consume.filters import Selection
from dblake.serve.consume.model import Transaction
from dblake.transform.events.files import EVENT_COLUMNS, write_event_file
from tests.support.backends import Row
from tests.support.consumers import LEFT, Shop, describe, folded_shop
from tests.support.schemas import table_schema

_COUNTS = ("same", "different", "only_old", "only_new")
_LEDGER = pa.schema([
    *((name, pa.int64()) for name in ("run", "first", "last", "batch", *_COUNTS)), ("of", pa.string()),
    ("table", pa.string()), ("op", pa.string()),
])

#: source type, text, whether state holds it
VALUES = [
    ("smallint", "-32768"), ("bigint", "9223372036854775807"), ("boolean", "t"), ("boolean", "f"),
    ("real", "1.5"), ("double precision", "Infinity"), ("numeric(10,2)", "-12345678.90"), ("numeric(10,2)", "NaN"),
    ("numeric(2,5)", "0.00012"), ("numeric", "1.5"), ("numeric", "0.1234567890123456789"), ("date", "2024-02-29"),
    ("date", "infinity"), ("timestamp without time zone", "9999-12-31 23:59:59.999999"),
    ("timestamp without time zone", "0044-03-15 00:00:00 BC"), ("timestamp with time zone", "2024-01-01 12:34:56+00"),
    ("timestamp with time zone", "-infinity"), ("bytea", "\\xdeadbeef"), ("uuid", "a0eebc99-9c0b-4ef8"),
    ("integer[]", "{1,NULL,3}"), ("text", 'käse "x"\n'),
]
TYPES = table_schema("public.types", "a integer key", "b text key", *(f"c{n} {v[0]}" for n, v in enumerate(VALUES)))


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return folded_shop(tmp_path, 4)


def read(shop: Shop, **settings: Any) -> list[Transaction]:
    with shop.subscribe(**settings) as subscription:
        return list(subscription)


def replace_events(shop: Shop, run: int, first: int, **counts: int) -> None:
    """Record a redecode run that found these differences in ``public.left``, as ``redecode`` records it."""
    batch = newest_batch(shop.paths.events, Application.reconcile("shop"))
    row = {"run": run, "first": first, "last": batch, "of": "events", "table": LEFT.table, "op": "u", "batch": first}
    write_deltalake(
        shop.paths.redecoded, pa.Table.from_pylist([row | dict.fromkeys(_COUNTS, 0) | counts], _LEDGER), mode="append"
    )
    record_batch(shop.paths.events, Application.redecode("shop"), run)


def test_replaced_events_are_announced_then_bootstrap(shop: Shop) -> None:
    checkpoint = read(shop)[-1].checkpoint
    replace_events(shop, 1, 1, only_new=2)
    with pytest.raises(StateNotReady, match=r"table public\.left: events were decoded again"):
        read(shop, checkpoint=checkpoint)
    record_batch(shop.paths.state("public", "left"), Application.redecode("shop"), 1)
    found = read(shop, checkpoint=checkpoint)
    assert describe(found)[:2] == ["redecoded public.left", "bootstrap_started"]
    assert describe(found)[-1] == "bootstrap_finished"
    assert read(shop, checkpoint=found[-1].checkpoint) == []
    # It ends after the announcement: the next run announces it again.
    assert describe(read(shop, checkpoint=found[0].checkpoint))[:2] == ["redecoded public.left", "bootstrap_started"]


def test_replaced_batch_of_last_transaction_is_announced(shop: Shop) -> None:
    checkpoint = read(shop)[-1].checkpoint
    shop.move(3)
    shop.land()
    shop.reconcile()
    last = read(shop, checkpoint=checkpoint)[-1]
    (row,) = query_rows(shop.paths.events, "SELECT max(batch) AS batch FROM t")
    replace_events(shop, 1, row["batch"], only_new=1)
    shop.fold()
    record_batch(shop.paths.state("public", "left"), Application.redecode("shop"), 1)
    assert describe(read(shop, checkpoint=last.checkpoint))[0] == "redecoded public.left"


def test_equal_or_unread_replacement_is_not_announced(shop: Shop) -> None:
    checkpoint = read(shop)[-1].checkpoint
    replace_events(shop, 1, 1, same=100)
    assert read(shop, checkpoint=checkpoint) == []
    batch = newest_batch(shop.paths.events, Application.reconcile("shop"))
    replace_events(shop, 2, batch + 1, different=1)
    assert read(shop, checkpoint=checkpoint) == []
    replace_events(shop, 3, 1, different=1)
    right = read(shop, selection=Selection(["public.right"]))
    assert read(shop, selection=Selection(["public.right"]), checkpoint=right[-1].checkpoint) == []


def test_live_subscription_waits_for_rebuilt_state(shop: Shop) -> None:
    checkpoint = read(shop)[-1].checkpoint
    replace_events(shop, 1, 1, different=1)
    with shop.subscribe(checkpoint=checkpoint, until_caught_up=False, poll_seconds=0.01) as subscription:
        batches = subscription.batches(1000)
        assert [next(batches), next(batches)] == [[], []]
        record_batch(shop.paths.state("public", "left"), Application.redecode("shop"), 1)
        assert describe(next(batch for batch in batches if batch))[0] == "redecoded public.left"


def begin_incarnation(shop: Shop) -> int:
    """Append an event of the second incarnation to the events; return its batch."""
    table = DeltaTable(shop.paths.events)
    rows = table.to_pyarrow_table()
    (left, *_) = [row for row in rows.to_pylist() if row["table"] == LEFT.table and row["op"] == "u"]
    batch = newest_batch(shop.paths.events, Application.reconcile("shop")) + 1
    row = left | {"incarnation": 2, "lsn": 5, "seq": 0, "batch": batch, "last_in_txn": True}
    events = pa.RecordBatch.from_pylist([row], EVENT_COLUMNS)
    file = write_event_file(shop.paths.events, [events])
    commit_files(shop.paths.events, table, Application.reconcile("shop"), batch, [file])
    return batch


def record_incarnation(shop: Shop, batch: int, status: str) -> None:
    """Append to the ledger how the second incarnation begins, as reconcile does behind the events."""
    ledger = DeltaTable(shop.paths.windows)
    row = {"incarnation": 2, "lease_epoch": 2, "status": status, "reason": "-", "batch": batch}
    rows = pa.Table.from_pylist([row], pa.schema(ledger.schema().to_arrow()))
    write_deltalake(ledger, rows, mode="append")
    record_batch(shop.paths.windows, Application.reconcile("shop"), batch)


@pytest.mark.parametrize("tables", [["*.*"], ["public.right"]], ids=["with its events", "without"])
@pytest.mark.parametrize(("status", "controls"), [("gap", ["gap", "incarnation"]), ("moved", ["incarnation"])])
def test_new_incarnation_is_announced_then_events(
    shop: Shop, tables: list[str], status: str, controls: list[str]
) -> None:
    """A gap is one only if the ledger does not have the incarnation as the continuation of the one before."""
    selection = Selection(tables)
    checkpoint = read(shop, selection=selection)[-1].checkpoint
    record_incarnation(shop, begin_incarnation(shop), status)
    found = read(shop, checkpoint=checkpoint, selection=selection)
    assert describe(found)[: len(controls)] == controls
    places = ["2/0/0"] * len(controls) + (["2/5/0"] if tables == ["*.*"] else [])
    assert [str(one.position) for one in found] == places
    assert read(shop, checkpoint=found[-1].checkpoint, selection=selection) == []
    # A consumer that ends after the gap meets it again, with the incarnation.
    rest = describe(found) if status == "gap" else describe(found)[1:]
    assert describe(read(shop, checkpoint=found[0].checkpoint, selection=selection)) == rest


def test_new_incarnation_waits_for_its_ledger_row(shop: Shop) -> None:
    checkpoint = read(shop)[-1].checkpoint
    batch = begin_incarnation(shop)
    assert read(shop, checkpoint=checkpoint) == []
    record_incarnation(shop, batch, "moved")
    assert describe(read(shop, checkpoint=checkpoint))[0] == "incarnation"


def test_bootstrap_of_removed_versions_begins_again(shop: Shop) -> None:
    """The consumer was away for longer than maintenance keeps files."""
    found = read(shop)
    place = next(number for number, one in enumerate(found) if one.events)
    old = {path: Path(shop.paths.state("public", "left"), path).exists() for path in state_files(shop)}
    shop.move(9)
    shop.land()
    shop.reconcile()
    shop.fold()
    for path in old.keys() - set(state_files(shop)):
        Path(shop.paths.state("public", "left"), path).unlink()
    again = describe(read(shop, checkpoint=found[place].checkpoint))
    assert again[:2] == ["gap", "bootstrap_started"] and again[-1] == "bootstrap_finished"


def state_files(shop: Shop) -> list[str]:
    actions = pa.table(DeltaTable(shop.paths.state("public", "left")).get_add_actions(flatten=True))
    paths: list[str] = actions["path"].to_pylist()
    return paths


def test_bootstrap_has_the_text_of_the_source(tmp_path: Path) -> None:
    """State types its columns; a bootstrap renders them, and finds what a type cannot hold in events."""
    shop = Shop(tmp_path)
    shop.backend.create(TYPES)
    rows: list[Row] = [
        {"a": "1", "b": 'q"x', **{f"c{n}": value[1] for n, value in enumerate(VALUES)}},
        {"a": "2", "b": "", **{f"c{n}": None for n in range(len(VALUES))}},
    ]
    with shop.backend.begin() as transaction:
        for row in rows:
            transaction.insert(TYPES.table, row)
    with shop.backend.begin() as transaction:
        transaction.update(TYPES.table, {"a": "1"}, {"c0": "7"})
    rows[0]["c0"] = "7"
    shop.land()
    shop.reconcile()
    shop.fold()
    found = read(shop, selection=Selection([TYPES.table]))
    events = [event for one in found for event in one.events]
    assert sorted((dict(event.after or {}) for event in events), key=lambda row: str(row["a"])) == rows
    assert [dict(event.key or {}) for event in events] == [{"a": row["a"], "b": row["b"]} for row in rows]


def test_tables_without_key_are_delivered(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    keyless = table_schema("public.keyless", "v integer", "w text")
    shop.backend.create(keyless)
    with shop.backend.begin() as transaction:
        for _ in range(3):
            transaction.insert(keyless.table, {"v": "1", "w": None})
    shop.land()
    shop.reconcile()
    shop.fold()
    events = [event for one in read(shop, selection=Selection([keyless.table])) for event in one.events]
    assert [(event.op, event.key, dict(event.after or {})) for event in events] == [
        ("r", None, {"v": "1", "w": None})
    ] * 3
