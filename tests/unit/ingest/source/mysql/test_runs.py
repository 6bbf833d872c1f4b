"""Runs framed at once give what the same events give one by one, whatever lies between and wherever a piece is full."""

from __future__ import annotations

import random
import struct
import zlib
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pytest

from dblake.base.core.errors import DblakeError
from dblake.base.core.log_places import binlog_number
from dblake.base.core.position import Position
from dblake.ingest.source.mysql import checksums, runs
from dblake.ingest.source.mysql.gtids import executed_gtids
from dblake.ingest.source.mysql.log_position import LogPosition
from dblake.ingest.source.mysql.packets import PacketEvents
from dblake.ingest.source.mysql.pieces import PieceBuilder
from dblake.ingest.source.mysql.relations import Relations
from dblake.ingest.source.mysql.settings import MysqlSettings
from dblake.ingest.source.mysql.transactions import Transactions
from tests.unit.ingest.source.mysql.binlog import File, event, xa_prepare

NAME = "binlog.000007"
_MUCH = 1 << 20
Flavour = Literal["mysql", "mariadb"]


def settings(flavour: Flavour) -> MysqlSettings:
    return MysqlSettings("shop", flavour, "127.0.0.1", 1, "u", "p", ("shop.*",), tls="disable")


def pieces(
    came: list[list[bytes]], flavour: Flavour = "mysql", *, start: int = 4, most_bytes: int = _MUCH,
    most_rows: int = _MUCH, skip_to: Position | None = None,
) -> list[Any]:
    """All that a stream gives out, and the error that ends it, if one does; ``came`` are the events of each read."""
    builder = PieceBuilder(1, skip_to)
    transactions = Transactions(
        "shop", Relations(settings(flavour), folds_names=False), builder, LogPosition(NAME, start), begins=start,
        executed=executed_gtids(flavour, ""),
    )
    found: list[Any] = []

    def cut(*, inside: bool) -> None:
        piece = builder.cut(inside=inside)
        transactions.clear_ended()
        token = builder.oldest_prepared or transactions.token
        found.append((piece.rows.to_pylist(), piece.watermarks, piece.landed, piece.bytes, token))

    builder.limit(most_bytes, most_rows)
    try:
        for events in came:
            packed = PacketEvents.of(events)
            room = bytearray(packed.data)
            for _ in transactions.feed(PacketEvents(memoryview(room), packed.packets)):
                if builder.is_full:
                    cut(inside=True)
            # The next read is into the same room.
            room[:] = b"\xff" * len(room)
    except DblakeError as error:
        found.append(str(error))
    if transactions.has_ended:
        cut(inside=False)
    return found


class Busy(File):
    """A log in which most transactions are plain, of either flavour."""

    def __init__(self, dice: random.Random, flavour: Flavour, offset: int = 4, name: str = NAME) -> None:
        super().__init__(name, offset)
        self.dice, self.flavour, self.number = dice, flavour, 0
        self.prepared: list[str] = []

    def begin(self) -> None:
        self.number += self.dice.choice([1, 1, 1, 1, 1, 2])
        stamp = {"stamp": 1_700_000_000 + self.number}
        if self.flavour == "mariadb":
            domain = self.dice.choice([0, 0, 0, 0, 3])
            self.add(162, struct.pack("<QIB", self.number, domain, self.dice.choice([0, 4, 2])) + bytes(6), **stamp)
            return
        self.dice.choice([self.gtid, self.gtid, self.gtid, self.anonymous])(self.number, 1_700_000_000 + self.number)
        if self.dice.random() < 0.9:
            self.query("BEGIN", status=self.dice.choice([b"", b"\x00\x01\x00\x00\x00"]))

    def anonymous(self, number: int, micros: int) -> File:
        stamp = micros.to_bytes(7, "little")
        return self.add(34, b"\x00" + bytes(16) + struct.pack("<qBqq", number, 2, 0, 1) + stamp + b"\x00")

    def statement(self) -> None:
        kind = self.dice.random()
        if kind < 0.2:
            self.table(2, "other", "t").rows(2)
        elif kind < 0.3:
            self.watermark()
        elif kind < 0.4:
            self.table(1, "shop", "t").table(3, "shop", "u").rows(1).rows(3, 24 if self.flavour == "mariadb" else 31)
        elif kind < 0.5:
            self.add(160 if self.flavour == "mariadb" else 29, b"update t")
        else:
            number, name = self.dice.choice([(1, "t"), (3, "u"), (3, "u")])
            self.table(number, "shop", name)
            for _ in range(self.dice.choice([1, 1, 2, 5])):
                size = self.dice.choice([4, 4, 40, 400, 3000])
                self.rows(number, body=b"\x01\xff\x00" + self.dice.randbytes(size))

    def watermark(self) -> None:
        value = self.dice.randbytes(8).hex().encode()
        image = b"\x00" + struct.pack("<i", self.dice.choice([0, 1, 2])) + bytes([len(value)]) + value
        self.table(9, settings(self.flavour).watermark_schema, "watermark")
        self.rows(9, 31, b"\x02\xff\xff" + image + image)

    def plain(self) -> None:
        self.begin()
        for _ in range(self.dice.choice([0, 1, 1, 1, 3])):
            self.statement()
        self.xid()

    def artificial(self) -> None:
        """Add a transaction whose end event is artificial: it has no position in the file."""
        self.begin()
        self.table(1, "shop", "t").rows(1).add(16, bytes(8), flags=0x20)

    def xa(self) -> None:
        """Prepare an XA transaction, or end a prepared one."""
        self.begin()
        if self.prepared and self.dice.random() < 0.7:
            end = self.dice.choice(["XA COMMIT", "XA COMMIT", "XA ROLLBACK"])
            self.query(f"{end} {self.prepared.pop(self.dice.randrange(len(self.prepared)))}")
            return
        name = f"n{self.number}"
        self.prepared.append(f"X'{name.encode().hex()}',X'',1")
        self.query(f"XA START {self.prepared[-1]}").table(1, "shop", "t").rows(1).query(f"XA END {self.prepared[-1]}")
        self.add(38, xa_prepare(name.encode()))

    def unreadable(self) -> None:
        """Add a transaction that is plain by its headers and has an invalid part."""
        self.begin()
        if self.dice.random() < 0.5:
            self.table(9, settings(self.flavour).watermark_schema, "watermark").rows(9, 31, b"\x03\xff\xff" + bytes(20))
        else:
            self.add(19, (77).to_bytes(6, "little") + b"\x01\x00")
        self.table(1, "shop", "t").rows(1).xid()

    def unusual(self) -> None:
        """Add a transaction, or an event between two, that belongs to no run."""
        kind = self.dice.randrange(11)
        if kind == 0:
            self.begin()
            self.query("ALTER TABLE t ADD x int")
            if self.flavour == "mariadb":
                self.xid()
        elif kind == 1:
            self.begin()
            self.table(1, "shop", "t").rows(1).query("SAVEPOINT a").rows(1).xid()
        elif kind == 2:
            self.query("BEGIN").table(3, "shop", "u").rows(3).query("COMMIT")
        elif kind == 3:
            self.begin()
            self.table(1, "shop", "t").rows(1).query("COMMIT")
        elif kind == 4:
            # The table id now refers to another table, whose schema has no row yet.
            self.begin()
            self.table(3, "shop", self.dice.choice("vwx")).rows(3).xid()
        elif kind == 5:
            self.events.append(event(27, NAME.encode(), flags=0x20))
        elif kind == 8:
            self.artificial()
        elif kind == 9 and self.flavour == "mysql":
            self.xa()
        elif kind == 6:
            self.add(29, b"ignored")
        elif kind == 7:
            self.begin()
            self.table(1, "shop", "t").rows(1).rows(0xFFFFFF, body=b"\x00").xid()
        else:
            self.begin()
            self.table(1, "shop", "t").rows(3 if self.dice.random() < 0.1 else 1).xid()


def without_checksum(one: bytes) -> bytes:
    size = int.from_bytes(one[9:13], "little") - 4
    return one[:9] + size.to_bytes(4, "little") + one[13:-4]


def log(seed: int, flavour: Flavour, offset: int = 4) -> list[bytes]:
    dice = random.Random(seed)
    file = Busy(dice, flavour, offset)
    for _ in range(dice.randrange(1, 6)):
        for _ in range(dice.choice([0, 1, 3])):
            file.unusual()
        for _ in range(dice.choice([2, 9, 40, 90])):
            file.plain()
        if dice.random() < 0.03:
            file.unreadable()
    if dice.random() < 0.2:
        following = Busy(dice, flavour, name="binlog.000008")
        following.number = file.number
        for _ in range(20):
            following.plain()
        file.rotate(following)
    elif dice.random() < 0.2:
        file.artificial()
    events = file.events
    if dice.random() < 0.15:
        events = [one if one[4] in (4, 15) else without_checksum(one) for one in events]
        events[1] = events[1][:-5] + b"\x00" + bytes(4)
    if dice.random() < 0.1:
        # Sound, but with less in it than its kind has.
        place = dice.randrange(2, len(events))
        body = events[place][19:-4][: dice.randrange(20)]
        kind, flags = events[place][4], events[place][17]
        end = int.from_bytes(events[place][13:17], "little")
        events[place] = event(kind, body, end=end, flags=flags)
    if dice.random() < 0.05:
        place = dice.randrange(2, len(events))
        events[place] = events[place][: dice.randrange(1, 19)]
    if dice.random() < 0.1:
        place = dice.randrange(2, len(events))
        damaged = bytearray(events[place])
        damaged[dice.randrange(len(damaged))] ^= 1 << dice.randrange(8)
        events[place] = bytes(damaged)
    return events


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many transactions were framed together, each time."""
    counts: list[int] = []
    framed = runs.Run.frame

    def counted(*args: Any) -> runs.Framed | None:
        found = framed(*args)
        counts.append(found.transactions if found else 0)
        return found

    monkeypatch.setattr(runs.Run, "frame", counted)
    return counts


@pytest.mark.parametrize("flavour", ["mysql", "mariadb"])
@pytest.mark.parametrize(
    "seeds", [range(25, 50), pytest.param(range(100), marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_runs_equal_single_events_on_random_logs(
    flavour: Flavour, seeds: range, taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the log contains, and wherever a read or a piece ends, runs and single events give the same pieces."""
    # The log lacks nothing that the catalog would have to supply.
    monkeypatch.setattr(Relations, "_catalog_types", lambda *_: {})
    for seed in seeds:
        dice = random.Random(-seed)
        offset = dice.choice([4, 4, 4, 0xFFFF_FFFF - 20_000])
        limits: dict[str, Any] = {
            "most_bytes": dice.choice([_MUCH, _MUCH, 4000, 900]), "most_rows": dice.choice([_MUCH, _MUCH, 70, 1]),
        }
        events = log(seed, flavour, offset)
        single = [[one] for one in events]
        alone = pieces(single, flavour, start=offset, **limits)
        rows = [row for piece in alone if not isinstance(piece, str) for row in piece[0] if row["kind"] == "row"]
        if rows and dice.random() < 0.2:
            row = dice.choice(rows)
            limits["skip_to"] = Position(1, row["lsn"], row["seq"])
            alone = pieces(single, flavour, start=offset, **limits)
        cuts = sorted({0, len(events), *(dice.randrange(len(events)) for _ in range(dice.choice([1, 3, 9])))})
        parts = [events[first:last] for first, last in pairwise(cuts)]
        together = pieces(parts, flavour, start=offset, **limits)
        assert together == alone, f"seed {seed}"
    assert sum(taken) > 10 * len(seeds), "hardly any transactions were framed in runs"


def test_run_covers_all_plain_transactions(taken: list[int]) -> None:
    file = Busy(random.Random(1), "mysql")
    for _ in range(1000):
        file.plain()
    pieces([file.events[:60], file.events[60:]])
    assert taken[-1] > 900


@pytest.mark.parametrize("what", ["watermark", "map"])
def test_unreadable_event_in_run_raises_at_its_position(what: str) -> None:
    file = Busy(random.Random(1), "mysql")
    for number in range(60):
        file.gtid(number)
        if number == 50 and what == "watermark":
            file.table(9, settings("mysql").watermark_schema, "watermark").rows(9, 31, b"\x03\xff\xff" + bytes(20))
        elif number == 50:
            file.add(19, (77).to_bytes(6, "little") + b"\x01\x00")
        file.table(1, "shop", "t").rows(1).xid()
    together = pieces([file.events[:30], file.events[30:]])
    assert together == pieces([[one] for one in file.events])
    error, (rows, *_, token) = together
    assert isinstance(error, str) and sum(row["kind"] == "row" for row in rows) == 50 and token.endswith(":0-49")


def test_resume_inside_runs_skips_landed_watermarks() -> None:
    file = Busy(random.Random(1), "mysql")

    def watermarks() -> None:
        for number in range(20):
            file.gtid(number)
            file.watermark()
            file.xid()

    watermarks()
    landed, before = Position(1, binlog_number(NAME, file.at), 5 << 20), len(file.events)
    file.change(number=20)
    behind = len(file.events)
    watermarks()
    reads = [file.events[:before], file.events[before:behind], file.events[behind:]]
    together = pieces(reads, skip_to=landed)
    assert together == pieces([[one] for one in file.events], skip_to=landed)
    ((rows, seen, *_),) = together
    assert rows == [] and len(seen) == 20 and all(mark.position.lsn > landed.lsn for mark in seen)


@pytest.mark.parametrize("size", [10, 5000])
def test_damaged_event_in_run_raises_at_its_position(size: int) -> None:
    file = Busy(random.Random(1), "mysql")
    for number in range(40):
        file.gtid(number).table(1, "shop", "t").rows(1, body=bytes(size)).xid()
    file.events[100] = file.events[100][:-10] + b"\xff" + file.events[100][-9:]
    together = pieces([file.events[:20], file.events[20:]])
    assert together == pieces([[one] for one in file.events])
    assert isinstance(together[0], str) and "checksum" in together[0]


@pytest.mark.parametrize("before", [0, 2])
def test_run_without_rows_keeps_earlier_rows(taken: list[int], before: int) -> None:
    file = Busy(random.Random(1), "mysql")
    for number in range(before):
        file.change(number=number)
    first = len(file.events)
    for number in range(20):
        file.gtid(100 + number)
        file.watermark() if number % 5 == 0 else file.table(2, "other", "t").rows(2)
        file.xid()
    assert pieces([file.events[:first], file.events[first:]]) == pieces([[one] for one in file.events])
    assert taken == [20]


@pytest.mark.parametrize("at_once", [1 << 20, 4096, 64])
def test_crc32_of_many_equals_crc32_of_each(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(checksums, "_BLOCK_BYTES", at_once)
    checksums._zero_shift_table.cache_clear()
    dice = random.Random(3)
    for _ in range(100):
        bodies = [dice.randbytes(dice.randrange(1, 300)) for _ in range(dice.randrange(1, 100))]
        whole = bytearray(b"".join(body + zlib.crc32(body).to_bytes(4, "little") for body in bodies))
        sizes = np.array([len(body) + 4 for body in bodies])
        assert checksums.all_crc32_valid(memoryview(bytes(whole)), sizes)
        whole[dice.randrange(len(whole))] ^= 1 << dice.randrange(8)
        assert not checksums.all_crc32_valid(memoryview(bytes(whole)), sizes)
    checksums._zero_shift_table.cache_clear()
