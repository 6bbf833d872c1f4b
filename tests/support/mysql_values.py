"""Every column type of MariaDB and MySQL with its edge values, for the parity table (see ``parity``).

Rows are written in a session whose time zone is not UTC and which lets anything in that the server can hold. In a
session that does not pin its settings, ``other_defaults`` makes values read as other text than the canonical one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from dblake.ingest.source.mysql.sql_literals import string
from tests.support.mysql import Flavour, MysqlServer
from tests.support.parity import TABLE, Case, Value, columns, inserts

SESSION = "SET sql_mode = '', time_zone = '+05:30'"
_DEFAULTS = {"sql_mode": "PAD_CHAR_TO_FULL_LENGTH", "time_zone": "-04:00"}


def _values(*values: str | tuple[str, str] | Value) -> tuple[Value, ...]:
    """Return the values; a lone text is its own literal, quoted unless it is a number."""
    made = []
    for value in values:
        if isinstance(value, str):
            number = re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", value)
            made.append(Value(value if number else string(value), value))
        else:
            made.append(value if isinstance(value, Value) else Value(*value))
    return tuple(made)


def _zero(text: str) -> Value:
    return Value(f"'{text}'", text, held=False)


def _labels(letter: str, count: int) -> str:
    return ",".join(f"'{letter}{number}'" for number in range(count))


# Doubles as WKB has them.
_0, _1, _2 = "00" * 8, "000000000000f03f", "0000000000000040"
_GEOMETRIES = (
    ("ST_GeomFromText('POINT(1 -2.5)')", f"\\x000000000101000000{_1}00000000000004c0"),
    ("ST_GeomFromText('POINT(1 2)', 3857)", f"\\x110f00000101000000{_1}{_2}"),
    ("ST_GeomFromText('LINESTRING(0 0, 1 1)')", f"\\x00000000010200000002000000{_0}{_0}{_1}{_1}"),
    ("ST_GeomFromText('POLYGON((0 0, 1 0, 1 1, 0 0))')",
     f"\\x0000000001030000000100000004000000{_0}{_0}{_1}{_0}{_1}{_1}{_0}{_0}"),
    ("ST_GeomFromText('GEOMETRYCOLLECTION(POINT(1 1), LINESTRING(0 0, 1 1))')",
     f"\\x00000000010700000002000000" f"0101000000{_1}{_1}" f"010200000002000000{_0}{_0}{_1}{_1}"),
)
_JSONS = _values(
    "null", "true", "[]", "{}", '""', '"é \\" \\\\ \\n 😀"',
    ("'18446744073709551615'", "18446744073709551615"), ("'-9223372036854775808'", "-9223372036854775808"),
    ("'9223372036854775808'", "9223372036854775808"),
    ("'[0, -1, 127, 128, 32767, 32768, 65536, 2147483647, 2147483648]'",
     "[0, -1, 127, 128, 32767, 32768, 65536, 2147483647, 2147483648]"),
    ("'[0.1, 1.0, -0.5, 1e20, 1.5e300, 1e-300, 1e15, 1e14, 123456789.125]'",
     "[0.1, 1.0, -0.5, 1e20, 1.5e300, 1e-300, 1e15, 100000000000000.0, 123456789.125]"),
    ("'12345678901234567890123'", "1.2345678901234568e22"),
    ("JSON_ARRAY(CAST('123456789012345678901234567890.12345' AS DECIMAL(40,5)), CAST('-0.50' AS DECIMAL(4,2)))",
     "[123456789012345678901234567890.12345, -0.50]"),
    ("JSON_ARRAY(CAST('2024-02-29' AS DATE), CAST('-12:34:56.5' AS TIME(6)), CAST('2024-02-29 01:02:03' AS DATETIME))",
     '["2024-02-29", "-12:34:56.500000", "2024-02-29 01:02:03.000000"]'),
    ("""'{"b": 1, "a": [null, {"": false}], "long key": "x"}'""",
     '{"a": [null, {"": false}], "b": 1, "long key": "x"}'),
    ("JSON_OBJECT('k', REPEAT('x', 70000))", '{"k": "' + "x" * 70000 + '"}'),
    ("JSON_ARRAY(x'00ff')", '["base64:type15:AP8="]'),
)

_CASES = (
    Case("tinyint", _values("-128", "-1", "0", "127")),
    Case("tinyint unsigned", _values("0", "255")),
    Case("smallint", _values("-32768", "32767")),
    Case("smallint unsigned", _values("0", "65535")),
    Case("mediumint", _values("-8388608", "-1", "8388607")),
    Case("mediumint unsigned", _values("0", "16777215")),
    Case("int", _values("-2147483648", "-1", "2147483647")),
    Case("int unsigned", _values("0", "4294967295")),
    Case("int(7) unsigned zerofill", _values("0", "42", "4294967295")),
    Case("bigint", _values("-9223372036854775808", "-1", "0", "9223372036854775807")),
    Case("bigint unsigned", _values("0", "9223372036854775808", "18446744073709551615")),
    Case("boolean", _values(("TRUE", "1"), ("FALSE", "0"))),
    Case("decimal(65,30)", _values(
        "99999999999999999999999999999999999.999999999999999999999999999999",
        "-99999999999999999999999999999999999.999999999999999999999999999999",
        "-0.000000000000000000000000000001", ("0", "0.000000000000000000000000000000"),
        "12345678901234567890123456789012345.123456789012345678901234567890",
    )),
    Case("decimal(65,0)", _values("9" * 65, "-" + "9" * 65, "0")),
    Case("decimal(30,30)", _values("0." + "9" * 30, "-0." + "0" * 29 + "1")),
    Case("decimal(10,2)", _values("-0.01", ("-0.001", "0.00"), "12345678.90", ("7", "7.00"))),
    Case("decimal(9,0)", _values("-999999999", "100000000", "0")),
    Case("decimal(6,3) zerofill", _values(("0.5", "0.500"), ("42", "42.000"))),
    Case("float", _values(
        ("0.1", "0.1"), ("-0e0", "0"), ("3.402823466e38", "3.4028235e+38"), ("-3.402823466e38", "-3.4028235e+38"),
        ("1.175494351e-38", "1.1754944e-38"), ("1e-45", "1e-45"), ("16777217", "16777216"), ("123456.789", "123456.79"),
        ("1e10", "1e+10"), ("-1.5", "-1.5"),
    )),
    Case("float(7,4)", _values(("999.00009", "999.0001"), ("0.33333", "0.3333"))),
    Case("double", _values(
        ("0.1", "0.1"), ("-0e0", "0"), ("1.7976931348623157e308", "1.7976931348623157e+308"), ("5e-324", "5e-324"),
        ("2.2250738585072014e-308", "2.2250738585072014e-308"), ("9007199254740993", "9.007199254740992e+15"),
        ("0.1e0 + 0.2e0", "0.30000000000000004"), ("1e15", "1e+15"),
        ("123456789012345678e0", "1.2345678901234568e+17"), ("-1e-7", "-1e-7"),
    )),
    Case("double(20,3)", _values(
        ("0.3334", "0.333"), ("12345678901234567.125", "1.2345678901234568e+16"), ("-1", "-1"),
    )),
    *(Case(f"bit({n})", _values(("0", "0" * n), ("1", "1".zfill(n)), (f"b'{'1' * n}'", "1" * n),
                                (f"b'1{'0' * (n - 1)}'", "1" + "0" * (n - 1)))) for n in range(1, 65)),
    Case("year", _values(("0", "0000"), "1901", "2155", ("'70'", "1970"), ("'0'", "2000"))),
    Case("date", _values(
        _zero("0000-00-00"), _zero("2024-00-00"), _zero("2024-02-00"), "1000-01-01", "2024-02-29", "9999-12-31",
        ("'0001-01-01'", "0001-01-01"),
    )),
    Case("datetime", _values(_zero("0000-00-00 00:00:00"), _zero("2024-00-10 11:12:13"), "1000-01-01 00:00:00",
                             "2024-02-29 23:59:59", "9999-12-31 23:59:59")),
    *(Case(f"datetime({f})", _values(
        _zero("0000-00-00 00:00:00." + "0" * f), "2024-03-31 02:30:00." + "0" * (f - 1) + "1",
        "9999-12-31 23:59:59." + "9" * f,
    )) for f in range(1, 7)),
    # Written in a session at UTC+5:30; the expected text is in UTC.
    Case("timestamp NULL", _values(
        _zero("0000-00-00 00:00:00"), ("'1970-01-01 05:30:01'", "1970-01-01 00:00:01"),
        ("'2024-03-10 08:00:00'", "2024-03-10 02:30:00"), ("'2038-01-19 08:44:07'", "2038-01-19 03:14:07"),
    )),
    *(Case(f"timestamp({f}) NULL", _values(
        _zero("0000-00-00 00:00:00." + "0" * f),
        ("'1970-01-01 05:30:01." + "0" * f + "'", "1970-01-01 00:00:01." + "0" * f),
        ("'2024-11-03 06:59:59." + "9" * f + "'", "2024-11-03 01:29:59." + "9" * f),
        ("'2024-01-01 00:00:00." + "0" * (f - 1) + "1'", "2023-12-31 18:30:00." + "0" * (f - 1) + "1"),
    )) for f in range(1, 7)),
    Case("time", _values("-838:59:59", "838:59:59", "00:00:00", "-00:00:01", "-01:00:00", "100:00:00")),
    *(Case(f"time({f})", _values(
        "-838:59:58." + "9" * f, "-00:00:00." + "0" * (f - 1) + "1", "-00:00:01." + "0" * f, "838:59:58." + "9" * f,
        "-12:34:56." + "1234567"[:f], "00:00:00." + "0" * f, "-01:00:00." + "9" * f,
    )) for f in range(1, 7)),
    Case("enum('small','it''s','größe','a,b')", _values(
        "small", "it's", "größe", "a,b", ("'none such'", ""), ("0", ""),
    )),
    Case("enum('a','é') character set latin1", _values("a", "é")),
    Case("enum('日','本') character set gbk", _values("日", "本")),
    Case(f"enum({_labels('e', 300)})", _values("e0", "e254", "e255", "e299")),
    Case("set('x','y','it''s','größe')", _values("", "x", "y,größe", "x,y,it's,größe", ("'größe,x,x'", "x,größe"))),
    *(Case(f"set({_labels('s', n)})", _values(
        "", "s0", f"s{n - 1}", _labels("s", n).replace("'", ""),
    )) for n in (9, 17, 25, 33, 64)),
    Case("char(5)", _values("", "a", ("'ab   '", "ab"), "日本語日本")),
    Case("char(255) character set utf8mb4", _values("x" * 255, "日" * 255, "")),
    Case("varchar(10)", _values("", " a ", "a   ", "😀é日", "\t", ("'NULL'", "NULL"), "\\x41")),
    Case("varchar(300) character set ascii", _values("", "y" * 255, "y" * 256, "y" * 300)),
    Case("varchar(20) character set latin1", _values(
        "é€", ("x'81'", "\x81"), ("x'808d8f909dff'", "€\x8d\x8f\x90\x9dÿ"), "plain",
    )),
    Case("text character set latin1", _values("Ünï", ("x'00'", "\x00"))),
    Case("varchar(20) character set gbk", _values("中文", "a中", "plain", "丂")),
    Case("text character set gbk", _values("龍", ("REPEAT('中', 300)", "中" * 300))),
    Case("varchar(9) character set sjis", _values("表", "ｱ", "日本")),
    Case("varchar(9) character set cp932", _values("①", "表")),
    Case("varchar(9) character set ujis", _values("日本", "ｱ")),
    Case("varchar(9) character set euckr", _values("한국",)),
    Case("varchar(9) character set big5", _values("許功蓋",)),
    Case("varchar(9) character set gb2312", _values("中文",)),
    Case("varchar(9) character set gb18030", _values("中文😀", "€"), "mysql"),
    Case("varchar(9) character set utf16", _values("a", "😀日")),
    Case("varchar(9) character set utf16le", _values("a", "😀日")),
    Case("varchar(9) character set utf32", _values("a", "😀日")),
    Case("varchar(9) character set ucs2", _values("a", "日")),
    Case("varchar(9) character set utf8mb3", _values("é日",)),
    Case("varchar(9) character set cp1251", _values("Привет",)),
    Case("varchar(9) character set koi8r", _values("Привет",)),
    # The last is a byte that the character set leaves out, and the server keeps.
    Case("varchar(9) character set greek", _values("αβγ", Value("x'61ff'", "\\x61ff", undecoded=True))),
    Case("varchar(9) character set latin2", _values("łżś",)),
    Case("tinytext", _values("", "é" * 127)),
    Case("text", _values("", "😀" * 100, "line\nline\r\0")),
    Case("mediumtext", _values("", ("REPEAT('ü', 70000)", "ü" * 70000))),
    Case("longtext", _values("", "x", ("REPEAT('z', 300000)", "z" * 300000))),
    Case("binary(5)", _values(
        ("x'61000000'", "\\x6100000000"), ("x''", "\\x0000000000"), ("x'0000000001'", "\\x0000000001"),
        ("x'ff20202020'", "\\xff20202020"), ("'a '", "\\x6120000000"),
    )),
    Case("binary(255)", _values(("x'00'", "\\x" + "00" * 255), ("REPEAT('a', 255)", "\\x" + "61" * 255))),
    Case("varbinary(300)", _values(("x''", "\\x"), ("x'6100'", "\\x6100"), ("REPEAT(x'00', 300)", "\\x" + "00" * 300))),
    Case("tinyblob", _values(("x''", "\\x"), ("x'00ff5c27'", "\\x00ff5c27"))),
    Case("blob", _values(("x'00'", "\\x00"), ("REPEAT('b', 60000)", "\\x" + "62" * 60000))),
    Case("mediumblob", _values(("x'ff'", "\\xff"), ("REPEAT('b', 70000)", "\\x" + "62" * 70000))),
    Case("longblob", _values(("x''", "\\x"), ("x'0a0d'", "\\x0a0d"))),
    Case("geometry", _values(*_GEOMETRIES)),
    Case("point", _values(_GEOMETRIES[0])),
    Case("json", _JSONS, "mysql"),
    Case("json", _values('{"b": 1,   "a": 1.0}', "18446744073709551615", "0.10"), "mariadb"),
    Case("vector(3)", _values(("STRING_TO_VECTOR('[1,-2.5,0]')", "\\x0000803f" "000020c0" "00000000")), "mysql"),
    Case("uuid", _values("123e4567-e89b-12d3-a456-426655440000", "ffffffff-ffff-1fff-bfff-ffffffffffff",
                         "00000000-0000-0000-0000-000000000000"), "mariadb"),
    Case("inet4", _values("0.0.0.0", "255.1.20.3"), "mariadb"),
    Case("inet6", _values("::", "::ffff:192.0.2.1", "2001:db8::ff00:42:8329"), "mariadb"),
)


def cases(flavour: Flavour) -> Sequence[Case]:
    """Return the cases of the types that a server has."""
    return [case for case in _CASES if case.only in (None, flavour)]


def create(server: MysqlServer) -> None:
    """Create the table."""
    typed = ", ".join(f"{name} {type_}" for name, type_ in columns(cases(server.flavour)).items())
    server.run(
        "CREATE DATABASE IF NOT EXISTS public",
        f"CREATE TABLE {TABLE} (id int PRIMARY KEY, touched int NOT NULL DEFAULT 0, {typed})"
        " CHARACTER SET utf8mb4 ROW_FORMAT=DYNAMIC",
    )


def insert(server: MysqlServer, first: int) -> None:
    """Insert all rows, with ids from ``first`` on."""
    connection = server.connect(init_command=SESSION)
    with connection.cursor() as cursor:
        for statement in inserts(cases(server.flavour), first):
            cursor.execute(statement)
    connection.close()


@contextmanager
def other_defaults(server: MysqlServer) -> Iterator[None]:
    """Inside the block, new sessions begin with settings that write values in other forms than the canonical ones."""
    ((*before,),) = server.rows(f"SELECT {', '.join(f'@@GLOBAL.{name}' for name in _DEFAULTS)}")
    server.run(*(f"SET GLOBAL {name} = '{value}'" for name, value in _DEFAULTS.items()))
    try:
        yield
    finally:
        server.run(*(f"SET GLOBAL {name} = '{value}'" for name, value in zip(_DEFAULTS, before, strict=True)))
