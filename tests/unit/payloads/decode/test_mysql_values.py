"""Every MySQL and MariaDB type: what the binlog stores, what a result row prints, and the one text of both.

The bytes are MariaDB 10.11's and MySQL 9.7's, recorded once; the two agree wherever both have the type.
"""

from __future__ import annotations

import pytest

from dblake.base.core.schema import Column, TableSchema
from dblake.payloads.decode.batch import decode
from tests.support.binlog_encode import WRITE, result_row, rows_event
from tests.unit.payloads.decode.landing_rows import batch_of, chunk_row, events_of, log_row

#: Spelling, bytes in a rows event, bytes in a result row, text.
VALUES = [
    ("tinyint", "80", b"-128", "-128"),
    ("tinyint", "7f", b"127", "127"),
    ("tinyint unsigned", "ff", b"255", "255"),
    ("smallint", "0080", b"-32768", "-32768"),
    ("smallint unsigned", "ffff", b"65535", "65535"),
    ("mediumint", "000080", b"-8388608", "-8388608"),
    ("mediumint", "ffff7f", b"8388607", "8388607"),
    ("mediumint unsigned", "ffffff", b"16777215", "16777215"),
    ("int", "00000080", b"-2147483648", "-2147483648"),
    ("int unsigned", "2a000000", b"000042", "42"),
    ("int unsigned", "00000000", b"000000", "0"),
    ("int unsigned", "ffffffff", b"4294967295", "4294967295"),
    ("bigint", "0000000000000080", b"-9223372036854775808", "-9223372036854775808"),
    ("bigint", "ffffffffffffff7f", b"9223372036854775807", "9223372036854775807"),
    ("bigint unsigned", "ffffffffffffffff", b"18446744073709551615", "18446744073709551615"),
    ("decimal(10,2)", "7f439eb1a5", b"-12345678.90", "-12345678.90"),
    ("decimal(10,2)", "8000000005", b"0.05", "0.05"),
    ("decimal(10,2)", "8000000000", b"0.00", "0.00"),
    ("decimal(10,2)", "8000000732", b"00000007.50", "7.50"),
    ("decimal(5,5)", "7fcfc6", b"-0.12345", "-0.12345"),
    ("decimal(5,5)", "800000", b"0.00000", "0.00000"),
    ("decimal(9,0)", "44653600", b"-999999999", "-999999999"),
    ("decimal(1,0)", "89", b"9", "9"),
    ("decimal(20,9)", "8a0000000000000001", b"10000000000.000000001", "10000000000.000000001"),
    ("decimal(65,30)",
     "7f439eb1ca484078caf1cb3fd0f8a086f8a432eaff439eb1ca484078fc85",
     b"-12345678901234567890123456789012345.123456789012345678901234567890",
     "-12345678901234567890123456789012345.123456789012345678901234567890"),
    ("float", "cdcccc3d", b"0.10000000149011612", "0.1"),
    ("float", "ffff7f7f", b"3.4028234663852886e38", "3.4028235e+38"),
    ("float", "0000804b", b"16777216", "16777216"),
    ("float", "00000000", b"0", "0"),
    ("float", "a379eb4c", b"123456792", "123456790"),
    ("double", "9a9999999999b93f", b"0.1", "0.1"),
    ("double", "6957148b0abf0540", b"2.718281828459045", "2.718281828459045"),
    ("double", "0100000000000000", b"5e-324", "5e-324"),
    ("double", "ffffffffffffefff", b"-1.7976931348623157e308", "-1.7976931348623157e+308"),
    ("double", "00003426f56b0c43", b"1e15", "1e+15"),
    ("double", "000000000000f8bf", b"-1.50", "-1.5"),
    ("bit(1)", "01", b"\x01", "1"),
    ("bit(13)", "0055", b"\x00U", "0000001010101"),
    ("bit(64)",
     "8000000000000001",
     b"\x80\x00\x00\x00\x00\x00\x00\x01",
     "1000000000000000000000000000000000000000000000000000000000000001"),
    ("year", "7c", b"2024", "2024"),
    ("year", "00", b"0000", "0000"),
    ("year", "01", b"1901", "1901"),
    ("date", "5dd00f", b"2024-02-29", "2024-02-29"),
    ("date", "000000", b"0000-00-00", "0000-00-00"),
    ("date", "00d00f", b"2024-00-00", "2024-00-00"),
    ("date", "9f1f4e", b"9999-12-31", "9999-12-31"),
    ("time", "4b9105", b"-838:59:59", "-838:59:59"),
    ("time", "800000", b"00:00:00", "00:00:00"),
    ("time(1)", "7ffffff6", b"-00:00:00.1", "-00:00:00.1"),
    ("time(2)", "80c8b807", b"12:34:56.07", "12:34:56.07"),
    ("time(3)", "7f3747e12e", b"-12:34:56.789", "-12:34:56.789"),
    ("time(6)", "4b9105f0bdc1", b"-838:59:58.999999", "-838:59:58.999999"),
    ("time(6)", "864000000001", b"100:00:00.000001", "100:00:00.000001"),
    ("datetime", "99b2bb7efb", b"2024-02-29 23:59:59", "2024-02-29 23:59:59"),
    ("datetime", "8000000000", b"0000-00-00 00:00:00", "0000-00-00 00:00:00"),
    ("datetime(1)", "fef3ff7efb5a", b"9999-12-31 23:59:59.9", "9999-12-31 23:59:59.9"),
    ("datetime(3)", "99b50010830028", b"2024-12-00 01:02:03.004", "2024-12-00 01:02:03.004"),
    ("datetime(6)", "8cb2420000000001", b"1000-01-01 00:00:00.000001", "1000-01-01 00:00:00.000001"),
    ("timestamp", "65e11a7f", b"2024-02-29 23:59:59", "2024-02-29 23:59:59"),
    ("timestamp", "00000000", b"0000-00-00 00:00:00", "0000-00-00 00:00:00"),
    ("timestamp(2)", "0000000132", b"1970-01-01 00:00:01.50", "1970-01-01 00:00:01.50"),
    ("timestamp(6)", "7fffffff0f423f", b"2038-01-19 03:14:07.999999", "2038-01-19 03:14:07.999999"),
    ("char(10) character set utf8mb4", "0768c3a9f09f9880", b"h\xc3\xa9\xf0\x9f\x98\x80", "hé😀"),
    ("char(255) character set utf8mb4", "04006c6f6e67", b"long", "long"),
    ("char(10) character set latin1", "0381e980", b"\x81\xe9\x80", "\x81é€"),
    ("char(4) character set utf16", "0800e90020d83dde00", b"\x00\xe9\x00 \xd8=\xde\x00", "é 😀"),
    ("varchar(10) character set ascii", "03612020", b"a  ", "a  "),
    ("varchar(300) character set latin1", "0000", b"", ""),
    ("varchar(20) character set gbk", "04d6d0cec4", b"\xd6\xd0\xce\xc4", "中文"),
    ("varchar(20) character set sjis", "0593fa967bb1", b"\x93\xfa\x96{\xb1", "日本ｱ"),
    ("varchar(20) character set big5", "04a4a4a4e5", b"\xa4\xa4\xa4\xe5", "中文"),
    ("varchar(20) character set ujis", "04c6fccbdc", b"\xc6\xfc\xcb\xdc", "日本"),
    ("varchar(20) character set euckr", "04c7d1b1b9", b"\xc7\xd1\xb1\xb9", "한국"),
    ("varchar(20) character set cp1251", "06cff0e8e2e5f2", b"\xcf\xf0\xe8\xe2\xe5\xf2", "Привет"),
    ("varchar(20) character set ucs2", "024e2d", b"N-", "中"),
    ("varchar(20) character set utf16le", "043dd800de", b"=\xd8\x00\xde", "😀"),
    ("varchar(20) character set utf32", "040001f600", b"\x00\x01\xf6\x00", "😀"),
    ("varchar(20) character set utf8mb3", "02d0b6", b"\xd0\xb6", "ж"),
    ("tinytext character set utf8mb4", "02c3a9", b"\xc3\xa9", "é"),
    ("text character set latin1", "0100e9", b"\xe9", "é"),
    ("mediumtext character set utf8mb4", "040000f09f9880", b"\xf0\x9f\x98\x80", "😀"),
    ("longtext character set utf8mb4", "00000000", b"", ""),
    ("binary(5)", "0141", b"A\x00\x00\x00\x00", "\\x4100000000"),
    ("binary(5)", "056162202020", b"ab   ", "\\x6162202020"),
    ("varbinary(5)", "024100", b"A\x00", "\\x4100"),
    ("varbinary(300)", "0100ff", b"\xff", "\\xff"),
    ("tinyblob", "0200ff", b"\x00\xff", "\\x00ff"),
    ("blob", "0000", b"", "\\x"),
    ("mediumblob", "020000ff00", b"\xff\x00", "\\xff00"),
    ("longblob", "0100000078", b"x", "\\x78"),
    ("enum('a','it''s','é') character set latin1", "03", b"\xe9", "é"),
    ("enum('a','it''s','é') character set latin1", "02", b"it's", "it's"),
    ("enum('a') character set utf8mb4", "00", b"", ""),
    ("set('a','b','c') character set utf8mb4", "05", b"a,c", "a,c"),
    ("set('a','b','c') character set utf8mb4", "00", b"", ""),
    ("geometry",
     "19000000000000000101000000000000000000f03f0000000000000040",
     b"\x00\x00\x00\x00\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\xf0?\x00\x00\x00\x00\x00\x00\x00@",
     "\\x000000000101000000000000000000f03f0000000000000040"),
    ("uuid",
     "0f123e4567e89b12d3a4564266141740",
     b"123e4567-e89b-12d3-a456-426614174000",
     "123e4567-e89b-12d3-a456-426614174000"),
    ("inet4", "020102", b"1.2.0.0", "1.2.0.0"),
    ("inet6", "1020010db80000000000000000000000ff", b"2001:db8::ff", "2001:db8::ff"),
    ("inet6", "1000010000000200030004000500060007", b"1::2:3:4:5:6:7", "1::2:3:4:5:6:7"),
    ("inet6", "1000000000000000000000ffff01020304", b"::ffff:1.2.3.4", "::ffff:1.2.3.4"),
    ("inet6", "1000000000000000000000000000020003", b"::0.2.0.3", "::0.2.0.3"),
    ("inet6", "1000000000000000000000000000000001", b"::1", "::1"),
    ("datetime /* mariadb-5.3 */", "457c178468120000", b"2024-01-02 03:04:05", "2024-01-02 03:04:05"),
    ("time /* mariadb-5.3 */", "bb39ed", b"-123:04:05", "-123:04:05"),
    ("timestamp /* mariadb-5.3 */", "257d9365", b"2024-01-02 03:04:05", "2024-01-02 03:04:05"),
    ("vector(2)", "080000000000803f00000040", b"\x00\x00\x80?\x00\x00\x00@", "\\x0000803f00000040"),
    ("json", "020000000400", b"null", "null"),
    ("json", "020000000401", b"true", "true"),
    ("json", "050000000200000400", b"[]", "[]"),
    ("json", "050000000000000400", b"{}", "{}"),
    ("json", "090000000b0000000000000000", b"0.0", "0.0"),
    ("json", "090000000b0000000000000080", b"-0.0", "-0.0"),
    ("json", "090000000b0000901ec4bcd642", b"100000000000000.0", "100000000000000.0"),
    ("json", "090000000b00003426f56b0c43", b"1e15", "1e15"),
    ("json", "090000000b0080e03779c34143", b"1e16", "1e16"),
    ("json", "090000000b9b2ba1869b84063d", b"0.00000000000001", "0.00000000000001"),
    ("json", "090000000bbc89d897b2d29c3c", b"1e-16", "1e-16"),
    ("json", "090000000b66de77832112dc42", b"123456789012345.6", "123456789012345.6"),
    ("json", "090000000bffffffffffffef7f", b"1.7976931348623157e308", "1.7976931348623157e308"),
    ("json", "090000000b0100000000000000", b"5e-324", "5e-324"),
    ("json", "0300000005ff7f", b"32767", "32767"),
    ("json", "0500000007ff7fffff", b"-32769", "-32769"),
    ("json", "0500000007ffff0000", b"65535", "65535"),
    ("json", "0900000009ffffffff00000000", b"4294967295", "4294967295"),
    ("json", "09000000090000000000000080", b"-9223372036854775808", "-9223372036854775808"),
    ("json", "090000000affffffffffffffff", b"18446744073709551615", "18446744073709551615"),
    ("json", "090000000b000000000000f043", b"1.8446744073709552e19", "1.8446744073709552e19"),
    ("json",
     "120000000c1061225c080c0a0d0901c3a9f09f98802f",
     b"\"a\\\"\\\\\\b\\f\\n\\r\\t\\u0001\xc3\xa9\xf0\x9f\x98\x80/\"",
     "\"a\\\"\\\\\\b\\f\\n\\r\\t\\u0001é😀/\""),
    ("json",
     "4e0000000003004d0019000000190001001a000200071c000220000501006162627011010005002d00"
     "0501000b13000c1b00040000001d0000000000000004400178010010000b000100020c006300000400",
     b"{\"\": 70000, \"a\": [1, 2.5, \"x\", null, {\"c\": []}], \"bb\": 1}",
     "{\"\": 70000, \"a\": [1, 2.5, \"x\", null, {\"c\": []}], \"bb\": 1}"),
    ("json", "1100000002010010000f0700f6070b028000000132", b"[1.50]", "[1.50]"),
    ("json",
     "1e0000000201001d000f0700f614271e7fffffffe2329affffffffffffffffffffff",
     b"[-0.500000000000000000000000000000]",
     "[-0.500000000000000000000000000000]"),
    ("json", "1200000002010011000f07000a08000000000044b219", b"[\"2024-01-02\"]", "[\"2024-01-02\"]"),
    ("json",
     "1200000002010011000f07000c08a08601053144b219",
     b"[\"2024-01-02 03:04:05.100000\"]",
     "[\"2024-01-02 03:04:05.100000\"]"),
    ("json", "1200000002010011000f07000b08a051f54737ffffff", b"[\"-12:34:56.700000\"]", "[\"-12:34:56.700000\"]"),
    ("json", "0c0000000201000b000f07000f0200ff", b"[\"base64:type15:AP8=\"]", "[\"base64:type15:AP8=\"]"),
]


def _table(spelling: str) -> TableSchema:
    name = "varchar(9) character set utf8mb4"
    return TableSchema("shop.t", (Column("id", "int", False, 1), Column("v", spelling), Column("end", name)))


@pytest.mark.parametrize(("spelling", "stored", "printed", "text"), VALUES)
def test_value_has_one_text_from_log_and_chunk(spelling: str, stored: str, printed: bytes, text: str) -> None:
    schema = _table(spelling)
    # The event's rows: NULL, the value, NULL, the value; made by taking the place of a value of known length.
    plain = ["int", "tinytext character set utf8mb4", schema.columns[2].type]
    event = rows_event(WRITE, plain, [["1", None, "x"], ["2", "@", "y"], ["3", None, None], ["4", "@", ""]])
    event = event.replace(b"\x01@", bytes.fromhex(stored))
    log = events_of(decode(batch_of(log_row(schema, event, format="binlog_rows", seq=0)), {schema.schema_id: schema}))
    rows: list[list[bytes | None]] = [
        [b"1", None, b"x"], [b"2", printed, b"y"], [b"3", None, None], [b"4", printed, b""],
    ]
    chunk = events_of(decode(
        batch_of(*(chunk_row(schema, result_row(r), format="mysql_rows", seq=2 * n) for n, r in enumerate(rows))),
        {schema.schema_id: schema},
    ))
    expected = [
        [("id", "1"), ("v", None), ("end", "x")], [("id", "2"), ("v", text), ("end", "y")],
        [("id", "3"), ("v", None), ("end", None)], [("id", "4"), ("v", text), ("end", "")],
    ]
    assert [e["after"] for e in log] == expected
    assert [e["after"] for e in chunk] == expected
    assert [e["undecoded"] for e in (*log, *chunk)] == [None] * 8


@pytest.mark.parametrize(
    ("spelling", "raw", "text"),
    [
        ("varchar(9) character set utf8mb4", "e9", "\\xe9"), ("varchar(9) character set ascii", "61e9", "\\x61e9"),
        ("varchar(9) character set cp1250", "61815a", "\\x61815a"), ("varchar(9) character set gbk", "6181", "\\x6181"),
        ("varchar(9) character set utf16", "d800", "\\xd800"), ("varchar(9) character set tis620", "fc", "\\xfc"),
    ],
)
def test_undecodable_bytes_become_hex_and_named(spelling: str, raw: str, text: str) -> None:
    schema = _table(spelling)
    value = bytes.fromhex(raw)
    event = rows_event(WRITE, ["int", "tinyblob", schema.columns[2].type], [["1", "\\x" + raw, "x"], ["2", None, "y"]])
    chunk = chunk_row(schema, result_row([b"3", value, b"z"]), format="mysql_rows", seq=9, lsn=9999)
    log = log_row(schema, event, format="binlog_rows", seq=0)
    events = events_of(decode(batch_of(log, chunk), {schema.schema_id: schema}))
    assert [(dict(e["after"])["v"], e["undecoded"]) for e in events] == [(text, ["v"]), (None, None), (text, ["v"])]


@pytest.mark.parametrize(
    ("spelling", "printed", "text"),
    [
        ("int", b"000", "0"), ("int", b"-7", "-7"), ("decimal(4,2)", b"-0.00", "0.00"),
        ("decimal(4,2)", b"000.50", "0.50"), ("decimal(3,0)", b"-0", "0"), ("decimal(4,2)", b"-0.01", "-0.01"),
        ("double", b"-0", "0"), ("float", b"-0", "0"),
        ("float", b"0.10000000149011612", "0.1"), ("double", b"1e20", "1e+20"), ("double", b"100", "100"),
    ],
)
def test_printed_numbers_have_canonical_text(spelling: str, printed: bytes, text: str) -> None:
    schema = _table(spelling)
    row = chunk_row(schema, result_row([b"1", printed, None]), format="mysql_rows")
    (event,) = events_of(decode(batch_of(row), {schema.schema_id: schema}))
    assert event["after"] == [("id", "1"), ("v", text), ("end", None)]


def test_set_and_enum_with_many_labels() -> None:
    labels = [f"l{n}" for n in range(300)]
    quoted = ",".join(f"'{label}'" for label in labels)
    few = ",".join(f"'{label}'" for label in labels[:64])
    schema = TableSchema("shop.t", (
        Column("id", "int", False, 1), Column("e", f"enum({quoted}) character set utf8mb4"),
        Column("s", f"set({few}) character set utf8mb4"),
    ))
    rows: list[list[str | None]] = [
        ["1", "l299", "l0,l63"], ["2", "l255", ",".join(labels[:64])], ["3", "l0", "l31,l32"],
    ]
    row = log_row(schema, rows_event(WRITE, [c.type for c in schema.columns], rows), format="binlog_rows", seq=0)
    events = events_of(decode(batch_of(row), {schema.schema_id: schema}))
    assert [[v for _, v in e["after"]] for e in events] == rows
