"""Result rows of MySQL's text protocol: chunk rows to rows read.

Called by ``batch`` for landing rows of kind ``chunk``. A row is its values one after the other, each behind its
length; all rows of a block are read in lockstep, one step of all cursors per column. Promises the same text for a
value as ``binlog_rows`` makes of it, given a session that sends raw bytes (``character_set_results`` NULL), times in
+00:00 and floats as doubles. Layout: MySQL's documentation of the protocol, "Text Resultset Row".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblake.decode import mysql_numbers as numbers
from dblake.decode.columns import IMAGE, READ
from dblake.decode.grid import undecoded_names, with_nulls
from dblake.decode.mysql_cells import PAD, Cells, Text, grid_of
from dblake.decode.mysql_text import content, hexed, padded, transcoded
from dblake.decode.payloads import Bytes, Changes, Index, Payloads
from dblake.formats.mysql_types import parse

# First bytes that are no length: NULL, and lengths of two, three and eight bytes behind them.
_NULL = 251
_LONGER = {252: 2, 253: 3, 254: 8}
_INVALID = 255
_FARTHEST = 1 << 40

# Measured: more leave the processor's cache; fewer make blocks of the 10,000 rows that Spark hands over at a time,
# which must be put together again.
_BLOCK = 16_384
_ZERO, _MINUS, _NINE = b"0-9"
_IN_NUMBERS = np.isin(np.arange(256), list(b"0123456789.-"))


def decode(payloads: Payloads) -> Sequence[Changes]:
    """Rows read by chunks of one schema."""
    data = np.zeros(len(payloads.data) + PAD, np.uint8)
    data[: len(payloads.data)] = payloads.data
    readers = [_printed(column.type) for column in payloads.schema.columns]
    return [_block(payloads, data, readers, start) for start in range(0, len(payloads), _BLOCK)]


def _block(payloads: Payloads, data: Bytes, readers: Sequence[Callable[[Cells], Text]], start: int) -> Changes:
    schema = payloads.schema
    row = np.arange(start, min(start + _BLOCK, len(payloads)))
    columns = _cells(payloads, data, row, len(readers))
    texts = []
    for column, cells, read in zip(schema.columns, columns, readers, strict=True):
        text = read(cells)
        if text.wrong is not None:
            payloads.refuse(text.wrong, f"column {column.name} holds what its type has not", rows=row)
        texts.append(text)
    grid = grid_of(schema.names, range(len(texts)), texts, [cells.null for cells in columns], len(row))
    keys = [schema.names.index(n) for n in schema.primary_key]
    payloads.refuse(
        grid.without(keys), "a value of the primary key is NULL", rows=row,
        next_step=f"dump {schema.table} again with the schema it has now",
    )
    return Changes(
        op=pa.repeat(READ, len(row)), key=grid.key(keys), before=pa.nulls(len(row), IMAGE), after=grid.image(),
        partial=pa.repeat(False, len(row)), undecoded=undecoded_names(schema.names, grid.undecoded, len(row)), row=row,
    )


def _cells(payloads: Payloads, data: Bytes, row: Index, columns: int) -> list[Cells]:
    """Reads are clipped, not checked: a cursor only moves forward, so one that left its row does not end where the
    row does."""
    cursor, out = payloads.starts[row], []
    for _ in range(columns):
        first = data.take(cursor, mode="clip")
        length = first.astype(np.int64)
        cursor = cursor + 1
        null = first == _NULL
        if first.max(initial=0) >= _NULL:
            payloads.refuse(first == _INVALID, "a value has no length", rows=row)
            length[null] = 0
            for announced, width in _LONGER.items():
                longer = np.flatnonzero(first == announced)
                length[longer] = _number(data, cursor[longer], width)
                cursor[longer] += width
        out.append(Cells(data, cursor, length, null))
        cursor = cursor + length
    payloads.refuse(cursor != payloads.ends[row], f"the row has not the {columns} values of its schema", rows=row)
    return out


def _number(data: Bytes, at: Index, width: int) -> Index:
    out = np.zeros(len(at), np.uint64)
    for byte in range(width):
        out |= data.take(at + byte, mode="clip").astype(np.uint64) << np.uint64(8 * byte)
    return np.minimum(out, np.uint64(_FARTHEST)).astype(np.int64)


@lru_cache(maxsize=4096)
def _printed(spelling: str) -> Callable[[Cells], Text]:
    """Who reads what the server prints for a type."""
    column = parse(spelling)
    name = column.name
    if name in ("tinyint", "smallint", "mediumint", "int", "bigint", "decimal"):
        return _digits
    if name in ("float", "double"):
        return partial(_real, single=name == "float")
    if name == "bit":
        return partial(_bits, width=column.size)
    if name == "binary":
        return partial(_bytes, width=column.size)
    if name in ("varbinary", "tinyblob", "blob", "mediumblob", "longblob", "geometry", "vector"):
        return _bytes
    # The rest is printed as characters: of the column's character set, else (JSON, times, addresses) of UTF-8.
    return partial(_characters, charset=column.charset or "utf8mb4")


def _digits(cells: Cells) -> Text:
    """Integers and decimals, without the zeros of ZEROFILL in front and without a minus before zero."""
    raw = cells.raw()
    data, offsets = content(raw)
    if not _IN_NUMBERS[data].all():
        strange = np.append(0, np.cumsum(~_IN_NUMBERS[data]))
        return Text(hexed(raw), wrong=np.diff(strange[offsets]) > 0)
    values = raw.cast(pa.string())
    first, second = cells.data[cells.start], cells.data[cells.start + 1]
    if ((first == _ZERO) & (second >= _ZERO) & (second <= _NINE) & (cells.length > 1)).any():
        values = pc.replace_substring_regex(values, r"^0+(\d)", r"\1")
    if ((first == _MINUS) & (second == _ZERO) & (cells.length > 1)).any():
        values = pc.replace_substring_regex(values, r"^-(0(?:\.0*)?)$", r"\1")
    return Text(values)


def _real(cells: Cells, single: bool) -> Text:
    printed = with_nulls(cells.raw(), cells.null)
    try:
        read = pc.fill_null(printed.cast(pa.string()).cast(pa.float64()), 0.0).to_numpy()
    except pa.ArrowInvalid:
        return Text(hexed(printed), wrong=~cells.null)
    return Text(numbers.real_text(read.astype(np.float32) if single else read))


def _bits(cells: Cells, width: int) -> Text:
    wrong = (cells.length != (width + 7) // 8) & ~cells.null
    return Text(numbers.bits(cells, width).values, wrong=wrong if wrong.any() else None)


def _bytes(cells: Cells, width: int | None = None) -> Text:
    if width is None:
        return Text(hexed(cells.raw()))
    raw, wrong = padded(cells, width)
    return Text(hexed(raw), wrong=wrong)


def _characters(cells: Cells, charset: str) -> Text:
    return transcoded(cells.raw(), charset)
