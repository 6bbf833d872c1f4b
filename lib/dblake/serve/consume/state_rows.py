"""Rows of one state table, at one version, as events of a bootstrap.

Place: between the lake and ``stream``. Guarantee: the rows of a version come in the same order every time, so a number
of rows is a point to resume from. Files and row groups that the selection rules out are not read. A value that state's
type cannot hold is taken from events (``row_images``). Which versions belong together is the frontier's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from dblake.base.core.names import split_qualified
from dblake.base.core.position import Position
from dblake.base.core.schema import TableSchema
from dblake.base.lake.frontier import Frontier
from dblake.base.lake.layout import Paths
from dblake.base.lake.log import Application
from dblake.base.lake.tables import list_files, open_table
from dblake.serve.consume.event_rows import ROWS_AT_ONCE
from dblake.serve.consume.event_table import EventTable
from dblake.serve.consume.filters import Selection
from dblake.serve.consume.key_set import KeySet
from dblake.serve.consume.model import Event
from dblake.serve.consume.partition import Partition
from dblake.serve.consume.row_images import OWN_COLUMNS, RowImages, Texts, has_items
from dblake.transform.state.files import FileReader, StateFile, TableFiles


class NewestState:
    """A state table as it is now: which version a frontier's rows are read at, and how many rows it has."""

    def __init__(self, paths: Paths, table: str) -> None:
        self._source, self._name = paths.source, table
        self._table = open_table(paths.state(*split_qualified(table)))

    def readable_version(self, frontier: Frontier) -> int:
        """Return the version to read at a frontier.

        The newest one, if state has not advanced since: maintenance may have compacted it and removed files of the
        recorded version.
        """
        if (self._table.transaction_version(Application.state(self._source)) or 0) <= frontier.batch:
            return self._table.version()
        return frontier.versions[self._name]

    def count_rows(self) -> int:
        """Return the number of rows, deleted ones included."""
        return pc.sum(list_files(self._table)["num_records"]).as_py() or 0


class VersionRemoved(Exception):
    """Maintenance has removed the version of a state table that a bootstrap was reading."""


@dataclass
class StateRows:
    """One table of a bootstrap: its rows at ``version``, valid as of ``position``, with the columns of ``schema``."""

    paths: Paths
    schema: TableSchema
    version: int
    position: Position
    selection: Selection
    events: EventTable
    keys: KeySet | None = None
    """The keys whose rows are read, as texts of ``_key``; None for all."""

    def __post_init__(self) -> None:
        table = self.schema.table
        self._path = self.paths.state(*split_qualified(table))
        try:
            self._files = TableFiles(self._path, open_table(self._path, self.version))
        except DeltaError:
            raise VersionRemoved(table) from None
        kept = self.selection.columns_of(self.schema)
        self._columns = [
            column for column in self.schema.columns
            if column.name in self._files.columns.types and (kept is None or column.name in kept)
        ]
        self._images = RowImages(self.paths.source, self.schema, self._columns, self.position)

    def read(self, skip: int = 0) -> Iterator[list[Event]]:
        """Yield the rows after the first ``skip``, up to ROWS_AT_ONCE at a time."""
        texts = self._read_lossy_texts()
        for rows in self._read_files():
            if skip >= rows.num_rows:
                skip -= rows.num_rows
                continue
            for start in range(skip, rows.num_rows, ROWS_AT_ONCE):
                yield self._images.build(rows.slice(start, ROWS_AT_ONCE), texts)
            skip = 0

    def read_keys(self) -> pa.Array:
        """Return the texts of the keys of all rows that ``read`` yields, in its order."""
        parts = [rows["_key"].combine_chunks() for rows in self._read_files(("_key", "_deleted"))]
        return pa.concat_arrays(parts) if parts else pa.array([], pa.string())

    def _read_files(self, columns: Sequence[str] = (), *, only_lossy: bool = False) -> Iterator[pa.Table]:
        """Yield the selected rows by files, in order of their paths, and by row groups; without ``columns`` with all.

        ``only_lossy`` leaves out row groups without a lossy value; only the column of lossy names is read there.
        """
        names = columns or [*OWN_COLUMNS, *(() if only_lossy else (column.name for column in self._columns))]
        for file in sorted(self._files.files(), key=lambda one: one.path):
            if self._may_select(file):
                with self._open_file(file) as reader:
                    for group in range(reader.groups):
                        if not only_lossy or has_items(reader.read(group, ["_lossy"])["_lossy"]).any():
                            for rows in reader.slices(group, names):
                                yield self._choose(rows)

    def _open_file(self, file: StateFile) -> FileReader:
        try:
            return FileReader(self._path, self._files.columns, file)
        except FileNotFoundError:
            raise VersionRemoved(self.schema.table) from None

    def _may_select(self, file: StateFile) -> bool:
        partition, key = self.selection.partition, self.schema.primary_key
        ranged = file.ranges.get(key[0]) if key else None
        if partition is None or partition.by == "hash" or ranged is None or not isinstance(ranged[0], int):
            return True
        return partition.may_hold(*ranged)

    def _choose(self, rows: pa.Table) -> pa.Table:
        wanted = ~pc.fill_null(rows["_deleted"], False).to_numpy().astype(bool)
        partition = self.selection.partition
        if partition is not None:
            wanted &= self._in_partition(partition, rows)
        if self.keys is not None:
            wanted &= self.keys.find(rows["_key"])
        return rows if wanted.all() else rows.filter(pa.array(wanted))

    def _in_partition(self, partition: Partition, rows: pa.Table) -> np.ndarray:
        key = self.schema.primary_key
        texts = rows["_key"].combine_chunks()
        if not key or partition.by == "hash":
            return partition.select_texts(texts, len(key))
        if len(key) > 1:
            texts = pa.array([json.loads(text)[0] for text in texts.to_pylist()])
        return partition.select_numbers(texts.cast(pa.int64()))

    def _read_lossy_texts(self) -> Texts:
        """Return, by key, the texts of values that state's types cannot hold; they are rare, and in events."""
        wanted: dict[tuple[str, ...], set[str]] = {}
        for rows in self._read_files(only_lossy=True):
            wanted |= self._images.lossy_columns(rows)
        return self._images.read_texts(wanted, self.events, self.selection.partition)
