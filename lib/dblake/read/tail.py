"""The tail: landing batches that are not reconciled yet, decoded in this process and committed nowhere.

Place: beside reconcile, for live readings. Guarantee: the events are those that reconcile will append, up to a position
that ends a transaction: tasks decode them, and the window rule (DBLog, algorithm 1, steps 5 and 6) is evaluated here on
Arrow tables, the end of a dump by ``phantoms``. The tail ends after about as many bytes of landing files as its caller
allows, and before the end of a dump whose table has more bytes of events, because all their keys would be read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblake.core.errors import LandingGap
from dblake.core.position import Position
from dblake.core.schema import TableSchema
from dblake.decode.columns import DELETE, TRUNCATE
from dblake.decode.row_keys import CARRIED, KEY_TEXT, WHOLE
from dblake.events.files import EVENT_COLUMNS
from dblake.lake.layout import Paths
from dblake.lake.schemas import SchemaVersion
from dblake.lake.tables import has_table
from dblake.landing.columns import CHUNK_ID
from dblake.read.event_log import EventLog, Wanted, before_transaction
from dblake.read.phantoms import phantoms
from dblake.read.small_files import merged_files
from dblake.reconcile.batch_summary import Part, Survey, chunk_parts, file_parts, joined, survey
from dblake.reconcile.keys import CHUNK_KEYS, IN_WINDOW, chunk_keys, in_window_keys
from dblake.reconcile.landing_files import LandingFiles
from dblake.reconcile.plan import Plan, closing_windows
from dblake.reconcile.task import decode_events
from dblake.reconcile.windows import ChunkName, Ending, parse_endings, require_row_counts
from dblake.state.fold import POSITION


@dataclass(frozen=True)
class Tail:
    """Decoded events in order, with the columns of EVENT_COLUMNS, and the schemas that landed with them.

    ``is_bounded`` is True if complete transactions that landed are missing at the end.
    """

    events: pa.Table
    schemas: tuple[SchemaVersion, ...]
    is_bounded: bool

    @property
    def position(self) -> Position | None:
        """The newest event's position."""
        if not self.events.num_rows:
            return None
        return Position(*(self.events[name][-1].as_py() for name in POSITION))


def read_tail(
    paths: Paths, log: EventLog | None, schemas: Mapping[str, TableSchema], max_bytes: int
) -> Tail | None:
    """Decode the batches after those of ``log``; None if there are none.

    ``schemas`` are those known so far, by id. Raises LandingGap if landing lacks a batch.
    """
    done = log.batch if log else 0
    if not has_table(paths.landing):
        return None
    landing = LandingFiles(paths.landing, paths.source)
    newest = landing.newest_batch
    if newest <= done:
        return None
    last = landing.portions(done + 1, newest, max_bytes)[0]
    with merged_files(landing.files(done + 1, last)) as files:
        tail = _decode(landing, survey(files, done + 1, last), log, schemas, last, max_bytes)
    return tail if last == newest else replace(tail, is_bounded=True)


def _decode(
    landing: LandingFiles, found: Survey, log: EventLog | None, schemas: Mapping[str, TableSchema], last: int,
    max_bytes: int,
) -> Tail:
    """Decode the batches after those of ``log`` up to ``last``."""
    done = log.batch if log else 0
    missing = sorted(set(range(done + 1, last + 1)) - found.epochs.keys())
    if missing:
        raise LandingGap(
            f"landing lacks batch {missing[0]}; events reach batch {done}",
            next_step="run reconcile, which lists all missing batches",
        )
    known = {**schemas, **{row.schema.schema_id: row.schema for row in found.schemas}}
    closing = [ending for ending in parse_endings(found.watermarks) if ending.window]
    plan = Plan(done + 1, last, known, closing_windows(closing))
    chunks = _chunks(landing, closing, found, done)
    if plan.windows:
        plan = _evicting(landing, plan, chunks)
    batches = list(decode_events(joined(chunks, found.parts), plan))
    events = _ordered(pa.Table.from_batches(batches, EVENT_COLUMNS))
    events, is_cut = _with_phantoms(events, closing, known, log, max_bytes)
    events = _complete(events)
    versions = tuple(
        SchemaVersion(row.batch, row.schema, Position(row.incarnation, row.lsn, row.seq)) for row in found.schemas
    )
    return Tail(events, versions, is_cut)


def _chunks(landing: LandingFiles, closing: Sequence[Ending], found: Survey, done: int) -> list[Part]:
    """Find the chunk rows of the windows that close, in any batch."""
    counts: Counter[ChunkName] = Counter(found.chunk_rows)
    before = [ending for ending in closing if ending.end.first_batch <= done]
    parts: list[Part] = []
    if before:
        first = min(ending.end.first_batch for ending in before)
        counted, parts = chunk_parts(
            landing.files(first, done), first, done, [ending.row.chunk_id for ending in before]
        )
        counts.update(counted)
    require_row_counts(closing, counts)
    return joined(parts, found.chunk_parts)


def _evicting(landing: LandingFiles, plan: Plan, chunks: Sequence[Part]) -> Plan:
    """Return a plan that evicts the chunk rows whose keys have events in their windows."""
    files = landing.files_in_windows([closing.window for closing in plan.windows], plan.last)
    in_window = pa.Table.from_batches(in_window_keys(file_parts(file.path for file in files), plan), IN_WINDOW)
    if not in_window.num_rows:
        return plan
    truncated = in_window.filter(pc.equal(in_window["op"], TRUNCATE))[CHUNK_ID]
    plan = plan.with_truncated(int(number) for number in pc.unique(truncated).to_pylist())
    windows = {int(number) for number in pc.unique(in_window[CHUNK_ID]).to_pylist()} - plan.truncated
    keys = pa.Table.from_batches(chunk_keys(chunks, plan, windows), CHUNK_KEYS)
    return plan.with_evictions(evicted_keys(keys, in_window))


def evicted_keys(chunk_keys: pa.Table, in_window: pa.Table) -> pa.Table:
    """Do what ``reconcile.dedupe.evicted_keys`` does, with the same columns, on Arrow tables."""
    names = [CHUNK_ID, KEY_TEXT]
    events = in_window.filter(pc.is_valid(in_window[KEY_TEXT]))
    whole = pc.or_(pc.equal(events["op"], DELETE), pc.is_null(events[CARRIED]))
    flagged = events.select(names).append_column(WHOLE, whole)
    by_key = flagged.group_by(names).aggregate([(WHOLE, "max")]).rename_columns([*names, WHOLE])
    touched = chunk_keys.join(by_key, names, join_type="inner").combine_chunks()
    partial = events.filter(pc.invert(whole))
    carried: dict[tuple[str, str], set[str]] = {}
    # Partial images in windows are few.
    for row in partial.select([*names, CARRIED]).to_pylist():
        carried.setdefault((row[CHUNK_ID], row[KEY_TEXT]), set()).update(row[CARRIED])
    pairs = zip(touched[CHUNK_ID].to_pylist(), touched[KEY_TEXT].to_pylist(), strict=True)
    lists = pa.array([sorted(carried.get(pair, ())) for pair in pairs], pa.list_(pa.string()))
    return touched.append_column(CARRIED, lists)


def _ordered(rows: pa.Table) -> pa.Table:
    incarnation, lsn, seq = (rows[name].to_numpy() for name in POSITION)
    return rows.take(pa.array(np.lexsort((seq, lsn, incarnation))))


def _with_phantoms(
    events: pa.Table, closing: Sequence[Ending], schemas: Mapping[str, TableSchema], log: EventLog | None,
    max_bytes: int,
) -> tuple[pa.Table, bool]:
    """Add the deletes at the ends of dumps.

    A dump of a table with more bytes of events than allowed ends the tail before its end; then the result is True.
    """
    for ending in sorted((e for e in closing if e.end.dump_start), key=lambda e: (e.row.incarnation, e.row.lsn)):
        assert ending.window is not None, "discarded chunks are no windows"
        table = ending.row.table
        if log and log.estimate_bytes(Wanted(table=table)) > max_bytes:
            return Wanted(until=before_transaction(ending.window.high)).filter(events), True
        schema = schemas[ending.window.schema_id]
        # An earlier dump's deletes count for the next one.
        events = _ordered(pa.concat_tables([events, phantoms(ending, schema, log, events)]))
    return events, False


def _complete(events: pa.Table) -> pa.Table:
    """Return the events of complete transactions."""
    of_log = events.filter(pc.equal(events["origin"], "log"))
    if of_log.num_rows:
        last = of_log.slice(of_log.num_rows - 1).to_pylist()[0]
        if not last["last_in_txn"]:
            at = Position(last["incarnation"], last["lsn"], last["seq"])
            events = Wanted(until=before_transaction(at)).filter(events)
    return events
