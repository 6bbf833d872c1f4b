"""Spellings of MySQL's and MariaDB's types: from the catalog, from the log, and the log's encoding of each."""

from __future__ import annotations

import pytest

from dblake.base.core.errors import Unsupported
from dblake.ingest.source.mysql.column_types import log_encoding, type_from_log
from dblake.payloads.formats.mysql_charsets import CHARSETS
from dblake.payloads.formats.mysql_types import MysqlType, parse, type_from_catalog

#: COLUMN_TYPE, CHARACTER_SET_NAME, spelling, type code, metadata bytes.
TYPES: list[tuple[str, str | None, str, int, bytes]] = [
    ("tinyint(1)", None, "tinyint", 1, b""), ("tinyint(3) unsigned", None, "tinyint unsigned", 1, b""),
    ("smallint", None, "smallint", 2, b""), ("mediumint(8) unsigned zerofill", None, "mediumint unsigned", 9, b""),
    ("int(11)", None, "int", 3, b""), ("int unsigned", None, "int unsigned", 3, b""),
    ("bigint(20) unsigned", None, "bigint unsigned", 8, b""),
    ("decimal(10,2)", None, "decimal(10,2)", 246, b"\x0a\x02"),
    ("decimal(65,30) unsigned zerofill", None, "decimal(65,30)", 246, b"\x41\x1e"),
    ("float(7,4)", None, "float", 4, b"\x04"), ("double(10,2) unsigned", None, "double", 5, b"\x08"),
    ("bit(1)", None, "bit(1)", 16, b"\x01\x00"), ("bit(64)", None, "bit(64)", 16, b"\x00\x08"),
    ("bit(13)", None, "bit(13)", 16, b"\x05\x01"), ("year(4)", None, "year", 13, b""), ("date", None, "date", 10, b""),
    ("time", None, "time", 19, b"\x00"), ("time(3)", None, "time(3)", 19, b"\x03"),
    ("datetime(6)", None, "datetime(6)", 18, b"\x06"), ("timestamp", None, "timestamp", 17, b"\x00"),
    ("datetime /* mariadb-5.3 */", None, "datetime /* mariadb-5.3 */", 12, b""),
    ("time /* mariadb-5.3 */", None, "time /* mariadb-5.3 */", 11, b""),
    ("timestamp /* mariadb-5.3 */", None, "timestamp /* mariadb-5.3 */", 7, b""),
    ("char(10)", "latin1", "char(10) character set latin1", 254, b"\xfe\x0a"),
    ("char(255)", "utf8mb4", "char(255) character set utf8mb4", 254, b"\xce\xfc"),
    ("char(100)", "utf8", "char(100) character set utf8mb3", 254, b"\xee\x2c"),
    ("varchar(10)", "utf8mb4", "varchar(10) character set utf8mb4", 15, b"\x28\x00"),
    ("varchar(300)", "gbk", "varchar(300) character set gbk", 15, b"\x58\x02"),
    ("tinytext", "latin1", "tinytext character set latin1", 252, b"\x01"),
    ("text", "utf8mb4", "text character set utf8mb4", 252, b"\x02"),
    ("mediumtext", "utf8mb3", "mediumtext character set utf8mb3", 252, b"\x03"),
    ("longtext", "utf8mb4", "longtext character set utf8mb4", 252, b"\x04"),
    ("binary(5)", None, "binary(5)", 254, b"\xfe\x05"), ("varbinary(300)", None, "varbinary(300)", 15, b"\x2c\x01"),
    ("tinyblob", None, "tinyblob", 252, b"\x01"), ("blob", None, "blob", 252, b"\x02"),
    ("mediumblob", None, "mediumblob", 252, b"\x03"), ("longblob", None, "longblob", 252, b"\x04"),
    ("enum('a','it''s','x\\\\y\\n')", "latin1", "enum('a','it''s','x\\y\n') character set latin1", 254, b"\xf7\x01"),
    ("set('a','b,(c) character set x')", "utf8mb4", "set('a','b,(c) character set x') character set utf8mb4", 254,
     b"\xf8\x01"),
    ("json", None, "json", 245, b"\x04"), ("point", None, "geometry", 255, b"\x04"),
    ("geomcollection", None, "geometry", 255, b"\x04"), ("vector(3)", None, "vector(3)", 242, b"\x04"),
]


@pytest.mark.parametrize(("column_type", "charset", "spelling", "code", "meta"), TYPES)
def test_type_spelled_equally_from_catalog_and_log(
    column_type: str, charset: str | None, spelling: str, code: int, meta: bytes
) -> None:
    assert type_from_catalog(column_type, charset) == spelling
    number = int.from_bytes(meta, "little")
    assert log_encoding(spelling) == (code, number)
    column = parse(spelling)
    assert str(column) == spelling
    assert type_from_log(
        code, number, unsigned=column.unsigned, charset=column.charset or "binary", labels=column.labels,
        dimensions=column.size,
    ) == spelling


@pytest.mark.parametrize(
    ("spelling", "code", "meta"),
    [("uuid", 254, b"\xfe\x10"), ("inet4", 254, b"\xfe\x04"), ("inet6", 254, b"\xfe\x10")],
)
def test_mariadb_types_known_to_catalog_only(spelling: str, code: int, meta: bytes) -> None:
    assert type_from_catalog(spelling, None) == spelling
    assert log_encoding(spelling) == (code, int.from_bytes(meta, "little"))


def test_mariadb_vector_is_varbinary() -> None:
    assert type_from_catalog("vector(3)", None, mariadb=True) == "varbinary(12)"


def test_parse_splits_labels() -> None:
    assert parse("enum('a','it''s','(b),c') character set latin1").labels == ("a", "it's", "(b),c")
    assert parse("set('','é') character set utf8mb4") == MysqlType("set", charset="utf8mb4", labels=("", "é"))


@pytest.mark.parametrize(
    ("labels", "enum", "values"), [(8, 1, 1), (9, 1, 2), (24, 1, 3), (32, 1, 4), (33, 1, 8), (64, 1, 8), (256, 2, 0)]
)
def test_enum_and_set_bytes_by_label_count(labels: int, enum: int, values: int) -> None:
    quoted = ",".join(f"'l{n}'" for n in range(labels))
    assert log_encoding(f"enum({quoted}) character set ascii")[1] >> 8 == enum
    if values:
        assert log_encoding(f"set({quoted}) character set ascii")[1] >> 8 == values


@pytest.mark.parametrize(
    ("column_type", "charset", "message"),
    [
        ("varchar(10) /*M!100301 COMPRESSED*/", "latin1", "COMPRESSED"),
        ("datetime(3) /* mariadb-5.3 */", None, "format from before 10.1"),
        ("xmltype", None, "type xmltype is not one"),
        ("", None, "not one dblake decodes"), ("varchar(10)", "swe7", "character set swe7"),
        ("enum('a')", "armscii8", "character set armscii8"), ("text", "eucjpms", "character set eucjpms"),
    ],
)
def test_unsupported_catalog_type_rejected_by_name(column_type: str, charset: str | None, message: str) -> None:
    with pytest.raises(Unsupported, match=message) as refused:
        type_from_catalog(column_type, charset)
    assert refused.value.next_step


@pytest.mark.parametrize(
    ("code", "meta", "charset", "message"),
    [
        (140, 0, "latin1", "COMPRESSED"), (141, 10, "latin1", "COMPRESSED"), (20, 0, None, "number 20"),
        (253, 10, "latin1", "number 253"), (15, 40, None, "binlog lacks"),
        (254, 0x1F7, "latin1", "binlog lacks"), (242, 4, None, "binlog lacks"), (15, 40, "hp8", "character set hp8"),
    ],
)
def test_unsupported_log_type_rejected_by_name(code: int, meta: int, charset: str | None, message: str) -> None:
    with pytest.raises(Unsupported, match=message) as refused:
        type_from_log(code, meta, unsigned=False, charset=charset, labels=None)
    assert refused.value.next_step


@pytest.mark.parametrize(
    "spelling",
    ["", "integer", "int(11)", "numeric(10,2)", "varchar(10)", "int character set latin1", "text", "bit", "blob(3)",
     "datetime(3) /* mariadb-5.3 */ x", "enum('a')", "enum('a' character set latin1", "char(3) character set swe7",
     "date unsigned"],
)
def test_parse_rejects_other_spellings(spelling: str) -> None:
    with pytest.raises(Unsupported):
        parse(spelling)


# cp932 has 398 characters of NEC and IBM twice, big5 two numbers and eight lines.
@pytest.mark.parametrize("name", sorted(set(CHARSETS) - {"big5", "cp932"}))
def test_charset_maps_characters_to_distinct_text(name: str) -> None:
    charset = CHARSETS[name]
    if charset.codec.startswith("utf"):
        return
    differs = str.maketrans(dict(charset.differs))
    seen: dict[str, bytes] = {}
    for value in [bytes([a]) for a in range(256)] + [bytes([a, b]) for a in range(128, 256) for b in range(256)]:
        try:
            text = value.decode(charset.codec).translate(differs)
        except UnicodeDecodeError:
            continue
        if len(text) == 1:
            assert seen.setdefault(text, value) == value, f"{name}: {seen[text].hex()} and {value.hex()}"
