"""A reading: every table of a source as of one position that ends a transaction.

Place: between the tables of the right half and everything that queries them (``sql``, ``dblake.open``, ``changes``).
Guarantee: the rows of all tables of a reading, and its events, are those of the same prefix of history; a table that
cannot be read there is named in ``lagging`` and has its own position. Each table is resolved on first use. Running
queries over the rows is left to the caller.

How to combine a ``TableReading``: with ``version`` None the rows are those of ``changes`` that are not ``_deleted``.
Otherwise they are the rows of the state table's ``version`` that are not ``_deleted`` and, for a table with ``keys``,
whose ``_key`` is not in ``changes``; and the rows of ``changes`` that are not ``_deleted``. The state table may lack
columns of ``columns`` (NULL there), have further ones, or narrower types: cast to ``schema``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa

from dblake.core.position import Position
from dblake.lake.layout import Paths
from dblake.state.shape import Shape


@dataclass(frozen=True)
class TableReading:
    """One table of a reading.

    ``table`` is its qualified name, ``path`` its state table. ``version`` is the Delta version to read; None if no row
    of state counts. ``keys`` are the key columns, none for a table that is only appended to. ``changes`` has, for every
    key with newer events, its row at the position: ``_key``, the other columns of state, ``_deleted``, and the columns
    of ``shape`` with their types; None if nothing is newer than ``version``. ``position`` is the reading's, or an
    earlier one if the table lags.
    """

    table: str
    path: str
    version: int | None
    keys: tuple[str, ...]
    changes: pa.Table | None
    position: Position
    shape: Shape

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the table at the position, in the source's order."""
        return tuple(column.name for column in self.shape.current)

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of ``columns``."""
        raise NotImplementedError


@dataclass(frozen=True)
class EventsReading:
    """The events of a reading: those of the events table's ``version`` at or before ``until``, and ``tail``.

    ``until`` compares with (incarnation, lsn, seq). ``tail`` has the columns of EVENT_COLUMNS; None if there is none.
    """

    path: str
    version: int
    until: Position
    tail: pa.Table | None = None


@dataclass(frozen=True)
class Limits:
    """How much of landing that is not reconciled a live reading decodes in process: rows, and bytes of its files."""

    rows: int = 1_000_000
    bytes: int = 128 << 20


class LakeReading:
    """All tables as of ``position``; tables are resolved on first use, and kept."""

    position: Position | None
    """The position of the newest event read; None if there are no events yet."""
    committed_at: datetime | None
    """When the transaction of ``position`` committed, by the source's clock."""
    is_bounded: bool
    """True if a live reading ends before the newest landed transaction, because more landed than its limits allow."""

    @property
    def tables(self) -> tuple[str, ...]:
        """The qualified names of all tables at the position."""
        raise NotImplementedError

    @property
    def lagging(self) -> Mapping[str, Position]:
        """The tables among those resolved so far that are read as of an earlier position, with that position."""
        raise NotImplementedError

    def table(self, name: str) -> TableReading:
        """Resolve a table by its qualified name. Raises UsageError for an unknown one, StateError if unreadable."""
        raise NotImplementedError

    def events(self) -> EventsReading | None:
        """Return the events at or before the position; None if there is no events table."""
        raise NotImplementedError


def open_reading(
    paths: Paths, at: str | None = None, *, is_live: bool = False, limits: Limits = Limits(),  # noqa: B008
) -> LakeReading:
    """Open a reading: at state's frontier; with ``is_live`` at the newest completely landed transaction; or ``at``.

    ``at`` is a position ``incarnation/lsn[/seq]``, an ISO 8601 time (UTC unless it names a zone) or ``now``. Raises
    UsageError for another text, PointUnreadable for a point out of range.
    """
    raise NotImplementedError
