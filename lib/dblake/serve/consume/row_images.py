"""Rows with the columns of state → events of origin ``state``: keys and images as the source's texts.

Place: below ``state_rows``, which reads a bootstrap's rows, and ``outputs.whole``, which looks up single ones.
Guarantee: a column whose value is not known is absent; a value that state's type cannot hold is taken from events.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblake.base.core.op import Op
from dblake.base.core.position import Position
from dblake.base.core.schema import Column, TableSchema
from dblake.base.lake.layout import Paths
from dblake.serve.consume.event_columns import image_dicts
from dblake.serve.consume.event_rows import ROWS_AT_ONCE
from dblake.serve.consume.event_table import EventTable
from dblake.serve.consume.filters import Selection
from dblake.serve.consume.model import STATE, Event
from dblake.serve.consume.partition import Partition
from dblake.serve.consume.render import render_texts

OWN_COLUMNS = ("_key", "_incarnation", "_lsn", "_seq", "_deleted", "_lossy", "_missing")
Texts = dict[tuple[str, ...], dict[str, str | None]]
"""The texts of some columns by key."""


@dataclass(frozen=True)
class RowImages:
    """Builds the rows of one table as of ``position``, with some of ``schema``'s columns."""

    source: str
    schema: TableSchema
    columns: Sequence[Column]
    position: Position

    def build(self, rows: pa.Table, lossy_texts: Mapping[tuple[str, ...], Mapping[str, str | None]]) -> list[Event]:
        """Return rows, which have OWN_COLUMNS and ``columns``, as events; ``lossy_texts`` are ``read_texts``'."""
        schema, source = self.schema, self.source
        names = [column.name for column in self.columns]
        values = [render_texts(column.type, rows[column.name]).to_pylist() for column in self.columns]
        own_values = [rows[name].to_pylist() for name in OWN_COLUMNS]
        images = zip(*values, strict=True) if values else iter([()] * rows.num_rows)
        events = []
        for key_text, incarnation, lsn, seq, _, lossy, missing, image in zip(*own_values, images, strict=True):
            after: dict[str, str | None] = dict(zip(names, image, strict=True))
            parts = self.key_parts(key_text)
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

    def key_parts(self, key_text: str | None) -> tuple[str, ...] | None:
        """Return the values of a key as its columns have them; None without a key."""
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

    def lossy_columns(self, rows: pa.Table) -> dict[tuple[str, ...], set[str]]:
        """Return by key the columns that state's types cannot hold; ``rows`` has ``_key`` and ``_lossy``."""
        names, lossy_names = {column.name for column in self.columns}, dict[tuple[str, ...], set[str]]()
        for row in rows.select(["_key", "_lossy"]).filter(pa.array(has_items(rows["_lossy"]))).to_pylist():
            parts = self.key_parts(row["_key"])
            if parts is not None:
                lossy_names[parts] = names.intersection(row["_lossy"])
        return lossy_names

    def read_texts(
        self, lossy_names: Mapping[tuple[str, ...], set[str]], events: EventTable, partition: Partition | None = None
    ) -> Texts:
        """Return the newest texts of some columns by key, as the events up to the position have them."""
        texts: Texts = {parts: {} for parts in lossy_names}
        if not any(lossy_names.values()):
            return texts
        table = self.schema.table
        table_only = Selection((table,), partition=partition)
        for _, portion in events.read(table_only.predicate([table], Position(1, 0), self.position)):
            rows = portion.filter(pc.equal(portion["table"], table))
            for key, op, after in zip(image_dicts(rows["key"]), rows["op"].to_pylist(), image_dicts(rows["after"]),
                                      strict=True):
                _fold_row(texts, lossy_names, key, op, after)
        return texts


def build_rows(
    paths: Paths, schema: TableSchema, rows: pa.Table, position: Position, kept: Collection[str] | None = None
) -> Iterator[list[Event]]:
    """Yield a portion of a table's rows as of a position as events, ROWS_AT_ONCE at a time.

    ``rows`` has OWN_COLUMNS; ``kept`` are the names of the columns that the images have, None for all.
    """
    columns = [column for column in schema.columns
               if column.name in rows.column_names and (kept is None or column.name in kept)]
    images, events = RowImages(paths.source, schema, columns, position), EventTable(paths)
    lossy = images.lossy_columns(rows)
    if any(lossy.values()):
        events.refresh()
    texts = images.read_texts(lossy, events)
    part = rows.select([*OWN_COLUMNS, *(column.name for column in columns)])
    for start in range(0, part.num_rows, ROWS_AT_ONCE):
        yield images.build(part.slice(start, ROWS_AT_ONCE), texts)


def has_items(lists: pa.ChunkedArray) -> np.ndarray:
    """Return a mask of the lists that are not empty."""
    mask: np.ndarray = pc.fill_null(pc.greater(pc.list_value_length(lists), 0), False).to_numpy()
    return mask.astype(bool)


def _fold_row(
    texts: Texts, lossy_names: Mapping[tuple[str, ...], set[str]], key: Mapping[str, str | None] | None, op: str,
    after: Mapping[str, Any] | None,
) -> None:
    if op == Op.TRUNCATE:
        for row in texts.values():
            row.clear()
        return
    parts = tuple(value or "" for value in (key or {}).values())
    if parts in texts:
        if op == Op.DELETE:
            texts[parts].clear()
        texts[parts].update({name: text for name, text in (after or {}).items() if name in lossy_names[parts]})
