"""What a run of reconcile does with a landing that is whole, was read before, has holes, or contradicts itself."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from dblake.core.errors import LandingGap, ReconcileError, WindowInvariantViolated
from dblake.core.position import Position, ResumePoint
from dblake.core.schema import Column, TableSchema
from dblake.core.source import ServerIdentity
from dblake.lake.layout import Paths
from dblake.lake.log import query_rows
from dblake.landing.columns import LANDING
from dblake.landing.control import DISCARDED, ChunkEnd, DumpStart
from dblake.landing.table import Landing, Reached
from dblake.reconcile.stream import reconcile_once
from tests.model.dblog import ChunkRow, High, Low
from tests.support.histories import interleave_landings, play, random_steps
from tests.support.landed import Change, LandedRecord, land, landing_row, schema_row

HOME = Path(__file__).parents[3]
T = TableSchema("public.t", (Column("id", "integer", False, 1), Column("v", "text")))
Row = tuple[int, int, str, str | None]


def put(batch: int, lsn: int, key: str, value: str, op: str = "c") -> Change:
    """A row of ``t`` created or updated in a transaction of its own."""
    return Change(batch, 1, Position(1, lsn), lsn, T.table, op, (key,), {"id": key, "v": value})


def chunk(batch: int, name: str, low: int, high: int, read: dict[str, str], **said: object) -> list[LandedRecord]:
    """A chunk of ``t`` that landed in one batch; ``said`` is what its high watermark says differently."""
    end = {"dump_id": "d", "number": 1, "low_lsn": low, "low_seq": 0, "schema_id": T.schema_id, "rows": len(read),
           "first_batch": batch, **said}
    return [
        Low(batch, 1, T.table, name, Position(1, low)),
        *(ChunkRow(batch, 1, T.table, name, n, (k,), {"id": k, "v": v}) for n, (k, v) in enumerate(read.items())),
        High(batch, 1, T.table, name, Position(1, high), high, ChunkEnd(**end)),  # type: ignore[arg-type]
    ]


def lake(folder: Path, things: Sequence[LandedRecord]) -> Paths:
    """A warehouse with these things landed."""
    paths = Paths(str(folder), "shop")
    land(paths.landing, "shop", things, {T.table: T})
    return paths


def reconciled_in(
    runs: int, spark: SparkSession, folder: Path, first: Sequence[LandedRecord], then: Sequence[LandedRecord]
) -> Paths:
    """A warehouse with all of it reconciled: in two runs the first ones are before the others land."""
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
def far_from_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process's own time zone, which Spark gives collected times in, is another than UTC."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Kathmandu")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("far_from_utc")
def test_times_are_instants_whatever_the_machines_time_zone(spark: SparkSession, tmp_path: Path) -> None:
    paths = lake(tmp_path, WHOLE)
    reconcile_once(spark, paths)
    landed = query_rows(paths.landing, "SELECT lsn, committed_at FROM t WHERE kind IN ('row', 'high')")
    at = {row["lsn"]: row["committed_at"] for row in landed}
    told = query_rows(paths.events, "SELECT lsn, committed_at FROM t")
    assert len(told) == len(EXPECTED)
    assert [row["committed_at"] for row in told] == [at[row["lsn"]] for row in told]
    assert [row["closed_at"] for row in query_rows(paths.windows, "SELECT closed_at FROM t")] == [at[30]]


def test_a_second_run_and_a_lost_checkpoint_change_nothing(spark: SparkSession, tmp_path: Path) -> None:
    paths = lake(tmp_path, WHOLE)
    assert reconcile_once(spark, paths) == 3
    assert events(spark, paths) == EXPECTED
    version = DeltaTable(paths.events).version()
    assert reconcile_once(spark, paths) == 3
    shutil.rmtree(paths.stream_checkpoint("reconcile"))
    assert reconcile_once(spark, paths) == 3
    assert DeltaTable(paths.events).version() == version
    land(paths.landing, "shop", [put(4, 50, "3", "d")], {T.table: T})
    assert reconcile_once(spark, paths) == 4
    assert events(spark, paths) == [*EXPECTED, (50, 0, "c", "d")]


def test_a_checkpoint_ahead_of_events_is_a_gap_by_name(spark: SparkSession, tmp_path: Path) -> None:
    paths = lake(tmp_path, WHOLE)
    reconcile_once(spark, paths)
    for table in (paths.events, paths.windows, paths.schemas):
        shutil.rmtree(table)
    with pytest.raises(LandingGap, match="checkpoint"):
        reconcile_once(spark, paths)
    shutil.rmtree(paths.stream_checkpoint("reconcile"))
    assert reconcile_once(spark, paths) == 3
    assert events(spark, paths) == EXPECTED


@pytest.mark.parametrize("runs", [1, 2], ids=["in one run", "in two runs"])
def test_behind_a_gap_a_whole_dump_removes_what_is_gone(spark: SparkSession, tmp_path: Path, runs: int) -> None:
    before: list[LandedRecord] = [put(1, 10, "1", "a"), put(1, 20, "2", "b"), put(1, 30, "3", "c")]
    # The new server counts its transactions from further down.
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


@pytest.mark.parametrize("runs", [1, 2], ids=["in one run", "in two runs"])
def test_what_a_dump_of_keys_returned_is_known_to_a_whole_dump_after_it(
    spark: SparkSession, tmp_path: Path, runs: int
) -> None:
    began = DumpStart(1, 40, 0)
    # Between the two the row vanished without an event.
    keys, whole = chunk(1, "keys", 20, 30, {"1": "a"}), chunk(2, "all", 40, 50, {}, dump_id="w", began=began)
    paths = reconciled_in(runs, spark, tmp_path, keys, whole)
    assert events(spark, paths) == [(30, 0, "r", "a"), (50, 0, "d", None)]


def test_missing_batches_are_named_and_nothing_is_done_past_them(spark: SparkSession, tmp_path: Path) -> None:
    paths = lake(tmp_path, [put(1, 10, "1", "a"), put(2, 20, "2", "b")])
    assert reconcile_once(spark, paths) == 2
    land(paths.landing, "shop", [put(4, 40, "4", "d"), put(7, 70, "7", "g")], {T.table: T})
    with pytest.raises(LandingGap, match="batch 3"):
        reconcile_once(spark, paths)
    shutil.rmtree(paths.stream_checkpoint("reconcile"))
    with pytest.raises(LandingGap, match=r"landing lacks .*3.*5 to 6"):
        reconcile_once(spark, paths)
    assert events(spark, paths) == [(10, 0, "c", "a"), (20, 0, "c", "b")]


@pytest.mark.parametrize(
    ("case", "landed", "said"),
    [
        ("fewer rows than were read", chunk(2, "k", 20, 30, {"1": "a"}, rows=2), "read 2 rows"),
        ("more rows than were read", chunk(2, "k", 20, 30, {"1": "a", "2": "b"}, rows=1), "read 1 rows"),
        ("high before low", chunk(2, "k", 30, 20, {"1": "a"}), "inside out"),
        ("began after its end", chunk(2, "k", 20, 30, {"1": "a"}, first_batch=3), "began in batch 3"),
        ("two high watermarks", [*chunk(2, "k", 20, 30, {"1": "a"}), *chunk(2, "k", 20, 40, {})[-1:]], "two high"),
    ],
)
def test_a_window_that_contradicts_itself_stops_the_run(
    spark: SparkSession, tmp_path: Path, case: str, landed: list[LandedRecord], said: str
) -> None:
    paths = lake(tmp_path, [put(1, 10, "1", "a"), *landed])
    with pytest.raises(WindowInvariantViolated, match=said):
        reconcile_once(spark, paths)
    assert events(spark, paths) == [], case


def test_discarded_chunks_and_orphans_emit_nothing_and_are_in_the_ledger(spark: SparkSession, tmp_path: Path) -> None:
    row = ChunkRow(1, 1, T.table, "orphan", 0, ("9",), {"id": "9", "v": "z"})
    orphan = [Low(1, 1, T.table, "orphan", Position(1, 5)), row]
    discarded = chunk(2, "stale", 20, 30, {"1": "a"}, status=DISCARDED, reason="read elsewhere")
    later = Change(3, 2, Position(1, 40), 40, T.table, "c", ("4",), {"id": "4", "v": "d"})
    paths = lake(tmp_path, [*orphan, *discarded, later])
    assert reconcile_once(spark, paths) == 3
    assert events(spark, paths) == [(40, 0, "c", "d")]
    assert ledger(spark, paths) == [("orphan", "discarded", "orphaned"), ("stale", "discarded", "read elsewhere")]


def test_bytes_that_do_not_fit_their_schema_stop_the_run_unseen(spark: SparkSession, tmp_path: Path) -> None:
    """Landing says that the row has two columns; its bytes have three."""
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


_CONF = """
warehouse: ./cluster
progress: file:./progress
source: {name: shop, type: postgres, host: h, database: d, user: u, password: "${env:NOT_NEEDED}", tables: ["*.*"]}
"""


@pytest.mark.timeout(600)
def test_real_executors_give_the_same_events(spark: SparkSession, tmp_path: Path) -> None:
    """Two executors that have only what spark-submit.sh sends them."""
    worlds = [play(random_steps(seed), f"h{seed}") for seed in range(30)]
    schemas = {name: schema for world in worlds for name, schema in world.tables.items()}
    here = Paths(str(tmp_path / "here"), "shop")
    land(here.landing, "shop", interleave_landings(worlds), schemas)
    shutil.copytree(here.landing, tmp_path / "cluster/shop/landing")
    reconcile_once(spark, here)
    conf = tmp_path / "shop.yaml"
    conf.write_text(_CONF)
    done = subprocess.run(
        [str(HOME / "spark-submit.sh"), "reconcile", "--master", "local-cluster[2,1,1024]", "--conf", str(conf)],
        capture_output=True, text=True, timeout=500, check=False,
    )
    assert done.returncode == 0, done.stderr
    there = Paths(str(tmp_path / "cluster"), "shop")
    columns = ["incarnation", "lsn", "seq", "table", "op", "key", "before", "after", "chunk_id", "batch", "origin"]
    mine, theirs = (
        [tuple(row) for row in spark.read.format("delta").load(p.events).select(columns).orderBy(columns[:4]).collect()]
        for p in (here, there)
    )
    assert len(mine) > 100
    assert theirs == mine
