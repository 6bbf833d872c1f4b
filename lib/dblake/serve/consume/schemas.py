"""Schemas of a source's tables for consumers.

Place: beside ``stream``. The schemas table is read when an event refers to a version that is not known yet; reconcile
appends schemas before their events. Schemas of the tail come from landing, with its events. Delivery under a consumer's
own schema is left to ``schema_resolution``.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from dblake.base.core.errors import ConsumeError
from dblake.base.core.schema import TableSchema
from dblake.base.lake.layout import Paths
from dblake.base.lake.schemas import SCHEMA_LOST, SchemaVersion, read_schemas


class Schemas:
    """The schema versions of one source, read on demand."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._recorded: dict[str, list[SchemaVersion]] = {}
        self._landed: dict[tuple[str, str], SchemaVersion] = {}
        self._versions: dict[str, list[SchemaVersion]] = {}
        self._by_id: dict[tuple[str, str], TableSchema] = {}
        self.by_id: dict[str, TableSchema] = {}
        """All known schemas by their ids."""

    def get(self, table: str, schema_id: str | None) -> TableSchema:
        """Return the schema of an event; the table's newest for a truncate that names none.

        Raises ConsumeError if the schemas table lacks it.
        """
        found = self._find(table, schema_id)
        if found is None:
            self.refresh()
            found = self._find(table, schema_id)
        if found is None:
            raise ConsumeError(
                f"table {table}: events refer to a schema that is not in the schemas table",
                next_step=SCHEMA_LOST,
            )
        return found

    def _find(self, table: str, schema_id: str | None) -> TableSchema | None:
        if schema_id is None:
            return self._versions[table][-1].schema if table in self._versions else None
        return self._by_id.get((table, schema_id))

    def recorded(self, rows: pa.Table) -> pa.Table:
        """Return rows of events without truncates of tables that have no schema: they came and went without a row."""
        if not rows["schema_id"].null_count:
            return rows
        self.refresh()
        is_known = pc.is_in(rows["table"], pa.array(self.tables(), pa.string()))
        return rows.filter(pc.or_(is_known, pc.is_valid(rows["schema_id"])))

    def at_batch(self, table: str, batch: int) -> TableSchema:
        """Return the newest schema of a table that came with a landing batch or before it."""
        versions = [one for one in self._versions.get(table, []) if one.batch <= batch]
        if not versions:
            raise ConsumeError(
                f"table {table}: state has it, but not the schemas table",
                next_step=SCHEMA_LOST,
            )
        return versions[-1].schema

    def tables(self) -> list[str]:
        """Return the names of all tables, in order."""
        return sorted(self._versions)

    def refresh(self) -> None:
        """Read the present schemas table."""
        self._recorded = read_schemas(self._paths)
        self._index()

    def add_landed(self, versions: Iterable[SchemaVersion]) -> None:
        """Add schemas that have landed, and that the schemas table may not have yet."""
        new = {(one.schema.table, one.schema.schema_id): one for one in versions}
        if new.keys() - self._by_id.keys():
            self._landed |= new
            self._index()

    def _index(self) -> None:
        self._versions = {table: list(versions) for table, versions in self._recorded.items()}
        self._by_id = {
            (table, one.schema.schema_id): one.schema for table, versions in self._versions.items() for one in versions
        }
        for name, one in self._landed.items():
            if name not in self._by_id:
                self._by_id[name] = one.schema
                self._versions.setdefault(one.schema.table, []).append(one)
        self.by_id = {schema_id: schema for (_, schema_id), schema in self._by_id.items()}
