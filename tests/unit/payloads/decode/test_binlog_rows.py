"""Rows events: several rows in one, images before and after, columns left out, keys that move; and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from dblake.base.core.errors import ReconcileError
from dblake.base.core.schema import Column, TableSchema
from dblake.payloads.decode.batch import decode
from tests.support.binlog_encode import DELETE, UPDATE, WRITE, Row, rows_event
from tests.unit.payloads.decode.landing_rows import batch_of, events_of, log_row

TEXT = "varchar(80) character set utf8mb4"
ITEM = TableSchema("shop.item", (Column("id", "int", False, 1), Column("name", TEXT), Column("n", "bigint unsigned")))
LOOSE = TableSchema("shop.loose", (Column("x", "int"), Column("y", TEXT)))
PAIR = TableSchema("shop.pair", (Column("b", TEXT, False, 2), Column("x", "int"), Column("a", "int", False, 1)))
WIDE = TableSchema("shop.wide", (Column("id", "int", False, 1), *(Column(f"c{n}", ("int", TEXT)[n % 2])
                                                                 for n in range(260))))
WRITE_1, UPDATE_1, DELETE_1 = 23, 24, 25


def event(schema: TableSchema, number: int, images: Sequence[Row], **options: Any) -> dict[str, Any]:
    payload = rows_event(number, [c.type for c in schema.columns], images, **options)
    return log_row(schema, payload, format="binlog_rows", seq=3 << 20)


def decoded(*rows: dict[str, Any]) -> list[dict[str, Any]]:
    schemas = {s.schema_id: s for s in (ITEM, LOOSE, PAIR, WIDE)}
    return events_of(decode(batch_of(*rows), schemas))


Image = dict[str, str | None] | None


class Event(NamedTuple):
    step: int
    op: str
    key: Image
    before: Image
    after: Image
    partial: bool = False
    last: bool = True


class Case(NamedTuple):
    name: str
    row: dict[str, Any]
    events: list[Event]


ONE, TWO = {"id": "1", "name": "a", "n": None}, {"id": "2", "name": None, "n": "18446744073709551615"}
A, B = list(ONE.values()), list(TWO.values())
NEW_A = {"id": "1", "name": "é", "n": None}

CASES = [
    Case("insert", event(ITEM, WRITE, [A]), [Event(0, "c", {"id": "1"}, None, ONE)]),
    Case("version 1, as MariaDB sends it", event(ITEM, WRITE_1, [A]), [Event(0, "c", {"id": "1"}, None, ONE)]),
    Case("data of version 2 before the columns", event(ITEM, WRITE, [A], extra=b"\x01\x05\x00"),
         [Event(0, "c", {"id": "1"}, None, ONE)]),
    Case(
        "several inserts: two numbers apart, the last one closes", event(ITEM, WRITE, [A, B, A]),
        [Event(0, "c", {"id": "1"}, None, ONE, last=False), Event(2, "c", {"id": "2"}, None, TWO, last=False),
         Event(4, "c", {"id": "1"}, None, ONE)],
    ),
    Case(
        "deletes", event(ITEM, DELETE, [A, B]),
        [Event(0, "d", {"id": "1"}, ONE, None, last=False), Event(2, "d", {"id": "2"}, TWO, None)],
    ),
    Case("delete, version 1", event(ITEM, DELETE_1, [B]), [Event(0, "d", {"id": "2"}, TWO, None)]),
    Case("update", event(ITEM, UPDATE, [A, ["1", "é", None]]), [Event(0, "u", {"id": "1"}, ONE, NEW_A)]),
    Case("update, version 1", event(ITEM, UPDATE_1, [A, ["1", "é", None]]), [Event(0, "u", {"id": "1"}, ONE, NEW_A)]),
    Case(
        "an update that moves the key, among others", event(ITEM, UPDATE, [A, ["1", "é", None], A, B, B, B]),
        [Event(0, "u", {"id": "1"}, ONE, NEW_A, last=False), Event(2, "d", {"id": "1"}, ONE, None, last=False),
         Event(3, "c", {"id": "2"}, None, TWO, last=False), Event(4, "u", {"id": "2"}, TWO, TWO)],
    ),
    Case(
        "the last update moves the key: only its create closes", event(ITEM, UPDATE, [A, B]),
        [Event(0, "d", {"id": "1"}, ONE, None, last=False), Event(1, "c", {"id": "2"}, None, TWO)],
    ),
    Case(
        "letter case is another key", event(PAIR, UPDATE, [["k", None, "1"], ["K", None, "1"]]),
        [Event(0, "d", {"a": "1", "b": "k"}, {"b": "k", "x": None, "a": "1"}, None, last=False),
         Event(1, "c", {"a": "1", "b": "K"}, None, {"b": "K", "x": None, "a": "1"})],
    ),
    Case(
        "MINIMAL update: the key before, the change after",
        event(ITEM, UPDATE, [A, ["1", "é", None]], before=[True, False, False], after=[False, True, False]),
        [Event(0, "u", {"id": "1"}, {"id": "1"}, {"id": "1", "name": "é"}, partial=True)],
    ),
    Case(
        "MINIMAL update to NULL: NULL is sent, the rest is not",
        event(ITEM, UPDATE, [A, ["1", None, "7"]], before=[True, False, False], after=[False, True, False]),
        [Event(0, "u", {"id": "1"}, {"id": "1"}, {"id": "1", "name": None}, partial=True)],
    ),
    Case(
        "MINIMAL update of the key",
        event(ITEM, UPDATE, [A, B], before=[True, False, False], after=[True, False, False]),
        [Event(0, "d", {"id": "1"}, {"id": "1"}, None, last=False),
         Event(1, "c", {"id": "2"}, None, {"id": "2"}, partial=True)],
    ),
    Case(
        "NOBLOB update: what neither image has is absent",
        event(ITEM, UPDATE, [A, ["1", None, "5"]], before=[True, False, True], after=[True, False, True]),
        [Event(0, "u", {"id": "1"}, {"id": "1", "n": None}, {"id": "1", "n": "5"}, partial=True)],
    ),
    Case(
        "what only the before image has, the update left as it was",
        event(ITEM, UPDATE, [A, ["1", "x", "5"]], after=[False, False, True]),
        [Event(0, "u", {"id": "1"}, ONE, {"id": "1", "name": "a", "n": "5"})],
    ),
    Case(
        "MINIMAL delete", event(ITEM, DELETE, [A], before=[True, False, False]),
        [Event(0, "d", {"id": "1"}, {"id": "1"}, None)],
    ),
    Case(
        "insert without a column", event(ITEM, WRITE, [A], after=[True, True, False]),
        [Event(0, "c", {"id": "1"}, None, {"id": "1", "name": "a"}, partial=True)],
    ),
    Case("no primary key, no key", event(LOOSE, UPDATE, [["1", "a"], ["2", "b"]]),
         [Event(0, "u", None, {"x": "1", "y": "a"}, {"x": "2", "y": "b"})]),
    Case("no rows", event(ITEM, WRITE, []), []),
    Case(
        "more columns than one byte counts", event(WIDE, WRITE, [["1", *("7" if n % 3 else None for n in range(260))]]),
        [Event(0, "c", {"id": "1"}, None, {"id": "1", **{f"c{n}": "7" if n % 3 else None for n in range(260)}})],
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_binlog_rows_rule(case: Case) -> None:
    def image(entries: list[tuple[str, str | None]] | None) -> Image:
        return None if entries is None else dict(entries)

    assert [
        Event(e["seq"] - (3 << 20), e["op"], image(e["key"]), image(e["before"]), image(e["after"]), e["partial"],
              e["last_in_txn"])
        for e in decoded(case.row)
    ] == case.events


def test_mixed_events_equal_each_alone() -> None:
    rows = [{**case.row, "lsn": n, "last_in_txn": n % 3 == 0} for n, case in enumerate(CASES * 3)]
    alone = [e for row in rows for e in decoded(row)]
    assert decoded(*rows) == alone


def test_rows_beyond_one_block_decoded() -> None:
    images = [[str(n), f"name {n}" if n % 7 else None, str(n)] for n in range(20_000)]
    events = decoded(event(ITEM, WRITE, images))
    assert [(e["seq"] - (3 << 20), e["last_in_txn"], [v for _, v in e["after"]]) for e in events] == [
        (2 * n, n == 19_999, image) for n, image in enumerate(images)
    ]


def test_update_reuses_unchanged_columns() -> None:
    types = {"i": "int", "d": "decimal(30,10)", "t": "datetime(6)", "f": "double",
             "e": "enum('a','b') character set ascii"}
    schema = TableSchema("shop.item", (Column("id", "int", False, 1), *(Column(n, t) for n, t in types.items())))
    old: list[Row] = [
        [str(n), str(n), f"{n}.0000000000", f"2026-01-02 03:04:05.{n:06d}", str(n), "a"] for n in range(50)
    ]
    zero = "0000-00-00 00:00:00.000000"
    new: list[Row] = [
        [row[0], row[1] if n % 5 else "-1", row[2] if n % 7 else None, row[3] if n % 9 else zero,
         None if n % 2 else row[4], "b" if n == 3 else "a"]
        for n, row in enumerate(old)
    ]
    pairs = [image for pair in zip(old, new, strict=True) for image in pair]
    payload = rows_event(UPDATE, [c.type for c in schema.columns], pairs)
    row = log_row(schema, payload, format="binlog_rows", seq=0)
    events = events_of(decode(batch_of(row), {schema.schema_id: schema}))
    assert [[v for _, v in e["before"]] for e in events] == old
    assert [[v for _, v in e["after"]] for e in events] == new


GOOD = rows_event(WRITE, [c.type for c in ITEM.columns], [A, B])
ENUM = TableSchema("shop.enum", (Column("id", "int", False, 1), Column("e", "enum('a') character set ascii")))
ENUM_ROW = rows_event(WRITE, ["int", "tinyint"], [["1", "2"]])
JSON = TableSchema("shop.json", (Column("id", "int", False, 1), Column("j", "json")))
JSON_ROW = rows_event(WRITE, ["int", "json"], [["1", "00ffffff"]])

REFUSED = [
    ("nothing", ITEM, b"", "cut short"), ("half a header", ITEM, GOOD[:12], "cut short"),
    ("half a bitmap", ITEM, GOOD[:30], "cut short"),
    ("another kind of event", ITEM, GOOD[:4] + b"\x13" + GOOD[5:], "no write, update or delete rows event"),
    ("partial JSON", ITEM, GOOD[:4] + b"\x27" + GOOD[5:], "no write, update or delete rows event"),
    ("another number of columns", LOOSE, GOOD, "columns, its schema has 2"),
    ("a row cut short", ITEM, GOOD[:-1], "a row reaches past the end"),
    ("a byte too many", ITEM, GOOD + b"\0", "a row reaches past the end"),
    ("a length past the end", LOOSE, rows_event(WRITE, ["int", TEXT], [["1", None]])[:-5] + b"\0\1\0\0\0\xf0",
     "a row reaches past the end"),
    ("rows of no columns", ITEM, rows_event(WRITE, ["int", TEXT, "int"], [A], after=[False] * 3) + b"\0",
     "without columns"),
    ("an insert without its key", ITEM,
     rows_event(WRITE, [c.type for c in ITEM.columns], [A], after=[False, True, True]),
     "a value of the primary key was not sent"),
    ("a label there is none of", ENUM, ENUM_ROW, "column e has a value that is not one of its type"),
    ("no JSON", JSON, JSON_ROW, "column j has a value that is not one of its type"),
]


@pytest.mark.parametrize(("name", "schema", "payload", "message"), REFUSED, ids=[r[0] for r in REFUSED])
def test_malformed_payload_rejected_by_name(name: str, schema: TableSchema, payload: bytes, message: str) -> None:
    fine = log_row(schema, rows_event(WRITE, ["int", *["tinyint"] * (len(schema.columns) - 1)],
                                      [["5", *[None] * (len(schema.columns) - 1)]]), format="binlog_rows")
    bad = log_row(schema, payload, format="binlog_rows", lsn=4712, batch=8)
    with pytest.raises(ReconcileError, match=message) as refused:
        decode(batch_of(fine, bad, fine), {schema.schema_id: schema})
    assert f"table {schema.table}:" in str(refused.value)
    assert "position 1/4712/4 in landing batch 8" in str(refused.value)
