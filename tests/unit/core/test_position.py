"""Positions and the windows they bound."""

from __future__ import annotations

import pytest

from dblake.core.position import Position
from dblake.core.window import ChunkWindow, Snapshot


def test_positions_compare_as_numbers() -> None:
    ordered = [
        Position(1, 0, 0), Position(1, 9, 0), Position(1, 9, 2), Position(1, 10, 0), Position(1, 1_000_000, 0),
        Position(2, 0, 0), Position(10, 0, 0),
    ]  # fmt: skip
    shuffled = [ordered[n] for n in (6, 3, 0, 5, 2, 4, 1)]
    assert sorted(shuffled) == ordered


@pytest.mark.parametrize(
    ("text", "position"), [("1/4711/2", Position(1, 4711, 2)), ("3/0", Position(3, 0, 0)), ("2/5/0", Position(2, 5))]
)
def test_text_of_positions(text: str, position: Position) -> None:
    assert Position.parse(text) == position
    assert Position.parse(str(position)) == position


@pytest.mark.parametrize("text", ["", "1", "1/2/3/4", "a/b", "0/1/1", "1/-1/0", "1/1/-1"])
def test_texts_that_are_none(text: str) -> None:
    with pytest.raises(ValueError):
        Position.parse(text)


@pytest.mark.parametrize(
    ("text", "seen", "unseen"),
    [
        ("10:10:", [1, 9], [10, 11]),
        ("10:15:10,12", [9, 11, 13, 14], [10, 12, 15, 16]),
        ("4294967296:4294967300:4294967297", [4294967296], [4294967297, 4294967300]),
    ],
)
def test_what_a_snapshot_sees(text: str, seen: list[int], unseen: list[int]) -> None:
    snapshot = Snapshot.parse(text)
    assert [x for x in seen if not snapshot.sees(x)] == []
    assert [x for x in unseen if snapshot.sees(x)] == []


@pytest.mark.parametrize("text", ["10:9:", "10:12:9", "10:12:12"])
def test_snapshots_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="no such snapshot"):
        Snapshot.parse(text)


def window(low: Position, high: Position, snapshot: str | None = None) -> ChunkWindow:
    return ChunkWindow(
        chunk_id="c", dump_id="d", table="public.t", lease_epoch=1, low=low, high=high, schema_id="s", rows=1,
        first_batch=1, snapshot=Snapshot.parse(snapshot) if snapshot else None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("snapshot", "position", "txid", "held"),
    [
        # by position: after low, up to high
        (None, Position(1, 100, 0), 7, False),
        (None, Position(1, 100, 2), 7, True),
        (None, Position(1, 150, 0), 7, True),
        (None, Position(1, 200, 0), 7, True),
        (None, Position(1, 200, 2), 7, False),
        (None, Position(1, 50, 0), 7, False),
        # before low, but its transaction was not visible to the chunk
        ("5:9:7", Position(1, 50, 0), 7, True),
        ("5:9:7", Position(1, 50, 0), 9, True),
        ("5:9:7", Position(1, 50, 0), 8, False),
        ("5:9:7", Position(1, 250, 0), 7, False),
        ("5:9:7", Position(1, 50, 0), None, False),
        # another life of the log is never in the window
        ("5:9:7", Position(2, 150, 0), 7, False),
    ],
)
def test_what_a_window_holds(snapshot: str | None, position: Position, txid: int | None, held: bool) -> None:
    assert window(Position(1, 100), Position(1, 200), snapshot).holds(position, txid) is held


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (Position(1, 200), Position(1, 100)),
        (Position(1, 100), Position(1, 100)),
        (Position(1, 100), Position(2, 200)),
    ],
)
def test_windows_that_are_none(low: Position, high: Position) -> None:
    with pytest.raises(ValueError, match="is not after low"):
        window(low, high)
