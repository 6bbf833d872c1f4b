"""Report one run of a job: START, RUNNING while it lasts, and COMPLETE, FAIL or ABORT at its end.

Place: the job's frame calls it; ``lake`` reads the events' datasets. Guarantee: nothing here raises or waits for more
than a few seconds, whatever the lineage server, the lake or the database does. START has no datasets. A later event has
those known so far, if the run ends while they are read. A process that is killed sends no end.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from datetime import UTC, datetime

from openlineage.client.event_v2 import RunEvent, RunState
from openlineage.client.uuid import generate_new_uuid

from dblake.base.core.errors import DblakeError
from dblake.operate.lineage.emitter import Emitter
from dblake.operate.lineage.events import RunIdentity, build_event, parents_of
from dblake.operate.lineage.model import Flow, ReadFlow

_RUNNING_SECONDS = 60.0
"""Between two RUNNING events of a job that lasts: as often as the log has a summary."""
_READ_SECONDS = 2.0
"""For the last event's datasets after the run's end; the emitter waits longer."""
_NAMESPACE = "default"
"""OpenLineage's own default, as of its other clients."""

logger = logging.getLogger(__name__)


class LineageRun:
    """One run of a job named ``job``; ``read_flow`` is called in a thread, for RUNNING and the end."""

    def __init__(self, job: str, read_flow: ReadFlow, *, runs_on: bool) -> None:
        parent, root = parents_of(os.environ)
        namespace = os.environ.get("OPENLINEAGE_NAMESPACE") or _NAMESPACE
        self._identity = RunIdentity(namespace, job, str(generate_new_uuid()), runs_on, parent, root)
        self._read_flow, self._emitter = read_flow, Emitter()
        self._known = Flow()
        self._changed = threading.Condition()
        self._is_reading = False
        self._ended_at: float | None = None

    @property
    def id(self) -> str:
        """The id of the run, which all of its events have."""
        return self._identity.run

    def start(self) -> None:
        """Send START, and RUNNING every minute from then on."""
        self._submit(RunState.START)
        threading.Thread(target=self._repeat, name="lineage-running", daemon=True).start()

    def end(self, error: BaseException | None, *, is_stopped: bool) -> None:
        """Send the end: ABORT if a signal stopped the job, FAIL for an error, else COMPLETE; wait for some seconds."""
        with self._changed:
            self._ended_at = time.monotonic()
            self._changed.notify_all()
        what = None
        if is_stopped or (error is not None and not isinstance(error, Exception)):
            state = RunState.ABORT
        elif error is not None:
            state = RunState.FAIL
            # The text of another exception may hold values.
            what = error.what if isinstance(error, DblakeError) else f"unexpected {type(error).__name__}"
        else:
            state = RunState.COMPLETE
        self._submit(state, what)
        self._emitter.close()

    def _has_ended(self) -> bool:
        return self._ended_at is not None

    def _repeat(self) -> None:
        while True:
            with self._changed:
                if self._changed.wait_for(self._has_ended, _RUNNING_SECONDS):
                    return
            self._submit(RunState.RUNNING)

    def _submit(self, state: RunState, error: str | None = None) -> None:
        at = datetime.now(UTC)
        self._emitter.submit(lambda: self._build(state, at, error), is_replaceable=state is RunState.RUNNING)

    def _build(self, state: RunState, at: datetime, error: str | None) -> RunEvent:
        if state is not RunState.START:
            self._refresh(is_last=state is not RunState.RUNNING)
        return build_event(state, at, self._identity, self._known, error)

    def _refresh(self, *, is_last: bool) -> None:
        """Read the flow in a thread of its own, and wait for it: RUNNING until the run ends, the last event longer."""
        with self._changed:
            self._wait_for_reading(is_last)
            if not self._is_reading:
                self._is_reading = True
                threading.Thread(target=self._read, name="lineage-reading", daemon=True).start()
            self._wait_for_reading(is_last)

    def _wait_for_reading(self, is_last: bool) -> None:
        if is_last and self._ended_at is not None:
            left = max(0.0, self._ended_at + _READ_SECONDS - time.monotonic())
            self._changed.wait_for(lambda: not self._is_reading, left)
        else:
            self._changed.wait_for(lambda: not self._is_reading or self._has_ended())

    def _read(self) -> None:
        flow = self._known
        try:
            flow = self._read_flow()
        except Exception as fault:  # noqa: BLE001 - a lake that cannot be read now is the job's to report
            logger.debug("lineage: datasets cannot be read: %s", type(fault).__name__)
        with self._changed:
            self._known, self._is_reading = flow, False
            self._changed.notify_all()
