"""Append-only Delta tables as reconcile sees them: created once, appended to once per landing batch.

Every append carries the newest landing batch in it as a Delta transaction identifier. So a table itself records its
newest batch, and Delta rejects a batch that was appended before. All appends go through delta-rs: a writer holds the
table's commit lock (``lake.locks``) from the moment it reads the newest batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from deltalake.exceptions import TableNotFoundError

from dblake.base.lake.locks import commit_lock
from dblake.base.lake.log import OpenTable, commit_rows, record_batch
from dblake.base.lake.query import query_arrow, query_rows
from dblake.base.lake.tables import add_missing_columns, create_table, open_table

_STATISTICS = "delta.dataSkippingStatsColumns"


@dataclass(slots=True)
class AppendTable:
    """One table. ``application`` is its transaction identifier, ``prune_by`` the columns readers prune files by.

    ``earlier`` is another table, as a path, and a batch: its rows from before that batch count as this table's, too.
    The table stays open, and every method reads on first.
    """

    path: str
    application: str
    columns: pa.Schema
    prune_by: tuple[str, ...]
    earlier: tuple[str, int] | None = None
    _opened: OpenTable | None = field(default=None, init=False)

    def create(self) -> None:
        """Create the table if there is none; one with an earlier one begins where that one's rows end.

        A table of an earlier version is given the columns that it lacks, and those that readers prune by now.
        """
        pruned = {_STATISTICS: ",".join(self.prune_by)}
        try:
            self._opened = OpenTable(self.path)
        except TableNotFoundError:
            with commit_lock(self.path):
                create_table(self.path, self.columns, pruned)
            self._opened = OpenTable(self.path)
        if not set(self.columns.names) <= {field.name for field in self._opened.delta.schema().fields}:
            with commit_lock(self.path):
                add_missing_columns(self.path, self.columns)
        if self._opened.delta.metadata().configuration.get(_STATISTICS) != pruned[_STATISTICS]:
            with commit_lock(self.path):
                open_table(self.path).alter.set_table_properties(pruned)
        if self.earlier:
            record_batch(self.path, self.application, self.earlier[1] - 1)

    def done(self) -> int:
        """Return the newest landing batch appended; 0 before the first."""
        return self.opened().reached(self.application)

    def opened(self) -> OpenTable:
        """Return the table as it is now."""
        if self._opened is None:
            self._opened = OpenTable(self.path)
        else:
            self._opened.refresh()
        return self._opened

    def append_rows(self, rows: Sequence[Mapping[str, Any]], batch: int) -> None:
        """Append a few rows; without any it is a commit without a file. The caller holds the commit lock."""
        content = pa.Table.from_pylist(list(rows), schema=self.columns) if rows else None
        commit_rows(self.path, self.application, batch, content, self.opened())

    def query(self, columns: str = "*", where: str = "true") -> list[dict[str, Any]]:
        """Return some of the table's rows, by SQL for columns and a condition; for a table that is small."""
        statement = f"SELECT {columns} FROM t WHERE {where}"
        current: list[dict[str, Any]] = query_arrow(self.opened().delta, statement).to_pylist()
        if self.earlier is None:
            return current
        path, batch = self.earlier
        return query_rows(path, f"SELECT {columns} FROM t WHERE batch < {batch} AND ({where})") + current
