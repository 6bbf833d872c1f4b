"""What ``status`` shows of outputs: lag as of now, states, and the problems of those that are late or stopped."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dblake.base.core.errors import ConfigError
from dblake.base.core.position import Position
from dblake.config import load_config
from dblake.operate.status.dead_letters import count_dead_letters
from dblake.operate.status.outputs import OutputLimits, output_problems
from dblake.serve.consume.dead_letters import DeadLetter, append_dead_letters
from dblake.serve.outputs.activity import OutputActivity, OutputState
from jobs.status import status
from pipelines.subscribe import run_subscribe
from tests.support.output_lake import OTHER, OutputLake, wait_for
from tests.support.plain_lake import when
from tests.support.web_service import serve_requests

NOW = datetime.now(UTC)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[OutputLake]:
    for service in serve_requests():
        yield OutputLake(tmp_path, {
            "hook": {"type": "http", "url": service.url, "tls": "disable", "tables": ["public.t"]},
            "archive": {"type": "jsonl", "path": "./out/{table}.jsonl"},
        }, service)


def test_output_that_never_ran_is_named(lake: OutputLake) -> None:
    entry = lake.output("hook")
    assert (entry["state"], entry["position"], entry["lag_seconds"], entry["rate"]) == ("never_run", None, None, 0)
    assert lake.problems("output_stopped") == ["output hook: it has never run", "output archive: it has never run"]


@pytest.mark.parametrize("name", ["hook", "archive"])
def test_lag_of_output_is_of_the_moment_of_asking(lake: OutputLake, name: str) -> None:
    """The output does not run, and wrote nothing since: its lag grows with the events that come."""
    lake.deliver(name)
    entry = lake.output(name)
    assert (entry["state"], entry["lag_seconds"], entry["lag_bytes"]) == ("stopped", 0.0, 0)
    first, _ = lake.change(), lake.change()
    entry = lake.output(name)
    age = (datetime.now(UTC) - when(first)).total_seconds()
    assert entry["lag_seconds"] == pytest.approx(age, abs=5)
    assert entry["lag_bytes"] > 1000
    lake.deliver(name)
    entry = lake.output(name)
    assert (entry["position"], entry["lag_seconds"]) == ("1/30/0", 0.0)


def test_changes_of_unselected_tables_are_no_lag(lake: OutputLake) -> None:
    lake.deliver("hook")
    lake.change(OTHER)
    assert lake.output("hook")["lag_seconds"] == 0.0


def test_checkpoint_elsewhere_is_found_by_document(lake: OutputLake, tmp_path: Path) -> None:
    run_subscribe(load_config(lake.conf), "hook", threading.Event(), until_caught_up=True,
                  checkpoint=f"file:{tmp_path / 'elsewhere'}")
    assert lake.output("hook")["lag_seconds"] == 0.0
    lake.change()
    assert lake.output("hook")["lag_seconds"] > 86400


def test_running_output_reports_failures_and_their_end(lake: OutputLake, tmp_path: Path) -> None:
    """While the target is away: retrying, with the error, and a lag that grows in ``status`` and in the metrics."""
    lake.deliver("hook")
    lake.service.answers = [(503, {})] * 1000
    stop, metrics = threading.Event(), tmp_path / "hook.prom"
    run = threading.Thread(target=run_subscribe, args=(load_config(lake.conf), "hook", stop),
                           kwargs={"metrics": metrics})
    run.start()
    try:
        lake.change()
        entry = wait_for(lambda: (one := lake.output("hook"))["state"] == "retrying" and one)
        assert "503" in entry["last_error"] and entry["lag_seconds"] > 86400 and entry["process"] == os.getpid()
        gauge = 'dblake_output_lag_seconds{output="hook",source="shop"} '
        wait_for(lambda: gauge in metrics.read_text() and float(
            metrics.read_text().partition(gauge)[2].splitlines()[0]) > 86400)
        (late,) = lake.problems("output_late")
        assert late.startswith("output hook: it lags by") and "(retrying)" in late and "503" in late
        lake.service.answers.clear()
        entry = wait_for(lambda: (one := lake.output("hook"))["state"] == "running" and one, 60)
        assert (entry["lag_seconds"], entry["failing_since"]) == (0.0, None)
        assert "503" in entry["last_error"]
    finally:
        stop.set()
        run.join()
    entry = lake.output("hook")
    assert (entry["state"], entry["rate"]) == ("stopped", 0.0)
    assert lake.problems("output_late", "output_stopped") == ["output archive: it has never run"]


def test_output_that_fails_for_good_is_named_with_its_error(lake: OutputLake) -> None:
    """Before it reaches the target, too: the run is made while the checkpoint is held."""
    lake.conf.write_text(lake.conf.read_text().replace(
        '"type": "http"', '"type": "http", "headers": {"Authorization": "${env:NO_SUCH_TOKEN}"}'))
    with pytest.raises(ConfigError):
        lake.deliver("hook")
    assert lake.output("hook")["state"] == "failed"
    (stopped, _) = lake.problems("output_stopped")
    assert stopped.startswith("output hook: it failed for good: ") and "NO_SUCH_TOKEN" in stopped


def entry(state: OutputState, **figures: Any) -> dict[str, Any]:
    return {"name": "bus", "state": state, "lag_seconds": 0.0, "lag_bytes": 0, "last_error": "away",
            "failing_since": None, "seen_at": (NOW - timedelta(seconds=300)).isoformat()} | figures


def ago(seconds: float) -> str:
    return (NOW - timedelta(seconds=seconds)).isoformat()


@pytest.mark.parametrize(("found", "expected"), [
    (entry(OutputState.RUNNING, lag_seconds=59.0), []),
    (entry(OutputState.RUNNING, lag_seconds=61.0), ["output_late output bus: it lags by 61 s"]),
    (entry(OutputState.STALLED, lag_seconds=200.0), ["output_late output bus: it lags by 3 min (stalled)"]),
    (entry(OutputState.RETRYING, failing_since=ago(30)), []),
    (entry(OutputState.RETRYING, failing_since=ago(90)),
     ["output_late output bus: it has failed for 90 s (retrying): away"]),
    # Stopped in order with nothing to deliver.
    (entry(OutputState.STOPPED), []),
    (entry(OutputState.STOPPED, lag_seconds=110.0), []),
    (entry(OutputState.STOPPED, lag_seconds=400.0),
     ["output_stopped output bus: it was stopped 5 min ago, and it lags by 7 min"]),
    (entry(OutputState.DIED), ["output_stopped output bus: its process died 5 min ago"]),
    (entry(OutputState.DIED, seen_at=ago(60)), []),
    (entry(OutputState.FAILED, failing_since=ago(5)), ["output_stopped output bus: it failed for good: away"]),
    (entry(OutputState.UNKNOWN, lag_seconds=None, seen_at=None),
     ["output_stopped output bus: its state cannot be read: away"]),
])
def test_problem_begins_at_its_limit(found: dict[str, Any], expected: list[str]) -> None:
    limits = OutputLimits(late_seconds=60, stopped_seconds=120)
    problems = output_problems([found], [], limits, NOW)
    assert [f"{one['code']} {one['detail']}" for one in problems] == expected
    assert all(one["output"] == "bus" and one["next"] for one in problems)


def test_recent_dead_letters_are_a_problem(lake: OutputLake) -> None:
    paths = lake.plain.paths
    append_dead_letters(paths, "hook", [DeadLetter("public.t", Position(1, 20, 0), "too long")] * 2)
    assert lake.problems("dead_letters") == ["output hook: 2 events were rejected in the last 24 h"]
    assert lake.output("hook")["dead_letters"] == 2
    letters = count_dead_letters(paths)
    outputs = [one for one in lake.status()["outputs"] if one["name"] == "hook"]
    for allowed, codes in ((1, ["output_stopped", "dead_letters"]), (2, ["output_stopped"])):
        found = output_problems(outputs, letters, OutputLimits(dead_letters=allowed), datetime.now(UTC))
        assert [one["code"] for one in found] == codes
    assert count_dead_letters(paths, recent_seconds=0)[0]["recent"] == 0


def test_activity_of_process_that_is_gone_is_died() -> None:
    live = OutputActivity(socket.gethostname(), os.getpid(), ago(60), datetime.now(UTC).isoformat(), "running")
    assert live.current_state() is OutputState.RUNNING
    gone = OutputActivity(**asdict(live) | {"process": 2**22 - 1})
    silent = OutputActivity(**asdict(live) | {"seen_at": ago(60)})
    elsewhere = OutputActivity(**asdict(gone) | {"host": "another"})
    states = [one.current_state() for one in (gone, silent, elsewhere)]
    assert states == [OutputState.DIED, OutputState.DIED, OutputState.RUNNING]


def test_metrics_of_status_have_outputs(lake: OutputLake, tmp_path: Path) -> None:
    lake.deliver("hook")
    lake.change()
    file = tmp_path / "status.prom"
    result = CliRunner().invoke(status, ["--conf", str(lake.conf), "--offline", "--prometheus", str(file)])
    assert result.exit_code == 0, result.output
    assert "  hook: stopped, " in result.output and " behind" in result.output
    text = file.read_text(encoding="utf-8")
    assert 'dblake_status_output_running{output="hook",source="shop"} 0.0' in text
    assert 'dblake_status_output_lag_bytes{output="hook",source="shop"} ' in text
    assert 'dblake_status_output_lag_seconds{output="archive",source="shop"} ' not in text
