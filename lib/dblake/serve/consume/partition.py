"""A share of the keys of every table, for consumers that divide a stream among them.

Place: part of a subscription's ``Selection``. Guarantee: the partitions of one scheme share the rows of every table:
each key is in exactly one, whether its row is an event or a row of state. Truncates belong to all partitions; rows
without a key belong to partition 0.

- ``hash``: CRC-32 (zlib's) of the key's text modulo ``of``. A single column's text is the source's own; of several
  columns each text follows its length in bytes and a colon.
- ``mod``: the first key column, an integer, modulo ``of``.
- ``range``: the first key column, an integer, divided by ``of`` and rounded down: ``of`` keys per partition.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblake.base.core.errors import ConfigError
from dblake.base.core.schema import TableSchema
from dblake.payloads.decode.row_keys import key_text, key_text_of
from dblake.serve.consume.crc32 import crc32_of


@dataclass(frozen=True, slots=True)
class Partition:
    """A share of the keys: the partitions ``take``, see the module."""

    by: Literal["hash", "mod", "range"]
    of: int
    take: tuple[int, ...]

    def select_keys(self, keys: pa.MapArray) -> np.ndarray:
        """Return for each key of events whether it is in the share; True without a key only with partition 0."""
        if self.by == "hash":
            return self._taken(crc32_of(key_text(keys)), pc.is_valid(keys))
        offsets = keys.offsets.to_numpy()
        has_key = np.diff(offsets) > 0
        first = keys.items.take(pa.array(np.where(has_key, offsets[:-1], 0))) if has_key.any() else pa.nulls(len(keys))
        return self.select_numbers(_integers(first), pa.array(has_key))

    def select_texts(self, texts: pa.Array, columns: int) -> np.ndarray:
        """Likewise for state's ``_key`` of tables with so many key columns."""
        if columns > 1:
            found = [None if text is None else key_text_of(json.loads(text)) for text in texts.to_pylist()]
            texts = pa.array(found, pa.string())
        return self._taken(crc32_of(texts), pc.is_valid(texts))

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


def _integers(texts: pa.Array) -> pa.Array:
    try:
        return texts.cast(pa.int64())
    except pa.ArrowInvalid:
        raise ConfigError(
            "a key is no integer, so it cannot be partitioned by mod or range", next_step="partition by hash"
        ) from None
