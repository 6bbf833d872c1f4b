"""How a job that is stopped ends: at any moment, within seconds, with its exit code, no traceback and no process left.

Place: below ``frame``. Three phases: until ``frame.run_job`` begins, a signal ends the process (``handle_signals``,
which each job calls before its other imports); then a signal raises ``Stopped`` or KeyboardInterrupt in the main
thread, which may unwind for ``_UNWIND_SECONDS`` (``Interruption``); from ``leave`` on, which ends Spark's JVM, signals
change nothing any more. Nothing is lost by an end without unwinding: every job resumes as after SIGKILL.

Imports nothing but the standard library: what precedes the first phase cannot be ended without a traceback.
"""

from __future__ import annotations

import _thread
import atexit
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130
"""The exit code after SIGINT; after SIGTERM it is 0."""
_UNWIND_SECONDS = 5.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(BaseException):
    """Raised by SIGTERM. A BaseException, so that no ``except Exception`` mistakes it for a failure."""


def handle_signals() -> None:
    """End the process on SIGINT and SIGTERM, while it starts; an ignored signal stays ignored.

    Then let signals through that ``spark-submit.sh`` has blocked since before Python started.
    """
    job = Path(sys.argv[0]).stem.removeprefix("dblake ")

    def end(number: int, _: FrameType | None) -> NoReturn:
        if number == signal.SIGINT:
            os.write(2, _line_of_interruption(job))
        os._exit(exit_code(number))

    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    # The first function registered is the last called.
    atexit.register(_keep_exit_code)


def _keep_exit_code() -> None:
    """Let signals be ignored: Python restores their default actions next, which would end the process by signal."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _line_of_interruption(job: str) -> bytes:
    if os.environ.get("DBLAKE_LOG") == "json":
        at = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
        return (f'{{"level": "ERROR", "logger": "dblake", "message": "interrupted", "job": "{job}", "next": "", '
                f'"code": {INTERRUPTED}, "at": "{at}"}}\n').encode()
    return f"dblake {job}: interrupted\n".encode()


def exit_code(number: int) -> int:
    """Return the exit code of a job that a signal ended."""
    return INTERRUPTED if number == signal.SIGINT else 0


class Interruption:
    """Signals of a running job: each raises in the main thread; ``number`` is the first one received, or None."""

    def __init__(self) -> None:
        self.number: int | None = None

    def handle_signals(self) -> None:
        """Raise Stopped for SIGTERM and KeyboardInterrupt for SIGINT from now on."""
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self.interrupt)

    def interrupt(self, number: int, _: FrameType | None) -> NoReturn:
        """End the process soon, and raise, so that what is in progress can close its connections before."""
        if self.number is None:
            self.number = number
            # Not threading.Thread, whose start() takes locks that the interrupted main thread may hold.
            _thread.start_new_thread(self._end_late, ())
        raise KeyboardInterrupt if number == signal.SIGINT else Stopped

    def _end_late(self) -> NoReturn:
        time.sleep(_UNWIND_SECONDS)
        assert self.number is not None
        end_now(exit_code(self.number))


def ignore_signals() -> None:
    """Let signals change nothing: the job is ending."""
    for number in _SIGNALS:
        # Not SIG_IGN, which would also stop the limit of time after SIGTERM.
        signal.signal(number, lambda _number, _frame: None)


def end_now(code: int) -> NoReturn:
    """End the process without unwinding, after Spark's JVM; show the terminal's cursor, which a progress bar hides."""
    session = sys.modules.get("dblake.transform.spark.session")
    if session is not None:
        session.end_jvm()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream.isatty():
                stream.write("\x1b[?25h")
            stream.flush()
        except (OSError, ValueError, RuntimeError):
            pass
    os._exit(code)
