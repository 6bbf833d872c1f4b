"""Wire lineage: what each job reads and writes, by the configuration's names. Requires OpenLineage's client."""

from __future__ import annotations

from dblake.base.core.intervals import Interval
from dblake.base.lake.layout import Paths
from dblake.config import Config
from dblake.operate.lineage.lake import LakeLineage, describe_sources
from dblake.operate.lineage.model import Dataset, DatasetName, Flow, ReadFlow
from dblake.operate.lineage.names import name_source_table, name_target
from dblake.operate.lineage.run import LineageRun
from dblake.serve.outputs.target import STDOUT, ConfiguredOutput, make_outputs
from pipelines.sources import open_unmasked

_CATALOG_SECONDS = 600.0


def open_lineage(config: Config, job: str, output: str | None, *, runs_on: bool) -> LineageRun:
    """Return the run of a job that moves data, named after source, job and, for ``subscribe``, the output."""
    name = ".".join(["dblake", config.source.name, job, *([output] if output else [])])
    return LineageRun(name, read_flow_of(config, job, output), runs_on=runs_on)


def read_flow_of(config: Config, job: str, output: str | None = None) -> ReadFlow:
    """Return how to read what a job reads and writes."""
    source = config.source

    def name_source(table: str) -> DatasetName:
        return name_source_table(source.type, source.host, source.port, source.database, table)

    lake = LakeLineage(Paths(config.warehouse, source.name), name_source, config.mask.tables)
    catalog, tables = Interval(_CATALOG_SECONDS), list[Dataset]()

    def read_capture() -> Flow:
        nonlocal tables
        if catalog.is_due():
            tables = describe_sources(open_unmasked(config).tables(), name_source)
        return lake.capture(tables)

    def read_subscribe() -> Flow:
        target = make_outputs(config.outputs).get(output or STDOUT, ConfiguredOutput())

        def name_delivered(table: str) -> DatasetName:
            return name_target(target.kind, target.settings, source.name, output or STDOUT, table)

        return lake.subscribe(target.selection, None if target.kind == STDOUT else name_delivered)

    flows: dict[str, ReadFlow] = {
        "capture": read_capture, "reconcile": lake.reconcile, "state": lake.state, "run": lake.run,
        "subscribe": read_subscribe,
    }
    return flows[job]
