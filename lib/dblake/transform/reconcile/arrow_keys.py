"""Compare keys in this process, on Arrow tables: for live readings, and wherever Spark would take longer to start.

Place: an implementation of ``key_join``. Guarantee: memory for the keys compared, not for rows; ``choose_join``
bounds how many these are.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from types import TracebackType
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from dblake.base.core.arrays import join_chunks
from dblake.base.core.op import Op
from dblake.landing.columns import CHUNK_ID
from dblake.payloads.decode.columns import OP
from dblake.payloads.decode.row_keys import CARRIED, KEY_TEXT, WHOLE
from dblake.transform.reconcile.followed_rows import FOLLOWED, MOVED_TO, OLD_KEY_TEXT, follow, window_keys
from dblake.transform.reconcile.key_join import CHUNK, COUNTS, IS_ABSENT, MOVED, PARTIAL, TOUCHED, TRUNCATED, KeySource
from dblake.transform.reconcile.keys import IS_MOVED
from dblake.transform.reconcile.phantoms import compare_keys, removal_events
from dblake.transform.reconcile.plan import EVICTIONS, Plan


class ArrowKeyJoin:
    """Compares keys in this process."""

    is_in_process = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def read(self, source: KeySource) -> pa.Table | None:
        """Decode a source."""
        rows = pa.Table.from_batches(source.decode(source.parts), source.columns)
        return rows if rows.num_rows else None

    def to_arrow(self, rows: pa.Table) -> pa.Table:
        """Return the rows themselves."""
        return rows

    def touched_windows(self, in_window: pa.Table) -> pa.Table:
        """Count events, partial images and truncates by window."""
        flagged = pa.table({
            CHUNK_ID: in_window[CHUNK_ID], PARTIAL: pc.is_valid(in_window[CARRIED]),
            MOVED: in_window[IS_MOVED], TRUNCATED: pc.equal(in_window[OP], Op.TRUNCATE),
        })
        counted = flagged.group_by(CHUNK_ID).aggregate(
            [([], "count_all"), (PARTIAL, "sum"), (MOVED, "sum"), (TRUNCATED, "max")]
        )
        return counted.select(
            [CHUNK_ID, "count_all", f"{PARTIAL}_sum", f"{MOVED}_sum", f"{TRUNCATED}_max"]
        ).rename_columns(TOUCHED.names).cast(TOUCHED)

    def follow(self, events: pa.Table, with_snapshot: Collection[str]) -> pa.Table:
        """Follow the rows of all windows together."""
        moved = events.filter(pc.is_valid(events[OLD_KEY_TEXT]))
        connected = pa.concat_arrays([join_chunks(moved[name]) for name in (KEY_TEXT, OLD_KEY_TEXT)])
        return follow(events.filter(pc.is_in(events[KEY_TEXT], connected)), with_snapshot)

    def evict(
        self, plan: Plan, chunk_keys: pa.Table, in_window: pa.Table, touched: pa.Table, followed: pa.Table | None
    ) -> Plan:
        """Join the keys; the events that ``touched`` counts are those of ``in_window``."""
        names = [CHUNK_ID, KEY_TEXT]
        events = in_window.filter(pc.is_valid(in_window[KEY_TEXT]))
        whole = pc.or_(pc.equal(events[OP], Op.DELETE), pc.is_null(events[CARRIED]))
        by_key = events.select(names).append_column(WHOLE, whole).group_by(names).aggregate([(WHOLE, "max")])
        evicted = chunk_keys.join(by_key.rename_columns([*names, WHOLE]), names, join_type="inner").combine_chunks()
        if not pc.sum(touched[PARTIAL]).as_py():
            none = pa.nulls(evicted.num_rows, pa.list_(pa.string()))
            return plan.with_evictions(evicted.append_column(CARRIED, none).append_column(MOVED_TO, none))
        carried: dict[tuple[str, str], set[str]] = {}
        for row in events.filter(pc.invert(whole)).select([*names, CARRIED]).to_pylist():
            carried.setdefault((row[CHUNK_ID], row[KEY_TEXT]), set()).update(row[CARRIED])
        pairs = zip(evicted[CHUNK_ID].to_pylist(), evicted[KEY_TEXT].to_pylist(), strict=True)
        lists = pa.array([sorted(carried.get(pair, ())) for pair in pairs], pa.list_(pa.string()))
        evicted = evicted.append_column(CARRIED, lists)
        return plan.with_evictions(_moved(evicted, FOLLOWED.empty_table() if followed is None else followed))

    def candidates(self, known: Sequence[pa.Table], ends: pa.Table) -> pa.Table:
        """Compare the keys of all tables together."""
        return compare_keys(pa.concat_tables(known), ends)

    def count_candidates(self, candidates: pa.Table) -> pa.Table:
        """Count candidates by dump."""
        counted = candidates.group_by(CHUNK).aggregate([([], "count_all"), (IS_ABSENT, "sum")])
        return counted.select([CHUNK, "count_all", f"{IS_ABSENT}_sum"]).rename_columns(COUNTS.names).cast(COUNTS)

    def removals(self, candidates: pa.Table, ends: pa.Table, withheld: Collection[str]) -> pa.Table:
        """Return events with EVENT_COLUMNS."""
        is_withheld = pc.is_in(candidates[CHUNK], pa.array(sorted(withheld), pa.string()))
        return removal_events(candidates.filter(pc.and_not(candidates[IS_ABSENT], is_withheld)), ends)


def _moved(evicted: pa.Table, followed: pa.Table) -> pa.Table:
    """Return evicted rows with EVICTIONS: those that moved keep what no event of theirs carried."""
    names, known = (window_keys(rows[CHUNK_ID], rows[KEY_TEXT]) for rows in (evicted, followed))
    place = pc.index_in(names, value_set=known)
    is_moved = pc.is_valid(place)
    theirs, moved_to = (join_chunks(followed[name]).take(place) for name in (CARRIED, MOVED_TO))
    columns = {
        WHOLE: pc.and_not(evicted[WHOLE], is_moved), MOVED_TO: moved_to,
        CARRIED: pc.if_else(is_moved, theirs, join_chunks(evicted[CARRIED])),
    }
    columns |= {name: evicted[name] for name in (CHUNK_ID, KEY_TEXT)}
    return pa.table([columns[name] for name in EVICTIONS.names], schema=EVICTIONS)
