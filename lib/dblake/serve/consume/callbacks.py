"""The callback interface of a subscription: Databus, section 3.6.

Place: on ``subscription``, for consumers that are called. Guarantee: callbacks of a transaction come in the paper's
order. After ``RETRY`` or an exception they come again from the last checkpoint, with growing pauses. The number of
attempts without progress is limited.
"""

from __future__ import annotations

import logging
from itertools import groupby

from dblake.base.core.errors import ConsumeError, DblakeError
from dblake.serve.consume.consumer import Consumer, Result
from dblake.serve.consume.model import Transaction
from dblake.serve.consume.subscription import Subscription
from dblake.serve.consume.timed_consumer import TimedConsumer

_MAX_ATTEMPTS = 10
_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.1, 30.0

logger = logging.getLogger(__name__)


class _Retry(Exception):
    """A callback requires a rollback."""


class _Stop(Exception):
    """Raised when a callback ends the run."""


def run_consumer(
    subscription: Subscription, consumer: Consumer, *, name: str = "consumer", checkpoint_every: int = 1,
    max_attempts: int = _MAX_ATTEMPTS, callback_seconds: float | None = None,
) -> None:
    """Call a consumer until the subscription ends or a callback returns STOP.

    With ``callback_seconds`` a callback that takes longer counts as RETRY. It goes on in a thread of its own, beside
    the next attempt.

    A checkpoint is saved after every so many transactions and at the end. ``name`` is the consumer's in the table of
    dead letters. Raises ConsumeError, or the callback's own exception, after ``max_attempts`` without progress.
    """
    if callback_seconds is not None:
        consumer = TimedConsumer(consumer, callback_seconds)
    _ConsumerRun(subscription, consumer, name, checkpoint_every, max_attempts).run()


class _ConsumerRun:
    """One run of a consumer, from its checkpoint on."""

    def __init__(
        self, subscription: Subscription, consumer: Consumer, name: str, checkpoint_every: int, max_attempts: int
    ) -> None:
        self._subscription, self._consumer, self._name = subscription, consumer, name
        self._every, self._max_attempts = checkpoint_every, max_attempts
        self._attempts = 0
        self._unsaved: Transaction | None = None
        self._pending = 0

    def run(self) -> None:
        """Call the consumer until the end."""
        try:
            with self._subscription as subscription:
                for batch in subscription.batches(1):
                    if not self._handle(batch):
                        return
        except Exception as error:
            self._consumer.on_error(error)
            raise

    def _handle(self, batch: list[Transaction]) -> bool:
        """Call the consumer for some transactions; return False to end."""
        try:
            for transaction in batch:
                self._call(transaction)
                self._unsaved = transaction
                self._pending += 1
                if self._pending >= self._every:
                    self._save()
            if not batch:
                self._save()
        except _Stop:
            return False
        except Exception as error:  # noqa: BLE001 - whatever a callback raises means: again
            return self._roll_back(error)
        return True

    def _save(self) -> None:
        if self._unsaved is not None:
            _require(self._consumer.on_checkpoint(self._unsaved.position))
            self._subscription.checkpoint(self._unsaved)
            self._unsaved, self._pending, self._attempts = None, 0, 0

    def _roll_back(self, error: Exception) -> bool:
        """Go back to the last checkpoint, wait, and return False to end. Raises the error after the last attempt."""
        self._attempts += 1
        if self._attempts >= self._max_attempts:
            if isinstance(error, _Retry):
                raise ConsumeError(
                    f"consumer {self._name}: {self._attempts} attempts without progress",
                    next_step="see the consumer's own log",
                )
            raise error
        pause = min(_MIN_PAUSE_SECONDS * 2 ** (self._attempts - 1), _MAX_PAUSE_SECONDS)
        logger.warning("consumer %s: goes back to its last checkpoint (%s), in %.1f s", self._name,
                       _cause(error), pause)
        self._unsaved, self._pending = None, 0
        if self._consumer.on_rollback() is Result.STOP:
            return False
        self._subscription.rollback()
        self._subscription.wait(pause)
        return True

    def _call(self, transaction: Transaction) -> None:
        consumer = self._consumer
        if transaction.control is not None:
            _require(consumer.on_control(transaction.control))
            return
        _require(consumer.on_start_sequence(transaction.position))
        for table, events in groupby(transaction.events, key=lambda event: event.table):
            _require(consumer.on_start_source(transaction.source, table))
            for event in events:
                if _require(consumer.on_event(event)) is Result.SKIP:
                    self._subscription.record_dead_letter(self._name, event, "the consumer skipped it")
            _require(consumer.on_end_source(transaction.source, table))
        _require(consumer.on_end_sequence(transaction.position))


def _cause(error: Exception) -> str:
    """Return why a consumer goes back: what a callback raised is the consumer's own."""
    if isinstance(error, _Retry):
        return "a callback returned RETRY"
    return error.what if isinstance(error, DblakeError) else f"a callback raised {type(error).__name__}"


def _require(result: Result) -> Result:
    if result is Result.RETRY:
        raise _Retry
    if result is Result.STOP:
        raise _Stop
    return result
