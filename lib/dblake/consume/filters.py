"""What a subscription selects: tables, columns, and a share of the keys.

Place: between the readers of Delta files, which skip files by it, and ``stream``. Guarantee: the partitions of one
scheme share the rows of every table: each key is in exactly one, whether its row is an event or a row of state.
Truncates belong to all partitions; rows without a key belong to partition 0.

- ``hash``: CRC-32 (zlib's) of the key's text modulo ``of``. A single column's text is the source's own; of several
  columns each text follows its length in bytes and a colon.
- ``mod``: the first key column, an integer, modulo ``of``.
- ``range``: the first key column, an integer, divided by ``of`` and rounded down: ``of`` keys per partition.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblake.core.errors import ConfigError
from dblake.core.names import TableFilter, split_qualified
from dblake.core.schema import TableSchema
from dblake.decode.row_keys import key_text, key_text_of

_MIN_BYTES_LEFT = 64
"""Below so many texts of one length left, one call of zlib for each is faster than numpy."""


@dataclass(frozen=True, slots=True)
class Partition:
    """A share of the keys: the partitions ``take``, see the module."""

    by: Literal["hash", "mod", "range"]
    of: int
    take: tuple[int, ...]

    def select_keys(self, keys: pa.MapArray) -> np.ndarray:
        """Return for each key of events whether it is in the share; True without a key only with partition 0."""
        if self.by == "hash":
            return self._taken(_crc32(key_text(keys)), pc.is_valid(keys))
        offsets = keys.offsets.to_numpy()
        has_key = np.diff(offsets) > 0
        first = keys.items.take(pa.array(np.where(has_key, offsets[:-1], 0))) if has_key.any() else pa.nulls(len(keys))
        return self.select_numbers(_integers(first), pa.array(has_key))

    def select_texts(self, texts: pa.Array, columns: int) -> np.ndarray:
        """Likewise for state's ``_key`` of tables with so many key columns."""
        if columns > 1:
            found = [None if text is None else key_text_of(json.loads(text)) for text in texts.to_pylist()]
            texts = pa.array(found, pa.string())
        return self._taken(_crc32(texts), pc.is_valid(texts))

    def select_numbers(self, numbers: pa.Array, has_key: pa.Array | None = None) -> np.ndarray:
        """Likewise for the first key column as integers."""
        valid = pc.is_valid(numbers) if has_key is None else has_key
        return self._taken(pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False), valid)

    def may_hold(self, least: int, most: int) -> bool:
        """Return False if no key between two integers is in the share."""
        if self.by == "range":
            return any(number * self.of <= most and (number + 1) * self.of > least for number in self.take)
        if self.by == "mod" and most - least < self.of:
            return any(key % self.of in self.take for key in range(least, most + 1))
        return True

    def require_integer_key(self, schema: TableSchema) -> None:
        """Raise ConfigError if the share needs an integer key that the table lacks."""
        if self.by == "hash" or not schema.primary_key:
            return
        kinds = {column.name: column.type for column in schema.columns}
        if "int" not in kinds[schema.primary_key[0]]:
            raise ConfigError(
                f"table {schema.table}: its key is no integer, so it cannot be partitioned by {self.by}",
                next_step="partition by hash, or leave the table out",
            )

    def _taken(self, numbers: np.ndarray, has_key: pa.Array) -> np.ndarray:
        number = numbers // self.of if self.by == "range" else numbers % self.of
        number = np.where(has_key.to_numpy(zero_copy_only=False), number, 0)
        return np.isin(number, np.array(self.take))


@dataclass(frozen=True)
class Selection:
    """Tables by globs, columns by table glob (key columns are always included), and a share of the keys."""

    tables: Sequence[str] = ("*.*",)
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    partition: Partition | None = None

    def __post_init__(self) -> None:
        try:
            TableFilter([*self.tables, *self.columns])
        except ValueError as error:
            raise ConfigError(f"tables: {error}", next_step="write globs like public.*") from None
        object.__setattr__(self, "_known", {})

    def has_table(self, table: str) -> bool:
        """Return True if a qualified table name is selected."""
        known: dict[str, bool] = self._known  # type: ignore[attr-defined]
        if table not in known:
            known[table] = self._filter(*split_qualified(table))
        return known[table]

    def columns_of(self, schema: TableSchema) -> frozenset[str] | None:
        """Return the columns delivered of a table; None for all."""
        parts = split_qualified(schema.table)
        lists = [names for matches, names in self._column_filters if matches(*parts)]
        if not lists:
            return None
        return frozenset(schema.primary_key).union(*lists)

    @cached_property
    def identity(self) -> str:
        """A text that is equal for selections of the same tables and keys."""
        one = self.partition
        return json.dumps([list(self.tables), None if one is None else [one.by, one.of, sorted(one.take)]])

    @cached_property
    def _filter(self) -> TableFilter:
        return TableFilter(list(self.tables))

    @cached_property
    def _column_filters(self) -> list[tuple[TableFilter, Sequence[str]]]:
        return [(TableFilter([glob]), names) for glob, names in self.columns.items()]


def _integers(texts: pa.Array) -> pa.Array:
    try:
        return texts.cast(pa.int64())
    except pa.ArrowInvalid:
        raise ConfigError(
            "a key is no integer, so it cannot be partitioned by mod or range", next_step="partition by hash"
        ) from None


def _crc32(texts: pa.Array) -> np.ndarray:
    """Return zlib's CRC-32 of texts, column by column of bytes; 0 for NULL."""
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.combine_chunks()
    texts = pc.fill_null(texts, "")
    if len(texts) < _MIN_BYTES_LEFT:
        return np.array([zlib.crc32(text.encode()) for text in texts.to_pylist()], np.int64)
    texts = texts.cast(pa.large_binary())
    offsets = np.frombuffer(texts.buffers()[1], np.int64, len(texts) + 1, texts.offset * 8)
    data = np.frombuffer(texts.buffers()[2] or b"\0", np.uint8)
    lengths = np.diff(offsets)
    crc = np.full(len(texts), 0xFFFFFFFF, np.uint32)
    for place in range(int(lengths.max(initial=0))):
        rows = np.flatnonzero(lengths > place)
        if len(rows) < _MIN_BYTES_LEFT:
            for row in rows:
                rest = data[offsets[row] + place : offsets[row + 1]].tobytes()
                crc[row] = zlib.crc32(rest, int(crc[row]) ^ 0xFFFFFFFF) ^ 0xFFFFFFFF
            break
        one = crc[rows]
        crc[rows] = _TABLE[(one ^ data[offsets[rows] + place]) & 0xFF] ^ (one >> 8)
    return (crc ^ 0xFFFFFFFF).astype(np.int64)


def _crc_table() -> np.ndarray:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, np.uint32(0xEDB88320) ^ (table >> 1), table >> 1).astype(np.uint32)
    return table


_TABLE = _crc_table()
