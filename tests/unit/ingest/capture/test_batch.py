"""Batches: numbering, the columns that landing adds, the limits, and blocked chunk readers."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest

from dblake.base.core.position import ResumePoint
from dblake.base.core.schema import Column, TableSchema
from dblake.ingest.capture.batch import BatchBuilder, Closed, NoRoom
from dblake.ingest.capture.open_chunk import OpenChunk
from dblake.landing.columns import CAPTURED, COPY, LANDING

SCHEMA = TableSchema("public.t", (Column("id", "integer", False, 1),))


def builder(*, max_rows: int = 100, max_bytes: int = 10_000) -> BatchBuilder:
    return BatchBuilder(first=5, lease_epoch=3, resume=ResumePoint(1, "0"), max_bytes=max_bytes, max_rows=max_rows)


def log(*seqs: int) -> pa.Table:
    return pa.Table.from_pylist(
        [{"incarnation": 1, "lsn": 7, "seq": seq, "kind": "row", "table": "public.t"} for seq in seqs], schema=CAPTURED
    )


def chunk() -> OpenChunk:
    return OpenChunk("d", "public.t", 1, chunk_id="c")


def lines(*texts: str) -> pa.BinaryArray:
    return pa.array([text.encode() for text in texts], pa.binary())


def test_batches_are_numbered_and_stamped() -> None:
    batches = builder()
    batches.add_log([log(0, 2)], 20, ResumePoint(1, "10"), [], {"h"}, "h")
    first = batches.take()
    batches.add_log([log(4)], 10, ResumePoint(1, "20"), [], set(), "")
    second = batches.take()
    assert (first.number, first.resume.token, first.heartbeats, first.heartbeat) == (5, "10", {"h"}, "h")
    assert (second.number, second.resume.token, second.heartbeats) == (6, "20", set())
    assert first.rows.schema.equals(LANDING)
    assert (first.rows["batch"].to_pylist(), second.rows["batch"].to_pylist()) == ([5, 5], [6])
    assert set(first.rows["lease_epoch"].to_pylist()) == {3}
    assert batches.rows == 0


@pytest.mark.parametrize(("limits", "full"), [({"max_rows": 3}, False), ({"max_rows": 2}, True),
                                              ({"max_bytes": 21}, False), ({"max_bytes": 20}, True)])
def test_batch_is_full_at_either_limit(limits: dict[str, int], full: bool) -> None:
    batches = builder(**limits)
    batches.add_log([log(0, 2)], 20, ResumePoint(1, "10"), [], set(), "")
    assert batches.is_full is full
    batches.take()
    assert not batches.is_full


def test_stretched_batch_is_full_and_has_room() -> None:
    """It is to be committed, and takes more until that begins."""
    batches = BatchBuilder(
        first=5, lease_epoch=3, resume=ResumePoint(1, "0"), max_bytes=1000, max_rows=2, stretch=2
    )
    seen = []
    for seq in range(4):
        batches.add_log([log(seq)], 1, ResumePoint(1, "10"), [], set(), "")
        seen.append((batches.is_full, batches.has_room))
    assert seen == [(False, True), (True, True), (True, True), (True, False)]


def test_chunk_rows_follow_log_with_one_schema_row() -> None:
    batches, mine = builder(), chunk()
    batches.add_log([log(8)], 10, ResumePoint(1, "10"), [], set(), "")
    batches.add_chunk(mine, SCHEMA, 0, lines("1\n", "2\n"), COPY)
    batches.add_chunk(mine, SCHEMA, 2, lines("3\n"), COPY)
    first = batches.take().rows
    batches.add_chunk(mine, SCHEMA, 3, lines("4\n"), COPY)
    second = batches.take().rows
    assert first.select(["kind", "lsn", "seq", "chunk_id"]).to_pylist() == [
        {"kind": "row", "lsn": 7, "seq": 8, "chunk_id": None},
        {"kind": "schema", "lsn": 7, "seq": 8, "chunk_id": None},
        {"kind": "chunk", "lsn": None, "seq": 0, "chunk_id": "c"},
        {"kind": "chunk", "lsn": None, "seq": 2, "chunk_id": "c"},
        {"kind": "chunk", "lsn": None, "seq": 4, "chunk_id": "c"},
    ]
    assert second.select(["kind", "seq"]).to_pylist() == [{"kind": "chunk", "seq": 6}]
    assert mine.first_batch == 5


def test_add_chunk_blocks_while_full_and_add_log_does_not() -> None:
    batches = builder(max_rows=2)
    batches.add_log([log(0, 2)], 1, ResumePoint(1, "10"), [], set(), "")
    adding = threading.Thread(target=batches.add_chunk, args=(chunk(), SCHEMA, 0, lines("1\n"), COPY))
    adding.start()
    batches.add_log([log(4)], 1, ResumePoint(1, "11"), [], set(), "")
    adding.join(0.2)
    assert adding.is_alive()
    assert batches.take().rows["kind"].to_pylist() == ["row"] * 3
    adding.join(5)
    assert batches.take().rows["kind"].to_pylist() == ["schema", "chunk"]


def test_close_unblocks_waiting_add_chunk() -> None:
    batches = builder(max_rows=1)
    batches.add_log([log(0)], 1, ResumePoint(1, "10"), [], set(), "")
    ended = []

    def add() -> None:
        try:
            batches.add_chunk(chunk(), SCHEMA, 0, lines("1\n"), COPY)
        except Closed:
            ended.append("closed")

    adding = threading.Thread(target=add)
    adding.start()
    batches.close()
    adding.join(5)
    assert ended == ["closed"]
    with pytest.raises(Closed):
        batches.add_chunk(chunk(), SCHEMA, 0, lines("1\n"), COPY)


def test_chunk_gives_up_waiting_for_room_in_time() -> None:
    """At the source the transaction of the chunk is open for as long."""
    batches = builder(max_rows=1)
    batches.wait_for_room()
    batches.add_log([log(0)], 20, ResumePoint(1, "10"), [], set(), "")
    with pytest.raises(NoRoom):
        batches.add_chunk(chunk(), SCHEMA, 0, lines("1"), COPY, wait_seconds=0.05)
    batches.take()
    batches.add_chunk(chunk(), SCHEMA, 0, lines("1"), COPY, wait_seconds=0.05)
