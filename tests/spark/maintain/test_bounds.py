"""What ``maintain`` may delete, and what it must not: each bound on its own."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from dblake.config import MaintainConfig
from dblake.core.position import Position, ResumePoint
from dblake.core.source import ServerIdentity
from dblake.lake.layout import Paths
from dblake.lake.log import record_batch
from dblake.landing.columns import LANDING
from dblake.landing.control import ChunkEnd
from dblake.landing.table import Landing, Reached
from dblake.maintenance.run import Kept, Upkeep
from dblake.reconcile.stream import reconcile_once
from jobs.maintain import maintain as job
from tests.model.dblog import High, Low
from tests.spark.state.conftest import Lake, table_schema
from tests.support.landed import Change, LandedRecord, landing_row, schema_row

T = table_schema("public.t", "id integer key", "v text")
NOW = datetime.now(UTC)


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    return Lake(spark, tmp_path)


def keep(lake: Lake, table: str, **settings: int) -> Kept:
    return Upkeep(lake.spark, lake.paths, MaintainConfig(**settings)).runs()[table]()


def put(batch: int, key: str = "1") -> Change:
    return Change(batch, 1, Position(1, 100 * batch), 700 + batch, T.table, "c", (key,), {"id": key, "v": "x"})


def land(paths: Paths, *batches: tuple[int, Sequence[LandedRecord]]) -> None:
    """Batches, each with how many days ago it landed."""
    landing = Landing(paths.landing, "shop")
    for days, things in batches:
        batch, epoch = things[0].batch, things[0].lease_epoch
        rows = [landing_row(thing, {T.table: T}) for thing in things]
        rows += [schema_row(batch, epoch, T)] if landing.reached is None else []
        at = NOW - timedelta(days=days)
        table = pa.Table.from_pylist([row | {"landed_at": at} for row in rows], schema=LANDING)
        reached = Reached(batch, epoch, ServerIdentity("server", "log"), ResumePoint(1, "0/0"))
        landing.commit(table, reached)


def batches(paths: Paths) -> list[int]:
    return sorted(set(DeltaTable(paths.landing).to_pyarrow_table(columns=["batch"])["batch"].to_pylist()))


def low(batch: int, chunk: str, epoch: int = 1) -> Low:
    return Low(batch, epoch, T.table, chunk, Position(1, 100 * batch + 1))


def high(batch: int, chunk: str, first: int) -> High:
    end = ChunkEnd(dump_id="d", number=1, low_lsn=100 * first + 1, low_seq=0, schema_id=T.schema_id, rows=0,
                   first_batch=first)
    return High(batch, 1, T.table, chunk, Position(1, 100 * batch + 2), 900, end)


@pytest.mark.parametrize(
    ("days", "landed", "reconciled_to", "left"),
    [
        (None, [(9, [put(1)]), (9, [put(2)]), (9, [put(3)])], 3, [1, 2, 3]),
        (5, [(9, [put(1)]), (9, [put(2)]), (9, [put(3)])], 3, [3]),
        (5, [(9, [put(1)]), (4, [put(2)]), (3, [put(3)])], 3, [2, 3]),
        (5, [(9, [put(1)]), (9, [put(2)]), (9, [put(3)]), (9, [put(4)])], 2, [2, 3, 4]),
        (5, [(9, [put(1)]), (9, [put(2), low(2, "a")]), (9, [put(3)]), (9, [put(4)])], 4, [2, 3, 4]),
        (5, [(9, [put(1)]), (9, [put(2), low(2, "a")]), (9, [put(3), high(3, "a", 2)]), (9, [put(4)])], 4, [4]),
        (5, [(9, [put(1)]), (9, [put(2), low(2, "a")]), (9, [put(3)]), (9, [put(4), high(4, "a", 2)])], 3, [2, 3, 4]),
    ],
    ids=["kept for ever", "old", "young", "not reconciled", "in an open window", "in a closed window",
         "in a window that reconcile has yet to close"],
)
def test_landing_goes_as_far_as_nobody_needs_it(
    lake: Lake, days: int | None, landed: list[tuple[int, list[LandedRecord]]], reconciled_to: int, left: list[int]
) -> None:
    land(lake.paths, *landed[:reconciled_to])
    reconcile_once(lake.spark, lake.paths)
    land(lake.paths, *landed[reconciled_to:])
    keep(lake, "landing", **({"landing_days": days} if days else {}))
    assert batches(lake.paths) == left
    # What comes afterwards is taken up as if nothing had gone.
    land(lake.paths, (0, [put(len(landed) + 1, "2")]))
    assert reconcile_once(lake.spark, lake.paths) == len(landed) + 1
    assert lake.spark.read.format("delta").load(lake.paths.events).count() == len(landed) + 1


@pytest.fixture
def folded(lake: Lake) -> Lake:
    """Events of 2024: key 1 changed often, 2 deleted and 3 with a partial image last; then folded."""
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
    return sorted(row["lsn"] for row in lake.spark.read.format("delta").load(lake.paths.events).collect())


def reconciled(lake: Lake, batch: int) -> None:
    lake.spark.sql(f"CREATE TABLE delta.`{lake.paths.windows}` (batch BIGINT) USING delta")
    for path in (lake.paths.schemas, lake.paths.events, lake.paths.windows):
        record_batch(path, "reconcile/shop", batch)


@pytest.mark.parametrize(
    ("days", "reconciled_to", "left"),
    [
        (None, 3, [10, 11, 12, 13, 20, 21, 22, 30]),
        (1, 3, [20, 21, 22, 30]),
        (1, 1, [11, 12, 13, 20, 21, 22, 30]),
        (100_000, 3, [10, 11, 12, 13, 20, 21, 22, 30]),
    ],
    ids=["kept for ever", "old", "not reconciled", "young"],
)
def test_events_go_if_a_later_one_of_their_key_is_whole(
    folded: Lake, days: int | None, reconciled_to: int, left: list[int]
) -> None:
    reconciled(folded, reconciled_to)
    keep(folded, "events", **({"events_days": days} if days else {}))
    assert positions(folded) == left


def test_state_is_the_same_built_from_what_is_left_of_events(folded: Lake) -> None:
    reconciled(folded, 3)
    before = sorted(tuple(row) for row in folded.state("public", "t").collect())
    assert keep(folded, "events", events_days=1).rows_deleted == 4
    for path in (folded.paths.state("public", "t"), folded.paths.frontier):
        os.rename(path, f"{path}.before")
    folded.fold()
    assert sorted(tuple(row) for row in folded.state("public", "t").collect()) == before


def tombstones(lake: Lake) -> list[str]:
    return [row["_key"] for row in lake.state("public", "t").where("_deleted").collect()]


def frontier_was(lake: Lake, days: int, batch: int, lsn: int, behind: dict[str, int]) -> None:
    """A row of the frontier as state would have noted it so many days ago."""
    row = (NOW - timedelta(days=days), batch, 1, lsn, 0, {}, behind)
    schema = lake.spark.read.format("delta").load(lake.paths.frontier).schema
    lake.spark.createDataFrame([row], schema).write.format("delta").mode("append").save(lake.paths.frontier)


@pytest.mark.parametrize(
    ("days_ago", "lsn", "behind", "left"),
    [
        (31, 21, {}, []),
        (31, 20, {}, ["2"]),
        (29, 30, {}, ["2"]),
        (31, 30, {"public.t": 1}, ["2"]),
    ],
    ids=["older than all", "state was not there yet", "too young", "its table was behind"],
)
def test_a_tombstone_goes_when_state_has_stood_beyond_it_long_enough(
    folded: Lake, days_ago: int, lsn: int, behind: dict[str, int], left: list[str]
) -> None:
    assert tombstones(folded) == ["2"]
    frontier_was(folded, days_ago, 2, lsn, behind)
    keep(folded, "state public.t")
    assert tombstones(folded) == left


def files_on_disk(path: str) -> set[str]:
    return {file.name for file in Path(path).glob("*.parquet")}


@pytest.fixture
def grown(lake: Lake) -> Lake:
    """Ten batches in ten files, reconciled."""
    land(lake.paths, *((9, [put(n, str(n))]) for n in range(1, 11)))
    reconcile_once(lake.spark, lake.paths)
    return lake


def long_ago(path: str) -> None:
    """Makes everything in a table's folder 40 days old."""
    then = (NOW - timedelta(days=40)).timestamp()
    for file in [*Path(path).glob("*.parquet"), *Path(path, "_delta_log").glob("*")]:
        os.utime(file, (then, then))


def test_small_files_become_few_and_their_rows_stay(grown: Lake) -> None:
    rows = DeltaTable(grown.paths.landing).to_pyarrow_table().sort_by("batch")
    kept = keep(grown, "landing")
    assert (kept.files_before, kept.files_after) == (10, 1)
    assert DeltaTable(grown.paths.landing).to_pyarrow_table().sort_by("batch").equals(rows)
    again = keep(grown, "landing")
    assert (again.files_before, again.files_after) == (1, 1)


def test_old_files_go_once_a_day(grown: Lake) -> None:
    orphan = Path(grown.paths.landing, "part-0-of-a-writer-that-was-killed.parquet")
    orphan.write_bytes(b"PAR1")
    then = (NOW - timedelta(days=8)).timestamp()
    os.utime(orphan, (then, then))
    assert keep(grown, "landing").vacuumed
    assert not orphan.exists()
    # The ten files left the table a moment ago, and somebody may read them.
    assert len(files_on_disk(grown.paths.landing)) == 11
    assert not keep(grown, "landing").vacuumed


def test_files_stay_for_as_long_as_reconcile_is_behind(grown: Lake) -> None:
    land(grown.paths, (30, [put(11, "11")]))
    orphan = Path(grown.paths.landing, "part-0.parquet")
    orphan.write_bytes(b"PAR1")
    then = (NOW - timedelta(days=20)).timestamp()
    os.utime(orphan, (then, then))
    assert keep(grown, "landing").vacuumed
    assert orphan.exists()


@pytest.mark.parametrize("behind", [False, True], ids=["all read", "reconcile behind"])
def test_old_entries_of_landings_log_go_unless_a_reader_is_behind(grown: Lake, behind: bool) -> None:
    DeltaTable(grown.paths.landing).create_checkpoint()
    long_ago(grown.paths.landing)
    land(grown.paths, (30, [put(11, "11")]))
    if not behind:
        reconcile_once(grown.spark, grown.paths)
    keep(grown, "landing")
    first = Path(grown.paths.landing, "_delta_log", f"{1:020}.json")
    assert first.exists() == behind
    assert Landing(grown.paths.landing, "shop").reached is not None
    land(grown.paths, (0, [put(12, "12")]))
    assert reconcile_once(grown.spark, grown.paths) == 12


def test_a_capture_that_rests_finds_where_to_resume(grown: Lake) -> None:
    DeltaTable(grown.paths.landing).create_checkpoint()
    long_ago(grown.paths.landing)
    keep(grown, "landing")
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


def test_the_job_says_what_it_did(conf: Path) -> None:
    done = CliRunner().invoke(job, ["--conf", str(conf), "--json"])
    assert done.exit_code == 0
    found = {entry["table"]: entry for entry in json.loads(done.stdout)}
    assert found["landing"] == {
        "table": "landing", "files_before": 10, "files_after": 1, "rows_deleted": 0, "vacuumed": True,
    }
    assert set(found) == {"landing", "events", "schemas", "windows"}
    again = CliRunner().invoke(job, ["--conf", str(conf)])
    assert again.exit_code == 0 and "files before" in again.stdout
