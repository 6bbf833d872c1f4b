"""Consolidated changes of random histories: from events and from states alike, they are the model's."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from dblake.serve.changes.consolidate import consolidate
from dblake.serve.changes.differences import Differences, Way
from dblake.serve.changes.span import Span
from tests.support.effort import seeds
from tests.support.readings import HistoryLake, Rows, padded

Lines = list[tuple[str, dict[str, Any] | None, dict[str, Any] | None]]


def lines_of(found: Differences) -> Lines:
    """Return op, before and after of each line, in the order of their keys."""
    ops, before, after = found.op.to_pylist(), found.before.to_pylist(), found.after.to_pylist()
    lines = [
        (op, None if op == "c" else old, None if op == "d" else new)
        for op, old, new in zip(ops, before, after, strict=True)
    ]
    return sorted(lines, key=repr)


def expected_lines(before: Rows, after: Rows, old: list[str], new: list[str]) -> Lines:
    """Return what differs between two models of a table with these columns."""
    rows, later = padded(before, old), padded(after, new)
    lines: Lines = [("d", row, None) for key, row in rows.items() if key not in later]
    lines += [("c", None, row) for key, row in later.items() if key not in rows]
    lines += [
        ("u", rows[key], row) for key, row in later.items()
        if key in rows and any(value != rows[key].get(name) for name, value in row.items())
    ]
    return sorted(lines, key=repr)


@pytest.mark.parametrize("seed", seeds(2, 8))
def test_consolidated_changes_equal_model(tmp_path: Path, seed: int) -> None:
    draw, lake = random.Random(seed), HistoryLake(tmp_path, seed)
    done = 0
    for _ in range(3):
        done = draw.randint(done, lake.last_batch)
        lake.reconcile(done)
        lake.fold_state(batches_per_step=draw.randint(1, 3))
    lake.reconcile(lake.last_batch)
    lines = 0
    for _ in range(4):
        start, end = sorted(draw.sample([event.position for event in lake.model], 2))
        span = Span(lake.paths, str(start), str(end))
        assert span.before is not None
        old, new = lake.expected(start), lake.expected(end)
        for table in span.after.tables:
            known = span.before.table(table).columns if table in span.before.tables else ()
            wanted = expected_lines(
                old.get(table, {}), new.get(table, {}), list(known), list(span.after.table(table).columns)
            )
            for way in Way:
                place = f"seed {seed}, {table} from {start} to {end} by {way}"
                assert lines_of(consolidate(span, table, way)) == wanted, place
            lines += len(wanted)
    assert lines
