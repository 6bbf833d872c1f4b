"""Reading tables in chunks between watermarks (DBLog, section 3.2, algorithm 1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from dblake.base.core.schema import TableSchema

SuppliedRows = Callable[
    [TableSchema, str, Callable[[pa.BinaryArray, TableSchema], None]], tuple[int, tuple[str, ...] | None]
]
"""Delivers rows from elsewhere as if a table had been read.

Gets the table's schema, the payloads' format and where to deliver; returns the number of rows, and the place behind the
last one, None without rows.
"""

HEARTBEAT_ROW = 0
"""The row of the watermark table that heartbeats update, so that an idle log advances. Row n is chunk reader n's."""


@dataclass(frozen=True, slots=True)
class ChunkRequest:
    """Which rows to read: a key range in key order, or given keys. Keys are tuples of canonical text."""

    table: str
    reader: int
    low: str
    """The value of the low watermark that was written before the read."""
    limit: int
    after: tuple[str, ...] | None = None
    """Exclusive lower bound of the range."""
    upto: tuple[str, ...] | None = None
    """Inclusive upper bound of the range."""
    keys: tuple[tuple[str, ...], ...] | None = None
    rows: SuppliedRows | None = None
    """Supplies the rows; the table itself is not read, and ``last_key`` is a place, not a key."""


@dataclass(frozen=True, slots=True)
class ChunkRead:
    """The result of a chunk read; its rows have been delivered already."""

    rows: int
    last_key: tuple[str, ...] | None
    """The key of the last row; None if the chunk is empty."""
    schema: TableSchema
    low_seen: str
    """The reader's watermark row in the chunk's own snapshot.

    Any value but the request's ``low`` means that a lagging server (replica, pooler, proxy) returned the rows.
    """
    snapshot: str | None = None
    """PostgreSQL's ``pg_current_snapshot()`` of the read."""
    schema_changed: bool = False
    """True if the table changed during the read, so that the chunk has to be reread."""


class ChunkReader(Protocol):
    """One connection that writes watermarks and reads chunks, each in a transaction of its own. Takes no locks."""

    format: str
    """The format of the payloads (``landing.columns``); during a read, that of the chunk being read."""

    def mark(self, reader: int, value: str) -> None:
        """Update one row of the watermark table and commit."""

    def beat(self, name: str) -> None:
        """Update the heartbeat row to ``chain_heartbeat`` of ``name`` and its value, in one statement, and commit."""

    def read_mark(self, reader: int) -> str:
        """Return the value of a row of the watermark table, empty if it was never set.

        Raises SourceError if there is no such row.
        """

    def split_points(self, table: str, parts: int, rows: int) -> Sequence[tuple[str, ...]]:
        """Return keys in key order that split a table into at most ``parts`` parts of ``rows`` or more rows each.

        Return an empty sequence if the table is too small, or if the database cannot estimate without a full scan.
        Raises as ``read`` does.
        """

    def read(self, request: ChunkRequest, deliver: Callable[[pa.BinaryArray, TableSchema], None]) -> ChunkRead:
        """Read a chunk and pass its rows to ``deliver`` as they arrive: undecoded payloads and their schema.

        Raises Unsupported for a table without a primary key, SourceError if the connection is lost.
        """

    def close(self) -> None:
        """Close the connection."""


class ChunkSource(Protocol):
    """The tables of a database, read chunk by chunk."""

    def open_reader(self) -> ChunkReader:
        """Open a new connection for watermarks and chunks."""
