"""Wire ``capture``: the configured source, landing table, progress store and lease."""

from __future__ import annotations

import threading

from dblake.base.lake.layout import Paths
from dblake.config import Config
from dblake.ingest.capture.context import CaptureContext
from dblake.ingest.capture.lease import open_lease
from dblake.ingest.capture.loop import Landed, Until
from dblake.ingest.capture.progress import open_progress
from dblake.ingest.capture.run import Capture
from dblake.ingest.capture.settings import CaptureSettings, DumpSettings
from dblake.landing.table import Landing
from pipelines.sources import open_source


def run_capture(config: Config, until: Until, stop: threading.Event, *, accept_gap: bool = False) -> Landed:
    """Capture until ``until`` holds or ``stop`` is set, at a transaction's end; return what has landed.

    A run with an end is never on standby: its scheduler learns at once that another capture leads. Raises the errors of
    ``Capture.run``.
    """
    name = config.source.name
    paths = Paths(config.warehouse, name)
    standby = not until.caught_up and until.seconds is None
    lease = open_lease(config.progress, name, standby=standby, stop=stop)
    context = CaptureContext(
        open_source(config), open_progress(config.progress, name, lease), lease, capture_settings(config),
        DumpSettings(**config.dump.model_dump()), stop,
    )
    return Capture(context, lambda: Landing(paths.landing, name), accept_gap=accept_gap).run(until)


def capture_settings(config: Config) -> CaptureSettings:
    """Return the configuration's ``capture`` section as settings."""
    capture = config.capture
    return CaptureSettings(
        max_bytes=capture.max_bytes, max_rows=capture.max_rows, commits_per_second=capture.commit_rate,
        heartbeat_seconds=capture.heartbeat_seconds, redump=capture.redump == "auto",
        new_tables=capture.new_tables,
    )
