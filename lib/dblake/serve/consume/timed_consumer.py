"""A consumer whose callbacks have a time budget.

Place: between ``callbacks``, which calls, and an application's consumer. Guarantee: a call returns or raises within its
budget, so that a callback that hangs keeps no process from stopping. Python cannot end such a callback: its thread goes
on until it returns, and what it returns is ignored.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from dblake.base.core.errors import ConsumeError
from dblake.base.core.position import Position
from dblake.serve.consume.consumer import Consumer, Result
from dblake.serve.consume.model import Control, Event


class CallbackTimedOut(ConsumeError):
    """A callback took longer than its budget."""


class TimedConsumer(Consumer):
    """Calls another consumer in a thread. A callback over its budget raises CallbackTimedOut: it counts as RETRY."""

    def __init__(self, consumer: Consumer, seconds: float) -> None:
        self._consumer, self._seconds = consumer, seconds
        self._worker: _Worker | None = None

    def _call(self, callback: Callable[..., Result], *arguments: Any) -> Result:
        worker = self._worker = self._worker or _Worker()
        worker.requests.put(lambda: callback(*arguments))
        try:
            result = worker.results.get(timeout=self._seconds)
        except queue.Empty:
            worker.requests.put(None)
            self._worker = None
            raise CallbackTimedOut(
                f"callback {callback.__name__} took longer than {self._seconds:g} s",
                next_step="see why it hangs, or raise `callback_seconds`",
            ) from None
        if isinstance(result, Exception):
            raise result
        return result

    def on_start_sequence(self, position: Position) -> Result:
        """Call the consumer's; see Consumer."""
        return self._call(self._consumer.on_start_sequence, position)

    def on_start_source(self, source: str, table: str) -> Result:
        """Call the consumer's; see Consumer."""
        return self._call(self._consumer.on_start_source, source, table)

    def on_event(self, event: Event) -> Result:
        """Call the consumer's; see Consumer."""
        return self._call(self._consumer.on_event, event)

    def on_end_source(self, source: str, table: str) -> Result:
        """Call the consumer's; see Consumer."""
        return self._call(self._consumer.on_end_source, source, table)

    def on_end_sequence(self, position: Position) -> Result:
        """Call the consumer's; see Consumer."""
        return self._call(self._consumer.on_end_sequence, position)

    def on_control(self, control: Control) -> Result:
        """Call the consumer's; see Consumer."""
        return self._call(self._consumer.on_control, control)

    def on_checkpoint(self, position: Position) -> Result:
        """Call the consumer's; see Consumer."""
        return self._call(self._consumer.on_checkpoint, position)

    def on_rollback(self) -> Result:
        """Call the consumer's, whose own delay does not end the run; see Consumer."""
        try:
            return self._call(self._consumer.on_rollback)
        except CallbackTimedOut:
            return Result.SUCCESS

    def on_error(self, error: Exception) -> Result:
        """Call the consumer's, whose own delay does not replace the error; see Consumer."""
        with suppress(ConsumeError):
            self._call(self._consumer.on_error, error)
        return Result.SUCCESS


class _Worker:
    """A thread that makes one call after the other until it is given None. It does not keep the process alive."""

    def __init__(self) -> None:
        self.requests: queue.SimpleQueue[Callable[[], Result] | None] = queue.SimpleQueue()
        self.results: queue.SimpleQueue[Result | Exception] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="callbacks", daemon=True).start()

    def _run(self) -> None:
        while (call := self.requests.get()) is not None:
            try:
                self.results.put(call())
            except Exception as error:  # noqa: BLE001 - raised where the callback is awaited
                self.results.put(error)
