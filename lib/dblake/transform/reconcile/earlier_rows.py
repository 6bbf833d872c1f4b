"""Which tables have rows from before their dumps began that the dumps may not have returned: those may have phantoms.

Place: end of a micro-batch in which dumps end, before ``phantoms``. Guarantee: a table that is left out has no phantom
in what was compared; one that is returned may have none. Most first dumps are left out, so that Spark need not compare
keys for them: either no row is earlier, by three small columns, or only log rows of the micro-batch are, and the chunks
in it returned their keys.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dblake.base.core.position import Position
from dblake.base.lake.files import filesystem, group_bounds
from dblake.landing.columns import BATCH, CHUNK_ID, INCARNATION, KIND, LSN, TABLE
from dblake.payloads.decode.columns import DECODER_INPUT, KEY
from dblake.payloads.decode.row_keys import KEY_TEXT, key_text
from dblake.transform.reconcile.batch_summary import RowGroups
from dblake.transform.reconcile.keys import chunk_keys
from dblake.transform.reconcile.plan import Plan
from dblake.transform.reconcile.task import decode_log, landed_rows, log_rows, slices
from dblake.transform.reconcile.windows import Ending

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


def tables_before_in_landing(parts: Iterable[RowGroups], plan: Plan, began: Beginnings) -> set[str]:
    """Return the tables of which the micro-batch has earlier log rows, or chunk rows of windows that closed earlier."""
    high = {(closing.window.table, closing.high) for closing in plan.windows}
    found = {table for table, at in high if table in began and at <= began[table]}
    for rows in landed_rows(parts, [*_PLACE, KIND, BATCH]):
        found |= _tables_before(log_rows(rows, plan.first, plan.last), began)
    return found


def tables_before_in_events(parts: Iterable[RowGroups], began: Beginnings) -> set[str]:
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


def tables_with_unreturned_keys(
    log: Iterable[RowGroups], chunks: Iterable[RowGroups], plan: Plan, ended: Sequence[Ending], tables: Collection[str]
) -> set[str]:
    """Return those of ``tables`` of which a log row is earlier whose key no chunk of the micro-batch returned.

    Only chunks between the beginning and the end of the table's dump count. A table with several dumps that end here,
    or with earlier chunk rows, is returned always.
    """
    began = {table: at for table, at in beginnings(ended).items() if table in tables}
    unclear = {table for table, count in Counter(ending.row.table for ending in ended).items() if count > 1}
    unclear |= {table for closing in plan.windows
                if (table := closing.window.table) in began and closing.high <= began[table]}
    until = {ending.row.table: Position(ending.row.incarnation, ending.row.lsn, ending.row.seq) for ending in ended}
    windows = {
        number: closing.window.table for number, closing in enumerate(plan.windows)
        if (table := closing.window.table) in began and began[table] <= closing.high < until[table]
    }
    earlier, returned = defaultdict[str, list[pa.Array]](list), defaultdict[str, list[pa.Array]](list)
    for landed in landed_rows(log, DECODER_INPUT.names):
        rows = log_rows(landed, plan.first, plan.last)
        for part in slices(rows.filter(pa.array(_are_earlier(rows, began)))):
            decoded = decode_log(part, plan)
            for table in pc.unique(decoded.column(TABLE)).to_pylist():
                of_table = decoded.filter(pc.equal(decoded.column(TABLE), table))
                earlier[table].append(pc.drop_null(key_text(of_table.column(KEY))))
    for keys in chunk_keys(chunks, plan, windows.keys()):
        if keys.num_rows:
            returned[windows[int(keys.column(CHUNK_ID)[0].as_py())]].append(keys.column(KEY_TEXT))
    return {
        table for table in began if table in unclear or not pc.all(
            pc.is_in(_joined(earlier[table]), _joined(returned[table])), min_count=0
        ).as_py()
    }


def _joined(texts: Sequence[pa.Array]) -> pa.Array:
    return pa.concat_arrays([pa.array([], pa.string()), *texts])


def _tables_before(rows: pa.RecordBatch, began: Beginnings) -> set[str]:
    found: list[str] = pc.unique(rows.column(TABLE).filter(pa.array(_are_earlier(rows, began)))).to_pylist()
    return set(found)


def _are_earlier(rows: pa.RecordBatch, began: Beginnings) -> np.ndarray:
    """Return whether each row is from before the dumps of its table began."""
    tables = rows.column(TABLE).dictionary_encode()
    names, codes = tables.dictionary.to_pylist(), tables.indices.to_numpy()
    if not names:
        return np.zeros(0, np.bool_)
    starts = [began.get(name) for name in names]
    # No row precedes incarnation 0.
    of_table = np.array([(at.incarnation, at.lsn) if at else (0, 0) for at in starts], np.int64)[codes]
    incarnation, lsn = rows.column(INCARNATION).to_numpy(), rows.column(LSN).to_numpy()
    earlier: np.ndarray = (incarnation < of_table[:, 0]) | ((incarnation == of_table[:, 0]) & (lsn <= of_table[:, 1]))
    return earlier
