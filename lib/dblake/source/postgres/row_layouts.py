"""Resolves wal2json objects to tables and schemas by their layout, as ``relations`` does for pgoutput.

wal2json does not announce that a table changed: each row carries name, type and nullability of each column, and which
columns are the key. A layout that was resolved keeps its schema. A new one is compared with the table's last schema,
then with the catalog, which may be newer. Guarantee: where neither is compatible, the log decides. A row does not show
why an update lacks a column: unchanged and stored out of line, or dropped. It counts as dropped if it cannot be stored
out of line or the catalog no longer has it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from psycopg2.extensions import cursor

from dblake.core.errors import SourceError, Unsupported
from dblake.core.names import TableFilter, qualified
from dblake.core.schema import Column, TableSchema
from dblake.source.postgres import catalog
from dblake.source.postgres.relations import Numbers, ResolvedTable, identity_without_key
from dblake.source.postgres.wal2json_layouts import RowLayout, decode_type, encode_layouts, encode_type

_TABLE = """
SELECT c.oid,
       CASE c.relreplident
         WHEN 'd' THEN coalesce(i.indimmediate AND i.indisvalid, false)
         WHEN 'i' THEN EXISTS (SELECT FROM pg_index WHERE indrelid = c.oid AND indisreplident)
         ELSE c.relreplident = 'f'
       END, c.relreplident = 'n',
       c.relkind = 'p' OR c.relispartition, root_schema.nspname, root.relname,
       EXISTS (SELECT FROM pg_attribute WHERE attrelid = c.oid AND attgenerated <> '' AND NOT attisdropped),
       ARRAY(SELECT a.attname::text FROM pg_attribute a
             WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attlen = -1)
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_class root ON root.oid = pg_partition_root(c.oid)::oid
LEFT JOIN pg_namespace root_schema ON root_schema.oid = root.relnamespace
LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
WHERE c.relkind IN ('r', 'p') AND n.nspname = %s AND c.relname = %s
"""
_DOMAINS = "SELECT format_type(oid, NULL), oid FROM pg_type WHERE typtype = 'd' AND format_type(oid, NULL) = ANY(%s)"


@dataclass(frozen=True, slots=True)
class _TypedSchema:
    """A table's schema with its types in wal2json's notation, domains by their own names."""

    schema: TableSchema
    types: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class _CatalogSchema(_TypedSchema):
    """A table as the catalog has it now."""

    wide: frozenset[str]
    """The columns that can be stored out of line."""
    has_identity: bool
    """True if the log contains updates and deletes, because a replica identity is in effect."""
    is_identity_nothing: bool
    """True if the replica identity is NOTHING, whatever the key."""


class RowLayouts:
    """The layouts of one wal2json stream, numbered in order of appearance; see TableRegistry."""

    def __init__(self, cur: cursor, table_filter: TableFilter, watermark_schema: str) -> None:
        self._cursor = cur
        self._table_filter = table_filter
        self._watermark_schema = watermark_schema
        self._numbers: dict[bytes, int] = {}
        self._layouts: list[RowLayout] = []
        self._resolved: dict[int, ResolvedTable] = {}
        self._schemas: dict[tuple[str, str], _TypedSchema] = {}
        self.rejected: dict[str, str] = {}

    def __getitem__(self, number: int) -> ResolvedTable:
        return self._resolved[number]

    def table_numbers(self, messages: pa.BinaryArray) -> Numbers:
        if len(messages) == 0:
            return np.zeros(0, np.int64)
        encoded = encode_layouts(messages)
        numbers = []
        for layout in encoded.dictionary.to_pylist():
            if layout not in self._numbers:
                self._numbers[layout] = len(self._layouts)
                self._layouts.append(RowLayout.parse(layout))
            numbers.append(self._numbers[layout])
        return np.asarray(np.array(numbers, np.int64)[encoded.indices.to_numpy()])

    def register(self, message: bytes) -> None:  # noqa: ARG002
        raise SourceError(
            "wal2json sent a message of an unknown kind", next_step="report wal2json's version to dblake's maintainers"
        )

    def first_unresolved(self, numbers: Numbers) -> int | None:
        unresolved = [number for number in np.unique(numbers) if int(number) not in self._resolved]
        indices = np.flatnonzero(np.isin(numbers, unresolved))
        return int(indices[0]) if len(indices) else None

    def resolve(self, number: int) -> TableSchema | None:
        layout = self._layouts[number]
        previous = self._schemas.get(layout.table)
        self._resolved[number] = table = self._look_up(layout, previous)
        if table.schema is None or (previous is not None and table.schema == previous.schema):
            return None
        # The table's other layouts may belong to the new schema, too: resolve them again when they reappear.
        for other, resolved in list(self._resolved.items()):
            if resolved.schema != table.schema and self._layouts[other].table == layout.table:
                del self._resolved[other]
        return table.schema

    def _look_up(self, layout: RowLayout, previous: _TypedSchema | None) -> ResolvedTable:
        schema_name, table_name = layout.table
        if schema_name == self._watermark_schema:
            return ResolvedTable(None, is_watermark_table=table_name == "watermark")
        try:
            return self._look_up_captured(layout, previous)
        except Unsupported as error:
            return ResolvedTable(None, rejected=(qualified(*layout.table), error.what))

    def _look_up_captured(self, layout: RowLayout, previous: _TypedSchema | None) -> ResolvedTable:
        """Return the table if it is captured; raise Unsupported if it should be and cannot."""
        cataloged = self._read_catalog(layout)
        if not self._table_filter(*layout.table):
            return ResolvedTable(None)
        if cataloged is not None and not _is_fully_logged(layout, previous, cataloged):
            raise Unsupported(
                f"table {qualified(*layout.table)} has no replica identity, so wal2json omits its updates and deletes",
                next_step="give it a primary key or a replica identity",
            )
        typed = self._select_schema(layout, previous, cataloged)
        self._schemas[layout.table] = typed
        self._require_identity(layout, typed.schema)
        return ResolvedTable(typed.schema)

    def _read_catalog(self, layout: RowLayout) -> _CatalogSchema | None:
        """Return the table as the catalog has it; raise Unsupported if it cannot be captured."""
        self._cursor.execute(_TABLE, layout.table)
        row = self._cursor.fetchone()
        if row is None:
            return None
        oid, has_identity, is_nothing, is_partitioned, root_schema, root_name, is_generated, wide = row
        name = qualified(*layout.table)
        if is_partitioned and self._table_filter(root_schema or layout.table[0], root_name or layout.table[1]):
            raise Unsupported(
                f"table {name} is partitioned or a partition: wal2json names rows by their partitions",
                next_step="remove it from source.tables, or set source.plugin to pgoutput",
            )
        table = catalog.table_by_oid(self._cursor, oid)
        if table is None or not self._table_filter(*layout.table):
            return None
        if is_generated:
            raise Unsupported(
                f"table {name} has generated columns, which wal2json does not distinguish from others",
                next_step="remove it from source.tables, or set source.plugin to pgoutput",
            )
        catalog.require_usable_key(table)
        types = tuple(map(encode_type, table.declared))
        return _CatalogSchema(table.schema, types, frozenset(wide), has_identity, is_nothing)

    def _select_schema(
        self, layout: RowLayout, previous: _TypedSchema | None, cataloged: _CatalogSchema | None
    ) -> _TypedSchema:
        for candidate in (previous, cataloged):
            if candidate is not None and _is_compatible(layout, candidate, cataloged):
                return candidate
        return self._schema_from_log(layout, previous or cataloged, cataloged)

    def _schema_from_log(
        self, layout: RowLayout, previous: _TypedSchema | None, cataloged: _CatalogSchema | None
    ) -> _TypedSchema:
        """Return the layout's own schema, completed by columns of ``previous`` that an update may have omitted."""
        columns: dict[str, tuple[bytes, bool]] = {name: (type_, True) for name, type_ in layout.old or ()}
        columns |= {column.name: (column.type, column.nullable) for column in layout.columns or ()}
        names = list(columns)
        if previous is not None and (layout.columns is None or layout.old is not None):
            for index, (column, type_) in enumerate(zip(previous.schema.columns, previous.types, strict=True)):
                if column.name not in columns and (
                    layout.columns is None or _may_be_out_of_line(column.name, type_, cataloged)
                ):
                    columns[column.name] = type_, column.nullable
                    names.insert(index, column.name)
        types = self._resolve_domains([decode_type(columns[name][0]) for name in names])
        key = {name: number for number, name in enumerate(self._order_key(layout, previous, cataloged), 1)}
        table = TableSchema(
            qualified(*layout.table),
            tuple(Column(n, type_, columns[n][1], key.get(n)) for n, type_ in zip(names, types, strict=True)),
        )
        return _TypedSchema(table, tuple(columns[name][0] for name in names))

    @staticmethod
    def _order_key(layout: RowLayout, *others: _TypedSchema | None) -> tuple[str, ...]:
        """Return the primary key: its columns from the layout, their order from a schema with the same columns."""
        if layout.key is None:
            return next((other.schema.primary_key for other in others if other is not None), ())
        orders = (other.schema.primary_key for other in others if other is not None)
        return next((order for order in orders if set(order) == set(layout.key or ())), layout.key)

    def _resolve_domains(self, types: list[str]) -> list[str]:
        """Return the same types, each domain replaced by its base type."""
        self._cursor.execute(_DOMAINS, (types,))
        domains = dict(self._cursor.fetchall())
        if not domains:
            return types
        bases = dict(zip(domains, catalog.type_names(self._cursor, [(d, -1) for d in domains.values()]), strict=True))
        return [bases.get(type_, type_) for type_ in types]

    @staticmethod
    def _require_identity(layout: RowLayout, table: TableSchema) -> None:
        if layout.old is not None and not set(table.primary_key) <= {name for name, _ in layout.old}:
            raise identity_without_key(table)


def _is_fully_logged(layout: RowLayout, previous: _TypedSchema | None, cataloged: _CatalogSchema) -> bool:
    """Return True if the log contains all changes of the table, judged by the row, else by the catalog."""
    if layout.key is None:
        return cataloged.has_identity or previous is not None
    has_usable_key = bool(layout.key) and not cataloged.is_identity_nothing
    return cataloged.has_identity or layout.old is not None or has_usable_key


def _may_be_out_of_line(name: str, type_: bytes, cataloged: _CatalogSchema | None) -> bool:
    """Return True if a column that an update lacks may exist, unchanged and stored out of line (TOAST)."""
    if cataloged is None:
        return True
    types = dict(zip(cataloged.schema.names, cataloged.types, strict=True))
    return name in cataloged.wide and types.get(name) == type_


def _is_compatible(layout: RowLayout, typed: _TypedSchema, cataloged: _CatalogSchema | None) -> bool:
    """Return True if a row of this layout can be a row of this schema."""
    columns = {c.name: (type_, c.nullable) for c, type_ in zip(typed.schema.columns, typed.types, strict=True)}
    if layout.key is not None and set(layout.key) != set(typed.schema.primary_key):
        return False
    if any(columns.get(name, (b"",))[0] != type_ for name, type_ in layout.old or ()):
        return False
    if layout.columns is None:
        return True
    sent = {column.name: (column.type, column.nullable) for column in layout.columns}
    if [name for name in columns if name in sent] != list(sent) or any(columns[n] != t for n, t in sent.items()):
        return False
    missing = [name for name in columns if name not in sent]
    return not missing or (
        layout.old is not None and all(_may_be_out_of_line(name, columns[name][0], cataloged) for name in missing)
    )
