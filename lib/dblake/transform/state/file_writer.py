"""Files of state tables, written with Arrow: row groups and files of bounded size, with the statistics that skip them.

Place: beside ``files``, which reads and commits them. Guarantee: rows that wait to be written are bounded in rows and
in bytes, as are row groups. A row that is larger is alone in its row group. No file has both tombstones and other rows:
an Iceberg snapshot leaves out the files of tombstones.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

from dblake.base.lake.files import filesystem
from dblake.transform.state.file_statistics import statistics
from dblake.transform.state.files import ROW_GROUP_BYTES, TOMBSTONES, Columns, cast, now_milliseconds
from dblake.transform.state.values import arrow_type

FILE_BYTES = 32 << 20
"""A new file ends at about this size: a merge rewrites whole files, so larger ones make few changed rows dear."""
ROWS = "part-00000"
"""How the names of files with rows that are not deleted begin."""
_ROW_GROUP_ROWS = 128 << 10
#: Spark reads days and times before 1582 of a file that names Spark 3 or later as they are.
_WRITER = {"org.apache.spark.version": "4.0.0"}


class FileWriter:
    """Writes rows into files of healthy size, and tombstones into files of their own."""

    def __init__(self, root: str, columns: Columns) -> None:
        self._rows, self._tombstones = _FileSeries(root, columns, ROWS), _FileSeries(root, columns, TOMBSTONES)

    def write(self, rows: pa.Table) -> None:
        """Write rows; columns of the table that they lack are NULL."""
        is_deleted = rows["_deleted"] if "_deleted" in rows.column_names else None
        if is_deleted is None or not pc.any(is_deleted).as_py():
            self._rows.write(rows)
        elif pc.all(pc.fill_null(is_deleted, False)).as_py():
            self._tombstones.write(rows)
        else:
            is_deleted = pc.fill_null(is_deleted, False)
            self._rows.write(rows.filter(pc.invert(is_deleted)))
            self._tombstones.write(rows.filter(is_deleted))

    def close(self) -> list[AddAction]:
        """Finish the last files; return the add actions of all."""
        return [*self._rows.close(), *self._tombstones.close()]


class _FileSeries:
    """Writes rows into files of healthy size, whose names begin with ``prefix``."""

    def __init__(self, root: str, columns: Columns, prefix: str) -> None:
        self._columns, self._prefix = columns, prefix
        self._system, self._base = filesystem(root)
        self._logical = columns.schema()
        self._schema = pa.schema([
            pa.field(columns.physical[name], arrow_type(kind)) for name, kind in columns.types.items()
        ], metadata=_WRITER)
        # Values that hardly repeat gain nothing from a dictionary.
        self._repeated = [
            f"{columns.physical[name]}.list.element" if pa.types.is_list(arrow_type(kind)) else columns.physical[name]
            for name, kind in columns.types.items() if name not in ("_key", "_seq")
        ]
        self._writer: pq.ParquetWriter | None = None
        self._pending: list[pa.Table] = []
        self._rows = self._bytes = 0
        self._adds: list[AddAction] = []

    def write(self, rows: pa.Table) -> None:
        self._pending.append(pa.table(
            [cast(rows[one.name], one.type) if one.name in rows.column_names else pa.nulls(rows.num_rows, one.type)
             for one in self._logical], names=self._logical.names,
        ))
        self._rows += rows.num_rows
        self._bytes += rows.nbytes
        if self._rows >= _ROW_GROUP_ROWS or self._bytes >= ROW_GROUP_BYTES:
            self._flush()

    def close(self) -> list[AddAction]:
        if self._rows:
            self._flush()
        self._finish()
        return self._adds

    def _flush(self) -> None:
        rows = pa.concat_tables(self._pending).rename_columns(self._schema.names)
        self._pending, self._rows, self._bytes = [], 0, 0
        for part in _row_groups(rows):
            if self._writer is None:
                self._begin()
            assert self._writer is not None
            self._writer.write_table(part, row_group_size=_ROW_GROUP_ROWS)
            if self._sink.tell() >= FILE_BYTES:
                self._finish()

    def _begin(self) -> None:
        self._name = f"{self._prefix}-{uuid.uuid4()}-c000.snappy.parquet"
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
        self._adds.append(
            AddAction(self._name, size, {}, now_milliseconds(), True, statistics(self._facts[0]))
        )


def _row_groups(rows: pa.Table) -> Iterator[pa.Table]:
    """Yield rows in order, in parts that are bounded in rows and in bytes; a larger row is alone."""
    if rows.num_rows <= 1 or (rows.num_rows <= _ROW_GROUP_ROWS and rows.nbytes <= ROW_GROUP_BYTES):
        yield rows
        return
    half = min(rows.num_rows // 2, _ROW_GROUP_ROWS)
    yield from _row_groups(rows.slice(0, half))
    yield from _row_groups(rows.slice(half))
