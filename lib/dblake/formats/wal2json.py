"""Locate the parts of wal2json's objects (format 2) in a buffer; capture reads table layouts, decoding reads values.

Objects are not parsed one by one (decision 5). A key lies between two unescaped quotes and before a colon, and inside
strings every quote is escaped. So the few keys that matter are found by comparing words over a whole buffer; a value
reaches from its key to the next one. That holds as well where wal2json writes a type's name as invalid JSON, with
quotes in it. The meaning of the parts is left to the two halves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Index = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

LETTER = len('{"action":"')
"""Offset of an object's letter, one of BCIUDTM."""

_NAME, _VALUE, _OPTIONAL, _OLD, _KEY, _HEAD = range(1, 7)
#: A mark's first eight bytes; and, where they may also begin a string, eight more with their offset in the mark.
_MARKS = (
    (_NAME, b'"name":"', None), (_VALUE, b'"value":', None), (_KEY, b'"pk":[{"', None), (_KEY, b'"pk":[]}', None),
    (_OPTIONAL, b'"optiona', (3, b'tional":')), (_OLD, b'"identit', (4, b'ntity":[')),
    (_HEAD, b'"schema"', (1, b'schema":')),
)
_WORD_BYTES = 8


@dataclass(frozen=True, slots=True)
class Parts:
    """Offsets of the parts of consecutive objects; columns are counted through all objects.

    For each object, ``heads`` is the beginning of its schema and table. ``olds`` is the beginning of its old row, or
    the object's end if it has none. ``wrong`` is true if the object is not in wal2json's format. For each column,
    ``row`` is the number of its object, ``names`` the beginning of its name, ``values`` and ``ends`` are the bounds of
    its value.
    """

    heads: Index
    olds: Index
    row: Index
    names: Index
    values: Index
    ends: Index
    wrong: Mask


def parts(data: Bytes, starts: Index, ends: Index) -> Parts:
    """Return the parts of the objects ``data[starts[i]:ends[i]]``, which fill the buffer: row changes and truncates."""
    count = len(starts)
    offsets, kinds = _find_marks(data)
    rows = np.searchsorted(ends, offsets, side="right")
    value = np.flatnonzero(kinds == _VALUE)
    # A value's end has no mark of its own: the next mark follows after this many bytes.
    distance = np.zeros(_HEAD + 1, np.int64)
    distance[[_OPTIONAL, _NAME, _KEY]] = len(","), len("},{"), len("}],")
    previous, following = value - 1, np.minimum(value + 1, len(kinds) - 1)
    is_valid = (previous >= 0) & (distance[kinds[following]] > 0) & (rows[following] == rows[value])
    is_valid &= (kinds[previous] == _NAME) & (rows[previous] == rows[value])
    values, value_ends = offsets[value] + _WORD_BYTES, offsets[following] - distance[kinds[following]]
    is_valid &= value_ends > values
    wrong = np.bincount(rows[kinds == _HEAD], minlength=count) != 1
    wrong |= (np.bincount(rows[kinds == _KEY], minlength=count) == 1) == (data[starts + LETTER] == ord("T"))
    wrong[rows[value[~is_valid]]] = True
    olds, heads = ends.copy(), starts.copy()
    olds[rows[kinds == _OLD]] = offsets[kinds == _OLD]
    heads[rows[kinds == _HEAD]] = offsets[kinds == _HEAD]
    return Parts(heads, olds, rows[value], offsets[previous], values, value_ends, wrong)


def _find_marks(data: Bytes) -> tuple[Index, npt.NDArray[np.int8]]:
    """Return the offsets of the keys that matter, and their kinds. A key begins an object or follows a comma."""
    if len(data) <= _WORD_BYTES:
        return np.zeros(0, np.int64), np.zeros(0, np.int8)
    preceding, current = data[:-_WORD_BYTES], data[1 : len(data) - _WORD_BYTES + 1]
    quotes = np.flatnonzero((current == ord('"')) & ((preceding == ord(",")) | (preceding == ord("{")))) + 1
    words = np.ndarray((len(data) - _WORD_BYTES + 1,), "<u8", data, 0, (1,))
    first = words[quotes]
    kinds = np.zeros(len(quotes), np.int8)
    for kind, begins, more in _MARKS:
        matches = np.flatnonzero(first == int.from_bytes(begins, "little"))
        if more is not None:
            second = np.minimum(quotes[matches] + more[0], len(words) - 1)
            matches = matches[words[second] == int.from_bytes(more[1], "little")]
        kinds[matches] = kind
    is_mark = kinds > 0
    return quotes[is_mark], kinds[is_mark]
