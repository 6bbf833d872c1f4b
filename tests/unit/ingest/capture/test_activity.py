"""What a capture reports of itself, in its log and for ``status``."""

from __future__ import annotations

import logging
import subprocess
import sys
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import dblake.ingest.capture.activity as module
from dblake.ingest.capture.activity import Activity, ActivityLog, read_activity
from dblake.ingest.capture.dump_task import time_text
from dblake.ingest.capture.file_progress import FileProgress


def test_capture_logs_start_caught_up_and_summary(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileProgress(tmp_path)
    assert read_activity(store) is None
    monkeypatch.setattr(module, "SUMMARY_SECONDS", 0.0)
    with caplog.at_level(logging.INFO, "dblake.ingest.capture.activity"):
        log = ActivityLog(store, "shop", 3, "1/0/1A2B", 7)
        started = read_activity(store)
        assert started is not None
        assert (started.tables, started.position, started.has_caught_up, started.is_running()) == (
            3, "1/0/1A2B", False, True,
        )
        log.on_caught_up(40)
        log.on_caught_up(50)
        log.report(100, "1/4711/2", 4, 0.25)
        log.end("1/4711/2")
    start, caught_up, summary = caplog.messages
    assert start == "capture of shop starts: 3 tables, log from 1/0/1A2B, lease epoch 7"
    assert caught_up.startswith("capture of shop has caught up with the log after ")
    assert caught_up.endswith(": 40 rows landed")
    assert summary.startswith("capture of shop: 100 rows in ")
    assert summary.endswith("up to 1/4711/2, 0.2 s behind")
    ended = read_activity(store)
    assert ended is not None
    assert (ended.tables, ended.has_caught_up, ended.is_running()) == (4, True, False)


def test_capture_that_died_does_not_run(tmp_path: Path) -> None:
    store = FileProgress(tmp_path)
    ActivityLog(store, "shop", 1, "1/1", 1)
    activity = read_activity(store)
    assert activity is not None
    with subprocess.Popen([sys.executable, "-c", ""]) as dead:
        dead.wait()
    assert not replace(activity, process=dead.pid).is_running()
    elsewhere = replace(activity, host="another", process=dead.pid)
    assert elsewhere.is_running()
    silent = time_text(datetime.now(UTC) - timedelta(minutes=4))
    assert not replace(elsewhere, seen_at=silent).is_running()
    assert Activity(**asdict(activity)) == activity
