"""What ``status`` says: how far stages are, how dumps go, what needs somebody, and the same as metrics."""

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

from dblake.capture.dump_queue import pending_tasks, queue_dump, save_progress
from dblake.capture.progress import FileProgress
from dblake.capture.stale_tables import StaleTable, save_stale_table
from dblake.config import load_config
from dblake.core.position import Position, ResumePoint
from dblake.core.source import LogRetention, ServerIdentity
from dblake.lake.frontier import Frontier, append_frontier
from dblake.lake.layout import Paths
from dblake.lake.log import record_batch
from dblake.landing.columns import LANDING
from dblake.landing.table import Landing, Reached
from dblake.status.lag import Stage
from dblake.status.report import _pace, _room
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
    """Batches of one transaction of two rows each, a second apart, the last so many seconds ago."""
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


def reconciled(paths: Paths, batch: int) -> None:
    DeltaTable.create(paths.events, pa.schema([("batch", pa.int64())]), mode="ignore")
    record_batch(paths.events, "reconcile/shop", batch)


def stages(conf: Path) -> dict[str, Any]:
    found: dict[str, Any] = read_status(load_config(conf), ask_source=False)["stages"]
    return found


@pytest.mark.parametrize("compacted", [False, True], ids=["a file a batch", "one file"])
def test_what_waits_for_a_stage(conf: Path, compacted: bool) -> None:
    paths = land(conf, 5, ago=10)
    reconciled(paths, 3)
    if compacted:
        DeltaTable(paths.landing).optimize.compact()
    found = stages(conf)
    size = sum(pa.table(DeltaTable(paths.landing).get_add_actions(flatten=True))["size_bytes"].to_pylist())
    assert (found["landing"]["position"], found["events"]["position"]) == ("1/500", "1/300")
    assert found["events"]["lag_seconds"] - found["landing"]["lag_seconds"] == pytest.approx(2, abs=0.3)
    assert found["events"]["lag_transactions"] == 2
    assert found["events"]["lag_bytes"] == pytest.approx(0.4 * size, rel=0.1)
    assert found["state"] == {
        "position": None, "lag_seconds": None, "lag_bytes": pytest.approx(size, abs=1), "lag_transactions": 5,
    }


def test_nothing_landed_yet(conf: Path) -> None:
    assert stages(conf)["landing"] == {
        "position": None, "lag_seconds": None, "lag_bytes": None, "lag_transactions": None,
    }


def test_a_database_that_cannot_be_asked_is_a_problem_among_others(conf: Path) -> None:
    document = read_status(load_config(conf))
    assert [problem["code"] for problem in document["problems"]] == ["source_unreachable", "late"]
    assert document["log"] is None


def test_a_stage_that_has_yet_to_begin_is_late(conf: Path) -> None:
    def late() -> list[str]:
        found = read_status(load_config(conf), ask_source=False)["problems"]
        return [problem["detail"] for problem in found if problem["code"] == "late"]

    conf.write_text(conf.read_text() + "status: {late_seconds: 1000000}\n")
    assert late() == ["landing holds nothing yet"]
    paths = land(conf, 2, ago=1)
    assert late() == ["events holds nothing yet"]
    reconciled(paths, 2)
    # There are no events, so there is nothing to fold.
    assert late() == []
    write_deltalake(paths.events, pa.table({"batch": [2]}), mode="append")
    assert late() == ["state holds nothing yet"]


def test_how_late_is_late_is_said_in_the_configuration(conf: Path) -> None:
    reconciled(land(conf, 1, ago=300), 1)
    codes = [problem["code"] for problem in read_status(load_config(conf), ask_source=False)["problems"]]
    assert codes == ["late", "late"]
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
def test_how_long_the_log_is_kept(log: LogRetention | None, code: str | None) -> None:
    found = [problem["code"] for problem in _room(log, Stage("1/1", 60.0))]
    assert found == ([code] if code else [])


@pytest.mark.parametrize(
    ("state", "rows", "expected", "rate", "left"),
    [
        ("queued", 0, 5000, None, None), ("running", 1000, 5000, 100, 40), ("running", 1000, None, 100, None),
        ("running", 1000, 900, 100, 0), ("paused", 1000, 5000, 100, None),
    ],
)
def test_how_fast_a_dump_goes(
    state: str, rows: int, expected: int | None, rate: float | None, left: float | None
) -> None:
    began = None if state == "queued" else (datetime.now(UTC) - timedelta(seconds=10)).isoformat()
    pace = _pace({"state": state, "rows": rows, "started_at": began, "finished_at": None}, expected)
    assert pace["rows_expected"] == expected
    for name, value in (("rows_per_second", rate), ("seconds_left", left)):
        assert pace[name] == (None if value is None else pytest.approx(value, rel=0.05))


def test_the_same_as_metrics(conf: Path, tmp_path: Path) -> None:
    reconciled(land(conf, 2, ago=1), 1)
    file = tmp_path / "dblake.prom"
    done = CliRunner().invoke(status, ["--conf", str(conf), "--offline", "--json", "--prometheus", str(file)])
    assert done.exit_code == 0
    document = json.loads(done.stdout)
    found = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(file.read_text()) for sample in family.samples
    }
    events = (("source", "shop"), ("stage", "events"))
    assert found["dblake_lag_transactions", *events] == 1
    assert found["dblake_lag_seconds", *events] == document["stages"]["events"]["lag_seconds"]
    assert not any(name == "dblake_lag_seconds" and ("stage", "state") in labels for name, *labels in found)


def test_metrics_that_cannot_be_written(conf: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(status, ["--conf", str(conf), "--offline", "--prometheus", str(tmp_path / "no/where")])
    assert done.exit_code != 0 and "cannot be written" in str(done.exception)


@pytest.mark.parametrize(
    ("asked", "outcome", "then"),
    [
        (False, None, "dump start --table 'public.t'"),
        (True, "queued", "run capture until dump {0} is done"),
        (True, "running", "run capture until dump {0} is done"),
        (True, "cancelled", "dump start --table 'public.t'"),
        (True, "done", None),
    ],
)
def test_a_table_to_be_read_again_is_a_problem(
    conf: Path, tmp_path: Path, asked: bool, outcome: str | None, then: str | None
) -> None:
    store = FileProgress(tmp_path / "progress/shop")
    dump_id = queue_dump(store, [T]) if asked else None
    for task in pending_tasks(store):
        moved = {"running": task.start, "cancelled": task.cancel, "done": task.complete}
        if outcome in moved:
            save_progress(store, moved[outcome]())
    save_stale_table(store, StaleTable(T, "column c came", dump_id))
    problems = [p for p in read_status(load_config(conf))["problems"] if p["code"] == "rewritten"]
    expected = {"code": "rewritten", "table": T, "detail": "it changed without row events: column c came",
                "next": (then or "").format(dump_id)}
    assert problems == ([expected] if then else [])


def test_the_version_of_every_table_is_told(conf: Path) -> None:
    """Of the newest step: schedulers see by it which tables have changed."""
    config = load_config(conf)
    assert read_status(config, ask_source=False)["tables"] == {}
    paths = Paths(config.warehouse, "shop")
    for batch, versions in ((7, {T: 2, "public.u": 0}), (9, {T: 3, "public.u": 0})):
        append_frontier(paths, Frontier(batch, Position(1, batch, 0), versions))
    assert read_status(config, ask_source=False)["tables"] == {T: 3, "public.u": 0}
