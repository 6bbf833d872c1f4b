"""Child processes: start one that ends with its parent, and stop one within a known time.

Guarantee: no caller waits for a child without a limit. A process started in the background of a script ignores SIGINT
and its children inherit that, so SIGINT stops only a program that installs a handler of its own, as PostgreSQL does.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from types import FrameType
from typing import Any

STOP_SECONDS = 10.0
"""How long a process may take to end after each signal."""


def stop_process(
    process: subprocess.Popen[Any], grace_seconds: float = STOP_SECONDS, *,
    signals: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGKILL), group: bool = False,
) -> bool:
    """Send the signals in turn, up to ``grace_seconds`` apart, until the process ends; return False if it does not.

    With ``group`` each signal goes to the whole process group that the process leads. The last one is sent even if the
    leader has ended before: other members may still run.
    """
    for number in signals:
        if group:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace_seconds)
            if not group:
                return True
    return process.poll() is not None


def process_exists(process: int) -> bool:
    """Return True if this machine has a process with this id, of any user."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def is_alive(host: str, process: int, seen_at: str, silent_seconds: float) -> bool:
    """Return True unless a process is gone from this machine, or has reported nothing for ``silent_seconds``.

    ``seen_at`` is when it last reported, in ISO 8601 with a zone. Only silence shows that one of another host has died.
    """
    if host == socket.gethostname() and not process_exists(process):
        return False
    return (datetime.now(UTC) - datetime.fromisoformat(seen_at)).total_seconds() < silent_seconds


def end_with_parent(number: signal.Signals = signal.SIGTERM) -> list[str]:
    """Return the command prefix that makes the kernel send this signal when the parent dies, even of SIGKILL.

    The prefix is empty where there is no setpriv (it is part of util-linux, on Linux). The thread that starts the
    process counts as the parent: start it from the main thread.
    """
    if shutil.which("setpriv") is None:
        return []
    return ["setpriv", f"--pdeathsig={number.name.removeprefix('SIG')}"]


@contextmanager
def defer_signals() -> Iterator[None]:
    """Handle SIGTERM and SIGINT after the block, for a start of a child that must not be interrupted half-way.

    Does nothing outside the main thread, which handles no signals, and for a signal that is ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: list[int] = []

    def record_signal(number: int, _: FrameType | None) -> None:
        pending.append(number)

    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    deferred = {number: handler for number, handler in handlers.items() if handler not in (signal.SIG_IGN, None)}
    for number in deferred:
        signal.signal(number, record_signal)
    try:
        yield
    finally:
        for number, handler in deferred.items():
            signal.signal(number, handler)
        for received in dict.fromkeys(pending):
            signal.raise_signal(received)
