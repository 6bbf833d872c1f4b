"""What a running output reports of itself: a document beside its checkpoint, which ``status`` reads.

Place: ``reporter`` writes it, one per output, or one per partition of a group; ``operate.status`` reads it. Guarantee:
only the process that delivers writes it, so it is of the newest run. It has no row values: an error's message has none.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from dblake.base.core.errors import ConfigError
from dblake.base.core.processes import is_alive
from dblake.serve.consume.documents import Documents

WRITE_SECONDS = 5.0
"""Seconds between two documents of a running output."""
_SILENT_SECONDS = 6 * WRITE_SECONDS
"""An output that has written nothing for so long does not run."""


class OutputState(StrEnum):
    """What an output does, as ``status`` shows it."""

    RUNNING = "running"
    BOOTSTRAP = "bootstrap"
    RETRYING = "retrying"
    STALLED = "stalled"
    STOPPED = "stopped"
    FAILED = "failed"
    DIED = "died"
    NEVER_RUN = "never_run"
    UNKNOWN = "unknown"

    @property
    def is_live(self) -> bool:
        """True while a process works on the output."""
        return self in (OutputState.RUNNING, OutputState.BOOTSTRAP, OutputState.RETRYING, OutputState.STALLED)


@dataclass(frozen=True, slots=True)
class OutputActivity:
    """One run of an output, as last written. Times are UTC in ISO 8601, ``rate`` is in events per second.

    ``position`` and ``batch`` are the checkpoint's. ``oldest_undelivered_at`` is the commit time of the oldest
    transaction after it; None if there is none. ``failing_since`` is the first failure since something was delivered,
    also by an earlier run. ``dead_letters`` counts this run's. ``is_elsewhere`` if the checkpoint is not beside the
    document, because ``--checkpoint`` names another place.
    """

    host: str
    process: int
    since: str
    seen_at: str
    state: str
    position: str | None = None
    batch: int = 0
    oldest_undelivered_at: str | None = None
    rate: float = 0.0
    last_error: str | None = None
    last_error_at: str | None = None
    failing_since: str | None = None
    dead_letters: int = 0
    is_elsewhere: bool = False

    def current_state(self) -> OutputState:
        """Return the state now: a process that is gone, or has written nothing for 30 s, died."""
        state = OutputState(self.state)
        if not state.is_live:
            return state
        return state if is_alive(self.host, self.process, self.seen_at, _SILENT_SECONDS) else OutputState.DIED


def write_activity(activity: OutputActivity) -> str:
    """Return the document as text."""
    return json.dumps(asdict(activity), sort_keys=True)


def parse_activity(text: str, output: str) -> OutputActivity:
    """Parse the text that ``write_activity`` returns. Raises ConfigError for another text."""
    try:
        fields: dict[str, Any] = json.loads(text)
        activity = OutputActivity(**fields)
        OutputState(activity.state)
        for text_of_time in (activity.seen_at, activity.failing_since):
            _ = text_of_time is None or datetime.fromisoformat(text_of_time)
    except (ValueError, TypeError):
        raise ConfigError(
            f"output {output}: the document of its state was written by an incompatible version, or edited",
            next_step="start the output, which writes it again",
        ) from None
    return activity


def read_output_activity(documents: Documents, name: str, output: str) -> OutputActivity | None:
    """Return the activity in a document; None without one. Raises as ``parse_activity`` and ``Documents`` do."""
    text = documents.read(name)
    return parse_activity(text, output) if text else None


def now_text() -> str:
    """Return the time now as documents have it."""
    return datetime.now(UTC).isoformat(timespec="seconds")
