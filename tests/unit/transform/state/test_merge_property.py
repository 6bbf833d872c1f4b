"""The fold and merge of random histories without Spark, in random steps, compared with the model's fold."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

import dblake.transform.state.file_writer
import dblake.transform.state.files
import dblake.transform.state.upsert
from dblake.base.core.position import Position
from dblake.base.core.schema import TableSchema
from dblake.transform.state.events import newest_truncate
from dblake.transform.state.files import FileReader, TableFiles
from dblake.transform.state.fold import NEEDED, fold
from dblake.transform.state.merge import NO_EVENTS, Slice, bring_rows, merge_events, merge_slice
from dblake.transform.state.runner import LocalRunner
from dblake.transform.state.shape import Shape
from tests.model.state import Event
from tests.model.state import fold as model_fold
from tests.model.state_histories import COLUMNS, altered_table, in_batches, moving_history, random_history
from tests.support.effort import seeds
from tests.support.schemas import table_schema

APP = "state/shop"
KEYS = 200
BATCHES = 4
MergedRow = tuple[tuple[int, int, int], bool, dict[str, str | None], frozenset[str]]
"""Position, deleted, values and missing columns of a key."""


MAP = pa.map_(pa.string(), pa.string())
SCHEMA = pa.schema([
    ("incarnation", pa.int64()), ("lsn", pa.int64()), ("seq", pa.int64()), ("op", pa.string()), ("key", MAP),
    ("after", MAP), ("partial", pa.bool_()), ("undecoded", pa.list_(pa.string())), ("batch", pa.int64()),
    ("key_before", MAP),
])
PLAIN = table_schema("public.t", "id text key", *(f"{c} text" for c in COLUMNS))


def to_arrow(events: Sequence[Event], names: Sequence[str] = COLUMNS) -> pa.Table:
    """Return events as a slice holds them."""
    rows: list[dict[str, Any]] = [
        {"incarnation": e.at[0], "lsn": e.at[1], "seq": e.at[2], "op": e.op, "batch": e.batch, "undecoded": [],
         "key": None if e.op == "t" else {"id": e.key}, "after": None if e.op in "dt" else {"id": e.key, **e.after},
         "key_before": None if e.key_before is None else {"id": e.key_before},
         "partial": e.op in "cur" and set(e.after) != set(names if e.columns is None else e.columns)}
        for e in events
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA).select(NEEDED)


class Target:
    """A state table to merge into."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "t")
        self.done = 0

    def merge(
        self, events: pa.Table, batch: int, versions: Sequence[TableSchema] = (PLAIN,), *, ranges: int = 0
    ) -> None:
        """Merge events up to a batch, folded at once, or in ``ranges`` key ranges by several threads."""
        schemas = tuple(versions)
        part = Slice(schemas[-1].table, self.path, APP, batch, self.done, schemas, schemas[-1:], events)
        if ranges:
            parts, at = parts_of(events, ranges), newest_truncate(events)
            merge_events(part, lambda target, shape, after, *, is_new: bring_rows(
                target, shape, parts(shape, after), at, LocalRunner(2).run_all, is_new=is_new
            )).raise_error()
        else:
            merge_slice(part).raise_error()
        self.done = batch

    def rows(self) -> list[dict[str, Any]]:
        files = TableFiles(self.path)
        rows: list[dict[str, Any]] = []
        for file in files.files():
            with FileReader(self.path, files.columns, file) as reader:
                found = [row for group in range(reader.groups) for row in reader.read(group).to_pylist()]
            # An Iceberg snapshot leaves whole files out.
            assert {row["_deleted"] for row in found} == {file.has_tombstones_only}
            rows += found
        return rows

    def state(self, columns: Sequence[str]) -> dict[str, MergedRow]:
        """Return rows as the model has them."""
        return {
            r["id"]: ((r["_incarnation"], r["_lsn"], r["_seq"]), r["_deleted"],
                      {c: None if r.get(c) is None else str(r[c]) for c in columns}, frozenset(r["_missing"]))
            for r in self.rows()
        }


def parts_of(events: pa.Table, ranges: int):  # type: ignore[no-untyped-def]
    """Fold the events by ranges of their keys."""

    def parts(shape: Shape, after: int) -> Iterator[pa.Table]:
        truncated_at: Position | None = newest_truncate(events)
        rows = events.filter(pc.not_equal(events["op"], "t")).combine_chunks()
        keys = pc.map_lookup(rows["key"].combine_chunks(), "id", "first").to_pylist()
        for n in range(ranges):
            in_range = pa.array([sum(map(ord, key)) % ranges == n for key in keys], pa.bool_())
            yield fold(rows.filter(in_range), shape, truncated_at)

    return parts


def expected(events: Sequence[Event], columns: Sequence[str]) -> dict[str, MergedRow]:
    return {k: (r.at, r.deleted, r.values, r.missing) for k, r in model_fold(events, list(columns)).items()}


@pytest.fixture(params=["whole files", "tiny files"])
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With tiny files a table has many files of several row groups, and some count as large."""
    if request.param == "tiny files":
        monkeypatch.setattr(dblake.transform.state.file_writer, "FILE_BYTES", 6_000)
        monkeypatch.setattr(dblake.transform.state.file_writer, "_ROW_GROUP_ROWS", 16)
        monkeypatch.setattr(dblake.transform.state.files, "SMALL_FILE_BYTES", 4_000)
        monkeypatch.setattr(dblake.transform.state.upsert, "SMALL_FILE_BYTES", 4_000)
        # Reading slices of other bounds than those that wrote the row groups.
        monkeypatch.setattr(dblake.transform.state.files, "ROW_GROUP_BYTES", 700)
        monkeypatch.setattr(dblake.transform.state.files, "_SLICED_ROWS", 3)
        monkeypatch.setattr(dblake.transform.state.upsert, "_ABSORBED_BYTES", 2_000)


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("ranges", [0, 3], ids=["one part", "key ranges"])
@pytest.mark.parametrize("seed", seeds(2, 4))
def test_merge_of_random_histories_equals_model(tmp_path: Path, seed: int, ranges: int) -> None:
    draw = random.Random(seed)
    events = [e for k in range(KEYS) for e in random_history(draw, f"k{k}", seed % 3 == 0)]
    if seed % 2:
        events = [e for e in events if e.at[1] not in (2500, 6000)]
        events += [Event((1, at, 0), "t", "", {}) for at in (2500, 6000)]
    events = in_batches(events, BATCHES)
    target, last = Target(tmp_path), 0
    for cut in sorted({draw.randint(1, BATCHES), draw.randint(1, BATCHES), BATCHES}):
        step = [e for e in events if last < e.batch <= cut]
        draw.shuffle(step)
        target.merge(to_arrow(step), cut, ranges=ranges)
        last = cut
        done = [e for e in events if e.batch <= cut]
        assert target.state(COLUMNS) == expected(done, COLUMNS), f"seed {seed}, up to batch {cut}"
    assert len(target.rows()) == len(target.state(COLUMNS))


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("seed", seeds(2, 2))
def test_merge_through_schema_changes_equals_model(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    schemas, since, events = altered_table(draw, KEYS)
    events = in_batches(events, BATCHES)
    all_columns = sorted({c.name for s in schemas for c in s.columns} - {"id"})
    target = Target(tmp_path)
    for batch in range(1, BATCHES + 1):
        step = [e for e in events if e.batch == batch]
        newest = bisect_right(since, max(e.at[1] for e in step))
        target.merge(to_arrow(step), batch, schemas[: newest + 1])
        columns = sorted({c.name for s in schemas[: newest + 1] for c in s.columns} - {"id"})
        done = [e for e in events if e.batch <= batch]
        merged = target.state(all_columns)
        for key, (at, deleted, values, missing) in expected(done, columns).items():
            row = merged[key]
            assert (row[0], row[1], {c: row[2][c] for c in columns}) == (at, deleted, values), f"seed {seed}, {key}"
            if batch == BATCHES:
                current = {c.name for c in schemas[newest].columns}
                assert row[3] >= missing & current, f"seed {seed}, {key}"


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("seed", seeds(4, 20))
def test_merge_of_key_changes_equals_model(tmp_path: Path, seed: int) -> None:
    """Rows keep unsent columns through chains and swaps of keys, within one step and across steps."""
    draw = random.Random(seed)
    events = moving_history(draw, KEYS, 4 * KEYS, truncates=seed % 2)
    target, last = Target(tmp_path), 0
    for cut in sorted({draw.randint(1, BATCHES), draw.randint(1, BATCHES), BATCHES}):
        step = [e for e in events if last < e.batch <= cut]
        draw.shuffle(step)
        target.merge(to_arrow(step), cut)
        last = cut
        done = [e for e in events if e.batch <= cut]
        assert target.state(COLUMNS) == expected(done, COLUMNS), f"seed {seed}, up to batch {cut}"
    assert any(e.key_before and set(e.after) < set(COLUMNS) for e in events)


def test_merge_of_changed_rows_rewrites_their_files_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dblake.transform.state.file_writer, "FILE_BYTES", 4_000)
    monkeypatch.setattr(dblake.transform.state.file_writer, "_ROW_GROUP_ROWS", 100)
    schema = table_schema("public.t", "id integer key", "a text")
    target = Target(tmp_path)

    def merge(batch: int, op: str, keys: range) -> set[str]:
        before = set(DeltaTable(target.path).file_uris()) if batch > 1 else set()
        target.merge(to_arrow([Event((1, batch, k), op, str(k), {"a": f"{batch} {k}"}, batch) for k in keys], ["a"]),
                     batch, (schema,))
        return set(DeltaTable(target.path).file_uris()) - before

    assert len(merge(1, "c", range(1000))) >= 5
    files = set(DeltaTable(target.path).file_uris())
    assert len(merge(2, "u", range(500, 510))) == 1
    assert len(files & set(DeltaTable(target.path).file_uris())) == len(files) - 1
    assert len(target.rows()) == 1000


def test_merge_of_one_row_at_a_time_leaves_few_files(tmp_path: Path) -> None:
    target = Target(tmp_path)
    for batch in range(1, 41):
        target.merge(to_arrow([Event((1, batch, 0), "c", f"k{batch}", {"a": "x"}, batch)]), batch)
    assert len(DeltaTable(target.path).file_uris()) == 1
    assert len(target.rows()) == 40


def test_merge_of_one_delete_at_a_time_leaves_few_files(tmp_path: Path) -> None:
    target = Target(tmp_path)
    target.merge(to_arrow([Event((1, 1, n), "c", f"k{n}", {"a": "x"}, 1) for n in range(40)]), 1)
    for batch in range(2, 22):
        target.merge(to_arrow([Event((1, batch, 0), "d", f"k{batch}", {}, batch)]), batch)
    assert len(list(tmp_path.glob("t/tombstones-*"))) == 20, "no file without a commit"
    assert len(DeltaTable(target.path).file_uris()) == 2
    assert sum(row["_deleted"] for row in target.rows()) == 20


def test_merge_of_keyless_table_appends_creates_only(tmp_path: Path) -> None:
    schema, target = table_schema("public.t", "a text"), Target(tmp_path)
    for batch in (1, 2, 3):
        events = to_arrow([Event((1, 10 * batch + n, 0), op, "", {"a": str(batch)}, batch)
                           for n, op in enumerate("ccudt")], ["a"])
        target.merge(events, batch, (schema,))
        target.merge(events, batch, (schema,))
    assert sorted((r["a"], r["_key"], r["_lsn"]) for r in target.rows()) == [
        (str(batch), None, 10 * batch + n) for batch in (1, 2, 3) for n in (0, 1)
    ]


def test_slice_pickled_keeps_its_events_only() -> None:
    import pickle

    events = to_arrow([Event((1, n, 0), "c", f"k{n}", {"a": "x" * 1000}, 1) for n in range(1000)])
    part = Slice("public.t", "", APP, 1, 0, (PLAIN,), (PLAIN,), events.slice(10, 2))
    data = pickle.dumps(part)
    assert len(data) < 10_000
    assert pickle.loads(data).events.to_pylist() == events.slice(10, 2).to_pylist()
    assert NO_EVENTS.num_rows == 0
