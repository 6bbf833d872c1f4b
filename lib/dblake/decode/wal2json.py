"""Decode wal2json's objects (format 2) to changes: inserts, updates and deletes of one schema.

Called by ``batch`` for landing rows of kind ``row``. Columns and values are located over the whole buffer
(``formats.wal2json``); the schema's column is resolved once for each name and type that occurs.

Guarantees: a value has the text that pgoutput would send. A column that was not sent is absent, never NULL. An object
is decoded or rejected.

Strings are JSON's, as PostgreSQL escapes it; a ``bytea`` is hex without its prefix, unless it has a domain. Versions up
to 2.5 send numbers unquoted, and NaN and infinity as null. In a NOT NULL column such a null counts as not sent; in
other columns it cannot be distinguished from NULL.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dblake.decode.escapes import find_escapes, remove_spans
from dblake.decode.grid import Grid, spans, take, with_nulls
from dblake.decode.payloads import Bytes, Changes, Index, Mask, Payloads
from dblake.decode.row_changes import Images, row_changes
from dblake.decode.toast import fill_unchanged
from dblake.formats import wal2json as layout

_INSERT, _UPDATE, _DELETE = b"IUD"
_QUOTE, _BACKSLASH, _NULL, _TRUE, _FALSE = b'"\\ntf'

_UNESCAPED = np.zeros(256, np.uint8)
"""The byte that each letter after a backslash means, except ``u``; 0 for letters that the server does not write."""
for _letter, _byte in zip(b'bfnrt"\\', b'\b\f\n\r\t"\\', strict=True):
    _UNESCAPED[_letter] = _byte
_HEX = np.full(256, 255, np.uint8)
for _digit in b"0123456789abcdef":
    _HEX[_digit] = int(chr(_digit), 16)
_NUMERIC = np.zeros(256, np.bool_)
_NUMERIC[list(b"0123456789-")] = True


def decode(payloads: Payloads) -> Sequence[Changes]:
    """Return the changes of insert, update and delete objects of one schema. Raises ReconcileError."""
    data, starts = payloads.data, payloads.starts
    payloads.reject(payloads.ends - starts <= layout.LETTER, "the object is cut short")
    letter = data[starts + layout.LETTER]
    payloads.reject(
        (letter != _INSERT) & (letter != _UPDATE) & (letter != _DELETE), "the object is no insert, update or delete"
    )
    parts = layout.parts(data, starts, payloads.ends)
    payloads.reject(parts.wrong, "the object is not in wal2json's format 2")
    cells = _find_cells(payloads, parts)
    olds, news = np.flatnonzero(parts.olds < payloads.ends), np.flatnonzero(letter != _DELETE)
    old_of = np.full(len(payloads), -1)
    old_of[olds] = np.arange(len(olds))
    old = _grid(payloads, cells, cells.old, olds)
    new = fill_unchanged(_grid(payloads, cells, ~cells.old, news), old, old_of[news])
    return row_changes(
        payloads, Images(olds, old, letter[olds] == _DELETE), Images(news, new, letter[news] == _INSERT), old_of[news],
        key_missing=f"ALTER TABLE {payloads.schema.table} REPLICA IDENTITY DEFAULT, then dump the table again; a key"
        " that is NaN or infinite needs wal2json 2.6 or later",
    )


@dataclass(frozen=True, slots=True)
class _Cells:
    """All values that were sent: row, column, which are of old rows, the text's bounds, and which are NULL."""

    row: Index
    column: Index
    old: Mask
    data: Bytes
    bounds: npt.NDArray[np.int32]
    null: Mask


def _find_cells(payloads: Payloads, parts: layout.Parts) -> _Cells:
    column = _resolve_columns(payloads, parts)
    data, starts, ends = payloads.data, parts.values.copy(), parts.ends.copy()
    first = data[starts]
    quoted, null, boolean = first == _QUOTE, first == _NULL, (first == _TRUE) | (first == _FALSE)
    is_valid = np.where(quoted, (data[ends - 1] == _QUOTE) & (ends - starts > 1), null | boolean | _NUMERIC[first])
    payloads.reject(~is_valid, "a value is neither text, number, boolean nor null", rows=parts.row)
    starts += quoted
    ends -= quoted
    ends[null] = starts[null]
    ends[boolean] = starts[boolean] + 1
    binary = np.array([c.type == "bytea" for c in payloads.schema.columns], np.bool_)[column]
    binary &= quoted & ((ends == starts) | (data[starts] != _BACKSLASH))
    bounds = np.stack((starts, ends), axis=1).ravel()
    text, moved = _unescape(payloads, parts.row, bounds)
    if binary.any():
        # The prefix \x takes the room of the colon and the quote before the text.
        text = text.copy()
        prefixes = moved[::2][binary] - 2
        text[prefixes], text[prefixes + 1] = _BACKSLASH, ord("x")
        moved[::2][binary] = prefixes
    cells = _Cells(parts.row, column, parts.values > parts.olds[parts.row], text, moved, null)
    return _drop_unexpressible(payloads, cells)


def _resolve_columns(payloads: Payloads, parts: layout.Parts) -> Index:
    """Return the number of each value's column in the schema."""
    bounds = np.stack((parts.names, parts.values), axis=1).ravel().astype(np.int32)
    names = take(spans(payloads.data, bounds), 2 * np.arange(len(parts.names))).dictionary_encode()
    number_of = {name: n for n, name in enumerate(payloads.schema.names)}
    numbers = np.array([number_of.get(_read_name(text), -1) for text in names.dictionary.to_pylist()], np.int64)
    column = numbers[names.indices.to_numpy()]
    payloads.reject(column < 0, "a column is not in its schema", rows=parts.row)
    return np.asarray(column)


def _read_name(text: bytes) -> str:
    """Return the name in ``"name":"id","type":"integer","value":``."""
    name: str = json.JSONDecoder().raw_decode(text.decode().removeprefix('"name":'))[0]
    return name


def _drop_unexpressible(payloads: Payloads, cells: _Cells) -> _Cells:
    """Return the cells without nulls in NOT NULL columns: they replace values that JSON cannot express."""
    is_replaced = np.array([not c.nullable for c in payloads.schema.columns], np.bool_)[cells.column] & cells.null
    if not is_replaced.any():
        return cells
    kept = np.flatnonzero(~is_replaced)
    bounds = np.stack((cells.bounds[::2][kept], cells.bounds[1::2][kept]), axis=1).ravel()
    return _Cells(cells.row[kept], cells.column[kept], cells.old[kept], cells.data, bounds, cells.null[kept])


def _grid(payloads: Payloads, cells: _Cells, which: Mask, rows: Index) -> Grid:
    """Return the rows of some objects. Columns may be in any order, although wal2json keeps the schema's."""
    names = payloads.schema.names
    row_number = np.full(len(payloads), -1)
    row_number[rows] = np.arange(len(rows))
    chosen = np.flatnonzero(which)
    cell = row_number[cells.row[chosen]] * len(names) + cells.column[chosen]
    order = np.argsort(cell, kind="stable")
    chosen, cell = chosen[order], cell[order]
    payloads.reject(np.append(False, cell[1:] == cell[:-1]), "a column was sent twice", rows=cells.row[chosen])
    present = np.zeros(len(rows) * len(names), np.bool_)
    present[cell] = True
    raw = take(spans(cells.data, cells.bounds), 2 * chosen)
    return Grid.of(names, with_nulls(raw, cells.null[chosen]), present.reshape(len(rows), len(names)))


def _unescape(payloads: Payloads, row: Index, bounds: Index) -> tuple[Bytes, npt.NDArray[np.int32]]:
    """Return the data with its escapes resolved, and the bounds of the values in it."""
    data = payloads.data
    escapes, cell = find_escapes(data, bounds)
    if len(escapes) == 0:
        return data, bounds.astype(np.int32)
    letter = data[escapes + 1]
    is_long = letter == ord("u")
    unescaped = _UNESCAPED[letter]
    digits = _HEX[data[escapes[is_long, None] + np.arange(2, 6)]]
    # PostgreSQL writes control characters in this form, and nothing else.
    unescaped[is_long] = np.where(
        (digits[:, :2] == 0).all(axis=1) & (digits[:, 2] < 8), digits[:, 2] * 16 + digits[:, 3], 0
    )
    payloads.reject(unescaped == 0, "a string has an escape that PostgreSQL does not write", rows=row[cell // 2])
    lengths = np.where(is_long, 5, 1)
    changed = data.copy()
    changed[escapes + lengths] = unescaped
    return remove_spans(changed, bounds, escapes, cell, lengths)
