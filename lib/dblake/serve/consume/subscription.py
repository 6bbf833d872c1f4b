"""Subscriptions: an iterator over the whole transactions of one or several sources.

Place: the package's front. ``stream`` orders one source, ``checkpoints`` stores how far the consumer is. Guarantee:
transactions of one source come in commit order, each whole and, after a restart, again from the last checkpoint: at
least once. Rows are read as the consumer iterates, so a slow consumer slows down reading and memory stays bounded.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import TracebackType
from typing import Literal, Self

from dblake.base.core.errors import DblakeError, UsageError
from dblake.base.core.position import Position
from dblake.base.core.schema import TableSchema
from dblake.base.lake.layout import Paths
from dblake.base.lake.storage import is_local
from dblake.serve.consume.catch_up import CatchUpMode
from dblake.serve.consume.checkpoints import CheckpointStore
from dblake.serve.consume.cursor import Cursor, parse_checkpoint, write_checkpoint
from dblake.serve.consume.dead_letters import DeadLetter, append_dead_letters
from dblake.serve.consume.filters import Selection
from dblake.serve.consume.model import Event, Transaction
from dblake.serve.consume.start import BOOTSTRAP, parse_start
from dblake.serve.consume.stream import SourceStream, Step

WARN_SECONDS = 30.0
"""Between two warnings while a subscription waits."""
_POLL_SECONDS = 0.2
_CHECK_SECONDS = 0.01
"""Between two checks of a local disk for the next version of a table."""
_IDLE_SECONDS = 10.0
_EARLIEST = datetime(1, 1, 1, tzinfo=UTC)

Live = Literal["auto"] | bool

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SubscriptionSettings:
    """What to deliver and from where.

    ``start`` is ``bootstrap``, ``now`` or a point; it counts for sources without a checkpoint, and with
    ``ignores_checkpoint`` for all. ``checkpoint`` is one that the caller holds, instead of a store. ``schemas`` are the
    schemas that the consumer was written for, by table. With ``until_caught_up`` the iteration ends after what the
    tables held when it last began to read them. With ``live`` what has landed is delivered before it is in events;
    ``auto`` is True on a local disk, but not with ``until_caught_up``. ``catch_up``: whether a subscription that is
    behind begins with each changed key once, as state has it, instead of all events; ``auto`` if that costs less.
    """

    selection: Selection = field(default_factory=Selection)
    start: str = BOOTSTRAP
    checkpoint: str | None = None
    ignores_checkpoint: bool = False
    until_caught_up: bool = False
    poll_seconds: float = _POLL_SECONDS
    schemas: Mapping[str, TableSchema] = field(default_factory=dict)
    live: Live = "auto"
    catch_up: CatchUpMode = "events"

    def reads_tail(self, paths: Paths) -> bool:
        """Return whether what has landed of a source is delivered."""
        return not self.until_caught_up and is_local(paths.landing) if self.live == "auto" else self.live


class Subscription:
    """Iterate over it inside its ``with`` block; see the module. One thread uses it."""

    def __init__(
        self, sources: Sequence[Paths], settings: SubscriptionSettings, store: CheckpointStore | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        """``store`` keeps the checkpoint; without one the caller does. Setting ``stop`` ends the iteration."""
        self._paths, self._settings, self._store = {paths.source: paths for paths in sources}, settings, store
        self._stop = stop or threading.Event()
        point = parse_start(settings.start)
        if point is not None and (point.position or point.before is not None) and len(self._paths) > 1:
            raise UsageError(
                "a position is of one source, but there are several", next_step="begin at a time, or with a bootstrap"
            )
        self._saved: str | None = None
        self._next_idle = 0.0
        self._delivered: dict[str, Cursor] = {}
        self._streams: list[SourceStream] = []
        self._rolled_back = False

    def __enter__(self) -> Self:
        """Open the checkpoint store. Raises ConfigError if its checkpoint belongs to another filter."""
        stored = self._store.open() if self._store is not None else None
        text = stored if self._settings.checkpoint is None else self._settings.checkpoint
        try:
            self._open_at(None if self._settings.ignores_checkpoint else text)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the checkpoint store."""
        if self._store is not None:
            self._store.close()

    def __iter__(self) -> Iterator[Transaction]:
        """Yield transactions until ``stop`` is set, or until caught up, as the settings require."""
        return (transaction for transaction in self._transactions() if transaction is not None)

    def poll(self) -> Iterator[Transaction]:
        """Yield the transactions that are there now, without waiting. Raises StateNotReady if state must run first."""
        return self._pass()

    def has_next(self) -> bool:
        """Return whether there is something new to read; known of a local disk only."""
        return any(stream.has_next() for stream in self._streams)

    def batches(self, max_events: int) -> Iterator[list[Transaction]]:
        """Yield transactions in lists of about ``max_events`` events, and what there is when no more follows.

        A list is empty when nothing came: a chance to save ``checkpoint()``.
        """
        return divide(self._transactions(), max_events)

    def _transactions(self) -> Iterator[Transaction | None]:
        """Yield transactions, and None whenever none follows at once."""
        warned_at = -WARN_SECONDS
        while not self._stop.is_set():
            self._rolled_back = False
            try:
                for transaction in self._pass():
                    yield transaction
                    if self._rolled_back or self._stop.is_set():
                        break
                if self._settings.until_caught_up and not self._stop.is_set() and not self._rolled_back:
                    yield None
                    if not self._rolled_back:
                        return
                if self._rolled_back:
                    continue
            except DblakeError as error:
                if not error.retryable or self._settings.until_caught_up:
                    raise
                if time.monotonic() - warned_at >= WARN_SECONDS:
                    logger.warning("%s; waiting", error.what)
                    warned_at = time.monotonic()
            yield None
            if not self._rolled_back:
                wait_for_next(self._stop, self._settings.poll_seconds, self.has_next)

    def checkpoint(self, transaction: Transaction | None = None) -> str:
        """Save the point after a transaction, or after everything delivered; return it as text.

        Everything before it counts as handled and is not delivered again.
        """
        text = self._text(self._delivered) if transaction is None else transaction.checkpoint
        self._next_idle = time.monotonic() + _IDLE_SECONDS
        if self._store is not None:
            self._store.save(text)
        # Only now: after a failure, a rollback goes back to what is stored.
        self._saved = text
        return text

    def save_idle(self) -> None:
        """Save the point after everything delivered if nothing was saved for a while.

        It passes batches without selected events, so that the checkpoint does not outlive their retention.
        """
        if time.monotonic() >= self._next_idle:
            self.checkpoint()

    def is_held(self) -> bool:
        """Return False while another process may have taken the checkpoint store."""
        return self._store is None or self._store.is_held()

    def expired(self) -> dict[str, Position]:
        """Return by source the position up to which no event can be delivered again; without sources that keep all.

        Maintenance has removed events up to it, so neither a point nor a bootstrap begins before it.
        """
        positions = {stream.source: stream.events.expired() for stream in self._streams}
        return {source: position for source, position in positions.items() if position is not None}

    def rollback(self, checkpoint: str | None = None) -> None:
        """Go back to the last checkpoint, or to a given one: the iteration continues with what follows it."""
        self._open_at(self._saved if checkpoint is None else checkpoint)
        self._rolled_back = True

    def record_dead_letter(self, consumer: str, event: Event, reason: str) -> None:
        """Record an event that a consumer can never take, with a reason that holds no row values."""
        letter = DeadLetter(event.table, event.position, reason)
        append_dead_letters(self._paths[event.source], consumer, [letter])

    def wait(self, seconds: float) -> None:
        """Wait, but not after the subscription was stopped."""
        self._stop.wait(seconds)

    @property
    def sources(self) -> list[str]:
        """The names of the subscribed sources."""
        return list(self._paths)

    def _open_at(self, text: str | None) -> None:
        selection = self._settings.selection
        where = "the caller's hands" if self._store is None else self._store.where
        cursors = {} if text is None else parse_checkpoint(text, selection.identity, where)
        self._saved = text
        self._delivered = {name: cursor for name, cursor in cursors.items() if name in self._paths}
        self._streams = [
            SourceStream(
                paths, selection, self._settings.start, self._delivered.get(name), self._settings.schemas,
                is_live=self._settings.reads_tail(paths), catch_up=self._settings.catch_up,
            )
            for name, paths in self._paths.items()
        ]

    def _pass(self) -> Iterator[Transaction]:
        """Yield what all sources have now, the earliest commit of the next transactions first."""
        heads: dict[str, tuple[Iterator[Step], Step]] = {}
        for stream in self._streams:
            stream.rewind(self._delivered.get(stream.source))
            steps = stream.poll()
            step = next(steps, None)
            if step is not None:
                heads[stream.source] = steps, step
        while heads:
            name = min(heads, key=lambda source: heads[source][1][0].committed_at or _EARLIEST) \
                if len(heads) > 1 else next(iter(heads))
            steps, (transaction, cursor) = heads[name]
            self._delivered = {**self._delivered, name: cursor}
            transaction.make_checkpoint = self._writer(self._delivered)
            yield transaction
            following = next(steps, None)
            if following is None:
                del heads[name]
            else:
                heads[name] = steps, following
        # Batches without selected events are behind now, too.
        reached = {stream.source: stream.cursor for stream in self._streams if stream.cursor is not None}
        self._delivered = {**self._delivered, **reached}

    def _writer(self, cursors: Mapping[str, Cursor]) -> Callable[[], str]:
        return lambda: self._text(cursors)

    def _text(self, cursors: Mapping[str, Cursor]) -> str:
        return write_checkpoint(cursors, self._settings.selection.identity)


def wait_for_next(stop: threading.Event, seconds: float, has_next: Callable[[], bool]) -> None:
    """Wait for some seconds, but only until there is something new, or until ``stop`` is set."""
    deadline = time.monotonic() + seconds
    while not stop.wait(min(_CHECK_SECONDS, seconds)) and time.monotonic() < deadline and not has_next():
        pass


def divide(transactions: Iterable[Transaction | None], max_events: int) -> Iterator[list[Transaction]]:
    """Yield transactions in lists of about ``max_events`` events; a None ends a list, which may be empty."""
    batch: list[Transaction] = []
    size = 0
    for transaction in transactions:
        if transaction is not None:
            batch.append(transaction)
            size += max(len(transaction.events), 1)
        if transaction is None or size >= max_events:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
