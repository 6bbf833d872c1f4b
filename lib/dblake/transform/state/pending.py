"""Whether state has anything to do, by the Delta logs and the statistics in them: no Spark, and no events are read.

Place: before ``run``, which does the work. Guarantee: the answer is "no" only if no event is newer than the frontier.
Moreover, no table is behind or missing, and none rests on events that a redecode has replaced.
"""

from __future__ import annotations

import pyarrow.compute as pc

from dblake.base.core.names import split_qualified
from dblake.base.lake.frontier import read_frontier
from dblake.base.lake.layout import Paths
from dblake.base.lake.log import Application, newest_batch
from dblake.base.lake.tables import has_table, list_files, open_table
from dblake.transform.redecode.changed_tables import read_changed_tables

_NEWEST = "max.batch"


def folded_batch(paths: Paths) -> int | None:
    """Return the batch that state has reached if there is nothing to fold or rebuild; None if there may be work."""
    if not has_table(paths.events):
        return 0
    # Before events are opened, so that they are at least as far.
    frontier = read_frontier(paths)
    if frontier.behind or has_events_after(paths, frontier.batch):
        return None
    changed = read_changed_tables(paths)
    application = Application.redecode(paths.source)
    for table in {*frontier.versions, *changed}:
        path = paths.state(*split_qualified(table))
        if not has_table(path):
            return None
        if table in changed and max(changed[table]) > newest_batch(path, application):
            return None
    return frontier.batch


def has_events_after(paths: Paths, batch: int) -> bool:
    """Return False if no file of events holds a later batch; a file without statistics may hold one."""
    files = list_files(open_table(paths.events))
    if not files.num_rows:
        return False
    if _NEWEST not in files.column_names or files[_NEWEST].null_count:
        return True
    newest: int = pc.max(files[_NEWEST]).as_py()
    return newest > batch
