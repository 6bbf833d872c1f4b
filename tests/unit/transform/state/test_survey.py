"""What a state run plans: counts by step and table, by spans of batches that bound its memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from dblake.transform.events.files import EVENT_COLUMNS
from dblake.transform.events.predicate import Predicate
from dblake.transform.events.reader import EventReader
from dblake.transform.state import steps
from dblake.transform.state.steps import Step, plan_spans
from dblake.transform.state.survey import survey

Event = tuple[int, str, str, bool]
"""Batch, table, operation, and whether it is the last one of its transaction."""


def write_events(path: Path, *files: Sequence[Event]) -> EventReader:
    """Write files of events, whose position is their number; return the table."""
    number = 0
    DeltaTable.create(str(path), EVENT_COLUMNS)
    for file in files:
        rows = []
        for batch, table, op, is_last in file:
            number += 1
            rows.append({"incarnation": 1, "lsn": number, "seq": 0, "table": table, "op": op, "batch": batch,
                         "origin": "log", "last_in_txn": is_last, "key": [("id", "1")], "after": [("v", "x")],
                         "partial": False})
        write_deltalake(str(path), pa.Table.from_pylist(rows, EVENT_COLUMNS), mode="append")
    return EventReader.open(str(path))


def counts(step: Step) -> dict[str, int]:
    return {table: each.events for table, each in step.counts.items()}


def plan(events: EventReader, done: int, last: int, behind: dict[str, int], per_step: int) -> list[tuple[Step, bool]]:
    return list(plan_spans(events, done, last, behind, per_step))


def test_steps_count_events_by_table(tmp_path: Path) -> None:
    events = write_events(
        tmp_path / "events", [(1, "a", "c", True), (1, "b", "c", True), (2, "a", "t", True)],
        [(3, "a", "u", True), (4, "b", "c", True)],
    )
    found = plan(events, 0, 4, {}, 2)
    assert [(step.batch, counts(step), is_end) for step, is_end in found] == [
        (2, {"a": 2, "b": 1}, False), (4, {"a": 1, "b": 1}, True),
    ]
    assert [(step.counts["a"].changes, [batch for batch, _ in step.truncates.get("a", ())]) for step, _ in found] == [
        (1, [2]), (1, []),
    ]
    assert found[0][0].counts["a"].size > 0


def test_table_behind_is_counted_with_first_step_once(tmp_path: Path) -> None:
    """Its events from before the frontier belong to the next step; later spans do not find them again."""
    events = write_events(tmp_path / "events", [(n, "a", "c", True) for n in range(1, 21)], [(21, "b", "c", True)])
    found = plan(events, 10, 21, {"a": 4}, 1)
    assert [(step.batch, counts(step)) for step, _ in found] == [
        (11, {"a": 7}), *((n, {"a": 1}) for n in range(12, 21)), (21, {"b": 1}),
    ]
    (alone,) = plan(events, 21, 21, {"a": 4}, 1)
    assert (alone[0].batch, alone[0].position, counts(alone[0])) == (21, None, {"a": 16})


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ([[(n, "a", "c", True) for n in range(1, 41)]], [*range(2, 41, 2)]),
        ([[(n, "a", "c", n in (3, 30, 31)) for n in range(1, 32)]], [3, 30, 31]),
        ([[(1, "a", "c", True)], [(9000, "a", "c", True)], [(9001, "a", "c", True)]], [1, 9001]),
        ([[(n, "a", "c", n < 20) for n in range(1, 31)]], [*range(2, 20, 2), 19]),
    ],
    ids=["many spans", "transaction longer than a span", "batches without events", "open to the end"],
)
def test_spans_lose_no_event(
    tmp_path: Path, files: list[list[Event]], expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A survey of all batches at once finds the same."""
    events = write_events(tmp_path / "events", *files)
    found = plan(events, 0, files[-1][-1][0], {}, 2)
    assert [step.batch for step, _ in found] == expected
    monkeypatch.setattr(steps, "_SPAN_STEPS", 10_000)
    whole = plan(events, 0, files[-1][-1][0], {}, 2)
    assert sum(counts(step)["a"] for step, _ in found) == sum(counts(step)["a"] for step, _ in whole)
    assert (found[-1][0].batch, found[-1][1]) == (whole[-1][0].batch, whole[-1][1])


def test_survey_is_bounded_by_span(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = write_events(tmp_path / "events", *([(n, "a", "c", True)] for n in range(1, 61)))
    spans: list[int] = []

    def surveyed(events: EventReader, wanted: Predicate) -> object:
        found = survey(events, wanted)
        spans.append(len(found.ends))
        return found

    monkeypatch.setattr(steps, "survey", surveyed)
    assert sum(counts(step)["a"] for step, _ in plan(events, 0, 60, {}, 2)) == 60
    assert max(spans) == 8
