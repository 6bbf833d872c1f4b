"""What every task of a micro-batch is given beside its files: schemas, closing windows, evicted keys.

Small and immutable, because Spark ships one copy to every executor: many evicted keys are in files, by window. A task
looks up here what becomes of a chunk row; nothing else passes from the join of keys to the payloads.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dblake.base.core.arrays import join_chunks
from dblake.base.core.position import Position
from dblake.base.core.schema import TableSchema
from dblake.base.core.window import ChunkWindow
from dblake.base.lake.files import filesystem
from dblake.base.lake.storage import join
from dblake.landing.columns import CHUNK_ID
from dblake.payloads.decode.row_keys import CARRIED, KEY_TEXT, WHOLE
from dblake.transform.reconcile.followed_rows import MOVED_TO
from dblake.transform.reconcile.windows import ChunkName, Ending

#: Keys of chunk rows that have events in their window, which ``chunk_id`` numbers. If ``whole`` is false, all events of
#: the key are partial images, and ``carried`` lists the columns they carried. ``moved_to`` is the key at the end of the
#: window of a row that left its key: then ``carried`` are the columns of its events under all its keys.
EVICTIONS = pa.schema([
    pa.field(CHUNK_ID, pa.string()), pa.field(KEY_TEXT, pa.string()), pa.field(WHOLE, pa.bool_()),
    pa.field(CARRIED, pa.list_(pa.string())), pa.field(MOVED_TO, pa.list_(pa.string())),
])


@dataclass(frozen=True, slots=True)
class ClosingWindow:
    """A chunk window whose high watermark arrived, with what its surviving rows take over from that watermark."""

    window: ChunkWindow
    batch: int
    txid: int | None
    committed_at: datetime | None

    @classmethod
    def of(cls, ending: Ending) -> ClosingWindow:
        """Build from the high watermark's row; the chunk must not be discarded."""
        if ending.window is None:
            raise ValueError(f"chunk {ending.row.chunk_id} was discarded")
        return cls(ending.window, ending.row.batch, ending.row.txid, ending.row.committed_at)

    @property
    def high(self) -> Position:
        """The high watermark's position, which surviving chunk rows take."""
        return self.window.high

    @property
    def chunk(self) -> ChunkName:
        """What binds chunk rows to this window."""
        return self.window.chunk_id, self.window.table, self.window.lease_epoch


@dataclass(frozen=True, slots=True)
class Evicted:
    """What events in a window evict of its chunk: the rows of ``keys``, and columns of the rows of ``fills``.

    ``fills`` are keys of which only partial images are in the window: their rows keep the columns that none carried,
    which ``fills`` lists by key. Those of them in ``moved`` have a new key, whose values it has in key order.
    """

    keys: pa.Array
    fills: Mapping[str, frozenset[str]] = field(default_factory=dict)
    moved: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """The new batches (``first`` to ``last``) and what the window rule decided about chunk rows.

    Windows go by their number. ``truncated`` windows lose all their rows. ``evictions`` has what ``evicted`` returns,
    or the file that holds it as rows of EVICTIONS.
    """

    first: int
    last: int
    schemas: Mapping[str, TableSchema]
    windows: tuple[ClosingWindow, ...] = ()
    truncated: frozenset[int] = frozenset()
    evictions: Mapping[int, Evicted | str] = field(default_factory=dict)

    @cached_property
    def numbers(self) -> dict[ChunkName, int]:
        """The number of each chunk's window."""
        return {closing.chunk: number for number, closing in enumerate(self.windows)}

    @cached_property
    def with_snapshot(self) -> frozenset[str]:
        """The numbers, as texts, of the windows whose chunks recorded a snapshot."""
        return frozenset(str(number) for number, closing in enumerate(self.windows) if closing.window.snapshot)

    def primary_key(self, number: int) -> tuple[str, ...]:
        """Return the key columns, in key order, of the rows of a window's chunk."""
        return self.schemas[self.windows[number].window.schema_id].primary_key

    def evicted(self, number: int) -> Evicted:
        """Return what is evicted from a window's chunk."""
        evicted = self.evictions.get(number)
        if evicted is None:
            return _NOTHING
        return self._evicted(number, read_evictions(evicted)) if isinstance(evicted, str) else evicted

    def with_truncated(self, numbers: Iterable[int]) -> Plan:
        """Return a plan in which these windows hold a truncate of their table."""
        return replace(self, truncated=self.truncated | frozenset(numbers))

    def with_evictions(self, rows: pa.Table) -> Plan:
        """Return a plan with evicted keys, given as rows of EVICTIONS."""
        rows = rows.sort_by(CHUNK_ID)
        windows = rows[CHUNK_ID].to_numpy()
        bounds = [0, *np.flatnonzero(windows[1:] != windows[:-1]) + 1, len(windows)] if len(windows) else []
        evictions: dict[int, Evicted | str] = {}
        for start, end in pairwise(bounds):
            number = int(windows[start])
            evictions[number] = self._evicted(number, rows.slice(start, end - start))
        return replace(self, evictions=evictions)

    def with_eviction_files(self, files: Mapping[int, str]) -> Plan:
        """Return a plan whose evicted keys are in files, by window."""
        return replace(self, evictions=files)

    def _evicted(self, number: int, rows: pa.Table) -> Evicted:
        names = self.schemas[self.windows[number].window.schema_id].names
        partial = rows.filter(pc.invert(rows[WHOLE])).select([KEY_TEXT, CARRIED, MOVED_TO]).to_pylist()
        moved = {row[KEY_TEXT]: tuple(row[MOVED_TO]) for row in partial if row[MOVED_TO]}
        fills = {row[KEY_TEXT]: frozenset(row[CARRIED]) for row in partial}
        # The events of a key change carry the new key.
        fills |= {key: fills[key].union(self.primary_key(number)) for key in moved}
        complete = [key for key, carried in fills.items() if carried.issuperset(names)]
        keys = [join_chunks(rows.filter(rows[WHOLE])[KEY_TEXT]), pa.array(complete, pa.string())]
        left = fills.keys() - set(complete)
        return Evicted(
            pa.concat_arrays(keys), {key: fills[key] for key in left}, {key: moved[key] for key in left & moved.keys()}
        )


_NOTHING = Evicted(pa.array([], pa.string()))


def write_evictions(folder: str, rows: pa.Table) -> str:
    """Write the evicted keys of one window as a file in a folder; return its path."""
    system, inside = filesystem(folder)
    name = f"{uuid.uuid4()}.parquet"
    pq.write_table(rows, f"{inside}/{name}", filesystem=system)
    return join(folder, name)


@lru_cache(maxsize=4)
def read_evictions(path: str) -> pa.Table:
    """Read a file of ``write_evictions``. Each batch of a chunk's rows reads the same file."""
    system, inside = filesystem(path)
    return pq.read_table(inside, filesystem=system)


def closing_windows(endings: Sequence[Ending]) -> tuple[ClosingWindow, ...]:
    """Return the windows among these that close, in order; discarded chunks have none."""
    return tuple(ClosingWindow.of(ending) for ending in endings if ending.window)
