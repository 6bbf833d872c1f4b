"""Redecode: what it corrects, what it rejects, and how it resumes after a kill."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

import dblake.transform.reconcile.reconciler
import dblake.transform.redecode.run
import dblake.transform.state.restate
from dblake.base.core.errors import LandingGap, SupersededByRedecode, UsageError
from dblake.base.core.position import Position
from dblake.base.core.schema import Column, TableSchema
from dblake.base.lake.frontier import read_frontier
from dblake.base.lake.layout import Paths
from dblake.base.lake.log import commit_files
from dblake.landing.control import ChunkEnd
from dblake.operate.status.stage_problems import redecode_problems
from dblake.transform.events.files import EVENT_COLUMNS
from dblake.transform.reconcile.reconciler import Reconciler
from dblake.transform.reconcile.stream import reconcile_once
from dblake.transform.redecode.preconditions import require_landing
from dblake.transform.redecode.run import compare_redecoded, redecode
from dblake.transform.state.run import run_state
from jobs.reconcile import reconcile as job
from tests.model.dblog import ChunkRow, High, Low
from tests.support.effort import EFFORT
from tests.support.histories import interleave_landings, play, random_steps
from tests.support.landed import Change, LandedRecord, land
from tests.support.sql_rows import sql_rows

_REST = (Column("v", "text"),)
T, U = (TableSchema(f"public.{name}", (Column("id", "integer", False, 1), *_REST)) for name in "tu")
TABLES = {T.table: T, U.table: U}


def put(batch: int, lsn: int, key: str, value: str, op: str = "c", table: str = T.table) -> Change:
    """Return a row created or updated in a transaction of its own."""
    return Change(batch, 1, Position(1, lsn), lsn, table, op, (key,), {"id": key, "v": value}, last=True)


def chunk(low: tuple[int, int], rows: int, high: tuple[int, int], read: dict[str, str]) -> list[LandedRecord]:
    """Return a chunk of ``t``: batch and lsn of its watermarks, the batch of its rows, and the rows."""
    end = ChunkEnd("d", 1, low[1], 0, T.schema_id, len(read), min(low[0], rows))
    return [
        Low(low[0], 1, T.table, "k", Position(1, low[1])),
        *(ChunkRow(rows, 1, T.table, "k", n, (k,), {"id": k, "v": v}) for n, (k, v) in enumerate(read.items())),
        High(high[0], 1, T.table, "k", Position(1, high[1]), high[1], end),
    ]


LANDED = sorted([
    put(1, 10, "1", "a"), put(1, 11, "7", "x", table=U.table), put(2, 20, "2", "b"),
    *chunk((2, 21), 3, (4, 40), {"1": "a", "2": "b", "3": "c"}), put(3, 30, "2", "B", "u"), put(4, 41, "4", "d"),
    put(5, 50, "1", "A", "u"),
], key=lambda record: record.batch)
EXPECTED_EVENTS = [
    (10, 0, "c", "1", "a"), (11, 0, "c", "7", "x"), (20, 0, "c", "2", "b"), (30, 0, "u", "2", "B"),
    (40, 0, "r", "1", "a"), (40, 4, "r", "3", "c"), (41, 0, "c", "4", "d"), (50, 0, "u", "1", "A"),
]
EXPECTED_STATE = {"1": "A", "2": "B", "3": "c", "4": "d"}


@pytest.fixture(scope="module")
def folded(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five batches, reconciled by a decoder with a defect from batch 3 on, and folded."""
    folder = tmp_path_factory.mktemp("folded")
    paths = Paths(str(folder), "shop")
    land(paths.landing, "shop", LANDED, TABLES)
    reconcile_once(spark, paths)
    plant_defects(spark, paths)
    run_state(spark, paths)
    return folder


@pytest.fixture
def paths(folded: Path, tmp_path: Path) -> Paths:
    """Return a copy of the folded warehouse."""
    shutil.copytree(folded, tmp_path, dirs_exist_ok=True)
    return Paths(str(tmp_path), "shop")


def plant_defects(spark: SparkSession, paths: Paths) -> None:
    """Write one wrong value, remove one event, and add one that never happened."""
    table = f"delta.`{paths.events}`"
    spark.sql(f"UPDATE {table} SET after = map('id', '2', 'v', NULL) WHERE lsn = 30")
    spark.sql(f"DELETE FROM {table} WHERE lsn = 40 AND seq = 4")
    row = spark.read.format("delta").load(paths.events).where("lsn = 41").first()
    assert row is not None
    invented = row.asDict() | {"seq": 2, "key": {"id": "9"}, "after": {"id": "9", "v": "z"}}
    columns = from_arrow_schema(EVENT_COLUMNS)
    frame = spark.createDataFrame([tuple(invented[name] for name in columns.names)], columns)
    frame.write.format("delta").mode("append").save(paths.events)


def events(paths: Paths) -> list[tuple[Any, ...]]:
    order = [(name, "ascending") for name in ("incarnation", "lsn", "seq")]
    rows = DeltaTable(paths.events).to_pyarrow_table().sort_by(order).to_pylist()
    return [(r["lsn"], r["seq"], r["op"], dict(r["key"])["id"], dict(r["after"] or {}).get("v")) for r in rows]


def frontier_point(paths: Paths) -> str:
    position = read_frontier(paths).position
    assert position is not None
    return f"{position.incarnation}/{position.lsn}"


def state(paths: Paths) -> dict[str, str | None]:
    rows = DeltaTable(paths.state("public", "t")).to_pyarrow_table().to_pylist()
    return {str(row["id"]): row["v"] for row in rows if not row["_deleted"]}


def state_at_frontier(spark: SparkSession, paths: Paths) -> dict[str, str | None]:
    rows = sql_rows(paths, "SELECT id, v FROM public.t", frontier_point(paths))
    return {str(row["id"]): row["v"] for row in rows}


def test_compare_reports_differences_and_replaces_nothing(spark: SparkSession, paths: Paths) -> None:
    before, folders = events(paths), sorted(os.listdir(paths.root))
    run = compare_redecoded(spark, paths, 3)
    differing = [(line.of, line.batch, line.op, line.different, line.only_old, line.only_new)
                 for line in run.lines if line.differs]
    assert differing == [
        ("events", 3, "u", 1, 0, 0), ("events", 4, "c", 0, 1, 0), ("events", 4, "r", 0, 0, 1),
    ]
    assert (run.first, run.last, run.tables) == (3, 5, ["public.t"])
    assert events(paths) == before and sorted(os.listdir(paths.root)) == folders


def test_redecode_corrects_events_ledger_and_state(spark: SparkSession, paths: Paths) -> None:
    assert state(paths) == {"1": "A", "2": None, "4": "d", "9": "z"}
    untouched = DeltaTable(paths.state("public", "u")).version()
    (run,) = redecode(spark, paths, 3)
    assert (run.first, run.last, run.tables) == (3, 5, ["public.t"])
    assert [(line.of, line.batch, line.op, line.same, line.different, line.only_old, line.only_new)
            for line in run.lines] == [
        ("events", 3, "u", 0, 1, 0, 0), ("events", 4, "c", 1, 0, 1, 0), ("events", 4, "r", 1, 0, 0, 1),
        ("events", None, "u", 1, 0, 0, 0), ("windows", None, "closed", 1, 0, 0, 0),
    ]
    assert events(paths) == EXPECTED_EVENTS
    run_state(spark, paths)
    assert state(paths) == EXPECTED_STATE
    assert DeltaTable(paths.state("public", "u")).version() == untouched
    # Reads as of the frontier follow, and a second run rebuilds nothing.
    assert state_at_frontier(spark, paths) == EXPECTED_STATE
    built = DeltaTable(paths.state("public", "t")).version()
    run_state(spark, paths)
    assert DeltaTable(paths.state("public", "t")).version() == built
    assert not Path(paths.redecode_tables).exists()
    (second,) = redecode(spark, paths, 1)
    assert second.tables == [] and {line.of for line in second.lines} == {"events", "schemas", "windows"}
    # Reconcile and state continue with new batches.
    land(paths.landing, "shop", [put(6, 60, "5", "e")], TABLES)
    assert reconcile_once(spark, paths) == 6
    run_state(spark, paths)
    assert state(paths) == EXPECTED_STATE | {"5": "e"}


class Died(BaseException):
    """Ends a run in place of SIGKILL; dblake catches no BaseException."""


def die_at(name: str) -> Callable[[str], None]:
    def failpoint(here: str) -> None:
        if here == name:
            raise Died

    return failpoint


@pytest.mark.parametrize("name", [
    "redecode.events_swapped",
    *(pytest.param(name, marks=pytest.mark.slow) for name in (
        "redecode.decoded", "reconcile.events_written", "reconcile.events_appended", "redecode.compared",
        "redecode.schemas_swapped", "redecode.windows_swapped", "redecode.appends_rejected", "redecode.staged_deleted",
    )),
])
def test_redecode_killed_at_failpoint_is_completed_by_next_run(
    spark: SparkSession, paths: Paths, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    before = events(paths)
    with monkeypatch.context() as patched:
        for module in (dblake.transform.redecode.run, dblake.transform.reconcile.reconciler):
            patched.setattr(module, "failpoint", die_at(name))
        with pytest.raises(Died):
            redecode(spark, paths, 3)
    swapped = name in ("redecode.events_swapped", "redecode.appends_rejected", "redecode.staged_deleted")
    assert events(paths) == (EXPECTED_EVENTS if swapped else before)
    (run,) = redecode(spark, paths, 3)
    assert (run.tables, events(paths)) == (["public.t"], EXPECTED_EVENTS)
    assert not Path(paths.redecode_tables).exists()


@pytest.mark.slow
def test_interrupted_redecode_finishes_before_another_range(
    spark: SparkSession, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched, pytest.raises(Died):
        patched.setattr(dblake.transform.redecode.run, "failpoint", die_at("redecode.windows_swapped"))
        redecode(spark, paths, 3)
    assert [(one["code"], one["next"]) for one in redecode_problems(paths)] == [
        ("redecode", "unless it runs, reconcile --from 3")
    ]
    unfinished, requested = redecode(spark, paths, 5)
    assert redecode_problems(paths) == []
    assert (unfinished.first, unfinished.tables, requested.first, requested.tables) == (3, ["public.t"], 5, [])
    assert events(paths) == EXPECTED_EVENTS


@pytest.mark.slow
def test_state_killed_before_recording_rebuild_records_it_later(
    spark: SparkSession, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    redecode(spark, paths, 3)
    with monkeypatch.context() as patched, pytest.raises(Died):
        patched.setattr(dblake.transform.state.restate, "failpoint", die_at("state.restated"))
        run_state(spark, paths)
    recorded = read_frontier(paths).versions["public.t"]
    run_state(spark, paths)
    assert read_frontier(paths).versions["public.t"] > recorded
    assert state_at_frontier(spark, paths) == EXPECTED_STATE


@pytest.mark.slow
def test_redecode_repeats_batches_of_concurrent_reconcile(
    spark: SparkSession, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    concurrent = Reconciler(lambda: spark, paths)
    concurrent.catch_up()
    land(paths.landing, "shop", [put(6, 60, "5", "e"), put(7, 70, "6", "f"), put(8, 80, "8", "h")], TABLES)

    def append(here: str) -> None:
        if here == "redecode.compared":
            concurrent.reconcile(6)

    with monkeypatch.context() as patched:
        patched.setattr(dblake.transform.redecode.run, "failpoint", append)
        rounds = redecode(spark, paths, 3)
    assert [(run.first, run.last) for run in rounds] == [(3, 5), (6, 6)]
    with pytest.raises(SupersededByRedecode, match="Next: start it again"):
        concurrent.reconcile(7)
    assert Reconciler(lambda: spark, paths).done() == 6


@pytest.mark.parametrize("moment", ["commit", pytest.param("reconcile.events_written", marks=pytest.mark.slow)])
def test_reconcile_commit_prepared_before_swap_is_rejected(
    spark: SparkSession, paths: Paths, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    late = Reconciler(lambda: spark, paths)
    late.catch_up()
    land(paths.landing, "shop", [put(6, 60, "5", "e")], TABLES)

    def swap(here: str) -> None:
        if here == moment:
            # Its own reconcile reaches these failpoints, too.
            with monkeypatch.context() as patched:
                patched.setattr(dblake.transform.reconcile.reconciler, "failpoint", lambda _: None)
                patched.setattr(dblake.transform.reconcile.reconciler, "commit_files", commit_files)
                redecode(spark, paths, 3)

    def commit(*arguments: Any) -> None:
        swap("commit")
        commit_files(*arguments)

    # On an object store the Delta commit alone excludes writers, no lock does.
    monkeypatch.setattr(dblake.transform.reconcile.reconciler, "commit_lock", nullcontext)
    monkeypatch.setattr(dblake.transform.reconcile.reconciler, "failpoint", swap)
    monkeypatch.setattr(dblake.transform.reconcile.reconciler, "commit_files", commit)
    with pytest.raises(SupersededByRedecode):
        late.reconcile(6)
    assert Reconciler(lambda: spark, paths).done() == 5
    assert events(paths) == EXPECTED_EVENTS


@pytest.mark.slow
def test_redecoded_first_events_of_table_reach_its_state(spark: SparkSession, tmp_path: Path) -> None:
    paths = Paths(str(tmp_path), "shop")
    landed = [put(1, 10, "1", "a"), put(2, 20, "2", "b"), put(2, 21, "7", "x", table=U.table)]
    land(paths.landing, "shop", landed, TABLES)
    reconcile_once(spark, paths)
    # A decoder that lost the event: of batch 2 state reads the other table only.
    spark.sql(f"DELETE FROM delta.`{paths.events}` WHERE lsn = 20")
    run_state(spark, paths)
    assert read_frontier(paths).batch == 2
    redecode(spark, paths, 1)
    assert {row["v"] for row in sql_rows(paths, "SELECT v FROM t_live")} == {"a"}
    run_state(spark, paths)
    for view in ("t", "t_live"):
        assert {row["v"] for row in sql_rows(paths, f"SELECT v FROM {view}")} == {"a", "b"}


@pytest.mark.slow
def test_redecode_restores_lost_schema(spark: SparkSession, tmp_path: Path) -> None:
    """The next step of the error that state ends with: it helps."""
    paths = Paths(str(tmp_path), "shop")
    land(paths.landing, "shop", [put(1, 10, "1", "a"), put(2, 20, "2", "b")], TABLES)
    reconcile_once(spark, paths)
    spark.sql(f"DELETE FROM delta.`{paths.schemas}`")
    (error,) = [result.error for result in run_state(spark, paths)]
    assert error is not None and "reconcile --from BATCH" in error.next_step
    redecode(spark, paths, 1)
    assert [(result.table, result.error) for result in run_state(spark, paths)] == [("public.t", None)]
    assert {row["v"] for row in sql_rows(paths, "SELECT v FROM t")} == {"a", "b"}


@pytest.mark.parametrize(
    ("removed", "first", "message"),
    [
        ("batch < 1", 1, None),
        ("batch < 2", 3, None),
        ("batch < 2", 2, "no longer holds batch 2 and the one before it: it begins with batch 2"),
        ("batch < 4", 3, "no longer holds batch 3"),
        ("batch < 4", 5, None),
        ("batch < 3", 4, "windows of public.t that close in batches 4 to 5 reach back to before batch 3"),
        ("true", 5, "no longer holds batch 5"),
    ],
)
def test_redecode_of_removed_landing_raises_landing_gap(
    spark: SparkSession, paths: Paths, removed: str, first: int, message: str | None
) -> None:
    DeltaTable(paths.landing).delete(removed)
    if message is None:
        require_landing(spark, paths, first, 5)
        return
    with pytest.raises(LandingGap, match=message) as caught:
        redecode(spark, paths, first)
    assert caught.value.exit_code == 78


def test_redecode_requires_unseen_rows_and_orphans_in_landing(spark: SparkSession, tmp_path: Path) -> None:
    paths = Paths(str(tmp_path), "shop")
    end = ChunkEnd("d", 1, 40, 0, T.schema_id, 0, 4, snapshot="15:21:15")
    unseen = replace(put(1, 15, "1", "a"), txid=15)
    land(paths.landing, "shop", [
        unseen, put(2, 20, "2", "b"), Low(2, 1, U.table, "orphan", Position(1, 21)), put(3, 30, "3", "c"),
        Low(4, 1, T.table, "k", Position(1, 40)), High(4, 1, T.table, "k", Position(1, 41), 41, end),
        replace(put(5, 50, "4", "d"), lease_epoch=2),
    ], TABLES)
    reconcile_once(spark, paths)
    for removed, first, table in (("1", 3, "public.t"), ("1", 5, None), ("2", 5, "public.u")):
        DeltaTable(paths.landing).delete(f"batch = {removed}")
        if table is None:
            require_landing(spark, paths, first, 5)
        else:
            with pytest.raises(LandingGap, match=f"windows of {table} that close in batches {first} to 5"):
                require_landing(spark, paths, first, 5)


@pytest.mark.slow
def test_redecode_of_random_histories_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    worlds = [play(random_steps(seed), f"h{seed}") for seed in range(20 * EFFORT)]
    schemas = {name: schema for world in worlds for name, schema in world.tables.items()}
    paths = Paths(str(tmp_path), "shop")
    land(paths.landing, "shop", interleave_landings(worlds), schemas)
    last = reconcile_once(spark, paths)
    (run,) = redecode(spark, paths, last // 2, max_bytes_per_trigger="100k")
    assert [line for line in run.lines if line.differs] == []
    assert {(line.of, line.op) for line in run.lines} >= {
        *(("events", op) for op in "cudrf"), ("windows", "closed"), ("windows", "discarded"),
    }


@pytest.mark.slow
def test_reconcile_job_prints_differences(paths: Paths, tmp_path: Path) -> None:
    conf = tmp_path / "shop.yaml"
    conf.write_text(
        f"warehouse: {tmp_path}\nprogress: file:{tmp_path}/progress\nsource:\n  name: shop\n  type: postgres\n"
        "  host: 127.0.0.1\n  database: shop\n  user: dblake\n  password: ${env:NONE}\n  tables: [public.*]\n"
    )
    done = CliRunner().invoke(job, ["--conf", str(conf), "--from", "4", "--json"])
    assert done.exit_code == 0, done.output
    (run,) = json.loads(done.stdout)
    assert (run["from"], run["to"], run["tables"]) == (4, 5, ["public.t"])
    assert run["events"] == {"same": 3, "different": 0, "only_old": 1, "only_new": 1}
    assert [(line["batch"], line["op"]) for line in run["differing"]] == [(4, "c"), (4, "r")]
    shown = CliRunner().invoke(job, ["--conf", str(conf), "--from", "3"])
    assert "batches 3 to 5, decoded again" in shown.stdout and "rebuilds: public.t" in shown.stdout
    for options, message in (
        (["--from", "9"], "events reach batch 5"), (["--from", "1", "--continuous"], "--from cannot"),
        (["--json"], "--from"),
    ):
        refused = CliRunner().invoke(job, ["--conf", str(conf), *options])
        assert isinstance(refused.exception, UsageError) and message in refused.exception.what
