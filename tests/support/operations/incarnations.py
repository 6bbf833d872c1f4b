"""Positions that begin lower or go on higher after lost log, in events that are compacted beside consumers.

Two consumers follow events: one without a pause, one that begins again from its checkpoint. The action fails if one of
them gets a part of a transaction, a transaction twice, out of order or not at all: of each transaction of events after
its beginning it must have all rows at once. Large transactions land, and reach events, in several batches.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from dblake.base.core.position import Position
from dblake.base.lake.layout import Paths
from dblake.base.lake.query import query_rows
from dblake.base.lake.tables import has_table
from dblake.serve.consume import open_subscription
from tests.support.operations.databases import SCHEMA
from tests.support.operations.scene import DatabaseErrors, Scene

_ROWS = 1500
"""Rows of a large transaction, which are inserted and deleted: several landing batches."""
_FIRST_KEY = 10_000
_ADVANCES = 6
_GAP_SECONDS = 40.0
_RESTART_TRANSACTIONS = 7

Seen = list[tuple[Position, ...]]


def compact_incarnations(scene: Scene, lose_log: Callable[[Scene], str]) -> str:
    """Write, lose log, write on, and compact, with consumers beside; judge what they got."""
    system = scene.system
    scene.note(system.advance())
    if not has_table(system.paths.events):
        return "no events"
    before = system.incarnation
    with followed(system.paths) as followers:
        _write_and_advance(scene)
        did = lose_log(scene)
        deadline = time.monotonic() + _GAP_SECONDS
        while system.incarnation == before and time.monotonic() < deadline:
            system.wait(0.3)
        if system.incarnation == before:
            scene.note(f"capture has not gone on after lost log within {_GAP_SECONDS:.0f} s")
        _write_and_advance(scene)
        merged = system.compact_events()
        _write_and_advance(scene)
        system.wait(1.0)
        scene.note(system.advance())
    for follower in followers:
        scene.note(follower.judge())
    return f"{did}; incarnation {before} to {system.incarnation}, {merged} files of events merged"


def _write_and_advance(scene: Scene) -> None:
    """Commit a large transaction, and reconcile while it lands, so that events have parts of it for some time."""
    writing = threading.Thread(target=_write_large, args=(scene, scene.table()))
    writing.start()
    for _ in range(_ADVANCES):
        scene.system.wait(0.2)
        scene.note(scene.system.advance())
    writing.join()


def _write_large(scene: Scene, table: str) -> None:
    """Insert and delete rows in one transaction; a table whose columns do not allow it is left as it is."""
    name = f"{SCHEMA}.{table}"
    rows = ", ".join(f"({key})" for key in range(_FIRST_KEY, _FIRST_KEY + _ROWS))
    try:
        with closing(scene.database.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(f"INSERT INTO {name} (id) VALUES {rows}")
            cursor.execute(f"DELETE FROM {name} WHERE id >= {_FIRST_KEY}")
            connection.commit()
    except DatabaseErrors:
        pass


class Follower:
    """A consumer from the newest transaction on; ``restarts`` from its checkpoint after some transactions."""

    def __init__(self, paths: Paths, *, restarts: bool) -> None:
        self._paths, self._restarts, self._stop = paths, restarts, threading.Event()
        newest = query_rows(paths.events, "SELECT incarnation, lsn FROM t ORDER BY 1 DESC, 2 DESC LIMIT 1")
        self._start = Position(newest[0]["incarnation"], newest[0]["lsn"]) if newest else Position(1, 0)
        self._seen: Seen = []
        self._checkpoint: str | None = None
        self._error = ""
        self._thread = threading.Thread(target=self._run)

    def begin(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def end(self) -> None:
        """Take what events hold, and end."""
        self._stop.set()
        self._thread.join()
        if not self._error:
            self._guarded(lambda: self._take(threading.Event(), until_caught_up=True))

    def judge(self) -> str:
        """Return what is wrong with what the consumer got, or an empty text."""
        if self._error:
            return f"a consumer has ended: {self._error}"
        after = self._start.end_of_transaction.after_sql()
        rows = query_rows(self._paths.events, f"SELECT incarnation, lsn, seq FROM t WHERE {after}")
        expected = _by_transaction(sorted(Position(row["incarnation"], row["lsn"], row["seq"]) for row in rows))
        for number, (found, whole) in enumerate(zip(self._seen, expected, strict=False)):
            if found != whole:
                return (f"a consumer got {len(found)} rows, {found[0]} to {found[-1]}, where transaction {number} has"
                        f" {len(whole)}, {whole[0]} to {whole[-1]}")
        # The newest transaction may not be complete.
        if not len(expected) - 1 <= len(self._seen) <= len(expected):
            return f"a consumer got {len(self._seen)} transactions of {len(expected)}"
        return ""

    def _run(self) -> None:
        while not self._stop.is_set() and not self._error:
            self._guarded(lambda: self._take(self._stop, most=_RESTART_TRANSACTIONS if self._restarts else None))

    def _guarded(self, take: Callable[[], None]) -> None:
        try:
            take()
        except Exception as error:  # noqa: BLE001 - it is what the consumer ended with
            self._error = f"{type(error).__name__}: {error}"

    def _take(self, stop: threading.Event, *, until_caught_up: bool = False, most: int | None = None) -> None:
        subscription = open_subscription(
            [self._paths], start=f"{self._start.incarnation}/{self._start.lsn}", resume=self._checkpoint,
            until_caught_up=until_caught_up, stop=stop,
        )
        with subscription:
            for number, transaction in enumerate(subscription, start=1):
                if transaction.events:
                    self._seen.append(tuple(event.position for event in transaction.events))
                self._checkpoint = transaction.checkpoint
                if stop.is_set() or number == most:
                    return


def _by_transaction(positions: list[Position]) -> Seen:
    found: list[list[Position]] = []
    for position in positions:
        if found and (found[-1][-1].incarnation, found[-1][-1].lsn) == (position.incarnation, position.lsn):
            found[-1].append(position)
        else:
            found.append([position])
    return [tuple(transaction) for transaction in found]


@contextmanager
def followed(paths: Paths) -> Iterator[list[Follower]]:
    """Yield two consumers that follow events within the block, and have what events hold at its end."""
    followers = [Follower(paths, restarts=restarts) for restarts in (False, True)]
    for follower in followers:
        follower.begin()
    try:
        yield followers
    finally:
        for follower in followers:
            follower.end()
