"""The oracle: rows that count their own changes, the record of every committed change, and the comparison with events.

Each update increments a key's counter, and so does each insert after a delete: a counter never restarts. A lost,
duplicated or reordered event therefore appears as a step out of sequence, and a dumped row that is older than the log
before it appears as an outdated counter. ``Writers`` makes and records the steps, ``find_wrong_steps`` compares events
with them. Running and killing the jobs is the task of ``rig`` and ``stress``.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

KEYS = 100
"""The keys 1 to KEYS exist from the start, with their counters at 0."""
_UPDATED = 0.85
"""The share of updates among changes of an existing row; the others delete it."""


@dataclass(frozen=True, slots=True)
class Step:
    """One committed change of a key: ``c`` insert, ``u`` update, ``d`` delete; its counter; its commit time."""

    op: str
    n: int
    at: float = 0.0

    def then(self, dice: random.Random) -> Step:
        """Return a random step that may follow."""
        if self.op == "d":
            return Step("c", self.n + 1)
        return Step("u", self.n + 1) if dice.random() < _UPDATED else Step("d", self.n)


FIRST = Step("r", 0)
Written = Mapping[str, list[Step]]


@dataclass(frozen=True, slots=True)
class ObservedEvent:
    """An event, reduced to what the oracle compares. ``op`` is ``phantom`` for a delete that a dump's end emitted."""

    key: str
    op: str
    n: int | None = None
    position: object = None
    batch: int = 0


def find_wrong_steps(events: Iterable[ObservedEvent], written: Written) -> list[str]:
    """Return a message for each error in the events of all keys, in order; an empty list if each step is there once."""
    taken = dict.fromkeys(written, 0)
    wrong = []
    for event in events:
        steps = written.get(event.key, [])
        at = taken.get(event.key, 0)
        last = steps[at - 1] if at else FIRST
        if event.op == "r":
            if last.op == "d" or last.n != event.n:
                wrong.append(f"{_describe(event)}: dumped after the log had reached {last.op} {last.n}")
            continue
        if at < len(steps) and _is(event, steps[at]):
            taken[event.key] = at + 1
            continue
        match = next((index for index in range(at, len(steps)) if _is(event, steps[index])), None)
        if match is None:
            wrong.append(f"{_describe(event)}: after {last.op} {last.n} repeated or never written")
        else:
            wrong.append(f"{_describe(event)}: {match - at} steps after {last.op} {last.n} are missing")
            taken[event.key] = match + 1
    return wrong + [
        f"key {key}: the last {len(steps) - taken[key]} steps are missing"
        for key, steps in written.items() if taken[key] < len(steps)
    ]


def _is(event: ObservedEvent, step: Step) -> bool:
    # A deletion carries no counter where only its key is logged.
    return event.op == step.op and (event.n == step.n or (event.op == "d" and event.n is None))


def _describe(event: ObservedEvent) -> str:
    return f"{event.op} {event.n} of key {event.key} at {event.position}"


def remaining_rows(written: Written) -> dict[str, int]:
    """Return the counter of each row that remains after all steps, by key."""
    last = {key: steps[-1] if steps else FIRST for key, steps in written.items()}
    return {key: step.n for key, step in last.items() if step.op != "d"}


@dataclass
class Writers:
    """Applications on their own connections, each with its own keys, that write for the duration of the block.

    A ``patient`` writer survives a lost connection: it reconnects and checks whether its last transaction committed,
    which holds for the whole transaction if one of its rows has the expected value.
    """

    connect: Callable[[], Any]
    written: dict[str, list[Step]]
    seed: int
    count: int = 2
    pause: float = 0.01
    patient: bool = False
    transactions: int = 0
    _failed: list[BaseException] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Writers:
        keys = sorted(self.written, key=int)
        self._threads = [
            threading.Thread(target=self._write, args=(keys[number :: self.count], self.seed * 100 + number))
            for number in range(self.count)
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self._failed:
            raise self._failed[0]

    def _write(self, keys: list[str], seed: int) -> None:
        dice = random.Random(seed)
        try:
            connection = self.connect()
            while not self._stop.wait(self.pause):
                changes = {key: self._last(key).then(dice) for key in dice.sample(keys, dice.randint(1, 3))}
                try:
                    _commit(connection, changes)
                except Exception:
                    if not self.patient:
                        raise
                    connection = self._reconnect()
                    if not _committed(connection, changes):
                        continue
                now = time.time()
                self.transactions += 1
                for key, step in changes.items():
                    self.written[key].append(Step(step.op, step.n, now))
            connection.close()
        except BaseException as error:  # noqa: BLE001 - raised where the block ends
            self._failed.append(error)

    def _last(self, key: str) -> Step:
        return self.written[key][-1] if self.written[key] else FIRST

    def _reconnect(self) -> Any:
        deadline = time.monotonic() + 60
        while True:
            try:
                return self.connect()
            except Exception:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)


def _commit(connection: Any, changes: Mapping[str, Step]) -> None:
    with connection.cursor() as cursor:
        for key, step in changes.items():
            if step.op == "c":
                cursor.execute("INSERT INTO t VALUES (%s, %s, 'again')", (key, step.n))
            elif step.op == "u":
                cursor.execute("UPDATE t SET n = n + 1 WHERE id = %s AND n = %s", (key, step.n - 1))
            else:
                cursor.execute("DELETE FROM t WHERE id = %s", (key,))
            assert cursor.rowcount == 1, f"key {key} differs from its writer's last step"
    connection.commit()


def _committed(connection: Any, changes: Mapping[str, Step]) -> bool:
    key, step = next(iter(changes.items()))
    with connection.cursor() as cursor:
        cursor.execute("SELECT n FROM t WHERE id = %s", (key,))
        row = cursor.fetchone()
    connection.commit()
    return row is None if step.op == "d" else row is not None and int(row[0]) == step.n
