"""Tables that an earlier version created are given the columns that they lack."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from dblake.base.lake.tables import create_table, open_table
from dblake.transform.events.files import EVENT_COLUMNS
from dblake.transform.spark.append_table import AppendTable


def test_events_of_earlier_version_get_missing_column(tmp_path: Path) -> None:
    path = str(tmp_path / "events")
    earlier = pa.schema([field for field in EVENT_COLUMNS if field.name != "key_before"])
    create_table(path, earlier)
    write_deltalake(open_table(path), pa.Table.from_pylist([{"op": "c", "batch": 1}], schema=earlier), mode="append")
    table = AppendTable(path, "reconcile/shop", EVENT_COLUMNS, ("batch",))
    table.create()
    assert [field.name for field in open_table(path).schema().fields] == EVENT_COLUMNS.names
    assert table.query("batch, key_before") == [{"batch": 1, "key_before": None}]
