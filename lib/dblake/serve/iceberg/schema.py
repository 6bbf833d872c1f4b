"""The columns of a Delta table as columns of an Iceberg table, through changes of its schema.

The Parquet files have no field identifiers. So a name mapping leads from the names in the files to Iceberg's fields. It
also covers columns that Delta maps, and names that Iceberg reserves. Guarantee: no field has values of two types. Which
snapshot has which schema is ``table``'s.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.exceptions import ResolveError
from pyiceberg.schema import Schema, promote
from pyiceberg.table.name_mapping import MappedField, NameMapping
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)

DELETED = "_deleted"
"""No row of an Iceberg table is deleted, and Iceberg reserves the name."""
_NO_FIELD = 2_000_000_000
"""The number of ``_deleted`` in name mappings: readers need one for each column of a file."""
_RESERVED = frozenset({
    "_file", "_pos", "_deleted", "_partition", "_spec_id", "_row_id", "_last_updated_sequence_number", "_change_type",
    "_change_ordinal", "_commit_snapshot_id",
})
_PRIMITIVES: dict[str, type[IcebergType]] = {
    "string": StringType, "long": LongType, "integer": IntegerType, "short": IntegerType, "byte": IntegerType,
    "float": FloatType, "double": DoubleType, "boolean": BooleanType, "binary": BinaryType, "date": DateType,
    "timestamp": TimestamptzType, "timestamp_ntz": TimestampType,
}


@dataclass(frozen=True)
class PublishedColumn:
    """A column by its name in Iceberg, and by the name that the Parquet files have for it."""

    name: str
    stored: str
    type: IcebergType
    doc: str | None


def published_columns(delta_schema: str) -> list[PublishedColumn]:
    """Return the columns of a Delta schema, given as JSON, but for ``_deleted``."""
    fields = json.loads(delta_schema)["fields"]
    taken = {one["name"].lower() for one in fields}
    columns = []
    for one in fields:
        if one["name"] == DELETED:
            continue
        name, facts = one["name"], one.get("metadata", {})
        if name.lower() in _RESERVED:
            while name.lower() in taken | _RESERVED:
                name += "_"
            taken.add(name.lower())
        columns.append(PublishedColumn(name, _stored_name(one), _iceberg_type(one["type"]), facts.get("comment")))
    return columns


def stored_deleted(delta_schema: str) -> str:
    """Return the name that the files of a state table have for ``_deleted``."""
    (field,) = (one for one in json.loads(delta_schema)["fields"] if one["name"] == DELETED)
    return _stored_name(field)


def _stored_name(field: Any) -> str:
    name: str = field.get("metadata", {}).get("delta.columnMapping.physicalName", field["name"])
    return name


def evolve(update: UpdateSchema, current: Schema, columns: Sequence[PublishedColumn]) -> None:
    """Change a schema to these columns; one that gets an incompatible type is replaced by another field."""
    fields = {one.name: one for one in current.fields}
    for name in fields.keys() - {column.name for column in columns}:
        update.delete_column((name,))
    for column in columns:
        field = fields.get(column.name)
        if field is not None and not _can_become(field.field_type, column.type):
            update.delete_column((column.name,))
            field = None
        if field is None:
            update.add_column((column.name,), column.type, column.doc)
        elif not _is_same(field.field_type, column.type):
            update.update_column((column.name,), field_type=column.type, doc=column.doc)
        elif column.doc is not None and field.doc != column.doc:
            update.update_column((column.name,), doc=column.doc)


def has_columns(current: Schema, columns: Sequence[PublishedColumn]) -> bool:
    """Return True if a schema has these columns already."""
    fields = {one.name: one for one in current.fields}
    return fields.keys() == {column.name for column in columns} and all(
        _is_same(fields[column.name].field_type, column.type) and column.doc in (None, fields[column.name].doc)
        for column in columns
    )


def name_mapping(
    before: NameMapping | None, schema: Schema, columns: Sequence[PublishedColumn], deleted: str | None
) -> NameMapping:
    """Return the mapping from names in files to fields; dropped fields keep theirs, for older snapshots.

    ``deleted`` is the files' name for ``_deleted``, if they have that.
    """
    stored = {column.name: column.stored for column in columns}
    mapped = [MappedField(**_mapped(one, stored[one.name])) for one in schema.fields]
    if deleted is not None:
        mapped.append(MappedField(**{"field-id": _NO_FIELD, "names": [deleted]}))
    names, numbers = {name for one in mapped for name in one.names}, {one.field_id for one in mapped}
    kept = [one for one in before or () if one.field_id not in numbers and not names & {*one.names}]
    return NameMapping([*mapped, *kept])


def has_lost_fields(before: NameMapping | None, after: NameMapping) -> bool:
    """Return True if a name in files leads to another field than before: older snapshots cannot be read any more."""
    return not {one.field_id for one in before or ()} <= {one.field_id for one in after}


def field_numbers(schema: Schema, columns: Sequence[PublishedColumn]) -> dict[str, int]:
    """Return the field of each column with one value a row, by the path of its values in the files."""
    stored = {column.name: column.stored for column in columns}
    return {stored[one.name]: one.field_id for one in schema.fields if one.field_type.is_primitive}


def _mapped(field: NestedField, stored: str) -> dict[str, Any]:
    kind = field.field_type
    parts: list[dict[str, Any]] = []
    if isinstance(kind, ListType):
        parts = [_mapped(kind.element_field, "element")]
    elif isinstance(kind, MapType):
        parts = [_mapped(kind.key_field, "key"), _mapped(kind.value_field, "value")]
    return {"field-id": field.field_id, "names": [stored], "fields": parts}


def _iceberg_type(delta: Any) -> IcebergType:
    """Return the type of a type as the Delta log writes it. Identifiers of its parts are given when it is added."""
    if isinstance(delta, dict):
        if delta["type"] == "map":
            return MapType(-1, _iceberg_type(delta["keyType"]), -2, _iceberg_type(delta["valueType"]), False)
        return ListType(-1, _iceberg_type(delta["elementType"]), False)
    if delta.startswith("decimal"):
        precision, scale = delta.removeprefix("decimal(").rstrip(")").split(",")
        return DecimalType(int(precision), int(scale))
    return _PRIMITIVES[delta]()


def _is_same(one: IcebergType, other: IcebergType) -> bool:
    return str(one) == str(other)


def _can_become(one: IcebergType, other: IcebergType) -> bool:
    if _is_same(one, other):
        return True
    # Files keep their text; only numbers are read as wider ones.
    if isinstance(one, (StringType, BinaryType)) or not one.is_primitive:
        return False
    try:
        promote(one, other)
    except ResolveError:
        return False
    return True
