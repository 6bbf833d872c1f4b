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

from dblake.base.core.errors import DblakeError
from dblake.base.core.source import LogRetention
from dblake.base.lake.frontier import read_frontier
from dblake.base.lake.layout import Paths
from dblake.base.lake.schemas import read_schemas
from dblake.ingest.capture.activity import read_activity
from dblake.ingest.capture.dump_queue import dump_status
from dblake.ingest.capture.log_limits import LogLimits, read_log_limits
from dblake.ingest.capture.progress import ProgressStore
from dblake.ingest.capture.stale_tables import read_stale_tables
from dblake.ingest.capture.table_life import read_lives
from dblake.ingest.capture.throttle import Throttle, read_throttle
from dblake.operate.quality.latest import read_newest_check
from dblake.operate.status.captured import describe_tables
from dblake.operate.status.dead_letters import count_dead_letters
from dblake.operate.status.dump_estimate import estimate_dump
from dblake.operate.status.lag import read_stages
from dblake.operate.status.outputs import OutputLimits, output_problems, read_outputs
from dblake.operate.status.problem import problem
from dblake.operate.status.stage_problems import (
    check_problems,
    empty_stage_problems,
    lag_problems,
    log_problems,
    pause_problems,
    redecode_problems,
    state_problems,
)
from dblake.operate.status.table_problems import (
    dump_problems,
    life_problems,
    stale_table_problems,
    window_problems,
)
from dblake.operate.status.verifications import read_verifications, verification_problems
from dblake.serve.outputs.target import ConfiguredOutput

_FEW_TABLES = 12


@dataclass(frozen=True, slots=True)
class SourceReport:
    """The database's log retention and row estimates of tables being dumped, or the error of an unreachable one."""

    log: LogRetention | None = None
    rows: Mapping[str, int] = field(default_factory=dict)
    error: DblakeError | None = None


@dataclass(frozen=True, slots=True)
class ReportedOutputs:
    """The configured outputs by name, the URL beside which their documents lie, and the keywords of OutputLimits."""

    configured: Mapping[str, ConfiguredOutput]
    progress: str
    limits: Mapping[str, Any] = field(default_factory=dict)


def build_status(
    paths: Paths, store: ProgressStore, source: SourceReport, *, late_seconds: float,
    max_verification_age_seconds: float | None = None, all_tables: bool = False,
    outputs: ReportedOutputs | None = None,
) -> dict[str, Any]:
    """Return the document that ``status --json`` prints.

    ``log`` is null if the database was not contacted or is unreachable. A stage that lags by more than ``late_seconds``
    is a problem, and so is a table with a primary key whose newest verification is older than
    ``max_verification_age_seconds``. Rows and times of changes are read of all tables with ``all_tables``, else of all
    if there are few.
    """
    outputs = outputs or ReportedOutputs({}, "")
    limits = OutputLimits(**outputs.limits)
    dumps, lives, verifications = dump_status(store), read_lives(store), read_verifications(paths)
    frontier = read_frontier(paths)
    stages = read_stages(paths, frontier.batch, source.log.behind if source.log else None)
    log_limits = read_log_limits(store)
    check, activity = read_newest_check(paths), read_activity(store)
    letters = count_dead_letters(paths, limits.dead_letter_seconds)
    found_outputs = read_outputs(paths, outputs.configured, outputs.progress, letters)
    measured = lives if all_tables or len(lives) <= _FEW_TABLES else [t for t, life in lives.items() if life.reason]
    return {
        "source": paths.source,
        "position": stages["landing"].position,
        "stages": {name: asdict(stage) for name, stage in stages.items()},
        "log": asdict(source.log) if source.log else None,
        "tables": frontier.versions,
        "capture": asdict(activity) | {"running": activity.is_running()} if activity else None,
        "captured": describe_tables(paths, lives, dumps, measured),
        "log_limits": _set_values(log_limits),
        "throttle": _set_values(read_throttle(store)),
        "dumps": [dump | estimate_dump(dump, source.rows.get(dump["table"])) for dump in dumps],
        "check": check,
        "verifications": verifications,
        "dead_letters": letters,
        "outputs": found_outputs,
        "problems": [
            *_source_problems(source.error), *log_problems(source.log, stages["landing"]),
            *pause_problems(log_limits.paused_until, source.log),
            *empty_stage_problems(stages, paths), *lag_problems(stages, late_seconds, activity),
            *dump_problems(dumps, lives), *stale_table_problems(read_stale_tables(store), dumps, lives),
            *life_problems(lives),
            *window_problems(paths), *redecode_problems(paths),
            *state_problems(frontier.behind),
            *check_problems(check),
            *verification_problems(verifications, _keyed_tables(paths), max_verification_age_seconds),
            *output_problems(found_outputs, letters, limits, datetime.now(UTC)),
        ],
    }


def _set_values(limits: Throttle | LogLimits) -> dict[str, Any]:
    return {name: value for name, value in asdict(limits).items() if value is not None}


def _source_problems(error: DblakeError | None) -> list[dict[str, Any]]:
    return [problem("source_unreachable", None, error.what, error.next_step)] if error else []


def _keyed_tables(paths: Paths) -> list[str]:
    return [table for table, versions in read_schemas(paths).items() if versions[-1].schema.primary_key]
