"""Single events read: bytes recorded from MySQL 9.7 and MariaDB 10.11, or built as older servers send them."""

from __future__ import annotations

import random
import struct
import zlib

import pytest

from dblake.base.core.log_places import binlog_number
from dblake.ingest.source.mysql import control_events, events, gtid_events, packed_events, watermarks
from dblake.ingest.source.mysql.gtid_events import Begin
from dblake.ingest.source.mysql.gtids import executed_gtids
from dblake.ingest.source.mysql.log_position import LogPosition, unwrap_offset
from dblake.ingest.source.mysql.table_map import read_table_map
from tests.unit.ingest.source.mysql.binlog import event, plain

SERVER = "af19a5ebe5c111f181b702fc00000001"


def of(kind: int, digits: str, **facts: int) -> bytes:
    return plain(event(kind, bytes.fromhex(digits), **facts))


GTID_8 = f"01{SERVER}0200000000000000020100000000000000020000000000000089531c39cb6006fc6b0150620100"


@pytest.mark.parametrize(
    ("raw", "begin"),
    [
        (of(33, GTID_8), Begin((SERVER, "", 2), 1_795_275_813_049_225)),
        # An original commit time follows, so the highest bit is set.
        (of(33, GTID_8.replace("cb6006fc", "cb6086fc")), Begin((SERVER, "", 2), 1_795_275_813_049_225)),
        (of(33, GTID_8[: 2 * 42]), Begin((SERVER, "", 2), None)),  # 5.7
        (of(34, GTID_8), Begin(None, 1_795_275_813_049_225)),
    ],
)
def test_mysql_gtid_read(raw: bytes, begin: Begin) -> None:
    assert gtid_events.read_gtid(raw) == begin


@pytest.mark.parametrize(
    ("digits", "number", "micros"),
    [
        ("027600000202bd02329502ad039503050322c5030502dd0204f10300000002040406087461677808000a040c7f76e31d39cb6006"
         "1021031283120b", 1, 0x0660CB391DE376),
        ("027600000202bd02329502ad039503050322c5030502dd0204f10300000002040c06087461677808040a0c0c7fb0111e39cb6006"
         "0d1031283120b", 3, 0x0660CB391E11B0),
    ],
)
def test_tagged_gtid_read(digits: str, number: int, micros: int) -> None:
    raw = of(42, digits if len(digits) % 2 == 0 else digits + "0")
    assert gtid_events.read_tagged_gtid(raw) == Begin((SERVER, "tagx", number), micros)


@pytest.mark.parametrize(
    ("digits", "begin"),
    [
        ("0300000000000000000000000c000000000000", Begin((0, 9, 3), opens=True)),
        ("030000000000000005000000290000000000", Begin((5, 9, 3), opens=False)),
        ("0500000000000000000000004c03000000010171770" + "1ff", Begin((0, 9, 5), None, True, "X'71',X'77',3")),
        ("0600000000000000000000008d030000000101717700", Begin((0, 9, 6), opens=False)),
        ("0500000000000000000000004e" + "1122334455667788" + "0300000001017177", Begin(
            (0, 9, 5), None, True, "X'71',X'77',3")),
    ],
)
def test_mariadb_gtid_read(digits: str, begin: Begin) -> None:
    assert gtid_events.read_mariadb_gtid(of(162, digits)) == begin


STATUS = bytes.fromhex("0000000000 012000a04500000000 0603737464 04ff00ff00ff00 12ff00")


@pytest.mark.parametrize(
    ("status", "raw", "text"),
    [
        (b"", "DROP TABLE ü".encode(), "DROP TABLE ü"),
        (STATUS, "DROP TABLE ü".encode(), "DROP TABLE ü"),
        (STATUS.replace(b"\x04\xff\x00", b"\x04\x08\x00"), "DROP TABLE ü".encode("latin-1"), "DROP TABLE ü"),
        (STATUS, "DROP TABLE ü".encode("latin-1"), "DROP TABLE �"),
    ],
)
def test_query_decoded_in_session_charset(status: bytes, raw: bytes, text: str) -> None:
    body = struct.pack("<IIBHH", 1, 0, 4, 0, len(status)) + status + b"shop\0" + raw
    query = control_events.read_query(plain(event(2, body)))
    assert (query.text, query.default_schema) == (text, "shop")


def test_compressed_query_inflated() -> None:
    text = b"DROP TABLE t" * 30
    packed = b"\x82" + len(text).to_bytes(2, "big") + zlib.compress(text)
    body = struct.pack("<IIBHH", 1, 0, 4, 0, 0) + b"shop\0" + packed
    assert control_events.read_query(plain(event(165, body))).text == "DROP TABLE t" * 30


@pytest.mark.parametrize(
    ("compressed", "number", "extra", "maps"),
    [
        (166, 23, b"", b"\xff"), (167, 24, b"", b"\xff\xff"), (168, 25, b"", b"\xff"), (169, 30, b"\x02\x00", b"\xff"),
        (170, 31, b"\x04\x00ab", b"\xff\xff"), (171, 32, b"\x02\x00", b"\xff"),
    ],
)
def test_compressed_rows_inflated(compressed: int, number: int, extra: bytes, maps: bytes) -> None:
    start, rows = b"\x12\0\0\0\0\0\x01\0" + extra + b"\x03" + maps, b"row" * 100
    packed = b"\x82" + len(rows).to_bytes(2, "big") + zlib.compress(rows)
    whole = packed_events.uncompressed_rows(plain(event(compressed, start + packed, end=900, flags=1)))
    assert whole[19:] == start + rows
    assert events.HEADER.unpack_from(whole) == (1_700_000_000, number, 9, len(whole), 900, 1)


INSIDE = [plain(event(2, b"one")), plain(event(16, b"two" * 1000))]
INSIDE_BYTES = b"".join(struct.pack("<IBIIIH", 1, e[4], 9, len(e), 0, 0) + e[19:] for e in INSIDE)


def test_payload_uncompressed_yields_events() -> None:
    size = b"\xfc" + struct.pack("<H", len(INSIDE_BYTES))
    body = b"\x02\x03\xfc\xff\x00" + b"\x01\x03" + size + b"\x00" + INSIDE_BYTES
    assert [e[19:] for e in packed_events.unpack_payload(plain(event(40, body)))] == [e[19:] for e in INSIDE]


def test_payload_recorded_from_mysql_9_yields_events() -> None:
    recorded = of(
        40,
        "0201000301ba0101840028b52ffd20badd0300d206172290abd0018fcbdfcca79939e464f852536ee6df8196ffab48b415c25738a142f"
        "69629ffbfd16c105c317ffbd4eb810271c5bc34709f4852e6dcbe754baf74cc8bbf0a57cc08e401353e114e4e44991800ca9ce887193f"
        "3bfeaa2b660c004b918819c86760a0af56590706ae15855c449678e03650f200bc",
    )
    found = list(packed_events.unpack_payload(recorded))
    assert [event[4] for event in found] == [2, 19, 30, 16]
    assert events.statement_bytes(found[0]) == b"BEGIN"
    assert found[2][19:].hex() == "8a0000000000" "1100" "0200" "01ff" "0002000000" "0003000000"


def test_payload_cut_off_raises_value_error() -> None:
    with pytest.raises(ValueError, match="cut off"):
        body = b"\x02\x03\xfc\xff\x00" + b"\x01\x01\x50" + b"\x00" + INSIDE_BYTES[:60]
        list(packed_events.unpack_payload(plain(event(40, body))))


def test_payload_unknown_compression_raises_value_error() -> None:
    with pytest.raises(ValueError, match="compression"):
        list(packed_events.unpack_payload(plain(event(40, b"\x02\x01\x07\x01\x01\x05\x00hello"))))


def test_table_map_columns_read() -> None:
    described = read_table_map(bytes.fromhex(
        "6c0000000000 0100 017800 017400 0c 030d100ff6fffefefcfcfe03 0f 0101 2800 0502 04 f701 f801 02 02 fe10 fe0f"
        "010170 0308fcff00fcff003f3f 070100 041c 026964 0179 0162 0176 0164 0167 0165 0173 027478 026262 02626e 016e"
        "0a03fcff00 05050201710172 06050201610162 080100 0c02fff0"
    ), mariadb=False)
    assert (described.schema_name, described.table_name) == ("x", "t")
    assert [(c.name, c.code, c.meta, c.nullable, c.unsigned, c.collation, c.key) for c in described.columns] == [
        ("id", 3, 0, False, False, None, 1), ("y", 13, 0, True, True, None, None),
        ("b", 16, 0x0101, True, False, None, None), ("v", 15, 40, True, False, 255, None),
        ("d", 246, 0x0205, True, True, None, None), ("g", 255, 4, True, False, None, None),
        ("e", 254, 0x01F7, True, False, 255, None), ("s", 254, 0x01F8, True, False, 255, None),
        ("tx", 252, 2, True, False, 255, None), ("bb", 252, 2, True, False, 63, None),
        ("bn", 254, 0x10FE, True, False, 63, None), ("n", 3, 0, True, True, None, None),
    ]
    assert [c.labels for c in described.columns if c.labels] == [(b"a", b"b"), (b"q", b"r")]


def test_table_map_without_metadata_has_no_names() -> None:
    described = read_table_map(bytes.fromhex("6c0000000000010001780001740002030f020a0002"), mariadb=False)
    columns = [(c.name, c.code, c.meta, c.nullable) for c in described.columns]
    assert columns == [(None, 3, 0, False), (None, 15, 10, True)]


ONE, TWO = b"\x00\x01\x00\x00\x00\x03abc", b"\x00\x01\x00\x00\x00\x02de"


@pytest.mark.parametrize(
    ("number", "rows", "seen"),
    [
        (31, b"\x02\xff\xff" + ONE + TWO, [(1, "de")]),
        (24, b"\x02\xff\xff" + ONE + TWO + TWO + b"\x02\x01\x00\x00\x00", [(1, "de"), (1, "")]),
        (31, b"\x02\x01\x02\x00\x07\x00\x00\x00\x00\x02de", [(7, "de")]),  # MINIMAL
    ],
)
def test_watermark_updates_read(number: int, rows: bytes, seen: list[tuple[int, str]]) -> None:
    head = bytes(8) + (b"\x02\x00" if number >= 30 else b"")
    assert list(watermarks.read_updates(plain(event(number, head + rows)))) == seen


@pytest.mark.parametrize(
    ("flavour", "before", "more", "after"),
    [
        ("mysql", "", [("a" * 32, "", 1)], "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa:1"),
        ("mysql", "", [("a" * 32, "", n) for n in (1, 2, 5, 4, 9, 3, 9)],
         "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa:1-5:9"),
        ("mysql", "AAAAAAAA-aaaa-aaaa-aaaa-aaaaaaaaaaaa:1-3:7:night:2,\nbbbbbbbb-bbbb-bbbb-bbbb-bbbbbbbbbbbb:4",
         [("a" * 32, "night", 1), ("a" * 32, "", 6)],
         "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa:1-3:6-7:night:1-2,bbbbbbbb-bbbb-bbbb-bbbb-bbbbbbbbbbbb:4"),
        ("mariadb", "", [(0, 1, 5)], "0-1-5"),
        ("mariadb", "0-1-5,7-1-1", [(0, 2, 6), (3, 1, 1)], "0-1-5,0-2-6,3-1-1,7-1-1"),
        ("mariadb", "0-1-5,0-2-6", [(0, 1, 7)], "0-2-6,0-1-7"),
    ],
)
def test_gtid_set_add_merges_intervals(
    flavour: str, before: str, more: list[tuple[object, object, int]], after: str
) -> None:
    done = executed_gtids(flavour, before)
    for gtid in more:
        done.add(gtid)
    assert str(done) == after
    assert str(executed_gtids(flavour, after)) == after


@pytest.mark.parametrize(
    ("token", "place"),
    [
        ("binlog.000003:1547@1732200000", LogPosition("binlog.000003", 1547, 1732200000)),
        ("a:b@c.1:4@9 0-1-5,1-1-1", LogPosition("a:b@c.1", 4, 9, "0-1-5,1-1-1")),
        ("b.1:4@9 =0-1-5", LogPosition("b.1", 4, 9, "0-1-5", is_exact=True)),
        ("b.1:4@9 =", LogPosition("b.1", 4, 9, "", is_exact=True)),
    ],
)
def test_log_position_token_round_trip(token: str, place: LogPosition) -> None:
    assert LogPosition.parse(token) == place
    assert place.token == token


@pytest.mark.parametrize("token", ["", "binlog.000003", "0/16B3748", "binlog.000003:x@1"])
def test_log_position_invalid_token_raises(token: str) -> None:
    with pytest.raises(ValueError, match="not a binlog position"):
        LogPosition.parse(token)


def test_lsn_orders_files_and_offsets_as_numbers() -> None:
    found = [("b.999999", 4), ("b.999999", 5 << 30), ("b.1000000", 4), ("b.1000001", 4)]
    places = [binlog_number(*one) for one in found]
    assert places == sorted(set(places))
    assert unwrap_offset(10, 0xFFFFFFF0) == 0x1_0000_000A
    assert unwrap_offset(0xFFFFFFF0, 0xFFFFFFF0) == 0xFFFFFFF0


_A, _B = "a" * 8 + "-aaaa" * 3 + "-" + "a" * 12, "b" * 8 + "-bbbb" * 3 + "-" + "b" * 12


@pytest.mark.parametrize(
    ("flavour", "one", "other", "count", "text"),
    [
        ("mysql", f"{_A}:1-5", f"{_A}:1-9,{_B}:1", 0, ""),
        ("mysql", f"{_A}:1-5:9:night:1-2,{_B}:4", f"{_A}:1-3:night:2", 5, f"{_A}:4-5:9:night:1,{_B}:4"),
        ("mysql", f"{_A}:5", "", 1, f"{_A}:5"),
        ("mariadb", "0-1-81,3-1-4", "0-1-80,0-2-90,3-1-4", 1, "0-1-81"),
        ("mariadb", "0-1-81", "0-2-81", 81, "0-1-1 to 81"),
        # A log that has a domain's last transaction has all before it.
        ("mariadb", "0-1-81,0-2-90", "0-2-95", 0, ""),
    ],
)
def test_absent_transactions_are_counted_and_named(
    flavour: str, one: str, other: str, count: int, text: str
) -> None:
    absent = executed_gtids(flavour, one).absent_from(executed_gtids(flavour, other))
    assert (absent.count, absent.text) == (count, text)


@pytest.mark.parametrize(
    ("before", "known", "own", "text"),
    [
        ("0-1-50", "0-1-80", 2, ""),
        ("0-1-50,0-2-51", "0-1-80", 2, "0-2-1 to 51"),  # the server's own, which landing's server never sent
        ("0-7-40,0-1-50", "0-1-80", 2, ""),  # an earlier primary's, of before the landed log
        ("0-7-90", "0-1-80", 2, "0-7-1 to 90"),
        ("0-1-81,5-1-1", "0-1-80", 2, "0-1-81, 5-1-1"),
    ],
)
def test_unplaced_mariadb_transactions_are_named(before: str, known: str, own: int, text: str) -> None:
    unplaced = executed_gtids("mariadb", before).unplaced_by(executed_gtids("mariadb", known), own)
    assert unplaced.text == text


def test_gtid_set_algebra_equals_model() -> None:
    dice = random.Random(6)
    for _ in range(60):
        every = [(server * 32, tag, n) for server in "ab" for tag in ("", "night") for n in range(1, 12)]
        models = [set(dice.sample(every, dice.randrange(20))) for _ in range(2)]
        sets = []
        for model in models:
            executed = executed_gtids("mysql", "")
            for gtid in sorted(model, key=lambda _: dice.random()):
                executed.add(gtid)
            sets.append(executed)
        one, other = sets
        assert _gtids_in(str(one.minus(other))) == models[0] - models[1]
        assert _gtids_in(str(one.plus(other))) == models[0] | models[1]
        assert one.absent_from(other).count == len(models[0] - models[1])
        assert {gtid for gtid in every if one.has(gtid)} == models[0]


def test_gtid_set_equals_model_on_random_gtids() -> None:
    """Several servers and tags in turn, numbers with gaps and repetitions, and the text between them."""
    dice = random.Random(5)
    for _ in range(40):
        done, model = executed_gtids("mysql", ""), set()
        for _ in range(dice.randrange(1, 120)):
            gtid = (dice.choice("ab") * 32, dice.choice(["", "", "night"]), dice.randrange(1, 40))
            done.add(gtid)
            model.add(gtid)
            if dice.random() < 0.1:
                done = executed_gtids("mysql", str(done))
        assert _gtids_in(str(done)) == model


def _gtids_in(text: str) -> set[tuple[str, str, int]]:
    gtids = set()
    for part in filter(None, text.split(",")):
        server, *words = part.split(":")
        tag = ""
        for word in words:
            if not word[0].isdigit():
                tag = word
                continue
            first, _, last = word.partition("-")
            gtids |= {(server.replace("-", ""), tag, number) for number in range(int(first), int(last or first) + 1)}
    return gtids
