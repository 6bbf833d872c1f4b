"""Send events in a thread, so that a lineage server that is slow or gone never delays a job.

Place: between ``run`` and OpenLineage's client, which makes the transport from its own environment variables.
Guarantee: a submission returns at once, and events are sent in order. A failed one is tried again after a pause that
doubles; the first failure is a warning, once. At the end the job waits ``_END_SECONDS`` at most. Few events wait: a
newer RUNNING replaces an older one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from openlineage.client import OpenLineageClient
from openlineage.client.event_v2 import RunEvent

_END_SECONDS = 5.0
_THREAD = "lineage"
_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 1.0, 60.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """An event that is made when it is sent, because to read its datasets takes time."""

    make: Callable[[], RunEvent]
    is_replaceable: bool


class Emitter:
    """Sends events by the client, from its own thread."""

    def __init__(self) -> None:
        # They log each failed attempt, with addresses; here the first one is a warning.
        logging.getLogger("openlineage").setLevel(logging.CRITICAL)
        logging.getLogger("urllib3.connectionpool").addFilter(lambda record: record.threadName != _THREAD)
        self._waiting: list[_Waiting] = []
        self._changed = threading.Condition()
        self._is_ended = self._has_warned = False
        self._thread = threading.Thread(target=self._run, name=_THREAD, daemon=True)
        self._thread.start()

    def submit(self, make: Callable[[], RunEvent], *, is_replaceable: bool = False) -> None:
        """Send the event that ``make`` returns, after those submitted before."""
        with self._changed:
            if self._waiting and self._waiting[-1].is_replaceable:
                self._waiting.pop()
            self._waiting.append(_Waiting(make, is_replaceable))
            self._changed.notify_all()

    def close(self) -> None:
        """Wait until all events are sent, for some seconds at most."""
        with self._changed:
            self._is_ended = True
            self._changed.notify_all()
        self._thread.join(_END_SECONDS)
        if self._thread.is_alive():
            self._warn(f"not all sent within {_END_SECONDS:g} s of the end")

    def _run(self) -> None:
        client: Any = None
        pause = _MIN_PAUSE_SECONDS
        while True:
            with self._changed:
                while not self._waiting:
                    if self._is_ended:
                        return
                    self._changed.wait()
                first = self._waiting[0]
            try:
                client = client or OpenLineageClient()
                client.emit(first.make())
            except Exception as error:  # noqa: BLE001 - lineage must not end a job, whatever a transport raises
                self._warn(f"not delivered ({_describe(error)})")
                if self._is_ended:
                    return
                time.sleep(pause)
                pause = min(2 * pause, _MAX_PAUSE_SECONDS)
                continue
            pause = _MIN_PAUSE_SECONDS
            with self._changed:
                if self._waiting and self._waiting[0] is first:
                    self._waiting.pop(0)

    def _warn(self, what: str) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        logger.warning("OpenLineage events are %s; the job continues. Next: correct OPENLINEAGE_URL, or the server",
                       what)


def _describe(error: Exception) -> str:
    """Return the class and the HTTP status: not the text, which may hold an address with a secret."""
    response = getattr(error, "response", None)
    return type(error).__name__ + (f", status {response.status_code}" if response is not None else "")
