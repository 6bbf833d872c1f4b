"""Footers of event files: what their row groups hold, kept for the files that were read lately.

Place: below ``reader``. Guarantee: the footers that are kept have up to ``MAX_BYTES`` bytes, or are one: a table's
history has many thousand files. A file never changes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow.parquet as pq

from dblake.landing.columns import BATCH, INCARNATION, LSN, SEQ, TABLE
from dblake.transform.events.file_reader import open_event_file

MAX_BYTES = 8 << 20
"""Bytes of footers that are kept, as they are in files."""
_BOUNDED = frozenset((BATCH, INCARNATION, LSN, SEQ, TABLE))
_VALUE_BYTES = 16


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group of a file: its rows, and the least and greatest values that its statistics have.

    ``stored`` has, by column, the bytes in the file, ``loaded`` about as many as rows have in memory.
    """

    number: int
    rows: int
    low: Mapping[str, Any]
    high: Mapping[str, Any]
    stored: Mapping[str, int]
    loaded: Mapping[str, int]

    def stored_bytes(self, columns: Collection[str]) -> int:
        """Return the bytes of some columns in the file."""
        return sum(size for name, size in self.stored.items() if name in columns)

    def loaded_bytes(self, columns: Collection[str]) -> int:
        """Return about how many bytes some columns have in memory."""
        return sum(size for name, size in self.loaded.items() if name in columns)


@dataclass(frozen=True)
class Footer:
    """The footer of one file, which describes its row groups."""

    metadata: pq.FileMetaData

    @cached_property
    def groups(self) -> list[RowGroup]:
        """The file's row groups, in order."""
        return [_row_group(self.metadata.row_group(number), number) for number in range(self.metadata.num_row_groups)]


class Footers:
    """The footers of files of the events table at ``table``."""

    def __init__(self, table: str) -> None:
        self._table = table
        self._kept: OrderedDict[str, Footer] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        """Return how many footers are kept."""
        return len(self._kept)

    def get(self, file: str) -> Footer:
        """Return a file's footer; drop the footers that were used least recently."""
        if file in self._kept:
            self._kept.move_to_end(file)
            return self._kept[file]
        with open_event_file(self._table, file) as parquet:
            footer = Footer(parquet.metadata)
        self._kept[file] = footer
        self._bytes += footer.metadata.serialized_size
        while self._bytes > MAX_BYTES and len(self._kept) > 1:
            _, dropped = self._kept.popitem(last=False)
            self._bytes -= dropped.metadata.serialized_size
        return footer


def _row_group(facts: pq.RowGroupMetaData, number: int) -> RowGroup:
    low, high = dict[str, Any](), dict[str, Any]()
    stored, loaded = dict[str, int](), dict[str, int]()
    for column in _columns(facts):
        path = column.path_in_schema
        name = path.partition(".")[0]
        stored[name] = stored.get(name, 0) + column.total_compressed_size
        # Dictionaries keep repeated texts small in the file, not in memory.
        loaded[name] = loaded.get(name, 0) + column.total_uncompressed_size + _VALUE_BYTES * column.num_values
        if path in _BOUNDED:
            statistics = column.statistics
            if statistics is not None and statistics.has_min_max:
                low[path], high[path] = statistics.min, statistics.max
    return RowGroup(number, facts.num_rows, low, high, stored, loaded)


def _columns(facts: pq.RowGroupMetaData) -> Iterator[pq.ColumnChunkMetaData]:
    return (facts.column(number) for number in range(facts.num_columns))
