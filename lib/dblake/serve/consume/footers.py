"""Footers of event files that were read lately, up to a number of bytes: a table's history has many thousand files."""

from __future__ import annotations

from collections import OrderedDict

import pyarrow.parquet as pq

from dblake.serve.read.event_files import open_event_file

MAX_BYTES = 8 << 20
"""Bytes of footers that are kept, as they are in files."""


class Footers:
    """The footers of files of the events table at ``table``, which never change."""

    def __init__(self, table: str) -> None:
        self._table = table
        self._kept: OrderedDict[str, pq.FileMetaData] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        """Return how many footers are kept."""
        return len(self._kept)

    def get(self, file: str) -> pq.FileMetaData:
        """Return a file's footer; drop the footers that were used least recently."""
        if file in self._kept:
            self._kept.move_to_end(file)
            return self._kept[file]
        with open_event_file(self._table, file) as parquet:
            footer = parquet.metadata
        self._kept[file] = footer
        self._bytes += footer.serialized_size
        while self._bytes > MAX_BYTES and len(self._kept) > 1:
            _, dropped = self._kept.popitem(last=False)
            self._bytes -= dropped.serialized_size
        return footer
