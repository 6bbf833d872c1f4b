"""The Parquet files of one state table, read and written with Arrow, committed with delta-rs.

``TableFiles`` is one version of a table. Readers stream a file by row groups, so that memory is bounded by row groups
rather than files. Written files carry statistics, so that readers and later merges skip files. A file is visible only
once ``commit`` has added it; what a task that died wrote is removed by VACUUM.
"""

from __future__ import annotations

import json
import math
import time
import uuid
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.transaction import AddAction, RemoveAction

from dblake.lake.commits import confirmed_commit
from dblake.lake.files import file_path, filesystem
from dblake.lake.tables import list_files, open_table
from dblake.state.file_statistics import statistics
from dblake.state.values import arrow_type

FILE_BYTES = 32 << 20
"""A new file ends at about this size: a merge rewrites whole files, so larger ones make few changed rows dear."""
SMALL_FILE_BYTES = 16 << 20
"""Smaller files are read whole and may be written together."""
_ROW_GROUP_ROWS = 128 << 10
_SPARK = {"long": "BIGINT", "integer": "INT", "short": "SMALLINT", "byte": "TINYINT", "timestamp_ntz": "TIMESTAMP_NTZ"}
#: Spark reads days and times before 1582 of a file that names Spark 3 or later as they are.
_WRITER = {"org.apache.spark.version": "4.0.0"}


@dataclass(frozen=True)
class DataFile:
    """One file. ``ranges`` holds the least and greatest value of some columns, where statistics have them."""

    path: str
    size: int
    ranges: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)

    @property
    def is_small(self) -> bool:
        """True if the file is worth merging with others."""
        return self.size < SMALL_FILE_BYTES


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

    def files(self) -> list[DataFile]:
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
            DataFile(path, size, {
                name: (least[n], most[n]) for name, (least, most) in ranged.items()
                if least[n] is not None and most[n] is not None
            })
            for n, (path, size) in enumerate(zip(found["path"].to_pylist(), found["size_bytes"].to_pylist(),
                                                 strict=True))
        ]

    def commit(
        self, adds: Sequence[AddAction], removed: Sequence[DataFile], app: str, batch: int,
        schema: Schema | None = None, *, replace: bool = False,
    ) -> int:
        """Commit added and removed files with the transaction identifier; return the version.

        With ``replace`` the added files replace all others, and ``schema`` the table's.
        """
        now = _milliseconds()
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


def may_hold(file: DataFile, name: str, ordered: OrderedValues) -> bool:
    """Return True unless statistics rule out that a file has one of these values, which are in order, in a column."""
    known = file.ranges.get(name)
    if known is None:
        return True
    first = bisect_left(ordered, known[0])
    return first < len(ordered) and bool(ordered[first] <= known[1])


def data_file(add: AddAction, columns: Columns) -> DataFile:
    """Return a file that was written but not committed."""
    facts = json.loads(add.stats)
    return DataFile(add.path, add.size, {
        name: (facts["minValues"][known], facts["maxValues"][known])
        for name, known in columns.physical.items()
        if columns.has_ranges(name) and known in facts["minValues"]
    })


class FileReader:
    """One Parquet file of a table, by row groups."""

    def __init__(self, root: str, columns: Columns, file: DataFile) -> None:
        system, base = filesystem(root)
        self._source = system.open_input_file(file_path(base, file.path))
        self._file = pq.ParquetFile(self._source, coerce_int96_timestamp_unit="us", pre_buffer=False)
        self._columns = columns
        self._there = set(self._file.schema_arrow.names)

    def __enter__(self) -> FileReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close(force=True)
        self._source.close()

    @property
    def groups(self) -> int:
        """The number of row groups."""
        return int(self._file.num_row_groups)

    def read(
        self, group: int, names: Iterable[str] | None = None, *, known: pa.Table | None = None
    ) -> pa.Table:
        """Read a row group: some columns, or all, by the table's names and types.

        Columns in ``known``, which were read before, are not read again.
        """
        wanted = list(self._columns.types if names is None else names)
        physical = [self._columns.physical[name] for name in wanted]
        had = set(known.column_names) if known is not None else set()
        read = [p for name, p in zip(wanted, physical, strict=True) if p in self._there and name not in had]
        found = self._file.read_row_group(group, read, use_threads=False)
        columns = []
        for name, stored in zip(wanted, physical, strict=True):
            if known is not None and name in had:
                columns.append(known[name])
                continue
            kind = arrow_type(self._columns.types[name])
            columns.append(cast(found[stored], kind) if stored in self._there else pa.nulls(found.num_rows, kind))
        return pa.table(columns, names=wanted)

    def read_all(self) -> pa.Table:
        """Read the whole file."""
        groups = [self.read(group) for group in range(self.groups)]
        return pa.concat_tables(groups) if groups else self._columns.schema().empty_table()


def cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Cast a column to a wider or the same type."""
    if column.type == kind:
        return column
    if pa.types.is_timestamp(kind) and pa.types.is_timestamp(column.type) and column.type.tz and not kind.tz:
        column = column.cast(pa.timestamp("us", tz="UTC")).cast(pa.timestamp("us"))
    return column.cast(kind)


class FileWriter:
    """Writes rows into files of healthy size; ``adds`` has their add actions after ``close``."""

    def __init__(self, root: str, columns: Columns) -> None:
        self._root, self._columns = root, columns
        self._system, self._base = filesystem(root)
        self._logical = columns.schema()
        self._schema = pa.schema([
            pa.field(columns.physical[name], arrow_type(kind)) for name, kind in columns.types.items()
        ], metadata=_WRITER)
        # A dictionary of values of which hardly two are equal is only thrown away.
        self._repeated = [
            f"{columns.physical[name]}.list.element" if pa.types.is_list(arrow_type(kind)) else columns.physical[name]
            for name, kind in columns.types.items() if name not in ("_key", "_seq")
        ]
        self._writer: pq.ParquetWriter | None = None
        self._pending: list[pa.Table] = []
        self._rows = 0
        self.adds: list[AddAction] = []

    def write(self, rows: pa.Table) -> None:
        """Write rows; columns of the table that they lack are NULL."""
        self._pending.append(pa.table(
            [cast(rows[one.name], one.type) if one.name in rows.column_names else pa.nulls(rows.num_rows, one.type)
             for one in self._logical], names=self._logical.names,
        ))
        self._rows += rows.num_rows
        if self._rows >= _ROW_GROUP_ROWS:
            self._flush()

    def close(self) -> list[AddAction]:
        """Finish the last file; return the add actions of all."""
        if self._rows:
            self._flush()
        self._finish()
        return self.adds

    def _flush(self) -> None:
        rows = pa.concat_tables(self._pending).rename_columns(self._schema.names)
        self._pending, self._rows = [], 0
        for start in range(0, rows.num_rows, _ROW_GROUP_ROWS):
            if self._writer is None:
                self._begin()
            assert self._writer is not None
            self._writer.write_table(rows.slice(start, _ROW_GROUP_ROWS), row_group_size=_ROW_GROUP_ROWS)
            if self._sink.tell() >= FILE_BYTES:
                self._finish()

    def _begin(self) -> None:
        self._name = f"part-00000-{uuid.uuid4()}-c000.snappy.parquet"
        self._sink = self._system.open_output_stream(f"{self._base}/{self._name}")
        self._facts: list[pq.FileMetaData] = []
        self._writer = pq.ParquetWriter(
            self._sink, self._schema, compression="snappy", metadata_collector=self._facts, store_schema=False,
            use_dictionary=self._repeated,
        )

    def _finish(self) -> None:
        if self._writer is None:
            return
        self._writer.close()
        size = self._sink.tell()
        self._sink.close()
        self._writer = None
        self.adds.append(
            AddAction(self._name, size, {}, _milliseconds(), True, statistics(self._facts[0]))
        )


@contextmanager
def writing(root: str, columns: Columns) -> Iterator[FileWriter]:
    """Open a writer and finish its files at the end."""
    writer = FileWriter(root, columns)
    yield writer
    writer.close()


class OrderedValues:
    """A column's values without NULLs, in order; only those that a search reads become Python objects."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        column = column.drop_null()
        self._values = column.take(pc.sort_indices(column)).combine_chunks()

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, place: int) -> Any:
        return self._values[place].as_py()


def _milliseconds() -> int:
    return math.floor(time.time() * 1000)
