"""Decode result rows of MySQL's text protocol, one per chunk row, to rows read.

Called by ``batch`` for landing rows of kind ``chunk``. A row is its values one after the other, each behind its
length; all rows of a block are read in lockstep, one step of all cursors per column. Guarantee: a value has the
same text as in ``binlog_rows`` if the session sends raw bytes (``character_set_results`` NULL), times in +00:00 and
floats as doubles. Layout: MySQL's documentation of the protocol, "Text Resultset Row".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblake.base.core.op import Op
from dblake.payloads.decode import mysql_numbers as numbers
from dblake.payloads.decode.columns import IMAGE
from dblake.payloads.decode.grid import undecoded_names, with_nulls
from dblake.payloads.decode.mysql_cells import PAD_BYTES, Cells
from dblake.payloads.decode.mysql_columns import Text, grid_of
from dblake.payloads.decode.mysql_text import content, padded, to_hex, to_utf8
from dblake.payloads.decode.payloads import Bytes, Changes, Index, Payloads
from dblake.payloads.formats.mysql_types import parse

_NULL, _INVALID = 251, 255
_LONG_LENGTHS = {252: 2, 253: 3, 254: 8}
"""First bytes that announce a length of 2, 3 or 8 bytes; those below 251 are lengths themselves."""
_MAX_LENGTH = 1 << 40
"""Greater lengths are clipped, so that adding them to an offset cannot overflow."""

_BLOCK_ROWS = 16_384
"""Measured: more leave the processor's cache; fewer split the 10,000 rows of Spark's batches, to be joined again."""
_ZERO, _MINUS, _NINE = b"0-9"

_Reader = Callable[[Cells], Text]
_IS_NUMERIC = np.isin(np.arange(256), list(b"0123456789.-"))


def decode(payloads: Payloads) -> Sequence[Changes]:
    """Return the rows that chunks of one schema read. Raises ReconcileError."""
    data = np.zeros(len(payloads.data) + PAD_BYTES, np.uint8)
    data[: len(payloads.data)] = payloads.data
    readers = {column: _reader(payloads.schema.columns[column].type) for column in payloads.columns_to_decode}
    return [_decode_block(payloads, data, readers, start) for start in range(0, len(payloads), _BLOCK_ROWS)]


def _decode_block(payloads: Payloads, data: Bytes, readers: Mapping[int, _Reader], start: int) -> Changes:
    schema = payloads.schema
    names = tuple(schema.names[column] for column in readers)
    row = np.arange(start, min(start + _BLOCK_ROWS, len(payloads)))
    columns = _find_cells(payloads, data, row, len(schema.columns))
    texts = []
    for column, read in readers.items():
        text = read(columns[column])
        if text.wrong is not None:
            name = schema.names[column]
            payloads.reject(text.wrong, f"column {name} has a value that is not one of its type", rows=row)
        texts.append(text)
    grid = grid_of(names, range(len(texts)), texts, [columns[column].null for column in readers], len(row))
    keys = [names.index(n) for n in schema.primary_key]
    payloads.reject(
        grid.without(keys), "a value of the primary key is NULL", rows=row,
        next_step=f"dump {schema.table} again with its current schema",
    )
    return Changes(
        op=pa.repeat(Op.READ, len(row)), key=grid.key(keys), before=pa.nulls(len(row), IMAGE), after=grid.image(),
        partial=pa.repeat(False, len(row)), undecoded=undecoded_names(names, grid.undecoded, len(row)), row=row,
    )


def _find_cells(payloads: Payloads, data: Bytes, row: Index, columns: int) -> list[Cells]:
    """Return the cells of each column.

    Reads are clipped, not checked: a cursor only moves forward, so one that left its row does not end where the row
    does, which is detected behind the last column.
    """
    cursor, out = payloads.starts[row], []
    for _ in range(columns):
        first = data.take(cursor, mode="clip")
        length = first.astype(np.int64)
        cursor = cursor + 1
        null = first == _NULL
        if first.max(initial=0) >= _NULL:
            payloads.reject(first == _INVALID, "a value has no length", rows=row)
            length[null] = 0
            for announced, width in _LONG_LENGTHS.items():
                longer = np.flatnonzero(first == announced)
                length[longer] = _read_lengths(data, cursor[longer], width)
                cursor[longer] += width
        out.append(Cells(data, cursor, length, null))
        cursor = cursor + length
    payloads.reject(
        cursor != payloads.ends[row], f"the row does not consist of the {columns} values of its schema", rows=row
    )
    return out


def _read_lengths(data: Bytes, offsets: Index, width: int) -> Index:
    out = np.zeros(len(offsets), np.uint64)
    for byte in range(width):
        out |= data.take(offsets + byte, mode="clip").astype(np.uint64) << np.uint64(8 * byte)
    return np.minimum(out, np.uint64(_MAX_LENGTH)).astype(np.int64)


@lru_cache(maxsize=4096)
def _reader(spelling: str) -> _Reader:
    """Return the function that reads what the server prints for a type."""
    column = parse(spelling)
    name = column.name
    if name in ("tinyint", "smallint", "mediumint", "int", "bigint", "decimal"):
        return _read_digits
    if name in ("float", "double"):
        return partial(_read_real, single=name == "float")
    if name == "bit":
        return partial(_read_bits, width=column.size)
    if name == "binary":
        return partial(_read_bytes, width=column.size)
    if name in ("varbinary", "tinyblob", "blob", "mediumblob", "longblob", "geometry", "vector"):
        return _read_bytes
    # All others are printed as characters: of the column's character set, else (JSON, times, addresses) of UTF-8.
    return partial(_read_characters, charset=column.charset or "utf8mb4")


def _read_digits(cells: Cells) -> Text:
    """Read integers and decimals, without the leading zeros of ZEROFILL and without a minus before zero."""
    raw = cells.raw()
    data, offsets = content(raw)
    if not _IS_NUMERIC[data].all():
        other_bytes = np.append(0, np.cumsum(~_IS_NUMERIC[data]))
        return Text(to_hex(raw), wrong=np.diff(other_bytes[offsets]) > 0)
    values = raw.cast(pa.string())
    first, second = cells.data[cells.start], cells.data[cells.start + 1]
    if ((first == _ZERO) & (second >= _ZERO) & (second <= _NINE) & (cells.length > 1)).any():
        values = pc.replace_substring_regex(values, r"^0+(\d)", r"\1")
    if ((first == _MINUS) & (second == _ZERO) & (cells.length > 1)).any():
        values = pc.replace_substring_regex(values, r"^-(0(?:\.0*)?)$", r"\1")
    return Text(values)


def _read_real(cells: Cells, single: bool) -> Text:
    printed = with_nulls(cells.raw(), cells.null)
    try:
        read = pc.fill_null(printed.cast(pa.string()).cast(pa.float64()), 0.0).to_numpy()
    except pa.ArrowInvalid:
        return Text(to_hex(printed), wrong=~cells.null)
    return Text(numbers.real_text(read.astype(np.float32) if single else read))


def _read_bits(cells: Cells, width: int) -> Text:
    wrong = (cells.length != (width + 7) // 8) & ~cells.null
    return Text(numbers.bits(cells, width).values, wrong=wrong if wrong.any() else None)


def _read_bytes(cells: Cells, width: int | None = None) -> Text:
    if width is None:
        return Text(to_hex(cells.raw()))
    raw, wrong = padded(cells, width)
    return Text(to_hex(raw), wrong=wrong)


def _read_characters(cells: Cells, charset: str) -> Text:
    return to_utf8(cells.raw(), charset)
