"""A state table rebuilt from a dump, after a schema change that its rows cannot follow.

A change of the key, or to a type that does not hold the former values, makes a new shape. Events from before the change
do not fit a table of that shape. A dump of the whole table that ended after the change does, with all events from the
change on. Until such a dump is done the table stays as it is, and behind; then one commit replaces it.
``shape.first_compatible_version`` finds the change; which dump fits, ``dumped_in`` finds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from dblake.base.core.position import Position
from dblake.base.core.schema import TableSchema
from dblake.base.lake.layout import Paths
from dblake.base.lake.query import query_rows, quoted
from dblake.transform.events.predicate import Predicate
from dblake.transform.events.reader import EventReader
from dblake.transform.spark.session import Session
from dblake.transform.state.events import KeyFilter
from dblake.transform.state.executors import write_new
from dblake.transform.state.files import Columns
from dblake.transform.state.key_ranges import fold_ranges
from dblake.transform.state.merge import write_first
from dblake.transform.state.runner import LocalRunner, TaskRunner
from dblake.transform.state.shape import shape_of, widened_to_fit
from dblake.transform.state.survey import survey
from dblake.transform.state.table import has_odd_names, replace, replace_odd_names
from dblake.transform.state.upsert import Rewritten, first_rows

_READERS = 4
"""Threads that read the events of a table whose rows pass through this process."""


def closed_windows(paths: Paths, table: str, until: int) -> list[dict[str, Any]]:
    """Return the closed chunk windows of a table up to a landing batch, with what ``dumped_in`` needs."""
    return query_rows(
        paths.windows, "SELECT dump_id, schema_id, incarnation, high_lsn, began FROM t "
                       f"WHERE \"table\" = {quoted(table)} AND status = 'closed' AND batch <= {until}",
    )


def dumped_in(
    windows: Iterable[Mapping[str, Any]], versions: Sequence[TableSchema], changed_at: Position
) -> Position | None:
    """Return where the newest finished dump of the whole table began whose chunks all have one of these schemas.

    ``windows`` are the table's closed windows: ``dump_id, schema_id, incarnation, high_lsn, began``. A dump that ended
    before ``changed_at`` does not count: its rows have changed since, though their shape may be the present one again.
    """
    ids = {schema.schema_id for schema in versions}
    dumps: dict[str, list[Mapping[str, Any]]] = {}
    for window in windows:
        dumps.setdefault(window["dump_id"], []).append(window)
    limit = (changed_at.incarnation, changed_at.lsn)
    began = [
        Position(at["incarnation"], at["lsn"], at["seq"])
        for chunks in dumps.values()
        if all(chunk["schema_id"] in ids for chunk in chunks)
        and max((chunk["incarnation"], chunk["high_lsn"]) for chunk in chunks) >= limit
        for chunk in chunks if (at := chunk["began"])
    ]
    return max(began, default=None)


def rebuild(
    session: Session, runner: TaskRunner, paths: Paths, path: str, versions: Sequence[TableSchema], since: Position,
    until: int, *, app: str, batch: int, existing: Mapping[str, str] | None = None,
) -> None:
    """Replace the table at ``path`` by what its events from ``since`` on, up to landing batch ``until``, leave.

    ``versions`` are compatible with each other. ``existing`` are columns and types that the table keeps where they fit.
    """
    shape = widened_to_fit(shape_of(versions), existing or {})
    # Rows of the old key are among the newer ones while the log is behind the chunks that were read.
    fits = KeyFilter(frozenset(schema.schema_id for schema in versions), shape.primary_key)
    wanted = Predicate(until_batch=until, since=since, tables=(shape.table,), rows=fits)
    events = EventReader.open(paths.events)
    found = survey(events, wanted)
    truncated_at = max(found.truncates.values(), default=None)

    if has_odd_names(shape):
        # Spark's writer takes the rows from this process, so the folding is here, too, in bounded memory.
        runner = LocalRunner(_READERS)
    folded = partial(fold_ranges, events, wanted, shape, truncated_at, found.size, runner)
    if has_odd_names(shape):
        replace_odd_names(session, path, folded(partial(first_rows, shape=shape)), shape, app=app, batch=batch)
        return

    def write(columns: Columns) -> Rewritten:
        if runner.is_in_process:
            return write_first(path, columns, shape, folded(lambda rows: rows))
        return write_new(path, columns, shape, folded)

    replace(path, write, shape, app=app, batch=batch)
