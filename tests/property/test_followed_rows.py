"""Rows that change their keys inside a window: the model follows the row that was read, and so does the code."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from dblake.base.core.position import Position
from dblake.base.core.window import Snapshot
from dblake.transform.reconcile.followed_rows import ROW_EVENTS, follow
from tests.model.dblog import ChunkRow, Event, Key, followed
from tests.support.effort import EFFORT

KEYS: list[Key] = [("a",), ("b",), ("c",), ("d",)]
COLUMNS = ("v", "big")


@dataclass
class Window:
    """Random transactions of a table, each key's row by its number before each of them, and after the last."""

    events: list[Event] = field(default_factory=list)
    rows: list[dict[Key, int]] = field(default_factory=list)

    def snapshot(self, read: int) -> Snapshot:
        """Return that of a read before the transaction ``read``."""
        return Snapshot(read, read)


def random_window(draw: random.Random) -> Window:
    window, rows, count = Window(), {key: number for number, key in enumerate(KEYS[:draw.randint(1, 4)])}, 4
    for txid in range(draw.randint(1, 5)):
        window.rows.append(dict(rows))
        for step in range(draw.randint(1, 3)):
            key, other = draw.sample(KEYS, 2)
            image = {name: "x" for name in COLUMNS if draw.random() < 0.3}
            whole = len(image) == len(COLUMNS)
            at = Position(1, txid + 1, 2 * step)

            def event(op: str, key: Key, at: Position, txid: int = txid, **more: object) -> Event:
                return Event(at, 1, 1, "t", op, key, txid=txid, **more)  # type: ignore[arg-type]

            if key not in rows:
                window.events.append(event("c", key, at, after=dict.fromkeys(COLUMNS, "x"), whole=True))
                rows[key], count = count, count + 1
            elif other not in rows and draw.random() < 0.7:
                window.events.append(event("d", key, at))
                after = Position(1, txid + 1, 2 * step + 1)
                window.events.append(event("c", other, after, after=image, whole=whole, key_before=key))
                rows[other] = rows.pop(key)
            elif draw.random() < 0.3:
                window.events.append(event("d", key, at))
                rows.pop(key)
            else:
                window.events.append(event("u", key, at, after=image, whole=whole))
    window.rows.append(dict(rows))
    return window


def row_events(window: Window, number: int, snapshot: Snapshot | None) -> list[dict[str, object]]:
    """Return the events as ROW_EVENTS rows."""
    return [
        {"chunk_id": str(number), "lsn": e.position.lsn, "seq": e.position.seq, "op": e.op, "key_text": e.key[0],
         "carried": None if e.whole or e.op == "d" else sorted(e.after or {}),
         "old_key_text": e.key_before[0] if e.key_before and not e.whole else None,
         "moved_to": list(e.key) if e.key_before and not e.whole else None,
         "is_seen": snapshot is not None and snapshot.sees(e.txid or 0)}
        for e in window.events if e.key
    ]


@pytest.mark.parametrize("seeds", [
    pytest.param(range(300), id="short"),
    pytest.param(range(300, 300 + 6_000 * EFFORT), id="long", marks=pytest.mark.slow),
])
def test_followed_rows_are_those_read(seeds: Sequence[int]) -> None:
    """With a snapshot each row that moved is followed; without one only where one row alone can have been read."""
    found = {False: 0, True: 0}
    landed, expected = list[dict[str, object]](), dict[tuple[int, str], tuple[Key, frozenset[str]]]()
    with_snapshot, returned = set[str](), set[tuple[int, str]]()
    for seed in seeds:
        draw = random.Random(seed)
        window = random_window(draw)
        read = draw.randrange(len(window.rows))
        snapshot = window.snapshot(read) if seed % 2 else None
        with_snapshot |= {str(seed)} if snapshot else set()
        landed += row_events(window, seed, snapshot)
        ends = {row: key for key, row in window.rows[-1].items()}
        for key, row in window.rows[read].items():
            line = followed(ChunkRow(1, 1, "t", "k", 0, key, {}), window.events, snapshot)
            if not any(e.op == "d" and e.key == key for e in window.events):
                continue
            returned.add((seed, key[0]))
            if line is not None and line.key is not None:
                expected[seed, key[0]] = line.key, line.carried
                found[snapshot is not None] += 1
                assert ends.get(row) == line.key, (seed, key)
            elif snapshot is not None:
                assert row not in ends or any(e.whole for e in window.events), (seed, key)
    actual = {
        (int(row["chunk_id"]), row["key_text"]): (tuple(row["moved_to"]), frozenset(row["carried"]))
        for row in follow(pa.Table.from_pylist(landed, ROW_EVENTS), with_snapshot).to_pylist()
    }
    # The code does not know which keys a chunk returned.
    assert {at: of_key for at, of_key in actual.items() if at in returned} == expected
    assert min(found.values()) > len(seeds) // 40
