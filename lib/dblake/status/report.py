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

from deltalake import DeltaTable

from dblake.capture.dump_queue import dump_status
from dblake.capture.progress import ProgressStore
from dblake.capture.stale_tables import StaleTable, read_stale_tables
from dblake.core.errors import DblakeError
from dblake.core.source import LogRetention
from dblake.lake.frontier import read_frontier
from dblake.lake.layout import Paths
from dblake.quality.latest import newest_check
from dblake.status.lag import Stage, read_stages

_LITTLE_ROOM = 0.2
"""Of all log that may be kept, or of the time it is kept for."""


@dataclass(frozen=True, slots=True)
class SourceReport:
    """The database's answer: its log retention, row estimates of tables being dumped, or why it did not answer."""

    log: LogRetention | None = None
    rows: Mapping[str, int] = field(default_factory=dict)
    error: DblakeError | None = None


def build_status(paths: Paths, store: ProgressStore, source: SourceReport, *, late_seconds: float) -> dict[str, Any]:
    """Return the document that ``status --json`` prints; ``log`` is null if the database was not asked or failed."""
    dumps = dump_status(store)
    reached = read_frontier(paths)
    stages = read_stages(paths, reached.batch, source.log.behind if source.log else None)
    check = newest_check(paths)
    return {
        "source": paths.source,
        "position": stages["landing"].position,
        "stages": {name: asdict(stage) for name, stage in stages.items()},
        "log": asdict(source.log) if source.log else None,
        "tables": reached.versions,
        "dumps": [dump | _pace(dump, source.rows.get(dump["table"])) for dump in dumps],
        "check": check,
        "problems": [
            *_unreachable(source.error), *_room(source.log, stages["landing"]), *_idle(stages, paths),
            *_late(stages, late_seconds), *_failed(dumps), *_rewritten(read_stale_tables(store), dumps),
            *_behind(reached.behind), *_checked(check),
        ],
    }


def _pace(dump: Mapping[str, Any], rows: int | None) -> dict[str, Any]:
    """How fast a dump goes and how long it will take, where that can be told; given keys are never estimated."""
    began, ended = (_time(dump[name]) for name in ("started_at", "finished_at"))
    took = ((ended or datetime.now(UTC)) - began).total_seconds() if began else 0.0
    rate = round(dump["rows"] / took, 1) if took > 0 and dump["rows"] else None
    going = dump["state"] == "running" and rate and rows is not None
    left = round(max(rows - dump["rows"], 0) / rate, 1) if going and rate and rows is not None else None
    return {"rows_per_second": rate, "rows_expected": rows, "seconds_left": left}


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _problem(code: str, table: str | None, detail: str, next_step: str) -> dict[str, Any]:
    return {"code": code, "table": table, "detail": detail, "next": next_step}


def _unreachable(error: DblakeError | None) -> list[dict[str, Any]]:
    return [_problem("source_unreachable", None, error.what, error.next_step)] if error else []


def _room(log: LogRetention | None, landing: Stage) -> list[dict[str, Any]]:
    if log is None or landing.position is None:
        return []
    if log.lost:
        return [_problem("gap", None, "the database no longer has the log after what has landed: a gap",
                         "capture --accept-gap")]
    if log.room is not None and log.room < _LITTLE_ROOM * (log.room + (log.kept or 0)):
        return [_problem("log_room", None, f"after {log.room:,} more bytes of log the slot is lost",
                         "run capture, or raise max_slot_wal_keep_size")]
    late = landing.lag_seconds or 0.0
    if log.seconds is not None and log.behind and late > (1 - _LITTLE_ROOM) * log.seconds:
        return [_problem("log_room", None, f"the server removes log after {log.seconds:,.0f} s, and capture is "
                                           f"{late:,.0f} s behind", "run capture, or let the server keep log longer")]
    return []


_JOBS = {"landing": "capture", "events": "reconcile", "state": "state"}


def _idle(stages: dict[str, Stage], paths: Paths) -> list[dict[str, Any]]:
    """The first stage that holds nothing, though there is something it could hold."""
    for name, stage in stages.items():
        if stage.position is None:
            if name == "state" and not _has_files(paths.events):
                break
            return [_problem("late", None, f"{name} holds nothing yet", f"run {_JOBS[name]}")]
    return []


def _has_files(path: str) -> bool:
    return DeltaTable.is_deltatable(path) and len(DeltaTable(path).file_uris()) > 0


def _late(stages: dict[str, Stage], seconds: float) -> list[dict[str, Any]]:
    return [
        _problem("late", None, f"{name} holds nothing younger than {stage.lag_seconds:.0f} s", f"run {_JOBS[name]}")
        for name, stage in stages.items()
        if stage.lag_seconds is not None and stage.lag_seconds > seconds
    ]


def _failed(dumps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        _problem("dump_failed", d["table"], d["error"] or "", f"mend that, then dump start --table '{d['table']}'")
        for d in dumps if d["state"] == "failed"
    ]


def _rewritten(found: list[StaleTable], dumps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    states = {(dump["id"], dump["table"]): dump["state"] for dump in dumps}
    problems = []
    for each in found:
        state = states.get((each.dump_id or "", each.table))
        if state == "done":
            continue
        coming = state in ("queued", "running")
        then = f"run capture until dump {each.dump_id} is done" if coming else f"dump start --table '{each.table}'"
        problems.append(_problem("rewritten", each.table, f"it changed without row events: {each.why}", then))
    return problems


def _checked(check: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    problems = []
    for failed in check["failed"] if check else ():
        column = f"({failed['column']})" if failed["column"] else ""
        found = failed["fault"] or "does not hold"
        if failed["unexpected"] is not None:
            found = f"{failed['unexpected']:,} rows"
        problems.append(_problem("check_failed", failed["table"], f"{failed['expectation']}{column}: {found}",
                                 "check, which says more"))
    return problems


def _behind(behind: Mapping[str, int]) -> list[dict[str, Any]]:
    return [
        _problem("state_behind", table, f"its state stands at landing batch {batch}", "run state, which says why")
        for table, batch in behind.items()
    ]
