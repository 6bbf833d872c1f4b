"""The document of ``status``: lag of each stage, dump progress, open problems; and the same as metrics."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable, write_deltalake
from prometheus_client.parser import text_string_to_metric_families

from dblake.base.core.position import Position, ResumePoint
from dblake.base.core.source import LogRetention, ServerIdentity
from dblake.base.lake.frontier import Frontier, append_frontier
from dblake.base.lake.layout import Paths
from dblake.base.lake.log import record_batch
from dblake.base.lake.schemas import SCHEMAS
from dblake.config import load_config
from dblake.ingest.capture.dump_queue import pending_tasks, queue_dump, save_progress
from dblake.ingest.capture.file_progress import FileProgress
from dblake.ingest.capture.stale_tables import StaleTable, save_stale_table
from dblake.landing.columns import LANDING
from dblake.landing.table import Landing, Reached
from dblake.operate.status.dump_estimate import estimate_dump
from dblake.operate.status.lag import StageLag
from dblake.operate.status.stage_problems import log_problems, pause_problems
from dblake.operate.status.verifications import verification_problems
from dblake.operate.verification.ledger import ChunkDifferences, ChunkResult, Round, append_results
from jobs.status import status
from pipelines.status import read_status

T = "public.t"
NOW = datetime.now(UTC)


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    path = tmp_path / "shop.yaml"
    path.write_text(
        "warehouse: ./warehouse\nprogress: file:./progress\nsource:\n  name: shop\n  type: postgres\n"
        "  host: 127.0.0.1\n  port: 1\n  database: shop\n  user: dblake\n  password: ${env:NONE}\n"
        "  tables: [public.*]\n"
    )
    return path


def land(conf: Path, batches: int, *, ago: float) -> Paths:
    """Land batches of one transaction of two rows each, one second apart, the last ``ago`` seconds ago."""
    paths = Paths(str(conf.parent / "warehouse"), "shop")
    landing = Landing(paths.landing, "shop")
    for batch in range(1, batches + 1):
        rows = [
            {"batch": batch, "lease_epoch": 1, "incarnation": 1, "lsn": 100 * batch, "seq": seq, "kind": "row",
             "table": T, "committed_at": NOW - timedelta(seconds=ago + batches - batch), "last_in_txn": seq == 2,
             "payload": b"x"} for seq in (0, 2)
        ]
        reached = Reached(batch, 1, ServerIdentity("server", "log"), ResumePoint(1, "0/0"))
        landing.commit(pa.Table.from_pylist(rows, schema=LANDING), reached)
    return paths


def set_reconciled(paths: Paths, batch: int) -> None:
    DeltaTable.create(paths.events, pa.schema([("batch", pa.int64())]), mode="ignore")
    record_batch(paths.events, "reconcile/shop", batch)


def read_lag(conf: Path) -> dict[str, Any]:
    stages: dict[str, Any] = read_status(load_config(conf), ask_source=False)["stages"]
    return stages


@pytest.mark.parametrize("compacted", [False, True], ids=["file per batch", "one file"])
def test_lag_counts_pending_batches(conf: Path, compacted: bool) -> None:
    paths = land(conf, 5, ago=10)
    set_reconciled(paths, 3)
    if compacted:
        DeltaTable(paths.landing).optimize.compact()
    stages = read_lag(conf)
    size = sum(pa.table(DeltaTable(paths.landing).get_add_actions(flatten=True))["size_bytes"].to_pylist())
    assert (stages["landing"]["position"], stages["events"]["position"]) == ("1/500", "1/300")
    assert stages["events"]["lag_seconds"] - stages["landing"]["lag_seconds"] == pytest.approx(2, abs=0.3)
    assert stages["events"]["lag_transactions"] == 2
    assert stages["events"]["lag_bytes"] == pytest.approx(0.4 * size, rel=0.1)
    assert stages["state"] == {
        "position": None, "lag_seconds": None, "lag_bytes": pytest.approx(size, abs=1), "lag_transactions": 5,
    }


def test_state_without_newer_events_is_up_to_date(conf: Path) -> None:
    """Heartbeats and watermarks advance landing and events, and state has nothing to fold of them."""
    paths = land(conf, 3, ago=300)
    landing = Landing(paths.landing, "shop")
    beat = {"batch": 4, "lease_epoch": 1, "incarnation": 1, "lsn": 400, "seq": 0, "kind": "heartbeat",
            "committed_at": datetime.now(UTC), "last_in_txn": True}
    reached = Reached(4, 1, ServerIdentity("server", "log"), ResumePoint(1, "0/0"))
    landing.commit(pa.Table.from_pylist([beat], schema=LANDING), reached)
    set_reconciled(paths, 3)
    write_deltalake(paths.events, pa.table({"batch": [2]}), mode="append")
    append_frontier(paths, Frontier(2, Position(1, 200, 0), {T: 1}))
    stages = read_lag(conf)
    assert (stages["events"]["lag_transactions"], stages["state"]["lag_transactions"]) == (0, 0)
    assert stages["state"]["position"] == stages["events"]["position"] == "1/300"
    # Though the newest change is old: no job has anything to do.
    assert [p["detail"] for p in read_status(load_config(conf), ask_source=False)["problems"]] == []


def test_lag_without_landing_is_unknown(conf: Path) -> None:
    assert read_lag(conf)["landing"] == {
        "position": None, "lag_seconds": None, "lag_bytes": None, "lag_transactions": None,
    }


def test_unreachable_database_is_reported_as_problem(conf: Path) -> None:
    document = read_status(load_config(conf))
    assert [problem["code"] for problem in document["problems"]] == ["source_unreachable", "late"]
    assert document["log"] is None


def test_first_empty_stage_is_reported_as_late(conf: Path) -> None:
    def late() -> list[str]:
        problems = read_status(load_config(conf), ask_source=False)["problems"]
        return [problem["detail"] for problem in problems if problem["code"] == "late"]

    conf.write_text(conf.read_text() + "status: {late_seconds: 1000000}\n")
    assert late() == ["landing is empty"]
    paths = land(conf, 2, ago=1)
    assert late() == ["events is empty"]
    set_reconciled(paths, 2)
    # There are no events, so there is nothing to fold.
    assert late() == []
    write_deltalake(paths.events, pa.table({"batch": [2]}), mode="append")
    assert late() == ["state is empty"]


def test_late_seconds_sets_the_lag_reported_as_problem(conf: Path) -> None:
    set_reconciled(land(conf, 1, ago=300), 1)
    codes = [problem["code"] for problem in read_status(load_config(conf), ask_source=False)["problems"]]
    # Events lack nothing that has landed: reconcile would change nothing.
    assert codes == ["late"]
    conf.write_text(conf.read_text() + "status: {late_seconds: 1000000}\n")
    assert read_status(load_config(conf), ask_source=False)["problems"] == []


@pytest.mark.parametrize(
    ("log", "code"),
    [
        (None, None),
        (LogRetention(behind=5, kept=100), None),
        (LogRetention(behind=5, kept=100, room=30), None),
        (LogRetention(behind=5, kept=100, room=20), "log_room"),
        (LogRetention(lost=True), "gap"),
        (LogRetention(behind=5, kept=100, seconds=76), None),
        (LogRetention(behind=5, kept=100, seconds=74), "log_room"),
        (LogRetention(behind=0, kept=100, seconds=74), None),
    ],
)
def test_log_retention_below_a_fifth_is_a_problem(log: LogRetention | None, code: str | None) -> None:
    codes = [problem["code"] for problem in log_problems(log, StageLag("1/1", 60.0))]
    assert codes == ([code] if code else [])


def test_paused_capture_is_a_problem_with_retained_log() -> None:
    (paused,) = pause_problems("2026-03-01T10:00:00+00:00", LogRetention(kept=3 << 20))
    assert (paused["code"], paused["next"]) == ("capture_paused", "capture resume")
    assert paused["detail"] == (
        "capture is paused until 2026-03-01T10:00:00+00:00; the database retains 3.0 MiB of log"
    )
    assert pause_problems(None, LogRetention(kept=3 << 20)) == []


@pytest.mark.parametrize(
    ("state", "rows", "expected", "rate", "seconds_left"),
    [
        ("queued", 0, 5000, None, None), ("running", 1000, 5000, 100, 40), ("running", 1000, None, 100, None),
        ("running", 1000, 900, 100, 0), ("paused", 1000, 5000, 100, None),
    ],
)
def test_dump_rate_and_remaining_time_are_estimated(
    state: str, rows: int, expected: int | None, rate: float | None, seconds_left: float | None
) -> None:
    started = None if state == "queued" else (datetime.now(UTC) - timedelta(seconds=10)).isoformat()
    estimate = estimate_dump({"state": state, "rows": rows, "started_at": started, "finished_at": None}, expected)
    assert estimate["rows_expected"] == expected
    for name, value in (("rows_per_second", rate), ("seconds_left", seconds_left)):
        assert estimate[name] == (None if value is None else pytest.approx(value, rel=0.05))


def test_metrics_file_has_the_figures_of_status(conf: Path, tmp_path: Path) -> None:
    set_reconciled(land(conf, 2, ago=1), 1)
    file = tmp_path / "dblake.prom"
    done = CliRunner().invoke(status, ["--conf", str(conf), "--offline", "--json", "--prometheus", str(file)])
    assert done.exit_code == 0
    document = json.loads(done.stdout)
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(file.read_text()) for sample in family.samples
    }
    events = (("source", "shop"), ("stage", "events"))
    assert samples["dblake_lag_transactions", *events] == 1
    assert samples["dblake_lag_seconds", *events] == document["stages"]["events"]["lag_seconds"]
    assert not any(name == "dblake_lag_seconds" and ("stage", "state") in labels for name, *labels in samples)


def test_metrics_in_missing_folder_are_rejected(conf: Path, tmp_path: Path) -> None:
    file = str(tmp_path / "no/where.prom")
    done = CliRunner().invoke(status, ["--conf", str(conf), "--offline", "--prometheus", file])
    assert done.exit_code != 0 and "cannot be written" in str(done.exception)


@pytest.mark.parametrize(
    ("queued", "outcome", "next_step"),
    [
        (False, None, "dump start --table 'public.t'"),
        (True, "queued", "run capture until dump {0} is done"),
        (True, "running", "run capture until dump {0} is done"),
        (True, "cancelled", "dump start --table 'public.t'"),
        (True, "done", None),
    ],
)
def test_stale_table_is_reported_until_its_dump_is_done(
    conf: Path, tmp_path: Path, queued: bool, outcome: str | None, next_step: str | None
) -> None:
    store = FileProgress(tmp_path / "progress/shop")
    dump_id = queue_dump(store, [T]) if queued else None
    for task in pending_tasks(store):
        moved = {"running": task.start, "cancelled": task.cancel, "done": task.complete}
        if outcome in moved:
            save_progress(store, moved[outcome]())
    save_stale_table(store, StaleTable(T, "column c came", dump_id))
    problems = [p for p in read_status(load_config(conf))["problems"] if p["code"] == "rewritten"]
    expected = {"code": "rewritten", "table": T, "detail": "its rows changed without row events: column c came",
                "next": (next_step or "").format(dump_id)}
    assert problems == ([expected] if next_step else [])


def test_table_versions_are_those_of_the_newest_frontier(conf: Path) -> None:
    """Schedulers detect from the versions which tables have changed."""
    config = load_config(conf)
    assert read_status(config, ask_source=False)["tables"] == {}
    paths = Paths(config.warehouse, "shop")
    for batch, versions in ((7, {T: 2, "public.u": 0}), (9, {T: 3, "public.u": 0})):
        append_frontier(paths, Frontier(batch, Position(1, batch, 0), versions))
    assert read_status(config, ask_source=False)["tables"] == {T: 3, "public.u": 0}


def test_status_reports_age_and_differences_of_verifications(conf: Path, tmp_path: Path) -> None:
    paths = Paths(str(tmp_path / "warehouse"), "shop")
    assert read_status(load_config(conf), ask_source=False)["verifications"] == []
    DeltaTable.create(paths.schemas, SCHEMAS)
    columns = [{"name": "id", "type": "integer", "nullable": False, "key": 1}]
    rows = [{"schema_id": "s", "table": name, "incarnation": 1, "lsn": 1, "seq": 0, "columns": columns,
             "primary_key": ["id"], "batch": 1} for name in (T, "public.new")]
    write_deltalake(paths.schemas, pa.Table.from_pylist(rows, SCHEMAS), mode="append")
    whole = ChunkResult(Round("a"), T, "c1", Position(1, 50), 3, rows_compared=9, rows_skipped=1,
                        differences=ChunkDifferences(different=["4", "5"], columns={"v": 2}))
    closing = ChunkResult(Round("a"), T, "c2", Position(1, 60), 4, closing=True)
    append_results(paths, [whole, closing], 4)
    again = ChunkResult(Round("a", 2, keyed=True), T, "c3", Position(1, 70), 5, rows_compared=2, closing=True,
                        differences=ChunkDifferences(different=["4"], columns={"v": 1}))
    append_results(paths, [again], 5)

    (entry,) = read_status(load_config(conf), ask_source=False)["verifications"]
    assert entry | {"verified_at": None, "age_seconds": None} == {
        "table": T, "verified_at": None, "age_seconds": None, "position": "1/60", "rows_compared": 9,
        "rows_skipped": 1, "coverage": 0.9, "sampled": False, "differences": 1,
    }
    assert 0 <= entry["age_seconds"] < 60

    def problems() -> list[tuple[str, str]]:
        found = read_status(load_config(conf), ask_source=False)["problems"]
        return [(each["code"], each["table"]) for each in found if each["table"]]

    assert problems() == [("differs", T)]
    conf.write_text(conf.read_text() + "verify: {max_age: 1h}\n")
    assert problems() == [("differs", T), ("unverified", "public.new")]
    assert [each["code"] for each in verification_problems([entry | {"age_seconds": 3601}], [T], 3600)] == [
        "differs", "unverified",
    ]
    file = tmp_path / "shop.prom"
    done = CliRunner().invoke(status, ["--conf", str(conf), "--offline", "--prometheus", str(file)])
    assert done.exit_code == 0 and "90.0%" in done.output
    assert f'dblake_verification_differences{{source="shop",table="{T}"}} 1.0' in file.read_text()
