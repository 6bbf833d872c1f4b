"""Parquet files of a Delta table as data files of Iceberg, with the statistics of their footers.

A reader of Iceberg knows no deleted rows. So a file is one of rows, one of tombstones, or has to be written again
before it can be published.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    MetricModeTypes,
    MetricsMode,
    StatisticsCollector,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import BooleanType

from dblake.base.lake.files import file_path, file_url, filesystem, group_bounds

_NO_FIELD = -1


class Content(Enum):
    """What a file is for a reader who knows no deleted rows."""

    ROWS = "rows"
    TOMBSTONES = "tombstones"
    MIXED = "mixed"


@dataclass(frozen=True)
class FileFooter:
    """A file of a Delta table: its path there, its bytes and its Parquet metadata."""

    path: str
    size: int
    metadata: pq.FileMetaData

    def content(self, deleted: str) -> Content:
        """Return what the file is; ``deleted`` is its name for ``_deleted``."""
        facts = self.metadata
        if any(facts.schema.column(n).physical_type == "INT96" for n in range(facts.num_columns)):
            # Times of Spark's old kind, which Iceberg does not have.
            return Content.MIXED
        flags = set()
        for group in range(facts.num_row_groups):
            low, high = group_bounds(facts.row_group(group), (deleted,))
            flags |= {low.get(deleted), high.get(deleted)}
        if flags == {False}:
            return Content.ROWS
        return Content.MIXED if flags - {True} else Content.TOMBSTONES


def read_footer(table: str, path: str, size: int) -> FileFooter:
    """Read the Parquet metadata of a table's file."""
    system, base = filesystem(table)
    with system.open_input_file(file_path(base, path)) as source:
        return FileFooter(path, size, pq.read_metadata(source))


def data_file(
    table: str, footer: FileFooter, schema: Schema, properties: dict[str, str], numbers: dict[str, int]
) -> DataFile:
    """Return a file as Iceberg has it. ``numbers`` has the fields, by the path of their values in the file."""
    facts = footer.metadata
    paths = {facts.schema.column(number).path for number in range(facts.num_columns)}
    mapping = {path: numbers.get(path, _NO_FIELD) for path in paths}
    plan = dict(compute_statistics_plan(schema, properties))
    plan[_NO_FIELD] = StatisticsCollector(_NO_FIELD, BooleanType(), MetricsMode(MetricModeTypes.NONE), "")
    statistics = data_file_statistics_from_parquet_metadata(facts, plan, mapping)
    statistics.column_sizes.pop(_NO_FIELD, None)
    return DataFile.from_args(
        content=DataFileContent.DATA, file_path=file_url(table, footer.path), file_format=FileFormat.PARQUET,
        partition=Record(), file_size_in_bytes=footer.size, sort_order_id=None, spec_id=0, equality_ids=None,
        key_metadata=None, **statistics.to_serialized_dict(),
    )
