"""The bounds of what ``maintain`` deletes, each tested alone."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

import dblake.base.lake.cleanup
from dblake.base.core.position import Position, ResumePoint
from dblake.base.core.source import ServerIdentity
from dblake.base.lake.frontier import read_frontier
from dblake.base.lake.layout import Paths
from dblake.base.lake.log import record_batch
from dblake.base.lake.query import query_rows
from dblake.base.lake.tables import create_table
from dblake.config import MaintainConfig
from dblake.landing.columns import LANDING
from dblake.landing.control import ChunkEnd, LowMark
from dblake.landing.table import Landing, Reached
from dblake.operate.maintenance.run import Maintenance, MaintenanceResult
from dblake.operate.maintenance.run import maintain as maintain_all
from dblake.serve.consume.subscription import Subscription, SubscriptionSettings
from dblake.transform.reconcile.stream import reconcile_once
from jobs.maintain import maintain as job
from tests.model.dblog import High, Low
from tests.spark.transform.state.conftest import Lake, table_schema
from tests.support.landed import Change, LandedRecord, landing_row, schema_row

T = table_schema("public.t", "id integer key", "v text")
NOW = datetime.now(UTC)


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    return Lake(spark, tmp_path)


def maintain(lake: Lake, table: str, **settings: int) -> MaintenanceResult:
    return Maintenance(lake.spark, lake.paths, MaintainConfig(**settings)).tasks()[table]()


def run_maintenance(lake: Lake) -> dict[str, MaintenanceResult]:
    return {result.table: result for result in maintain_all(lake.spark, lake.paths, MaintainConfig())}


def row(batch: int, key: str = "1") -> Change:
    return Change(batch, 1, Position(1, 100 * batch), 700 + batch, T.table, "c", (key,), {"id": key, "v": "x"})


@dataclass(frozen=True)
class ImportedLow(Low):
    """The low watermark of an imported chunk, whose window has log from ``first_batch`` on."""

    first_batch: int = 1


def land(paths: Paths, *batches: tuple[int, Sequence[LandedRecord]]) -> None:
    """Land batches, each given with its age in days."""
    landing = Landing(paths.landing, "shop")
    for days, things in batches:
        batch, epoch = things[0].batch, things[0].lease_epoch
        rows = [
            landing_row(thing, {T.table: T})
            | ({"payload": LowMark(thing.first_batch).to_json()} if isinstance(thing, ImportedLow) else {})
            for thing in things
        ]
        rows += [schema_row(batch, epoch, T)] if landing.reached is None else []
        at = NOW - timedelta(days=days)
        table = pa.Table.from_pylist([row | {"landed_at": at} for row in rows], schema=LANDING)
        reached = Reached(batch, epoch, ServerIdentity("server", "log"), ResumePoint(1, "0/0"))
        landing.commit(table, reached)


def batches(paths: Paths) -> list[int]:
    return sorted(set(DeltaTable(paths.landing).to_pyarrow_table(columns=["batch"])["batch"].to_pylist()))


def low(batch: int, chunk: str, epoch: int = 1) -> Low:
    return Low(batch, epoch, T.table, chunk, Position(1, 100 * batch + 1))


def imported_low(batch: int, chunk: str, first: int) -> Low:
    return ImportedLow(batch, 1, T.table, chunk, Position(1, 100 * batch + 1), first)


def high(batch: int, chunk: str, first: int) -> High:
    end = ChunkEnd(dump_id="d", number=1, low_lsn=100 * first + 1, low_seq=0, schema_id=T.schema_id, rows=0,
                   first_batch=first)
    return High(batch, 1, T.table, chunk, Position(1, 100 * batch + 2), 900, end)


@pytest.mark.parametrize(
    ("days", "landed", "reconciled_to", "remaining"),
    [
        (5, [(9, [row(1)]), (4, [row(2)]), (3, [row(3)])], 3, [2, 3]),
        (5, [(9, [row(1)]), (9, [row(2), low(2, "a")]), (9, [row(3)]), (9, [row(4)])], 4, [2, 3, 4]),
        (5, [(9, [row(1)]), (9, [row(2)]), (9, [row(3), imported_low(3, "a", 2)]), (9, [row(4)])], 4, [2, 3, 4]),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (
            (None, [(9, [row(1)]), (9, [row(2)]), (9, [row(3)])], 3, [1, 2, 3]),
            (5, [(9, [row(1)]), (9, [row(2)]), (9, [row(3)])], 3, [3]),
            (5, [(9, [row(1)]), (9, [row(2)]), (9, [row(3)]), (9, [row(4)])], 2, [2, 3, 4]),
            (5, [(9, [row(1)]), (9, [row(2), low(2, "a")]), (9, [row(3), high(3, "a", 2)]), (9, [row(4)])], 4, [4]),
            (5, [(9, [row(1)]), (9, [row(2), low(2, "a")]), (9, [row(3)]), (9, [row(4), high(4, "a", 2)])], 3,
             [2, 3, 4]),
        )),
    ],
    ids=["young", "in an open window", "in an import's window", "unlimited", "old", "not reconciled",
         "in a closed window", "in a window reconcile has not closed"],
)
def test_landing_expires_up_to_slowest_reader_and_open_window(
    lake: Lake, days: int | None, landed: list[tuple[int, list[LandedRecord]]], reconciled_to: int, remaining: list[int]
) -> None:
    land(lake.paths, *landed[:reconciled_to])
    reconcile_once(lake.spark, lake.paths)
    land(lake.paths, *landed[reconciled_to:])
    maintain(lake, "landing", **({"landing_days": days} if days else {}))
    assert batches(lake.paths) == remaining
    # Reconcile continues with later batches.
    land(lake.paths, (0, [row(len(landed) + 1, "2")]))
    assert reconcile_once(lake.spark, lake.paths) == len(landed) + 1
    assert DeltaTable(lake.paths.events).count() == len(landed) + 1


@pytest.fixture
def folded(lake: Lake) -> Lake:
    """Folded events of 2024: key 1 updated twice, key 2 deleted, key 3 with a partial image last."""
    lake.schema(T)
    for table in (lake.paths.windows, lake.paths.landing):
        assert not DeltaTable.is_deltatable(table)
    lake.land(T, 1, (10, "c", "1", {"id": "1", "v": "a"}), (11, "u", "1", {"id": "1", "v": "b"}),
              (12, "c", "2", {"id": "2", "v": "a"}), (13, "c", "3", {"id": "3", "v": "a"}))
    lake.land(T, 2, (20, "u", "1", {"id": "1", "v": "c"}), (21, "d", "2", None), (22, "u", "3", {"id": "3", "v": "b"}))
    lake.land(T, 3, (30, "u", "3", {"id": "3"}))
    lake.fold()
    return lake


def positions(lake: Lake) -> list[int]:
    return sorted(DeltaTable(lake.paths.events).to_pyarrow_table(columns=["lsn"])["lsn"].to_pylist())


def set_reconciled(lake: Lake, batch: int) -> None:
    create_table(lake.paths.windows, pa.schema([("batch", pa.int64())]))
    for path in (lake.paths.schemas, lake.paths.events, lake.paths.windows):
        record_batch(path, "reconcile/shop", batch)


@pytest.mark.parametrize(
    ("days", "reconciled_to", "remaining"),
    [
        pytest.param(None, 3, [10, 11, 12, 13, 20, 21, 22, 30], marks=pytest.mark.slow),
        (1, 3, [20, 21, 22, 30]),
        (1, 1, [11, 12, 13, 20, 21, 22, 30]),
        (100_000, 3, [10, 11, 12, 13, 20, 21, 22, 30]),
    ],
    ids=["unlimited", "old", "not reconciled", "young"],
)
def test_events_superseded_by_whole_event_are_deleted(
    folded: Lake, days: int | None, reconciled_to: int, remaining: list[int]
) -> None:
    set_reconciled(folded, reconciled_to)
    maintain(folded, "events", **({"events_days": days} if days else {}))
    assert positions(folded) == remaining


def test_consumer_behind_expired_events_meets_gap(folded: Lake) -> None:
    set_reconciled(folded, 3)
    with Subscription([folded.paths], SubscriptionSettings(start="1/0", until_caught_up=True)) as subscription:
        checkpoint = next(one for one in subscription if one.events).checkpoint
    maintain(folded, "events", events_days=1)
    settings = SubscriptionSettings(checkpoint=checkpoint, until_caught_up=True)
    with Subscription([folded.paths], settings) as subscription:
        found = list(subscription)
    assert [one.control.kind for one in found[:2] if one.control] == ["gap", "bootstrap_started"]
    rows = [event.after for one in found for event in one.events if event.after]
    assert {row["id"]: row["v"] for row in rows} == {"1": "c", "3": "b"}


def test_events_that_a_table_behind_lacks_stay(folded: Lake) -> None:
    set_reconciled(folded, 3)
    add_frontier(folded, 0, 9, 90, {"public.t": 1})
    maintain(folded, "events", events_days=1)
    assert positions(folded) == [11, 12, 13, 20, 21, 22, 30]


def test_row_that_a_partial_key_change_moved_stays(lake: Lake) -> None:
    """Its old key is used again, and the row moves once more; the state of what remains has its value."""
    lake.schema(T)
    lake.land(
        T, 1, (10, "c", "3", {"id": "3", "v": "long"}), (11, "d", "3", None), (12, "c", "4", {"id": "4"}, [], "3"),
        (13, "c", "3", {"id": "3", "v": "new"}), (14, "d", "4", None), (15, "c", "5", {"id": "5"}, [], "4"),
        (16, "c", "6", {"id": "6", "v": "a"}), (17, "d", "6", None), (18, "c", "7", {"id": "7"}, [], "6"),
        (19, "u", "7", {"id": "7", "v": "b"}),
    )
    lake.fold()
    original = state_rows(lake)
    assert [(row["id"], row["v"], row["_missing"]) for row in lake.state("public", "t").where("id = 5").collect()] == [
        (5, "long", [])
    ]
    set_reconciled(lake, 1)
    # A create that is superseded goes first, then the row that it no longer needs.
    for gone in (18, 16):
        assert gone in positions(lake)
        assert maintain(lake, "events", events_days=1).rows_deleted == 1
        assert gone not in positions(lake)
    for path in (lake.paths.state("public", "t"), lake.paths.frontier):
        os.rename(path, f"{path}.before")
    lake.fold()
    assert state_rows(lake) == original


def test_state_rebuilt_from_remaining_events_is_equal(folded: Lake) -> None:
    set_reconciled(folded, 3)
    original = state_rows(folded)
    assert maintain(folded, "events", events_days=1).rows_deleted == 4
    for path in (folded.paths.state("public", "t"), folded.paths.frontier):
        os.rename(path, f"{path}.before")
    folded.fold()
    assert state_rows(folded) == original


def state_rows(lake: Lake) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = DeltaTable(lake.paths.state("public", "t")).to_pyarrow_table().to_pylist()
    return sorted(rows, key=lambda row: row["_key"])


def tombstones(lake: Lake) -> list[str]:
    return [row["_key"] for row in state_rows(lake) if row["_deleted"]]


def add_frontier(lake: Lake, days: int, batch: int, lsn: int, behind: dict[str, int]) -> None:
    """Append the frontier row that state would have recorded ``days`` ago."""
    table = DeltaTable(lake.paths.frontier)
    schema = pa.schema(table.schema().to_arrow())
    values: tuple[object, ...] = (NOW - timedelta(days=days), batch, 1, lsn, 0, {}, behind)
    write_deltalake(table, pa.Table.from_pylist([dict(zip(schema.names, values, strict=True))], schema), mode="append")


@pytest.mark.parametrize(
    ("days_ago", "lsn", "behind", "remaining"),
    [
        (31, 21, {}, []),
        (31, 20, {}, ["2"]),
        (29, 30, {}, ["2"]),
        (31, 30, {"public.t": 1}, ["2"]),
    ],
    ids=["expired", "newer than the frontier", "too young", "table was behind"],
)
def test_tombstone_expires_once_state_is_past_it_long_enough(
    folded: Lake, days_ago: int, lsn: int, behind: dict[str, int], remaining: list[str]
) -> None:
    assert tombstones(folded) == ["2"]
    add_frontier(folded, days_ago, 2, lsn, behind)
    maintain(folded, "state public.t")
    assert tombstones(folded) == remaining


def test_frontier_before_retention_expires_but_its_newest_row(folded: Lake) -> None:
    for days, batch in ((50, 1), (40, 2), (20, 3)):
        add_frontier(folded, days, batch, 10 * batch, {})
    maintain(folded, "frontier")
    left = DeltaTable(folded.paths.frontier).to_pyarrow_table(columns=["at", "batch"]).sort_by("at").to_pylist()
    assert [((NOW - row["at"]).days, row["batch"]) for row in left][:2] == [(40, 2), (20, 3)]
    assert read_frontier(folded.paths, until=NOW - timedelta(days=30)).batch == 2


def test_windows_of_expired_batches_expire_but_the_newest_dump(lake: Lake) -> None:
    """A ledger that lacked a window of a batch that landing holds would have it recorded again, as orphaned."""
    landed: list[tuple[int, list[LandedRecord]]] = [
        (9, [row(n), low(n, f"c{n}"), high(n, f"c{n}", n)]) for n in range(1, 6)
    ]
    land(lake.paths, *landed)
    reconcile_once(lake.spark, lake.paths)
    table = DeltaTable(lake.paths.windows)
    began = {"incarnation": 1, "lsn": 1, "seq": 0}
    schema = pa.schema(table.schema().to_arrow())
    kept = {"chunk_id": "last", "dump_id": "whole", "table": T.table, "batch": 1, "status": "closed", "began": began,
            "incarnation": 1, "high_lsn": 9, "lease_epoch": 1}
    gap = {"batch": 1, "status": "gap"}
    write_deltalake(table, pa.Table.from_pylist([kept, gap], schema), mode="append")
    maintain(lake, "windows")
    assert len(query_rows(lake.paths.windows, "SELECT * FROM t")) == 7
    DeltaTable(lake.paths.landing).delete("batch < 4")
    maintain(lake, "windows")
    left = query_rows(lake.paths.windows, "SELECT chunk_id, status FROM t ORDER BY chunk_id")
    assert [(each["chunk_id"], each["status"]) for each in left] == [
        ("c4", "closed"), ("c5", "closed"), ("last", "closed"), (None, "gap"),
    ]


def test_results_of_old_checks_expire_but_each_newest_passed(lake: Lake) -> None:
    rows = [
        {"run_id": run, "checked_at": NOW - timedelta(days=days), "suite": suite, "table": "events", "success": passed}
        for run, days, suite, passed in (
            ("a", 60, "events", True), ("b", 50, "events", True), ("c", 45, "order", True), ("d", 44, "order", False),
            ("e", 43, "order", False), ("f", 2, "events", False),
        )
    ]
    schema = pa.schema([("run_id", pa.string()), ("checked_at", pa.timestamp("us", "UTC")), ("suite", pa.string()),
                        ("table", pa.string()), ("success", pa.bool_())])
    write_deltalake(lake.paths.check_results, pa.Table.from_pylist(rows, schema))
    maintain(lake, "check results")
    left = query_rows(lake.paths.check_results, "SELECT run_id FROM t ORDER BY run_id")
    assert [each["run_id"] for each in left] == ["b", "c", "f"]


def files_on_disk(path: str) -> set[str]:
    return {file.name for file in Path(path).glob("*.parquet")}


@pytest.fixture
def grown(lake: Lake) -> Lake:
    """Ten batches in ten files, reconciled."""
    land(lake.paths, *((9, [row(n, str(n))]) for n in range(1, 11)))
    reconcile_once(lake.spark, lake.paths)
    return lake


def age_files(path: str) -> None:
    """Make every file in a table's folder, and every commit, 40 days old."""
    then = (NOW - timedelta(days=40)).timestamp()
    for entry in Path(path, "_delta_log").glob("*.json"):
        aged = re.sub(r'"timestamp":\d+', f'"timestamp":{int(then * 1000)}', entry.read_text("utf-8"))
        entry.write_text(aged, "utf-8")
    for file in [*Path(path).glob("*.parquet"), *Path(path, "_delta_log").glob("*")]:
        os.utime(file, (then, then))


def test_compaction_merges_small_files_and_retains_rows(grown: Lake) -> None:
    rows = DeltaTable(grown.paths.landing).to_pyarrow_table().sort_by("batch")
    result = maintain(grown, "landing")
    assert (result.files_before, result.files_after) == (10, 1)
    assert DeltaTable(grown.paths.landing).to_pyarrow_table().sort_by("batch").equals(rows)
    repeated = maintain(grown, "landing")
    assert (repeated.files_before, repeated.files_after) == (1, 1)


def test_vacuum_removes_old_files_once_a_day(grown: Lake) -> None:
    orphan = Path(grown.paths.landing, "part-0-of-a-killed-writer.parquet")
    orphan.write_bytes(b"PAR1")
    age_files(grown.paths.landing)
    assert run_maintenance(grown)["landing"].vacuumed
    assert not orphan.exists()
    # The ten files are old, but left the table a moment ago, and readers may still have them open.
    assert len(files_on_disk(grown.paths.landing)) == 11
    assert not run_maintenance(grown)["landing"].vacuumed


@pytest.mark.slow
def test_vacuum_of_table_with_odd_names_removes_orphan(lake: Lake) -> None:
    odd = table_schema("public.odd", "id integer key", "a b,c: text")
    lake.schema(odd)
    lake.land(odd, 1, (10, "c", "1", {"id": "1", "a b,c:": "x"}))
    lake.fold()
    orphan = Path(lake.paths.state("public", "odd"), "part-0-of-a-killed-writer.parquet")
    orphan.write_bytes(b"PAR1")
    then = (NOW - timedelta(days=8)).timestamp()
    os.utime(orphan, (then, then))
    maintain(lake, "state public.odd")
    assert not orphan.exists()
    assert lake.state("public", "odd").count() == 1


def test_vacuum_retains_files_while_reconcile_is_behind(grown: Lake) -> None:
    land(grown.paths, (30, [row(11, "11")]))
    orphan = Path(grown.paths.landing, "part-0.parquet")
    orphan.write_bytes(b"PAR1")
    then = (NOW - timedelta(days=20)).timestamp()
    os.utime(orphan, (then, then))
    assert maintain(grown, "landing").vacuumed
    assert orphan.exists()


@pytest.mark.parametrize("behind", [False, True], ids=["all read", "reconcile behind"])
def test_landing_log_is_cleaned_whether_reconcile_is_behind(
    grown: Lake, behind: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dblake.base.lake.cleanup, "_KEPT_COMMITS", 0)
    DeltaTable(grown.paths.landing).create_checkpoint()
    age_files(grown.paths.landing)
    land(grown.paths, (30, [row(11, "11")]))
    if not behind:
        reconcile_once(grown.spark, grown.paths)
    maintain(grown, "landing")
    first = Path(grown.paths.landing, "_delta_log", f"{1:020}.json")
    assert not first.exists()
    assert Landing(grown.paths.landing, "shop").reached is not None
    land(grown.paths, (0, [row(12, "12")]))
    assert reconcile_once(grown.spark, grown.paths) == 12


def test_landing_log_of_idle_capture_retains_resume_point(grown: Lake) -> None:
    DeltaTable(grown.paths.landing).create_checkpoint()
    age_files(grown.paths.landing)
    maintain(grown, "landing")
    reached = Landing(grown.paths.landing, "shop").reached
    assert reached is not None and reached.batch == 10


@pytest.fixture
def conf(grown: Lake, tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "shop.yaml"
    path.write_text(
        f"warehouse: {tmp_path}\nprogress: file:{tmp_path}/progress\nsource:\n  name: shop\n  type: postgres\n"
        "  host: 127.0.0.1\n  database: shop\n  user: dblake\n  password: ${env:NONE}\n  tables: [public.*]\n"
    )
    yield path


def test_maintain_job_prints_result_per_table(conf: Path) -> None:
    done = CliRunner().invoke(job, ["--conf", str(conf), "--json"])
    assert done.exit_code == 0
    entries = {entry["table"]: entry for entry in json.loads(done.stdout)}
    assert entries["landing"] == {
        "table": "landing", "files_before": 10, "files_after": 1, "rows_deleted": 0, "vacuumed": True,
    }
    assert set(entries) == {"landing", "events", "schemas", "windows"}
    repeated = CliRunner().invoke(job, ["--conf", str(conf)])
    assert (repeated.exit_code, repeated.stdout) == (0, "nothing to do: 4 tables need no maintenance\n")
