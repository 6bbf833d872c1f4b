"""Consumers of a lake with truncates of tables that came and went before capture recorded their schema."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from dblake.base.core.schema import TableSchema
from dblake.serve.consume.api import open_subscription
from tests.support.plain_lake import PlainLake, event_rows
from tests.support.schemas import table_schema

QUIET, GONE = table_schema("public.quiet", "id integer key"), table_schema("public.gone", "id integer key")


@pytest.fixture
def lake(tmp_path: Path) -> PlainLake:
    lake = PlainLake(tmp_path)
    lake.schema(QUIET)
    lake.land(1, {QUIET: [(10, "c", "1", {"id": "1"})]})
    truncates = [unnamed(GONE, 20), unnamed(QUIET, 20)]
    lake.append(pa.concat_tables([*truncates, event_rows(QUIET, 2, [(21, "c", "2", {"id": "2"})])]), 2)
    lake.append(unnamed(GONE, 30).set_column(
        unnamed(GONE, 30).schema.get_field_index("batch"), "batch", pa.array([3], pa.int64())), 3)
    return lake


def unnamed(schema: TableSchema, lsn: int) -> pa.Table:
    """Return a truncate that names no schema: the table was gone when capture opened the log."""
    rows = event_rows(schema, 2, [(lsn, "t", None, None)])
    place = rows.schema.get_field_index("schema_id")
    return rows.set_column(place, rows.schema.field(place), pa.nulls(1, pa.string()))


def test_subscription_passes_over_unrecorded_table(lake: PlainLake) -> None:
    """A truncate without a schema of a table that has one is delivered with it."""
    with open_subscription([lake.paths], start="1/1", until_caught_up=True) as subscription:
        found = [(event.table, event.op, event.position.lsn, event.schema_id)
                 for transaction in subscription for event in transaction.events]
    assert found == [
        ("public.quiet", "c", 10, QUIET.schema_id), ("public.quiet", "t", 20, QUIET.schema_id),
        ("public.quiet", "c", 21, QUIET.schema_id),
    ]
