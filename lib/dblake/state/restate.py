"""State tables built anew because their events were decoded again: before anything newer is folded into them.

State never goes back to an older position, so an event that became another one at the same position would not reach it.
The table is replaced instead, in one commit, by what its events up to where it stands leave; its own log says which
run of decoding again it was built for, so a state run that died goes on where it was. What a table holds of columns
dropped at the source is what the events left still tell. Folding on from there is ``state``'s.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Sequence
from dataclasses import dataclass

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from dblake.core.errors import BrokenShape, StateError
from dblake.core.failpoints import failpoint
from dblake.core.names import split_qualified
from dblake.core.position import Position
from dblake.lake.layout import Paths
from dblake.lake.locks import commit_lock
from dblake.lake.log import Application, newest_batch, record_batch
from dblake.lake.schemas import SchemaVersion, read_schemas
from dblake.redecode.ledger import changes
from dblake.spark.conflicts import tried_again
from dblake.state.rebuild import dumped_in, rebuild
from dblake.state.shape import REBUILD, unbroken
from dblake.state.table import progress

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Restated:
    """A table that was built anew for a run, up to a batch, and the version that made; or why it could not be."""

    table: str
    run: int
    batch: int
    version: int
    error: StateError | None = None


def restate(spark: SparkSession, paths: Paths, frontier: int, behind: Container[str]) -> list[Restated]:
    """Builds anew what stands on events that are there no more.

    A table that is not ``behind`` stands at the ``frontier``, though it may have had no events for long.
    """
    application, restated = Application.redecode(paths.source), []
    for table, runs in sorted(changes(paths).items()):
        path = paths.state(*split_qualified(table))
        now = progress(path, Application.state(paths.source))
        since = [batch for run, batch in runs.items() if run > newest_batch(path, application)]
        if now is None or now.batch is None or not since:
            continue
        batch = now.batch if table in behind else max(now.batch, frontier)
        if min(since) > batch:
            record_batch(path, application, max(runs))
            continue
        logger.warning("table %s is built anew: its events were decoded again", table)
        error = None
        try:
            _build(spark, paths, table, max(runs), batch)
        except StateError as failure:
            logger.error("%s", failure)
            error = failure
        failpoint("state.restated")
        restated.append(Restated(table, max(runs), now.batch, DeltaTable(path).version(), error))
    return restated


def settle(paths: Paths, restated: Sequence[Restated]) -> None:
    """Notes that these stand on the events there are now; before that they are looked at again by every state run."""
    for each in restated:
        if each.error is None:
            record_batch(paths.state(*split_qualified(each.table)), Application.redecode(paths.source), each.run)


@tried_again
def _build(spark: SparkSession, paths: Paths, table: str, run: int, batch: int) -> None:
    path = paths.state(*split_qualified(table))
    with commit_lock(path):
        now = progress(path, Application.state(paths.source))
        assert now is not None and now.batch is not None, "it was there a moment ago"
        # Another state job may have brought it further meanwhile.
        _replace(spark, paths, table, path, run, max(batch, now.batch))


def _replace(spark: SparkSession, paths: Paths, table: str, path: str, run: int, batch: int) -> None:
    versions = [version for version in read_schemas(paths).get(table, []) if version.batch <= batch]
    whole = versions[unbroken([version.schema for version in versions]):] if versions else []
    since = _since(spark, paths, table, versions, whole, batch)
    events = spark.read.format("delta").load(paths.events)
    events = events.where((events["table"] == table) & (events["batch"] <= batch))
    fields = spark.read.format("delta").load(path).schema
    existing = {field.name: field.dataType.simpleString().upper() for field in fields}
    rebuild(events, path, [version.schema for version in whole], since, app=Application.redecode_built(paths.source),
            batch=run, existing=existing)


def _since(
    spark: SparkSession, paths: Paths, table: str, versions: Sequence[SchemaVersion], whole: Sequence[SchemaVersion],
    batch: int,
) -> Position:
    """From where on the events say all: from the first, unless the table was built from a dump since then."""
    if not whole:
        raise StateError(
            f"table {table}: its events refer to a schema that is not in the schemas table",
            next_step="run reconcile from the start for this source",
        )
    if len(whole) == len(versions):
        return Position(1, 0, 0)
    windows = spark.read.format("delta").load(paths.windows).where(f"batch <= {batch}")
    began = dumped_in(windows, table, [version.schema for version in whole], whole[0].since)
    if began is None:
        raise BrokenShape(
            f"table {table}: its events were decoded again, and its shape changed since it was last dumped whole",
            next_step=REBUILD.format(table=table),
        )
    return min(began, whole[0].since)
