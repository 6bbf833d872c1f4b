"""Where the parts of wal2json's objects lie (format 2), for both halves: capture reads shapes, decoding reads values.

Objects are not parsed one by one. A key stands between two bare quotes and before a colon, and inside strings every
quote is escaped, so the few keys that matter are found by comparing words over a whole buffer, and a value is what
lies between its key and the next one. That also holds where wal2json writes a type's name as no JSON at all, with
quotes of its own. What the parts mean is left to the halves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Index = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

LETTER = len('{"action":"')
"""Where an object's letter stands: one of BCIUDTM."""

_NAME, _VALUE, _OPTIONAL, _OLD, _KEY, _HEAD = range(1, 7)
#: A mark's first eight bytes; and, where they may also begin a string, eight more with how far behind they lie.
_MARKS = (
    (_NAME, b'"name":"', None), (_VALUE, b'"value":', None), (_KEY, b'"pk":[{"', None), (_KEY, b'"pk":[]}', None),
    (_OPTIONAL, b'"optiona', (3, b'tional":')), (_OLD, b'"identit', (4, b'ntity":[')),
    (_HEAD, b'"schema"', (1, b'schema":')),
)
_WORD = 8


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of objects that follow one another in a buffer, columns counted through all objects.

    ``heads`` is where an object's schema and table begin, ``olds`` where its old row does (its end if it has none).
    ``row`` is the object a column belongs to, ``names`` where it begins, ``values`` and ``ends`` bound its value.
    ``wrong`` marks objects that are not as wal2json writes them.
    """

    heads: Index
    olds: Index
    row: Index
    names: Index
    values: Index
    ends: Index
    wrong: Mask


def parts(data: Bytes, starts: Index, ends: Index) -> Parts:
    """The parts of the objects ``data[starts[i]:ends[i]]``, which fill the buffer: changes of rows and truncates."""
    count = len(starts)
    places, kinds = _marks(data)
    rows = np.searchsorted(ends, places, side="right")
    value = np.flatnonzero(kinds == _VALUE)
    # An end has no mark of its own: what comes next stands so many bytes behind it.
    behind = np.zeros(_HEAD + 1, np.int64)
    behind[[_OPTIONAL, _NAME, _KEY]] = len(","), len("},{"), len("}],")
    before, after = value - 1, np.minimum(value + 1, len(kinds) - 1)
    fits = (before >= 0) & (behind[kinds[after]] > 0) & (rows[after] == rows[value])
    fits &= (kinds[before] == _NAME) & (rows[before] == rows[value])
    values, value_ends = places[value] + _WORD, places[after] - behind[kinds[after]]
    fits &= value_ends > values
    wrong = np.bincount(rows[kinds == _HEAD], minlength=count) != 1
    wrong |= (np.bincount(rows[kinds == _KEY], minlength=count) == 1) == (data[starts + LETTER] == ord("T"))
    wrong[rows[value[~fits]]] = True
    olds, heads = ends.copy(), starts.copy()
    olds[rows[kinds == _OLD]] = places[kinds == _OLD]
    heads[rows[kinds == _HEAD]] = places[kinds == _HEAD]
    return Parts(heads, olds, rows[value], places[before], values, value_ends, wrong)


def _marks(data: Bytes) -> tuple[Index, npt.NDArray[np.int8]]:
    """Where the keys that matter begin, and which they are. A key begins an object's content or follows a comma."""
    if len(data) <= _WORD:
        return np.zeros(0, np.int64), np.zeros(0, np.int8)
    before, here = data[:-_WORD], data[1 : len(data) - _WORD + 1]
    quotes = np.flatnonzero((here == ord('"')) & ((before == ord(",")) | (before == ord("{")))) + 1
    words = np.ndarray((len(data) - _WORD + 1,), "<u8", data, 0, (1,))
    first = words[quotes]
    kinds = np.zeros(len(quotes), np.int8)
    for kind, begins, more in _MARKS:
        found = np.flatnonzero(first == int.from_bytes(begins, "little"))
        if more is not None:
            further = np.minimum(quotes[found] + more[0], len(words) - 1)
            found = found[words[further] == int.from_bytes(more[1], "little")]
        kinds[found] = kind
    kept = kinds > 0
    return quotes[kept], kinds[kept]
