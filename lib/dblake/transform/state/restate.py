"""State tables rebuilt because their events were decoded again, before newer events are folded into them.

State never returns to an older position, so an event that decoding again changed at its position would not reach it.
One commit therefore replaces the table by what its events leave, up to the table's present batch. The table's own log
records the redecode that it was rebuilt for, so a state run that ended in between continues. Columns dropped at the
source hold what the remaining events have. Folding on from there is ``run``'s.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Sequence
from dataclasses import dataclass

from dblake.base.core.errors import IncompatibleSchemaChange, StateError
from dblake.base.core.failpoints import failpoint
from dblake.base.core.names import split_qualified
from dblake.base.core.position import Position
from dblake.base.lake.layout import Paths
from dblake.base.lake.locks import commit_lock
from dblake.base.lake.log import Application, newest_batch, record_batch
from dblake.base.lake.schemas import SCHEMA_LOST, SchemaVersion, read_schemas
from dblake.base.lake.tables import open_table
from dblake.transform.redecode.changed_tables import read_changed_tables
from dblake.transform.spark.conflicts import retry_on_conflict
from dblake.transform.spark.session import Session
from dblake.transform.state.files import table_columns
from dblake.transform.state.rebuild import closed_windows, dumped_in, rebuild
from dblake.transform.state.runner import TaskRunner
from dblake.transform.state.shape import REBUILD, first_compatible_version
from dblake.transform.state.table import progress

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Restated:
    """A table rebuilt for a run, up to a batch, and the version that this made; or why it could not be rebuilt."""

    table: str
    run: int
    batch: int
    version: int
    error: StateError | None = None


def restate(
    session: Session, runner: TaskRunner, paths: Paths, frontier: int, behind: Container[str]
) -> list[Restated]:
    """Rebuild the tables that rest on events which decoding again has replaced.

    A table that is not ``behind`` is at the ``frontier``, though it may have had no events for long.
    """
    application, restated = Application.redecode(paths.source), []
    for table, runs in sorted(read_changed_tables(paths).items()):
        path = paths.state(*split_qualified(table))
        now = progress(path, Application.state(paths.source))
        since = [batch for run, batch in runs.items() if run > newest_batch(path, application)]
        if now is None or now.batch is None or not since:
            continue
        batch = now.batch if table in behind else max(now.batch, frontier)
        if min(since) > batch:
            record_batch(path, application, max(runs))
            continue
        logger.warning("table %s is rebuilt: its events were decoded again", table)
        error = None
        try:
            _build(session, runner, paths, table, max(runs), batch)
        except StateError as failure:
            logger.error("%s", failure)  # noqa: TRY400 - a traceback may hold values
            error = failure
        failpoint("state.restated")
        restated.append(Restated(table, max(runs), now.batch, open_table(path).version(), error))
    return restated


def settle(paths: Paths, restated: Sequence[Restated]) -> None:
    """Record that these tables rest on the present events; before that every state run rebuilds them again."""
    for each in restated:
        if each.error is None:
            record_batch(paths.state(*split_qualified(each.table)), Application.redecode(paths.source), each.run)


@retry_on_conflict
def _build(session: Session, runner: TaskRunner, paths: Paths, table: str, run: int, batch: int) -> None:
    path = paths.state(*split_qualified(table))
    with commit_lock(path):
        now = progress(path, Application.state(paths.source))
        assert now is not None and now.batch is not None, "the caller found the table"
        # Another state job may have brought it further.
        _replace(session, runner, paths, table, path, run, max(batch, now.batch))


def _replace(
    session: Session, runner: TaskRunner, paths: Paths, table: str, path: str, run: int, batch: int
) -> None:
    versions = [version for version in read_schemas(paths).get(table, []) if version.batch <= batch]
    whole = versions[first_compatible_version([version.schema for version in versions]):] if versions else []
    since = _since(paths, table, versions, whole, batch)
    rebuild(session, runner, paths, path, [version.schema for version in whole], since, batch,
            app=Application.redecode_built(paths.source), batch=run, existing=table_columns(open_table(path)).types)


def _since(
    paths: Paths, table: str, versions: Sequence[SchemaVersion], whole: Sequence[SchemaVersion], batch: int
) -> Position:
    """From which position the events suffice: the first, unless the table was rebuilt from a dump since then."""
    if not whole:
        raise StateError(
            f"table {table}: its events refer to a schema that is not in the schemas table",
            next_step=SCHEMA_LOST,
        )
    if len(whole) == len(versions):
        return Position(1, 0, 0)
    windows = closed_windows(paths, table, batch)
    began = dumped_in(windows, [version.schema for version in whole], whole[0].since)
    if began is None:
        raise IncompatibleSchemaChange(
            f"table {table}: its events were decoded again, and its shape changed since it was last dumped whole",
            next_step=REBUILD.format(table=table),
        )
    return min(began, whole[0].since)
