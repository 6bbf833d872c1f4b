"""Runs of reconcile over landing that is complete, was reconciled before, has gaps, or violates an invariant."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import dblake.transform.reconcile.reconciler
import dblake.transform.reconcile.runner
import dblake.transform.reconcile.task
from benchmarks.landed_rows import SOURCE as LANDED
from benchmarks.landed_rows import land_dump
from dblake.base.core.errors import LandingGap, ReconcileError, TableUnavailable, WindowInvariantViolated
from dblake.base.core.position import Position, ResumePoint
from dblake.base.core.schema import Column, TableSchema
from dblake.base.core.source import ServerIdentity
from dblake.base.lake.layout import Paths
from dblake.base.lake.query import query_rows
from dblake.landing.columns import LANDING
from dblake.landing.control import DISCARDED, ChunkEnd, DumpStart
from dblake.landing.table import Landing, Reached
from dblake.operate.status.table_problems import window_problems
from dblake.serve.read.reading import open_reading
from dblake.transform.reconcile.reconciler import Reconciler
from dblake.transform.reconcile.stream import reconcile_once
from dblake.transform.state.run import run_state
from tests.model.dblog import ChunkRow, High, Low, reconcile
from tests.support.effort import EFFORT
from tests.support.histories import interleave_landings, play, random_steps
from tests.support.landed import Change, LandedRecord, land, landing_row, schema_row, to_model

HOME = Path(__file__).parents[4]
T = TableSchema("public.t", (Column("id", "integer", False, 1), Column("v", "text")))
Row = tuple[int, int, str, str | None]


def put(batch: int, lsn: int, key: str, value: str, op: str = "c") -> Change:
    """Return a row of ``t`` created or updated in a transaction of its own."""
    return Change(batch, 1, Position(1, lsn), lsn, T.table, op, (key,), {"id": key, "v": value})


def chunk(
    batch: int, name: str, low: int, high: int, read: dict[str, str], **high_fields: object
) -> list[LandedRecord]:
    """Return a chunk of ``t`` that landed in one batch; ``high_fields`` replace fields of its high watermark."""
    end = {"dump_id": "d", "number": 1, "low_lsn": low, "low_seq": 0, "schema_id": T.schema_id, "rows": len(read),
           "first_batch": batch, **high_fields}
    return [
        Low(batch, 1, T.table, name, Position(1, low)),
        *(ChunkRow(batch, 1, T.table, name, n, (k,), {"id": k, "v": v}) for n, (k, v) in enumerate(read.items())),
        High(batch, 1, T.table, name, Position(1, high), high, ChunkEnd(**end)),  # type: ignore[arg-type]
    ]


def lake(folder: Path, records: Sequence[LandedRecord]) -> Paths:
    """Return a warehouse with these records landed."""
    paths = Paths(str(folder), "shop")
    land(paths.landing, "shop", records, {T.table: T})
    return paths


def reconciled_in(
    runs: int, spark: SparkSession, folder: Path, first: Sequence[LandedRecord], then: Sequence[LandedRecord]
) -> Paths:
    """Return a warehouse with all records reconciled; of two runs the first one precedes the landing of ``then``."""
    paths = lake(folder, first)
    if runs == 2:
        reconcile_once(spark, paths)
    land(paths.landing, "shop", then, {T.table: T})
    reconcile_once(spark, paths)
    return paths


def events(spark: SparkSession, paths: Paths) -> list[Row]:
    """Position, letter and the value of ``v``, in order."""
    rows = spark.read.format("delta").load(paths.events).orderBy("incarnation", "lsn", "seq").collect()
    return [(r["lsn"], r["seq"], r["op"], dict(r["after"] or {}).get("v")) for r in rows]


def ledger(spark: SparkSession, paths: Paths) -> list[tuple[str | None, str, str | None]]:
    """Chunk, status and reason."""
    rows = spark.read.format("delta").load(paths.windows).orderBy("chunk_id").collect()
    return [(r["chunk_id"], r["status"], r["reason"]) for r in rows]


WHOLE = [put(1, 10, "1", "a"), *chunk(2, "k", 20, 30, {"1": "a", "2": "b"}), put(3, 40, "2", "c", "u")]
EXPECTED = [(10, 0, "c", "a"), (30, 0, "r", "a"), (30, 2, "r", "b"), (40, 0, "u", "c")]


@pytest.fixture
def kathmandu_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run this process, in whose time zone Spark returns collected times, outside UTC."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Kathmandu")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("kathmandu_time")
def test_event_times_do_not_depend_on_local_time_zone(spark: SparkSession, tmp_path: Path) -> None:
    paths = lake(tmp_path, WHOLE)
    reconcile_once(spark, paths)
    landed = query_rows(paths.landing, "SELECT lsn, committed_at FROM t WHERE kind IN ('row', 'high')")
    at = {row["lsn"]: row["committed_at"] for row in landed}
    committed = query_rows(paths.events, "SELECT lsn, committed_at FROM t")
    assert len(committed) == len(EXPECTED)
    assert [row["committed_at"] for row in committed] == [at[row["lsn"]] for row in committed]
    assert [row["closed_at"] for row in query_rows(paths.windows, "SELECT closed_at FROM t")] == [at[30]]


def test_truncate_in_window_drops_all_rows_of_chunk(spark: SparkSession, tmp_path: Path) -> None:
    """The rows may have been read before it: without it they would return at the high watermark."""
    *read, high = chunk(2, "k", 20, 30, {"1": "a", "2": "b"})
    truncate = Change(2, 1, Position(1, 25), None, T.table, "t", last=True)
    paths = lake(tmp_path, [put(1, 10, "1", "a"), *read, truncate, high])
    reconcile_once(spark, paths)
    assert events(spark, paths) == [(10, 0, "c", "a"), (25, 0, "t", None)]


def test_second_run_without_new_batches_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    paths = lake(tmp_path, WHOLE)
    assert reconcile_once(spark, paths) == 3
    assert events(spark, paths) == EXPECTED
    version = DeltaTable(paths.events).version()
    assert reconcile_once(spark, paths) == 3
    assert DeltaTable(paths.events).version() == version
    land(paths.landing, "shop", [put(4, 50, "3", "d")], {T.table: T})
    assert reconcile_once(spark, paths) == 4
    assert events(spark, paths) == [*EXPECTED, (50, 0, "c", "d")]


def test_removed_tables_are_rebuilt_from_landing(spark: SparkSession, tmp_path: Path) -> None:
    paths = lake(tmp_path, WHOLE)
    reconcile_once(spark, paths)
    for table in (paths.events, paths.windows, paths.schemas):
        shutil.rmtree(table)
    assert reconcile_once(spark, paths) == 3
    assert events(spark, paths) == EXPECTED


@pytest.mark.parametrize("runs", [pytest.param(1, marks=pytest.mark.slow), 2], ids=["one run", "two runs"])
def test_complete_dump_after_log_gap_deletes_phantoms(spark: SparkSession, tmp_path: Path, runs: int) -> None:
    before: list[LandedRecord] = [put(1, 10, "1", "a"), put(1, 20, "2", "b"), put(1, 30, "3", "c")]
    # The new server's transaction ids are lower than the old one's.
    end = ChunkEnd("d", 1, 5, 0, T.schema_id, 1, 2, snapshot="3:3:")
    last = replace(end, low_lsn=7, rows=0, began=DumpStart(2, 5, 0, "3:3:"))
    behind: list[LandedRecord] = [
        Low(2, 2, T.table, "k", Position(2, 5)),
        ChunkRow(2, 2, T.table, "k", 0, ("1",), {"id": "1", "v": "a"}),
        High(2, 2, T.table, "k", Position(2, 6), None, end),
        Low(2, 2, T.table, "last", Position(2, 7)),
        Change(2, 2, Position(2, 8), None, T.table, "u", ("3",), {"id": "3", "v": "d"}),
        High(2, 2, T.table, "last", Position(2, 9), None, last),
    ]
    paths = reconciled_in(runs, spark, tmp_path, before, behind)
    assert events(spark, paths) == [
        (10, 0, "c", "a"), (20, 0, "c", "b"), (30, 0, "c", "c"), (6, 0, "r", "a"), (8, 0, "u", "d"), (9, 0, "d", None),
    ]
    gone = spark.read.format("delta").load(paths.events).where("op = 'd'").collect()
    assert [(row["key"], row["origin"], row["chunk_id"], row["batch"]) for row in gone] == [
        ({"id": "2"}, "dump", "last", 2)
    ]
    assert ledger(spark, paths) == [
        (None, "gap", "the log after incarnation 1 is missing"), ("k", "closed", None), ("last", "closed", None),
    ]


@pytest.mark.parametrize("runs", [pytest.param(1, marks=pytest.mark.slow), 2], ids=["one run", "two runs"])
def test_complete_dump_deletes_key_that_key_dump_returned(
    spark: SparkSession, tmp_path: Path, runs: int
) -> None:
    began = DumpStart(1, 40, 0)
    # Between the two dumps the row vanished without an event.
    keys, whole = chunk(1, "keys", 20, 30, {"1": "a"}), chunk(2, "all", 40, 50, {}, dump_id="w", began=began)
    paths = reconciled_in(runs, spark, tmp_path, keys, whole)
    assert events(spark, paths) == [(30, 0, "r", "a"), (50, 0, "d", None)]


def test_dump_that_lacks_many_rows_deletes_none(spark: SparkSession, tmp_path: Path) -> None:
    """A broken index may return too few rows: the end of its dump names them, until a dump may delete them all."""
    before = [put(1, 10 + n, str(n), "a") for n in range(4)]
    began = DumpStart(1, 40, 0)
    limited = chunk(2, "all", 40, 50, {"0": "a"}) + chunk(2, "last", 52, 54, {}, began=began, max_removed=0.5)
    # A live reading ends with a transaction of the log.
    then = replace(put(2, 56, "9", "z"), last=True)
    paths = lake(tmp_path, [*before, *limited, then])
    live = open_reading(paths, is_live=True).events()
    reconcile_once(spark, paths)
    kept = [(10, 0, "c", "a"), (11, 0, "c", "a"), (12, 0, "c", "a"), (13, 0, "c", "a"), (50, 0, "r", "a"),
            (56, 0, "c", "z")]
    assert events(spark, paths) == kept
    assert live is not None and live.tail is not None and live.tail.num_rows == len(kept)
    reason = "the dump did not return 3 of 4 rows, more than it may delete; they stay"
    assert ledger(spark, paths) == [("all", "closed", None), ("last", "closed", reason)]
    # A run that dies before it has written the ledger.
    shutil.rmtree(paths.windows)
    reconcile_once(spark, paths)
    assert ledger(spark, paths)[1] == ("last", "closed", reason)
    assert [(p["code"], p["table"]) for p in window_problems(paths)] == [("removal_withheld", T.table)]
    again = DumpStart(1, 60, 0)
    land(paths.landing, "shop", chunk(3, "w", 60, 62, {}, dump_id="w", began=again), {T.table: T})
    reconcile_once(spark, paths)
    assert [(row[0], row[2]) for row in events(spark, paths)[6:]] == [(62, "d")] * 5
    assert window_problems(paths) == []


@pytest.mark.parametrize(("share", "deleted"), [(0.74, 0), (0.75, 3)])
def test_dump_deletes_up_to_its_share_live(tmp_path: Path, share: float, deleted: int) -> None:
    before = [put(1, 10 + n, str(n), "a") for n in range(4)]
    last = chunk(2, "last", 52, 54, {}, began=DumpStart(1, 40, 0), max_removed=share)
    then = replace(put(2, 56, "9", "z"), last=True)
    paths = lake(tmp_path, [*before, *chunk(2, "all", 40, 50, {"0": "a"}), *last, then])
    live = open_reading(paths, is_live=True).events()
    assert live is not None and live.tail is not None
    assert live.tail["op"].to_pylist().count("d") == deleted


def test_missing_batches_raise_landing_gap_before_any_event(spark: SparkSession, tmp_path: Path) -> None:
    paths = lake(tmp_path, [put(1, 10, "1", "a"), put(2, 20, "2", "b")])
    assert reconcile_once(spark, paths) == 2
    land(paths.landing, "shop", [put(4, 40, "4", "d"), put(7, 70, "7", "g")], {T.table: T})
    with pytest.raises(LandingGap, match=r"landing lacks .*3.*5 to 6"):
        reconcile_once(spark, paths)
    assert events(spark, paths) == [(10, 0, "c", "a"), (20, 0, "c", "b")]


@pytest.mark.parametrize(
    ("case", "landed", "message"),
    [
        ("fewer rows than were read", chunk(2, "k", 20, 30, {"1": "a"}, rows=2), "read 2 rows"),
        ("more rows than were read", chunk(2, "k", 20, 30, {"1": "a", "2": "b"}, rows=1), "read 1 rows"),
        ("high before low", chunk(2, "k", 30, 20, {"1": "a"}), "high watermark precedes low watermark"),
        ("first batch after its end", chunk(2, "k", 20, 30, {"1": "a"}, first_batch=3), "has first batch 3"),
        ("two high watermarks", [*chunk(2, "k", 20, 30, {"1": "a"}), *chunk(2, "k", 20, 40, {})[-1:]], "two high"),
    ],
)
def test_window_that_violates_invariant_stops_run(
    spark: SparkSession, tmp_path: Path, case: str, landed: list[LandedRecord], message: str
) -> None:
    paths = lake(tmp_path, [put(1, 10, "1", "a"), *landed])
    with pytest.raises(WindowInvariantViolated, match=message):
        reconcile_once(spark, paths)
    assert events(spark, paths) == [], case


def test_discarded_and_orphaned_chunks_are_in_ledger_only(spark: SparkSession, tmp_path: Path) -> None:
    row = ChunkRow(1, 1, T.table, "orphan", 0, ("9",), {"id": "9", "v": "z"})
    orphan: list[LandedRecord] = [Low(1, 1, T.table, "orphan", Position(1, 5)), row]
    discarded = chunk(2, "stale", 20, 30, {"1": "a"}, status=DISCARDED, reason="read elsewhere")
    later = Change(3, 2, Position(1, 40), 40, T.table, "c", ("4",), {"id": "4", "v": "d"})
    paths = lake(tmp_path, [*orphan, *discarded, later])
    assert reconcile_once(spark, paths) == 3
    assert events(spark, paths) == [(40, 0, "c", "d")]
    assert ledger(spark, paths) == [("orphan", "discarded", "orphaned"), ("stale", "discarded", "read elsewhere")]


def test_payload_contradicting_schema_fails_without_values(spark: SparkSession, tmp_path: Path) -> None:
    """The row's schema in landing has two columns; its payload has three."""
    wider = TableSchema(T.table, (*T.columns, Column("more", "text")))
    row = put(1, 10, "1", "hunter2")
    message = landing_row(replace(row, after={"id": "1", "v": "hunter2", "more": "x"}), {T.table: wider})
    paths = Paths(str(tmp_path), "shop")
    reached = Reached(1, 1, ServerIdentity("server", "log"), ResumePoint(1, "0/0"))
    rows = [schema_row(1, 1, T), message | {"schema_id": T.schema_id}]
    Landing(paths.landing, "shop").commit(pa.Table.from_pylist(rows, schema=LANDING), reached)
    with pytest.raises(ReconcileError, match=r"public\.t") as caught:
        reconcile_once(spark, paths)
    assert "hunter2" not in str(caught.value)


def test_landing_compacted_while_stopped_is_reconciled(spark: SparkSession, tmp_path: Path) -> None:
    """D25: reconcile stops, an administrator compacts and vacuums landing, reconcile starts again."""
    paths = lake(tmp_path, WHOLE[:1])
    reconcile_once(spark, paths)
    land(paths.landing, "shop", WHOLE[1:], {T.table: T})
    landing = DeltaTable(paths.landing)
    landing.optimize.compact()
    landing.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert len(list(Path(paths.landing).glob("*.parquet"))) == 1
    assert reconcile_once(spark, paths) == 3
    assert events(spark, paths) == EXPECTED


@pytest.mark.slow
def test_compacted_landing_of_histories_gives_same_events(spark: SparkSession, tmp_path: Path) -> None:
    """One file holds all batches: no batch may be reconciled twice, and windows reach back into the file."""
    worlds = [play(random_steps(seed), f"h{seed}") for seed in range(5 * EFFORT)]
    schemas = {name: schema for world in worlds for name, schema in world.tables.items()}
    plain, compacted = Paths(str(tmp_path / "plain"), "shop"), Paths(str(tmp_path / "compacted"), "shop")
    for paths in (plain, compacted):
        land(paths.landing, "shop", interleave_landings(worlds), schemas)
    reconcile_once(spark, plain)
    DeltaTable(compacted.landing).optimize.compact()
    reconciler = Reconciler(lambda: spark, compacted)
    for batch in range(1, reconciler.landing.newest_batch + 1):
        reconciler.reconcile(batch)
    assert rows_of(spark, compacted) == rows_of(spark, plain)


class Died(BaseException):
    """Ends a run in place of SIGKILL; dblake catches no BaseException."""


@pytest.mark.parametrize(
    "name", ["reconcile.events_written", pytest.param("reconcile.task_written", marks=pytest.mark.slow)]
)
def test_reconcile_killed_before_commit_leaves_no_event(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    paths = lake(tmp_path, WHOLE)

    def die(here: str) -> None:
        if here == name:
            raise Died

    with monkeypatch.context() as patched:
        for module in (dblake.transform.reconcile.task, dblake.transform.reconcile.reconciler):
            patched.setattr(module, "failpoint", die)
        with pytest.raises(Died):
            reconcile_once(spark, paths)
    assert list(Path(paths.events).glob("*.parquet")), "a file was written"
    assert events(spark, paths) == []
    assert reconcile_once(spark, paths) == 3
    assert events(spark, paths) == EXPECTED


@pytest.mark.usefixtures("everything_on_executors")
def test_task_failing_on_executor_leaves_no_event(spark: SparkSession, tmp_path: Path) -> None:
    """Some tasks write their files; one reads a payload that contradicts its schema."""
    wider = TableSchema(T.table, (*T.columns, Column("more", "text")))
    paths = lake(tmp_path, WHOLE)
    row = landing_row(replace(put(4, 50, "9", "x"), after={"id": "9", "v": "x", "more": "y"}), {T.table: wider})
    reached = Reached(4, 1, ServerIdentity("server", "log"), ResumePoint(1, "0/0"))
    rows = pa.Table.from_pylist([row | {"schema_id": T.schema_id}], schema=LANDING)
    Landing(paths.landing, "shop").commit(rows, reached)
    with pytest.raises(ReconcileError, match=r"public\.t"):
        reconcile_once(spark, paths)
    assert list(Path(paths.events).glob("*.parquet")), "other tasks wrote"
    assert events(spark, paths) == []


@pytest.fixture
def everything_on_executors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use executors for any amount of work."""
    for limit in ("_SMALL_BYTES", "_SMALL_BYTES_COLD"):
        monkeypatch.setattr(dblake.transform.reconcile.runner, limit, 0)


@pytest.mark.usefixtures("everything_on_executors")
def test_executors_give_events_of_the_model(spark: SparkSession, tmp_path: Path) -> None:
    worlds = [play(random_steps(seed), f"h{seed}") for seed in range(20)]
    schemas = {name: schema for world in worlds for name, schema in world.tables.items()}
    paths = Paths(str(tmp_path), "shop")
    land(paths.landing, "shop", interleave_landings(worlds), schemas)
    reconcile_once(spark, paths)
    expected = [event for world in worlds for event in reconcile(to_model(world.landing))[0]]
    assert [(row[0], row[1], row[2], row[3]) for row in rows_of(spark, paths)] == sorted(
        (e.position.lsn, e.position.seq, e.table, e.op) for e in expected
    )


def test_second_of_two_concurrent_reconciles_is_rejected(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = lake(tmp_path, WHOLE)
    first, second = (Reconciler(lambda: spark, paths) for _ in range(2))

    def overtake(here: str) -> None:
        if here == "reconcile.events_written":
            with monkeypatch.context() as patched:
                patched.setattr(dblake.transform.reconcile.reconciler, "failpoint", lambda _: None)
                second.reconcile(2)

    with monkeypatch.context() as patched, pytest.raises(TableUnavailable, match="up to batch 2"):
        patched.setattr(dblake.transform.reconcile.reconciler, "failpoint", overtake)
        first.reconcile(3)
    assert reconcile_once(spark, paths) == 3
    assert events(spark, paths) == EXPECTED


def test_reconcile_of_log_rows_alone_starts_no_spark(tmp_path: Path) -> None:
    paths = lake(tmp_path, [put(1, 10, "1", "a"), put(2, 20, "2", "b")])

    def no_session() -> SparkSession:
        raise AssertionError("Spark was started")

    assert reconcile_once(no_session, paths) == 2
    assert len(query_rows(paths.events, "SELECT lsn FROM t")) == 2


def test_event_files_are_ordered_and_carry_statistics(spark: SparkSession, tmp_path: Path) -> None:
    paths = lake(tmp_path, WHOLE)
    reconcile_once(spark, paths)
    (file,) = pa.table(DeltaTable(paths.events).get_add_actions(flatten=True)).to_pylist()
    assert (file["min.lsn"], file["max.lsn"], file["min.table"], file["max.table"]) == (10, 40, T.table, T.table)
    assert (file["min.batch"], file["max.batch"], file["num_records"]) == (1, 3, 4)
    at = {row["committed_at"] for row in query_rows(paths.events, "SELECT committed_at FROM t")}
    assert file["min.committed_at"] <= min(at) and file["max.committed_at"] >= max(at)
    rows = pq.read_table(Path(paths.events) / file["path"], columns=["lsn", "seq"]).to_pylist()
    assert [(row["lsn"], row["seq"]) for row in rows] == [(lsn, seq) for lsn, seq, *_ in EXPECTED]


@pytest.mark.parametrize(
    ("composite", "snapshot"),
    [
        pytest.param(True, "13:30:13", id="two columns, by visibility"),
        pytest.param(False, None, id="one column, by position"),
        pytest.param(False, "13:30:13", id="one column, by visibility", marks=pytest.mark.slow),
        pytest.param(True, None, id="two columns, by position", marks=pytest.mark.slow),
    ],
)
def test_dump_end_deletes_same_keys_from_state_and_events(
    spark: SparkSession, tmp_path: Path, snapshot: str | None, composite: bool
) -> None:
    """Keys 1 and 2 vanished, 3 was returned, 4 was not visible to the first chunk, 5 is deleted, 6 came later."""
    second = Column("v", "text", False, 2) if composite else Column("v", "text")
    schema = TableSchema(T.table, (Column("id", "text", False, 1), second))

    def row(batch: int, lsn: int, key: str, op: str = "c") -> Change:
        whole = (key, "x") if composite else (key,)
        return Change(batch, 1, Position(1, lsn), lsn, T.table, op, whole, {"id": key, "v": "x"}, last=True)
    before: list[LandedRecord] = [*(row(1, 9 + n, str(n)) for n in (1, 2, 4, 5)), row(1, 20, "5", "d")]
    unfolded: list[LandedRecord] = [row(2, 21, "2", "u")]
    began = DumpStart(1, 30, 0, snapshot)
    end = ChunkEnd("d", 1, 30, 0, schema.schema_id, 1, 3, snapshot=snapshot)
    dump: list[LandedRecord] = [
        Low(3, 1, T.table, "k", Position(1, 30)), row(3, 31, "6"),
        ChunkRow(3, 1, T.table, "k", 0, ("3", "x") if composite else ("3",), {"id": "3", "v": "x"}),
        High(3, 1, T.table, "k", Position(1, 32), 32, end),
        Low(3, 1, T.table, "end", Position(1, 33)),
        High(3, 1, T.table, "end", Position(1, 34), 34, replace(end, low_lsn=33, rows=0, began=began)),
    ]
    removed = []
    for folded in (False, True):
        paths = Paths(str(tmp_path / str(folded)), "shop")
        land(paths.landing, "shop", before, {T.table: schema})
        reconcile_once(spark, paths)
        if folded:
            run_state(spark, paths)
            # Keys that state holds are not read from events.
            spark.sql(f"DELETE FROM delta.`{paths.events}` WHERE lsn = 10")
        land(paths.landing, "shop", unfolded + dump, {T.table: schema})
        reconcile_once(spark, paths)
        gone = query_rows(paths.events, "SELECT key FROM t WHERE op = 'd' AND origin = 'dump' ORDER BY seq")
        removed.append([dict(row["key"]) for row in gone])
    keys = ["1", "2"] if snapshot else ["1", "2", "4"]
    assert removed == 2 * [[{"id": key, "v": "x"} if composite else {"id": key} for key in keys]]


def test_histories_with_state_between_give_model_events(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Dumps of these histories end, and remove keys, after state has folded in the first batches."""
    worlds = [play(random_steps(seed), f"h{seed}") for seed in (40, 153, 264, 291, 299, 312)]
    schemas = {name: schema for world in worlds for name, schema in world.tables.items()}
    paths = Paths(str(tmp_path), "shop")
    # State folds up to the end of a transaction, which histories do not mark.
    records = interleave_landings(worlds)
    landed = [replace(record, last=True) if isinstance(record, Change) else record for record in records]
    land(paths.landing, "shop", landed, schemas)
    reconciler = Reconciler(lambda: spark, paths)
    reconciler.reconcile(2)
    run_state(spark, paths)
    assert DeltaTable.is_deltatable(paths.state("h153", "plain"))
    for batch in range(3, reconciler.landing.newest_batch + 1):
        reconciler.reconcile(batch)
    expected = [event for world in worlds for event in reconcile(to_model(world.landing))[0]]
    assert sum(event.op == "d" and event.chunk_id is not None for event in expected) >= 6
    assert [row[:4] for row in rows_of(spark, paths)] == sorted(
        (e.position.lsn, e.position.seq, e.table, e.op) for e in expected
    )


def rows_of(spark: SparkSession, paths: Paths) -> list[tuple[Any, ...]]:
    """All events as tuples that begin with position, table and op, in order."""
    columns = ["lsn", "seq", "table", "op", "key", "before", "after", "chunk_id", "batch", "origin", "partial"]
    rows = spark.read.format("delta").load(paths.events).select(columns).collect()
    return sorted((tuple(row) for row in rows), key=lambda row: row[:4])


_CONF = """
warehouse: ./cluster
progress: file:./progress
source: {name: bench, type: postgres, host: h, database: d, user: u, password: "${env:NOT_NEEDED}", tables: ["*.*"]}
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_cluster_executors_give_same_events(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two executors have only what spark-submit.sh sends them; the rows exceed the driver's limit, in two batches."""
    here = Paths(str(tmp_path / "here"), LANDED)
    land_dump(here.landing, 60_000, 60_000, batch_rows=15_000)
    shutil.copytree(here.landing, tmp_path / f"cluster/{LANDED}/landing")
    with monkeypatch.context() as patched:
        for limit in ("_SMALL_BYTES", "_SMALL_BYTES_COLD"):
            patched.setattr(dblake.transform.reconcile.runner, limit, 1 << 40)
        reconcile_once(spark, here)
    conf = tmp_path / "shop.yaml"
    conf.write_text(_CONF)
    done = subprocess.run(
        [str(HOME / "spark-submit.sh"), "reconcile", "--master", "local-cluster[2,1,1024]", "--conf", str(conf)],
        capture_output=True, text=True, timeout=500, check=False,
    )
    assert done.returncode == 0, done.stderr
    there = Paths(str(tmp_path / "cluster"), LANDED)
    columns = ["incarnation", "lsn", "seq", "table", "op", "key", "before", "after", "chunk_id", "batch", "origin"]
    mine, theirs = (
        [tuple(row) for row in spark.read.format("delta").load(p.events).select(columns).orderBy(columns[:4]).collect()]
        for p in (here, there)
    )
    assert 100_000 < len(mine) < 120_000
    assert theirs == mine
