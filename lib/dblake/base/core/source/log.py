"""Reading a database's change log: the stream, its pieces, and the server's identity."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from dblake.base.core.position import Position, ResumePoint


@dataclass(frozen=True, slots=True)
class WatermarkSeen:
    """An update of one row of the watermark table, as read from the log."""

    reader: int
    """The row's number: 0 is the heartbeat, n belongs to chunk reader n."""
    value: str
    position: Position
    txid: int | None
    committed_at: int
    """Microseconds since 1970."""


@dataclass(frozen=True, slots=True)
class LogPiece:
    """A contiguous part of the log, in log order."""

    rows: pa.Table
    """The CAPTURED columns, without rows of the watermark table."""
    reached: ResumePoint
    """Where to resume once all of ``rows`` and ``watermarks`` have landed."""
    watermarks: tuple[WatermarkSeen, ...] = ()
    bytes: int = 0
    """Size of the payloads."""
    rejected: Mapping[str, str] = field(default_factory=dict)
    """Tables whose changes in this part of the log cannot be captured and are not in ``rows``, with the reason."""
    partitions: Mapping[str, Set[str]] = field(default_factory=dict)
    """Bodies, as in ``TableFingerprint``, of the partitions that the log describes for rows of these tables."""
    replayed_heartbeat: str | None = None
    """The last heartbeat before the stream's start, in the log that was read again for it; empty if it has none.

    None in all pieces but the first of a log that proves its history by that.
    """


class LogStream(Protocol):
    """The log from a resume point on. Not thread-safe, ``acknowledge`` and ``keep_alive`` included."""

    @property
    def start(self) -> ResumePoint:
        """Return where this stream began."""

    def read(self, *, max_bytes: int, max_rows: int, seconds: float) -> LogPiece | None:
        """Return the next piece: about ``max_bytes`` or ``max_rows`` at most, else what arrives within ``seconds``.

        A piece ends at a transaction's end unless a limit cuts it. Return None if no transaction ends in time.
        Raises SourceError when the connection is lost. Rows read since the last piece are then discarded; open the
        stream again at that piece's ``reached``.
        """

    def acknowledge(self, point: ResumePoint) -> None:
        """Confirm to the database that all up to ``point.token`` is durable here and may be removed there."""

    def keep_alive(self) -> None:
        """Keep the connection from timing out while nothing is read."""

    def close(self) -> None:
        """End the stream; the database keeps everything that is not acknowledged."""


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """Identifies a server and one life of its log; another value is another server or a reset log."""

    server: str
    log: str
    facts: dict[str, str] = field(default_factory=dict)
    """Further values for messages; ignored by ``same_as``."""

    def same_as(self, other: ServerIdentity) -> bool:
        """Return True if both are one server in one life of its log.

        What follows an ``@`` does not count: earlier versions recorded MariaDB's host name there.
        """
        return self.server.partition("@")[0] == other.server.partition("@")[0] and self.log == other.log


class LogSource(Protocol):
    """The change log of a database."""

    schema_changes_in_log: bool
    """True if the log contains every schema change of a captured table as a row of its own."""

    def identity(self) -> ServerIdentity:
        """Return the identity of the server at the configured address."""

    def find_continuation(self, known: ServerIdentity, resume: ResumePoint) -> ResumePoint | None:
        """Return where the log of a server other than ``known`` continues ``resume``, None if nothing shows that.

        That is ``resume`` itself if the log has it at an equal position, else a point of the next incarnation, with the
        same transactions before it. Raises PositionLost if the server was a replica of ``known`` and its log lacks a
        part behind ``resume``. Raises WrongServer if it lacks what landed, DivergedServer if it has more before it.
        """

    def terminate_stale_reader(self) -> None:
        """End the connection of another capture that still reads the log under this source's name, if there is one.

        Call it only while holding a lease that is valid on every machine and forbids the other capture to write.
        """

    def recreate_slot(self) -> None:
        """Recreate what the log is read through if it is lost; the log up to now is then a gap."""

    def open_log(self, resume: ResumePoint | None, incarnation: int) -> LogStream:
        """Open the log at ``resume``, or at the slot's own position if there is no resume point.

        Raises PositionLost, WrongServer or PrerequisitesNotMet instead of starting at any other position.
        """
