"""Events of a large table in key ranges: keys that partial key changes connect are folded together."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from dblake.transform.state.merge import NO_EVENTS, Slice
from dblake.transform.state.runner import Item, LocalRunner, Result
from dblake.transform.state.waves import merge_large
from tests.model.state import Event
from tests.model.state_histories import COLUMNS, moving_history
from tests.support.effort import seeds
from tests.support.plain_lake import PlainLake
from tests.unit.transform.state.test_merge_property import APP, BATCHES, PLAIN, Target, expected, to_arrow


def as_event_rows(events: pa.Table) -> pa.Table:
    """Return events of a slice with all columns of the events table."""
    rows: list[dict[str, Any]] = events.to_pylist()
    return pa.Table.from_pylist([row | {"table": PLAIN.table, "origin": "log"} for row in rows], schema=EVENT_COLUMNS)


class SendingRunner(LocalRunner):
    """Executes what executors would, here: tasks, items and results are values that can be sent."""

    is_in_process = False

    def run_all(self, task: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        return map(_sent, super().run_all(_sent(task), [_sent(item) for item in items]))

    def exchange(
        self, split: Callable[[Item], Iterable[tuple[int, pa.Table]]], items: Sequence[Item], buckets: int,
        combine: Callable[[pa.Table], Result],
    ) -> Iterator[Result]:
        return map(_sent, LocalRunner(2).exchange(_sent(split), items, buckets, _sent(combine)))


def _sent(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


@pytest.mark.parametrize("runner", [LocalRunner(2), SendingRunner(2)], ids=["threads", "executors"])
@pytest.mark.parametrize("seed", seeds(2, 6))
def test_key_changes_across_ranges_equal_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, runner: LocalRunner
) -> None:
    monkeypatch.setattr(dblake.transform.state.key_ranges, "BUCKET_BYTES", 4_000)
    events = moving_history(random.Random(seed), 60, 300, truncates=seed % 2)
    lake, target = PlainLake(tmp_path / "lake"), Target(tmp_path)
    for batch in range(1, BATCHES + 1):
        lake.append(as_event_rows(to_arrow([e for e in events if e.batch == batch])), batch)
        known = EventReader.open(lake.paths.events)
        wanted = Predicate(target.done, batch)
        at: Position | None = max(filter(None, map(newest_truncate, known.read(wanted))), default=None)
        part = Slice(PLAIN.table, target.path, APP, batch, target.done, (PLAIN,), (PLAIN,), NO_EVENTS)
        merge_large(runner, known, part, 40_000, lambda _, at=at: at).raise_error()  # type: ignore[misc]
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


@pytest.mark.parametrize("runner", [LocalRunner(2), SendingRunner(2)], ids=["threads", "executors"])
def test_truncate_alone_of_large_table_is_applied(tmp_path: Path, runner: LocalRunner) -> None:
    """The rest of a step that a killed run had committed: its truncate comes without a row after it."""
    created = [Event((1, 1, n), "c", f"k{n}", {"a": str(n)}, 1) for n in range(5)]
    truncate = Event((1, 9, 0), "t", "", {}, 2)
    lake, target = PlainLake(tmp_path / "lake"), Target(tmp_path)
    for batch, events in ((1, created), (2, [truncate])):
        lake.append(as_event_rows(to_arrow(events)), batch)
        at = Position(1, 9, 0) if batch == 2 else None
        part = Slice(PLAIN.table, target.path, APP, batch, target.done, (PLAIN,), (PLAIN,), NO_EVENTS)
        merge_large(runner, EventReader.open(lake.paths.events), part, 40_000, lambda _, at=at: at).raise_error()  # type: ignore[misc]
        target.done = batch
        assert {deleted for _, deleted, *_ in target.state(COLUMNS).values()} == {batch == 2}
