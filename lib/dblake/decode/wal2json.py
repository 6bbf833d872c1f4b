"""wal2json's objects (format 2) to changes: inserts, updates and deletes of one schema.

Called by ``batch`` for landing rows of kind ``row``. Where columns and values lie is found over the whole buffer
(``formats.wal2json``); which column of the schema a name means is asked once for each name and type that occurs.
Promises the text that pgoutput would send for a value, that a column which was not sent is absent, never NULL, and
that an object is either understood or refused. Strings are JSON's, as PostgreSQL escapes it; a ``bytea`` is hex
without its prefix, unless a domain is over it. Versions up to 2.5 send numbers bare, and NaN and infinity as null:
in a column that may not be NULL such a value counts as not sent, in others it is not told from NULL.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dblake.decode.escapes import announcing, without
from dblake.decode.grid import Grid, spans, take, with_nulls
from dblake.decode.payloads import Bytes, Changes, Index, Mask, Payloads
from dblake.decode.row_changes import Images, row_changes
from dblake.decode.toast import fill_unchanged
from dblake.formats import wal2json as layout

_INSERT, _UPDATE, _DELETE = b"IUD"
_QUOTE, _BACKSLASH, _NULL, _TRUE, _FALSE = b'"\\ntf'

#: What stands after a backslash, to the byte it means; 0 is no escape the server writes. ``u`` is another matter.
_MEANS = np.zeros(256, np.uint8)
for _letter, _byte in zip(b'bfnrt"\\', b'\b\f\n\r\t"\\', strict=True):
    _MEANS[_letter] = _byte
_HEX = np.full(256, 255, np.uint8)
for _digit in b"0123456789abcdef":
    _HEX[_digit] = int(chr(_digit), 16)
_NUMERIC = np.zeros(256, np.bool_)
_NUMERIC[list(b"0123456789-")] = True


def decode(payloads: Payloads) -> Sequence[Changes]:
    """Changes of insert, update and delete objects of one schema."""
    data, starts = payloads.data, payloads.starts
    payloads.refuse(payloads.ends - starts <= layout.LETTER, "the object is cut short")
    letter = data[starts + layout.LETTER]
    payloads.refuse(
        (letter != _INSERT) & (letter != _UPDATE) & (letter != _DELETE), "the object is no insert, update or delete"
    )
    parts = layout.parts(data, starts, payloads.ends)
    payloads.refuse(parts.wrong, "the object is not as wal2json writes it")
    cells = _cells(payloads, parts)
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
    """All values that were sent: row, column, which are of old rows, where the text lies, and which are NULL."""

    row: Index
    column: Index
    old: Mask
    data: Bytes
    bounds: npt.NDArray[np.int32]
    null: Mask


def _cells(payloads: Payloads, parts: layout.Parts) -> _Cells:
    column = _columns(payloads, parts)
    data, starts, ends = payloads.data, parts.values.copy(), parts.ends.copy()
    first = data[starts]
    quoted, null, boolean = first == _QUOTE, first == _NULL, (first == _TRUE) | (first == _FALSE)
    known = np.where(quoted, (data[ends - 1] == _QUOTE) & (ends - starts > 1), null | boolean | _NUMERIC[first])
    payloads.refuse(~known, "a value is none that wal2json writes", rows=parts.row)
    starts += quoted
    ends -= quoted
    ends[null] = starts[null]
    ends[boolean] = starts[boolean] + 1
    binary = np.array([c.type == "bytea" for c in payloads.schema.columns], np.bool_)[column]
    binary &= quoted & ((ends == starts) | (data[starts] != _BACKSLASH))
    bounds = np.stack((starts, ends), axis=1).ravel()
    text, moved = _unescaped(payloads, parts.row, bounds)
    if binary.any():
        # A colon and a quote stand before the text, where nobody needs them.
        text = text.copy()
        places = moved[::2][binary] - 2
        text[places], text[places + 1] = _BACKSLASH, ord("x")
        moved[::2][binary] = places
    return _told(payloads, _Cells(parts.row, column, parts.values > parts.olds[parts.row], text, moved, null))


def _columns(payloads: Payloads, parts: layout.Parts) -> Index:
    """Which column of the schema each value is of."""
    bounds = np.stack((parts.names, parts.values), axis=1).ravel().astype(np.int32)
    names = take(spans(payloads.data, bounds), 2 * np.arange(len(parts.names))).dictionary_encode()
    number = {name: n for n, name in enumerate(payloads.schema.names)}
    known = np.array([number.get(_name(text), -1) for text in names.dictionary.to_pylist()], np.int64)
    column = known[names.indices.to_numpy()]
    payloads.refuse(column < 0, "a column is none of its schema", rows=parts.row)
    return np.asarray(column)


def _name(text: bytes) -> str:
    """The name in ``"name":"id","type":"integer","value":``."""
    name: str = json.JSONDecoder().raw_decode(text.decode().removeprefix('"name":'))[0]
    return name


def _told(payloads: Payloads, cells: _Cells) -> _Cells:
    """The cells without nulls that stand for something else: a column that may not be NULL holds what JSON cannot."""
    never = np.array([not c.nullable for c in payloads.schema.columns], np.bool_)[cells.column] & cells.null
    if not never.any():
        return cells
    kept = np.flatnonzero(~never)
    bounds = np.stack((cells.bounds[::2][kept], cells.bounds[1::2][kept]), axis=1).ravel()
    return _Cells(cells.row[kept], cells.column[kept], cells.old[kept], cells.data, bounds, cells.null[kept])


def _grid(payloads: Payloads, cells: _Cells, which: Mask, rows: Index) -> Grid:
    """The rows of some objects. wal2json sends columns in the schema's order, but that is not relied on."""
    names = payloads.schema.names
    place = np.full(len(payloads), -1)
    place[rows] = np.arange(len(rows))
    chosen = np.flatnonzero(which)
    at = place[cells.row[chosen]] * len(names) + cells.column[chosen]
    order = np.argsort(at, kind="stable")
    chosen, at = chosen[order], at[order]
    payloads.refuse(np.append(False, at[1:] == at[:-1]), "a column was sent twice", rows=cells.row[chosen])
    present = np.zeros(len(rows) * len(names), np.bool_)
    present[at] = True
    raw = take(spans(cells.data, cells.bounds), 2 * chosen)
    return Grid.of(names, with_nulls(raw, cells.null[chosen]), present.reshape(len(rows), len(names)))


def _unescaped(payloads: Payloads, row: Index, bounds: Index) -> tuple[Bytes, npt.NDArray[np.int32]]:
    """The data without backslashes that only announce something, and where the values lie in it."""
    data = payloads.data
    found, cell = announcing(data, bounds)
    if len(found) == 0:
        return data, bounds.astype(np.int32)
    letter = data[found + 1]
    long = letter == ord("u")
    means = _MEANS[letter]
    digits = _HEX[data[found[long, None] + np.arange(2, 6)]]
    # PostgreSQL writes so what lies below a blank, and nothing else.
    means[long] = np.where((digits[:, :2] == 0).all(axis=1) & (digits[:, 2] < 8), digits[:, 2] * 16 + digits[:, 3], 0)
    payloads.refuse(means == 0, "a string has an escape that PostgreSQL does not write", rows=row[cell // 2])
    lengths = np.where(long, 5, 1)
    changed = data.copy()
    changed[found + lengths] = means
    return without(changed, bounds, found, cell, lengths)
