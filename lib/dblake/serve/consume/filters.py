"""What a subscription selects: tables, columns, and a share of the keys.

Place: between the readers of Delta files, which skip files by it, and ``stream``. Guarantee: key columns are always
delivered. Which keys are in a share is left to ``partition``.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from dblake.base.core.arrays import join_chunks
from dblake.base.core.errors import ConfigError
from dblake.base.core.names import TableFilter, split_qualified
from dblake.base.core.position import Position
from dblake.base.core.schema import TableSchema
from dblake.serve.consume.partition import Partition
from dblake.transform.events.predicate import Predicate


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

    def predicate(
        self, tables: Sequence[str], after: Position, until: Position | None = None, after_batch: int = 0
    ) -> Predicate:
        """Return which events are selected, of batches after one, and after one position up to another.

        ``tables`` are the selected ones that have a schema.
        """
        rows = None if self.partition is None else KeyShare(self.partition)
        return Predicate(after_batch, after=after, until=until, tables=_SelectedTables(self, tables), rows=rows)

    def of_partition(self, partitions: int, number: int) -> Selection:
        """Return the selection of one hash partition of a group's."""
        return replace(self, partition=Partition("hash", partitions, (number,)))

    @cached_property
    def identity(self) -> str:
        """A text that is equal for selections of the same tables, columns and keys."""
        one = self.partition
        columns = [{glob: sorted(names) for glob, names in self.columns.items()}] if self.columns else []
        return json.dumps([list(self.tables), None if one is None else [one.by, one.of, sorted(one.take)], *columns])

    @cached_property
    def _filter(self) -> TableFilter:
        return TableFilter(list(self.tables))

    @cached_property
    def _column_filters(self) -> list[tuple[TableFilter, Sequence[str]]]:
        return [(TableFilter([glob]), names) for glob, names in self.columns.items()]


@dataclass(frozen=True)
class KeyShare:
    """The events whose key is in a share."""

    partition: Partition

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that ``choose`` reads."""
        return ("key",)

    def choose(self, events: pa.Table) -> np.ndarray:
        """Return a mask of the events whose key is in the share."""
        return self.partition.select_keys(join_chunks(events["key"]))


@dataclass(frozen=True)
class _SelectedTables(Collection[str]):
    """The selected tables with a schema, in order; a table without one is among them, too: a reader reports it."""

    selection: Selection
    names: Sequence[str]

    def __contains__(self, table: object) -> bool:
        return isinstance(table, str) and self.selection.has_table(table)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)
