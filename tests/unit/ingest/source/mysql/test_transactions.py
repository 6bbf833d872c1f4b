"""Events become transactions and rows: on bytes built here, for what no server of today sends when asked."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from dblake.base.core.errors import DblakeError, PositionLost, SourceError, Unsupported
from dblake.base.core.log_places import binlog_number
from dblake.base.core.position import Position
from dblake.ingest.source.mysql import prepared
from dblake.ingest.source.mysql.gtids import executed_gtids
from dblake.ingest.source.mysql.log_position import LogPosition
from dblake.ingest.source.mysql.packets import PacketEvents
from dblake.ingest.source.mysql.pieces import Cut, PieceBuilder
from dblake.ingest.source.mysql.relations import Relations
from dblake.ingest.source.mysql.settings import MysqlSettings
from dblake.ingest.source.mysql.transactions import Transactions
from tests.unit.ingest.source.mysql.binlog import File, event, xa_prepare

SETTINGS = MysqlSettings("shop", "mysql", "127.0.0.1", 1, "u", "p", ("shop.*",), tls="disable")
NAME = "binlog.000007"


class Follower:
    """What a stream makes of files."""

    def __init__(self, place: LogPosition, *, begins: int | None = None, skip_to: Position | None = None) -> None:
        self.pieces = PieceBuilder(1, skip_to)
        self.relations = Relations(SETTINGS, folds_names=False)
        self.transactions = Transactions(
            "shop", self.relations, self.pieces, place,
            begins=place.offset if begins is None else begins, executed=executed_gtids("mysql", ""),
        )

    def take(self, events: list[bytes]) -> Cut:
        for _ in self.transactions.feed(PacketEvents.of(events)):
            pass
        return self.pieces.cut(inside=False)


def follow(file: File, **facts: Any) -> tuple[Follower, list[dict[str, Any]]]:
    follower = Follower(LogPosition(file.name, 4), **facts)
    return follower, [row for row in follower.take(file.events).rows.to_pylist() if row["kind"] != "schema"]


def token(follower: Follower) -> str:
    return str(LogPosition.parse(follower.transactions.token))


def test_rows_have_position_and_commit_time() -> None:
    file = File(NAME).gtid(1).query("BEGIN").table(1, "shop", "t").table(2, "other", "t").rows(1).rows(2).rows(1).xid()
    follower, rows = follow(file)
    assert [(row["lsn"], row["seq"], row["last_in_txn"]) for row in rows] == [
        (binlog_number(NAME, 4), 0, False), (binlog_number(NAME, 4), 2 << 20, True),
    ]
    assert {row["committed_at"].isoformat() for row in rows} == {"2023-11-14T22:13:20.123456+00:00"}
    assert follower.transactions.token == f"{NAME}:{file.at}@1600000000 00000000-0000-0000-0000-000000000007:1"


def test_transaction_without_gtid_bounded_by_begin_commit() -> None:
    file = File(NAME).query("BEGIN").table(1, "shop", "t").rows(1).query("COMMIT").query("BEGIN")
    file.table(1, "shop", "t").rows(1)
    follower, rows = follow(file)
    assert [(row["lsn"], row["last_in_txn"]) for row in rows] == [(binlog_number(NAME, 4), True)]
    assert token(follower) == f"{NAME}:{file.starts[4]}"


def test_file_number_of_seven_digits_follows_six() -> None:
    last = File("binlog.999999").change()
    last.rotate(File("binlog.1000000").change(number=2))
    _, rows = follow(last)
    assert [row["lsn"] for row in rows] == [999_999 << 36 | 4, 1_000_000 << 36 | 4]


def test_offsets_unwrap_past_4_gib() -> None:
    file = File(NAME, 0xFFFF_FF20)
    file.change().change()
    follower = Follower(LogPosition(NAME, 0xFFFF_FF20))
    rows = [row for row in follower.take(file.events).rows.to_pylist() if row["kind"] == "row"]
    second = file.starts[5]
    assert second > 1 << 32
    assert [row["lsn"] for row in rows] == [binlog_number(NAME, 0xFFFF_FF20), binlog_number(NAME, second)]
    assert token(follower) == f"{NAME}:{file.at}"


def test_resume_past_4_gib_skips_from_file_start() -> None:
    file = File(NAME).change()
    file.add(40, b"\x00" * 40)  # in place of a transaction that fills the file; it is skipped unread
    file.at = (1 << 32) + 1000
    resumed = Follower(LogPosition(NAME, file.at), begins=4)
    file.events.insert(-1, event(29, b"", end=0xFFFF_FFF0))
    file.change()
    rows = [row for row in resumed.take(file.events).rows.to_pylist() if row["kind"] == "row"]
    assert [row["lsn"] for row in rows] == [binlog_number(NAME, (1 << 32) + 1000)]


XA_NAME = "X'71',X'',1"


def xa(file: File) -> File:
    return file.gtid(1).query(f"XA START {XA_NAME}").table(1, "shop", "t").rows(1).query(f"XA END {XA_NAME}")


def test_xa_rows_held_and_token_kept_before_prepare() -> None:
    file = xa(File(NAME)).add(38, xa_prepare(b"q")).change(number=2)
    follower = Follower(LogPosition(NAME, 4, 1_600_000_000))
    cut = follower.take(file.events)
    assert [row["lsn"] for row in cut.rows.to_pylist()] == [binlog_number(NAME, file.starts[6])] * 2  # its schema, too
    assert follower.pieces.oldest_prepared == f"{NAME}:4@1600000000"
    assert cut.landed == Position(1, binlog_number(NAME, file.starts[6]), Position.MAX)
    begun = file.at
    more = len(file.events)
    file.gtid(3).query(f"XA COMMIT {XA_NAME}")
    cut = follower.take(file.events[more:])
    assert [(row["lsn"], row["last_in_txn"]) for row in cut.rows.to_pylist()] == [(binlog_number(NAME, begun), True)]
    assert cut.landed is None
    assert follower.pieces.oldest_prepared is None

    again = Follower(LogPosition(NAME, 4), skip_to=Position(1, binlog_number(NAME, file.starts[6]), Position.MAX))
    cut = again.take(file.events)
    assert [row["lsn"] for row in cut.rows.to_pylist() if row["kind"] == "row"] == [binlog_number(NAME, begun)]


def test_xa_rows_above_memory_limit_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared, "_MAX_HELD_BYTES", 100)
    file = xa(File(NAME)).add(38, xa_prepare(b"q"))
    follow(file)
    with pytest.raises(Unsupported, match="XA transactions that are prepared but not committed have more than"):
        follow(file.gtid(2).query("XA START X'72',X'',1").table(1, "shop", "t").rows(1).rows(1))


def test_xa_one_phase_commits_at_once() -> None:
    file = xa(File(NAME)).add(38, xa_prepare(b"q", one_phase=True))
    follower, rows = follow(file)
    assert [row["last_in_txn"] for row in rows] == [True]
    assert follower.pieces.oldest_prepared is None


def test_transaction_cut_in_middle_resumes_behind_landed_rows() -> None:
    file = File(NAME).gtid().query("BEGIN").table(1, "shop", "t").rows(1).rows(1).rows(1).xid().change()
    follower = Follower(LogPosition(NAME, 4))
    for _ in follower.transactions.feed(PacketEvents.of(file.events[:-6])):
        pass
    cut = follower.pieces.cut(inside=True)
    assert cut.landed == Position(1, binlog_number(NAME, 4), (2 << 20) - 1)
    assert [row["kind"] for row in cut.rows.to_pylist()] == ["schema", "row", "row"]
    rest = Follower(LogPosition(NAME, 4), skip_to=cut.landed).take(file.events).rows.to_pylist()
    assert [(row["seq"], row["last_in_txn"]) for row in rest if row["kind"] == "row"] == [(2 << 20, True), (0, True)]


def test_partly_landed_transaction_missing_is_gap() -> None:
    file = File(NAME).change().change()
    follower = Follower(LogPosition(NAME, 4), skip_to=Position(1, binlog_number(NAME, 5), 3))
    with pytest.raises(PositionLost, match="a gap"):
        follower.take(file.events)


def broken_off(*, parted: bool) -> Follower:
    file = File(NAME).gtid().query("BEGIN").table(1, "shop", "t").rows(1).rows(1)
    follower = Follower(LogPosition(NAME, 4))
    for _ in follower.transactions.feed(PacketEvents.of(file.events)):
        pass
    follower.pieces.cut(inside=parted)
    return follower


def test_crash_discards_open_transaction() -> None:
    follower = broken_off(parted=False)
    rows = follower.take(File("binlog.000008").change().events).rows.to_pylist()
    # The schema row was discarded with the transaction, so it is written again.
    assert [(row["kind"], row["lsn"] >> 36) for row in rows] == [("schema", 8), ("row", 8)]


def test_crash_of_partly_landed_transaction_is_gap() -> None:
    with pytest.raises(PositionLost, match="lost in a crash of the server, a gap"):
        broken_off(parted=True).take(File("binlog.000008").change().events)


def opened() -> File:
    return File(NAME).change(number=1).gtid(2).query("BEGIN").table(1, "shop", "t").table(2, "other", "t")


@pytest.mark.parametrize(
    ("add", "kind", "what"),
    [
        (lambda f: f.add(26, b"\x01\x00\x00"), PositionLost, "an INCIDENT event: changes may be missing, a gap"),
        (lambda f: f.add(99), Unsupported, "an event of type 99 (unknown), which may be a change"),
        (lambda f: f.add(17, bytes(9)), Unsupported, "an event of type 17 (BEGIN_LOAD_QUERY), which may be"),
        (lambda f: f.add(18, bytes(40)), Unsupported, "an event of type 18 (EXECUTE_LOAD_QUERY), which may be"),
        (lambda f: f.query("UPDATE dblake.watermark SET value = 'x'"), Unsupported, "a change of the watermark table"),
        (lambda f: f.query("DELETE x, y FROM x JOIN y"), Unsupported, "a change of tables that cannot be determined"),
        (lambda f: f.query("FROBNICATE t"), Unsupported, "a statement of a kind that dblake does not know"),
        (lambda f: f.rows(3), SourceError, "rows of a table that the log did not describe"),
        (lambda f: f.gtid(3).query("BEGIN").rows(3), SourceError, "a transaction begins inside another"),
        (lambda f: f.add(40, b"\x01\x01\x09\x00"), Unsupported, "an event of type 40 that cannot be read"),
        (lambda f: f.rows(1, 167, b"\x01\xff\xff\x99"), Unsupported, "an event of type 167 that cannot be read"),
    ],
)
def test_rejected_event_named_after_preceding_transactions(
    add: Callable[[File], File], kind: type[DblakeError], what: str
) -> None:
    file = opened()
    where = file.at
    add(file)
    follower = Follower(LogPosition(NAME, 4))
    with pytest.raises(kind) as refused:
        follower.take(file.events)
    assert refused.value.what.startswith(f"source shop: at {NAME}:{where} of the log: ")
    assert what in refused.value.what
    assert follower.transactions.has_ended
    assert token(follower) == f"{NAME}:{file.starts[5]}"


@pytest.mark.parametrize(
    "add",
    [
        lambda f: f.add(99, flags=0x80),
        lambda f: f.rows(2, 39),
        lambda f: f.query("INSERT INTO other.t VALUES (1)"),
        lambda f: f.query("SAVEPOINT s").query("ROLLBACK TO s"),
        lambda f: f.add(29, b"\x03SQL").add(5, bytes(9)).add(13, bytes(16)).add(14, bytes(9)),
        lambda f: f.add(0xFF & 160, b"SQL").add(36).add(37).add(161),
        lambda f: f.rows(0xFFFFFF),
        lambda f: f.add(27),
        lambda f: f,
    ],
)
def test_harmless_event_leaves_no_rows(add: Callable[[File], File]) -> None:
    file = add(opened()).xid().change(number=3)
    follower, rows = follow(file)
    assert [row["last_in_txn"] for row in rows] == [True, True]
    assert token(follower) == f"{NAME}:{file.at}"


@pytest.mark.parametrize("text", ["ROLLBACK", "ROLLBACK TO `s`"])
def test_rollback_of_logged_rows_rejected(text: str) -> None:
    with pytest.raises(Unsupported, match="rolled back after its rows were logged"):
        follow(opened().rows(1).query(text))
    follow(opened().rows(2).query(text))


def test_wrong_checksum_is_gap() -> None:
    file = opened()
    file.rows(1)
    file.events[-1] = file.events[-1][:-6] + b"\xee" + file.events[-1][-5:]
    with pytest.raises(PositionLost, match="checksum is wrong, so what follows is a gap"):
        follow(file)


def test_file_without_checksums_read() -> None:
    file = File(NAME).change()
    head, (description, *rest) = file.events[0], file.events[1:]
    bare = [description[:-5] + b"\x00" + description[-4:]]
    # Sizes in the headers count what is there.
    bare += [e[:9] + struct.pack("<I", len(e) - 4) + struct.pack("<I", 0) + e[17:-4] for e in rest]
    at = 4
    for n in range(1, len(bare)):
        at += len(bare[n])
        bare[n] = bare[n][:13] + struct.pack("<I", at) + bare[n][17:]
    rows = Follower(LogPosition(NAME, 4)).take([head, *bare]).rows.to_pylist()
    found = [(row["lsn"], row["last_in_txn"]) for row in rows if row["kind"] == "row"]
    assert found == [(binlog_number(NAME, 4), True)]


@pytest.mark.parametrize(
    ("add", "reason"),
    [
        (lambda f: f.rows(1, 39), "an update was logged with parts of JSON values only"),
        (lambda f: f.query("INSERT INTO t VALUES (1)"), "a change was logged as a statement, not as rows"),
    ],
)
def test_uncapturable_change_rejects_its_table_only(add: Callable[[File], File], reason: str) -> None:
    file = add(opened()).xid()
    follower, rows = follow(file)
    (rejected,) = follower.relations.take_rejected().items()
    assert rejected[0] == "shop.t"
    assert rejected[1].startswith(reason)
    assert follower.relations.take_rejected() == {}
    assert len(rows) == len(follow(opened().xid())[1])


def test_captured_table_without_column_names_rejected() -> None:
    minimal = bytes.fromhex("010000000000010004") + b"shop\0\x01t\0" + b"\x01\x03\x00\x00"
    follower, _ = follow(File(NAME).gtid().query("BEGIN").add(19, minimal))
    assert follower.relations.take_rejected() == {
        "shop.t": "the log does not name its columns: binlog_row_metadata was not FULL"
    }
    follow(File(NAME).gtid().query("BEGIN").add(19, minimal.replace(b"shop", b"othe")).rows(1).xid())
