"""Rows of one state table, at one version, as events of a bootstrap.

Place: between the lake and ``stream``. Guarantee: the rows of a version come in the same order every time, so a number
of rows is a point to resume from. Files and row groups that the selection rules out are not read. A value that state's
type cannot hold is taken from events. Which versions belong together is the frontier's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from dblake.base.core.names import split_qualified
from dblake.base.core.op import Op
from dblake.base.core.position import Position
from dblake.base.core.schema import TableSchema
from dblake.base.lake.frontier import Frontier
from dblake.base.lake.layout import Paths
from dblake.base.lake.log import Application
from dblake.base.lake.tables import open_table
from dblake.serve.consume.event_columns import image_dicts
from dblake.serve.consume.event_rows import ROWS_AT_ONCE
from dblake.serve.consume.event_table import EventTable
from dblake.serve.consume.filters import Selection
from dblake.serve.consume.model import STATE, Event
from dblake.serve.consume.partition import Partition
from dblake.serve.consume.render import render_texts
from dblake.transform.state.files import FileReader, StateFile, TableFiles

_OWN = ("_key", "_incarnation", "_lsn", "_seq", "_deleted", "_lossy", "_missing")
_Texts = dict[tuple[str, ...], dict[str, str | None]]


def readable_version(paths: Paths, table: str, frontier: Frontier) -> int:
    """Return the version of a state table to read at a frontier.

    The newest one, if state has not advanced since: maintenance may have compacted it and removed files of the
    recorded version.
    """
    newest = open_table(paths.state(*split_qualified(table)))
    if (newest.transaction_version(Application.state(paths.source)) or 0) <= frontier.batch:
        return newest.version()
    return frontier.versions[table]


class VersionRemoved(Exception):
    """Maintenance has removed the version of a state table that a bootstrap was reading."""


@dataclass
class StateRows:
    """One table of a bootstrap: its rows at ``version``, valid as of ``position``, with the columns of ``schema``."""

    paths: Paths
    schema: TableSchema
    version: int
    position: Position
    selection: Selection
    events: EventTable

    def __post_init__(self) -> None:
        table = self.schema.table
        self._path = self.paths.state(*split_qualified(table))
        try:
            self._files = TableFiles(self._path, open_table(self._path, self.version))
        except DeltaError:
            raise VersionRemoved(table) from None
        kept = self.selection.columns_of(self.schema)
        self._columns = [
            column for column in self.schema.columns
            if column.name in self._files.columns.types and (kept is None or column.name in kept)
        ]

    def read(self, skip: int = 0) -> Iterator[list[Event]]:
        """Yield the rows after the first ``skip``, up to ROWS_AT_ONCE at a time."""
        texts = self._read_lossy_texts()
        for rows in self._read_files():
            if skip >= rows.num_rows:
                skip -= rows.num_rows
                continue
            for start in range(skip, rows.num_rows, ROWS_AT_ONCE):
                yield self._build(rows.slice(start, ROWS_AT_ONCE), texts)
            skip = 0

    def _read_files(self, *, only_lossy: bool = False) -> Iterator[pa.Table]:
        """Yield the selected rows by files, in order of their paths, and by row groups.

        ``only_lossy`` leaves out row groups without a lossy value; only the column of lossy names is read there.
        """
        names = [*_OWN, *(() if only_lossy else (column.name for column in self._columns))]
        for file in sorted(self._files.files(), key=lambda one: one.path):
            if self._may_select(file):
                with self._open_file(file) as reader:
                    for group in range(reader.groups):
                        if not only_lossy or _has_items(reader.read(group, ["_lossy"])["_lossy"]).any():
                            for rows in reader.slices(group, names):
                                yield self._choose(rows)

    def _open_file(self, file: StateFile) -> FileReader:
        try:
            return FileReader(self._path, self._files.columns, file)
        except FileNotFoundError:
            raise VersionRemoved(self.schema.table) from None

    def _may_select(self, file: StateFile) -> bool:
        partition, key = self.selection.partition, self.schema.primary_key
        ranged = file.ranges.get(key[0]) if key else None
        if partition is None or partition.by == "hash" or ranged is None or not isinstance(ranged[0], int):
            return True
        return partition.may_hold(*ranged)

    def _choose(self, rows: pa.Table) -> pa.Table:
        wanted = ~pc.fill_null(rows["_deleted"], False).to_numpy().astype(bool)
        partition = self.selection.partition
        if partition is not None:
            wanted &= self._in_partition(partition, rows)
        return rows if wanted.all() else rows.filter(pa.array(wanted))

    def _in_partition(self, partition: Partition, rows: pa.Table) -> np.ndarray:
        key = self.schema.primary_key
        texts = rows["_key"].combine_chunks()
        if not key or partition.by == "hash":
            return partition.select_texts(texts, len(key))
        if len(key) > 1:
            texts = pa.array([json.loads(text)[0] for text in texts.to_pylist()])
        return partition.select_numbers(texts.cast(pa.int64()))

    def _build(self, rows: pa.Table, lossy_texts: Mapping[tuple[str, ...], Mapping[str, str | None]]) -> list[Event]:
        schema, source = self.schema, self.paths.source
        names = [column.name for column in self._columns]
        values = [render_texts(column.type, rows[column.name]).to_pylist() for column in self._columns]
        own = [rows[name].to_pylist() for name in _OWN]
        images = zip(*values, strict=True) if values else iter([()] * rows.num_rows)
        events = []
        for key_text, incarnation, lsn, seq, _, lossy, missing, image in zip(*own, images, strict=True):
            after: dict[str, str | None] = dict(zip(names, image, strict=True))
            parts = self._key_parts(key_text)
            key = None if parts is None else dict(zip(schema.primary_key, parts, strict=True))
            after.update(key or {})
            for name in missing or ():
                after.pop(name, None)
            undecoded = []
            for name in lossy or ():
                if name not in after:
                    continue
                if after[name] is not None:
                    undecoded.append(name)
                else:
                    self._restore(after, name, lossy_texts.get(parts, {}) if parts else {})
            events.append(Event(
                source, schema.table, Op.READ, Position(incarnation, lsn, seq), key, None, after, None, None, False,
                STATE, schema.schema_id, schema, undecoded,
            ))
        return events

    def _key_parts(self, key_text: str | None) -> tuple[str, ...] | None:
        if key_text is None or not self.schema.primary_key:
            return None
        return (key_text,) if len(self.schema.primary_key) == 1 else tuple(json.loads(key_text))

    @staticmethod
    def _restore(after: dict[str, str | None], name: str, texts: Mapping[str, str | None]) -> None:
        """Set a column whose value state lacks to its text in events; without one, as if it had not been sent."""
        if name in texts:
            after[name] = texts[name]
        else:
            del after[name]

    def _read_lossy_texts(self) -> _Texts:
        """Return, by key, the texts of values that state's types cannot hold; they are rare, and in events."""
        wanted: dict[tuple[str, ...], set[str]] = {}
        known = {column.name for column in self._columns}
        for rows in self._read_files(only_lossy=True):
            for row in rows.select(["_key", "_lossy"]).filter(pa.array(_has_items(rows["_lossy"]))).to_pylist():
                parts = self._key_parts(row["_key"])
                if parts is not None:
                    wanted[parts] = known.intersection(row["_lossy"])
        return self._fold_texts(wanted) if any(wanted.values()) else {}

    def _fold_texts(self, wanted: Mapping[tuple[str, ...], set[str]]) -> _Texts:
        """Return the newest texts of some columns by key, as the events up to the position have them."""
        texts: _Texts = {parts: {} for parts in wanted}
        table = self.schema.table
        own = Selection((table,), partition=self.selection.partition)
        for _, portion in self.events.read(own.predicate([table], Position(1, 0), self.position)):
            rows = portion.filter(pc.equal(portion["table"], table))
            for key, op, after in zip(image_dicts(rows["key"]), rows["op"].to_pylist(), image_dicts(rows["after"]),
                                      strict=True):
                _fold_row(texts, wanted, key, op, after)
        return texts


def _has_items(lists: pa.ChunkedArray) -> np.ndarray:
    found: np.ndarray = pc.fill_null(pc.greater(pc.list_value_length(lists), 0), False).to_numpy()
    return found.astype(bool)


def _fold_row(
    texts: _Texts, wanted: Mapping[tuple[str, ...], set[str]], key: Mapping[str, str | None] | None, op: str,
    after: Mapping[str, Any] | None,
) -> None:
    if op == Op.TRUNCATE:
        for known in texts.values():
            known.clear()
        return
    parts = tuple(value or "" for value in (key or {}).values())
    if parts in texts:
        if op == Op.DELETE:
            texts[parts].clear()
        texts[parts].update({name: text for name, text in (after or {}).items() if name in wanted[parts]})
