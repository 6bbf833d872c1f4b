r"""Split text files of rows into lines and cells, many at a time: PostgreSQL's COPY text and MySQL's OUTFILE text.

Both separate values by tabs and rows by newlines, and write NULL as ``\N``. COPY writes a newline inside a value as
backslash and n, so a newline always ends a row; OUTFILE writes it as a backslash and the newline itself. Layouts:
PostgreSQL documentation, ``COPY``, "Text Format"; MySQL documentation, ``LOAD DATA``, with the default ``FIELDS`` and
``LINES``, as ``mysqldump --tab`` writes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from dblake.base.core.names import split_qualified
from dblake.ingest.imports.errors import file_error
from dblake.payloads.decode.escapes import find_escapes, remove_spans
from dblake.payloads.decode.grid import spans, take, with_nulls
from dblake.payloads.decode.payloads import Bytes, Index

_BLOCK_BYTES = 4 << 20
_TAB, _NEWLINE, _BACKSLASH = b"\t\n\\"
_COPY = re.compile(rb"^COPY (.+?)(?: \((.*)\))? FROM stdin;\r?\n", re.MULTILINE)
_NAME = re.compile(r'"(?:[^"]|"")*"|[^\s,]+')
_END = b"\\.\n"

_UNESCAPED = np.arange(256, dtype=np.uint8)
"""The byte that a character after a backslash means in OUTFILE text; all but these mean themselves."""
for _letter, _byte in zip(b"0bnrtZ", b"\0\b\n\r\t\x1a", strict=True):
    _UNESCAPED[_letter] = _byte


def copy_header(stream: BinaryIO, file: str, table: str) -> tuple[tuple[str, ...] | None, bytes, bool]:
    """Find the rows of a table in a file that ``pg_dump`` or COPY wrote.

    Return the names of its columns, None if the file does not give them; what was read of the rows; and True if a line
    of its own ends them. Raises Unsupported for a script without a COPY of the table.
    """
    text = stream.read(_BLOCK_BYTES)
    if not text.startswith((b"--", b"COPY ", b"SET ", b"\\restrict")) and not _COPY.search(text):
        return None, text, False
    while True:
        for match in _COPY.finditer(text):
            if _qualified(match[1]) == split_qualified(table):
                names = _NAME.findall(match[2].decode()) if match[2] else None
                return tuple(map(_unquote, names)) if names else None, text[match.end() :], True
        more = stream.read(_BLOCK_BYTES)
        if not more:
            raise file_error(
                file, f"it has no COPY of table {table}",
                next_step="write it with pg_dump --data-only --table, without --inserts; or give rows only, as COPY TO",
            )
        text = text[text.rfind(b"\n") + 1 :] + more


def copy_blocks(stream: BinaryIO, file: str, text: bytes, *, has_end: bool) -> Iterator[bytes]:
    """Yield blocks of whole lines of COPY text up to its end. Raises Unsupported if the file is cut off."""
    while True:
        if text.startswith(_END):
            return
        end = text.find(b"\n" + _END)
        if end >= 0:
            yield text[: end + 1]
            return
        # The last line stays: it may be the beginning of the end's line.
        cut = text.rfind(b"\n", 0, max(len(text) - len(_END), 0)) + 1
        if cut:
            yield text[:cut]
        text = text[cut:]
        more = stream.read(_BLOCK_BYTES)
        if not more:
            if has_end or (text and not text.endswith(b"\n")):
                raise file_error(file, "it is cut off: it ends in the middle of the rows")
            if text:
                yield text
            return
        text += more


def outfile_blocks(stream: BinaryIO, file: str) -> Iterator[bytes]:
    """Yield blocks of whole lines of OUTFILE text. Raises Unsupported if the file is cut off."""
    text = b""
    while more := stream.read(_BLOCK_BYTES):
        text += more
        ends = _line_ends(np.frombuffer(text, np.uint8))
        if len(ends):
            yield text[: int(ends[-1])]
            text = text[int(ends[-1]) :]
    if text:
        raise file_error(file, "it is cut off: it ends in the middle of a row")


def lines_of(text: bytes) -> pa.BinaryArray:
    """Return the lines of a block of COPY text, newlines included."""
    ends = np.flatnonzero(np.frombuffer(text, np.uint8) == _NEWLINE).astype(np.int32) + 1
    bounds = np.append(np.zeros(1, np.int32), ends)
    return pa.BinaryArray.from_buffers(pa.binary(), len(ends), [None, pa.py_buffer(bounds), pa.py_buffer(text)])


def copy_cells(text: bytes, columns: int, file: str) -> list[pa.BinaryArray]:
    """Return the values of a block of COPY text by column, still escaped; a NULL is its two characters."""
    data = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero(data == _NEWLINE) + 1
    bounds = _cell_bounds(ends, np.flatnonzero(data == _TAB), columns, file)
    return _by_column(take(spans(data, bounds.ravel().astype(np.int32)), 2 * np.arange(bounds.shape[0])), columns)


def outfile_cells(text: bytes, columns: int, file: str) -> list[pa.BinaryArray]:
    """Return the values of a block of OUTFILE text by column, without escapes."""
    data = np.frombuffer(text, np.uint8)
    escapes = _escapes(data)
    is_plain = np.ones(len(data) + 1, np.bool_)
    is_plain[escapes + 1] = False
    is_plain = is_plain[:-1]
    tabs = np.flatnonzero((data == _TAB) & is_plain)
    bounds = _cell_bounds(np.flatnonzero((data == _NEWLINE) & is_plain) + 1, tabs, columns, file)
    null = bounds[:, 1] - bounds[:, 0] == 2
    null[null] = (data[bounds[null, 0]] == _BACKSLASH) & (data[bounds[null, 0] + 1] == ord("N"))
    bounds[null, 0] = bounds[null, 1]
    flat: Index = bounds.ravel()
    offsets, cell = find_escapes(data, flat)
    changed, ends = data, flat.astype(np.int32)
    if len(offsets):
        changed = data.copy()
        changed[offsets + 1] = _UNESCAPED[data[offsets + 1]]
        changed, ends = remove_spans(changed, flat, offsets, cell, np.ones(len(offsets), np.int64))
    return _by_column(with_nulls(take(spans(changed, ends), 2 * np.arange(len(null))), null), columns)


def _line_ends(data: Bytes) -> Index:
    """Return the offset behind each newline that is not escaped."""
    ends = np.flatnonzero(data == _NEWLINE)
    escaped = _escapes(data) + 1
    return ends[~np.isin(ends, escaped)] + 1


def _escapes(data: Bytes) -> Index:
    """Return the offsets of the backslashes that begin an escape."""
    return find_escapes(data, np.array([0, len(data)], np.int64))[0]


def _cell_bounds(ends: Index, tabs: Index, columns: int, file: str) -> Index:
    """Return start and end of each value, row by row."""
    rows = len(ends)
    starts = np.append(np.zeros(1, np.int64), ends[:-1])[:rows]
    inner = np.searchsorted(ends, tabs, side="right")
    if len(tabs) != rows * (columns - 1) or (np.bincount(inner, minlength=rows) != columns - 1).any():
        raise file_error(
            file, f"it has a row that does not consist of {columns} values",
            next_step="give the file's columns with --columns, or export the table again without other separators",
        )
    between = tabs.reshape(rows, columns - 1)
    cells = np.empty((rows, columns, 2), np.int64)
    cells[:, 0, 0], cells[:, 1:, 0] = starts, between + 1
    cells[:, :-1, 1], cells[:, -1, 1] = between, ends - 1
    return cells.reshape(rows * columns, 2)


def _by_column(cells: pa.BinaryArray, columns: int) -> list[pa.BinaryArray]:
    return [cells.take(pa.array(np.arange(column, len(cells), columns))) for column in range(columns)]


def _qualified(name: bytes) -> tuple[str, str] | None:
    try:
        return split_qualified(name.decode())
    except ValueError:
        return None


def _unquote(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name
