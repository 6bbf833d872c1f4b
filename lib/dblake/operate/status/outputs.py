"""The configured outputs for ``status``: how far each is, what it lacks, and whether it runs.

Place: part of ``report``. The position is the stored checkpoint's, what is undelivered comes from events as they are
now, and the rest from the document that the output's process writes. Guarantee: an output that hangs, or that nothing
runs, still shows a growing lag. Neither a lease nor a lock is taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dblake.base.core.errors import DblakeError
from dblake.base.core.position import Position
from dblake.base.lake.layout import Paths
from dblake.operate.status.problem import problem
from dblake.operate.status.quantities import format_duration
from dblake.serve.consume.cursor import Cursor, read_cursor
from dblake.serve.consume.documents import CHECKPOINT, STATUS, Documents, open_documents, partition_document
from dblake.serve.consume.filters import Selection
from dblake.serve.consume.pending import PendingEvents
from dblake.serve.outputs.activity import OutputActivity, OutputState, read_output_activity
from dblake.serve.outputs.target import ConfiguredOutput

_WORST_FIRST = (
    OutputState.FAILED, OutputState.DIED, OutputState.STALLED, OutputState.RETRYING, OutputState.STOPPED,
    OutputState.BOOTSTRAP, OutputState.RUNNING, OutputState.NEVER_RUN,
)
"""Of the partitions of a group, the worst state is the output's."""
_LOCAL_STATES = frozenset({OutputState.STOPPED, OutputState.DIED})
_LIVE = frozenset(state for state in OutputState if state.is_live)


@dataclass(frozen=True)
class OutputLimits:
    """When an output becomes a problem; ``config.monitoring`` has the same keys and the reasons."""

    late_seconds: float = 60.0
    stopped_seconds: float = 120.0
    dead_letters: int = 0
    dead_letter_seconds: float = 86400.0


@dataclass(frozen=True)
class _Part:
    """An output, or one partition of a group: its document, its cursor, and what it selects."""

    activity: OutputActivity | None
    cursor: Cursor | None
    selection: Selection


def read_outputs(
    paths: Paths, outputs: Mapping[str, ConfiguredOutput], progress: str, dead_letters: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return one entry per output: what ``status --json`` has under ``outputs``; unknown figures are None.

    ``progress`` is its URL, ``dead_letters`` are the entries of ``count_dead_letters``.
    """
    pending = PendingEvents(paths)
    counts = {entry["output"]: entry["count"] for entry in dead_letters}
    return [
        _describe(paths, name, output, output.checkpoint_url(progress, paths.source, name), pending)
        | {"dead_letters": counts.get(name, 0)}
        for name, output in outputs.items()
    ]


def _describe(
    paths: Paths, name: str, output: ConfiguredOutput, url: str, pending: PendingEvents
) -> dict[str, Any]:
    documents = open_documents(url)
    try:
        parts = list(_read_parts(paths, name, output, documents))
    except DblakeError as error:
        return _entry(name, OutputState.UNKNOWN, last_error=error.what)
    finally:
        documents.close()
    lacking = [pending.find(part.cursor, part.selection) for part in parts if part.cursor is not None]
    positions = [part.cursor.position for part in parts if part.cursor is not None]
    activities = [part.activity for part in parts if part.activity is not None]
    newest = max(activities, key=lambda one: one.seen_at, default=None)
    failing = [one for one in activities if one.failing_since is not None]
    shown = max(failing or activities, key=lambda one: one.last_error_at or "", default=None)
    processes = {(one.host, one.process): one.rate for one in activities if one.current_state().is_live}
    return _entry(
        name, _state_of(activities), position=str(min(positions)) if positions else None,
        lag_seconds=round(max(one.seconds for one in lacking), 1) if lacking else None,
        lag_bytes=max(one.bytes for one in lacking) if lacking else None,
        rate=round(sum(processes.values()), 1), last_error=shown and shown.last_error,
        last_error_at=shown and shown.last_error_at, seen_at=newest and newest.seen_at,
        failing_since=min((one.failing_since for one in failing if one.failing_since), default=None),
        host=newest and newest.host, process=newest and newest.process,
    )


def _entry(name: str, state: str, **figures: Any) -> dict[str, Any]:
    unknown = dict.fromkeys((
        "position", "lag_seconds", "lag_bytes", "rate", "last_error", "last_error_at", "failing_since", "seen_at",
        "host", "process",
    ))
    return {"name": name, "state": str(state)} | unknown | figures


def _read_parts(paths: Paths, name: str, output: ConfiguredOutput, documents: Documents) -> Iterable[_Part]:
    selection = output.selection
    if not output.group:
        activity = read_output_activity(documents, STATUS, name)
        yield _Part(activity, _read_cursor(paths, documents, CHECKPOINT, activity), selection)
        return
    for number in range(output.group.partitions):
        activity = read_output_activity(documents, partition_document(number, STATUS), name)
        cursor = _read_cursor(paths, documents, partition_document(number, CHECKPOINT), activity)
        yield _Part(activity, cursor, selection.of_partition(output.group.partitions, number))
    # A member that failed before it had a partition.
    activity = read_output_activity(documents, STATUS, name)
    if activity is not None:
        yield _Part(activity, None, selection)


def _read_cursor(
    paths: Paths, documents: Documents, name: str, activity: OutputActivity | None
) -> Cursor | None:
    """Return where the output is: by its checkpoint, or, if that is elsewhere, by its document."""
    if activity is not None and activity.is_elsewhere:
        return None if activity.position is None else Cursor(Position.parse(activity.position), activity.batch)
    text = documents.read(name)
    return read_cursor(text, paths.source, "progress") if text else None


def _state_of(activities: Sequence[OutputActivity]) -> OutputState:
    """Return the worst state; a member that has ended does not count while another one works."""
    states = {one.current_state() for one in activities}
    if any(state.is_live for state in states):
        states -= _LOCAL_STATES
    return min(states, key=_WORST_FIRST.index, default=OutputState.NEVER_RUN)


def output_problems(
    outputs: Iterable[Mapping[str, Any]], dead_letters: Iterable[Mapping[str, Any]], limits: OutputLimits,
    now: datetime,
) -> list[dict[str, Any]]:
    """Return the problems of outputs: late, stopped, and events that a target has rejected. Each names its output."""
    problems = list[dict[str, Any]]()
    names = set[str]()
    for one in outputs:
        names.add(one["name"])
        problems += [*_stopped(one, limits, now), *_late(one, limits, now)]
    for letters in dead_letters:
        if letters["output"] in names and letters["recent"] > limits.dead_letters:
            problems.append(_problem(
                "dead_letters", letters["output"],
                f"{letters['recent']:,} events were rejected in the last {format_duration(limits.dead_letter_seconds)}",
                f"sql \"SELECT * FROM dblake.dead_letters\"; correct the target, then subscribe --output "
                f"{letters['output']} --from a point before them",
            ))
    return problems


def _stopped(one: Mapping[str, Any], limits: OutputLimits, now: datetime) -> list[dict[str, Any]]:
    """Return a problem for an output that does not run and should: one that was stopped in order may have no work."""
    state, name = one["state"], one["name"]
    error = f": {one['last_error']}" if one["last_error"] and one["failing_since"] else ""
    start = f"run up, or subscribe --output {name}"
    if state == OutputState.UNKNOWN:
        return [_problem("output_stopped", name, f"its state cannot be read: {one['last_error']}", "remove the cause")]
    if state == OutputState.FAILED:
        return [_problem("output_stopped", name, f"it failed for good{error}", f"remove the cause; then {start}")]
    if state == OutputState.NEVER_RUN:
        return [_problem("output_stopped", name, "it has never run", start)]
    ago = _age(one["seen_at"], now)
    overdue = ago if state == OutputState.DIED else max(one["lag_seconds"] or 0.0, _age(one["failing_since"], now))
    if state not in _LOCAL_STATES or overdue <= limits.stopped_seconds:
        return []
    ended = "it was stopped" if state == OutputState.STOPPED else "its process died"
    lag = f", and it lags by {format_duration(one['lag_seconds'])}" if one["lag_seconds"] else ""
    return [_problem("output_stopped", name, f"{ended} {format_duration(ago)} ago{lag}{error}", start)]


def _late(one: Mapping[str, Any], limits: OutputLimits, now: datetime) -> list[dict[str, Any]]:
    """Return a problem for an output that runs, and lags or has failed to deliver anything for too long."""
    if one["state"] not in _LIVE:
        return []
    details = []
    if (one["lag_seconds"] or 0.0) > limits.late_seconds:
        details.append(f"it lags by {format_duration(one['lag_seconds'])}")
    failing = _age(one["failing_since"], now)
    if failing > limits.late_seconds:
        details.append(f"it has failed for {format_duration(failing)}")
    if not details:
        return []
    error = f": {one['last_error']}" if one["failing_since"] else ""
    state = "" if one["state"] == OutputState.RUNNING else f" ({one['state']})"
    return [_problem("output_late", one["name"], f"{' and '.join(details)}{state}{error}",
                     f"check that the target of {one['name']} is reachable and fast enough")]


def _problem(code: str, output: str, detail: str, next_step: str) -> dict[str, Any]:
    return problem(code, None, f"output {output}: {detail}", next_step) | {"output": output}


def _age(text: str | None, now: datetime) -> float:
    return 0.0 if text is None else max((now - datetime.fromisoformat(text)).total_seconds(), 0.0)
