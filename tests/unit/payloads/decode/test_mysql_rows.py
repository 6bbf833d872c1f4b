"""Result rows of the text protocol: lengths of all widths, NULL, and what is refused. Types: test_mysql_values."""

from __future__ import annotations

import pytest

from dblake.base.core.errors import ReconcileError
from dblake.base.core.schema import Column, TableSchema
from dblake.payloads.decode.batch import decode
from tests.support.binlog_encode import result_row
from tests.unit.payloads.decode.landing_rows import batch_of, chunk_row, events_of

TEXT = "longtext character set utf8mb4"
ITEM = TableSchema("shop.item", (Column("id", "int", False, 1), Column("name", TEXT), Column("note", TEXT)))
PAIR = TableSchema("shop.pair", (Column("b", TEXT, False, 2), Column("a", "int", False, 1)))


def row(payload: bytes, **facts: object) -> dict[str, object]:
    return chunk_row(ITEM, payload, format="mysql_rows", **facts)


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b"\x011\x01a\x00", ["1", "a", ""]),
        (b"\x0242\xfb\xfb", ["42", None, None]),
        (b"\x011\xfa" + b"x" * 250 + b"\x01b", ["1", "x" * 250, "b"]),
        (b"\x011\xfc\xfb\x00" + b"x" * 251 + b"\x01b", ["1", "x" * 251, "b"]),
        (b"\x011\xfc\xff\xff" + b"x" * 65535 + b"\xfb", ["1", "x" * 65535, None]),
        (b"\x011\xfd\x00\x00\x01" + b"x" * 65536 + b"\x01b", ["1", "x" * 65536, "b"]),
        (b"\x011\xfe\x03\0\0\0\0\0\0\0abc\xfc\x01\x00d", ["1", "abc", "d"]),
    ],
)
def test_values_of_all_length_prefixes_read(payload: bytes, expected: list[str | None]) -> None:
    others = row(b"\x017\x01o\x01p", seq=2)
    events = events_of(decode(batch_of(row(payload, seq=0), others, row(payload, seq=6)), {ITEM.schema_id: ITEM}))
    assert [[v for _, v in e["after"]] for e in events] == [expected, ["7", "o", "p"], expected]
    assert [(e["op"], e["key"], e["before"], e["partial"]) for e in events] == [
        ("r", [("id", v)], None, False) for v in (expected[0], "7", expected[0])
    ]


def test_key_columns_in_key_order() -> None:
    payload = chunk_row(PAIR, result_row([b"x", b"1"]), format="mysql_rows")
    (event,) = events_of(decode(batch_of(payload), {PAIR.schema_id: PAIR}))
    assert event["key"] == [("a", "1"), ("b", "x")]


def test_rows_beyond_one_block_decoded() -> None:
    rows = [row(result_row([b"%d" % n, None if n % 3 else b"n" * (n % 400), b"z"]), seq=2 * n) for n in range(17_000)]
    events = events_of(decode(batch_of(*rows), {ITEM.schema_id: ITEM}))
    assert [(e["seq"], [v for _, v in e["after"]]) for e in events] == [
        (2 * n, [str(n), None if n % 3 else "n" * (n % 400), "z"]) for n in range(17_000)
    ]


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"", "does not consist of the 3 values"), (b"\x011\x01a", "does not consist of the 3 values"),
        (b"\x011\x01a\x01b\x01c", "does not consist of the 3 values"),
        (b"\x011\x01a\x09b", "does not consist of the 3 values"),
        (b"\x011\x01a\xfe\xff\xff\xff\xff\xff\xff\xff\xff", "does not consist of the 3 values"),
        (b"\x011\xff\x00", "a value has no length"), (b"\xfb\x01a\x01b", "a value of the primary key is NULL"),
    ],
)
def test_malformed_payload_rejected_by_name(payload: bytes, message: str) -> None:
    fine = row(b"\x017\x01o\x01p")
    with pytest.raises(ReconcileError, match=message) as refused:
        decode(batch_of(fine, row(payload, seq=8, batch=9), fine), {ITEM.schema_id: ITEM})
    assert "table shop.item:" in str(refused.value)
    assert "in mysql_rows at row 8 of chunk d1-3 in landing batch 9" in str(refused.value)


@pytest.mark.parametrize(
    ("spelling", "printed"),
    [("double", b"one"), ("float", b""), ("bit(9)", b"\x01"), ("int", b"4\xe9"), ("decimal(3,1)", b"one"),
     ("binary(2)", b"abc")],
)
def test_printed_value_not_of_type_rejected(spelling: str, printed: bytes) -> None:
    schema = TableSchema("shop.t", (Column("id", "int", False, 1), Column("v", spelling)))
    payload = chunk_row(schema, result_row([b"1", printed]), format="mysql_rows")
    with pytest.raises(ReconcileError, match="column v has a value that is not one of its type"):
        decode(batch_of(payload), {schema.schema_id: schema})
