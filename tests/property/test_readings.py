"""Readings of random histories agree with the model: at any position and time, wherever events and state are."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from dblake.base.core.position import Position
from dblake.serve.read.reading import LakeReading, open_reading
from tests.support.effort import seeds
from tests.support.readings import Fact, HistoryLake, Rows, commit_time, padded, rows_of

SEEDS = seeds(2, 8)
GUARD_SEEDS = (5, 22, 405)
"""Seeds whose live readings are wrong if ends of dumps delete nothing, if a truncate in a window leaves the chunk's
rows, and if those deletes do not heed the snapshot; the seeds 0 and 1 detect none of the three."""
LIVE_SEEDS = [*GUARD_SEEDS, *(seed for seed in SEEDS if seed not in GUARD_SEEDS)]


def tail_of(reading: LakeReading) -> list[Fact]:
    """Return what is decoded in process, as HistoryLake.fact has it."""
    events = reading.events()
    rows = events.tail.to_pylist() if events and events.tail else []
    return [
        ((row["incarnation"], row["lsn"], row["seq"]), row["table"], row["op"], as_dict(row["key"]),
         as_dict(row["after"]), row["batch"], row["chunk_id"], row["txid"])
        for row in rows
    ]


def as_dict(image: list[tuple[str, str | None]] | None) -> dict[str, str | None] | None:
    return None if image is None else dict(image)


def assert_equal(reading: LakeReading, expected: dict[str, Rows], place: str) -> None:
    for table in reading.tables:
        columns = reading.table(table).columns
        assert rows_of(reading, table) == padded(expected.get(table, {}), columns), f"{place}: {table}"
    assert not expected.keys() - set(reading.tables), place
    assert not reading.lagging, place


@pytest.mark.parametrize("seed", SEEDS)
def test_reading_at_random_points_equals_model(tmp_path: Path, seed: int) -> None:
    draw, lake = random.Random(seed), HistoryLake(tmp_path, seed)
    done = 0
    for _ in range(3):
        done = draw.randint(done, lake.last_batch)
        lake.reconcile(done)
        lake.fold_state(batches_per_step=draw.randint(1, 3))
    lake.reconcile(lake.last_batch)
    events = lake.model
    for event in draw.sample(events, min(len(events), 8)):
        at = event.position
        exact = open_reading(lake.paths, str(at))
        assert exact.position == at
        assert_equal(exact, lake.expected(at), f"seed {seed} at {at}")
        end = Position(at.incarnation, at.lsn, Position.MAX)
        whole = open_reading(lake.paths, f"{at.incarnation}/{at.lsn}")
        assert_equal(whole, lake.expected(end), f"seed {seed} at {end}")
        time = commit_time(at.lsn + draw.randint(-20, 20))
        included = [e.position for e in events if commit_time(e.position.lsn) <= time]
        if included and time <= max(commit_time(e.position.lsn) for e in events):
            last = max(included)
            end = Position(last.incarnation, last.lsn, Position.MAX)
            assert_equal(open_reading(lake.paths, time.isoformat()), lake.expected(end), f"seed {seed} at {time}")


@pytest.mark.parametrize("seed", SEEDS)
def test_plain_reading_equals_model_at_frontier(tmp_path: Path, seed: int) -> None:
    draw, lake = random.Random(seed), HistoryLake(tmp_path, seed)
    for _ in range(3):
        lake.reconcile(draw.randint(1, lake.last_batch))
        lake.fold_state()
        reading = open_reading(lake.paths)
        if reading.position:
            assert_equal(reading, lake.expected(reading.position), f"seed {seed}")


@pytest.mark.parametrize("seed", LIVE_SEEDS)
def test_live_reading_equals_model_with_tail(tmp_path: Path, seed: int) -> None:
    draw, lake = random.Random(seed), HistoryLake(tmp_path, seed)
    lake.land()
    done = 0
    for _ in range(3):
        live = open_reading(lake.paths, is_live=True)
        if live.position is not None:
            assert_equal(live, lake.expected(live.position), f"seed {seed}, events to batch {done}")
            assert (live.position, live.is_bounded) == (lake.model[-1].position, False)
            assert tail_of(live) == [
                lake.fact(event) for event in lake.model if event.batch > done
            ], f"seed {seed}, events to batch {done}"
        done = draw.randint(done, lake.last_batch)
        lake.reconcile(done)
        if draw.random() < 0.5:
            lake.fold_state()
