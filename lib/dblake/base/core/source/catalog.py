"""What a database's catalog has to report: schemas, table fingerprints, row estimates, log retention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dblake.base.core.position import ResumePoint
from dblake.base.core.schema import TableSchema


@dataclass(frozen=True, slots=True)
class ColumnFingerprint:
    """A column as the catalog has it now. Its values may have changed if ``number`` or ``type`` differs."""

    type: str
    number: int = 0
    """Identifies the column in its table, also after a rename."""
    version: str = ""
    """Changes whenever the catalog's entry is rewritten."""
    blank: bool = False
    """True if adding the column leaves NULL in existing rows unless they are rewritten."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Enum labels by the internal number that rows hold: a renamed label changes every row that holds it."""


@dataclass(frozen=True, slots=True)
class TableFingerprint:
    """A captured table as the catalog has it now, by the database's own identifiers."""

    schema: TableSchema
    columns: Mapping[str, ColumnFingerprint]
    bodies: Mapping[str, bool] = field(default_factory=dict)
    """What holds and identifies the table's rows: the table, its partitions, their files, its key.

    A body that vanishes removes rows without row events. A new one adds rows without row events if it maps to True.
    """
    file: str = ""
    """Identifies the file that holds the rows: another value means rewritten rows. Empty if not available."""
    published: str = ""
    """Identifies what puts the table's changes into the log: another value means that changes may be missing there.

    Empty if the log always has them.
    """


@dataclass(frozen=True, slots=True)
class LogRetention:
    """How much log waits for capture, and how long the database keeps it."""

    behind: int | None = None
    """Bytes of log that are written and have not landed."""
    kept: int | None = None
    """Bytes of log that the database keeps."""
    room: int | None = None
    """Bytes that may still be written before unlanded log expires; None if size never expires it."""
    seconds: float | None = None
    """Age at which log expires; None if age never expires it."""
    lost: bool = False
    """True if log that has not landed has expired already."""


class Catalog(Protocol):
    """The captured tables and the log as the database describes them now."""

    def tables(self) -> Sequence[TableSchema]:
        """Return the schemas of the captured tables, those without a primary key included."""

    def table_fingerprints(self) -> Sequence[TableFingerprint]:
        """Return the fingerprints of the captured tables that can be read."""

    def row_estimates(self, tables: Sequence[str]) -> Mapping[str, int]:
        """Return the approximate number of rows by table, for those of the tables that have an estimate."""

    def log_retention(self, resume: ResumePoint | None) -> LogRetention:
        """Return the retention of the log for a capture that resumes at ``resume``."""
