"""Event files: merged in order of position, typed as Spark types them, with statistics in the Delta log."""

from __future__ import annotations

import itertools
import json
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dblake.base.core.errors import TableUnavailable
from dblake.base.lake.log import commit_files, record_batch
from dblake.base.lake.query import query_rows
from dblake.transform.events import files
from dblake.transform.events.file_reader import open_event_file
from dblake.transform.events.files import (
    EVENT_COLUMNS,
    PRUNED_BY,
    EventFileWriter,
    group_by_table,
    merge_sorted,
    sort_by_position,
    write_event_file,
)
from dblake.transform.spark.append_table import AppendTable

_APPLICATION = "reconcile/shop"
_POSITIONS = st.tuples(st.integers(1, 2), st.integers(1, 9), st.integers(0, 3))


def events(*positions: tuple[int, int, int], at: datetime | None = None) -> pa.RecordBatch:
    rows = [
        {"incarnation": i, "lsn": lsn, "seq": seq, "table": "public.t", "op": "c", "key": [("id", "1")], "batch": 1,
         "committed_at": at or datetime(2026, 1, 1, tzinfo=UTC)}
        for i, lsn, seq in positions
    ]
    return pa.RecordBatch.from_pylist(rows, schema=EVENT_COLUMNS)


def positions(batches: list[pa.RecordBatch]) -> list[tuple[int, int, int]]:
    return [(row["incarnation"], row["lsn"], row["seq"]) for batch in batches for row in batch.to_pylist()]


@settings(deadline=None)
@given(st.lists(_POSITIONS, unique=True), st.lists(st.integers(0, 40), max_size=6))
@example([(2, 1, 0), (1, 1, 1), (2, 1, 2)], [])
def test_merged_batches_are_ordered_and_complete(rows: list[tuple[int, int, int]], cuts: list[int]) -> None:
    ends = sorted({min(cut, len(rows)) for cut in cuts} | {0, len(rows)})
    parts = [events(*rows[a:b]) for a, b in itertools.pairwise(ends)]
    assert positions(list(merge_sorted(map(sort_by_position, parts)))) == sorted(rows)


def test_statistics_bound_microseconds_and_are_committed(tmp_path: Path) -> None:
    table = AppendTable(str(tmp_path / "events"), _APPLICATION, EVENT_COLUMNS, PRUNED_BY)
    table.create()
    at = datetime(2026, 1, 1, 12, 0, 0, 123_456, tzinfo=UTC)
    file = write_event_file(table.path, [events((1, 5, 0), at=at), events((1, 4, 2), at=at)])
    statistics = json.loads(file.statistics)
    assert statistics["minValues"]["committed_at"] == "2026-01-01T12:00:00.123Z"
    assert statistics["maxValues"]["committed_at"] == "2026-01-01T12:00:00.124Z"
    assert (statistics["minValues"]["lsn"], statistics["maxValues"]["lsn"]) == (4, 5)
    assert query_rows(table.path, "SELECT * FROM t") == []
    commit_files(table.path, DeltaTable(table.path), _APPLICATION, 3, [file])
    assert table.done() == 3
    assert query_rows(table.path, "SELECT lsn FROM t WHERE committed_at > '2026-01-01T12:00:00.1234Z'") != []
    assert pq.read_table(Path(table.path) / file.path)["lsn"].to_pylist() == [4, 5]


def test_commit_prepared_before_newer_commit_is_rejected(tmp_path: Path) -> None:
    table = AppendTable(str(tmp_path / "events"), _APPLICATION, EVENT_COLUMNS, PRUNED_BY)
    table.create()
    prepared, file = DeltaTable(table.path), write_event_file(table.path, [events((1, 5, 0))])
    record_batch(table.path, _APPLICATION, 2)
    with pytest.raises(TableUnavailable):
        commit_files(table.path, prepared, _APPLICATION, 3, [file])
    assert (table.done(), query_rows(table.path, "SELECT lsn FROM t")) == (2, [])


def test_table_of_older_release_gets_statistics_columns(tmp_path: Path) -> None:
    path = str(tmp_path / "events")
    AppendTable(path, _APPLICATION, EVENT_COLUMNS, ("incarnation", "lsn")).create()
    AppendTable(path, _APPLICATION, EVENT_COLUMNS, PRUNED_BY).create()
    assert DeltaTable(path).metadata().configuration == {"delta.dataSkippingStatsColumns": ",".join(PRUNED_BY)}
    AppendTable(path, _APPLICATION, EVENT_COLUMNS, PRUNED_BY).create()
    assert DeltaTable(path).version() == 1


def _of_tables(names: str, size: int) -> pa.Table:
    rows = [
        {"incarnation": 1, "lsn": n, "seq": 0, "table": f"public.{name}", "op": "c", "key": [("id", "1")],
         "after": [("v", "x" * size)], "batch": 1, "committed_at": datetime(2026, 1, 1, tzinfo=UTC)}
        for n, name in enumerate(names)
    ]
    return pa.Table.from_pylist(rows, schema=EVENT_COLUMNS)


def test_events_of_large_tables_are_grouped_apart_in_order() -> None:
    found = [
        "".join(name.removeprefix("public.") for name in part["table"].to_pylist())
        for part in group_by_table(_of_tables("abcabdabeab", 1000), least_bytes=3000)
    ]
    assert found == ["aaaa", "bbbb", "cde"]


def test_little_segment_keeps_its_order() -> None:
    events = _of_tables("abcabdab", 10)
    assert [part.equals(events) for part in group_by_table(events, least_bytes=3000)] == [True]


def test_file_of_several_segments_has_row_groups_of_one_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_SEGMENT_BYTES", 40_000)
    monkeypatch.setattr(files, "_MEASURED_BYTES", 1_000)
    monkeypatch.setattr(files, "_GROUPED_BYTES", 5_000)
    events = _of_tables("ab" * 50 + "c", 1000)
    with EventFileWriter(str(tmp_path)) as writer:
        writer.write(events)
    with open_event_file(str(tmp_path), writer.file.path) as file:
        groups = [file.read_row_group(number) for number in range(file.num_row_groups)]
    assert [set(group["table"].to_pylist()) for group in groups] == [
        {"public.a"}, {"public.b"}, {"public.a"}, {"public.b"}, {"public.a"}, {"public.b"}, {"public.c"},
    ]
    assert sorted(lsn for group in groups for lsn in group["lsn"].to_pylist()) == list(range(101))
    assert writer.file.rows == 101
    assert json.loads(writer.file.statistics)["maxValues"]["table"] == "public.c"
