"""Verification of a memory database's copy: what it reports, skips, repeats and repairs; without a server or a JVM."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from dblake.base.core.mask_rules import Rule
from dblake.base.core.schema import Column
from dblake.ingest.capture.dump_queue import dump_status, queue_dump
from dblake.ingest.capture.stale_tables import StaleTable, save_stale_table
from dblake.ingest.mask.masks import Masks
from dblake.operate.verification import run, touched
from dblake.operate.verification.ledger import newest_by_table
from tests.support.effort import seeds
from tests.support.steps import Steps
from tests.unit.operate.verification.conftest import KEYS, SCHEMA, Copy, Rows, T, found, set_value


def test_equal_copy_is_recorded_by_chunk(copy: Copy) -> None:
    """Its rows are no events, and its request is no dump."""
    events = DeltaTable(copy.lake.paths.events).to_pyarrow_table().num_rows
    result = copy.verify()
    assert (result["chunks"], result["rows_compared"], result["rows_skipped"], found(result)) == (3, 9, 0, (0, 0, 0))
    rows = copy.ledger()
    assert [(row["key_from"], row["key_to"], row["rows_compared"], row["closing"]) for row in rows] == [
        ("1", "4", 4, False), ("5", "8", 4, False), ("9", "9", 1, False), (None, None, 0, True),
    ]
    assert result["position"] == f"1/{rows[-1]['lsn']}"
    assert DeltaTable(copy.lake.paths.events).to_pyarrow_table().num_rows == events
    assert [dump["rows"] for dump in copy.lake.dumps()] == [9]
    assert [entry["rows"] for entry in dump_status(copy.lake.store, verifications=True)] == [9]


def plant(rows: Rows) -> Rows:
    values: dict[object, dict[str, object]] = {
        "1": {"v": "b"}, "2": {"v": None, "big": None}, "3": {"big": "xxy"}, "4": {"v": None, "_lossy": ["v"]},
        "5": {"_lossy": ["v"]}, "6": {"_deleted": True},
    }
    changed = [row | values.get(row["id"], {}) for row in rows if row["id"] != "7"]
    return [*changed, rows[0] | {"_key": "77", "id": "77"}, next(row for row in rows if row["id"] == "8")]


def test_planted_differences_are_found(copy: Copy) -> None:
    copy.corrupt(plant)
    verification = copy.start()
    assert found(copy.verify(verification=verification)) == (2, 2, 5)
    assert verification.remaining() == 9
    for number in (1, 2):
        rows = [row for row in copy.ledger() if row["round"] == number]
        keys = {kind: sorted(key for row in rows for key in row[f"{kind}_keys"])
                for kind in ("missing", "extra", "different")}
        assert keys == {"missing": ["6", "7"], "extra": ["77", "8"], "different": ["1", "2", "3", "4", "5"]}
        columns = [dict(row["columns"]) for row in rows]
        assert {name: sum(each.get(name, 0) for each in columns) for name in ("id", "v", "big")} == {
            "id": 0, "v": 4, "big": 2,
        }


def test_changes_at_any_point_of_windows_are_no_differences(copy: Copy) -> None:
    changes: Steps = {
        ("low", T): lambda: copy.write(
            lambda t: t.update(T, {"id": "1"}, {"v": "b"}), lambda t: t.delete(T, {"id": "2"}),
            lambda t: t.insert(T, {"id": "10", "v": "b", "big": "y"})),
        ("read", T): lambda: copy.write(
            lambda t: t.update(T, {"id": "3"}, {"id": "33"}), lambda t: t.delete(T, {"id": "4"}),
            lambda t: t.insert(T, {"id": "2", "v": "c", "big": "y"})),
        ("high", T): lambda: copy.write(
            lambda t: t.update(T, {"id": "5"}, {"v": "b"}), lambda t: t.update(T, {"id": "9"}, {"id": "0"}),
            lambda t: t.delete(T, {"id": "10"})),
    }
    result = copy.verify(changes)
    assert found(result) == (0, 0, 0) and result["rows_compared"] >= 3
    assert {row["round"] for row in copy.ledger()} == {1}


def test_change_after_window_but_before_comparison_is_skipped(copy: Copy) -> None:
    verification = copy.start()
    copy.follow()
    copy.update("3", "b")
    result = copy.verify(verification=verification)
    assert (result["rows_compared"], result["rows_skipped"], found(result)) == (8, 1, (0, 0, 0))


def test_comparison_without_skip_rule_reports_false_differences(
    copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proves the tests above: without the rule, a change after the read is a difference."""
    monkeypatch.setattr(touched.Touched, "keys", lambda *_: pa.chunked_array([], pa.string()))
    verification = copy.start()
    copy.follow()
    copy.update("3", "b")
    copy.follow()
    run.compare_landed(copy.lake.paths)
    assert [row["different"] for row in copy.ledger()] == [1, 0, 0, 0]
    assert verification.pending == [T]


def test_commit_before_window_that_chunk_does_not_see_is_skipped(copy: Copy) -> None:
    """The commit record is in the log before the low watermark; the chunk reads the row as it was before."""
    transaction = copy.database.begin()
    transaction.update(T, {"id": "3"}, {"v": "b"})
    transaction.commit(visible=False)
    result = copy.verify({("read", T): transaction.reveal})
    assert found(result) == (0, 0, 0) and result["rows_skipped"] == 1


def test_chunk_is_compared_once_when_state_holds_window(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    copy.update("3", "b")
    verification = copy.start()
    copy.lake.capture(copy.source, chunk_size=4)
    assert run.compare_landed(copy.lake.paths) == 0
    copy.lake.reconcile()
    assert run.compare_landed(copy.lake.paths) == 0
    copy.lake.fold()
    assert run.compare_landed(copy.lake.paths) == 4
    assert run.compare_landed(copy.lake.paths) == 0
    assert verification.advance()
    before = copy.ledger()
    monkeypatch.setattr(run, "done_batch", lambda _: 0)
    run.compare_landed(copy.lake.paths)
    assert copy.ledger() == before


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda copy: copy.write(lambda t: t.truncate(T)), "truncated"),
        (lambda copy: copy.database.alter_table(
            replace(SCHEMA, columns=(*SCHEMA.columns, Column("w", "text"))), {"w": None}), "schema"),
    ],
    ids=["truncate", "schema"],
)
def test_chunk_before_table_change_is_repeated(
    copy: Copy, change: Callable[[Copy], None], reason: str
) -> None:
    verification = copy.start()
    copy.follow()
    change(copy)
    copy.write(lambda t: t.insert(T, {"id": "50", "v": "b", "big": "y"}))
    result = copy.verify(verification=verification)
    assert found(result) == (0, 0, 0) and result["rows_compared"] > 0
    repeated = [row for row in copy.ledger() if row["status"] == "repeat"]
    assert repeated and all(reason in row["reason"] for row in repeated)


def test_stale_table_is_repeated_until_it_is_dumped(copy: Copy) -> None:
    """A row changes without an event, and capture knows: that is no fault of the copy once the dump is done."""
    copy.database.table(T).rows["3",]["v"] = "unlogged"
    verification = copy.start()
    save_stale_table(copy.lake.store, StaleTable(T, "its columns were rewritten", queue_dump(copy.lake.store, [T])))
    assert found(copy.verify(verification=verification)) == (0, 0, 0)
    rows = copy.ledger()
    assert sum(row["different"] for row in rows) == 0 and any(row["status"] == "repeat" for row in rows)


def test_repair_restores_rows_and_verifies_them_again(copy: Copy) -> None:
    copy.corrupt(lambda rows: [row for row in set_value(rows, "3", v="b") if row["id"] != "5"])
    verification = copy.start(repair=True)
    result = copy.verify(verification=verification)
    assert (found(result), result["repaired"], verification.remaining()) == ((1, 0, 1), 2, 0)
    assert [dump["rows"] for dump in copy.lake.dumps()] == [9, 2]
    assert found(copy.verify()) == (0, 0, 0)


def test_repair_deletes_only_extra_row(copy: Copy) -> None:
    """The source loses a row without an event; the dump of its key deletes it, and no other row."""
    del copy.database.table(T).rows["3",]
    result = copy.verify(repair=True)
    assert (found(result), result["repaired"]) == ((0, 1, 0), 1)
    assert copy.live_keys() == [key for key in KEYS if key != "3"]


def test_masked_table_is_compared_masked(tmp_path: Path) -> None:
    """Key and value land hashed; so are the keys in the ledger, and a repair reads the whole table."""
    copy = Copy(tmp_path, Masks({T: {"id": Rule("hash"), "v": Rule("hash")}}, b"a key of 16 bytes", text="text"))
    (key, *_) = copy.live_keys()
    assert len(key) == 64
    copy.corrupt(lambda rows: set_value(rows, key, v="b"))
    result = copy.verify(repair=True, columns=None)
    assert (found(result), result["rows_compared"], result["repaired"]) == ((0, 0, 1), 9, 1)
    assert [row["different_keys"] for row in copy.ledger() if row["different"]] == [[key]]
    assert [dump["rows"] for dump in copy.lake.dumps()] == [9, 9]


def test_sample_reads_part_of_ranges_and_no_extra_rows(copy: Copy) -> None:
    with copy.database.begin() as transaction:
        for number in range(100):
            transaction.insert(T, {"id": f"n{number:03}", "v": "a", "big": "b"})
    copy.follow()
    copy.corrupt(lambda rows: [*rows, rows[0] | {"_key": "77", "id": "77"}])
    result = copy.verify(sample=0.25)
    assert 0 < result["rows_compared"] < 60 and found(result) == (0, 0, 0)
    assert newest_by_table(copy.lake.paths)[T][-1].sampled


def test_verification_resumes_after_capture_ends(copy: Copy) -> None:
    """Capture dies after the first chunk's high watermark; the next one reads the rest, and no chunk counts twice."""
    verification = copy.start()

    def die() -> None:
        raise RuntimeError("capture ends")

    with pytest.raises(RuntimeError):
        copy.lake.capture(copy.source, steps={("high", T): die}, chunk_size=4)
    assert found(copy.verify(verification=verification)) == (0, 0, 0)


@pytest.mark.parametrize("seed", seeds(1, 20))
def test_random_changes_are_never_differences(copy: Copy, seed: int) -> None:
    random = Random(seed)

    def change() -> None:
        key, other = random.choice(KEYS), f"o{random.randrange(3)}"
        rows = {row["id"] for row in copy.database.rows(T)}
        kind = random.randrange(5)
        if key not in rows:
            copy.write(lambda t: t.insert(T, {"id": key, "v": "new", "big": "z"}))
        elif kind == 0:
            copy.write(lambda t: t.delete(T, {"id": key}))
        elif kind == 1 and other not in rows:
            copy.write(lambda t: t.update(T, {"id": key}, {"id": other, "big": "moved"}))
        else:
            copy.update(key, f"v{random.random()}")

    for _ in range(3):
        if random.randrange(2):
            copy.lake.dump(T)
        steps = {(f"every {point}", T): change for point in ("low", "read", "high")}
        assert found(copy.verify(steps)) == (0, 0, 0)
        assert {row["round"] for row in copy.ledger()} == {1}
