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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa

from dblake.base.core.errors import UsageError
from dblake.base.core.position import Position
from dblake.base.lake.frontier import Frontier, read_frontier
from dblake.base.lake.layout import Paths
from dblake.base.lake.schemas import SchemaVersion, read_schemas
from dblake.base.lake.tables import has_table, list_files
from dblake.serve.read.event_log import EventLog
from dblake.serve.read.points import parse_point
from dblake.serve.read.resolve import Resolved, resolve
from dblake.serve.read.table_reader import Basis, TableReader, TableReading
from dblake.serve.read.tail import read_tail
from dblake.serve.read.versions import StateVersions
from dblake.transform.events.predicate import Predicate

__all__ = ["EventsReading", "LakeReading", "TableReading", "open_reading", "open_reading_at"]

MAX_TAIL_BYTES = 32 << 20
"""A live reading decodes about so many bytes of landing's files that are not reconciled."""


@dataclass(frozen=True)
class EventsReading:
    """The events of a reading: those of the events table's ``version`` at or before ``until``, and ``tail``.

    ``until`` compares with (incarnation, lsn, seq). ``version`` is None without an events table. ``tail`` has the
    columns of EVENT_COLUMNS; None if there is none.
    """

    path: str
    version: int | None
    until: Position
    tail: pa.Table | None = None


@dataclass(frozen=True)
class Estimate:
    """The number of state files, and the bytes of these and of newer events."""

    files: int
    bytes: float


class LakeReading:
    """All tables as of ``position``, that of the newest event read; tables are resolved on first use, and kept.

    ``is_bounded`` is True if a live reading ends before the newest landed transaction: more has landed than it may
    decode, or a dump of a table with more events than that ends there.
    """

    def __init__(self, paths: Paths, basis: Basis | None, schemas: Mapping[str, Sequence[SchemaVersion]],
                 *, is_strict: bool) -> None:
        self._paths, self._basis, self._is_strict = paths, basis, is_strict
        self._schemas = schemas
        self._versions = StateVersions(paths)
        self._tables: dict[str, TableReading] = {}

    @property
    def position(self) -> Position | None:
        """The position of the newest event read; None if there are no events yet."""
        return self._basis.position if self._basis else None

    @property
    def committed_at(self) -> datetime | None:
        """When the transaction of ``position`` committed, by the source's clock."""
        basis = self._basis
        if basis is None:
            return None
        if basis.tail and basis.tail.events.num_rows:
            time: datetime | None = basis.tail.events["committed_at"][-1].as_py()
            return time
        place = basis.log.newest(Predicate(until=basis.cut)) if basis.log else None
        return place.committed_at if place else None

    @property
    def is_bounded(self) -> bool:
        """True if more has landed than a live reading shows."""
        return bool(self._basis and self._basis.tail and self._basis.tail.is_bounded)

    @property
    def tables(self) -> tuple[str, ...]:
        """The qualified names of all tables at the position."""
        return tuple(sorted(self._schemas))

    @property
    def lagging(self) -> dict[str, Position]:
        """The tables resolved so far that are read as of an earlier position, with that position."""
        return {name: each.position for name, each in self._tables.items() if each.position != self.position}

    def schemas(self, table: str) -> Sequence[SchemaVersion]:
        """Return the versions of a table's schema at the position, oldest first."""
        return self._schemas[table]

    def table(self, name: str) -> TableReading:
        """Resolve a table by its qualified name.

        Raises UsageError for an unknown one; for a reading ``at`` a point also StateError if the table's events cannot
        be folded, and PointOutOfRange if they are not all there.
        """
        if name not in self._tables:
            if name not in self._schemas or self._basis is None:
                raise UsageError(f"there is no table {name} at this point", next_step="choose one of: "
                                 + (", ".join(self.tables) or "none yet"))
            self._tables[name] = TableReader(self._paths, self._basis, self._versions, name, self._schemas[name]).read(
                is_strict=self._is_strict
            )
        return self._tables[name]

    def estimate(self, table: str) -> Estimate:
        """Return how much of a table's state and newer events a reading of all its rows takes."""
        assert self._basis is not None, "there is a table"
        state = self._versions.find(table, self._basis.frontier, is_newest=self._basis.is_newest)
        sizes = list_files(state.table)["size_bytes"].to_pylist() if state else []
        newer = Predicate(until=self._basis.cut, after_batch=state.batch if state else 0, tables=(table,))
        events = self._basis.log.estimate(newer)[1] if self._basis.log else 0.0
        return Estimate(len(sizes), sum(sizes) + events)

    def events(self) -> EventsReading | None:
        """Return the events at or before the position; None if there are none."""
        basis = self._basis
        if basis is None:
            return None
        version = basis.log.version if basis.log else None
        return EventsReading(self._paths.events, version, basis.cut, basis.tail.events if basis.tail else None)


def open_reading(
    paths: Paths, at: str | None = None, *, is_live: bool = False, max_tail_bytes: int = MAX_TAIL_BYTES,
) -> LakeReading:
    """Open a reading: at state's frontier; with ``is_live`` at the newest completely landed transaction; or ``at``.

    ``at`` is a position ``incarnation/lsn[/seq]``, an ISO 8601 time (UTC unless it names a zone) or ``now``. Raises
    UsageError for another text, PointOutOfRange for a point out of range.
    """
    # Read before events and state tables, so that neither is behind it.
    if at is not None:
        log = _open_log(paths)
        return open_reading_at(paths, resolve(parse_point(at), log, paths), log)
    frontier = read_frontier(paths)
    known = read_schemas(paths)
    if is_live:
        return _open_live(paths, frontier, known, max_tail_bytes)
    if frontier.position is None:
        return LakeReading(paths, None, {}, is_strict=False)
    cut = frontier.position.end_of_transaction
    basis = Basis(frontier, True, cut, frontier.position, _open_log(paths))
    return LakeReading(paths, basis, _visible(known, cut, frontier.batch), is_strict=False)


def open_reading_at(paths: Paths, resolved: Resolved, log: EventLog | None) -> LakeReading:
    """Open a reading at a point of ``log``."""
    newest, frontier = read_frontier(paths), read_frontier(paths, until=resolved.cut)
    basis = Basis(frontier, frontier.batch == newest.batch, resolved.cut, resolved.newest.position, log)
    return LakeReading(paths, basis, _visible(read_schemas(paths), resolved.cut, frontier.batch), is_strict=True)


def _open_live(
    paths: Paths, frontier: Frontier, known: dict[str, list[SchemaVersion]], max_tail_bytes: int
) -> LakeReading:
    log = _open_log(paths)
    ids = {version.schema.schema_id: version.schema for versions in known.values() for version in versions}
    tail = read_tail(paths, log, ids, max_tail_bytes)
    for version in tail.schemas if tail else ():
        versions = known.setdefault(version.schema.table, [])
        if all(each.batch != version.batch or each.since != version.since for each in versions):
            versions.append(version)
    position = tail.position if tail else None
    if position is None and log is not None:
        complete = log.newest_complete()
        position = complete.position if complete else None
    if position is None:
        return LakeReading(paths, None, {}, is_strict=False)
    cut = position.end_of_transaction
    basis = Basis(frontier, True, cut, position, log, tail)
    return LakeReading(paths, basis, known, is_strict=False)


def _open_log(paths: Paths) -> EventLog | None:
    return EventLog(paths) if has_table(paths.events) else None


def _visible(
    known: Mapping[str, Sequence[SchemaVersion]], cut: Position, batch: int
) -> dict[str, list[SchemaVersion]]:
    """Return the schema versions that hold at a position, or that state has seen."""
    found = {
        table: [version for version in versions if version.since <= cut or version.batch <= batch]
        for table, versions in known.items()
    }
    return {table: versions for table, versions in found.items() if versions}
