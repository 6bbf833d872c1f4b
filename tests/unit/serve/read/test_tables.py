"""Tables of a reading that need more than a recorded version: changed schemas, truncates, tables that lag."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from dblake.base.core.errors import StateError, UsageError
from dblake.base.core.names import split_qualified
from dblake.base.core.position import Position
from dblake.base.lake.log import Application, record_batch
from dblake.serve.read.reading import open_reading
from dblake.serve.read.rows import read_rows
from tests.support.readings import EventLake
from tests.support.schemas import table_schema

PLAIN = table_schema("public.t", "id integer key", "a text")
OTHER = table_schema("public.o", "id integer key")


@pytest.fixture
def lake(tmp_path: Path) -> EventLake:
    """Return a lake with keys 1 and 2 in state."""
    lake = EventLake(tmp_path)
    lake.append(PLAIN, (10, "c", "1", {"id": "1", "a": "x"}), (20, "c", "2", {"id": "2", "a": "y"}))
    assert not lake.fold()
    return lake


def rows(lake: EventLake, at: str | None = None, *, table: str = "public.t", is_live: bool = False) -> list[Any]:
    """Return a table's rows as lists."""
    reading = open_reading(lake.paths, at, is_live=is_live)
    return sorted(list(row.values()) for part in read_rows(reading.table(table)) for row in part.to_pylist())


def test_added_column_shows_from_its_event_on(lake: EventLake) -> None:
    wider = table_schema("public.t", "id integer key", "a text", "n bigint")
    lake.append(wider, (30, "u", "1", {"id": "1", "n": "7"}))
    assert rows(lake, "1/20") == [[1, "x"], [2, "y"]]
    assert rows(lake, "1/30") == [[1, "x", 7], [2, "y", None]]
    assert not lake.fold()
    assert rows(lake, "1/20") == [[1, "x"], [2, "y"]]


def test_widened_type_applies_to_old_rows(lake: EventLake) -> None:
    key = 2**40
    lake.append(table_schema("public.t", "id bigint key", "a text"), (30, "c", f"{key}", {"id": f"{key}", "a": "z"}))
    assert rows(lake, is_live=True) == [[1, "x"], [2, "y"], [key, "z"]]


def test_truncate_leaves_later_rows_only(lake: EventLake) -> None:
    lake.append(PLAIN, (30, "t", None, None), (40, "c", "3", {"id": "3", "a": "z"}))
    reading = open_reading(lake.paths, "1/40").table("public.t")
    assert (reading.version, reading.changes is not None and reading.changes.num_rows) == (None, 1)
    assert [rows(lake, at) for at in ("1/20", "1/30", "1/40")] == [[[1, "x"], [2, "y"]], [], [[3, "z"]]]


def test_keyless_table_has_every_row_created(tmp_path: Path) -> None:
    lake, schema = EventLake(tmp_path), table_schema("public.t", "a text")
    lake.append(schema, (10, "c", None, {"a": "x"}))
    lake.fold()
    lake.append(schema, (20, "c", None, {"a": "x"}), (30, "c", None, {"a": "y"}), (40, "t", None, None))
    assert [rows(lake, at) for at in ("1/10", "1/20", "1/40")] == [[["x"]], [["x"]] * 2, [["x"], ["x"], ["y"]]]
    assert open_reading(lake.paths).table("public.t").keys == ()


def test_table_with_incompatible_change_lags_by_name(lake: EventLake) -> None:
    """Until a dump returns the rows of the new type, plain and live readings show the table as it was."""
    changed = table_schema("public.t", "id integer key", "a boolean")
    lake.append(changed, (30, "u", "1", {"id": "1", "a": "t"}))
    lake.append(OTHER, (40, "c", "9", {"id": "9"}))
    assert lake.fold() == ["public.t"]
    for is_live in (False, True):
        reading = open_reading(lake.paths, is_live=is_live)
        assert [row for part in read_rows(reading.table("public.o")) for row in part.to_pylist()] == [{"id": 9}]
        assert sorted(r["a"] for part in read_rows(reading.table("public.t")) for r in part.to_pylist()) == ["x", "y"]
        assert (reading.position, reading.lagging) == (Position(1, 40), {"public.t": Position(1, 20)})
    with pytest.raises(StateError, match=r"table public\.t: its schema changed incompatibly"):
        rows(lake, "1/40")
    assert rows(lake, "1/20") == [[1, "x"], [2, "y"]]


def test_events_decoded_again_replace_old_state(lake: EventLake) -> None:
    """A version that rests on events from before a redecode is not read, though it is recorded."""
    event = DeltaTable(lake.paths.events).to_pyarrow_table().to_pylist()[0]
    schema = DeltaTable(lake.paths.events).to_pyarrow_table().schema
    event["after"] = [("id", "1"), ("a", "decoded again")]
    second = DeltaTable(lake.paths.events).to_pyarrow_table().slice(1)
    write_deltalake(lake.paths.events, pa.concat_tables([pa.Table.from_pylist([event], schema), second]),
                    mode="overwrite")
    record_batch(lake.paths.events, Application.reconcile("shop"), 2)
    record_batch(lake.paths.events, Application.redecode("shop"), 1)
    write_deltalake(lake.paths.redecoded, pa.Table.from_pylist([
        {"run": 1, "of": "events", "batch": 1, "table": "public.t", "same": 1, "different": 1, "only_old": 0,
         "only_new": 0},
    ]))
    assert rows(lake, "1/20") == rows(lake) == [[1, "decoded again"], [2, "y"]]
    assert not lake.fold()
    assert rows(lake, "1/20") == [[1, "decoded again"], [2, "y"]]
    assert DeltaTable(lake.paths.state(*split_qualified("public.t"))).transaction_version("again/shop/built") == 1


def test_table_unknown_at_point_is_a_usage_error(lake: EventLake) -> None:
    lake.append(OTHER, (30, "c", "9", {"id": "9"}))
    assert open_reading(lake.paths, "1/20").tables == ("public.t",)
    with pytest.raises(UsageError, match=r"there is no table public\.o at this point\. Next: choose one of: public\.t"):
        open_reading(lake.paths, "1/20").table("public.o")
    assert rows(lake, "1/30", table="public.o") == [[9]]
