"""Files of rows as blocks of payloads, from any row on.

Place: between ``reader``, which takes chunks of them, and the modules that know a format or a database's values.
Guarantee: the payloads are those of a chunk read of the same rows, in the order of the file; memory holds one block,
whatever the size of the file. Compressed text (``.gz``, ``.bz2``, ``.zst``) is read as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import BinaryIO, cast

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from dblake.base.core.errors import Unsupported
from dblake.base.core.names import abbreviated
from dblake.base.core.schema import TableSchema
from dblake.base.lake.files import filesystem
from dblake.ingest.imports import mysql_values, postgres_values, text_lines
from dblake.ingest.imports.errors import file_error, naming_file
from dblake.ingest.imports.spec import CSV, MYSQLDUMP, PARQUET, PG_DUMP, ImportSpec
from dblake.landing.columns import COPY

_ROWS = 10_000
_READ_BYTES = 32 << 20
_CSV_BLOCK_BYTES = 8 << 20
_BUFFER_BYTES = 4 << 20


def read_blocks(spec: ImportSpec, file: str, schema: TableSchema, payload_format: str, skip: int) -> Iterator[
    pa.BinaryArray
]:
    """Yield a file's rows as payloads of a format, without the first ``skip`` rows.

    Raises Unsupported for a file that does not exist, is damaged or cut off, or has other columns than the table.
    """
    blocks = {PARQUET: _parquet, CSV: _csv, PG_DUMP: _pg_dump, MYSQLDUMP: _mysqldump}[spec.format]
    with naming_file(file):
        yield from blocks(spec, file, schema, payload_format, skip)


def read_columns(spec: ImportSpec, file: str, table: str) -> tuple[str, ...] | None:
    """Return the names of a file's columns; None if it does not give them. Raises Unsupported as ``read_blocks``."""
    with naming_file(file):
        if spec.format == PARQUET:
            return tuple(_open_parquet(file).schema_arrow.names)
        if spec.format == CSV:
            return _csv_names(file)
        with _open_stream(file) as stream:
            return text_lines.copy_header(stream, file, table)[0] if spec.format == PG_DUMP else None


def count_rows(spec: ImportSpec) -> int | None:
    """Return the number of rows in all files; None if that needs reading them."""
    return sum(_open_parquet(file).metadata.num_rows for file in spec.files) if spec.format == PARQUET else None


def require_columns(file: str, names: Sequence[str], schema: TableSchema) -> None:
    """Raise Unsupported unless a file's columns are those of the table, in any order."""
    unknown = [name for name in names if name not in schema.names]
    missing = [name for name in schema.names if name not in names]
    if unknown or missing or len(set(names)) < len(names):
        problems = [
            *([f"it has columns that table {schema.table} has not: {abbreviated(unknown)}"] if unknown else []),
            *([f"it lacks columns of table {schema.table}: {abbreviated(missing)}"] if missing else []),
        ]
        raise file_error(file, "; ".join(problems) or "it has a column twice",
                         next_step="export all columns of the table, and no others")


def _pg_dump(
    spec: ImportSpec, file: str, schema: TableSchema, payload_format: str, skip: int
) -> Iterator[pa.BinaryArray]:
    if payload_format != COPY:
        raise file_error(file, "a MySQL or MariaDB table has no pg_dump", next_step="give --format mysqldump")
    with _open_stream(file) as stream:
        names, text, has_end = text_lines.copy_header(stream, file, schema.table)
        names = names or spec.columns or schema.names
        require_columns(file, names, schema)
        order = [names.index(name) for name in schema.names]
        for block in text_lines.copy_blocks(stream, file, text, has_end=has_end):
            lines = text_lines.lines_of(block)
            if skip >= len(lines):
                skip -= len(lines)
                continue
            cells = text_lines.copy_cells(block, len(names), file)
            columns = [postgres_values.copied_to_text(cells[at], column)
                       for at, column in zip(order, schema.columns, strict=True)]
            is_verbatim = names == schema.names and all(new is old for new, old in zip(columns, cells, strict=True))
            yield (lines if is_verbatim else postgres_values.copy_lines(columns))[skip:]
            skip = 0


def _mysqldump(
    spec: ImportSpec, file: str, schema: TableSchema, payload_format: str, skip: int
) -> Iterator[pa.BinaryArray]:
    if payload_format == COPY:
        raise file_error(file, "a PostgreSQL table has no mysqldump", next_step="give --format pg_dump")
    names = spec.columns or schema.names
    require_columns(file, names, schema)
    mysql_values.require_in_outfile(schema)
    with _open_stream(file) as stream:
        for block in text_lines.outfile_blocks(stream, file):
            cells = text_lines.outfile_cells(block, len(names), file)
            if skip >= len(cells[0]):
                skip -= len(cells[0])
                continue
            yield mysql_values.result_rows([cells[names.index(name)][skip:] for name in schema.names])
            skip = 0


def _csv(
    spec: ImportSpec, file: str, schema: TableSchema, payload_format: str, skip: int
) -> Iterator[pa.BinaryArray]:
    names = _csv_names(file)
    require_columns(file, names, schema)
    system, path = filesystem(file)
    with system.open_input_stream(path) as stream:
        reader = pa_csv.open_csv(
            stream, pa_csv.ReadOptions(block_size=_CSV_BLOCK_BYTES, use_threads=False),
            pa_csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=len(names) > 1),
            pa_csv.ConvertOptions(
                column_types={name: pa.string() for name in names}, null_values=[spec.null], strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        yield from _encoded(reader, schema, payload_format, skip)


def _csv_names(file: str) -> tuple[str, ...]:
    system, path = filesystem(file)
    with system.open_input_stream(path) as stream:
        reader = pa_csv.open_csv(stream, pa_csv.ReadOptions(block_size=_CSV_BLOCK_BYTES, use_threads=False),
                                 pa_csv.ParseOptions(newlines_in_values=True))
        return tuple(reader.schema.names)


def _parquet(
    spec: ImportSpec, file: str, schema: TableSchema, payload_format: str, skip: int
) -> Iterator[pa.BinaryArray]:
    del spec
    parquet = _open_parquet(file)
    require_columns(file, parquet.schema_arrow.names, schema)
    groups = list[int]()
    for number in range(parquet.num_row_groups):
        rows = parquet.metadata.row_group(number).num_rows
        if not groups and skip >= rows:
            skip -= rows
        else:
            groups.append(number)
    facts = [parquet.metadata.row_group(number) for number in groups]
    width = max((one.total_byte_size // max(one.num_rows, 1) for one in facts), default=0) + 1
    rows = max(min(_ROWS, _READ_BYTES // width), 1)
    batches = parquet.iter_batches(rows, row_groups=groups, columns=list(schema.names), use_threads=False)
    yield from _encoded(batches, schema, payload_format, skip)


def _open_parquet(file: str) -> pq.ParquetFile:
    system, path = filesystem(file)
    return pq.ParquetFile(system.open_input_file(path), pre_buffer=False)


def _open_stream(file: str) -> BinaryIO:
    system, path = filesystem(file)
    return cast("BinaryIO", system.open_input_stream(path, buffer_size=_BUFFER_BYTES))


def _encoded(
    batches: Iterator[pa.RecordBatch], schema: TableSchema, payload_format: str, skip: int
) -> Iterator[pa.BinaryArray]:
    """Yield rows of typed or text columns as payloads."""
    encode: Callable[[pa.RecordBatch], pa.BinaryArray] = partial(
        _copy_payload if payload_format == COPY else _mysql_payload, schema=schema
    )
    for batch in batches:
        if skip >= batch.num_rows:
            skip -= batch.num_rows
            continue
        yield encode(batch.slice(skip))
        skip = 0


def _copy_payload(batch: pa.RecordBatch, schema: TableSchema) -> pa.BinaryArray:
    texts = [postgres_values.to_text(_plain(batch[column.name]), column) for column in schema.columns]
    return postgres_values.copy_lines([postgres_values.escaped(text) for text in texts])


def _mysql_payload(batch: pa.RecordBatch, schema: TableSchema) -> pa.BinaryArray:
    return mysql_values.result_rows(
        [mysql_values.to_bytes(_plain(batch[column.name]), column) for column in schema.columns]
    )


def _plain(values: pa.Array) -> pa.Array:
    """Return a column without dictionary. Raises Unsupported for nested values, which have no one text."""
    if pa.types.is_dictionary(values.type):
        return values.dictionary_decode()
    if pa.types.is_nested(values.type):
        raise Unsupported(
            f"it has a column of type {values.type}, which has no text of its own",
            next_step="write the column as text in the server's own form",
        )
    return values
