"""Events of one table → one row per key: the state of the table after all of them, in order.

``fold`` is a function from Arrow to Arrow, without loops over rows. Tasks call it for the events of a table in a step,
or for a key range of a large table. Guarantee: the result is the same whether events are folded at once or in steps.
Only ``_missing`` may differ: it may name a column that was added or dropped since the event that lacks it, until the
row is written again. The rules:

- ``c`` and ``r`` begin a row. A column they lack never keeps its previous value. If the event's schema has the column,
  it was not sent: it becomes NULL and is missing. If not, it is NULL. ``d`` is a whole row, too: a tombstone with
  nothing but its key.
- A partial ``c`` of a key change does not begin a row, but continues its old key's row (``lineage``).
- ``u`` and ``f`` supply the columns they carry; the others keep their value. Of a key without a row they are missing.
- ``t`` makes a tombstone, at its own position, of every row of the table before it. Rows that only the state table
  has are left to ``upsert``.

A table without a primary key is append-only: each ``c`` is a row of state; updates, deletes and truncates of it exist
in events only. Values are typed last, once per key. What cannot be typed is NULL and named in ``_lossy``.
"""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblake.base.core.arrays import join_chunks
from dblake.base.core.op import Op
from dblake.base.core.position import Position
from dblake.base.core.positions import is_older, position_parts
from dblake.transform.spark.types import TEXT
from dblake.transform.state.images import EventImages
from dblake.transform.state.lineage import RowEvents, trace
from dblake.transform.state.shape import OWN, Shape
from dblake.transform.state.values import arrow_type, read_texts

#: The columns of events that a fold reads.
NEEDED = (
    "incarnation", "lsn", "seq", "op", "key", "after", "partial", "undecoded", "batch", "key_before",
)
UNKNOWN = "_unknown"
MOVED_FROM = "_moved_from"
_NAMES = pa.list_(pa.string())
_SPECIAL = r'["\\\x00-\x1f]'


def fold(events: pa.Table, shape: Shape, truncated_at: Position | None) -> pa.Table:
    """Fold the events of one table, or of a range of its keys.

    ``events`` has the columns ``NEEDED``. ``truncated_at`` is the newest truncate of the table in the whole step, other
    key ranges included.

    Returns the columns ``OWN``, ``_unknown``, ``_moved_from`` and the typed columns of the shape. ``_unknown`` names
    the columns that no event supplied: only the state table can have their values. ``_moved_from`` is the key whose row
    there has them, NULL if it is the row's own. ``_missing`` names the columns whose value is in neither.
    """
    events = events.combine_chunks()
    if not shape.primary_key:
        rows = _Rows(events.filter(pc.equal(events["op"], Op.CREATE)), shape, None)
        count = len(rows)
        every = np.arange(count)
        none = pa.nulls(count, pa.string())
        return _folded(shape, rows, every, [every] * len(shape.columns), none, none, None)
    rows = _Rows(events.filter(pc.not_equal(events["op"], Op.TRUNCATE)), shape, truncated_at)
    keys = key_texts(rows.keys, shape.primary_key).dictionary_encode(null_encoding="encode")
    codes, groups = keys.indices.to_numpy(), len(keys.dictionary)
    order = rows.order()
    newest, names = _last(codes, order, groups), keys.dictionary.cast(pa.string())
    lines, count, line_of, moved_from = codes, groups, np.arange(groups), pa.nulls(groups, pa.string())
    if rows.moved.any():
        old_keys = key_texts(rows.old_keys, shape.primary_key)
        traced = trace(RowEvents(codes, names, order, rows.begins, rows.deleted, rows.moved, old_keys))
        rows.begins &= ~traced.continues
        lines, count, line_of = traced.of_event, len(traced.source), traced.of_event[newest]
        origin = traced.source[line_of]
        moved_from = names.take(pa.array(origin, mask=(origin < 0) | (origin == np.arange(groups))))
    sources = [
        newest if c.name in shape.primary_key else _last(lines, order[carried[order]], count)[line_of]
        for c, carried in ((c, rows.carried(c.name)) for c in shape.columns)
    ]
    return _folded(shape, rows, newest, sources, names, moved_from, truncated_at)


def key_texts(keys: pa.Array, names: tuple[str, ...]) -> pa.Array:
    """Return each row's key as one string, which state compares for equality, never for order.

    ``keys`` is a column of maps, ``names`` are the key columns in key order. Two keys have the same string exactly if
    the source sent the same texts: one column's key is its text unchanged, several columns make a JSON array. The
    order of keys is left to the database (collations, padding). Chunk windows compare another string, which
    ``decode.row_keys`` builds.
    """
    parts = EventImages(keys)
    texts = [parts.texts(name, np.arange(len(keys))) for name in names]
    if len(texts) == 1:
        return texts[0]
    quoted = [pc.fill_null(pc.binary_join_element_wise('"', _escaped(text), '"', ""), "null") for text in texts]
    inner = pc.binary_join_element_wise(*quoted, ",")
    return pc.binary_join_element_wise("[", inner, "]", "")


def _escaped(texts: pa.Array) -> pa.Array:
    """Escape texts as JSON does, without their quotes."""
    special = pc.fill_null(pc.match_substring_regex(texts, _SPECIAL), False)
    if not pc.any(special, min_count=0).as_py():
        return texts
    odd = [_jackson(text) for text in texts.filter(special).to_pylist()]
    return pc.replace_with_mask(texts, special, pa.array(odd, pa.string()))


def _jackson(text: str) -> str:
    escaped = json.dumps(text, ensure_ascii=False)[1:-1]
    for code in range(32):
        escaped = escaped.replace(f"\\u{code:04x}", f"\\u{code:04X}")
    return escaped


def _last(codes: np.ndarray, order: np.ndarray, groups: int) -> np.ndarray:
    """For each group the last row of ``order`` in it; -1 without one."""
    last = np.full(groups, -1, np.int64)
    # Of several values for one place numpy keeps the last.
    last[codes[order]] = order
    return last


class _Rows:
    """Row events as the fold sees them: those before the truncate are deletes at the truncate."""

    def __init__(self, events: pa.Table, shape: Shape, truncated_at: Position | None) -> None:
        self.keys = _chunk(events, "key")
        self._after = EventImages(_chunk(events, "after"))
        self._in_key = EventImages(self.keys)
        self.at = [_chunk(events, name).to_numpy(zero_copy_only=False).astype(np.int64) for name in Position.COLUMNS]
        ops = _chunk(events, "op")
        self.voided = self._void(truncated_at)
        self.deleted = _mask(pc.equal(ops, Op.DELETE)) | self.voided
        self.begins = _mask(pc.is_in(ops, value_set=pa.array([Op.CREATE, Op.READ]))) | self.deleted
        self._partial = _mask(_chunk(events, "partial"))
        self.old_keys = _chunk(events, "key_before")
        self.moved = _mask(pc.is_valid(self.old_keys)) & self._partial & ~self.voided
        self._undecoded = _chunk(events, "undecoded")
        self._key_columns = set(shape.primary_key)
        self._carried: dict[str, np.ndarray] = {}

    def __len__(self) -> int:
        return len(self.keys)

    def _void(self, truncated_at: Position | None) -> np.ndarray:
        if truncated_at is None:
            return np.zeros(len(self), bool)
        limit = position_parts(truncated_at)
        older = is_older(self.at, limit)
        self.at = [np.where(older, part, own) for own, part in zip(self.at, limit, strict=True)]
        return older

    def order(self) -> np.ndarray:
        """Return the rows by position."""
        incarnation, lsn, seq = self.at
        before = [part[:-1] for part in self.at]
        if not is_older([part[1:] for part in self.at], before).any():
            return np.arange(len(self))
        return np.lexsort((seq, lsn, incarnation))

    def _has(self, name: str) -> np.ndarray:
        if name not in self._carried:
            self._carried[name] = (self._after.entries(name) >= 0) & ~self.deleted
        return self._carried[name]

    def carried(self, name: str) -> np.ndarray:
        """Return True where an event decides what a column holds."""
        carried: np.ndarray = self.begins | self._has(name)
        return carried

    def texts(self, name: str, rows: np.ndarray) -> pa.Array:
        """Return the texts of a column in some rows."""
        if name in self._key_columns:
            return self._in_key.texts(name, rows)
        kept = np.where((rows >= 0) & self._pick(self.deleted, rows), -1, rows)
        return self._after.texts(name, kept)

    def missing(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Return True where the event that begins a row does not have the column though its schema does."""
        lacks: np.ndarray = (self.deleted | self._partial) & ~self._has(name)
        missing: np.ndarray = (rows >= 0) & self._pick(lacks, rows)
        return missing

    def hexed(self) -> dict[str, np.ndarray]:
        """For each column named in ``undecoded``, where its text is the hex of bytes that are no text."""
        if not len(self._undecoded.flatten()):
            return {}
        lengths = pc.fill_null(pc.list_value_length(self._undecoded), 0).to_numpy()
        names = self._undecoded.flatten()
        row_of = np.repeat(np.arange(len(self)), lengths)
        found = {}
        for name in pc.unique(names).to_pylist():
            where = np.zeros(len(self), bool)
            where[row_of[_mask(pc.equal(names, name))]] = True
            found[name] = where & ~self.voided
        return found

    @staticmethod
    def _pick(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return values[rows] if len(values) else np.zeros(len(rows), bool)

    def positions(self, rows: np.ndarray) -> list[pa.Array]:
        return [pa.array(part[rows]) for part in self.at]


def _folded(
    shape: Shape, rows: _Rows, newest: np.ndarray, sources: list[np.ndarray], keys: pa.Array,
    moved_from: pa.Array, truncated_at: Position | None,
) -> pa.Table:
    """Build the folded rows: column ``n`` of key ``k`` comes from event ``sources[n][k]``, or from none (-1)."""
    count = len(newest)
    hexed = rows.hexed()
    columns: dict[str, pa.Array] = {}
    lossy: dict[str, np.ndarray] = {}
    unknown: dict[str, np.ndarray] = {}
    missing: dict[str, np.ndarray] = {}
    deleted = rows.deleted[newest] if shape.primary_key else np.zeros(count, bool)
    for column, source in zip(shape.columns, sources, strict=True):
        name = column.name
        text = rows.texts(name, source)
        typed = columns[name] = read_texts(column.type, text)
        lost = np.zeros(count, bool)
        if name in hexed:
            lost |= (source >= 0) & rows._pick(hexed[name], source)
        if column.type != TEXT and typed.null_count != text.null_count:
            lost |= _mask(pc.and_(pc.is_null(typed), pc.is_valid(text)))
        lossy[name] = lost
        if shape.primary_key and name not in shape.primary_key:
            unknown[name] = source < 0
            missing[name] = rows.missing(name, source) & ~deleted
    if truncated_at is not None:
        # What the state table has is from before the truncate.
        missing = {name: mask | (unknown[name] & ~deleted) for name, mask in missing.items()}
        unknown = {}
    incarnation, lsn, seq = rows.positions(newest)
    own = {
        "_key": keys, "_incarnation": incarnation, "_lsn": lsn, "_seq": seq, "_deleted": pa.array(deleted),
        "_lossy": name_lists(lossy, count), "_missing": name_lists(missing, count), UNKNOWN: name_lists(unknown, count),
        MOVED_FROM: moved_from,
    }
    return pa.table({**own, **columns}, schema=folded_schema(shape))


def folded_schema(shape: Shape) -> pa.Schema:
    """Return the Arrow schema of ``fold``'s result."""
    own = [pa.field(name, arrow_type(kind)) for name, kind in OWN.items()]
    own += [pa.field(UNKNOWN, _NAMES), pa.field(MOVED_FROM, pa.string())]
    return pa.schema([*own, *(pa.field(c.name, arrow_type(c.type)) for c in shape.columns)])


def name_lists(masks: dict[str, np.ndarray], count: int) -> pa.Array:
    """For each row the list of those names whose mask is true there."""
    marked = [(name, np.flatnonzero(mask)) for name, mask in masks.items()]
    marked = [(name, at) for name, at in marked if len(at)]
    if not marked:
        return pa.ListArray.from_arrays(pa.array(np.zeros(count + 1, np.int32)), pa.array([], pa.string()))
    at = np.concatenate([at for _, at in marked])
    code = np.repeat(np.arange(len(marked)), [len(at) for _, at in marked])
    order = np.argsort(at, kind="stable")
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(at, minlength=count), out=offsets[1:])
    names = pa.array([name for name, _ in marked], pa.string()).take(pa.array(code[order]))
    return pa.ListArray.from_arrays(pa.array(offsets), names)


def name_masks(lists: pa.Array, count: int) -> dict[str, np.ndarray]:
    """Undo ``name_lists``; names that no row has are absent."""
    names = lists.flatten()
    if not len(names):
        return {}
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    row_of = np.repeat(np.arange(count), lengths)
    encoded = names.dictionary_encode()
    codes = encoded.indices.to_numpy()
    found = {}
    for code, name in enumerate(encoded.dictionary.to_pylist()):
        found[name] = np.zeros(count, bool)
        found[name][row_of[codes == code]] = True
    return found


def _chunk(table: pa.Table, name: str) -> pa.Array:
    column = join_chunks(table[name])
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _mask(values: pa.Array) -> np.ndarray:
    """Return a boolean column as a mask; NULL is false."""
    mask: np.ndarray = pc.fill_null(values, False).to_numpy(zero_copy_only=False)
    return mask.astype(bool, copy=False)
