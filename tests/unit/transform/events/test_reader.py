"""The reader of events: the rows of a predicate, whatever statistics allow it to skip, and few footers."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from dblake.base.core.position import Position
from dblake.transform.events import files, footers
from dblake.transform.events.files import EVENT_COLUMNS
from dblake.transform.events.predicate import Predicate
from dblake.transform.events.reader import EventReader
from dblake.transform.state.events import KeyFilter
from tests.support.effort import with_effort
from tests.support.plain_lake import PlainLake, event_rows
from tests.support.schemas import table_schema

TABLES = ("public.a", "public.b", "public.c")
SCHEMAS = {table: table_schema(table, "id text key", "v text") for table in TABLES}
IDS = frozenset(schema.schema_id for schema in SCHEMAS.values())
BATCHES = 12


def write(lake: PlainLake, choose: Random) -> list[dict[str, Any]]:
    """Write files of one to three batches, whose rows have any of three incarnations; return all rows."""
    rows, written = list[dict[str, Any]](), list[dict[str, Any]]()
    for batch in range(1, BATCHES + 1):
        for number in range(choose.randint(1, 30)):
            table = choose.choice(TABLES)
            op = choose.choice("uuuudt")
            key = None if op == "t" else choose.choice("xyz")
            row = event_rows(SCHEMAS[table], batch, [(1, op, key, {"v": "x" * 500})]).to_pylist()[0]
            rows.append(row | {"incarnation": choose.randint(1, 3), "lsn": choose.randint(1, 99),
                               "seq": 1000 * batch + number})
        if choose.random() < 0.5 or batch == BATCHES:
            rows.sort(key=position_of)
            lake.append(pa.Table.from_pylist(rows, schema=EVENT_COLUMNS), batch)
            written, rows = written + rows, []
    return written


def position_of(row: dict[str, Any]) -> Position:
    return Position(*(row[name] for name in Position.COLUMNS))


def fits(row: dict[str, Any], wanted: Predicate) -> bool:
    """Return what ``Predicate`` documents, for one row."""
    at, table = position_of(row), row["table"]
    return (
        min(wanted.after_batch, wanted.behind.get(table, wanted.after_batch)) < row["batch"] <= wanted.until_batch
        and (wanted.after is None or at > wanted.after) and (wanted.since is None or at >= wanted.since)
        and (wanted.until is None or at <= wanted.until) and (wanted.tables is None or table in wanted.tables)
        and (wanted.committed_by is None or row["committed_at"] <= wanted.committed_by)
        and (wanted.rows is None or row["op"] == "t" or (row["schema_id"] in IDS and len(row["key"]) == 1))
    )


def random_predicate(choose: Random, rows: list[dict[str, Any]]) -> Predicate:
    def maybe(value: Any) -> Any:
        return value if choose.random() < 0.4 else None

    return Predicate(
        choose.randint(0, BATCHES), choose.randint(1, BATCHES), {"public.b": choose.randint(0, BATCHES)},
        after=maybe(Position(choose.randint(1, 3), choose.randint(0, 99))),
        since=maybe(position_of(choose.choice(rows))), until=maybe(position_of(choose.choice(rows))),
        tables=maybe(frozenset(choose.sample(TABLES, 2))),
        committed_by=maybe(choose.choice(rows)["committed_at"]), rows=maybe(KeyFilter(IDS, ("id",))),
    )


@pytest.mark.parametrize("seed", [*range(3), *with_effort(*range(3, 20))])
def test_reader_returns_exactly_the_fitting_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Files and row groups mix incarnations and tables, so that bounds are wide."""
    monkeypatch.setattr(files, "_GROUPED_BYTES", 2_000)
    choose, lake = Random(seed), PlainLake(tmp_path)
    rows = write(lake, choose)
    reader = EventReader.open(lake.paths.events)
    for _ in range(40):
        wanted = random_predicate(choose, rows)
        expected = sorted(position_of(row) for row in rows if fits(row, wanted))
        for probes in (False, True):
            parts = reader.read(wanted, Position.COLUMNS, probes_rows=probes)
            assert sorted(position_of(row) for part in parts for row in part.to_pylist()) == expected
        spans = [part for span in reader.spans(wanted) for part in reader.read_span(span, wanted, Position.COLUMNS)]
        assert sorted(position_of(row) for part in spans for row in part.to_pylist()) == expected


def test_reader_of_long_history_keeps_few_footers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan of a state run needs the row groups of all files, one file after the other."""
    lake, schema = PlainLake(tmp_path), SCHEMAS["public.a"]
    for batch in range(1, 21):
        lake.append(event_rows(schema, batch, [(10 * batch, "c", str(batch), {"v": "x"})]), batch)
    reader = EventReader.open(lake.paths.events)
    size = reader.footers.get(reader.files(Predicate())[0].path).metadata.serialized_size
    monkeypatch.setattr(footers, "MAX_BYTES", 5 * size)
    assert len(list(reader.spans(Predicate()))) == 20
    assert 1 < len(reader.footers) <= 5


def test_files_are_listed_by_newest_batch(tmp_path: Path) -> None:
    lake, schema = PlainLake(tmp_path), SCHEMAS["public.a"]
    for batch in (2, 4, 7):
        lake.append(event_rows(schema, batch, [(10 * batch, "c", "1", {"v": "x"})]), batch)
    reader = EventReader.open(lake.paths.events)
    listed = [file.first for file in reader.files(Predicate())]
    assert all(one < other for one, other in pairwise(listed))
    assert reader.listing.newest_batch == 7
    assert [reader.listing.first_batch(after) for after in (0, 2, 3, 7)] == [2, 4, 4, 8]
    assert reader.listing.newest_first == Position(1, 70)
