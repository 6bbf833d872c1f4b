"""Problems of the stages: log that is lost, stages that lag or are empty, half-replaced events, failed checks.

Place: part of ``report``, from the figures of ``lag``. Guarantee: each problem names the command that clears it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dblake.base.core.source import LogRetention
from dblake.base.lake.layout import Paths
from dblake.base.lake.tables import has_table, open_table
from dblake.ingest.capture.activity import Activity
from dblake.operate.status.lag import StageLag
from dblake.operate.status.problem import problem
from dblake.operate.status.quantities import format_size
from dblake.transform.redecode.ledger import newest_compared_run, newest_finished_run, read_run

_JOBS = {"landing": "capture", "events": "reconcile", "state": "state"}
_LOW_ROOM_SHARE = 0.2
"""Report a problem if less than this share of the log's size limit, or of its retention time, is left."""


def log_problems(log: LogRetention | None, landing: StageLag) -> list[dict[str, Any]]:
    """Return a problem if the database has removed log that has not landed, or is about to."""
    if log is None or landing.position is None:
        return []
    if log.lost:
        return [problem("gap", None, "the database has removed log that has not landed: a gap",
                        "capture --accept-gap")]
    if log.room is not None and log.room < _LOW_ROOM_SHARE * (log.room + (log.kept or 0)):
        return [problem("log_room", None, f"the slot is lost after {log.room:,} more bytes of log",
                        "run capture, or raise max_slot_wal_keep_size")]
    lag = landing.lag_seconds or 0.0
    if log.seconds is not None and log.behind and lag > (1 - _LOW_ROOM_SHARE) * log.seconds:
        return [problem("log_room", None, f"the server removes log after {log.seconds:,.0f} s, and capture lags "
                                          f"by {lag:,.0f} s", "run capture, or raise the server's log retention")]
    return []


def pause_problems(until: str | None, log: LogRetention | None) -> list[dict[str, Any]]:
    """Return a problem while capture is paused, with the log that the database retains."""
    if until is None:
        return []
    kept = f"; the database retains {format_size(log.kept)} of log" if log and log.kept is not None else ""
    return [problem("capture_paused", None, f"capture is paused until {until}{kept}", "capture resume")]


def empty_stage_problems(stages: dict[str, StageLag], paths: Paths) -> list[dict[str, Any]]:
    """Return a problem for the first empty stage; state is not one as long as there are no events."""
    for name, stage in stages.items():
        if stage.position is None:
            if name == "state" and not _has_files(paths.events):
                break
            return [problem("late", None, f"{name} is empty", f"run {_JOBS[name]}")]
    return []


def _has_files(path: str) -> bool:
    return has_table(path) and len(open_table(path).file_uris()) > 0


def redecode_problems(paths: Paths) -> list[dict[str, Any]]:
    """Return a problem while a redecode replaces events, or if it was interrupted in between."""
    number = newest_compared_run(paths)
    if number == newest_finished_run(paths):
        return []
    run = read_run(paths, number)
    return [problem("redecode", None, f"events from batch {run.first} on are being replaced, or that was interrupted",
                    f"unless it runs, reconcile --from {run.first}")]


def lag_problems(stages: dict[str, StageLag], seconds: float, activity: Activity | None = None) -> list[dict[str, Any]]:
    """Return a problem for each stage that lags by more than some seconds and has work to do.

    ``activity`` is that of capture: whether it runs is part of landing's problem.
    """
    problems = []
    for name, stage in stages.items():
        if stage.lag_seconds is None or stage.lag_seconds <= seconds or stage.lag_transactions == 0:
            continue
        detail = f"{name} lags by {stage.lag_seconds:.0f} s"
        if name == "landing" and activity is not None:
            detail += ", and capture runs" if activity.is_running() else ": capture does not run"
        problems.append(problem("late", None, detail, f"run {_JOBS[name]}"))
    return problems


def check_problems(check: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return a problem for each expectation that failed in the newest run of ``check``."""
    problems = []
    for failed in check["failed"] if check else ():
        column = f"({failed['column']})" if failed["column"] else ""
        result = failed["fault"] or "failed"
        if failed["unexpected"] is not None:
            result = f"{failed['unexpected']:,} rows failed"
        problems.append(problem("check_failed", failed["table"], f"{failed['expectation']}{column}: {result}",
                                "run check for details"))
    return problems


def state_problems(behind: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return a problem for each table whose state is behind the others, at a landing batch."""
    return [
        problem("state_behind", table, f"its state is behind, at landing batch {batch}",
                "run state, which reports why")
        for table, batch in behind.items()
    ]
