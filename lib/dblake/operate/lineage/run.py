"""Report one run of a job: START, RUNNING while it lasts, and COMPLETE, FAIL or ABORT at its end.

Place: the job's frame calls it; ``lake`` reads the events' datasets. Guarantee: nothing here raises or waits for more
than a few seconds, whatever the lineage server, the lake or the database does. A process that is killed sends no end.
"""

from __future__ import annotations

import logging
import os
import threading
from datetime import UTC, datetime

from openlineage.client.event_v2 import RunEvent, RunState
from openlineage.client.uuid import generate_new_uuid

from dblake.base.core.errors import DblakeError
from dblake.operate.lineage.emitter import Emitter
from dblake.operate.lineage.events import RunIdentity, build_event, parents_of
from dblake.operate.lineage.model import Flow, ReadFlow

_RUNNING_SECONDS = 60.0
"""Between two RUNNING events of a job that lasts: as often as the log has a summary."""
_NAMESPACE = "default"
"""OpenLineage's own default, as of its other clients."""

logger = logging.getLogger(__name__)


class LineageRun:
    """One run of a job named ``job``; ``read_flow`` is called in a thread, when an event is sent."""

    def __init__(self, job: str, read_flow: ReadFlow, *, runs_on: bool) -> None:
        parent, root = parents_of(os.environ)
        namespace = os.environ.get("OPENLINEAGE_NAMESPACE") or _NAMESPACE
        self._identity = RunIdentity(namespace, job, str(generate_new_uuid()), runs_on, parent, root)
        self._read_flow, self._emitter = read_flow, Emitter()
        self._known = Flow()
        self._ended = threading.Event()

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
        self._ended.set()
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

    def _repeat(self) -> None:
        while not self._ended.wait(_RUNNING_SECONDS):
            self._submit(RunState.RUNNING)

    def _submit(self, state: RunState, error: str | None = None) -> None:
        at = datetime.now(UTC)
        self._emitter.submit(lambda: self._build(state, at, error), is_replaceable=state is RunState.RUNNING)

    def _build(self, state: RunState, at: datetime, error: str | None) -> RunEvent:
        try:
            self._known = self._read_flow()
        except Exception as fault:  # noqa: BLE001 - a lake that cannot be read now is the job's to report
            logger.debug("lineage: datasets cannot be read: %s", type(fault).__name__)
        return build_event(state, at, self._identity, self._known, error)
