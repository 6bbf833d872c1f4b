"""Keys of landing rows, decoded alone: what the window rule and the end of a dump compare.

First step of reconcile for windows that close (DBLog, algorithm 1, steps 3 to 5). The functions turn landing's parts
into Arrow batches and run in the driver or in Spark's workers; rows come in no particular order. Payloads end here:
only keys, and the names of columns that partial images carry, leave.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblake.decode.columns import DECODED, DECODER_INPUT, DELETE, KEY, OP, READ
from dblake.decode.row_keys import CARRIED, KEY_TEXT, carried_columns, key_text, key_text_of
from dblake.landing.columns import CHUNK_ID, INCARNATION, LSN, SEQ, TABLE, TXID
from dblake.reconcile.batch_summary import Part
from dblake.reconcile.plan import Plan
from dblake.reconcile.task import chunk_rows, decode_chunk, decode_log, landed_rows, log_rows, slices
from dblake.reconcile.window_index import WindowIndex

#: What a chunk window needs to know of an event in it: ``chunk_id`` is the window's number, ``key_text`` is null for a
#: truncate, ``carried`` names the columns of a partial image and is null for any other.
IN_WINDOW = pa.schema(
    [DECODED.field(CHUNK_ID), DECODED.field(OP), pa.field(KEY_TEXT, pa.string()),
     pa.field(CARRIED, pa.list_(pa.string()))]
)
#: What it needs to know of a chunk row.
CHUNK_KEYS = pa.schema([DECODED.field(CHUNK_ID), pa.field(KEY_TEXT, pa.string())])
#: What the end of a dump needs to know of an event: which key, when, and whether a row was left.
KNOWN = pa.schema(
    [*(DECODED.field(name) for name in (TABLE, OP, TXID, INCARNATION, LSN, SEQ)), pa.field(KEY_TEXT, pa.string()),
     DECODED.field(KEY)]
)

STATE_COLUMNS = ("_key", "_incarnation", "_lsn", "_seq", "_deleted")
KeyedTable = tuple[str, tuple[str, ...]]
"""A table's qualified name and its primary key."""


def in_window_keys(parts: Iterable[Part], plan: Plan) -> Iterator[pa.RecordBatch]:
    """Yield IN_WINDOW rows: log rows of any batch up to the last, once for each closing window that holds them.

    Only rows that a window holds are decoded. A row's events share its window: a watermark is alone in its transaction.
    """
    windows = WindowIndex([closing.window for closing in plan.windows])
    for landed in landed_rows(parts, DECODER_INPUT.names):
        rows = log_rows(landed, 0, plan.last)
        for part in slices(windows.rows_in_windows(_plain(rows))):
            decoded = decode_log(part, plan)
            yield pa.RecordBatch.from_arrays(
                [decoded.column(CHUNK_ID), decoded.column(OP), key_text(decoded.column(KEY)), carried_columns(decoded)],
                schema=IN_WINDOW,
            )


def chunk_keys(parts: Iterable[Part], plan: Plan, windows: Collection[int]) -> Iterator[pa.RecordBatch]:
    """Yield CHUNK_KEYS rows: the keys that the chunks of some windows returned."""
    for number, decoded in _decoded_chunks(parts, plan, windows):
        keys = key_text(decoded.column(KEY))
        yield pa.RecordBatch.from_arrays([pa.repeat(str(number), len(keys)), keys], schema=CHUNK_KEYS)


def returned_keys(parts: Iterable[Part], plan: Plan, windows: Collection[int]) -> Iterator[pa.RecordBatch]:
    """Yield KNOWN rows: the keys that the chunks of some windows returned, at the windows' high watermarks.

    ``op`` is null where the plan evicts the row: it was returned, but is no event.
    """
    for number, decoded in _decoded_chunks(parts, plan, windows):
        high, keys = plan.windows[number].high, key_text(decoded.column(KEY))
        is_event = pa.repeat(number not in plan.truncated, len(keys))
        if number in plan.evicted:
            is_event = pc.and_(is_event, pc.invert(pc.is_in(keys, plan.evicted[number])))
        columns = {
            TABLE: pa.repeat(plan.windows[number].window.table, len(keys)), KEY: decoded.column(KEY), KEY_TEXT: keys,
            OP: pc.if_else(is_event, pa.scalar(READ), pa.scalar(None, pa.string())),
            TXID: pa.nulls(len(keys), pa.int64()),
            INCARNATION: pa.repeat(high.incarnation, len(keys)), LSN: pa.repeat(high.lsn, len(keys)),
            SEQ: decoded.column(SEQ),
        }
        yield pa.RecordBatch.from_arrays([columns[name] for name in KNOWN.names], schema=KNOWN)


def log_keys(parts: Iterable[Part], plan: Plan, tables: Collection[str]) -> Iterator[pa.RecordBatch]:
    """Yield KNOWN rows: the new log events of some tables."""
    wanted = pa.array(list(tables), pa.string())
    for landed in landed_rows(parts, DECODER_INPUT.names):
        rows = log_rows(landed, plan.first, plan.last)
        for part in slices(rows.filter(pc.is_in(rows.column(TABLE), wanted))):
            decoded = decode_log(part, plan)
            columns = {name: decoded.column(name) for name in KNOWN.names if name != KEY_TEXT}
            columns[KEY_TEXT] = key_text(decoded.column(KEY))
            yield pa.RecordBatch.from_arrays([columns[name] for name in KNOWN.names], schema=KNOWN)


def state_keys(parts: Iterable[Part], tables: Mapping[str, KeyedTable]) -> Iterator[pa.RecordBatch]:
    """Yield KNOWN rows: the keys in files of state tables, by the file's path, at their newest events."""
    for part in parts:
        table, primary_key = tables[part.path]
        for rows in landed_rows([part], STATE_COLUMNS):
            count, keys = rows.num_rows, rows.column("_key")
            single = len(primary_key) == 1
            values = None if single else [json.loads(key) for key in keys.to_pylist()]
            texts = keys if values is None else pa.array(map(key_text_of, values), pa.string())
            items = keys if values is None else pa.array([text for key in values for text in key], pa.string())
            ends = pa.array(np.arange(count + 1, dtype=np.int32) * len(primary_key), pa.int32())
            names = pa.array(list(primary_key) * count, pa.string())
            deleted = rows.column("_deleted")
            columns = {
                TABLE: pa.repeat(table, count), KEY: pa.MapArray.from_arrays(ends, names, items), KEY_TEXT: texts,
                OP: pc.if_else(deleted, pa.scalar(DELETE), pa.scalar(READ)), TXID: pa.nulls(count, pa.int64()),
                INCARNATION: rows.column("_incarnation"), LSN: rows.column("_lsn"), SEQ: rows.column("_seq"),
            }
            yield pa.RecordBatch.from_arrays([columns[name] for name in KNOWN.names], schema=KNOWN)


def _decoded_chunks(
    parts: Iterable[Part], plan: Plan, windows: Collection[int]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    for landed in landed_rows(parts):
        for number, rows in chunk_rows(landed, plan):
            if number in windows:
                for part in slices(rows):
                    yield number, decode_chunk(part, plan, keys_alone=True)


def _plain(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.cast(DECODER_INPUT)
