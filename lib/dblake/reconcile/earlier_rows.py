"""Which tables have rows from before their dumps began: only those can have phantoms.

Place: end of a micro-batch in which dumps end, before ``phantoms``. Guarantee: a table that is left out has no earlier
row in what was compared; one that is returned may have none. Most first dumps are left out, at the cost of reading
three small columns, so that no keys are decoded or compared for them and Spark need not start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dblake.core.position import Position
from dblake.lake.files import filesystem, group_bounds
from dblake.landing.columns import BATCH, INCARNATION, KIND, LSN, TABLE
from dblake.reconcile.batch_summary import Part
from dblake.reconcile.plan import Plan
from dblake.reconcile.task import landed_rows, log_rows
from dblake.reconcile.windows import Ending

Beginnings = Mapping[str, Position]
"""The position from which on a table's dumps, the newest of them, returned every key."""

_PLACE = (TABLE, INCARNATION, LSN)


def beginnings(ended: Iterable[Ending]) -> Beginnings:
    """Return where the dumps began that end here and delete what they did not return, by table."""
    began: dict[str, Position] = {}
    for ending in ended:
        if start := ending.end.dump_start:
            table = ending.row.table
            began[table] = max(began.get(table, start.position), start.position)
    return began


def tables_before_in_landing(parts: Iterable[Part], plan: Plan, began: Beginnings) -> set[str]:
    """Return the tables of which the micro-batch has earlier log rows, or chunk rows of windows that closed earlier."""
    high = {(closing.window.table, closing.high) for closing in plan.windows}
    found = {table for table, at in high if table in began and at <= began[table]}
    for rows in landed_rows(parts, [*_PLACE, KIND, BATCH]):
        found |= _tables_before(log_rows(rows, plan.first, plan.last), began)
    return found


def tables_before_in_events(parts: Iterable[Part], began: Beginnings) -> set[str]:
    """Return the tables of which files of events have earlier rows."""
    return set[str]().union(*(_tables_before(rows, began) for rows in landed_rows(parts, _PLACE)))


def has_row_before(files: Sequence[str], began: Position) -> bool:
    """Return whether a state table's files may hold earlier rows, by their statistics."""
    for path in files:
        system, inside = filesystem(path)
        with pq.ParquetFile(inside, filesystem=system) as parquet:
            for group in range(parquet.num_row_groups):
                low, _ = group_bounds(parquet.metadata.row_group(group), ("_incarnation", "_lsn"))
                # A row group without statistics may hold anything.
                if (low.get("_incarnation", 0), low.get("_lsn", 0)) <= (began.incarnation, began.lsn):
                    return True
    return False


def _tables_before(rows: pa.RecordBatch, began: Beginnings) -> set[str]:
    tables = rows.column(TABLE).dictionary_encode()
    names, codes = tables.dictionary.to_pylist(), tables.indices.to_numpy()
    if not names:
        return set()
    starts = [began.get(name) for name in names]
    # No row precedes incarnation 0.
    of_table = np.array([(at.incarnation, at.lsn) if at else (0, 0) for at in starts], np.int64)[codes]
    incarnation, lsn = rows.column(INCARNATION).to_numpy(), rows.column(LSN).to_numpy()
    earlier = (incarnation < of_table[:, 0]) | ((incarnation == of_table[:, 0]) & (lsn <= of_table[:, 1]))
    return {names[code] for code in np.unique(codes[earlier])}
