"""Which table and which schema a wal2json object means, by its shape, as ``relations`` finds it out for pgoutput.

wal2json does not say when a table changes: each row says of each of its columns the name, the type and whether it may
be NULL, and which columns are the key. A shape that was met before means what it meant before; a new one is held
against the schema its table has, then against the catalogue, which may have moved on; where neither fits, the log is
right. The one thing a row does not tell is why an update lacks a column: it is unchanged and stored out of line, or
dropped. It is taken for dropped if it cannot be stored so or the catalogue no longer has it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from psycopg2.extensions import cursor

from dblake.core.errors import SourceError, Unsupported
from dblake.core.names import TableFilter, qualified
from dblake.core.schema import Column, TableSchema
from dblake.source.postgres import catalog as catalogue
from dblake.source.postgres.relations import Captured, Numbers
from dblake.source.postgres.wal2json import Shape, signatures, type_text, written

logger = logging.getLogger(__name__)

_TABLE = """
SELECT c.oid,
       CASE c.relreplident
         WHEN 'd' THEN coalesce(i.indimmediate AND i.indisvalid, false)
         WHEN 'i' THEN EXISTS (SELECT FROM pg_index WHERE indrelid = c.oid AND indisreplident)
         ELSE c.relreplident = 'f'
       END, c.relreplident = 'n',
       c.relkind = 'p' OR c.relispartition, root_schema.nspname, root.relname,
       EXISTS (SELECT FROM pg_attribute WHERE attrelid = c.oid AND attgenerated <> '' AND NOT attisdropped),
       coalesce(NOT i.indimmediate, false),
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
class _Known:
    """A table's schema with its types as wal2json writes them, domains by their own names."""

    schema: TableSchema
    types: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class _Found(_Known):
    """A table as the catalogue has it now. ``wide`` are the columns that can be stored out of line.

    ``identified``: updated and deleted rows are in the log, since something identifies them; ``by_nothing``: they are
    not, whatever the key.
    """

    wide: frozenset[str]
    identified: bool
    by_nothing: bool
    key_deferrable: bool


class Shapes:
    """The shapes of one wal2json stream, numbered as they come; see Tables for the methods."""

    def __init__(self, cur: cursor, wanted: TableFilter, watermark_schema: str) -> None:
        self._cursor = cur
        self._wanted = wanted
        self._watermark_schema = watermark_schema
        self._numbers: dict[bytes, int] = {}
        self._shapes: list[Shape] = []
        self._meanings: dict[int, Captured] = {}
        self._known: dict[tuple[str, str], _Known] = {}

    def __getitem__(self, number: int) -> Captured:
        return self._meanings[number]

    def numbers(self, messages: pa.BinaryArray) -> Numbers:
        if len(messages) == 0:
            return np.zeros(0, np.int64)
        encoded = signatures(messages)
        numbers = []
        for signature in encoded.dictionary.to_pylist():
            if signature not in self._numbers:
                self._numbers[signature] = len(self._shapes)
                self._shapes.append(Shape.of(signature))
            numbers.append(self._numbers[signature])
        return np.asarray(np.array(numbers, np.int64)[encoded.indices.to_numpy()])

    def described(self, message: bytes) -> int | None:  # noqa: ARG002
        raise SourceError("wal2json sent a message of an unknown kind", next_step="report its version")

    def new(self, numbers: Numbers) -> int | None:
        unknown = [number for number in np.unique(numbers) if int(number) not in self._meanings]
        found = np.flatnonzero(np.isin(numbers, unknown))
        return int(found[0]) if len(found) else None

    def learn(self, number: int) -> TableSchema | None:
        shape = self._shapes[number]
        before = self._known.get(shape.table)
        self._meanings[number] = learned = self._resolve(shape, before)
        if learned.schema is None or (before is not None and learned.schema == before.schema):
            return None
        # What other shapes of the table mean may have changed, too.
        for other, meaning in list(self._meanings.items()):
            if meaning.schema != learned.schema and self._shapes[other].table == shape.table:
                del self._meanings[other]
        return learned.schema

    def _resolve(self, shape: Shape, known: _Known | None) -> Captured:
        schema_name, table_name = shape.table
        if schema_name == self._watermark_schema:
            return Captured(None, is_watermark_table=table_name == "watermark")
        found = self._look_up(shape)
        if not self._wanted(*shape.table):
            return Captured(None)
        if found is not None and not _followed(shape, known, found):
            logger.warning(
                "table %s is not followed: wal2json leaves out its updates and deletes, which nothing identifies",
                qualified(*shape.table),
            )
            return Captured(None)
        schema = self._schema(shape, known, found)
        self._known[shape.table] = schema
        self._refuse_unidentifiable(shape, schema.schema)
        return Captured(schema.schema)

    def _look_up(self, shape: Shape) -> _Found | None:
        self._cursor.execute(_TABLE, shape.table)
        row = self._cursor.fetchone()
        if row is None:
            return None
        oid, identified, by_nothing, parted, root_schema, root_name, generated, deferrable, wide = row
        name = qualified(*shape.table)
        if parted and self._wanted(root_schema or shape.table[0], root_name or shape.table[1]):
            raise Unsupported(
                f"table {name} is partitioned or a partition: wal2json names rows by their partitions",
                next_step="take it out of source.tables, or set source.plugin to pgoutput",
            )
        table = catalogue.table_by_oid(self._cursor, oid)
        if table is None or not self._wanted(*shape.table):
            return None
        if generated:
            raise Unsupported(
                f"table {name} has generated columns, which wal2json does not tell from others",
                next_step="take it out of source.tables, or set source.plugin to pgoutput",
            )
        types = tuple(map(written, table.declared))
        return _Found(table.schema, types, frozenset(wide), identified, by_nothing, deferrable)

    def _schema(self, shape: Shape, known: _Known | None, found: _Found | None) -> _Known:
        for candidate in (known, found):
            if candidate is not None and _fits(shape, candidate, found):
                return candidate
        return self._told(shape, known or found, found)

    def _told(self, shape: Shape, before: _Known | None, found: _Found | None) -> _Known:
        """The schema that the shape itself tells, with the columns of before that it may just not have sent."""
        told: dict[str, tuple[bytes, bool]] = {name: (type_, True) for name, type_ in shape.old or ()}
        told |= {column.name: (column.type, column.nullable) for column in shape.columns or ()}
        names = list(told)
        if before is not None and (shape.columns is None or shape.old is not None):
            for place, (column, type_) in enumerate(zip(before.schema.columns, before.types, strict=True)):
                if column.name not in told and (shape.columns is None or _out_of_line(column.name, type_, found)):
                    told[column.name] = type_, column.nullable
                    names.insert(place, column.name)
        spelled = self._spelled([type_text(told[name][0]) for name in names])
        key = {name: number for number, name in enumerate(self._key(shape, before, found), 1)}
        table = TableSchema(
            qualified(*shape.table),
            tuple(Column(n, type_, told[n][1], key.get(n)) for n, type_ in zip(names, spelled, strict=True)),
        )
        return _Known(table, tuple(told[name][0] for name in names))

    @staticmethod
    def _key(shape: Shape, *others: _Known | None) -> tuple[str, ...]:
        """The primary key: which columns, the shape tells; in which order, whoever knows the same ones."""
        if shape.key is None:
            return next((other.schema.primary_key for other in others if other is not None), ())
        orders = (other.schema.primary_key for other in others if other is not None)
        return next((order for order in orders if set(order) == set(shape.key or ())), shape.key)

    def _spelled(self, types: list[str]) -> list[str]:
        """The same types, domains by what is below them."""
        self._cursor.execute(_DOMAINS, (types,))
        domains = dict(self._cursor.fetchall())
        if not domains:
            return types
        bases = dict(zip(domains, catalogue.type_names(self._cursor, [(d, -1) for d in domains.values()]), strict=True))
        return [bases.get(type_, type_) for type_ in types]

    @staticmethod
    def _refuse_unidentifiable(shape: Shape, table: TableSchema) -> None:
        if shape.old is not None and not set(table.primary_key) <= {name for name, _ in shape.old}:
            raise Unsupported(
                f"table {table.table}: its replica identity is an index that does not cover the primary key, so"
                " updated and deleted rows cannot be identified",
                next_step=f"ALTER TABLE {table.table} REPLICA IDENTITY DEFAULT",
            )


def _followed(shape: Shape, known: _Known | None, found: _Found) -> bool:
    """True if the log has all changes of the table, as far as the row can tell or else the catalogue."""
    if shape.key is None:
        return found.identified or known is not None
    return found.identified or shape.old is not None or (bool(shape.key) and not found.by_nothing)


def _out_of_line(name: str, type_: bytes, found: _Found | None) -> bool:
    """True if a column that an update lacks may be there, unchanged."""
    if found is None:
        return True
    types = dict(zip(found.schema.names, found.types, strict=True))
    return name in found.wide and types.get(name) == type_


def _fits(shape: Shape, known: _Known, found: _Found | None) -> bool:
    """True if a row of such a shape may be one of such a schema."""
    columns = {c.name: (type_, c.nullable) for c, type_ in zip(known.schema.columns, known.types, strict=True)}
    deferrable = found is not None and found.key_deferrable
    if shape.key is not None and set(shape.key) != set(known.schema.primary_key) and not (
        deferrable and not shape.key
    ):
        return False
    if any(columns.get(name, (b"",))[0] != type_ for name, type_ in shape.old or ()):
        return False
    if shape.columns is None:
        return True
    told = {column.name: (column.type, column.nullable) for column in shape.columns}
    if [name for name in columns if name in told] != list(told) or any(columns[n] != t for n, t in told.items()):
        return False
    lacking = [name for name in columns if name not in told]
    return not lacking or (
        shape.old is not None and all(_out_of_line(name, columns[name][0], found) for name in lacking)
    )
