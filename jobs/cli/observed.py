"""Observe a job's run from outside: its lineage by OpenLineage, its traces by OpenTelemetry.

Place: the frame opens it around a command that has a configuration. Guarantee: without the environment variables that
switch one on, nothing of it is imported; nothing here changes a job's result or its exit code.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dblake.base.core.steps import trace_to
from dblake.config import Config
from dblake.operate.lineage.switch import has_client, is_reported
from dblake.operate.tracing.switch import open_tracer

_MOVING = ("capture", "reconcile", "state", "run", "subscribe")
"""The jobs that move data, and so have lineage."""
_TRACED = (*_MOVING, "check", "maintain")


@contextmanager
def observed(config: Config, job: str, options: Mapping[str, Any], is_stopped: Callable[[], bool]) -> Iterator[None]:
    """Observe the block as one run of a job; ``is_stopped`` returns True once a signal has asked it to end."""
    # `subscribe --all` supervises processes that are observed themselves.
    if job not in _TRACED or options.get("runs_all"):
        yield
        return
    runs_on = _runs_on(job, options)
    lineage = None
    if job in _MOVING and is_reported(os.environ) and has_client():
        from pipelines.lineage import open_lineage

        lineage = open_lineage(config, job, options.get("name"), runs_on=runs_on)
    tracer = open_tracer(job, os.environ, runs_on=runs_on)
    if tracer:
        tracer.note(source=config.source.name, **({"run": lineage.id} if lineage else {}))
        trace_to(tracer)
    if lineage:
        lineage.start()
    failure: BaseException | None = None
    try:
        yield
    except BaseException as error:
        failure = error
        raise
    finally:
        if tracer:
            trace_to(None)
            tracer.close(failure)
        if lineage:
            lineage.end(failure, is_stopped=is_stopped())


def _runs_on(job: str, options: Mapping[str, Any]) -> bool:
    """Return True for a job that runs until a signal stops it."""
    if job in ("capture", "subscribe"):
        return not options["until_caught_up"] and options.get("seconds") is None
    return options.get("mode") == "continuous"
