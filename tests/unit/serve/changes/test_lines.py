"""Lines of ``changes``: every event between two points, or each row that differs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dblake.base.core.errors import PointOutOfRange, UsageError
from dblake.serve.changes.consolidate import consolidate
from dblake.serve.changes.differences import Way
from dblake.serve.changes.lines import encode_consolidated, encode_events
from dblake.serve.changes.span import Span
from jobs.changes import changes
from tests.support.readings import EventLake
from tests.support.schemas import table_schema

ITEM = table_schema(
    "public.item", "id integer key", "price numeric(10,2)", "ok boolean", "raw bytea",
    "at timestamp with time zone", "ratio double precision",
)
ROW: dict[str, str | None] = {
    "id": "1", "price": "9.50", "ok": "t", "raw": "\\xff00", "at": "2024-01-31 12:00:00.5+00", "ratio": "0.25",
}
KEYLESS = table_schema("public.log", "text text")


@pytest.fixture
def lake(tmp_path: Path) -> EventLake:
    """Return a lake: an item is created, changed and deleted, two others stay; a table without a key gets rows."""
    lake = EventLake(tmp_path)
    lake.append(ITEM, (10, "c", "1", ROW), (20, "c", "2", ROW | {"id": "2"}), (30, "c", "3", ROW | {"id": "3"}))
    lake.append(KEYLESS, (40, "c", None, {"text": "a"}))
    assert not lake.fold()
    lake.append(ITEM, (50, "u", "1", {"price": "10.00"}), (60, "u", "2", ROW | {"id": "2"}), (70, "d", "3", None))
    lake.append(KEYLESS, (80, "c", None, {"text": "b"}))
    lake.append(ITEM, (90, "c", "4", ROW | {"id": "4", "at": None}))
    return lake


def lines(lake: EventLake, start: str, end: str, *tables: str, consolidated: bool = False) -> list[dict[str, Any]]:
    encode = encode_consolidated if consolidated else encode_events
    return [json.loads(line) for line in encode(Span(lake.paths, start, end), tables)]


def test_events_between_points_come_in_order(lake: EventLake) -> None:
    found = lines(lake, "1/40", "1/80")
    assert [(line["position"], line["table"], line["op"]) for line in found] == [
        ("1/50/0", "public.item", "u"), ("1/60/0", "public.item", "u"), ("1/70/0", "public.item", "d"),
        ("1/80/0", "public.log", "c"),
    ]
    assert (found[0]["after"], found[0]["key"], found[2]["after"]) == ({"price": "10.00"}, {"id": 1}, None)
    assert [line["position"] for line in lines(lake, "1/40", "1/80", "public.l*")] == ["1/80/0"]
    assert lines(lake, "1/40", "1/40") == []


def test_start_before_first_event_takes_all(lake: EventLake) -> None:
    assert len(lines(lake, "1/0", "now")) == 9
    assert {line["op"] for line in lines(lake, "1/0", "now", consolidated=True)} == {"c"}
    with pytest.raises(PointOutOfRange, match="earliest readable point is 1/10/0"):
        lines(lake, "2023-01-01", "now")


@pytest.mark.parametrize("way", list(Way))
def test_consolidated_line_has_rows_of_both_ends(lake: EventLake, way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that was written again unchanged is no difference."""
    monkeypatch.setattr("dblake.serve.changes.lines.consolidate", lambda span, table: consolidate(span, table, way))
    found = lines(lake, "1/40", "now", "public.item", consolidated=True)
    before = {"id": 1, "price": "9.50", "ok": True, "raw": "\\xff00", "at": "2024-01-31 12:00:00.5+00", "ratio": 0.25}
    assert [(line["op"], line["key"], line["before"], line["after"]) for line in found] == [
        ("u", {"id": 1}, before, before | {"price": "10.00"}),
        ("d", {"id": 3}, before | {"id": 3}, None),
        ("c", {"id": 4}, None, before | {"id": 4, "at": None}),
    ]
    assert {(line["origin"], line["position"], line["source"]) for line in found} == {("state", "1/90/0", "shop")}


def test_consolidated_keyless_table_lists_created_rows(lake: EventLake) -> None:
    (line,) = lines(lake, "1/40", "now", "public.log", consolidated=True)
    assert (line["op"], line["key"], line["before"], line["after"]) == ("c", None, None, {"text": "b"})


@pytest.mark.parametrize("way", list(Way))
def test_consolidated_lossy_value_differs_by_version(tmp_path: Path, way: Way) -> None:
    """State holds NULL for both dates, but the value may have changed."""
    lake, schema = EventLake(tmp_path), table_schema("public.t", "id integer key", "day date")
    lake.append(schema, (10, "c", "1", {"id": "1", "day": "infinity"}), (20, "c", "2", {"id": "2", "day": "infinity"}))
    lake.append(schema, (30, "u", "1", {"id": "1", "day": "-infinity"}))
    found = consolidate(Span(lake.paths, "1/20", "1/30"), "public.t", way)
    assert (found.op.to_pylist(), found.after.to_pylist()) == (["u"], [{"id": 1, "day": None}])


def test_span_with_exchanged_points_is_a_usage_error(lake: EventLake) -> None:
    with pytest.raises(UsageError, match="--from 1/90 is after --to 1/50"):
        Span(lake.paths, "1/90", "1/50")


def test_job_prints_lines_and_rejects_points(lake: EventLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "x")
    conf = tmp_path / "conf.yaml"
    conf.write_text(
        f"warehouse: {tmp_path}\nprogress: file:{tmp_path}/progress\nsource: {{name: shop, type: postgres, "
        "host: h, database: d, user: u, password: '${env:SHOP_PASSWORD}', tables: ['public.*']}\n"
    )
    done = CliRunner().invoke(changes, ["--conf", str(conf), "--from", "1/80", "--to", "1/90"])
    assert (done.exit_code, [json.loads(line)["position"] for line in done.stdout.splitlines()]) == (0, ["1/90/0"])
    late = CliRunner().invoke(changes, ["--conf", str(conf), "--from", "1/80", "--to", "1/99"])
    assert isinstance(late.exception, PointOutOfRange)
