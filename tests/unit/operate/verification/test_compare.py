"""Comparing two sides column by column: every kind of value, and what counts as equal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from dblake.base.core.position import Position
from dblake.base.lake.layout import Paths
from dblake.operate.verification import compare
from dblake.operate.verification.arrays import differs
from dblake.operate.verification.compare import absent_keys, align_state, compare_rows
from dblake.operate.verification.findings import find_wrong
from dblake.operate.verification.ledger import ChunkDifferences, ChunkResult, Round, append_results, read_rounds
from dblake.operate.verification.state_rows import repeated_keys
from dblake.transform.state.shape import Shape, StateColumn

NAN = float("nan")


@pytest.mark.parametrize(
    ("kind", "left", "right", "expected"),
    [
        (pa.string(), ["a", "a", None, None, ""], ["a", "b", None, "b", None], [False, True, False, True, True]),
        (pa.float64(), [NAN, 0.0, 1.5, NAN, None], [NAN, -0.0, 1.5, 1.0, NAN], [False, True, False, True, True]),
        (pa.float32(), [NAN, 0.5], [NAN, 0.25], [False, True]),
        (pa.binary(), [b"\x00", b""], [b"\x00", b"\x01"], [False, True]),
        (pa.list_(pa.string()), [["a", None], ["a"], [], None, ["a", "b"], ["x"]],
         [["a", None], ["b"], ["a"], [], ["a", "b"], ["x"]], [False, True, True, True, False, False]),
        (pa.list_(pa.string()), [[None], ["a", "b"]], [["a"], ["a", "c"]], [True, True]),
        (pa.bool_(), [True, False], [True, True], [False, True]),
        (pa.string(), [], [], []),
    ],
    ids=["text", "double", "float", "binary", "lists", "list elements", "boolean", "empty"],
)
def test_differs_compares_values(
    kind: pa.DataType, left: list[object], right: list[object], expected: list[bool]
) -> None:
    assert differs(pa.array(left, kind), pa.array(right, kind)).tolist() == expected
    assert differs(pa.array(right, kind), pa.array(left, kind)).tolist() == expected


def table(keys: list[str], lossy: list[list[str]], **columns: list[object]) -> pa.Table:
    return pa.table({"_key": pa.array(keys, pa.string()), "_lossy": pa.array(lossy, pa.list_(pa.string())), **columns})


def test_compare_rows_names_kinds_and_columns() -> None:
    columns = (StateColumn("id", "STRING"), StateColumn("v", "STRING"), StateColumn("new", "STRING"),
               StateColumn("gone", "STRING", dropped=True))
    shape = Shape("public.t", columns, ("id",))
    source = table(["1", "2", "3", "4", "5"], [[], [], ["v"], [], ["v"]], id=["1", "2", "3", "4", "5"],
                   v=["a", "b", None, "d", None], new=pa.array([None, "n", None, None, None], pa.string()),
                   gone=["x"] * 5)
    state = table(["5", "3", "2", "1"], [["v"], [], [], []], id=["5", "3", "2", "1"], v=[None, None, "B", "a"])
    found = compare_rows(source, align_state(source["_key"], state), shape)
    assert found == ChunkDifferences(["4"], (), ["2", "3"], {"v": 2, "new": 1}, lossy=1)


def test_absent_keys_are_neither_returned_nor_touched() -> None:
    keys = [pa.array(list(texts), pa.string()) for texts in ("abcd", "a")]
    touched, none = (pa.chunked_array([list(texts)], pa.string()) for texts in ("c", ""))
    assert absent_keys(keys[0], keys[1:], touched).to_pylist() == ["b", "d"]
    assert absent_keys(keys[0], [], none).to_pylist() == ["a", "b", "c", "d"]


def test_absent_keys_of_many_parts_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    """More keys than one array of strings can hold are looked up part by part."""
    monkeypatch.setattr(compare, "JOINED_BYTES", 40)
    keys = pa.chunked_array([[f"k{n}" for n in range(50)], [f"k{n}" for n in range(50, 100)]])
    returned = [pa.array([f"k{n}" for n in range(first, first + 7)]) for first in range(0, 92, 7)]
    assert absent_keys(keys, returned, pa.chunked_array([["k98"]])).to_pylist() == ["k99"]


def test_repeated_keys_are_named() -> None:
    assert repeated_keys(table(["1", "2", "1"], [[], [], []])) == ["1"]
    assert repeated_keys(table(["1"], [[]])) == []


@pytest.mark.parametrize(
    "round_", [Round("20261123-1-a"), Round("20261123-1-a", 2), Round("20261123-1-a", 13, True, True)]
)
def test_round_is_parsed_from_request_id(round_: Round) -> None:
    assert Round.parse(round_.request_id) == round_


def test_summary_counts_last_chunk_once(tmp_path: Path) -> None:
    """Capture may read the last chunk twice if it dies before it has saved its progress."""
    paths, round_, extra = Paths(str(tmp_path), "shop"), Round("a"), ChunkDifferences(extra=["9"])
    chunk = ChunkResult(round_, "public.t", "c", Position(1, 5), 1, rows_compared=3, rows_skipped=2,
                        differences=ChunkDifferences(["4"], (), ["5"], {"v": 1}))
    last = ChunkResult(round_, "public.t", "d", Position(1, 6), 2, differences=extra, closing=True)
    append_results(paths, [chunk, last], 2)
    append_results(paths, [chunk, last], 2)
    append_results(paths, [replace(last, chunk_id="e", batch=3)], 3)
    ((name, (summary,)),) = read_rounds(paths).items()
    assert name == ("a", "public.t") and summary.is_complete
    assert (summary.chunks, summary.missing, summary.extra, summary.different) == (1, 1, 1, 1)
    assert sorted(find_wrong([summary]).keys or ()) == ["4", "5", "9"]
