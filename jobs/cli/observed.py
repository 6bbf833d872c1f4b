"""Observe a job's run from outside: its lineage by OpenLineage, its traces by OpenTelemetry.

Place: the frame opens it around a command that has a configuration. Guarantee: without the environment variables that
switch one on, nothing of it is imported; nothing here changes a job's result or its exit code.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dblake.base.core.steps import trace_to
from dblake.config import Config
from dblake.operate.lineage.switch import has_client, is_reported
from dblake.operate.tracing.switch import open_tracer

if TYPE_CHECKING:
    from dblake.operate.lineage.run import LineageRun

_MOVING = ("capture", "reconcile", "state", "run", "subscribe")
"""The jobs that move data, and so have lineage."""
_TRACED = (*_MOVING, "check", "maintain")

logger = logging.getLogger(__name__)


@contextmanager
def observed(config: Config, job: str, options: Mapping[str, Any], is_stopped: Callable[[], bool]) -> Iterator[None]:
    """Observe the block as one run of a job; ``is_stopped`` returns True once a signal has asked it to end."""
    # `subscribe --all` supervises processes that are observed themselves.
    if job not in _TRACED or options.get("runs_all"):
        yield
        return
    runs_on = _runs_on(job, options)
    lineage = _open_lineage(config, job, options, runs_on=runs_on)
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
        # Side by side: each may wait as long as a job that is stopped has.
        closing = threading.Thread(target=tracer.close, args=(failure,), daemon=True) if tracer else None
        if closing:
            trace_to(None)
            closing.start()
        if lineage:
            lineage.end(failure, is_stopped=is_stopped())
        if closing:
            closing.join()


def _open_lineage(config: Config, job: str, options: Mapping[str, Any], *, runs_on: bool) -> LineageRun | None:
    """Return the lineage of a job's run; None if it is not reported, or cannot be, which is a warning."""
    if not _moves(job, options) or not is_reported(os.environ) or not has_client():
        return None
    try:
        from pipelines.lineage import open_lineage

        return open_lineage(config, job, options.get("name"), runs_on=runs_on)
    except Exception as error:  # noqa: BLE001 - no job depends on its lineage, whatever the client raises
        logger.warning("no lineage: its set-up fails (%s). Next: correct the OPENLINEAGE_ variables, or the package",
                       type(error).__name__)
        return None


def _moves(job: str, options: Mapping[str, Any]) -> bool:
    """Return True for a job that moves data; ``reconcile --compare`` writes nothing."""
    return job in _MOVING and not options.get("compare")


def _runs_on(job: str, options: Mapping[str, Any]) -> bool:
    """Return True for a job that runs until a signal stops it."""
    if job in ("capture", "subscribe"):
        return not options["until_caught_up"] and options.get("seconds") is None
    return options.get("mode") == "continuous"
