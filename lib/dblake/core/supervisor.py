"""Run several processes as one: start them, restart those that end, stop all of them together.

Place: ``jobs.up`` gives the commands. Guarantee: no process outlives ``run``, however it ends; where the kernel can
signal orphans (``processes.end_with_parent``), none outlives this process either. A part that ends with an exit code
that a retry may clear, or by a signal, starts again after a pause that doubles; any other exit code ends all parts, and
is the result. Every line that a part writes goes to one stream, with the part's name.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO

from dblake.core.errors import ExitCode
from dblake.core.processes import end_with_parent

_POLL_SECONDS = 0.1
_STOP_SECONDS = 8.0
"""From SIGTERM until SIGKILL: with what it takes to start and collect, a stop takes less than 10 s."""
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 1.0, 60.0
_STABLE_SECONDS = 60.0
"""A part that ran for so long starts again after the shortest pause."""

logger = logging.getLogger(__name__)


@dataclass
class Part:
    """A process to keep running: its name, and the command with its environment."""

    name: str
    command: Sequence[str]
    environment: dict[str, str] | None = None
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _began: float = field(default=0.0, init=False)
    _start_at: float = field(default=0.0, init=False)
    _pause: float = field(default=_FIRST_PAUSE_SECONDS, init=False)

    def is_running(self) -> bool:
        """Return True if the process was started and its end has not been collected."""
        return self._process is not None

    def start_if_due(self, write_line: Callable[[str], None], prefix: str) -> None:
        """Start the process unless it runs, or the pause after its end is not over. Call it from the main thread."""
        if self._process is not None or time.monotonic() < self._start_at:
            return
        self._process = subprocess.Popen(
            # In a session of its own: Ctrl-C in a terminal reaches this process only, which stops the parts in order.
            [*end_with_parent(), *self.command], env=self.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )
        self._began = time.monotonic()
        logger.info("started %s, process %d", self.name, self._process.pid)
        assert self._process.stdout is not None
        threading.Thread(
            target=_copy_lines, args=(self._process.stdout, write_line, self.name, prefix), daemon=True
        ).start()

    def collect(self) -> int | None:
        """Return the exit code if the process has ended since the last call; None otherwise."""
        if self._process is None or self._process.poll() is None:
            return None
        code = self._process.returncode
        self.kill()
        return code

    def schedule_restart(self) -> float:
        """Set when the process starts again; return the pause in seconds."""
        if time.monotonic() - self._began >= _STABLE_SECONDS:
            self._pause = _FIRST_PAUSE_SECONDS
        pause, self._pause = self._pause, min(2 * self._pause, _MAX_PAUSE_SECONDS)
        self._start_at = time.monotonic() + pause
        return pause

    def terminate(self) -> None:
        """Request the process to stop."""
        if self._process is not None:
            # To itself alone: the JVM of a Spark job must not end before the job.
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill what is left of the process and its descendants, and collect it."""
        if self._process is None:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None


def supervise(parts: Sequence[Part], stop: threading.Event, write_line: Callable[[str], None]) -> int:
    """Keep all parts running until ``stop`` is set, then stop them; return 0, or the exit code that ended them all.

    ``write_line`` is called by several threads, with lines without a line end.
    """
    width = max(len(part.name) for part in parts)
    try:
        while not stop.is_set():
            for part in parts:
                part.start_if_due(write_line, f"{part.name:<{width}} | ")
                code = part.collect()
                if code is None:
                    continue
                if not is_restarted(code):
                    logger.error("%s ended with exit code %d, which a restart cannot clear: all parts stop", part.name,
                                 code)
                    _stop(parts)
                    return code
                logger.warning("%s ended %s; it starts again in %.0f s", part.name, _describe(code),
                               part.schedule_restart())
            stop.wait(_POLL_SECONDS)
        _stop(parts)
        return int(ExitCode.DONE)
    finally:
        for part in parts:
            part.kill()


def is_restarted(code: int) -> bool:
    """Return True for an exit code that a restart may clear: 75, a signal, and 0, because a part must not end."""
    return code in (ExitCode.DONE, ExitCode.TRY_AGAIN) or code < 0 or code > 128


def _stop(parts: Sequence[Part]) -> None:
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


def _copy_lines(stream: IO[bytes], write_line: Callable[[str], None], name: str, prefix: str) -> None:
    with stream:
        for raw in stream:
            write_line(label_line(raw.decode(errors="replace").rstrip(), name, prefix))


def label_line(line: str, name: str, prefix: str) -> str:
    """Return a part's line with its name: as the member ``part`` of a JSON object, otherwise as a prefix."""
    if line.startswith("{") and line.endswith("}"):
        with suppress(ValueError):
            return json.dumps({"part": name, **json.loads(line)}, ensure_ascii=False)
    return prefix + line
