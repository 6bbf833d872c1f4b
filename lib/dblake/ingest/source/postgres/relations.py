"""Resolves the relation numbers of a pgoutput stream to captured tables and their schemas.

The log describes a table by names and type numbers only. The catalog adds the rest (key order, type names,
nullability). Guarantee: where the two disagree, because the catalog is newer, the log's description decides.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from psycopg2.extensions import cursor

from dblake.base.core.errors import Unsupported
from dblake.base.core.names import TableFilter, qualified
from dblake.base.core.schema import Column, TableSchema
from dblake.ingest.source.postgres import catalog
from dblake.ingest.source.postgres.fingerprints import partition_body
from dblake.ingest.source.postgres.relation_messages import Relation, parse_relation, relation_numbers

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ResolvedTable:
    """The table behind a number: captured (with a schema), the watermark table, rejected (with a reason), or none."""

    schema: TableSchema | None
    is_watermark_table: bool = False
    rejected: tuple[str, str] | None = None
    """Name and reason of a table that should be captured and whose rows cannot be."""
    body: str = ""
    """What identifies the table whatever its name is, as in ``TableFingerprint.bodies``; empty if the log lacks it."""
    is_renamed: bool = False
    """True if this stream has described the table under another name."""


class Relations:
    """The relation numbers by which the messages of one pgoutput stream identify their tables."""

    def __init__(self, cur: cursor, table_filter: TableFilter, watermark_schema: str) -> None:
        self._cursor = cur
        self._table_filter = table_filter
        self._watermark_schema = watermark_schema
        self._messages: dict[int, bytes] = {}
        self._resolved: dict[int, ResolvedTable] = {}
        self._names: dict[int, str] = {}
        self.rejected: dict[str, str] = {}
        """The rejected tables that framed rows belong to, with the reason, until ``PieceBuilder`` takes them."""
        self.partitions: dict[str, set[str]] = {}
        """The partitions that were described since ``PieceBuilder`` took them, by the name of their root."""
        self._described: Relation | None = None

    def __getitem__(self, number: int) -> ResolvedTable:
        return self._resolved[number]

    def table_numbers(self, messages: pa.BinaryArray) -> Numbers:
        """Return the table number of each insert, update, delete or truncate."""
        return relation_numbers(messages)

    def first_unresolved(self, numbers: Numbers) -> int | None:
        """Return the index of the first number that has to be resolved, if there is one."""
        # The log also describes partitions, whose rows have their root's number: they are no tables.
        unresolved = self._messages.keys() - self._resolved.keys()
        if not unresolved:
            return None
        indices = np.flatnonzero(np.isin(numbers, list(unresolved)))
        return int(indices[0]) if len(indices) else None

    def register(self, message: bytes) -> None:
        """Add a message that describes a table for the rows that follow it."""
        # After a change of nullability the log repeats the same description, so the catalog is queried each time.
        relation = parse_relation(message)
        self._note_partition(relation)
        resolved = self._resolved.get(relation.oid)
        is_repeated = resolved is not None and self._messages[relation.oid] == message
        if resolved and is_repeated and self._look_up(relation) == replace(resolved, is_renamed=False):
            return
        self._messages[relation.oid] = message
        self._resolved.pop(relation.oid, None)

    def _note_partition(self, relation: Relation) -> None:
        """Note the relation if it is a partition: the log describes it for its first row, directly after its root.

        Another table with the columns of the root may follow it, after a TRUNCATE of both. Then the root is dumped
        without need.
        """
        root, self._described = self._described, relation
        if root is None or not self._table_filter(root.schema_name, root.table_name):
            return
        if {c.name for c in root.columns} != {c.name for c in relation.columns}:
            return
        self._cursor.execute("SELECT FROM pg_class WHERE oid = %s AND relkind = 'p'", (root.oid,))
        if self._cursor.rowcount:
            root_name = qualified(root.schema_name, root.table_name)
            self.partitions.setdefault(root_name, set()).add(partition_body(relation.oid))

    def resolve(self, number: int) -> TableSchema | None:
        """Resolve a number for the messages from here on; return the schema to land, if its table is captured.

        A table whose rows cannot be identified is rejected.
        """
        relation = parse_relation(self._messages[number])
        name = qualified(relation.schema_name, relation.table_name)
        is_renamed = self._names.setdefault(number, name) != name
        self._names[number] = name
        self._resolved[number] = table = replace(self._look_up(relation), is_renamed=is_renamed)
        return table.schema

    def _look_up(self, relation: Relation) -> ResolvedTable:
        if relation.schema_name == self._watermark_schema:
            return ResolvedTable(None, is_watermark_table=relation.table_name == "watermark")
        if not self._table_filter(relation.schema_name, relation.table_name):
            return ResolvedTable(None)
        cataloged = catalog.table_by_oid(self._cursor, relation.oid)
        logged = [(c.name, c.type, c.modifier) for c in relation.columns]
        if cataloged and _typed_columns(cataloged) == logged and not _has_another_key(relation, cataloged):
            schema = TableSchema(qualified(relation.schema_name, relation.table_name), cataloged.schema.columns)
        else:
            schema = self._schema_from_log(relation, cataloged)
        try:
            if cataloged:
                catalog.require_usable_key(cataloged)
            self._require_identity(relation, schema)
        except Unsupported as error:
            return ResolvedTable(None, rejected=(schema.table, error.what))
        return ResolvedTable(schema, body=f"table {relation.oid}")

    def _schema_from_log(self, relation: Relation, cataloged: catalog.CatalogTable | None) -> TableSchema:
        types = catalog.type_names(self._cursor, [(c.type, c.modifier) for c in relation.columns])
        if relation.replica_identity == "d":
            keys = {name: n + 1 for n, name in enumerate(c.name for c in relation.columns if c.identity)}
            if cataloged and set(cataloged.schema.primary_key) == set(keys):
                keys = {name: n + 1 for n, name in enumerate(cataloged.schema.primary_key)}
        else:
            keys = {name: n + 1 for n, name in enumerate(cataloged.schema.primary_key)} if cataloged else {}
        nullable = {c.name: c.nullable for c in cataloged.schema.columns} if cataloged else {}
        return TableSchema(
            qualified(relation.schema_name, relation.table_name),
            tuple(
                Column(c.name, text, nullable.get(c.name, True), keys.get(c.name))
                for c, text in zip(relation.columns, types, strict=True)
            ),
        )

    @staticmethod
    def _require_identity(relation: Relation, table: TableSchema) -> None:
        identity = {c.name for c in relation.columns if c.identity}
        if table.primary_key and relation.replica_identity == "i" and not set(table.primary_key) <= identity:
            raise _identity_without_key(table)


def _identity_without_key(table: TableSchema) -> Unsupported:
    """Return the error for a table whose replica identity index does not cover its primary key."""
    return Unsupported(
        f"table {table.table}: its replica identity is an index that does not cover the primary key, so"
        " updated and deleted rows cannot be identified",
        next_step=f"run ALTER TABLE {table.table} REPLICA IDENTITY DEFAULT",
    )


def _typed_columns(table: catalog.CatalogTable) -> list[tuple[str, int, int]]:
    return [(name, *type_) for name, type_ in zip(table.schema.names, table.types, strict=True)]


def _has_another_key(relation: Relation, cataloged: catalog.CatalogTable) -> bool:
    """Return True if the logged rows have another key than the catalog's, though their columns are the same."""
    identity = {c.name for c in relation.columns if c.identity}
    return relation.replica_identity == "d" and bool(identity) and identity != set(cataloged.schema.primary_key)
