"""Retries of database calls, for the log loop and the chunk readers alike: exponential backoff up to a time limit."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    sleep_using_event,
    stop_after_delay,
    stop_when_event_set,
    wait_exponential,
)

from dblake.base.core.errors import DblakeError, SourceError, TableUnreadable

logger = logging.getLogger(__name__)


def retrying(
    seconds: float, stop: threading.Event, on_failure: Callable[[RetryCallState], None] | None = None
) -> Retrying:
    """Return a caller that retries retryable SourceErrors for ``seconds``, or until ``stop`` is set.

    ``on_failure`` is called before each pause. The last error is raised unchanged.
    """
    return Retrying(
        retry=retry_if_exception(_may_pass),
        wait=wait_exponential(multiplier=0.2, max=15),
        stop=stop_after_delay(seconds) | stop_when_event_set(stop),
        sleep=sleep_using_event(stop),
        before_sleep=on_failure,
        reraise=True,
    )


def _may_pass(error: BaseException) -> bool:
    # A table that cannot be read must not keep its reader from other tables.
    return isinstance(error, SourceError) and error.retryable and not isinstance(error, TableUnreadable)


def log_retry(state: RetryCallState) -> None:
    """Log a failure that will be retried; for ``retrying``."""
    error = state.outcome.exception() if state.outcome else None
    logger.warning("%s; retrying", error.what if isinstance(error, DblakeError) else error)
