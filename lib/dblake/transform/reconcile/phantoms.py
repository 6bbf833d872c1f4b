"""Delete phantoms: keys that earlier events hold and that a dump of the whole table did not return.

Place: end of a micro-batch in which such a dump ends. It is an addition to DBLog, which assumes that every change is in
the log. Rows can vanish without an event (lost log, a detached partition, rows deleted with logging disabled), and no
upsert removes them. Guarantee: a key is deleted exactly if its newest event precedes the dump, is not a delete, and was
visible to the dump's first chunk. So must all its earlier events be, since the newest may be a fill of a row that the
chunk did not see. Such a row no longer exists: a chunk would have returned it, or a later event would explain its
absence. A dump of given keys deletes only keys from that list. A dump of a whole table deletes nothing if more rows
are absent than it may delete (``ChunkEnd.withholds``): it may have read too few.

The keys come as KNOWN rows; ``known_keys`` decides whether it reads them from state or from events. ``compare_keys``
takes the rows of any set of keys, so executors share the work by key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblake.base.core.arrays import join_chunks
from dblake.base.core.op import Op
from dblake.base.core.position import Position
from dblake.base.core.positions import is_older, position_parts
from dblake.base.core.visibility import are_visible
from dblake.base.core.window import Snapshot
from dblake.landing.columns import (
    BATCH,
    CHUNK_ID,
    COMMITTED_AT,
    INCARNATION,
    LANDING,
    LAST_IN_TXN,
    LSN,
    SCHEMA_ID,
    SEQ,
    TABLE,
    TXID,
)
from dblake.payloads.decode.columns import KEY, OP
from dblake.payloads.decode.row_keys import KEY_TEXT, key_text_of
from dblake.transform.events.files import EVENT_COLUMNS, ORIGIN
from dblake.transform.reconcile.key_join import CANDIDATES, CHUNK, IS_ABSENT
from dblake.transform.reconcile.windows import Ending

_AT = pa.struct([(name, pa.int64()) for name in Position.COLUMNS])
_DUMP = "dump"

ENDS = pa.schema([
    pa.field("w_table", pa.string()), pa.field(CHUNK_ID, pa.string()), pa.field(SCHEMA_ID, pa.string()),
    pa.field("end", _AT), pa.field("began", _AT), pa.field("truncated", _AT), pa.field("emptied", pa.bool_()),
    pa.field("snapshot", pa.string()), pa.field("only", pa.list_(pa.string())),
    pa.field(BATCH, pa.int64()), pa.field(TXID, pa.int64()), LANDING.field(COMMITTED_AT),
])


def dump_ends(closing: Iterable[Ending], truncates: Mapping[str, Sequence[Position]]) -> pa.Table:
    """Return one row for each dump that ends among these windows and deletes what it did not return; possibly none.

    ``truncates`` maps a table to the positions of all its truncates. In the result ``truncated`` is the last one before
    the dump began, and ``emptied`` is true if one lies between the dump's begin and end. ``only`` are the keys of a
    dump of given keys, as ``key_text``; null for a whole table.
    """
    rows = []
    for ending in closing:
        row, window, began = ending.row, ending.window, ending.end.dump_start
        if window is None or began is None:
            continue
        removes = ending.end.removes
        end, of_table = Position(row.incarnation, row.lsn, row.seq), truncates.get(row.table, ())
        truncated = max((at for at in of_table if at < began.position), default=None)
        rows.append({
            "w_table": row.table, CHUNK_ID: row.chunk_id, SCHEMA_ID: window.schema_id,
            "end": _struct(end), "began": _struct(began.position), "truncated": _struct(truncated),
            "emptied": any(began.position <= at < end for at in of_table), "snapshot": began.snapshot,
            "only": [key_text_of(list(key)) for key in removes.keys] if removes else None,
            BATCH: row.batch, TXID: row.txid, COMMITTED_AT: row.committed_at,
        })
    return pa.Table.from_pylist(rows, schema=ENDS)


def compare_keys(known: pa.Table, ends: pa.Table) -> pa.Table:
    """Return CANDIDATES: the keys that had a row before each dump began, and whether they are absent since.

    ``known`` are KNOWN rows, all those of each key in it, of which those older than the end of their table's dump
    count. NULL ``op`` marks a key that a chunk returned and whose row was evicted. ``ends`` are those of ``dump_ends``.
    """
    # Truncates have no key. Rows from before the table had a key cannot be identified.
    known = known.filter(pc.is_valid(known[KEY_TEXT])).combine_chunks()
    tables = join_chunks(known[TABLE]).cast(pa.string()).dictionary_encode()
    by_table = {name: code for code, name in enumerate(tables.dictionary.to_pylist())}
    of_table = tables.indices.to_numpy()
    found = [CANDIDATES.empty_table()]
    for end in ends.to_pylist():
        rows = np.flatnonzero(of_table == by_table.get(end["w_table"], -1))
        if len(rows) and not end["emptied"]:
            found.append(_candidates(known.take(pa.array(rows)), end))
    return pa.concat_tables(found)


def removal_events(gone: pa.Table, ends: pa.Table) -> pa.Table:
    """Return the events, with EVENT_COLUMNS, that delete absent CANDIDATES at the positions of their dumps' ends.

    A later dump deletes a key that an earlier one deleted only if a row of it was created in between.
    """
    events = [EVENT_COLUMNS.empty_table()]
    removed: dict[tuple[str, str], Position] = {}
    counts = ends["w_table"].value_counts().to_pylist()
    repeated = {count["values"] for count in counts if count["counts"] > 1}
    for end in sorted(ends.to_pylist(), key=lambda row: _position(row["end"])):
        rows = gone.filter(pc.equal(gone[CHUNK], end[CHUNK_ID]))
        if end["w_table"] in repeated:
            rows = rows.filter(pa.array(list(_is_new(rows, end, removed)), pa.bool_()))
        if rows.num_rows:
            events.append(_deletes(rows.take(pc.sort_indices(rows[KEY_TEXT])), end))
    return pa.concat_tables(events)


def _candidates(known: pa.Table, end: Mapping[str, Any]) -> pa.Table:
    """Compare the keys of one table with one dump of it."""
    at = [known[name].to_numpy() for name in Position.COLUMNS]
    is_before_end = is_older(at, position_parts(_position(end["end"])))
    is_before = is_older(at, position_parts(_position(end["began"])))
    codes = join_chunks(known[KEY_TEXT]).dictionary_encode().indices.to_numpy()
    is_present = np.zeros(int(codes.max()) + 1, np.bool_)
    is_present[codes[is_before_end & ~is_before]] = True
    # A state row lacks its event's transaction id.
    has_txid = pc.is_valid(known[TXID]).to_numpy()
    earlier = np.flatnonzero(is_before & is_before_end & pc.is_valid(known[OP]).to_numpy())
    order = earlier[np.lexsort((has_txid[earlier], *(part[earlier] for part in reversed(at))))]
    newest = np.full(len(is_present), -1, np.int64)
    # Of several values for one place numpy keeps the last.
    newest[codes[order]] = order
    newest = newest[newest >= 0]
    rows, parts = known.take(pa.array(newest)), [part[newest] for part in at]
    is_row = pc.not_equal(rows[OP], Op.DELETE).to_numpy()
    if end["truncated"]:
        is_row &= is_older(position_parts(_position(end["truncated"])), parts)
    if end["snapshot"]:
        # Transaction ids of an earlier incarnation may be another server's; all its transactions have ended.
        txids = pc.fill_null(known[TXID], -1).to_numpy()[earlier]
        is_earlier_life = at[0][earlier] < end["began"][INCARNATION]
        is_hidden = np.zeros(len(is_present), np.bool_)
        is_hidden[codes[earlier[~(is_earlier_life | are_visible(txids, Snapshot.parse(end["snapshot"])))]]] = True
        is_row &= ~is_hidden[codes[newest]]
    if end["only"] is not None:
        is_row &= pc.is_in(rows[KEY_TEXT], pa.array(end["only"], pa.string())).to_numpy()
    columns = {
        CHUNK: pa.repeat(end[CHUNK_ID], len(newest)), TABLE: pa.repeat(end["w_table"], len(newest)),
        **{name: rows[name] for name in (KEY_TEXT, KEY, *Position.COLUMNS)},
        IS_ABSENT: pa.array(~is_present[codes[newest]]),
    }
    return pa.table([columns[name] for name in CANDIDATES.names], schema=CANDIDATES).filter(pa.array(is_row))


def _is_new(rows: pa.Table, end: Mapping[str, Any], removed: dict[tuple[str, str], Position]) -> Iterator[bool]:
    """Yield for each row whether no earlier dump deleted its key since its newest event; note that this one does."""
    for row in rows.select([KEY_TEXT, *Position.COLUMNS]).to_pylist():
        name = end["w_table"], row[KEY_TEXT]
        before = removed.get(name)
        removed[name] = _position(end["end"])
        yield before is None or Position(row[INCARNATION], row[LSN], row[SEQ]) > before


def _deletes(rows: pa.Table, end: Mapping[str, Any]) -> pa.Table:
    """Return delete events of one dump for keys in order."""
    count = rows.num_rows
    same = {
        INCARNATION: end["end"][INCARNATION], LSN: end["end"][LSN], TABLE: end["w_table"], OP: Op.DELETE,
        SCHEMA_ID: end[SCHEMA_ID], TXID: end[TXID], COMMITTED_AT: end[COMMITTED_AT], LAST_IN_TXN: False,
        ORIGIN: _DUMP, CHUNK_ID: end[CHUNK_ID], BATCH: end[BATCH], "partial": False,
    }
    columns = {KEY: rows[KEY], SEQ: pa.array(2 * np.arange(count, dtype=np.int64))}
    return pa.table([
        columns[f.name] if f.name in columns else pa.nulls(count, f.type) if same.get(f.name) is None
        else pa.repeat(pa.scalar(same[f.name], f.type), count) for f in EVENT_COLUMNS
    ], schema=EVENT_COLUMNS)


def _struct(at: Position | None) -> dict[str, int] | None:
    return {INCARNATION: at.incarnation, LSN: at.lsn, SEQ: at.seq} if at else None


def _position(at: Mapping[str, int]) -> Position:
    return Position(at[INCARNATION], at[LSN], at[SEQ])
