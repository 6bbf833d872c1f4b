"""The limits of reading the log: a pause holds log and dumps back, and a throttle spreads pieces over time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from dblake.base.core.errors import ExitCode, SourceError, UsageError
from dblake.ingest.capture.file_progress import FileProgress
from dblake.ingest.capture.log_limits import (
    LogLimits,
    LogThrottle,
    pause_log,
    read_log_limits,
    resume_log,
    throttle_log,
)
from dblake.ingest.capture.loop import Until
from tests.unit.ingest.capture.test_loop import Captured, T, becomes_true


def test_pause_holds_log_and_dump_until_resumed(tmp_path: Path) -> None:
    captured = Captured(tmp_path)
    captured.insert(1)
    with captured.running():
        assert becomes_true(lambda: captured.rows() == 1)
        pause_log(captured.lake.store, 60)
        time.sleep(1.2)  # the maximum age of the limits that it applies
        captured.insert(2)
        captured.lake.dump(T)
        assert not becomes_true(lambda: captured.rows() > 1 or captured.lake.dumps()[0]["state"] != "queued", 1.0)
        resume_log(captured.lake.store)
        assert becomes_true(lambda: captured.rows() == 2 and captured.lake.dumps()[0]["state"] == "done")


def test_pause_ends_by_itself(tmp_path: Path) -> None:
    captured = Captured(tmp_path)
    pause_log(captured.lake.store, 2 / 60)
    with captured.running():
        captured.insert(1)
        assert becomes_true(lambda: captured.rows() == 1)
    assert read_log_limits(captured.lake.store) == LogLimits()


def test_bounded_capture_ends_while_paused(tmp_path: Path) -> None:
    captured = Captured(tmp_path)
    pause_log(captured.lake.store, 60)
    with pytest.raises(SourceError, match=r"capture is paused until .*Next: run capture resume, or wait") as rejected:
        captured.lake.capture(captured.source(), until=Until(caught_up=True))
    assert rejected.value.exit_code == ExitCode.TRY_AGAIN


def test_throttle_spreads_pieces_over_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, now = FileProgress(tmp_path), 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    throttle = LogThrottle(store)
    assert throttle_log(store, 2.0) == LogLimits(mb_per_second=2.0)
    assert (throttle.seconds_to_wait(), throttle.max_bytes(8_000_000)) == (0.0, 500_000)
    throttle.count(500_000)
    assert throttle.seconds_to_wait() == 0.25
    throttle.count(500_000)
    now += 0.3
    assert throttle.seconds_to_wait() == pytest.approx(0.2)
    throttle_log(store, 100.0)
    now += 1.0
    throttle.count(100_000_000)
    assert throttle.seconds_to_wait() == 1.0
    throttle_log(store, None)
    now += 1.0
    assert (throttle.seconds_to_wait(), throttle.max_bytes(8_000_000)) == (0.0, 8_000_000)


def test_limits_are_set_beside_each_other(tmp_path: Path) -> None:
    store = FileProgress(tmp_path)
    throttle_log(store, 5.0)
    paused = pause_log(store, 10)
    assert paused.mb_per_second == 5.0 and paused.paused_until is not None
    assert resume_log(store) == LogLimits(mb_per_second=5.0)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_limit_that_is_no_number_is_rejected(tmp_path: Path, value: float) -> None:
    store = FileProgress(tmp_path)
    for set_limit in (throttle_log, pause_log):
        with pytest.raises(UsageError, match="not a number"):
            set_limit(store, value)
    assert read_log_limits(store) == LogLimits()
