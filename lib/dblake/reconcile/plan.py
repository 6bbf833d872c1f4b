"""What every task of a micro-batch is given beside its files: schemas, closing windows, evicted keys.

Small and immutable, because Spark ships one copy to every executor. A task looks up here what becomes of a chunk row;
nothing else passes from the join of keys to the payloads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property

import pyarrow as pa

from dblake.core.position import Position
from dblake.core.schema import TableSchema
from dblake.core.window import ChunkWindow
from dblake.decode.row_keys import CARRIED, KEY_TEXT, WHOLE
from dblake.landing.columns import CHUNK_ID
from dblake.reconcile.windows import ChunkName, Ending


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


@dataclass(frozen=True)
class Plan:
    """The new batches (``first`` to ``last``) and what the window rule decided about chunk rows.

    Windows go by their number. ``truncated`` windows lose all their rows, ``evicted`` ones the rows of these keys.
    ``fills`` are keys of which only partial images are in the window: their rows keep the columns that none carried.
    """

    first: int
    last: int
    schemas: Mapping[str, TableSchema]
    windows: tuple[ClosingWindow, ...] = ()
    truncated: frozenset[int] = frozenset()
    evicted: Mapping[int, pa.Array] = field(default_factory=dict)
    fills: Mapping[int, Mapping[str, frozenset[str]]] = field(default_factory=dict)

    @cached_property
    def numbers(self) -> dict[ChunkName, int]:
        """The number of each chunk's window."""
        return {closing.chunk: number for number, closing in enumerate(self.windows)}

    def with_truncated(self, numbers: Iterable[int]) -> Plan:
        """Return a plan in which these windows hold a truncate of their table."""
        return replace(self, truncated=self.truncated | frozenset(numbers))

    def with_evictions(self, evictions: pa.Table) -> Plan:
        """Return a plan with evicted keys.

        ``evictions`` has ``chunk_id`` (a window's number), ``key_text``, ``whole`` and ``carried``.
        """
        evicted: dict[int, list[str]] = {}
        fills: dict[int, dict[str, frozenset[str]]] = {}
        for row in evictions.to_pylist():
            number, carried = int(row[CHUNK_ID]), frozenset(row[CARRIED] or ())
            names = self.schemas[self.windows[number].window.schema_id].names
            if row[WHOLE] or carried.issuperset(names):
                evicted.setdefault(number, []).append(row[KEY_TEXT])
            else:
                fills.setdefault(number, {})[row[KEY_TEXT]] = carried
        keys = {number: pa.array(texts, pa.string()) for number, texts in evicted.items()}
        return replace(self, evicted=keys, fills=fills)


def closing_windows(endings: Sequence[Ending]) -> tuple[ClosingWindow, ...]:
    """Return the windows among these that close, in order; discarded chunks have none."""
    return tuple(ClosingWindow.of(ending) for ending in endings if ending.window)
