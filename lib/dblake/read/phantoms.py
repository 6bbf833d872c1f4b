"""Phantoms of the tail: keys that a dump, which ends there, should have returned and did not.

Place: part of ``tail``. Guarantee: the deletes equal those of ``reconcile.phantoms``: a key is deleted exactly if its
newest event before the dump's end precedes the dump's begin, is not a delete, and was visible to the dump's first
chunk; a dump of given keys deletes only those of them. All earlier events of the table are compared by their keys, so a
caller bounds how many bytes that may be. A dump that lacks more keys than it may delete deletes none.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblake.core.position import Position
from dblake.core.positions import is_older, position_parts
from dblake.core.schema import TableSchema
from dblake.core.window import Snapshot
from dblake.decode.columns import DELETE, TRUNCATE
from dblake.decode.row_keys import key_text, key_text_of
from dblake.events.files import EVENT_COLUMNS
from dblake.events.schema import DUMP
from dblake.landing.control import DumpStart
from dblake.read.event_log import EventLog, Wanted
from dblake.reconcile.windows import Ending
from dblake.state.arrays import join_chunks
from dblake.state.fold import POSITION, key_texts

_KNOWN = ("table", "op", "key", "txid", *POSITION)


def phantoms(ending: Ending, schema: TableSchema, log: EventLog | None, tail: pa.Table) -> pa.Table:
    """Return the events, with EVENT_COLUMNS, that delete what the dump that ends with ``ending`` did not return.

    ``log`` and ``tail`` have all events before it, ``schema`` is the one the dump's last chunk was read under.
    """
    window, began, removes = ending.window, ending.end.dump_start, ending.end.removes
    assert window is not None and began is not None, "the window closes a dump that deletes"
    wanted = Wanted(until=Position(window.high.incarnation, window.high.lsn - 1, 2**62), table=window.table)
    parts = [wanted.filter(tail).select(_KNOWN)]
    parts += [log.read_all(wanted, _KNOWN)] if log else []
    known = pa.concat_tables(parts).combine_chunks()
    if removes:
        only = pa.array([key_text_of(list(key)) for key in removes.keys], pa.string())
        is_truncate = pc.equal(known["op"], TRUNCATE)
        known = known.filter(pc.or_(is_truncate, pc.is_in(join_chunks(key_text(join_chunks(known["key"]))), only)))
    known = _since_truncate(known)
    gone = _gone(known, schema, began)
    if ending.end.max_removed is not None:
        before = Wanted(until=Position(began.incarnation, began.lsn - 1, 2**62))
        earlier = before.filter(known.append_column("batch", pa.repeat(1, known.num_rows)))
        if ending.end.withholds(len(gone), len(_gone(earlier, schema, began))):
            gone = []
    # The order of reconcile: by the entries of the key.
    keys = sorted(gone, key=lambda key: sorted(key.items()))
    rows = [_event(ending, schema, key, number) for number, key in enumerate(keys)]
    return pa.Table.from_pylist(rows, EVENT_COLUMNS)


def _since_truncate(known: pa.Table) -> pa.Table:
    truncates = known.filter(pc.equal(known["op"], TRUNCATE)).select(POSITION).to_pylist()
    if truncates:
        last = max(Position(*row.values()) for row in truncates)
        known = Wanted(after=last).filter(known.append_column("batch", pa.repeat(1, known.num_rows)))
    return known.filter(pc.not_equal(known["op"], TRUNCATE))


def _gone(known: pa.Table, schema: TableSchema, began: DumpStart) -> list[dict[str, str | None]]:
    """Return the keys whose newest event precedes the dump, is no delete, and was visible to its first chunk."""
    if not known.num_rows:
        return []
    texts = key_texts(join_chunks(known["key"]), schema.primary_key)
    # Rows from before the table had its key cannot be identified.
    identified = np.flatnonzero(pc.is_valid(texts).to_numpy(zero_copy_only=False))
    codes = texts.dictionary_encode().indices.fill_null(-1).to_numpy()
    at = [known[name].to_numpy() for name in POSITION]
    order = np.lexsort((at[2], at[1], at[0]))
    order = order[np.isin(order, identified)]
    newest = np.full(int(codes.max(initial=-1)) + 1, -1, np.int64)
    # Of several values for one place numpy keeps the last.
    newest[codes[order]] = order
    newest = newest[newest >= 0]
    rows = known.take(pa.array(newest))
    parts = [rows[name].to_numpy() for name in POSITION]
    candidates = is_older(parts, position_parts(began.position))
    candidates &= pc.not_equal(rows["op"], DELETE).to_numpy()
    if began.snapshot:
        candidates &= _visible(rows["txid"], Snapshot.parse(began.snapshot)) | (parts[0] < began.incarnation)
    return [dict(key) for key in rows.filter(pa.array(candidates))["key"].to_pylist()]


def _visible(txids: pa.ChunkedArray, snapshot: Snapshot) -> np.ndarray:
    """Return True where a transaction was visible; one without an id is."""
    ids = pc.fill_null(txids, -1).to_numpy()
    seen: np.ndarray = (ids < snapshot.xmax) & ~np.isin(ids, np.array(snapshot.xip, np.int64))
    return seen


def _event(ending: Ending, schema: TableSchema, key: dict[str, str | None], number: int) -> dict[str, object]:
    row = ending.row
    return {
        "incarnation": row.incarnation, "lsn": row.lsn, "seq": 2 * number, "table": row.table, "op": DELETE,
        "key": list(key.items()), "schema_id": schema.schema_id, "txid": row.txid, "committed_at": row.committed_at,
        "last_in_txn": False, "origin": DUMP, "chunk_id": row.chunk_id, "batch": row.batch, "partial": False,
    }
