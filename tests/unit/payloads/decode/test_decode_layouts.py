"""Batches as they come in practice: sliced, empty, in Spark's other layouts, of many tables at once, large."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dblake.base.core.schema import Column, TableSchema
from dblake.ingest.source.memory.encode import copy_line, pgoutput_delete, pgoutput_insert, pgoutput_update
from dblake.payloads.decode.batch import decode
from dblake.payloads.decode.columns import DECODED, DECODER_INPUT
from tests.support.binlog_encode import result_row
from tests.unit.payloads.decode.landing_rows import batch_of, chunk_row, events_of, log_row, schema_of

ITEM = schema_of("public.item", "id name", "id")
VARCHAR = "varchar(20) character set utf8mb4"
WIDE = schema_of("public.wide", "a b c d", "d a")
SCHEMAS = {s.schema_id: s for s in (ITEM, WIDE)}


def test_decode_empty_batch() -> None:
    decoded = decode(batch_of(), SCHEMAS)
    assert decoded.num_rows == 0
    assert decoded.schema == DECODED


@pytest.mark.parametrize("start", [0, 1, 3, 8, 9])
@pytest.mark.parametrize("kind", ["log", "chunk"])
def test_decode_slice_of_batch(start: int, kind: str) -> None:
    if kind == "log":
        rows = [log_row(ITEM, pgoutput_insert(1, [str(n), None if n % 3 else "ü"]), lsn=n) for n in range(20)]
    else:
        rows = [chunk_row(ITEM, copy_line([str(n), None if n % 3 else "ü"]), lsn=n) for n in range(20)]
    events = events_of(decode(batch_of(*rows).slice(start, 5), SCHEMAS))
    assert [(e["lsn"], e["after"]) for e in events] == [
        (n, [("id", str(n)), ("name", None if n % 3 else "ü")]) for n in range(start, start + 5)
    ]


def test_decode_slice_of_slices_of_several_tables() -> None:
    rows = [
        log_row(WIDE if n % 2 else ITEM, pgoutput_insert(1, list("wxyz") if n % 2 else [str(n), "a"]), lsn=n)
        for n in range(12)
    ]
    events = events_of(decode(batch_of(*rows).slice(2, 9).slice(3, 4), SCHEMAS))
    assert [(e["lsn"], e["table"], e["key"]) for e in events] == [
        (5, "public.wide", [("d", "z"), ("a", "w")]), (6, "public.item", [("id", "6")]),
        (7, "public.wide", [("d", "z"), ("a", "w")]), (8, "public.item", [("id", "8")]),
    ]


def test_decode_mixed_kinds_formats_and_tables() -> None:
    rows = [
        chunk_row(ITEM, b"1\ta\n", lsn=1), log_row(WIDE, pgoutput_delete(1, ["1", None, None, "2"]), lsn=2),
        log_row(ITEM, b"", kind="truncate", lsn=3), log_row(ITEM, pgoutput_insert(1, ["3", "c"]), lsn=4),
        log_row(ITEM, pgoutput_update(1, ["5", "c"], ["3", None]), lsn=5), chunk_row(WIDE, b"1\t2\t3\t4\n", lsn=6),
        log_row(ITEM, pgoutput_update(1, ["5", "d"]), lsn=7), log_row(ITEM, pgoutput_delete(1, ["5", "d"], "O"), lsn=8),
    ]
    assert [(e["lsn"], e["seq"], e["op"], e["key"]) for e in events_of(decode(batch_of(*rows), SCHEMAS))] == [
        (1, 4, "r", [("id", "1")]), (2, 4, "d", [("d", "2"), ("a", "1")]), (3, 4, "t", None),
        (4, 4, "c", [("id", "3")]), (5, 4, "d", [("id", "3")]), (5, 5, "c", [("id", "5")]),
        (6, 4, "r", [("d", "4"), ("a", "1")]), (7, 4, "u", [("id", "5")]), (8, 4, "d", [("id", "5")]),
    ]


@pytest.mark.parametrize(
    ("binary", "string"),
    [(pa.large_binary(), pa.large_string()), (pa.binary_view(), pa.string_view()),
     (pa.binary(), pa.dictionary(pa.int32(), pa.string()))],
)
def test_decode_other_arrow_layouts(binary: pa.DataType, string: pa.DataType) -> None:
    rows = [
        log_row(ITEM, pgoutput_insert(1, ["1", "a value that is longer than a view's inline room"])),
        chunk_row(ITEM, b"2\tb\n"),
    ]
    plain = batch_of(*rows)
    layouts = {pa.binary(): binary, pa.string(): string, pa.timestamp("us", "UTC"): pa.timestamp("us", "Europe/Berlin")}
    other = plain.cast(pa.schema([pa.field(f.name, layouts.get(f.type, f.type)) for f in DECODER_INPUT]))
    assert other.schema != plain.schema
    assert decode(other, SCHEMAS).equals(decode(plain, SCHEMAS))


def test_decode_extra_columns_in_any_order() -> None:
    plain = batch_of(log_row(ITEM, pgoutput_insert(1, ["1", "a"])))
    shuffled = pa.RecordBatch.from_arrays(
        [*plain.columns[::-1], pa.array(["x"])], names=[*plain.schema.names[::-1], "landed_by"]
    )
    assert decode(shuffled, SCHEMAS).equals(decode(plain, SCHEMAS))


def test_pgoutput_rows_beyond_one_block_keep_values() -> None:
    count = 20_001
    rows = batch_of(*(log_row(ITEM, pgoutput_insert(1, [str(n), "x" * (n % 7)]), lsn=n) for n in range(count)))
    decoded = decode(rows, SCHEMAS)
    assert decoded.column("after").to_pylist() == [[("id", str(n)), ("name", "x" * (n % 7))] for n in range(count)]


def test_few_undecoded_values_among_many_marked() -> None:
    count = 5_000
    rows = batch_of(
        *(chunk_row(ITEM, copy_line([str(n), b"\xe9" if n in (0, 1023, 1024, 4_999) else "é"])) for n in range(count))
    )
    decoded = decode(rows, SCHEMAS).to_pylist()
    assert [(n, e["undecoded"], e["after"][1]) for n, e in enumerate(decoded) if e["after"] != [
        ("id", str(n)), ("name", "é")]] == [(n, ["name"], ("name", "\\xe9")) for n in (0, 1023, 1024, 4_999)]


@pytest.mark.parametrize("payload_format", ["copy", "mysql_rows"])
def test_keys_alone_equal_keys_of_whole_rows(payload_format: str) -> None:
    columns = (Column("a", VARCHAR, False, 2), Column("b", VARCHAR), Column("c", "int"), Column("d", "int", False, 1))
    schema, encode = TableSchema("shop.wide", columns), {"copy": copy_line, "mysql_rows": result_row}[payload_format]
    # Escapes, NULL and text that is not UTF-8 outside the key; a tab inside it.
    rows = [[b"k\t%d" % n, b"\\\n" if n % 2 else b"\xff", None if n % 3 else b"7", b"%d" % n] for n in range(300)]
    batch = batch_of(*(chunk_row(schema, encode(row), format=payload_format, seq=2 * n) for n, row in enumerate(rows)))
    whole, keys = (decode(batch, {schema.schema_id: schema}, keys_alone=alone) for alone in (False, True))
    assert keys.column("key").equals(whole.column("key"))
    assert keys.column("key")[5].as_py() == [("d", "5"), ("a", "k\t5")]
    assert {len(row["after"]) for row in keys.to_pylist()} == {2}
    assert keys.drop_columns(["after", "undecoded"]).equals(whole.drop_columns(["after", "undecoded"]))
