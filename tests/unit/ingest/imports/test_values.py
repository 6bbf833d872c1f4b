"""Typed and textual values of files, as the text that each database's chunks land."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from dblake.base.core.errors import Unsupported
from dblake.base.core.schema import Column, TableSchema
from dblake.ingest.imports import mysql_values, postgres_values
from dblake.landing.columns import COPY, MYSQL_ROWS
from dblake.payloads.decode.batch import decode
from dblake.payloads.decode.columns import DECODER_INPUT

UTC, PLUS_2 = dt.UTC, dt.timezone(dt.timedelta(hours=2))
NOON = dt.datetime(2026, 1, 2, 12, 0, 0, 120000)
_F32 = pa.array([1e5, 1234567, 0.1, 1e-5], pa.float32())

POSTGRES = [
    ("integer", ["007", "-0", None], ["7", "0", None]),
    ("bigint", pa.array([1.0, None]), ["1", None]),
    ("numeric(10,2)", ["1.5", "1", None], ["1.50", "1.00", None]),
    ("numeric(10,2)", [Decimal("1.500"), Decimal("-2.000")], ["1.50", "-2.00"]),
    ("numeric(9,8)", [Decimal("0.00000001")], ["0.00000001"]),
    ("numeric", ["1.500", "NaN"], ["1.500", "NaN"]),
    ("boolean", ["true", "F", "1", None], ["t", "f", "t", None]),
    ("boolean", [True, False], ["t", "f"]),
    ("double precision", [1e15, 1e14, 0.0001, 0.00001, 1.5, -0.0, float("nan"), float("-inf"), 1.2345678901234568e17],
     ["1e+15", "100000000000000", "0.0001", "1e-05", "1.5", "-0", "NaN", "-Infinity", "1.2345678901234568e+17"]),
    ("double precision", [0.00012345, -0.000099, 123456.75, None], ["0.00012345", "-9.9e-05", "123456.75", None]),
    ("real", _F32, ["100000", "1.234567e+06", "0.1", "1e-05"]),
    ("date", [dt.date(2026, 1, 2)], ["2026-01-02"]),
    ("date", ["0044-03-15 BC", "infinity"], ["0044-03-15 BC", "infinity"]),
    ("timestamp without time zone", [NOON, NOON.replace(microsecond=0)],
     ["2026-01-02 12:00:00.12", "2026-01-02 12:00:00"]),
    ("timestamp without time zone", ["2026-01-02T12:00:00.120"], ["2026-01-02 12:00:00.12"]),
    ("timestamp(3) with time zone", [NOON.replace(tzinfo=PLUS_2)], ["2026-01-02 10:00:00.12+00"]),
    ("timestamp with time zone", ["2026-01-02 12:00:00+02", "2026-01-02T12:00:00Z"],
     ["2026-01-02 10:00:00+00", "2026-01-02 12:00:00+00"]),
    ("time without time zone", [dt.time(1, 2, 3, 400000)], ["01:02:03.4"]),
    ("bytea", [b"\x00\xff", None], [r"\x00ff", None]),
    ("bytea", [r"\x00FF"], [r"\x00ff"]),
    ("uuid", ["0B0E0D0C-0000-0000-0000-00000000000A"], ["0b0e0d0c-0000-0000-0000-00000000000a"]),
    ("character(3)", ["a"], ["a  "]),
    ("text", ["a\tb\\\n", "\\N", "", None], ["a\tb\\\n", "\\N", "", None]),
    ("jsonb", ['{"a": 1}'], ['{"a": 1}']),
]

MYSQL = [
    ("int", ["007", None], ["7", None]),
    ("bigint unsigned", ["18446744073709551615"], ["18446744073709551615"]),
    ("tinyint", [True, False], ["1", "0"]),
    ("decimal(10,2)", ["1.5", "-3"], ["1.50", "-3.00"]),
    ("float", ["0.1"], ["0.1"]),
    ("double", [1.5, 1e20], ["1.5", "1e+20"]),
    ("bit(10)", ["0000000101", None], ["0000000101", None]),
    ("bit(1)", [True, False], ["1", "0"]),
    ("binary(3)", [b"ab"], [r"\x616200"]),
    ("blob", [r"\x00ff", None], [r"\x00ff", None]),
    ("datetime(3)", [NOON], ["2026-01-02 12:00:00.120"]),
    ("datetime", ["0000-00-00 00:00:00", "2026-01-02 12:00:00"], ["0000-00-00 00:00:00", "2026-01-02 12:00:00"]),
    ("timestamp", ["2026-01-02T12:00:00+02:00"], ["2026-01-02 10:00:00"]),
    ("time(1)", [dt.time(1, 2, 3, 400000)], ["01:02:03.4"]),
    ("date", [dt.date(2026, 1, 2)], ["2026-01-02"]),
    ("year", ["2026"], ["2026"]),
    ("varchar(300) character set latin1", ["é€", "x" * 300, None], ["é€", "x" * 300, None]),
    ("char(5) character set utf8mb4", ["ä "], ["ä"]),
    ("longtext character set utf8mb4", ["日" * 30_000], ["日" * 30_000]),
]


def array(values: Any) -> pa.Array:
    return values if isinstance(values, pa.Array) else pa.array(values)


def decoded(payload: pa.BinaryArray, format_: str, type_: str) -> list[str | None]:
    """Return the second column of payloads as events hold it."""
    schema = TableSchema("s.t", (Column("id", "int", False, 1), Column("v", type_)))
    count = len(payload)
    columns = {
        "kind": pa.repeat("chunk", count), "table": pa.repeat("s.t", count), "format": pa.repeat(format_, count),
        "schema_id": pa.repeat(schema.schema_id, count), "seq": pa.array(range(count)), "payload": payload,
        "chunk_id": pa.repeat("c", count),
    }
    rows = pa.record_batch(
        [columns[f.name] if f.name in columns else pa.nulls(count, f.type) for f in DECODER_INPUT], schema=DECODER_INPUT
    )
    images = decode(rows, {schema.schema_id: schema}).sort_by("seq")["after"].to_pylist()
    return [dict(image)["v"] for image in images]


def named(cases: list[Any]) -> list[Any]:
    return [pytest.param(*case, id=f"{case[0]}-{array(case[1]).type}") for case in cases]


@pytest.mark.parametrize(("type_", "values", "expected"), named(POSTGRES))
def test_postgres_text_equals_copy(type_: str, values: Any, expected: list[str | None]) -> None:
    text = postgres_values.to_text(array(values), Column("v", type_))
    assert text.to_pylist() == expected
    ids = pa.array([str(number) for number in range(len(text))])
    lines = postgres_values.copy_lines([postgres_values.escaped(each) for each in (ids, text)])
    assert decoded(lines, COPY, type_) == expected


@pytest.mark.parametrize(("type_", "values", "expected"), named(MYSQL))
def test_mysql_bytes_decode_to_canonical_text(type_: str, values: Any, expected: list[str | None]) -> None:
    ids = pa.array([str(number).encode() for number in range(len(array(values)))], pa.binary())
    rows = mysql_values.result_rows([ids, mysql_values.to_bytes(array(values), Column("v", type_))])
    assert decoded(rows, MYSQL_ROWS, type_) == expected


@pytest.mark.parametrize(
    ("convert", "type_", "values"),
    [
        (postgres_values.to_text, "integer", ["1.5"]),
        (postgres_values.to_text, "integer", [1.5]),
        (postgres_values.to_text, "numeric(10,2)", ["1.555"]),
        (postgres_values.to_text, "boolean", ["maybe"]),
        (postgres_values.to_text, "timestamp with time zone", ["2026-01-02 12:00:00"]),
        (postgres_values.to_text, "timestamp with time zone", [NOON]),
        (postgres_values.to_text, "timestamp without time zone", pa.array([1], pa.timestamp("ns"))),
        (postgres_values.to_text, "bytea", ["abc"]),
        (postgres_values.to_text, "text", [1]),
        (mysql_values.to_bytes, "datetime", [NOON]),
        (mysql_values.to_bytes, "varchar(10) character set latin1", ["日"]),
        (mysql_values.to_bytes, "bit(2)", ["2"]),
    ],
)
def test_value_without_exact_text_is_rejected(convert: Any, type_: str, values: Any) -> None:
    with pytest.raises(Unsupported, match=f"column v of type {re.escape(type_)}: "):
        convert(array(values), Column("v", type_))


def test_copied_moments_become_utc() -> None:
    cells = pa.array([b"2026-01-02 12:00:00.5+02", b"\\N", b"2026-01-02 12:00:00+00"], pa.binary())
    converted = postgres_values.copied_to_text(cells, Column("v", "timestamp with time zone"))
    assert converted.to_pylist() == [b"2026-01-02 10:00:00.5+00", b"\\N", b"2026-01-02 12:00:00+00"]


@pytest.mark.parametrize("type_", ["float", "varchar(10) character set gbk", "text character set utf16"])
def test_type_that_outfile_loses_is_rejected(type_: str) -> None:
    with pytest.raises(Unsupported, match=f"column v of type {re.escape(type_)}: mysqldump "):
        mysql_values.require_in_outfile(TableSchema("s.t", (Column("v", type_),)))
