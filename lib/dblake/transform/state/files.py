"""The Parquet files of one state table, read and written with Arrow, committed with delta-rs.

``TableFiles`` is one version of a table. Readers stream a file by row groups, so that memory is bounded by row groups
rather than files. Written files carry statistics, so that readers and later merges skip files. A file is visible only
once ``commit`` has added it; what a task that died wrote is removed by VACUUM.
"""

from __future__ import annotations

import json
import math
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.transaction import AddAction, RemoveAction

from dblake.base.lake.commits import confirmed_commit
from dblake.base.lake.files import file_path, filesystem
from dblake.base.lake.tables import list_files, open_table
from dblake.transform.state.values import arrow_type

SMALL_FILE_BYTES = 16 << 20
"""Smaller files are read whole and may be written together."""
ROW_GROUP_BYTES = 32 << 20
"""Rows of about so many bytes in memory are read, changed and written at once."""
TOMBSTONES = "tombstones"
"""How the names of files that hold tombstones only begin."""
_SLICED_ROWS = 1024
"""Rows that are read at least: a dictionary may make them large however small they are in the file."""
_SPARK = {"long": "BIGINT", "integer": "INT", "short": "SMALLINT", "byte": "TINYINT", "timestamp_ntz": "TIMESTAMP_NTZ"}


@dataclass(frozen=True)
class StateFile:
    """One file. ``ranges`` holds the least and greatest value of some columns, where statistics have them."""

    path: str
    size: int
    ranges: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)

    @property
    def is_small(self) -> bool:
        """True if the file is worth merging with others."""
        return self.size < SMALL_FILE_BYTES

    @property
    def has_tombstones_only(self) -> bool:
        """True if the file was written for tombstones; False may also be a file of an earlier version, or of Spark."""
        return self.path.rpartition("/")[2].startswith(f"{TOMBSTONES}-")


@dataclass(frozen=True)
class Columns:
    """A table's columns and types, and the names its files have for them."""

    types: Mapping[str, str]
    physical: Mapping[str, str]

    def has_ranges(self, name: str) -> bool:
        """Return True for the columns by whose statistics a merge skips files."""
        return name == "_key" or self.types[name] in ("BIGINT", "INT", "SMALLINT", "TINYINT")

    def schema(self) -> pa.Schema:
        """Return the Arrow schema by the table's names."""
        return pa.schema([pa.field(name, arrow_type(kind)) for name, kind in self.types.items()])


class TableFiles:
    """A state table as of its newest version when this was made."""

    def __init__(self, path: str, table: DeltaTable | None = None) -> None:
        self.path = path
        self.table = table or open_table(path)
        self.columns = table_columns(self.table)

    def files(self) -> list[StateFile]:
        """Return all files, with the ranges of ``_key`` and of columns of whole numbers."""
        found = list_files(self.table)
        names = set(found.column_names)
        ranged = {}
        for name in self.columns.types:
            if self.columns.has_ranges(name):
                for known in (name, self.columns.physical[name]):
                    if {f"min.{known}", f"max.{known}"} <= names:
                        ranged[name] = (found[f"min.{known}"].to_pylist(), found[f"max.{known}"].to_pylist())
                        break
        return [
            StateFile(path, size, {
                name: (least[n], most[n]) for name, (least, most) in ranged.items()
                if least[n] is not None and most[n] is not None
            })
            for n, (path, size) in enumerate(zip(found["path"].to_pylist(), found["size_bytes"].to_pylist(),
                                                 strict=True))
        ]

    def commit(
        self, adds: Sequence[AddAction], removed: Sequence[StateFile], app: str, batch: int,
        schema: Schema | None = None, *, replace: bool = False,
    ) -> int:
        """Commit added and removed files with the transaction identifier; return the version.

        With ``replace`` the added files replace all others, and ``schema`` the table's.
        """
        now = now_milliseconds()
        actions: list[AddAction | RemoveAction] = list(adds)
        if not replace:
            actions += [RemoveAction(f.path, True, now, f.size, {}) for f in removed]
        self._commit(actions, replace, schema, [Transaction(app, batch)])
        return self.table.version()

    def replace_types(self, adds: Sequence[AddAction], columns: Columns) -> None:
        """Replace all files by these, whose columns have wider types."""
        document = json.loads(self.table.schema().to_json())
        wider = json.loads(Schema.from_arrow(columns.schema()).to_json())["fields"]
        types = {one["name"]: one["type"] for one in wider}
        for one in document["fields"]:
            one["type"] = types[one["name"]]
        self._commit(list(adds), True, Schema.from_json(json.dumps(document)))

    def _commit(
        self, actions: list[AddAction | RemoveAction], replace: bool, schema: Schema | None,
        transactions: list[Transaction] | None = None,
    ) -> None:
        with confirmed_commit(self.path) as metadata:
            self.table.create_write_transaction(
                actions, "overwrite" if replace else "append", schema or self.table.schema(),
                commit_properties=CommitProperties(metadata, app_transactions=transactions),
            )
        self.table.update_incremental()


def table_columns(table: DeltaTable) -> Columns:
    """Return a table's columns as Spark types."""
    types, physical = {}, {}
    for one in json.loads(table.schema().to_json())["fields"]:
        types[one["name"]] = spark_type_of(one["type"])
        physical[one["name"]] = one.get("metadata", {}).get("delta.columnMapping.physicalName", one["name"])
    return Columns(types, physical)


def spark_type_of(delta: Any) -> str:
    """Return the Spark type of a type as the Delta log writes it."""
    if isinstance(delta, dict):
        return f"ARRAY<{spark_type_of(delta['elementType'])}>"
    return _SPARK.get(delta, str(delta).upper())


def may_hold(file: StateFile, name: str, ordered: OrderedValues) -> bool:
    """Return True unless statistics rule out that a file has one of these values, which are in order, in a column."""
    known = file.ranges.get(name)
    if known is None:
        return True
    first = bisect_left(ordered, known[0])
    return first < len(ordered) and bool(ordered[first] <= known[1])


def data_file(add: AddAction, columns: Columns) -> StateFile:
    """Return a file that was written but not committed."""
    facts = json.loads(add.stats)
    return StateFile(add.path, add.size, {
        name: (facts["minValues"][known], facts["maxValues"][known])
        for name, known in columns.physical.items()
        if columns.has_ranges(name) and known in facts["minValues"]
    })


class FileReader:
    """One Parquet file of a table, by row groups."""

    def __init__(self, root: str, columns: Columns, file: StateFile) -> None:
        system, base = filesystem(root)
        self._source = system.open_input_file(file_path(base, file.path))
        self._file = self._open()
        self._columns = columns
        self._there = set(self._file.schema_arrow.names)

    def _open(self) -> pq.ParquetFile:
        facts = pq.read_metadata(self._source)
        groups = (facts.row_group(group).total_byte_size for group in range(facts.num_row_groups))
        # Unbuffered, a column of a row group is read whole: the fewest requests for what fits in memory.
        buffer = ROW_GROUP_BYTES if max(groups, default=0) > 2 * ROW_GROUP_BYTES else 0
        return pq.ParquetFile(
            self._source, metadata=facts, coerce_int96_timestamp_unit="us", pre_buffer=False, buffer_size=buffer
        )

    def __enter__(self) -> FileReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close(force=True)
        self._source.close()

    @property
    def groups(self) -> int:
        """The number of row groups in the file."""
        return int(self._file.num_row_groups)

    def read(
        self, group: int, names: Iterable[str] | None = None, *, known: pa.Table | None = None
    ) -> pa.Table:
        """Read a row group's columns of bounded size: keys, positions, names. By the table's names and types.

        Columns in ``known``, which were read before, are not read again.
        """
        wanted, read = self._wanted(names, known)
        return self._typed(self._file.read_row_group(group, read, use_threads=False), wanted, known)

    def slices(
        self, group: int, names: Iterable[str] | None = None, *, known: pa.Table | None = None
    ) -> Iterator[pa.Table]:
        """Yield the rows of a row group in order, ``ROW_GROUP_BYTES`` at a time; otherwise as ``read``.

        Row groups of earlier versions may be larger than memory.
        """
        wanted, read = self._wanted(names, known)
        if not read:
            yield self.read(group, names, known=known)
            return
        first, size, batches = 0, 0, list[pa.RecordBatch]()
        for batch in self._file.iter_batches(_SLICED_ROWS, row_groups=[group], columns=read, use_threads=False):
            batches.append(batch)
            size += batch.nbytes
            if size >= ROW_GROUP_BYTES:
                yield self._slice(batches, wanted, known, first)
                first, size, batches = first + sum(each.num_rows for each in batches), 0, []
        if batches:
            yield self._slice(batches, wanted, known, first)

    def _slice(
        self, batches: Sequence[pa.RecordBatch], wanted: Sequence[str], known: pa.Table | None, first: int
    ) -> pa.Table:
        found = pa.Table.from_batches(batches).combine_chunks()
        return self._typed(found, wanted, None if known is None else known.slice(first, found.num_rows))

    def _wanted(self, names: Iterable[str] | None, known: pa.Table | None) -> tuple[list[str], list[str]]:
        """Return the names of the wanted columns, and those that the file has for the ones to read."""
        wanted = list(self._columns.types if names is None else names)
        had = set(known.column_names) if known is not None else set()
        physical = [self._columns.physical[name] for name in wanted if name not in had]
        return wanted, [name for name in physical if name in self._there]

    def _typed(self, found: pa.Table, wanted: Sequence[str], known: pa.Table | None) -> pa.Table:
        columns = []
        for name in wanted:
            if known is not None and name in known.column_names:
                columns.append(known[name])
                continue
            kind, stored = arrow_type(self._columns.types[name]), self._columns.physical[name]
            columns.append(cast(found[stored], kind) if stored in self._there else pa.nulls(found.num_rows, kind))
        return pa.table(columns, names=list(wanted))


def cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Cast a column to a wider or the same type."""
    if column.type == kind:
        return column
    if pa.types.is_timestamp(kind) and pa.types.is_timestamp(column.type) and column.type.tz and not kind.tz:
        column = column.cast(pa.timestamp("us", tz="UTC")).cast(pa.timestamp("us"))
    return column.cast(kind)


class OrderedValues:
    """A column's values without NULLs, in order; only those that a search reads become Python objects."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        column = column.drop_null()
        self._values = column.take(pc.sort_indices(column)).combine_chunks()

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, place: int) -> Any:
        return self._values[place].as_py()


def ordered_keys(rows: pa.Table, key: Iterable[str]) -> list[str]:
    """Return ``_key`` and the columns of the primary key that are whole numbers: their statistics rule out files.

    A key that is NULL matches no row; a column of it with a NULL rules out nothing.
    """
    return ["_key", *(name for name in key if name in rows.column_names
                      and pa.types.is_integer(rows.schema.field(name).type) and not rows[name].null_count)]


def now_milliseconds() -> int:
    """Return the current time as the Delta log has it."""
    return math.floor(time.time() * 1000)
