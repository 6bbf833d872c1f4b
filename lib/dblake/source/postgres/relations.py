"""Which table a log message means: from PostgreSQL's relation numbers to captured tables and their schemas.

The log describes a table by names and type numbers only. The catalogue adds what it leaves out (the key, how types
are spelled, what may be NULL); where the two disagree, because the catalogue has moved on, the log is right.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from psycopg2.extensions import cursor

from dblake.core.errors import Unsupported
from dblake.core.names import TableFilter, qualified
from dblake.core.schema import Column, TableSchema
from dblake.source.postgres import catalog as catalogue
from dblake.source.postgres import pgoutput
from dblake.source.postgres.pgoutput import Relation

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Captured:
    """What a relation number stands for: a captured table, the watermark table, or a table nobody asked for."""

    schema: TableSchema | None
    is_watermark_table: bool = False


class Tables(Protocol):
    """What numbers stand for, by which the messages of one log stream tell their tables apart."""

    def numbers(self, messages: pa.BinaryArray) -> Numbers:
        """Of inserts, updates, deletes and truncates."""

    def described(self, message: bytes) -> int | None:
        """Takes in a message that describes a table, which then has to be learned anew; None if it says nothing new."""

    def new(self, numbers: Numbers) -> int | None:
        """Where the first number stands that has to be learned, if any does."""

    def learn(self, number: int) -> TableSchema | None:
        """Finds out what a number means from here on: the schema to tell of, if it is of a captured table."""

    def __getitem__(self, number: int) -> Captured: ...


class Relations:
    """The relation numbers of one pgoutput stream; see Tables for the methods."""

    def __init__(self, cur: cursor, wanted: TableFilter, watermark_schema: str) -> None:
        self._cursor = cur
        self._wanted = wanted
        self._watermark_schema = watermark_schema
        self._messages: dict[int, bytes] = {}
        self._known: dict[int, Captured] = {}

    def __getitem__(self, number: int) -> Captured:
        return self._known[number]

    def numbers(self, messages: pa.BinaryArray) -> Numbers:
        return pgoutput.relation_numbers(messages)

    def new(self, numbers: Numbers) -> int | None:  # noqa: ARG002 - a description comes before the first row
        return None

    def described(self, message: bytes) -> int | None:
        # Of what may be NULL the log says nothing but the same once more, so the catalogue is asked.
        relation = pgoutput.relation(message)
        if self._messages.get(relation.oid) == message and self._resolve(relation) == self._known[relation.oid]:
            return None
        self._messages[relation.oid] = message
        return relation.oid

    def learn(self, number: int) -> TableSchema | None:
        self._known[number] = learned = self._resolve(pgoutput.relation(self._messages[number]))
        return learned.schema

    def _resolve(self, relation: Relation) -> Captured:
        if relation.schema_name == self._watermark_schema:
            return Captured(None, is_watermark_table=relation.table_name == "watermark")
        if not self._wanted(relation.schema_name, relation.table_name):
            return Captured(None)
        found = catalogue.table_by_oid(self._cursor, relation.oid)
        said = [(c.name, c.type, c.modifier) for c in relation.columns]
        if found and _columns(found) == said and not _had_another_key(relation, found):
            table = TableSchema(qualified(relation.schema_name, relation.table_name), found.schema.columns)
        else:
            table = self._from_log(relation, found)
        if found:
            catalogue.require_whole_key(found)
        self._refuse_unidentifiable(relation, table)
        return Captured(table)

    def _from_log(self, relation: Relation, found: catalogue.CatalogueTable | None) -> TableSchema:
        spelled = catalogue.type_names(self._cursor, [(c.type, c.modifier) for c in relation.columns])
        if relation.replica_identity == "d":
            keys = {name: n + 1 for n, name in enumerate(c.name for c in relation.columns if c.identity)}
            if found and set(found.schema.primary_key) == set(keys):
                keys = {name: n + 1 for n, name in enumerate(found.schema.primary_key)}
        else:
            keys = {name: n + 1 for n, name in enumerate(found.schema.primary_key)} if found else {}
        nullable = {c.name: c.nullable for c in found.schema.columns} if found else {}
        return TableSchema(
            qualified(relation.schema_name, relation.table_name),
            tuple(
                Column(c.name, text, nullable.get(c.name, True), keys.get(c.name))
                for c, text in zip(relation.columns, spelled, strict=True)
            ),
        )

    @staticmethod
    def _refuse_unidentifiable(relation: Relation, table: TableSchema) -> None:
        identity = {c.name for c in relation.columns if c.identity}
        if table.primary_key and relation.replica_identity == "i" and not set(table.primary_key) <= identity:
            raise Unsupported(
                f"table {table.table}: its replica identity is an index that does not cover the primary key, so"
                " updated and deleted rows cannot be identified",
                next_step=f"ALTER TABLE {table.table} REPLICA IDENTITY DEFAULT",
            )


def _columns(table: catalogue.CatalogueTable) -> list[tuple[str, int, int]]:
    return [(name, *kind) for name, kind in zip(table.schema.names, table.types, strict=True)]


def _had_another_key(relation: Relation, found: catalogue.CatalogueTable) -> bool:
    """True if the log's rows go by another key than the catalogue has by now, though their columns are the same."""
    identity = {c.name for c in relation.columns if c.identity}
    return relation.replica_identity == "d" and bool(identity) and identity != set(found.schema.primary_key)
