"""The window index: the same rows and windows as ``ChunkWindow.holds`` gives for every pair."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from dblake.base.core.position import Position
from dblake.base.core.window import ChunkWindow, Snapshot
from dblake.landing.columns import CHUNK_ID, INCARNATION, LSN, SEQ, TABLE, TXID
from dblake.transform.reconcile.window_index import WindowIndex

_COLUMNS = {
    TABLE: pa.string(), INCARNATION: pa.int64(), LSN: pa.int64(), SEQ: pa.int64(), TXID: pa.int64(),
    CHUNK_ID: pa.string(),
}
_TABLES, _INCARNATIONS = st.sampled_from(["public.a", "public.b"]), st.integers(1, 2)
_ROWS = st.lists(
    st.tuples(
        _TABLES, _INCARNATIONS, st.integers(1, 12), st.integers(0, 2), st.none() | st.integers(1, 12), st.none()
    ),
    max_size=40,
)


@st.composite
def _snapshots(draw: st.DrawFn) -> Snapshot:
    xmin = draw(st.integers(1, 12))
    xmax = draw(st.integers(xmin, 13))
    return Snapshot(xmin, xmax, tuple(x for x in range(xmin, xmax) if draw(st.booleans())))


@st.composite
def _windows(draw: st.DrawFn) -> ChunkWindow:
    incarnation = draw(_INCARNATIONS)
    positions = st.tuples(st.integers(1, 12), st.integers(0, 2))
    low, high = sorted(draw(st.lists(positions, min_size=2, max_size=2, unique=True)))
    return ChunkWindow(
        "chunk", "dump", draw(_TABLES), 1, Position(incarnation, *low), Position(incarnation, *high), "schema", 0, 1,
        draw(st.none() | _snapshots()),
    )


@given(_ROWS, st.lists(_windows(), max_size=8))
def test_index_matches_same_pairs_as_window_holds(
    rows: list[tuple[str, int, int, int, int | None, None]], windows: list[ChunkWindow]
) -> None:
    columns = zip(*rows, strict=True) if rows else [[] for _ in _COLUMNS]
    batch = pa.RecordBatch.from_arrays(
        [pa.array(list(values), kind) for values, kind in zip(columns, _COLUMNS.values(), strict=True)],
        names=list(_COLUMNS),
    )
    matched = WindowIndex(windows).rows_in_windows(batch)
    assert matched.schema == batch.schema
    expected = [
        (*row[:5], str(number))
        for row in rows for number, window in enumerate(windows)
        if row[0] == window.table and window.holds(Position(*row[1:4]), row[4])
    ]
    assert sorted(map(repr, zip(*matched.to_pydict().values(), strict=True))) == sorted(map(repr, expected))
