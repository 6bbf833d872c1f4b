"""A random operator on a live system: the short form, and what its comparison detects.

The long form is ``./spark-submit.sh stress --operations``. ``DBLAKE_SEED`` repeats a run.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dblake.serve.consume.event_table import EventTable
from dblake.transform.events.files import EVENT_COLUMNS
from tests.support.effort import EFFORT, choose_seed
from tests.support.operations.incarnations import followed
from tests.support.operations.paused_imports import judge_state
from tests.support.operations.rounds import canonical_text, find_difference, run_rounds
from tests.support.plain_lake import PlainLake, event_rows
from tests.support.schemas import table_schema

STATE: list[dict[str, Any]] = [{"id": 1, "n": 5, "_missing": []}, {"id": 2, "n": None, "_missing": []}]


@pytest.mark.parametrize(("source", "found"), [
    ([{"id": "1", "n": "5"}, {"id": "2", "n": None}], ""),
    ([{"n": "5", "id": "1"}, {"n": None, "id": "2"}], ""),
    ([{"id": "1"}, {"id": "2"}], ""),
    ([{"id": "1", "n": "5"}], "0 rows only in the source, 1 only in state"),
    ([{"id": "1", "n": "5"}, {"id": "2", "n": "0"}], "1 rows only in the source, 1 only in state"),
    ([{"id": "1", "m": "5"}, {"id": "2", "m": None}], "state lacks the columns ['m']"),
    ([], "0 rows only in the source, 2 only in state"),
])
def test_difference_of_tables_is_found(source: list[dict[str, str | None]], found: str) -> None:
    assert find_difference(source, STATE).startswith(found)
    assert bool(find_difference(source, STATE)) is bool(found)


@pytest.mark.parametrize(("key", "found"), [("2", ""), ("3", "1 rows only in the source, 1 only in state")])
def test_value_that_row_names_as_missing_is_no_difference(key: str, found: str) -> None:
    state = [STATE[0], STATE[1] | {"_missing": ["n"]}]
    difference = find_difference([{"id": "1", "n": "5"}, {"id": key, "n": "7"}], state)
    assert difference.startswith(found)
    assert bool(difference) is bool(found)


@pytest.mark.parametrize(("one", "other"), [
    ("1.50", 1.5), ("100", "1E+2"), ("2026-01-02 03:04:05.120000", "2026-01-02 03:04:05.12"),
    ("2026-01-02 03:04:05.000000", "2026-01-02 03:04:05"), (None, None), ("-0", 0),
])
def test_values_of_equal_meaning_have_one_text(one: Any, other: Any) -> None:
    assert canonical_text(one) == canonical_text(other)


T = table_schema("public.t", "id text key", "v text")


def append_rows(lake: PlainLake, batch: int, lsn: int, seqs: list[int], *, is_last: bool) -> None:
    """Append rows of a transaction of the log; ``is_last`` if its last one is among them."""
    rows = [
        event_rows(T, batch, [(1, "c", str(seq), {"v": "x"})]).to_pylist()[0]
        | {"incarnation": 1, "lsn": lsn, "seq": seq, "origin": "log", "last_in_txn": is_last and seq == seqs[-1]}
        for seq in seqs
    ]
    lake.append(pa.Table.from_pylist(rows, schema=EVENT_COLUMNS), batch)


@pytest.mark.parametrize("is_mutated", [False, True])
def test_half_transaction_of_consumer_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_mutated: bool
) -> None:
    """The mutation takes each transaction in events for a whole one."""
    if is_mutated:
        monkeypatch.setattr(EventTable, "find_open_transaction", lambda _: None)
    lake = PlainLake(tmp_path)
    lake.schema(T)
    append_rows(lake, 1, 100, [0], is_last=True)
    with followed(lake.paths) as followers:
        append_rows(lake, 2, 200, [0, 2], is_last=False)
        time.sleep(1)  # consumers read events five times a second
        append_rows(lake, 3, 200, [4], is_last=True)
        append_rows(lake, 4, 300, [0], is_last=True)
    found = [follower.judge() for follower in followers]
    assert [bool(fault) for fault in found] == [is_mutated, is_mutated], found


@pytest.mark.parametrize(("state", "later", "fault"), [
    ("done", [], ""), ("failed", ["2"], ""), ("done", ["2"], "is done, although dump 2"),
    ("failed", [], "is failed, although nothing was queued beside it: cut off"),
])
def test_wrong_end_of_paused_import_is_found(state: str, later: list[str], fault: str) -> None:
    found = judge_state({"state": state, "error": "cut off"}, later)
    assert fault in found
    assert bool(found) is bool(fault)


def run(kind: str, rounds: int, only: tuple[str, ...]) -> None:
    seed = choose_seed()
    done, _ = run_rounds(kind, rounds, seed, print, only=only)
    assert [str(one) for one in done if one.outcome == "failed"] == []
    assert len(done) == rounds


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(("kind", "rounds", "only"), [
    ("postgres", 3, ()), ("mariadb", 3, ()), ("mysql", 2, ()),
    ("postgres", 2, ("import", "incarnation")), ("mariadb", 2, ("import", "incarnation")),
    ("postgres", 1, ("promotion",)), ("mariadb", 1, ("promotion",)), ("mysql", 1, ("promotion",)),
])
def test_tables_stay_equal_or_named_in_many_rounds(kind: str, rounds: int, only: tuple[str, ...]) -> None:
    run(kind, rounds * EFFORT, only)
