"""What is pending and due, on real tables without a JVM: each reason for work is found, and nothing else is."""

from __future__ import annotations

import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

from dblake.base.core.errors import CatalogUnavailable, ConfigError, Fenced, StateError
from dblake.base.core.position import Position
from dblake.base.core.schema import Column, TableSchema
from dblake.base.core.secret import Reference
from dblake.base.lake.frontier import append_frontier, read_frontier
from dblake.base.lake.layout import Paths
from dblake.base.lake.log import Application, holds_little, record_batch
from dblake.config import Config
from dblake.config.iceberg import IcebergConfig
from dblake.operate.cycle import run as cycle_run
from dblake.operate.cycle.due import is_check_due, is_maintenance_due
from dblake.operate.cycle.run import JOB, Cycle, CycleResult
from dblake.operate.maintenance import run as maintenance_run
from dblake.operate.maintenance.run import MaintenanceResult, last_maintained, maintain
from dblake.operate.quality.pending import has_unchecked_data, read_latest_check, read_passed_bounds
from dblake.serve.iceberg.publisher import published_name
from dblake.transform.reconcile.pending import reconciled_batch
from dblake.transform.reconcile.stream import reconcile_once
from dblake.transform.state.pending import folded_batch
from dblake.transform.state.run import TableResult, run_continuously, run_state
from pipelines.iceberg import open_publisher
from tests.support.landed import Change, land
from tests.support.leases import RevocableLease

T = TableSchema("public.t", (Column("id", "integer", False, 1), Column("v", "text")))


def no_spark() -> SparkSession:
    raise AssertionError("started Spark")


def put(batch: int, key: str) -> Change:
    return Change(batch, 1, Position(1, 10 * batch), batch, T.table, "c", (key,), {"id": key, "v": "x"}, last=True)


def landed(paths: Paths, *batches: int) -> None:
    land(paths.landing, "shop", [put(batch, str(batch)) for batch in batches], {T.table: T})


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    """Return a warehouse in which two batches are landed, reconciled and folded."""
    paths = Paths(str(tmp_path), "shop")
    landed(paths, 1, 2)
    reconcile_once(no_spark, paths)
    run_state(no_spark, paths)
    return paths


def test_nothing_is_pending_after_both_stages(paths: Paths) -> None:
    assert (reconciled_batch(paths), folded_batch(paths)) == (2, 2)


def test_landed_batch_is_pending_until_reconciled_and_folded(paths: Paths) -> None:
    landed(paths, 3)
    assert (reconciled_batch(paths), folded_batch(paths)) == (None, 2)
    reconcile_once(no_spark, paths)
    assert (reconciled_batch(paths), folded_batch(paths)) == (3, None)
    run_state(no_spark, paths)
    assert (reconciled_batch(paths), folded_batch(paths)) == (3, 3)


def test_source_without_landing_is_pending(tmp_path: Path) -> None:
    paths = Paths(str(tmp_path), "shop")
    assert (reconciled_batch(paths), folded_batch(paths)) == (None, 0)


@pytest.mark.parametrize("table", ["schemas", "windows", "events", "landing"])
def test_removed_table_is_pending_for_reconcile(paths: Paths, table: str) -> None:
    shutil.rmtree(getattr(paths, table))
    assert reconciled_batch(paths) is None


def test_removed_state_table_is_pending(paths: Paths) -> None:
    shutil.rmtree(paths.state("public", "t"))
    assert folded_batch(paths) is None
    run_state(no_spark, paths)
    assert folded_batch(paths) == 2


def test_table_that_is_behind_is_pending(paths: Paths) -> None:
    frontier = read_frontier(paths)
    append_frontier(paths, type(frontier)(2, frontier.position, {}, {T.table: 1}))
    assert folded_batch(paths) is None


def test_redecoded_table_is_pending_until_rebuilt(paths: Paths) -> None:
    line = {"run": 1, "of": "events", "batch": 1, "table": T.table, "op": "c", "same": 0, "different": 1,
            "only_old": 0, "only_new": 0}
    write_deltalake(paths.redecoded, pa.Table.from_pylist([line]))
    assert folded_batch(paths) == 2, "the run has not swapped events yet"
    record_batch(paths.events, Application.redecode("shop"), 1)
    assert folded_batch(paths) is None
    record_batch(paths.state("public", "t"), Application.redecode("shop"), 1)
    assert folded_batch(paths) == 2


def passed(paths: Paths, success: bool = True, at: datetime | None = None, state: int = 0) -> None:
    """Record a run of check over all there is."""
    bounds = {("landing", "landing"): 2, ("events", "events"): 2, ("order", "events"): 2, ("watermarks", "windows"): 2,
              ("windows", "windows"): 2, ("state", T.table): state}
    rows = [
        {"run_id": f"{at}", "checked_at": at or datetime.now(UTC), "suite": suite, "table": table, "success": success,
         "upto": upto}
        for (suite, table), upto in bounds.items()
    ]
    write_deltalake(paths.check_results, pa.Table.from_pylist(rows), mode="append")


def version_of(paths: Paths) -> int:
    return read_frontier(paths).versions[T.table]


def test_check_is_pending_until_all_suites_passed(paths: Paths) -> None:
    assert has_unchecked_data(paths)
    passed(paths, state=version_of(paths) + 1)
    assert has_unchecked_data(paths)
    passed(paths, state=version_of(paths))
    assert not has_unchecked_data(paths)
    assert read_passed_bounds(paths)["events", "events"] == 2
    landed(paths, 3)
    assert has_unchecked_data(paths)


def test_failed_suite_does_not_count_as_passed(paths: Paths) -> None:
    passed(paths, success=False, state=version_of(paths))
    assert has_unchecked_data(paths)
    latest = read_latest_check(paths)
    assert latest is not None and not latest.passed


@pytest.mark.parametrize(
    ("age_seconds", "success", "every", "retry", "expected"),
    [
        (None, True, 3600, False, True), (None, True, None, False, False),
        (60, True, 3600, False, False), (7200, True, 3600, False, True), (60, True, 0, False, True),
        (60, False, 3600, False, False), (60, False, 3600, True, True),
    ],
    ids=["never checked", "switched off", "recent", "old", "always", "recent failure", "failure in a bounded run"],
)
def test_check_is_due_by_age_and_result(
    paths: Paths, age_seconds: float | None, success: bool, every: float | None, retry: bool, expected: bool
) -> None:
    if age_seconds is not None:
        at = datetime.fromtimestamp(time.time() - age_seconds, UTC)
        # A version of state that is not the newest one, so that there is something to check.
        passed(paths, success, at, state=version_of(paths) + 1)
    assert is_check_due(paths, every, has_user_suites=False, retry=retry) is expected


def test_maintenance_is_due_unless_check_failed(paths: Paths) -> None:
    assert is_maintenance_due(paths, 3600) and not is_maintenance_due(paths, None)
    passed(paths, success=False)
    assert not is_maintenance_due(paths, 3600)
    passed(paths)
    assert is_maintenance_due(paths, 3600)
    record_batch(paths.schemas, Application.maintenance("shop"), int(time.time()))
    assert not is_maintenance_due(paths, 3600) and is_maintenance_due(paths, 0)
    assert last_maintained(paths) is not None


def test_small_source_holds_little(paths: Paths) -> None:
    assert holds_little(paths)


def configuration(paths: Paths, **run: float | None) -> Config:
    return Config.model_validate({
        "warehouse": paths.warehouse, "progress": "file:/nonexistent",
        "source": {"name": "shop", "type": "postgres", "host": "h", "database": "d", "user": "u",
                   "password": "${env:NONE}", "tables": ["*.*"]},
        "run": {"check_seconds": None, "maintain_seconds": None, **run},
    })


def test_cycle_does_only_steps_with_work(paths: Paths) -> None:
    cycle, idle, busy = Cycle(configuration(paths), no_spark), CycleResult(), CycleResult()
    cycle.run_once(idle)
    assert (idle.steps, idle.batch) == ([], 2)
    landed(paths, 3)
    cycle.run_once(busy)
    assert (busy.steps, busy.batch) == (["reconcile", "state"], 3)
    assert [(table.table, table.events) for table in busy.tables] == [(T.table, 1)]


def test_cycle_publishes_iceberg_tables(paths: Paths, tmp_path: Path) -> None:
    """Also what an earlier run folded and did not publish."""
    catalog: dict[str, str | Reference] = {
        "type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": str(tmp_path / "iceberg"),
    }
    config = configuration(paths).model_copy(update={"iceberg": IcebergConfig(catalog=catalog)})
    found = []
    for batch in (None, 3):
        if batch:
            landed(paths, batch)
        Cycle(config, no_spark, publisher=open_publisher(config)).run_once(CycleResult())
        table = load_catalog("default", **config.iceberg.read_catalog()).load_table(f"shop.{published_name(T.table)}")
        found.append(table.scan().to_arrow().num_rows)
    assert found == [2, 3]


def test_catalog_outage_hides_no_table_behind(paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 78 of the table, not 75 of the catalog."""
    catalog: dict[str, str | Reference] = {"type": "rest", "uri": "http://127.0.0.1:9"}
    config = configuration(paths).model_copy(update={"iceberg": IcebergConfig(catalog=catalog)})
    behind = TableResult(T.table, 1, 0, StateError("it is behind"))
    cycle = Cycle(config, no_spark, publisher=open_publisher(config))
    monkeypatch.setattr(cycle, "fold", lambda result: setattr(result, "tables", [behind]))
    with pytest.raises(StateError, match="it is behind") as raised:
        cycle.run_once(CycleResult())
    assert isinstance(raised.value.__context__, CatalogUnavailable)


def test_catalog_outage_skips_vacuum_of_its_tables_alone(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is recorded and raises at the end; the old files go with the next run."""
    vacuumed, is_away = list[str](), True

    def prepare(table: str, hours: float) -> None:
        if is_away and table == T.table:
            raise CatalogUnavailable("away")

    def run() -> list[MaintenanceResult]:
        return maintain(no_spark, paths, configuration(paths).maintain, before_vacuum=prepare)

    monkeypatch.setattr(maintenance_run, "vacuum", lambda _session, path, _hours: vacuumed.append(path))
    state = paths.state("public", "t")
    with pytest.raises(CatalogUnavailable, match="away"):
        run()
    assert last_maintained(paths) is not None and not is_maintenance_due(paths, 3600)
    assert paths.events in vacuumed and state not in vacuumed
    is_away = False
    assert [one.table for one in run() if one.vacuumed] and state in vacuumed


def test_continuous_run_works_only_while_it_leads(paths: Paths, tmp_path: Path) -> None:
    """A lease that is not certain stops work; one that is lost ends the run, without a batch."""
    with ThreadPoolExecutor(1) as pool, RevocableLease(tmp_path / "progress", "shop", JOB) as lease:
        lease.is_certain = False
        running = pool.submit(Cycle(configuration(paths), no_spark).run_until, threading.Event(), lease)
        landed(paths, 3)
        time.sleep(1)
        assert (reconciled_batch(paths), running.done()) == (None, False)
        lease.why_lost = "its session has ended"
        with pytest.raises(Fenced, match="run of shop lost its lease: its session has ended"):
            running.result(30)
    assert reconciled_batch(paths) is None


def test_continuous_run_reconciles_between_frequent_state_steps(paths: Paths, tmp_path: Path) -> None:
    plain = configuration(paths)
    config = plain.model_copy(update={
        "state": plain.state.model_copy(update={"interval_seconds": 0.2}),
        "reconcile": plain.reconcile.model_copy(update={"trigger_seconds": 0.6}),
    })
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool, RevocableLease(tmp_path / "progress", "shop", JOB) as lease:
        running = pool.submit(Cycle(config, no_spark).run_until, stop, lease)
        try:
            for batch in (3, 4):
                time.sleep(0.3)
                landed(paths, batch)
                deadline = time.monotonic() + 20
                while (reconciled_batch(paths), folded_batch(paths)) != (batch, batch):
                    assert time.monotonic() < deadline and not running.done(), f"batch {batch} is not in state"
                    time.sleep(0.05)
        finally:
            stop.set()
        assert running.result() == 4


def test_continuous_run_delivers_events_while_state_folds(paths: Paths, tmp_path: Path) -> None:
    """A fold that lasts until later batches are in events ends only if events do not wait for it."""
    stop, is_folding = threading.Event(), threading.Event()

    class SlowCycle(Cycle):
        def fold(self, result: CycleResult, stop: threading.Event | None = None) -> None:
            is_folding.set()
            while reconciled_batch(paths) != 5 and not (stop and stop.wait(0.05)):
                pass
            super().fold(result, stop)

    with ThreadPoolExecutor(1) as pool, RevocableLease(tmp_path / "progress", "shop", JOB) as lease:
        running = pool.submit(SlowCycle(configuration(paths), no_spark).run_until, stop, lease)
        try:
            for batch in (3, 4, 5):
                landed(paths, batch)
                assert is_folding.wait(20)
                deadline = time.monotonic() + 20
                while reconciled_batch(paths) != batch:
                    assert time.monotonic() < deadline and not running.done(), f"batch {batch} waits for state"
                    time.sleep(0.05)
        finally:
            stop.set()
        assert running.result() == 5


class CountingCycle(Cycle):
    """A cycle that counts the folds of its thread, and sets an event with each."""

    def __init__(self, paths: Paths, interval: float = 0) -> None:
        plain = configuration(paths)
        state = plain.state.model_copy(update={"interval_seconds": interval})
        super().__init__(plain.model_copy(update={"state": state}), no_spark)
        self.folds, self.has_folded = 0, threading.Event()

    def fold(self, result: CycleResult, stop: threading.Event | None = None) -> None:
        super().fold(result, stop)
        self.folds += 1
        self.has_folded.set()


def test_fold_thread_folds_again_after_windows_alone(paths: Paths) -> None:
    """Reconcile commits the windows that close a dump after the events of the same micro-batch."""
    cycle = CountingCycle(paths, interval=3600)
    fold = cycle._fold_changes()
    folds = []
    for table in (None, paths.windows, None, paths.events, None):
        if table:
            record_batch(table, "test", int(time.time() * 1000))
        fold(threading.Event())
        folds.append(cycle.folds)
    assert folds == [1, 2, 2, 3, 3], "and a fold without work delays no later one"


def test_fold_thread_that_cannot_fold_ends_the_run(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of a table is logged where it occurs; one of the whole fold is not."""
    cycle = CountingCycle(paths, interval=0)

    def fail(*_: object) -> None:
        raise ConfigError("there is no Java")

    monkeypatch.setattr(cycle, "fold", fail)
    with pytest.raises(ConfigError, match="no Java"):
        cycle._fold_changes()(threading.Event())


def test_state_folds_again_after_windows_alone(paths: Paths) -> None:
    stop, folds = threading.Event(), list[int]()

    def fold() -> list[TableResult]:
        folds.append(1)
        record_batch(paths.windows, "test", 1)
        if len(folds) == 2:
            stop.set()
        return []

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run_continuously, stop, paths, fold, 0.1)
        has_ended = stop.wait(20)
        stop.set()
        running.result(20)
    assert has_ended


def test_stop_begins_no_fold_and_ends_one(tmp_path: Path) -> None:
    """Also while the thread that reconciles is inside a micro-batch."""
    stop, has_begun, seen = threading.Event(), threading.Event(), list[bool]()

    def fold(ended: threading.Event) -> None:
        has_begun.set()
        stop.wait(20)
        seen.append(ended.is_set())

    lease = RevocableLease(tmp_path / "progress", "shop", JOB)
    with lease, cycle_run._Beside("fold", stop, lease, fold, 0):
        assert has_begun.wait(20)
        stop.set()
        time.sleep(0.3)
        assert seen == [True]


def test_error_waits_shortly_for_fold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cycle_run, "_FINISH_SECONDS", 0.1)
    release, has_ended = threading.Event(), threading.Event()

    def fold(_: threading.Event) -> None:
        release.wait(20)
        has_ended.set()

    try:
        lease = RevocableLease(tmp_path / "progress", "shop", JOB)
        with pytest.raises(Fenced), lease, cycle_run._Beside("fold", threading.Event(), lease, fold, 0):
            raise Fenced("lost")
        assert not has_ended.is_set()
    finally:
        release.set()


def test_cycle_starts_spark_for_check_that_is_due(paths: Paths) -> None:
    with pytest.raises(AssertionError, match="started Spark"):
        Cycle(configuration(paths, check_seconds=0), no_spark).run_once(CycleResult())


def test_upkeep_without_pyspark_is_logged_by_its_extra(paths: Paths, caplog: pytest.LogCaptureFixture) -> None:
    """The thread goes on: an installation without Spark replicates."""
    def missing() -> SparkSession:
        raise ModuleNotFoundError("No module named 'pyspark'", name="pyspark")

    cycle = Cycle(configuration(paths, check_seconds=0), missing)
    cycle._keep_up(threading.Event())
    assert "pyspark is not installed. Next: pip install 'dblake[spark]'" in caplog.text
