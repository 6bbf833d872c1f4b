"""Composes capture: which source, which landing table, where progress and the lease are kept."""

from __future__ import annotations

import threading
from pathlib import Path

from dblake.capture.lease import LocalLease
from dblake.capture.loop import Capture, Landed, Until
from dblake.capture.progress import open_progress
from dblake.capture.settings import CaptureSettings, DumpSettings
from dblake.config import Config
from dblake.landing.table import Landing
from pipelines.paths import Paths
from pipelines.sources import open_source


def run_capture(config: Config, until: Until, stop: threading.Event) -> Landed:
    """Captures until told to; ends at a transaction's end once ``stop`` is set."""
    paths = Paths(config.warehouse, config.source.name)
    capture = Capture(
        open_source(config),
        lambda: Landing(paths.landing, config.source.name),
        open_progress(config.progress, config.source.name),
        LocalLease(Path(config.progress.removeprefix("file:")), config.source.name),
        CaptureSettings(
            max_bytes=config.capture.max_bytes,
            max_rows=config.capture.max_rows,
            commits_per_second=config.capture.commit_rate,
            heartbeat_seconds=config.capture.heartbeat_seconds,
        ),
        DumpSettings(chunk_size=config.dump.chunk_size, delay=config.dump.delay),
        stop,
    )
    return capture.run(until)
