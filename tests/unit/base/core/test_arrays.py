"""Rows in another order, also of columns that are larger than one array of texts can be."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from dblake.base.core import arrays
from dblake.base.core.arrays import copy_rows, take_rows


def tables(sizes: list[int], chunks: int) -> pa.Table:
    """Return rows of given sizes, a text and a map, in several chunks."""
    parts = []
    for own in np.array_split(np.arange(len(sizes)), chunks):
        texts = pa.array([f"{n}".ljust(sizes[n], ".") for n in own], pa.string())
        maps = pa.MapArray.from_arrays(pa.array(np.arange(len(own) + 1, dtype=np.int32)),
                                       pa.array(["k"] * len(own), pa.string()), texts)
        parts.append(pa.table({"n": pa.array(own), "text": texts, "map": maps}))
    return pa.concat_tables(parts)


@pytest.mark.parametrize("sizes", [[10] * 50, [10] * 25 + [900] + [10] * 24, [2000] * 50], ids=["even", "one", "wide"])
def test_take_rows_in_parts_equals_take(monkeypatch: pytest.MonkeyPatch, sizes: list[int]) -> None:
    rows, order = tables(sizes, 7), np.random.default_rng(3).permutation(50)
    expected = rows.take(pa.array(order))
    monkeypatch.setattr(arrays, "JOINED_BYTES", 1000)
    found = take_rows(rows, order)
    assert found.equals(expected) and found["text"].num_chunks > 3
    assert take_rows(rows, order[:0]).num_rows == 0


def test_a_copy_of_rows_has_no_memory_beyond_them() -> None:
    rows = tables([10] * 5000, 1)
    found = copy_rows(rows.slice(100, 50))
    assert found.equals(rows.slice(100, 50)) and found.get_total_buffer_size() < rows.get_total_buffer_size() / 20
    assert copy_rows(rows[:0]).equals(rows[:0])


@pytest.mark.slow
def test_take_rows_beyond_two_gib() -> None:
    """What ``Table.take`` fails at: ``offset overflow while concatenating arrays``."""
    text = pa.array(["x" * 20_000] * 60_000, pa.string())
    rows = pa.table({"n": pa.array(np.arange(120_000)), "text": pa.chunked_array([text, text])})
    with pytest.raises(pa.ArrowInvalid, match="offset overflow"):
        rows.take(pa.array([119_999, 0]))
    found = take_rows(rows, np.arange(120_000)[::-1])
    assert found["n"].to_pylist() == list(range(119_999, -1, -1))
    assert (found.num_rows, found["text"][-1].as_py()) == (120_000, "x" * 20_000)
