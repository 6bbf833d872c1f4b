"""Rows are compared in parts that are bounded in bytes, however many rows a group or a chunk has."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from dblake.operate.verification import run
from dblake.operate.verification.compare import align_state
from dblake.transform.reconcile import task
from tests.unit.operate.verification.conftest import KEYS, Copy, T, found, set_value

WIDE = 20_000


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Yield the bytes of state's rows at each comparison. About 30,000 are allowed."""
    sizes = list[int]()

    def spy(keys: pa.ChunkedArray, state: pa.Table) -> pa.Table:
        sizes.append(state.nbytes)
        return align_state(keys, state)

    monkeypatch.setattr(run, "align_state", spy)
    monkeypatch.setattr(run, "GROUP_BYTES", 30_000, raising=False)
    monkeypatch.setattr(task, "_DECODED_BYTES", 30_000)
    yield sizes


def widen(copy: Copy) -> None:
    for key in KEYS:
        copy.write(partial(set_big, key=key))


def set_big(transaction: Any, key: str) -> None:
    transaction.update(T, {"id": key}, {"big": key * WIDE})


def test_wide_rows_are_compared_in_parts(copy: Copy, held: list[int]) -> None:
    """Nine rows of 20 kB in chunks of four: each part of a chunk counts, the ledger has a row per chunk."""
    widen(copy)
    copy.follow()
    copy.corrupt(lambda rows: set_value(rows, "3", v="planted"))
    assert found(copy.verify()) == (0, 0, 1)
    assert 0 < max(held) < 3 * WIDE
    read = [(row["key_from"], row["key_to"], row["rows_compared"]) for row in copy.ledger()
            if row["round"] == 1 and row["rows_compared"]]
    assert sorted(read) == [("1", "4", 4), ("5", "8", 4), ("9", "9", 1)]


def test_rows_that_grew_since_the_chunk_are_not_read(copy: Copy, held: list[int]) -> None:
    """State is ahead of the chunks: its rows of changed keys are not compared, and so not held."""
    verification = copy.start()
    copy.follow()
    widen(copy)
    copy.follow()
    verification.advance()
    assert [row["rows_skipped"] for row in copy.ledger() if not row["closing"]] == [4, 4, 1]
    assert max(held) < WIDE
