"""The tail of landing, decoded by a live reading: ends of dumps, bounds and gaps."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from dblake.base.core.errors import LandingGap
from dblake.base.core.position import Position
from dblake.base.lake.layout import Paths
from dblake.landing.control import ChunkEnd, DumpStart, Removal
from dblake.serve.read.reading import open_reading
from dblake.transform.reconcile.landing_files import LandingFiles
from dblake.transform.reconcile.reconciler import Reconciler
from tests.model.dblog import ChunkRow, High, Low, reconcile
from tests.support.landed import Change, LandedRecord, land, to_model
from tests.support.schemas import table_schema

SOURCE = "shop"
TABLE = table_schema("public.t", "id text key", "v text")


def change(batch: int, lsn: int, op: str, key: str) -> Change:
    after = {"id": key, "v": str(lsn)} if op != "d" else None
    return Change(batch, 1, Position(1, lsn), lsn, TABLE.table, op, (key,), after, last=True)


def dump_of_keys(batch: int, low: int, high: int, *keys: str) -> list[LandedRecord]:
    """Return a dump of given keys that returned no row."""
    began = DumpStart(1, low, 0)
    end = ChunkEnd("d", 0, low, 0, TABLE.schema_id, 0, batch, removes=Removal(began, tuple((key,) for key in keys)))
    return [Low(batch, 1, TABLE.table, "w", Position(1, low)), High(batch, 1, TABLE.table, "w", Position(1, high),
                                                                     high, end)]


def test_dump_of_keys_deletes_only_those_missing(tmp_path: Path) -> None:
    """A repair of the keys a and c, of which c was written again while it ran."""
    records: list[LandedRecord] = [
        *(change(1, lsn, "c", key) for lsn, key in ((10, "a"), (20, "b"), (30, "c"))),
        *dump_of_keys(2, 40, 60, "a", "c"),
        change(2, 50, "u", "c"),
    ]
    land(f"{tmp_path}/{SOURCE}/landing", SOURCE, records, {TABLE.table: TABLE})
    live = open_reading(Paths(str(tmp_path), SOURCE), is_live=True).events()
    assert live is not None and live.tail is not None
    events = [(row["lsn"], row["op"], dict(row["key"])["id"]) for row in live.tail.to_pylist()]
    expected, _ = reconcile(to_model(records))
    assert events == [(event.position.lsn, event.op, (event.key or ("",))[0]) for event in expected]
    assert events[-1] == (60, "d", "a")


def test_tail_beyond_its_bound_ends_earlier(tmp_path: Path) -> None:
    paths = Paths(str(tmp_path), SOURCE)
    land(paths.landing, SOURCE, [change(n, 10 * n, "c", str(n)) for n in range(1, 6)], {TABLE.table: TABLE})
    sizes = DeltaTable(paths.landing).get_add_actions(flatten=True)["size_bytes"].to_pylist()
    bounds = {1: "1/10/0", sum(sizes[:3]): None, sum(sizes): "1/50/0"}
    found = {size: open_reading(paths, is_live=True, max_tail_bytes=size) for size in bounds}
    assert [str(found[size].position) for size, at in bounds.items() if at] == [at for at in bounds.values() if at]
    assert [reading.is_bounded for reading in found.values()] == [True, True, False]


@pytest.mark.parametrize(("is_allowed", "position"), [(False, "1/40/0"), (True, "1/70/0")])
def test_tail_ends_before_chunk_with_long_window(tmp_path: Path, *, is_allowed: bool, position: str) -> None:
    """An imported chunk needs the log since its files were taken, which is not read again for each live reading."""
    paths = Paths(str(tmp_path), SOURCE)
    log = [replace(change(n, 10 * n, "c", str(n)), after={"id": str(n), "v": os.urandom(9000).hex()})
           for n in (1, 2, 3)]
    land(paths.landing, SOURCE, log, {TABLE.table: TABLE})
    reconciler = Reconciler(lambda: pytest.fail("this is little work"), paths)
    reconciler.catch_up()
    reconciler.reconcile(3)
    end = ChunkEnd("d", 1, 5, 0, TABLE.schema_id, 1, 1, imported=True)
    chunk: list[LandedRecord] = [
        Low(5, 1, TABLE.table, "w", Position(1, 50)),
        ChunkRow(5, 1, TABLE.table, "w", 0, ("7",), {"id": "7", "v": "x"}),
        High(5, 1, TABLE.table, "w", Position(1, 60), 60, end),
    ]
    land(paths.landing, SOURCE, [change(4, 40, "c", "4"), *chunk, change(6, 70, "c", "6")], {TABLE.table: TABLE})
    before = sum(file.size for file in LandingFiles(paths.landing, SOURCE).files(1, 3))
    reading = open_reading(paths, is_live=True, max_tail_bytes=before + 1000 if is_allowed else before - 1000)
    assert (str(reading.position), reading.is_bounded) == (position, not is_allowed)


def test_tail_with_missing_batch_is_a_landing_gap(tmp_path: Path) -> None:
    paths = Paths(str(tmp_path), SOURCE)
    land(paths.landing, SOURCE, [change(n, 10 * n, "c", str(n)) for n in range(1, 4)], {TABLE.table: TABLE})
    DeltaTable(paths.landing).delete("batch = 2")
    with pytest.raises(LandingGap, match="landing lacks batch 2; events reach batch 0"):
        open_reading(paths, is_live=True)


def test_reading_without_any_table_has_no_position(tmp_path: Path) -> None:
    for is_live in (False, True):
        reading = open_reading(Paths(str(tmp_path), SOURCE), is_live=is_live)
        assert (reading.position, reading.tables, reading.events(), reading.lagging) == (None, (), None, {})
        assert (reading.committed_at, reading.is_bounded) == (None, False)
    assert not list(tmp_path.iterdir())
