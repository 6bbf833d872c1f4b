"""Positions, and the chunk windows between them."""

from __future__ import annotations

import pytest

from dblake.base.core.position import Position
from dblake.base.core.window import ChunkWindow, Snapshot


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
def test_position_parses_its_own_text(text: str, position: Position) -> None:
    assert Position.parse(text) == position
    assert Position.parse(str(position)) == position


@pytest.mark.parametrize("text", ["", "1", "1/2/3/4", "a/b", "0/1/1", "1/-1/0", "1/1/-1"])
def test_position_parse_malformed_text_raises(text: str) -> None:
    with pytest.raises(ValueError):
        Position.parse(text)


@pytest.mark.parametrize(
    ("text", "visible", "invisible"),
    [
        ("10:10:", [1, 9], [10, 11]),
        ("10:15:10,12", [9, 11, 13, 14], [10, 12, 15, 16]),
        ("4294967296:4294967300:4294967297", [4294967296], [4294967297, 4294967300]),
    ],
)
def test_snapshot_sees_committed_transactions(text: str, visible: list[int], invisible: list[int]) -> None:
    snapshot = Snapshot.parse(text)
    assert [x for x in visible if not snapshot.sees(x)] == []
    assert [x for x in invisible if snapshot.sees(x)] == []


@pytest.mark.parametrize("text", ["10:9:", "10:12:9", "10:12:12"])
def test_snapshot_parse_inconsistent_text_raises(text: str) -> None:
    with pytest.raises(ValueError, match="no such snapshot"):
        Snapshot.parse(text)


def make_window(low: Position, high: Position, snapshot: str | None = None) -> ChunkWindow:
    return ChunkWindow(
        chunk_id="c", dump_id="d", table="public.t", lease_epoch=1, low=low, high=high, schema_id="s", rows=1,
        first_batch=1, snapshot=Snapshot.parse(snapshot) if snapshot else None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("snapshot", "position", "txid", "expected"),
    [
        # By position: after low, up to high.
        (None, Position(1, 100, 0), 7, False),
        (None, Position(1, 100, 2), 7, True),
        (None, Position(1, 150, 0), 7, True),
        (None, Position(1, 200, 0), 7, True),
        (None, Position(1, 200, 2), 7, False),
        (None, Position(1, 50, 0), 7, False),
        # Before low, but the transaction was invisible to the chunk.
        ("5:9:7", Position(1, 50, 0), 7, True),
        ("5:9:7", Position(1, 50, 0), 9, True),
        ("5:9:7", Position(1, 50, 0), 8, False),
        ("5:9:7", Position(1, 250, 0), 7, False),
        ("5:9:7", Position(1, 50, 0), None, False),
        # Events of another incarnation are never in the window.
        ("5:9:7", Position(2, 150, 0), 7, False),
    ],
)
def test_window_holds_events_chunk_may_miss(
    snapshot: str | None, position: Position, txid: int | None, expected: bool
) -> None:
    assert make_window(Position(1, 100), Position(1, 200), snapshot).holds(position, txid) is expected


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (Position(1, 200), Position(1, 100)),
        (Position(1, 100), Position(1, 100)),
        (Position(1, 100), Position(2, 200)),
    ],
)
def test_window_high_not_after_low_raises(low: Position, high: Position) -> None:
    with pytest.raises(ValueError, match="is not after low"):
        make_window(low, high)
