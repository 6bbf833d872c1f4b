"""The job ``report`` over a warehouse on S3: the same figures, with a bounded number of requests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from dblake.base.lake.layout import Paths
from dblake.base.lake.storage import Location
from dblake.ingest.capture.file_progress import FileProgress
from dblake.operate.report.build import Limits, build_report
from dblake.operate.report.page import render_page
from dblake.operate.status.report import SourceReport, build_status
from tests.support.busy_lake import build_busy_lake, full_minute
from tests.support.s3 import S3Server, location, storage
from tests.support.s3_proxy import S3Proxy

_MAX_REQUESTS = 250


def test_report_reads_warehouse_on_s3(s3: S3Server, tmp_path: Path) -> None:
    now, store = full_minute(datetime.now(UTC)), FileProgress(tmp_path / "progress")
    counts = {"public.busy": np.full(150, 50), "public.broken": np.full(150, 50)}
    counts["public.broken"][-30:] = 0
    direct = location(s3)
    build_busy_lake(direct, store, counts, now, batches=10)
    with S3Proxy(s3.port) as proxy:
        paths = Paths(Location(direct, storage(proxy.port)), "shop")
        document = build_status(paths, store, SourceReport(), late_seconds=120)
        made = build_report(paths, document, timedelta(hours=1), now, Limits(120, None))
        requests = proxy.take()
    assert made.operations.tables == ["public.broken", "public.busy"]
    assert made.operations.shown.sum(axis=1).tolist() == [1500, 3000]
    assert list(made.episodes) == [0]
    assert np.nanmax(made.lag.stages["events"]) == 262
    assert np.nanmax(made.lag.stages["state"]) == 282
    assert "public.broken" in render_page(made)
    assert len(requests) <= _MAX_REQUESTS
