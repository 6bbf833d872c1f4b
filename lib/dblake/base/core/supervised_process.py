"""One process that a supervisor keeps running: its start, its lines, its end, and the pause before the next start.

Place: below ``supervisor``, which decides when to start and stop it. Guarantee: ``kill`` leaves none of its
descendants; where the kernel can signal orphans (``processes.end_with_parent``), the process does not outlive this one
either. Every line that it writes goes to the supervisor's stream, with the part's name.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from dblake.base.core.labeled_lines import copy_lines
from dblake.base.core.processes import end_with_parent

_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 1.0, 60.0
_STABLE_SECONDS = 60.0
"""A part that ran for so long starts again after the shortest pause."""

logger = logging.getLogger(__name__)


@dataclass
class ProcessSpec:
    """A process to keep running: its name, and the command with its environment.

    If one that ``is_essential`` ends with an exit code that a restart cannot clear, all end; another one ends alone.
    One that ``is_bounded`` is not started again, however it ends: 0 is its success.
    """

    name: str
    command: Sequence[str]
    environment: dict[str, str] | None = None
    is_essential: bool = True
    is_bounded: bool = False
    final_code: int | None = field(default=None, init=False)
    """The exit code with which it ended for good; None while it runs, or is to start again."""
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _began: float = field(default=0.0, init=False)
    _start_at: float = field(default=0.0, init=False)
    _pause: float = field(default=_FIRST_PAUSE_SECONDS, init=False)

    def is_running(self) -> bool:
        """Return True if the process was started and its end has not been collected."""
        return self._process is not None

    def start_if_due(self, write_line: Callable[[str], None], prefix: str) -> None:
        """Start the process unless it runs, or the pause after its end is not over. Call it from the main thread."""
        if self._process is not None or self.final_code is not None or time.monotonic() < self._start_at:
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
            target=copy_lines, args=(self._process.stdout, write_line, self.name, prefix), daemon=True
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
