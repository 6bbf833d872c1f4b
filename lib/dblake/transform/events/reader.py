"""The one reader of the events table: the events that fit a predicate, from one version of the table.

Place: between the lake and everything that reads events: state, readings as of a position, and consumers. Files are
skipped by their statistics in the Delta log, row groups by those in their footers. Guarantee: memory holds about
``READ_BYTES`` of rows at a time, or one row group, and the footers that ``footers`` keeps. The order of events
and the meaning of batches are left to the callers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq

from dblake.base.lake.log import has_version
from dblake.base.lake.tables import DeltaTable, find_table, list_files, open_table
from dblake.payloads.decode.columns import AFTER, KEY
from dblake.transform.events.file_reader import as_plain_columns, open_event_file
from dblake.transform.events.files import EVENT_COLUMNS
from dblake.transform.events.footers import Footers, RowGroup
from dblake.transform.events.listing import FileListing, ListedFile
from dblake.transform.events.predicate import Predicate

READ_BYTES = 16 << 20
"""Row groups are read together until they have so many bytes in memory."""
_IMAGES = (KEY, AFTER)


@dataclass(frozen=True)
class FileSpan:
    """Row groups of one file, and the most bytes of images that a row of one has. It can be sent to executors."""

    path: str
    groups: tuple[int, ...]
    bytes_per_row: float

    def of_group(self, group: int) -> FileSpan:
        """Return one row group of these."""
        return FileSpan(self.path, (group,), self.bytes_per_row)


class EventReader:
    """The events table at ``path``. All answers are of one version, until ``refresh`` finds a newer one."""

    def __init__(self, path: str, table: DeltaTable) -> None:
        self.path, self._table = path, table
        self.footers = Footers(path)
        self.listing = FileListing(list_files(table))
        self.bytes_read = 0
        """Bytes of column chunks read from files so far."""

    @classmethod
    def open(cls, path: str, version: int | None = None) -> Self:
        """Open the newest version, or ``version``. Raises TableNotFoundError without a table."""
        return cls(path, open_table(path, version))

    @classmethod
    def find(cls, path: str) -> Self | None:
        """Open the newest version; None without a table."""
        table = find_table(path)
        return None if table is None else cls(path, table)

    @property
    def version(self) -> int:
        """The version of the table that all answers are of."""
        return self._table.version()

    def has_next(self) -> bool:
        """Return whether the log has a newer version; see ``lake.log.has_version``."""
        return has_version(self.path, self.version + 1)

    def refresh(self) -> bool:
        """Read the newest version; return False if nothing changed."""
        version = self._table.version()
        self._table.update_incremental()
        if self._table.version() == version:
            return False
        self.listing = FileListing(list_files(self._table))
        return True

    def reached(self, application: str) -> int:
        """Return the newest version that an application recorded in this table's log; 0 without one."""
        return self._table.transaction_version(application) or 0

    def files(self, predicate: Predicate) -> list[ListedFile]:
        """Return the files that may hold events that fit, ordered by their newest batch."""
        return self.listing.choose(predicate)

    def row_groups(self, path: str, predicate: Predicate) -> list[RowGroup]:
        """Return the row groups of a file that may hold events that fit."""
        return [group for group in self.footers.get(path).groups if predicate.may_hold(group.low, group.high)]

    def spans(self, predicate: Predicate) -> Iterator[FileSpan]:
        """Yield where the events that fit may be."""
        for file in self.files(predicate):
            groups = self.row_groups(file.path, predicate)
            if groups:
                sizes = (group.loaded_bytes(_IMAGES) / max(group.rows, 1) for group in groups)
                yield FileSpan(file.path, tuple(group.number for group in groups), max(sizes))

    def read(
        self, predicate: Predicate, columns: Sequence[str] = EVENT_COLUMNS.names, *, probes_rows: bool = False
    ) -> Iterator[pa.Table]:
        """Yield the events that fit, in portions, in no particular order."""
        for file in self.files(predicate):
            yield from self.read_file(file.path, predicate, columns, probes_rows=probes_rows)

    def read_file(
        self, path: str, predicate: Predicate, columns: Sequence[str] = EVENT_COLUMNS.names, *,
        probes_rows: bool = False,
    ) -> Iterator[pa.Table]:
        """Yield the events of one file that fit.

        With ``probes_rows``, the columns that the predicate needs are read first, and others only if a row fits.
        """
        chosen = self.row_groups(path, predicate)
        if not chosen:
            return
        names = _present(chosen[0].stored, {*columns, *predicate.columns})
        groups: Iterable[RowGroup] = chosen
        with open_event_file(self.path, path, self.footers.get(path).metadata) as parquet:
            if probes_rows:
                groups = (group for group in chosen if self._has_rows(parquet, group, predicate))
            for portion in _portions(groups, names):
                rows = predicate.filter(self._read_groups(parquet, portion, names))
                if rows.num_rows:
                    yield as_plain_columns(rows, columns)

    def read_span(self, span: FileSpan, predicate: Predicate, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the events of a span that fit, one row group at a time."""
        return read_span(self.path, span, predicate, columns, self.footers.get(span.path).metadata)

    def read_group(self, path: str, number: int, columns: Sequence[str]) -> pa.Table:
        """Return some columns of all rows of a row group, as they are in the file."""
        footer = self.footers.get(path)
        with open_event_file(self.path, path, footer.metadata) as parquet:
            return self._read_groups(parquet, [footer.groups[number]], list(columns))

    def _has_rows(self, parquet: pq.ParquetFile, group: RowGroup, predicate: Predicate) -> bool:
        rows = self._read_groups(parquet, [group], _present(group.stored, predicate.columns))
        return bool(predicate.choose(rows).any())

    def _read_groups(self, parquet: pq.ParquetFile, groups: Sequence[RowGroup], names: list[str]) -> pa.Table:
        self.bytes_read += sum(group.stored_bytes(names) for group in groups)
        return parquet.read_row_groups([group.number for group in groups], names, use_threads=False)


def read_span(
    path: str, span: FileSpan, predicate: Predicate, columns: Sequence[str], footer: pq.FileMetaData | None = None
) -> Iterator[pa.Table]:
    """Yield the events of a span that fit, one row group at a time; ``path`` is the events table.

    An executor calls it, which has no ``EventReader``.
    """
    with open_event_file(path, span.path, footer) as parquet:
        names = _present(parquet.schema_arrow.names, {*columns, *predicate.columns})
        for group in span.groups:
            rows = predicate.filter(parquet.read_row_group(group, names, use_threads=False))
            if rows.num_rows:
                yield as_plain_columns(rows, columns)


def _present(names: Iterable[str], columns: Collection[str]) -> list[str]:
    return [name for name in names if name in columns]


def _portions(groups: Iterable[RowGroup], columns: Collection[str]) -> Iterator[list[RowGroup]]:
    """Yield row groups that are read together.

    After each call of Arrow, a thread that reads ahead waits for Python's lock.
    """
    portion, size = list[RowGroup](), 0
    for group in groups:
        portion.append(group)
        size += group.loaded_bytes(columns)
        if size >= READ_BYTES:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion
