"""State's live rows as the comparison needs them: those with given keys, or all keys.

Place: between state and ``compare``. Guarantee: everything comes from one version of the state table, the newest when
this was made. Files and row groups that statistics rule out are not read, and a row group's other columns only if it
has one of the keys.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblake.base.core.names import split_qualified
from dblake.base.lake.layout import Paths
from dblake.base.lake.tables import find_table
from dblake.transform.state.files import Columns, FileReader, OrderedValues, TableFiles, may_hold

_HEAD = ("_key", "_deleted")
_KEYS_BYTES = 128 << 20
"""Keys that are looked up at once: each look-up hashes all the keys that they are compared with."""


class TableState:
    """One table's state; without a state table it has no rows."""

    def __init__(self, paths: Paths, table: str) -> None:
        self._path = paths.state(*split_qualified(table))
        found = find_table(self._path)
        self._files = TableFiles(self._path, found) if found else None

    @property
    def types(self) -> dict[str, str]:
        """The columns of the state table with their Spark types."""
        return dict(self._files.columns.types) if self._files else {}

    def with_keys(self, keys: pa.ChunkedArray, columns: list[str]) -> pa.Table:
        """Return the live rows with these keys: ``_key``, ``_lossy`` and those of ``columns`` that there are."""
        types = self.types
        names = ["_key", "_lossy", *(name for name in columns if name in types)]
        if self._files is None or not len(keys):
            return _empty(self._files.columns if self._files else None, names)
        parts, values, ordered = [], keys.combine_chunks(), OrderedValues(keys)
        for file in self._files.files():
            if not may_hold(file, "_key", ordered):
                continue
            with FileReader(self._path, self._files.columns, file) as reader:
                for group in range(reader.groups):
                    head = reader.read(group, _HEAD)
                    wanted = pc.and_(pc.is_in(head["_key"], value_set=values), pc.invert(head["_deleted"]))
                    if pc.any(wanted, min_count=0).as_py():
                        first = 0
                        for rows in reader.slices(group, names, known=head.select(["_key"])):
                            parts.append(rows.filter(wanted.slice(first, rows.num_rows)))
                            first += rows.num_rows
        return pa.concat_tables(parts) if parts else _empty(self._files.columns, names)

    def live_keys(self) -> Iterator[pa.ChunkedArray]:
        """Yield the keys of all live rows, those of several row groups at once, of bounded size."""
        parts, size = list[pa.Array](), 0
        for file in self._files.files() if self._files else ():
            with FileReader(self._path, self._files.columns, file) as reader:  # type: ignore[union-attr]
                for group in range(reader.groups):
                    head = reader.read(group, _HEAD)
                    parts += head["_key"].filter(pc.invert(head["_deleted"])).chunks
                    size += head.nbytes
            if size > _KEYS_BYTES:
                yield pa.chunked_array(parts, pa.string())
                parts, size = [], 0
        if parts:
            yield pa.chunked_array(parts, pa.string())


def repeated_keys(rows: pa.Table) -> list[str]:
    """Return the keys that several rows have: a table has one row per key."""
    if rows.num_rows < 2:
        return []
    codes = rows["_key"].combine_chunks().dictionary_encode()
    counts = np.bincount(codes.indices.to_numpy(), minlength=len(codes.dictionary))
    repeated: list[str] = codes.dictionary.filter(pa.array(counts > 1)).to_pylist()
    return repeated


def _empty(columns: Columns | None, names: list[str]) -> pa.Table:
    kinds = columns.schema() if columns else pa.schema([("_key", pa.string()), ("_lossy", pa.list_(pa.string()))])
    return pa.schema([kinds.field(name) for name in names]).empty_table()
