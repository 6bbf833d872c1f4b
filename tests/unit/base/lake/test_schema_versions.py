"""Which schemas are new versions of a table's."""

from __future__ import annotations

from dblake.base.core.position import Position
from dblake.base.core.schema import Column, TableSchema
from dblake.base.lake.schemas import SchemaVersions

NARROW = TableSchema("public.t", (Column("id", "integer", False, 1),))
WIDE = TableSchema("public.t", (*NARROW.columns, Column("v", "text")))
OTHER = TableSchema("public.u", NARROW.columns)


def test_schema_repeated_by_next_capture_is_no_version() -> None:
    versions = SchemaVersions()
    steps = [
        (NARROW, Position(1, 10), True), (OTHER, Position(1, 10), True), (NARROW, Position(1, 20), False),
        (NARROW, Position(2, 5), False), (WIDE, Position(2, 7), True), (WIDE, Position(2, 9), False),
        (NARROW, Position(2, 11), True),
    ]
    assert [versions.add(schema, since) for schema, since, _ in steps] == [is_new for *_, is_new in steps]


def test_schema_before_a_version_is_compared_there() -> None:
    """A chunk's schema may land with an earlier position than the log's newest."""
    versions = SchemaVersions()
    assert versions.add(NARROW, Position(1, 10))
    assert versions.add(WIDE, Position(1, 30))
    assert not versions.add(NARROW, Position(1, 20))
    assert versions.add(WIDE, Position(1, 20))
