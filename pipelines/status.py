"""How far each stage is, from what the tables say of themselves: no database, no JVM, no file is read.

The files of landing carry, as Delta statistics, the batch they are and the newest commit time in them. So the batch a
later stage has reached says how old what it shows is.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from dblake.capture.progress import open_progress
from dblake.capture.requests import status as dump_status
from dblake.capture.rewritten import Rewritten, rewritten
from dblake.config import Config
from pipelines.paths import Paths

_LATE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Stage:
    """What a stage holds: everything up to ``position``, which was committed ``lag_seconds`` ago."""

    position: str | None
    lag_seconds: float | None


def read_status(config: Config) -> dict[str, Any]:
    """The document ``status --json`` prints."""
    paths = Paths(config.warehouse, config.source.name)
    batches = _Batches(paths.landing)
    stages = {
        "landing": batches.stage(batches.newest),
        "events": batches.stage(_version(paths.events, f"reconcile/{paths.source}")),
        "state": batches.stage(_frontier(paths.frontier)),
    }
    store = open_progress(config.progress, config.source.name)
    dumps = dump_status(store)
    return {
        "source": config.source.name,
        "position": stages["landing"].position,
        "stages": {name: {"position": s.position, "lag_seconds": s.lag_seconds} for name, s in stages.items()},
        "dumps": dumps,
        "problems": [*_late(stages), *_failed(dumps), *_rewritten(rewritten(store), dumps), *_behind(paths.frontier)],
    }


class _Batches:
    """What landing's files say of the batches in them."""

    def __init__(self, path: str) -> None:
        self._batches: dict[int, dict[str, Any]] = {}
        if DeltaTable.is_deltatable(path):
            files = pa.table(DeltaTable(path).get_add_actions(flatten=True))
            wanted = [f"max.{name}" for name in ("batch", "incarnation", "lsn", "seq", "committed_at")]
            # A table without files has no statistics either.
            rows = files.select(wanted).to_pylist() if set(wanted) <= set(files.column_names) else []
            for row in rows:
                self._batches[row["max.batch"]] = row
        self.newest = max(self._batches, default=0)

    def stage(self, batch: int) -> Stage:
        """The stage that has reached ``batch``."""
        held = [row for number, row in self._batches.items() if number <= batch and row["max.lsn"] is not None]
        if not held:
            return Stage(None, None)
        newest = max(held, key=lambda row: (row["max.incarnation"], row["max.lsn"]))
        times = [row["max.committed_at"] for row in held if row["max.committed_at"] is not None]
        lag = (datetime.now(UTC) - max(times).astimezone(UTC)).total_seconds() if times else None
        return Stage(f"{newest['max.incarnation']}/{newest['max.lsn']}", None if lag is None else round(max(lag, 0), 1))


def _version(path: str, application: str) -> int:
    return (DeltaTable(path).transaction_version(application) or 0) if DeltaTable.is_deltatable(path) else 0


def _frontier(path: str) -> int:
    row = _newest_frontier(path)
    return int(row["batch"]) if row else 0


def _newest_frontier(path: str) -> dict[str, Any] | None:
    if not DeltaTable.is_deltatable(path):
        return None
    # Not to_pyarrow_table: the threads it reads with may still run when the interpreter ends, which aborts it.
    tables = QueryBuilder().register("frontier", DeltaTable(path))
    newest = tables.execute("SELECT batch, behind FROM frontier ORDER BY batch DESC, at DESC LIMIT 1").read_all()
    rows: list[dict[str, Any]] = pa.table(newest).to_pylist()
    return rows[0] if rows else None


def _problem(code: str, table: str | None, detail: str, next_step: str) -> dict[str, Any]:
    return {"code": code, "table": table, "detail": detail, "next": next_step}


def _late(stages: dict[str, Stage]) -> list[dict[str, Any]]:
    jobs = {"landing": "capture", "events": "reconcile", "state": "state"}
    return [
        _problem("late", None, f"{name} holds nothing younger than {stage.lag_seconds:.0f} s", f"run {jobs[name]}")
        for name, stage in stages.items()
        if stage.lag_seconds is not None and stage.lag_seconds > _LATE_SECONDS
    ]


def _failed(dumps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        _problem("dump_failed", d["table"], d["error"] or "", f"mend that, then dump start --table '{d['table']}'")
        for d in dumps if d["state"] == "failed"
    ]


def _rewritten(found: list[Rewritten], dumps: list[dict[str, Any]]) -> list[dict[str, Any]]:
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


def _behind(path: str) -> list[dict[str, Any]]:
    row = _newest_frontier(path)
    behind = dict(row["behind"] or []) if row else {}
    return [
        _problem("state_behind", table, f"its state stands at landing batch {batch}", "run state, which says why")
        for table, batch in behind.items()
    ]
