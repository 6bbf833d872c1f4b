"""The comparisons of keys that the window rule and the end of a dump consist of, for rows of any kind.

Place: between ``microbatch``, which composes the rule once, and its two implementations: ``arrow_keys`` compares in
this process, ``spark_keys`` on executors. Both return the same rows; the property tests run both.

Guarantee: a chunk row survives exactly if no event in its window has its key; then it is what the table held at the
high watermark. A row whose key has only partial images in the window may hold the only copy of a column: it becomes a
fill, reduced to the columns that none of those images carried. Any other row is evicted. A delete in the window always
evicts, since the row read may precede the delete. A create needs no rule of its own: a chunk row read before the create
was deleted in between. Only log events evict, never another chunk's rows. A row that moved to another key, with partial
images only, becomes a fill of the key that it has at the end (``followed_rows``).

Applying the result to rows is left to ``task``, what a key is made of to ``keys``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self, TypeVar

import pyarrow as pa

from dblake.landing.columns import CHUNK_ID, INCARNATION, LSN, SEQ, TABLE
from dblake.payloads.decode.columns import DECODED
from dblake.transform.reconcile.batch_summary import RowGroups
from dblake.transform.reconcile.plan import Plan

EVENTS, PARTIAL, MOVED, TRUNCATED = "events", "partial", "moved", "truncated"
CHUNK, IS_ABSENT = "chunk", "is_absent"

#: How many events, partial images and partial creates of key changes a window holds, and whether a truncate is among
#: them.
TOUCHED = pa.schema([
    pa.field(CHUNK_ID, pa.string()), pa.field(EVENTS, pa.int64()), pa.field(PARTIAL, pa.int64()),
    pa.field(MOVED, pa.int64()), pa.field(TRUNCATED, pa.bool_()),
])
#: The keys that had a row before a dump began, at their newest events from before it, and whether the dump, or a later
#: event, lacks them. ``chunk`` is the id of the dump's last chunk.
CANDIDATES = pa.schema([
    pa.field(CHUNK, pa.string()), pa.field(TABLE, pa.string()), pa.field("key_text", pa.string()),
    DECODED.field("key"), *(DECODED.field(name) for name in (INCARNATION, LSN, SEQ)), pa.field(IS_ABSENT, pa.bool_()),
])
#: How many candidates a dump has, and how many of them are absent.
COUNTS = pa.schema([(CHUNK, pa.string()), ("candidates", pa.int64()), ("absent", pa.int64())])

Decode = Callable[[Iterable[RowGroups]], Iterator[pa.RecordBatch]]
Keys = TypeVar("Keys")


@dataclass(frozen=True, slots=True)
class KeySource:
    """Files with keys, and how they become rows of a schema."""

    parts: Sequence[RowGroups]
    columns: pa.Schema
    decode: Decode


class KeyJoin(Protocol[Keys]):
    """Compares keys. A context manager: what it returned is valid inside the block."""

    @property
    def is_in_process(self) -> bool:
        """Whether the keys are held by this process."""

    def __enter__(self) -> Self:
        """Begin the block."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release what the comparisons hold."""

    def read(self, source: KeySource) -> Keys | None:
        """Return the rows of a source; None if it is known to be empty."""

    def to_arrow(self, rows: Keys) -> pa.Table:
        """Return rows as a table of this process; for few rows."""

    def touched_windows(self, in_window: Keys) -> pa.Table:
        """Return TOUCHED rows: the windows that hold events. ``in_window`` are IN_WINDOW rows."""

    def follow(self, events: Keys, with_snapshot: Collection[str]) -> Keys:
        """Return FOLLOWED rows. ``events`` are all ROW_EVENTS rows of some windows (``followed_rows.follow``)."""

    def evict(
        self, plan: Plan, chunk_keys: Keys, in_window: Keys, touched: pa.Table, followed: Keys | None
    ) -> Plan:
        """Return the plan with the keys of chunk rows that have events in their window.

        Every other chunk row survives unchanged. ``chunk_keys`` are CHUNK_KEYS rows, ``touched`` is the result of
        ``touched_windows``, ``followed`` that of ``follow``, None if no row moved.
        """

    def candidates(self, known: Sequence[Keys], ends: pa.Table) -> Keys:
        """Return CANDIDATES rows of the dumps of ``ends``; ``known`` are KNOWN rows (``phantoms.compare_keys``)."""

    def count_candidates(self, candidates: Keys) -> pa.Table:
        """Return COUNTS rows."""

    def removals(self, candidates: Keys, ends: pa.Table, withheld: Collection[str]) -> Keys:
        """Return the events that delete absent candidates, except those of the chunks ``withheld``."""
