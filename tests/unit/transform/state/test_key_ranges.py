"""Events of a large table in key ranges: keys that partial key changes connect are folded together."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dblake.transform.state.key_ranges
from dblake.base.core.position import Position
from dblake.base.lake.tables import open_table
from dblake.transform.events.files import EVENT_COLUMNS
from dblake.transform.events.predicate import Predicate
from dblake.transform.events.reader import EventReader
from dblake.transform.state.events import newest_truncate
from dblake.transform.state.key_ranges import fold_ranges
from dblake.transform.state.merge import NO_EVENTS, Slice, merge_events
from dblake.transform.state.runner import LocalRunner
from tests.model.state_histories import COLUMNS, moving_history
from tests.support.effort import seeds
from tests.support.plain_lake import PlainLake
from tests.unit.transform.state.test_merge_property import APP, BATCHES, PLAIN, Target, expected, to_arrow


def as_event_rows(events: pa.Table) -> pa.Table:
    """Return events of a slice with all columns of the events table."""
    rows: list[dict[str, Any]] = events.to_pylist()
    return pa.Table.from_pylist([row | {"table": PLAIN.table, "origin": "log"} for row in rows], schema=EVENT_COLUMNS)


@pytest.mark.parametrize("seed", seeds(2, 6))
def test_key_changes_across_ranges_equal_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(dblake.transform.state.key_ranges, "BUCKET_BYTES", 4_000)
    events = moving_history(random.Random(seed), 60, 300, truncates=seed % 2)
    lake, target, runner = PlainLake(tmp_path / "lake"), Target(tmp_path), LocalRunner(2)
    for batch in range(1, BATCHES + 1):
        lake.append(as_event_rows(to_arrow([e for e in events if e.batch == batch])), batch)
        known = EventReader.open(lake.paths.events)
        wanted = Predicate(target.done, batch)
        truncated_at: Position | None = max(
            filter(None, map(newest_truncate, known.read(wanted))), default=None
        )
        part = Slice(PLAIN.table, target.path, APP, batch, target.done, (PLAIN,), (PLAIN,), NO_EVENTS)
        merge_events(
            part, lambda shape, _, known=known, wanted=wanted, at=truncated_at: fold_ranges(  # type: ignore[misc]
                known, wanted, shape, at, 40_000, runner
            ), lambda _, at=truncated_at: at, runner.run_all,  # type: ignore[misc]
        ).raise_error()
        target.done = batch
        done = [e for e in events if e.batch <= batch]
        assert target.state(COLUMNS) == expected(done, COLUMNS), f"seed {seed}, up to batch {batch}"


def test_events_of_earlier_version_have_no_old_keys(tmp_path: Path) -> None:
    """A file that was written before events had ``key_before`` is read as without key changes."""
    lake = PlainLake(tmp_path)
    events = moving_history(random.Random(1), 20, 60, truncates=0)
    lake.append(as_event_rows(to_arrow(events)), 1)
    (name,) = (str(uri) for uri in open_table(lake.paths.events).file_uris())
    path = name.removeprefix("file://")
    rows = pq.read_table(path)
    pq.write_table(rows.drop_columns(["key_before"]), path)
    (read,) = EventReader.open(lake.paths.events).read(Predicate(until_batch=BATCHES))
    assert read.num_rows == rows.num_rows and read["key_before"].null_count == rows.num_rows
