"""Wire ``status``: the configured tables, progress store and database."""

from __future__ import annotations

from typing import Any

from dblake.base.core.errors import DblakeError
from dblake.base.lake.layout import Paths
from dblake.base.lake.tables import has_table
from dblake.config import Config
from dblake.ingest.capture.dump_queue import dump_status
from dblake.ingest.capture.dump_task import DumpState
from dblake.ingest.capture.progress import ProgressStore, open_progress
from dblake.landing.table import Landing
from dblake.operate.status.report import ReportedOutputs, SourceReport, build_status
from dblake.serve.outputs.target import make_outputs
from pipelines.sources import open_source


def read_status(
    config: Config, store: ProgressStore | None = None, *, ask_source: bool = True, all_tables: bool = False
) -> dict[str, Any]:
    """Return what ``status --json`` prints: ``ask_source`` contacts the database, ``all_tables`` counts all rows."""
    paths = Paths(config.warehouse, config.source.name)
    store = store or open_progress(config.progress, config.source.name)
    source = _query_source(config, paths, store) if ask_source else SourceReport()
    outputs = ReportedOutputs(make_outputs(config.outputs), config.progress, config.status.outputs())
    return build_status(paths, store, source, late_seconds=config.status.late_seconds, outputs=outputs,
                        max_verification_age_seconds=config.verify.max_age_seconds, all_tables=all_tables)


def _query_source(config: Config, paths: Paths, store: ProgressStore) -> SourceReport:
    reached = Landing(paths.landing, paths.source).reached if has_table(paths.landing) else None
    tables = sorted({dump["table"] for dump in dump_status(store) if not DumpState(dump["state"]).is_final})
    try:
        source = open_source(config)
        return SourceReport(source.log_retention(reached.resume if reached else None), source.row_estimates(tables))
    except DblakeError as error:
        return SourceReport(error=error)
