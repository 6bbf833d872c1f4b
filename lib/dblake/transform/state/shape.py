"""The columns of one state table: its schemas' columns, in Spark's types.

Built from all versions of a table's schema up to some landing batch. Guarantee: a shape can be a Delta table. Anything
else raises a StateError that names the table and the column. Examples are names that differ only in case, names of our
own columns, and a key or type that changed beyond repair. A column dropped at the source stays in the shape, after the
newest schema's columns, so that the state table keeps its last values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dblake.base.core.errors import IncompatibleSchemaChange, StateError
from dblake.base.core.schema import TableSchema
from dblake.transform.spark.types import holds, spark_type

#: Our own columns; they come first in the table, where Delta keeps statistics.
OWN = {
    "_key": "STRING", "_incarnation": "BIGINT", "_lsn": "BIGINT", "_seq": "BIGINT", "_deleted": "BOOLEAN",
    "_lossy": "ARRAY<STRING>", "_missing": "ARRAY<STRING>",
}
#: What a column may not be called: our own, and those that the fold hands to the merge.
RESERVED = frozenset({*OWN, "_unknown", "_moved_from"})
REBUILD = "if the change is meant, dump start --table '{table}', unless capture has requested that automatically; " \
          "once that dump is done, the next state run rebuilds the table from it"


@dataclass(frozen=True, slots=True)
class StateColumn:
    """One column: its name at the source, its Spark type, and whether the newest schema has ``dropped`` it."""

    name: str
    type: str
    dropped: bool = False


@dataclass(frozen=True)
class Shape:
    """The source's columns of one state table. ``primary_key`` is empty for a table that is only appended to."""

    table: str
    columns: tuple[StateColumn, ...]
    primary_key: tuple[str, ...]

    @property
    def current(self) -> tuple[StateColumn, ...]:
        """The columns of the newest schema."""
        return tuple(c for c in self.columns if not c.dropped)


def shape_of(versions: Sequence[TableSchema]) -> Shape:
    """Return the shape after these versions of a table's schema, oldest first."""
    newest = versions[-1]
    columns = [StateColumn(c.name, spark_type(c.type)) for c in newest.columns]
    known = {c.name for c in columns}
    for schema in reversed(versions[:-1]):
        gone = [c for c in schema.columns if c.name not in known]
        columns += [StateColumn(c.name, spark_type(c.type), dropped=True) for c in gone]
        known |= {c.name for c in gone}
    _refuse_clashes(newest.table, columns)
    return Shape(newest.table, tuple(columns), newest.primary_key)


def first_compatible_version(versions: Sequence[TableSchema]) -> int:
    """From which of these versions on, oldest first, one shape holds the rows of all: key and types go together."""
    newest = versions[-1]
    types = {c.name: spark_type(c.type) for c in newest.columns}
    for place in range(len(versions) - 1, -1, -1):
        schema = versions[place]
        if schema.primary_key != newest.primary_key:
            return place + 1
        for column in schema.columns:
            kind = spark_type(column.type)
            known = types.setdefault(column.name, kind)
            if holds(kind, known):
                types[column.name] = kind
            elif not holds(known, kind):
                return place + 1
    return 0


def require_one_key(versions: Sequence[TableSchema]) -> None:
    """Raise IncompatibleSchemaChange for versions with different keys: no one of them identifies the rows of all."""
    if any(schema.primary_key != versions[-1].primary_key for schema in versions):
        raise key_changed(versions[-1].table)


def key_changed(table: str) -> IncompatibleSchemaChange:
    """Return the error for a table whose key is another one than it was."""
    return IncompatibleSchemaChange(f"table {table}: its primary key changed", next_step=REBUILD.format(table=table))


def widened_to_fit(shape: Shape, existing: Mapping[str, str]) -> Shape:
    """Return the shape with the types a state table that is already there has or must grow to.

    ``existing`` maps its columns to their types. Where one of the two types holds all values of the other, it is the
    wider of them; else IncompatibleSchemaChange.
    """
    return replace(shape, columns=tuple(_fit(shape.table, c, existing.get(c.name)) for c in shape.columns))


def _fit(table: str, column: StateColumn, existing: str | None) -> StateColumn:
    if existing is None or holds(column.type, existing):
        return column
    if holds(existing, column.type):
        return replace(column, type=existing)
    raise IncompatibleSchemaChange(
        f"table {table}, column {column.name}: its type became {column.type}, state has {existing}",
        next_step=REBUILD.format(table=table),
    )


def _refuse_clashes(table: str, columns: list[StateColumn]) -> None:
    seen: dict[str, str] = {}
    for column in columns:
        folded = column.name.lower()
        if folded in RESERVED:
            raise StateError(
                f"table {table}, column {column.name}: state tables have a column of their own by that name",
                next_step="rename the column, or take the table out of source.tables",
            )
        if folded in seen:
            raise StateError(
                f"table {table}, columns {seen[folded]} and {column.name}: a Delta table cannot hold names that "
                "differ only in case",
                next_step="rename one of them, or take the table out of source.tables",
            )
        seen[folded] = column.name
