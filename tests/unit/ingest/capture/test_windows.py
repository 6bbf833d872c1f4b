"""Which watermarks belong to a window, and how a high one ends its chunk."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dblake.base.core.position import Position
from dblake.base.core.schema import Column, TableSchema
from dblake.base.core.source import ChunkRead, WatermarkSeen
from dblake.ingest.capture.open_chunk import OpenChunk
from dblake.ingest.capture.windows import Windows
from dblake.landing.control import ChunkEnd

OLD = TableSchema("public.t", (Column("id", "integer", False, 1),))
NEW = TableSchema("public.t", (*OLD.columns, Column("v", "text")))
READ = ChunkRead(rows=2, last_key=("2",), schema=OLD, low_seen="low", snapshot="1:1:")


def seen(value: str, lsn: int, reader: int = 1) -> WatermarkSeen:
    return WatermarkSeen(reader, value, Position(1, lsn), 9, 1_000)


def opened(windows: Windows, read: ChunkRead | None = READ) -> OpenChunk:
    chunk = OpenChunk("d", "public.t", 3, chunk_id="low", high_value="high", read=read)
    windows.open(chunk)
    return chunk


def end_of(windows: Windows) -> ChunkEnd:
    row, _ = windows.on_watermark(seen("high", 20), batch=8)
    assert row is not None
    return ChunkEnd.from_json(row["payload"][0].as_py())


def test_window_spans_low_to_high_watermark() -> None:
    windows = Windows()
    chunk = opened(windows)
    low, closed = windows.on_watermark(seen("low", 10), batch=7)
    assert low is not None and closed is None
    assert low.select(["kind", "lsn", "chunk_id", "table"]).to_pylist() == [
        {"kind": "low", "lsn": 10, "chunk_id": "low", "table": "public.t"}
    ]
    high, closed = windows.on_watermark(seen("high", 20), batch=8)
    assert high is not None and closed is chunk
    assert high["kind"].to_pylist() == ["high"]
    assert ChunkEnd.from_json(high["payload"][0].as_py()) == ChunkEnd(
        dump_id="d", number=3, low_lsn=10, low_seq=0, schema_id=OLD.schema_id, rows=2, first_batch=7, snapshot="1:1:",
    )
    assert chunk.discarded is None


@pytest.mark.parametrize("value", ["stray", "", "low", "high"])
def test_watermark_of_no_open_chunk_is_ignored(value: str) -> None:
    windows = Windows()
    chunk = opened(windows)
    windows.abandon(chunk)
    assert windows.on_watermark(seen(value, 10), batch=7) == (None, None)


def test_replayed_low_watermark_keeps_window() -> None:
    windows = Windows()
    opened(windows)
    windows.on_watermark(seen("low", 10), batch=7)
    assert windows.on_watermark(seen("low", 15), batch=7) == (None, None)
    assert end_of(windows).low_lsn == 10


def test_heartbeat_opens_no_window() -> None:
    windows = Windows()
    opened(windows)
    row, closed = windows.on_watermark(seen("low", 10, reader=0), batch=7)
    assert row is not None and closed is None
    assert row["kind"].to_pylist() == ["heartbeat"]
    assert end_of(windows).reason == "the log shows its high watermark but not its low one"


@pytest.mark.parametrize(("read", "reason"), [
    (READ, None),
    (None, "the log shows its high watermark but not its low one"),
    (replace(READ, low_seen="another"), "the chunk was read elsewhere than its watermark was written"),
    (replace(READ, schema_changed=True), "schema changed in the window"),
])
def test_chunk_is_discarded_with_reason(read: ChunkRead | None, reason: str | None) -> None:
    windows = Windows()
    opened(windows, read)
    windows.on_watermark(seen("low", 10), batch=7)
    end = end_of(windows)
    assert (end.status, end.reason) == ("discarded" if reason else "closed", reason)


@pytest.mark.parametrize(("schemas", "status"), [
    ([("before", NEW)], "closed"), ([("inside", NEW)], "discarded"), ([("inside", OLD)], "closed"),
    ([("inside", NEW), ("inside", OLD)], "closed"),
])
def test_log_schema_counts_from_low_watermark(schemas: list[tuple[str, TableSchema]], status: str) -> None:
    windows = Windows()
    opened(windows)
    for where, schema in schemas:
        if where == "before":
            windows.on_schema("public.t", schema.schema_id)
    windows.on_watermark(seen("low", 10), batch=7)
    for where, schema in schemas:
        if where == "inside":
            windows.on_schema("public.t", schema.schema_id)
            windows.on_schema("public.another", "0" * 16)
    assert end_of(windows).status == status


def test_chunk_starts_in_batch_of_its_first_row() -> None:
    windows = Windows()
    chunk = opened(windows)
    chunk.add_batch(6)
    windows.on_watermark(seen("low", 10), batch=7)
    assert end_of(windows).first_batch == 6
