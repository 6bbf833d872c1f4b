"""Wait for a queued dump, as ``dump start --wait`` does. Capture carries it out."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from dblake.base.core.errors import PrerequisitesNotMet
from dblake.ingest.capture.activity import read_activity
from dblake.ingest.capture.dump_queue import dump_status
from dblake.ingest.capture.dump_task import DumpState
from dblake.ingest.capture.progress import ProgressStore

_POLL_SECONDS = 0.5

logger = logging.getLogger(__name__)


def wait_for_dump(store: ProgressStore, dump_id: str, show: Callable[[list[dict[str, Any]]], None]) -> None:
    """Poll a dump until all its tables are finished. Raises PrerequisitesNotMet if some were not dumped."""
    activity = read_activity(store)
    if activity is None or not activity.is_running():
        logger.warning("capture does not run, and dump %s waits for it. Next: run capture", dump_id)
    while True:
        entries = [entry for entry in dump_status(store) if entry["id"] == dump_id]
        show(entries)
        if all(DumpState(entry["state"]).is_final for entry in entries):
            break
        time.sleep(_POLL_SECONDS)
    undone = [f"{entry['table']} {entry['state']}" for entry in entries if entry["state"] != DumpState.DONE]
    if undone:
        raise PrerequisitesNotMet(f"dump {dump_id}: {', '.join(undone)}", next_step="read the reason with dump status")
