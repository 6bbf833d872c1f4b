"""What capture asks of a database: one protocol, the same for PostgreSQL, MySQL and the memory twin.

A source frames; it does not decode. It hands over Arrow rows in the shape of ``landing.columns.CAPTURED`` and the few
facts capture needs about them: where the log can be resumed, and which watermarks came by.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from dblake.core.position import Position, ResumePoint
from dblake.core.schema import TableSchema

HEARTBEAT_ROW = 0
"""The row of the watermark table that is updated so that an idle log moves; row n belongs to chunk reader n."""


@dataclass(frozen=True, slots=True)
class Check:
    """One prerequisite: met, or what is wrong (``detail``) and the statement that mends it (``fix``)."""

    check: str
    ok: bool
    detail: str = ""
    fix: str = ""


@dataclass(frozen=True, slots=True)
class InitPlan:
    """What ``preflight --init`` does, as SQL that shows no password, and what a person has to decide about."""

    statements: tuple[str, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WatermarkSeen:
    """An update of one row of the watermark table, as it came by in the log."""

    reader: int
    value: str
    position: Position
    txid: int | None
    committed_at: int
    """Microseconds since 1970."""


@dataclass(frozen=True, slots=True)
class LogPiece:
    """A stretch of log, in order. ``rows`` has the CAPTURED columns and holds no watermark rows.

    ``reached`` is where to resume once all of ``rows`` (and the watermarks) have landed. ``bytes`` counts payload.
    """

    rows: pa.Table
    reached: ResumePoint
    watermarks: tuple[WatermarkSeen, ...] = ()
    bytes: int = 0


class LogStream(Protocol):
    """The log, from a resume point on. Not thread-safe, ``acknowledge`` and ``keep_alive`` included."""

    @property
    def start(self) -> ResumePoint:
        """Where this stream began."""

    def read(self, *, max_bytes: int, max_rows: int, seconds: float) -> LogPiece | None:
        """The next piece: at most about ``max_bytes`` or ``max_rows``, else what came within ``seconds``.

        A piece ends at a transaction's end unless a limit cuts it. None if no transaction ended in time. Raises
        SourceError when the connection is gone (what was read since the last piece is forgotten; open the stream
        again from that piece's ``reached``).
        """

    def acknowledge(self, point: ResumePoint) -> None:
        """Tells the database that all up to ``point.token`` is safe with us and may be thrown away there."""

    def keep_alive(self) -> None:
        """Keeps the connection from timing out while nothing is read."""

    def close(self) -> None:
        """Ends the stream; the database keeps everything not acknowledged."""


@dataclass(frozen=True, slots=True)
class ChunkRequest:
    """Which rows to read: after a key up to another, in key order, or those of given keys; keys in canonical text."""

    table: str
    reader: int
    low: str
    limit: int
    after: tuple[str, ...] | None = None
    upto: tuple[str, ...] | None = None
    keys: tuple[tuple[str, ...], ...] | None = None


@dataclass(frozen=True, slots=True)
class ChunkRead:
    """What a chunk read turned out to be. ``last_key`` is None if it was empty.

    ``low_seen`` is the reader's watermark row as the chunk's own snapshot saw it: anything but the request's ``low``
    means that the rows were served by something that lags (a replica, a pooler, a proxy).
    """

    rows: int
    last_key: tuple[str, ...] | None
    schema: TableSchema
    low_seen: str
    snapshot: str | None = None
    schema_changed: bool = False


class ChunkReader(Protocol):
    """One connection that writes watermarks and reads chunks, each in a transaction of its own; takes no locks.

    ``format`` is how payloads are to be read (``landing.columns``), those of the chunk being read while one is.
    """

    format: str

    def mark(self, reader: int, value: str) -> None:
        """One UPDATE of one row of the watermark table, committed on return."""

    def split_points(self, table: str, parts: int, rows: int) -> Sequence[tuple[str, ...]]:
        """Keys in key order that divide a table into about equal parts: ``parts`` at most, of ``rows`` or more each.

        None if the table is too small, or if the database cannot tell at once, without going through it.
        Raises as ``read`` does.
        """

    def read(self, request: ChunkRequest, deliver: Callable[[pa.BinaryArray, TableSchema], None]) -> ChunkRead:
        """Reads a chunk and hands its rows over as they come: undecoded payloads and their schema.

        Raises Unsupported for a table without a primary key, SourceError if the connection is lost.
        """

    def close(self) -> None:
        """Ends the connection."""


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """Who the server is; a change of any field is another server or another life of its log."""

    server: str
    log: str
    facts: dict[str, str] = field(default_factory=dict)

    def same_as(self, other: ServerIdentity) -> bool:
        """True for one server in one life of its log, whatever else is told of it."""
        return (self.server, self.log) == (other.server, other.log)


@dataclass(frozen=True, slots=True)
class ColumnFingerprint:
    """A column as the catalogue has it: its values may be others if ``number`` or ``type`` is.

    ``number`` stays with a column that is renamed. ``version`` is another one whenever the catalogue's entry was
    written; ``blank`` tells that rows which are there when such a column is added have NULL in it, unless they are
    written anew. ``labels`` are those that rows hold by numbers of their own: one that is renamed is in all its rows.
    """

    type: str
    number: int = 0
    version: str = ""
    blank: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TableFingerprint:
    """A captured table as the catalogue has it now, by numbers of the database's own.

    ``bodies`` are what holds its rows. One that is gone took rows with it, and a new one brought rows if it maps to
    True: without row events, both. ``file`` is another one once the rows have been written anew, "" if that cannot
    be told.
    """

    schema: TableSchema
    columns: Mapping[str, ColumnFingerprint]
    bodies: Mapping[str, bool] = field(default_factory=dict)
    file: str = ""


@dataclass(frozen=True, slots=True)
class LogRetention:
    """How much log waits for capture, and how long the database goes on keeping it. All but ``seconds`` in bytes.

    ``behind`` is written and has not landed, ``kept`` is what the database keeps. ``room`` may still be written before
    it lets go of what has not landed, None if it never does for that; after ``seconds`` it lets go of what was written,
    None if it never does for that. ``lost``: it has let go already.
    """

    behind: int | None = None
    kept: int | None = None
    room: int | None = None
    seconds: float | None = None
    lost: bool = False


class Source(Protocol):
    """A database to capture from. ``schema_changes_in_log``: every change of a captured table's shape is a row of the log, too."""

    name: str
    schema_changes_in_log: bool

    def preflight(self) -> list[Check]:
        """Every prerequisite, met or not."""

    def require(self) -> None:
        """Raises PrerequisitesNotMet, with all of them, for what would make capture miss changes without a word."""

    def identity(self) -> ServerIdentity:
        """Who answers at the configured address."""

    def is_promoted_replica(self, known: ServerIdentity, resume: ResumePoint) -> bool:
        """True if who answers now was a replica of ``known`` and has all of its log up to ``resume``, at its places.

        Raises PositionLost if it was, and has not.
        """

    def tables(self) -> Sequence[TableSchema]:
        """The captured tables as the catalogue has them now, those without a key included."""

    def table_fingerprints(self) -> Sequence[TableFingerprint]:
        """Those of them that can be read, with what tells later whether rows have changed without row events."""

    def log_retention(self, resume: ResumePoint | None) -> LogRetention:
        """How the log stands for a capture that resumes there."""

    def row_estimates(self, tables: Sequence[str]) -> Mapping[str, int]:
        """About how many rows these captured tables have, of those of which the database has an idea."""

    def terminate_stale_reader(self) -> None:
        """Ends the connection of a capture that still reads the log under this source's name, if the database keeps it.

        Only for one who knows, by a lease that holds on every machine, that the other may not write any more.
        """

    def recreate_slot(self) -> None:
        """Makes the log readable from now on where what it was read through is gone; what came before is a gap."""

    def open_log(self, resume: ResumePoint | None, incarnation: int) -> LogStream:
        """The log from ``resume`` on, or from the slot's own start if there is none.

        Raises PositionLost, WrongServer or PrerequisitesNotMet by name rather than start anywhere else.
        """

    def open_reader(self) -> ChunkReader:
        """A new connection for watermarks and chunks."""
