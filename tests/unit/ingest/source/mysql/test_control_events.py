"""Control and rare events decoded by mysql-replication's classes, as servers send them, and malformed."""

from __future__ import annotations

import struct

import pytest

from dblake.ingest.source.mysql import control_events
from dblake.ingest.source.mysql.control_events import FormatDescription
from dblake.ingest.source.mysql.events import Query
from tests.unit.ingest.source.mysql.binlog import event, plain, xa_prepare

CHARSET = b"\x04\xff\x00\xff\x00\xff\x00"


def query_event(status: bytes, text: bytes = b"DROP TABLE t") -> bytes:
    return plain(event(2, struct.pack("<IIBHH", 1, 0, 4, 0, len(status)) + status + b"shop\0" + text))


def format_description(version: bytes = b"8.4.0", log: int = 4, header: int = 19, algorithm: int = 1) -> bytes:
    body = struct.pack("<H50sIB", log, version, 0, header) + bytes(40) + bytes([algorithm])
    return event(15, body, stamp=1_600_000_000)


@pytest.mark.parametrize("version", [b"8.4.0", b"9.7.4-2", b"10.11.6-MariaDB-0+deb12u1-log", b"8.0.36-28.1"])
def test_format_description_of_supported_server(version: bytes) -> None:
    expected = FormatDescription(is_supported=True, has_checksums=True, created=1_600_000_000)
    assert control_events.read_format_description(format_description(version)) == expected


@pytest.mark.parametrize(
    "facts", [{"log": 3}, {"header": 27}, {"algorithm": 9}, {"version": b"5.5.62"}], ids=lambda facts: next(iter(facts))
)
def test_format_description_of_other_layout_is_unsupported(facts: dict[str, int]) -> None:
    assert not control_events.read_format_description(format_description(**facts)).is_supported  # type: ignore[arg-type]


def test_format_description_without_checksums() -> None:
    assert not control_events.read_format_description(format_description(algorithm=0)).has_checksums


@pytest.mark.parametrize("checksum", [True, False])
def test_rotate_names_file_and_offset(checksum: bool) -> None:
    raw = event(4, struct.pack("<Q", 5 << 30) + b"binlog.1000000", flags=0x20)
    assert control_events.read_rotate(plain(raw) if checksum else _without_checksum(raw)) == ("binlog.1000000", 5 << 30)


def _without_checksum(raw: bytes) -> bytes:
    return raw[:9] + struct.pack("<I", len(raw) - 4) + raw[13:-4]


def test_xa_prepare_names_transaction() -> None:
    assert control_events.read_xa_prepare(plain(event(38, xa_prepare(b"q")))) == ("X'71',X'',1", False)
    assert control_events.read_xa_prepare(plain(event(38, xa_prepare(b"q", one_phase=True)))) == ("X'71',X'',1", True)


@pytest.mark.parametrize(
    "status",
    [
        b"\x01" + struct.pack("<Q", 1 << 20) + CHARSET,
        # MariaDB and MySQL write newer variables behind the character set; the library knows not all of them.
        b"\x01" + struct.pack("<Q", 1 << 20) + CHARSET + b"\x83\x01\x21\x00\xe0\x00",
        b"\x01" + struct.pack("<Q", 1 << 20) + CHARSET + b"\xfe",
        b"\x01" + struct.pack("<Q", 1 << 20) + b"\xfe\x01\x02\x03",
    ],
    ids=["known", "newer", "last", "without_charset"],
)
def test_query_skips_unknown_status_variables(status: bytes) -> None:
    assert control_events.read_query(query_event(status)) == Query("DROP TABLE t", "shop", 1 << 20)


@pytest.mark.parametrize(("collation", "written", "expected"), [
    (63, "ALTER TABLE t COMMENT 'é'".encode(), "ALTER TABLE t COMMENT 'é'"),
    (63, b"ALTER TABLE t COMMENT '\xe9'", "ALTER TABLE t COMMENT '�'"),
    (8, b"ALTER TABLE t COMMENT '\xe9\x81'", "ALTER TABLE t COMMENT 'é�'"),
    (3, b"ALTER TABLE t COMMENT '\xe9'", "ALTER TABLE t COMMENT '�'"),
    (13, b"ALTER TABLE t COMMENT '\x95\x5c'", "ALTER TABLE t COMMENT '表'"),
    (1, b"CREATE TABLE t (a ENUM('\xc8@', '\xc8\x5c'))", "CREATE TABLE t (a ENUM('�', '�'))"),
    (1, b"ALTER TABLE t COMMENT '\x80'", "ALTER TABLE t COMMENT '�'"),
], ids=["binary", "binary, not utf-8", "latin1", "dec8", "sjis", "big5 of the server alone", "not big5"])
def test_query_text_is_read_in_charset_of_session(collation: int, written: bytes, expected: str) -> None:
    status = b"\x04" + struct.pack("<HHH", collation, collation, collation)
    assert control_events.read_query(query_event(status, written)).text == expected


@pytest.mark.parametrize("size", [0, 5, 12, 13])
def test_event_cut_short_raises_value_error(size: int) -> None:
    for raw, read in (
        (query_event(CHARSET), control_events.read_query),
        (plain(event(38, xa_prepare(b"q"))), control_events.read_xa_prepare),
    ):
        with pytest.raises((ValueError, struct.error)):
            read(raw[: 19 + size])
