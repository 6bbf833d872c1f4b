"""Build the document that ``status`` prints: each stage's lag, log retention, dumps and open problems.

Reads the tables and the progress store without a JVM. What only the database knows (how much log is pending, how long
the server retains it) comes in as a ``SourceReport``; an unreachable database is one problem among others.
``status.lag`` and ``core.source.LogRetention`` define the figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from dblake.capture.dump_queue import dump_status
from dblake.capture.progress import ProgressStore
from dblake.capture.stale_tables import StaleTable, read_stale_tables
from dblake.capture.table_life import LifeState, TableLife, read_lives
from dblake.core.errors import DblakeError
from dblake.core.source import LogRetention
from dblake.lake.frontier import read_frontier
from dblake.lake.layout import Paths
from dblake.lake.schemas import read_schemas
from dblake.lake.tables import has_table, open_table
from dblake.quality.latest import read_newest_check
from dblake.status.lag import Stage, read_stages
from dblake.status.verifications import read_verifications, verification_problems

_LOW_ROOM_SHARE = 0.2
"""Report a problem if less than this share of the log's size limit, or of its retention time, is left."""


@dataclass(frozen=True, slots=True)
class SourceReport:
    """The database's log retention and row estimates of tables being dumped, or the error of an unreachable one."""

    log: LogRetention | None = None
    rows: Mapping[str, int] = field(default_factory=dict)
    error: DblakeError | None = None


def build_status(
    paths: Paths, store: ProgressStore, source: SourceReport, *, late_seconds: float,
    max_verification_age_seconds: float | None = None,
) -> dict[str, Any]:
    """Return the document that ``status --json`` prints.

    ``log`` is null if the database was not contacted or is unreachable. A stage that lags by more than ``late_seconds``
    is a problem, and so is a table with a primary key whose newest verification is older than
    ``max_verification_age_seconds``.
    """
    dumps, lives, verifications = dump_status(store), read_lives(store), read_verifications(paths)
    frontier = read_frontier(paths)
    stages = read_stages(paths, frontier.batch, source.log.behind if source.log else None)
    check = read_newest_check(paths)
    return {
        "source": paths.source,
        "position": stages["landing"].position,
        "stages": {name: asdict(stage) for name, stage in stages.items()},
        "log": asdict(source.log) if source.log else None,
        "tables": frontier.versions,
        "captured": {table: asdict(life) for table, life in sorted(lives.items())},
        "dumps": [dump | estimate_dump(dump, source.rows.get(dump["table"])) for dump in dumps],
        "check": check,
        "verifications": verifications,
        "problems": [
            *_source_problems(source.error), *log_problems(source.log, stages["landing"]),
            *_empty_stage_problems(stages, paths), *_lag_problems(stages, late_seconds), *_dump_problems(dumps),
            *_stale_table_problems(read_stale_tables(store), dumps, lives), *_life_problems(lives),
            *_state_problems(frontier.behind),
            *_check_problems(check),
            *verification_problems(verifications, _keyed_tables(paths), max_verification_age_seconds),
        ],
    }


def estimate_dump(dump: Mapping[str, Any], rows_expected: int | None) -> dict[str, Any]:
    """Return a dump's rate and remaining time, None where unknown: rows_per_second, rows_expected, seconds_left.

    ``rows_expected`` estimates the table's rows; None for a dump of given keys.
    """
    started, finished = (_parse_time(dump[name]) for name in ("started_at", "finished_at"))
    seconds = ((finished or datetime.now(UTC)) - started).total_seconds() if started else 0.0
    rate = round(dump["rows"] / seconds, 1) if seconds > 0 and dump["rows"] else None
    seconds_left = None
    if dump["state"] == "running" and rate and rows_expected is not None:
        seconds_left = round(max(rows_expected - dump["rows"], 0) / rate, 1)
    return {"rows_per_second": rate, "rows_expected": rows_expected, "seconds_left": seconds_left}


def _parse_time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _problem(code: str, table: str | None, detail: str, next_step: str) -> dict[str, Any]:
    return {"code": code, "table": table, "detail": detail, "next": next_step}


def _source_problems(error: DblakeError | None) -> list[dict[str, Any]]:
    return [_problem("source_unreachable", None, error.what, error.next_step)] if error else []


def log_problems(log: LogRetention | None, landing: Stage) -> list[dict[str, Any]]:
    """Return a problem if the database has removed log that has not landed, or is about to."""
    if log is None or landing.position is None:
        return []
    if log.lost:
        return [_problem("gap", None, "the database has removed log that has not landed: a gap",
                         "capture --accept-gap")]
    if log.room is not None and log.room < _LOW_ROOM_SHARE * (log.room + (log.kept or 0)):
        return [_problem("log_room", None, f"the slot is lost after {log.room:,} more bytes of log",
                         "run capture, or raise max_slot_wal_keep_size")]
    lag = landing.lag_seconds or 0.0
    if log.seconds is not None and log.behind and lag > (1 - _LOW_ROOM_SHARE) * log.seconds:
        return [_problem("log_room", None, f"the server removes log after {log.seconds:,.0f} s, and capture lags "
                                           f"by {lag:,.0f} s", "run capture, or raise the server's log retention")]
    return []


_JOBS = {"landing": "capture", "events": "reconcile", "state": "state"}


def _empty_stage_problems(stages: dict[str, Stage], paths: Paths) -> list[dict[str, Any]]:
    """Return a problem for the first empty stage; state is not one as long as there are no events."""
    for name, stage in stages.items():
        if stage.position is None:
            if name == "state" and not _has_files(paths.events):
                break
            return [_problem("late", None, f"{name} is empty", f"run {_JOBS[name]}")]
    return []


def _has_files(path: str) -> bool:
    return has_table(path) and len(open_table(path).file_uris()) > 0


def _lag_problems(stages: dict[str, Stage], seconds: float) -> list[dict[str, Any]]:
    return [
        _problem("late", None, f"{name} lags by {stage.lag_seconds:.0f} s", f"run {_JOBS[name]}")
        for name, stage in stages.items()
        if stage.lag_seconds is not None and stage.lag_seconds > seconds
    ]


def _dump_problems(dumps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a problem for each failed dump, unless a whole dump of its table that was queued later is done."""
    done = {dump["table"]: dump["id"] for dump in dumps if dump["state"] == "done" and dump["whole"]}
    return [
        _problem("dump_failed", d["table"], d["error"] or "", f"fix the cause, then dump start --table '{d['table']}'")
        for d in dumps if d["state"] == "failed" and d["id"] > done.get(d["table"], "")
    ]


def _life_problems(lives: Mapping[str, TableLife]) -> list[dict[str, Any]]:
    """Return a problem for each table that is suspended, or of which rows are missing."""
    next_steps = {
        LifeState.SUSPENDED: "run preflight, which prints the statement that corrects it",
        LifeState.INCOMPLETE: "give it a primary key, or dump start --table '{}'",
    }
    return [
        _problem(life.state.value, table, life.reason, next_steps[life.state].format(table))
        for table, life in sorted(lives.items()) if life.state in next_steps
    ]


def _stale_table_problems(
    stale: list[StaleTable], dumps: list[dict[str, Any]], lives: Mapping[str, TableLife]
) -> list[dict[str, Any]]:
    """Return a problem for each table whose rows are missing or changed without row events, until its dump is done."""
    states = {(dump["id"], dump["table"]): dump["state"] for dump in dumps}
    problems = []
    for entry in stale:
        state = states.get((entry.dump_id or "", entry.table))
        if state == "done":
            continue
        is_queued = state in ("queued", "running")
        next_step = (f"run capture until dump {entry.dump_id} is done" if is_queued
                     else f"dump start --table '{entry.table}'")
        is_pending = entry.table in lives and lives[entry.table].state is LifeState.PENDING
        detail = entry.why if is_pending else f"its rows changed without row events: {entry.why}"
        problems.append(_problem("pending" if is_pending else "rewritten", entry.table, detail, next_step))
    return problems


def _keyed_tables(paths: Paths) -> list[str]:
    return [table for table, versions in read_schemas(paths).items() if versions[-1].schema.primary_key]


def _check_problems(check: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    problems = []
    for failed in check["failed"] if check else ():
        column = f"({failed['column']})" if failed["column"] else ""
        result = failed["fault"] or "failed"
        if failed["unexpected"] is not None:
            result = f"{failed['unexpected']:,} rows failed"
        problems.append(_problem("check_failed", failed["table"], f"{failed['expectation']}{column}: {result}",
                                 "run check for details"))
    return problems


def _state_problems(behind: Mapping[str, int]) -> list[dict[str, Any]]:
    return [
        _problem("state_behind", table, f"its state is behind, at landing batch {batch}",
                 "run state, which reports why")
        for table, batch in behind.items()
    ]
