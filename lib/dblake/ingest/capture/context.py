"""What every part of one capture shares: its source, where progress is stored, its lease and its settings."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from tenacity import Retrying

from dblake.base.core.source import Source
from dblake.ingest.capture.lease import Lease, require_lease
from dblake.ingest.capture.progress import ProgressStore
from dblake.ingest.capture.retry import log_retry, retrying
from dblake.ingest.capture.settings import CaptureSettings, DumpSettings


@dataclass(frozen=True, slots=True)
class CaptureContext:
    """The parts of one capture. Capture ends at a transaction's end once ``stop`` is set."""

    source: Source
    store: ProgressStore
    lease: Lease
    settings: CaptureSettings
    dump_settings: DumpSettings
    stop: threading.Event

    def retrying(self, seconds: float) -> Retrying:
        """Return a caller that retries and logs retryable source errors for ``seconds``, or until ``stop`` is set."""
        return retrying(seconds, self.stop, log_retry)

    def require_lease(self) -> None:
        """Raise Fenced if the lease is lost for good."""
        require_lease(self.lease, self.source.name)
