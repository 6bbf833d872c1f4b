"""How long capture asks a database again that does not answer: the log loop and the chunk readers alike."""

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

from dblake.core.errors import DblakeError, SourceError

logger = logging.getLogger(__name__)


def retrying(
    seconds: float, stop: threading.Event, told: Callable[[RetryCallState], None] | None = None
) -> Retrying:
    """Tries what is worth another try for so long, or until ``stop``; ``told`` hears of each failure before a rest."""
    return Retrying(
        retry=retry_if_exception(lambda e: isinstance(e, SourceError) and e.retryable),
        wait=wait_exponential(multiplier=0.2, max=15),
        stop=stop_after_delay(seconds) | stop_when_event_set(stop),
        sleep=sleep_using_event(stop),
        before_sleep=told,
        reraise=True,
    )


def told(state: RetryCallState) -> None:
    """Says in the log that something failed and is tried again; for ``retrying``."""
    error = state.outcome.exception() if state.outcome else None
    logger.warning("%s; trying again", error.what if isinstance(error, DblakeError) else error)
