"""Wire ``capture``: the configured source, landing table, progress store and lease."""

from __future__ import annotations

import threading

from dblake.capture.lease import open_lease
from dblake.capture.loop import Landed, Until
from dblake.capture.progress import open_progress
from dblake.capture.run import Capture
from dblake.capture.settings import CaptureSettings, DumpSettings
from dblake.config import Config
from dblake.lake.layout import Paths
from dblake.landing.table import Landing
from pipelines.sources import open_source


def run_capture(config: Config, until: Until, stop: threading.Event, *, accept_gap: bool = False) -> Landed:
    """Run capture until ``until`` is reached or ``stop`` is set, and return what landed.

    Ends at the end of a transaction. A bounded run does not wait as a standby: it raises Fenced if another capture
    leads, so that its scheduler learns of it at once.
    """
    name = config.source.name
    paths = Paths(config.warehouse, name)
    standby = not until.caught_up and until.seconds is None
    lease = open_lease(config.progress, name, standby=standby, stop=stop)
    capture = Capture(
        open_source(config),
        lambda: Landing(paths.landing, name),
        open_progress(config.progress, name, lease),
        lease,
        CaptureSettings(
            max_bytes=config.capture.max_bytes,
            max_rows=config.capture.max_rows,
            commits_per_second=config.capture.commit_rate,
            heartbeat_seconds=config.capture.heartbeat_seconds,
            redump=config.capture.redump == "auto",
        ),
        DumpSettings(**config.dump.model_dump()),
        stop,
        accept_gap=accept_gap,
    )
    return capture.run(until)
