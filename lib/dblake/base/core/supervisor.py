"""Run several processes as one: start them, restart those that end, stop all of them together.

Place: ``jobs.cli.parts`` gives the commands, ``supervised_process`` starts and ends each. Guarantee: ``supervise``
leaves no process, however it ends. A part that ends with an exit code that a retry may clear, or by a signal, starts
again after a pause that doubles. Any other exit code of an essential part ends all parts, and is the result. Another
part ends alone, and is named.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from dblake.base.core.errors import ExitCode
from dblake.base.core.supervised_process import ProcessSpec

_POLL_SECONDS = 0.1
_STOP_SECONDS = 8.0
"""From SIGTERM until SIGKILL: with what it takes to start and collect, a stop takes less than 10 s."""

logger = logging.getLogger(__name__)


def supervise(parts: Sequence[ProcessSpec], stop: threading.Event, write_line: Callable[[str], None]) -> int:
    """Keep all parts running until ``stop`` is set, then stop them; return 0, or the exit code that ended them all.

    Without ``stop`` it returns once every part has ended for good, with 0 only if all did. ``write_line`` is called by
    several threads, with lines without a line end.
    """
    width = max(len(part.name) for part in parts)
    try:
        while not stop.is_set():
            for part in parts:
                part.start_if_due(write_line, f"{part.name:<{width}} | ")
                code = part.collect()
                if code is not None and _ends_all(part, code):
                    _stop(parts)
                    return code
            codes = [part.final_code for part in parts if part.final_code is not None]
            if len(codes) == len(parts):
                return worst_code(codes)
            stop.wait(_POLL_SECONDS)
        _stop(parts)
        return int(ExitCode.DONE)
    finally:
        for part in parts:
            part.kill()


def _ends_all(part: ProcessSpec, code: int) -> bool:
    """Schedule what follows the end of a part; return True if it is the end of all parts."""
    if not part.is_bounded and is_restarted(code):
        logger.warning("%s ended %s; it starts again in %.0f s", part.name, _describe(code), part.schedule_restart())
        return False
    if part.is_essential:
        logger.error("%s ended with exit code %d, which a restart cannot clear: all parts stop", part.name, code)
        return True
    part.final_code = code
    if code != ExitCode.DONE:
        logger.error("%s ended %s and stays ended; the other parts continue", part.name, _describe(code))
    return False


def worst_code(codes: Sequence[int]) -> int:
    """Return the exit code of several processes together: 0 if all are, else one that a retry cannot clear, else 75."""
    failures = [code for code in codes if code != ExitCode.DONE]
    final = [code for code in failures if not is_restarted(code)]
    return final[0] if final else int(ExitCode.TRY_AGAIN) if failures else int(ExitCode.DONE)


def is_restarted(code: int) -> bool:
    """Return True for an exit code that a restart may clear: 75, a signal, and 0, because a part must not end."""
    return code in (ExitCode.DONE, ExitCode.TRY_AGAIN) or code < 0 or code > 128


def _stop(parts: Sequence[ProcessSpec]) -> None:
    for part in parts:
        part.terminate()
    deadline = time.monotonic() + _STOP_SECONDS
    while any(part.is_running() for part in parts) and time.monotonic() < deadline:
        for part in parts:
            part.collect()
        time.sleep(_POLL_SECONDS)
    for part in parts:
        if part.is_running():
            logger.warning("%s did not end within %.0f s and is killed; its next start resumes", part.name,
                           _STOP_SECONDS)
            part.kill()


def _describe(code: int) -> str:
    if code < 0:
        with suppress(ValueError):
            return f"by {signal.Signals(-code).name}"
    return f"with exit code {code}"
