"""Keys of landing rows, decoded alone: what the window rule and the end of a dump compare.

First step of reconcile for windows that close (DBLog, algorithm 1, steps 3 to 5). The functions turn landing's parts
into Arrow batches and run in the driver or in Spark's workers; rows come in no particular order. Payloads end here:
only keys, and the names of columns that partial images carry, leave.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblake.base.core.op import Op
from dblake.base.core.position import Position
from dblake.base.core.visibility import are_visible
from dblake.landing.columns import BATCH, CHUNK_ID, INCARNATION, LSN, SEQ, TABLE, TXID
from dblake.payloads.decode.columns import DECODED, DECODER_INPUT, KEY, KEY_BEFORE, OP, PARTIAL
from dblake.payloads.decode.row_keys import CARRIED, KEY_TEXT, carried_columns, key_text, key_text_of
from dblake.transform.reconcile.batch_summary import RowGroups
from dblake.transform.reconcile.followed_rows import IS_SEEN, MOVED_TO, OLD_KEY_TEXT, ROW_EVENTS
from dblake.transform.reconcile.plan import ClosingWindow, Plan
from dblake.transform.reconcile.task import (
    chunk_rows,
    decode_chunk,
    decode_log,
    landed_rows,
    log_rows,
    slices,
    with_new_keys,
)
from dblake.transform.reconcile.window_index import WindowIndex

IS_MOVED = "is_moved"
#: What a chunk window needs to know of an event in it: ``chunk_id`` is the window's number, ``key_text`` is null for a
#: truncate, ``carried`` names the columns of a partial image and is null for any other. ``is_moved`` is true for a
#: partial create that a key change made.
IN_WINDOW = pa.schema(
    [DECODED.field(CHUNK_ID), DECODED.field(OP), pa.field(KEY_TEXT, pa.string()),
     pa.field(CARRIED, pa.list_(pa.string())), pa.field(IS_MOVED, pa.bool_())]
)
#: What it needs to know of a chunk row.
CHUNK_KEYS = pa.schema([DECODED.field(CHUNK_ID), pa.field(KEY_TEXT, pa.string())])
#: What the end of a dump needs to know of an event: which key, when, and whether a row was left.
KNOWN = pa.schema(
    [*(DECODED.field(name) for name in (TABLE, OP, TXID, INCARNATION, LSN, SEQ)), pa.field(KEY_TEXT, pa.string()),
     DECODED.field(KEY)]
)

#: Where a table was truncated.
TRUNCATES = pa.schema([DECODED.field(name) for name in (TABLE, INCARNATION, LSN, SEQ)])

EVENT_KEY_COLUMNS = (TABLE, OP, KEY, TXID, INCARNATION, LSN, SEQ, BATCH)
STATE_COLUMNS = ("_key", "_incarnation", "_lsn", "_seq", "_deleted")
_NONE = np.iinfo(np.int64).max
KeyedTable = tuple[str, tuple[str, ...]]
"""A table's qualified name and its primary key."""


def in_window_keys(parts: Iterable[RowGroups], plan: Plan) -> Iterator[pa.RecordBatch]:
    """Yield IN_WINDOW rows: log rows of any batch up to the last, once for each closing window that holds them.

    Only rows that a window holds are decoded. A row's events share its window: a watermark is alone in its transaction.
    """
    for decoded in _decoded_in_windows(parts, plan):
        yield pa.RecordBatch.from_arrays(
            [decoded.column(CHUNK_ID), decoded.column(OP), key_text(decoded.column(KEY)), carried_columns(decoded),
             _are_moved(decoded)], schema=IN_WINDOW,
        )


def row_events(parts: Iterable[RowGroups], plan: Plan, windows: Collection[int]) -> Iterator[pa.RecordBatch]:
    """Yield ROW_EVENTS rows: the events in some windows, as ``followed_rows`` needs them."""
    for rows in _decoded_in_windows(parts, plan, pa.array(map(str, windows), pa.string())):
        moved = _are_moved(rows)
        keys = rows.column(KEY)
        columns = {
            KEY_TEXT: key_text(keys), CARRIED: carried_columns(rows),
            OLD_KEY_TEXT: pc.if_else(moved, key_text(rows.column(KEY_BEFORE)), None),
            MOVED_TO: pc.if_else(moved, pa.ListArray.from_arrays(keys.offsets, keys.items), None),
            IS_SEEN: pa.array(_are_seen(rows, plan)),
        }
        yield pa.RecordBatch.from_arrays(
            [columns[name] if name in columns else rows.column(name) for name in ROW_EVENTS.names], schema=ROW_EVENTS,
        )


def chunk_keys(parts: Iterable[RowGroups], plan: Plan, windows: Collection[int]) -> Iterator[pa.RecordBatch]:
    """Yield CHUNK_KEYS rows: the keys that the chunks of some windows returned."""
    for number, decoded in _decoded_chunks(parts, plan, windows):
        keys = key_text(decoded.column(KEY))
        yield pa.RecordBatch.from_arrays([pa.repeat(str(number), len(keys)), keys], schema=CHUNK_KEYS)


def returned_keys(parts: Iterable[RowGroups], plan: Plan, windows: Collection[int]) -> Iterator[pa.RecordBatch]:
    """Yield KNOWN rows: the keys that the chunks of some windows returned, at the windows' high watermarks.

    ``op`` is null where the plan evicts the row: it was returned, but is no event. A row that is an event of another
    key is there under both.
    """
    for number, decoded in _decoded_chunks(parts, plan, windows):
        evicted, keys = plan.evicted(number), key_text(decoded.column(KEY))
        is_moved = pc.is_in(keys, pa.array(list(evicted.moved), pa.string()))
        is_event = pa.repeat(number not in plan.truncated, len(keys))
        is_event = pc.and_(is_event, pc.invert(pc.or_(pc.is_in(keys, evicted.keys), is_moved)))
        yield _returned(decoded, plan.windows[number], is_event)
        if number not in plan.truncated and pc.any(is_moved, min_count=0).as_py():
            moved = with_new_keys(decoded.filter(is_moved), evicted, plan.primary_key(number))
            yield _returned(moved, plan.windows[number], pa.repeat(True, moved.num_rows))


def log_keys(parts: Iterable[RowGroups], plan: Plan, tables: Collection[str]) -> Iterator[pa.RecordBatch]:
    """Yield KNOWN rows: the new log events of some tables."""
    wanted = pa.array(list(tables), pa.string())
    for landed in landed_rows(parts, DECODER_INPUT.names):
        rows = log_rows(landed, plan.first, plan.last)
        for part in slices(rows.filter(pc.is_in(rows.column(TABLE), wanted))):
            decoded = decode_log(part, plan)
            columns = {name: decoded.column(name) for name in KNOWN.names if name != KEY_TEXT}
            columns[KEY_TEXT] = key_text(decoded.column(KEY))
            yield pa.RecordBatch.from_arrays([columns[name] for name in KNOWN.names], schema=KNOWN)


@dataclass(frozen=True, slots=True)
class EventBounds:
    """Which events of one table count: those after batch ``folded``, and those that a dump may not have seen.

    A dump may not have seen events before ``began``, in its incarnation, whose transaction is ``xmin`` or a later one.
    """

    folded: int = 0
    began: Position | None = None
    xmin: int = 0


def event_keys(
    parts: Iterable[RowGroups], tables: Mapping[str, EventBounds], limits: Mapping[str, int]
) -> Iterator[pa.RecordBatch]:
    """Yield KNOWN rows: the events of some tables, of files whose batches end before ``limits``, by path."""
    for rows in _bounded_events(parts, tables, limits):
        columns = [key_text(rows.column(KEY)) if name == KEY_TEXT else rows.column(name) for name in KNOWN.names]
        yield pa.RecordBatch.from_arrays(columns, schema=KNOWN)


def event_truncates(
    parts: Iterable[RowGroups], tables: Mapping[str, EventBounds], limits: Mapping[str, int]
) -> Iterator[pa.RecordBatch]:
    """Yield TRUNCATES rows: the truncates of some tables that state has not folded in."""
    unseen = {table: EventBounds(bounds.folded) for table, bounds in tables.items()}
    for rows in _bounded_events(parts, unseen, limits, [name for name in EVENT_KEY_COLUMNS if name != KEY]):
        truncates = rows.filter(pc.equal(rows.column(OP), Op.TRUNCATE))
        yield truncates.select(TRUNCATES.names).cast(TRUNCATES)


def state_keys(parts: Iterable[RowGroups], tables: Mapping[str, KeyedTable]) -> Iterator[pa.RecordBatch]:
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
                OP: pc.if_else(deleted, pa.scalar(Op.DELETE), pa.scalar(Op.READ)), TXID: pa.nulls(count, pa.int64()),
                INCARNATION: rows.column("_incarnation"), LSN: rows.column("_lsn"), SEQ: rows.column("_seq"),
            }
            yield pa.RecordBatch.from_arrays([columns[name] for name in KNOWN.names], schema=KNOWN)


def _bounded_events(
    parts: Iterable[RowGroups], tables: Mapping[str, EventBounds], limits: Mapping[str, int],
    columns: Sequence[str] = EVENT_KEY_COLUMNS,
) -> Iterator[pa.RecordBatch]:
    """Yield the events that count, as far as ``columns`` go."""
    for part in parts:
        limit = limits.get(part.path)
        for rows in landed_rows([part], columns):
            names = rows.column(TABLE).dictionary_encode()
            bounds = [tables.get(name) for name in names.dictionary.to_pylist()]
            codes, batch = names.indices.to_numpy(), rows.column(BATCH).to_numpy()
            if not any(bounds):
                continue
            counts = batch > np.array([each.folded if each else _NONE for each in bounds], np.int64)[codes]
            counts |= _may_be_unseen(rows, bounds, codes)
            if limit is not None:
                counts &= batch < limit
            if counts.any():
                yield pa.RecordBatch.from_struct_array(rows.filter(pa.array(counts)).to_struct_array())


def _may_be_unseen(rows: pa.RecordBatch, bounds: Sequence[EventBounds | None], codes: np.ndarray) -> np.ndarray:
    """Return the events that precede a dump and whose transaction its first chunk may not have seen."""
    began = [each.began if each else None for each in bounds]
    if not any(began):
        return np.zeros(len(codes), np.bool_)
    incarnation, lsn, xmin = (
        np.array(values, np.int64)[codes] for values in (
            [at.incarnation if at else _NONE for at in began], [at.lsn if at else 0 for at in began],
            [each.xmin if each and at else _NONE for each, at in zip(bounds, began, strict=True)],
        )
    )
    txid = pc.fill_null(rows.column(TXID), -1).to_numpy()
    unseen: np.ndarray = (
        (rows.column(INCARNATION).to_numpy() == incarnation) & (rows.column(LSN).to_numpy() < lsn) & (txid >= xmin)
    )
    return unseen


def _decoded_chunks(
    parts: Iterable[RowGroups], plan: Plan, windows: Collection[int]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    for landed in landed_rows(parts):
        for number, rows in chunk_rows(landed, plan):
            if number in windows:
                for part in slices(rows):
                    yield number, decode_chunk(part, plan, keys_alone=True)


def _returned(rows: pa.RecordBatch, closing: ClosingWindow, is_event: pa.BooleanArray) -> pa.RecordBatch:
    """Return chunk rows as KNOWN at their window's high watermark."""
    count, high, keys = rows.num_rows, closing.high, rows.column(KEY)
    columns = {
        TABLE: pa.repeat(closing.window.table, count), KEY: keys, KEY_TEXT: key_text(keys),
        OP: pc.if_else(is_event, pa.scalar(Op.READ), pa.scalar(None, pa.string())), TXID: pa.nulls(count, pa.int64()),
        INCARNATION: pa.repeat(high.incarnation, count), LSN: pa.repeat(high.lsn, count), SEQ: rows.column(SEQ),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in KNOWN.names], schema=KNOWN)


def _decoded_in_windows(
    parts: Iterable[RowGroups], plan: Plan, numbers: pa.Array | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield log rows, decoded, once for each closing window that holds them; with ``numbers`` for these alone."""
    windows = WindowIndex([closing.window for closing in plan.windows])
    for landed in landed_rows(parts, DECODER_INPUT.names):
        rows = windows.rows_in_windows(_plain(log_rows(landed, 0, plan.last)))
        if numbers is not None:
            rows = rows.filter(pc.is_in(rows.column(CHUNK_ID), numbers))
        for part in slices(rows):
            yield decode_log(part, plan)


def _are_moved(decoded: pa.RecordBatch) -> pa.BooleanArray:
    """Return which rows are partial creates that a key change made."""
    return pc.and_(decoded.column(PARTIAL), pc.is_valid(decoded.column(KEY_BEFORE)))


def _are_seen(rows: pa.RecordBatch, plan: Plan) -> np.ndarray:
    """Return which rows in windows the snapshot of their window saw."""
    numbers = rows.column(CHUNK_ID).to_numpy(zero_copy_only=False)
    txids = pc.fill_null(rows.column(TXID), -1).to_numpy()
    seen = np.zeros(len(numbers), np.bool_)
    for number in np.unique(numbers):
        if snapshot := plan.windows[int(number)].window.snapshot:
            seen |= (numbers == number) & are_visible(txids, snapshot)
    return seen


def _plain(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.cast(DECODER_INPUT)
