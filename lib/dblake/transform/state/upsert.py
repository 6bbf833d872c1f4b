"""Folded rows → a state table: which files change, and the rows they hold then.

Promise: no row returns to an older position, deletes included. A file is rewritten only if a row in it changes:
statistics rule out most files, the keys of the rest are read first. Rows new to the table go into a new file. Small
files are merged into it while they are not larger than what is written anyway; tombstones have files of their own. A
table has few small files however often it is written to, and a row is rewritten a logarithmic number of times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.transaction import AddAction

from dblake.base.core.arrays import join_chunks
from dblake.base.core.position import Position
from dblake.base.core.positions import is_older, position_parts
from dblake.base.lake.files import file_path, filesystem
from dblake.transform.state.file_writer import FileWriter
from dblake.transform.state.files import (
    SMALL_FILE_BYTES,
    Columns,
    FileReader,
    OrderedValues,
    StateFile,
    data_file,
    may_hold,
    ordered_keys,
)
from dblake.transform.state.fold import MOVED_FROM, UNKNOWN, name_lists, name_masks
from dblake.transform.state.shape import OWN, Shape

_ABSORBED_BYTES = 256 << 10
"""Files up to this size are rewritten with new rows always."""
_GROUP_BYTES = 32 << 20
"""Small files are rewritten together up to this size."""
_COMPRESSION = 4


@dataclass(frozen=True)
class Change:
    """Folded rows to bring into a table: ``truncated_at`` deletes the rows before it that have no folded row."""

    rows: pa.Table
    shape: Shape
    truncated_at: Position | None = None


@dataclass
class Rewritten:
    """What rewriting files came to: files removed and added, and which folded rows the files had the keys of."""

    removed: list[StateFile] = field(default_factory=list)
    adds: list[AddAction] = field(default_factory=list)
    matched: np.ndarray = field(default_factory=lambda: np.array([], np.int64))

    def extend(self, other: Rewritten) -> None:
        """Add another part of the same table."""
        self.removed += other.removed
        self.adds += other.adds
        self.matched = np.concatenate([self.matched, other.matched])


#: Calls a function for each of some parts, here or on Spark's executors.
RunAll = Callable[[Callable[[list[StateFile]], Rewritten], Sequence[list[StateFile]]], Iterable[Rewritten]]


def upsert(
    root: str, columns: Columns, files: Sequence[StateFile], change: Change, run_all: RunAll
) -> Rewritten:
    """Bring folded rows into a table with these files; nothing is visible before the caller's commit."""
    keys = {name: OrderedValues(change.rows[name]) for name in ordered_keys(change.rows, change.shape.primary_key)}
    candidates = [
        file for file in files
        if change.truncated_at or (keys["_key"] and all(may_hold(file, name, values) for name, values in keys.items()))
    ]
    result, task = Rewritten(), _Task(root, columns, change)
    for part in run_all(task, _grouped(candidates)):
        result.extend(part)
    fresh = np.ones(change.rows.num_rows, bool)
    fresh[result.matched] = False
    if fresh.any():
        rows = _inserted(change, fresh)
        gone = {file.path for file in result.removed}
        kept = [file for file in files if file.path not in gone and not file.has_tombstones_only]
        absorbed = _absorbed(kept, rows.nbytes // _COMPRESSION)
        writer = FileWriter(root, columns)
        copy_rows(root, columns, absorbed, writer)
        writer.write(rows)
        result.removed += absorbed
        result.adds += writer.close()
    _merge_tombstones(root, columns, files, result)
    return result


def copy_rows(root: str, columns: Columns, files: Iterable[StateFile], writer: FileWriter) -> None:
    """Write all rows of files again."""
    for file in files:
        with FileReader(root, columns, file) as reader:
            for group in range(reader.groups):
                for part in reader.slices(group):
                    writer.write(part)


def _merge_tombstones(root: str, columns: Columns, files: Sequence[StateFile], result: Rewritten) -> None:
    """Write new tombstones together with small files of older ones: steps that only delete leave few files, too."""
    new = [file for add in result.adds if (file := data_file(add, columns)).has_tombstones_only]
    gone = {file.path for file in result.removed}
    kept = [file for file in files if file.has_tombstones_only and file.path not in gone]
    absorbed = _absorbed(kept, sum(file.size for file in new)) if new else []
    if len(new) + len(absorbed) < 2:
        return
    writer = FileWriter(root, columns)
    copy_rows(root, columns, [*new, *absorbed], writer)
    written = {file.path for file in new}
    result.removed += absorbed
    result.adds = [add for add in result.adds if add.path not in written] + writer.close()
    system, base = filesystem(root)
    for path in written:
        system.delete_file(file_path(base, path))


@dataclass(frozen=True)
class _Task:
    """Rewrites one group of files; a value that Spark can send to an executor."""

    root: str
    columns: Columns
    change: Change

    def __call__(self, files: list[StateFile]) -> Rewritten:
        result = Rewritten()
        writer = FileWriter(self.root, self.columns)
        for file in files:
            with FileReader(self.root, self.columns, file) as reader:
                heads = [reader.read(group, ("_key", *Position.STATE_COLUMNS)) for group in range(reader.groups)]
                if not heads:
                    continue
                # For the whole file at once: the look-up table over the folded keys is built for each call.
                match = match_keys(pa.concat_tables(heads)["_key"], self.change.rows["_key"])
                result.matched = np.concatenate([result.matched, match[match >= 0]])
                parts = np.split(match, np.cumsum([head.num_rows for head in heads])[:-1])
                changes = [self._has_changes(head, part) for head, part in zip(heads, parts, strict=True)]
                if not any(changes):
                    continue
                for group, places in enumerate(parts):
                    first = 0
                    for rows in reader.slices(group, known=heads[group]):
                        match = places[first:first + rows.num_rows]
                        writer.write(updated(rows, self.change, match) if changes[group] else rows)
                        first += rows.num_rows
            result.removed.append(file)
        result.adds = writer.close()
        return result

    def _has_changes(self, heads: pa.Table, match: np.ndarray) -> bool:
        """Return True if a row with one of these keys and positions changes."""
        newer, buried = _decided(heads, self.change, match)
        return bool(newer.any() or buried.any())


def match_keys(keys: pa.ChunkedArray, folded: pa.ChunkedArray) -> np.ndarray:
    """For each key its place among the folded rows; -1 without one. NULL equals nothing."""
    found = pc.index_in(keys, value_set=folded.combine_chunks(), skip_nulls=True)
    places: np.ndarray = pc.fill_null(found, -1).to_numpy().astype(np.int64)
    return places


def updated(rows: pa.Table, change: Change, match: np.ndarray) -> pa.Table:
    """Return rows of the table as they are after a change.

    ``rows`` has the table's columns, ``match`` is what ``match_keys`` found. Rows that are not older than their folded
    row stay; columns that no event supplied keep their values.
    """
    newer, buried = _decided(rows, change, match)
    source, count = change.rows.combine_chunks(), rows.num_rows
    masks = name_masks(join_chunks(source[UNKNOWN]), len(source)) if source.num_rows else {}
    unknown = {name: mask[match] & newer for name, mask in masks.items()}
    columns: dict[str, pa.Array] = {}
    for name in rows.column_names:
        if name in ("_lossy", "_missing"):
            continue
        if name not in source.column_names:
            columns[name] = rows[name]
            continue
        taken = newer & ~unknown[name] if name in unknown else newer
        columns[name] = _replaced(rows[name], taken, source[name], match)
    if buried.any():
        columns |= _buried(columns, change, buried)
    columns["_lossy"], columns["_missing"] = _named(rows, source, change, match, newer, buried, unknown)
    return pa.table([columns[name] for name in rows.column_names], schema=rows.schema) if count else rows


def _decided(rows: pa.Table, change: Change, match: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which rows take their folded row, and which a truncate deletes."""
    at = [rows[name].to_numpy() for name in Position.STATE_COLUMNS]
    newer = match >= 0
    if newer.any():
        folded = [change.rows[name].to_numpy()[match] for name in Position.STATE_COLUMNS]
        newer = newer & is_older(at, folded)
    buried = np.zeros(rows.num_rows, bool)
    if change.truncated_at is not None:
        buried = (match < 0) & is_older(at, position_parts(change.truncated_at))
    return newer, buried


def _replaced(
    column: pa.ChunkedArray, taken: np.ndarray, source: pa.ChunkedArray, match: np.ndarray
) -> pa.Array:
    """Return the column with the source's values where they are taken."""
    if not taken.any():
        return column
    own = join_chunks(column)
    values = source.take(pa.array(match[taken])).combine_chunks()
    values = join_chunks(values).cast(own.type)
    if taken.all():
        return values
    if not pa.types.is_nested(own.type):
        return pc.replace_with_mask(own, pa.array(taken), values)
    place = np.arange(len(own))
    place[taken] = len(own) + np.arange(len(values))
    return pa.concat_arrays([own, values]).take(pa.array(place))


def _buried(columns: dict[str, pa.Array], change: Change, buried: np.ndarray) -> dict[str, pa.Array]:
    """Return the columns of rows that a truncate deletes: tombstones at its position."""
    limit, mask = change.truncated_at, pa.array(buried)
    assert limit is not None, "only a truncate buries"
    at = dict(zip(Position.STATE_COLUMNS, (limit.incarnation, limit.lsn, limit.seq), strict=True))
    changed = {name: pc.if_else(mask, pa.scalar(value, pa.int64()), columns[name]) for name, value in at.items()}
    changed["_deleted"] = pc.if_else(mask, True, columns["_deleted"])
    for name, column in columns.items():
        if name not in OWN and name not in change.shape.primary_key:
            changed[name] = pc.if_else(mask, pa.scalar(None, column.type), column)
    return changed


def _named(
    rows: pa.Table, source: pa.Table, change: Change, match: np.ndarray, newer: np.ndarray, buried: np.ndarray,
    unknown: dict[str, np.ndarray],
) -> tuple[pa.Array, pa.Array]:
    """``_lossy`` and ``_missing`` of the rows as they are after a change."""
    count = rows.num_rows
    deleted = join_chunks(rows["_deleted"]).to_numpy(zero_copy_only=False).astype(bool)
    gone = {column.name for column in change.shape.columns if column.dropped}
    found = []
    for name in ("_lossy", "_missing"):
        own = name_masks(join_chunks(rows[name]), count)
        folded = name_masks(join_chunks(source[name]), source.num_rows)
        masks = {}
        begun = unknown if name == "_missing" else {}
        for column in [c for c in rows.column_names if c in own or c in folded or c in begun]:
            kept = own.get(column, np.zeros(count, bool))
            given = folded[column][match] if column in folded else np.zeros(count, bool)
            if column in unknown:
                before = kept | deleted if name == "_missing" else kept
                given = np.where(unknown[column], before, False) | given
            if name == "_missing":
                given = given & (column not in gone)
            keep = ~buried if name == "_missing" or column not in change.shape.primary_key else True
            masks[column] = np.where(newer, given, kept & keep)
        found.append(name_lists(masks, count))
    return found[0], found[1]


def _inserted(change: Change, fresh: np.ndarray) -> pa.Table:
    """Return the folded rows whose key the table does not have."""
    rows = change.rows if fresh.all() else change.rows.filter(pa.array(fresh))
    return first_rows(rows, change.shape)


def first_rows(folded: pa.Table, shape: Shape) -> pa.Table:
    """Return folded rows as rows of a table that has none of their keys."""
    folded = folded.combine_chunks()
    count = folded.num_rows
    masks = name_masks(join_chunks(folded["_missing"]), count) if count else {}
    for name, mask in (name_masks(join_chunks(folded[UNKNOWN]), count) if count else {}).items():
        masks[name] = masks.get(name, np.zeros(count, bool)) | mask
    gone = {column.name for column in shape.columns if column.dropped}
    masks = {c.name: masks[c.name] for c in shape.columns if c.name in masks and c.name not in gone}
    place = folded.column_names.index("_missing")
    return folded.set_column(place, "_missing", name_lists(masks, count)).drop_columns([UNKNOWN, MOVED_FROM])


def _grouped(files: Sequence[StateFile]) -> list[list[StateFile]]:
    """Large files alone, small ones together."""
    groups = [[file] for file in files if not file.is_small]
    together: list[StateFile] = []
    size = 0
    for file in sorted((f for f in files if f.is_small), key=lambda f: f.size):
        if together and size + file.size > _GROUP_BYTES:
            groups.append(together)
            together, size = [], 0
        together.append(file)
        size += file.size
    return [*groups, together] if together else groups


def _absorbed(files: Sequence[StateFile], written: int) -> list[StateFile]:
    """Return the small files to write again with new rows."""
    chosen: list[StateFile] = []
    for file in sorted(files, key=lambda f: f.size):
        if file.size > max(2 * written, _ABSORBED_BYTES) or file.size >= SMALL_FILE_BYTES:
            break
        chosen.append(file)
        written += file.size
    return chosen
