"""Child processes: start one that ends with its parent, and stop one within a known time.

Promise: no caller waits for a child without a limit. A process that starts in the background of a script ignores SIGINT
and its children inherit that, so SIGINT stops only a program that installs a handler of its own, as PostgreSQL does.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress

STOP_SECONDS = 10.0
"""How long a process may take to end after each signal."""


def stop_process(
    process: subprocess.Popen[bytes], grace_seconds: float = STOP_SECONDS, *,
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


def end_with_parent(number: signal.Signals = signal.SIGTERM) -> list[str]:
    """Return the command prefix that makes the kernel send this signal when the parent dies, even of SIGKILL.

    The prefix is empty where there is no setpriv (it is part of util-linux, on Linux). The thread that starts the
    process counts as the parent: start it from the main thread.
    """
    if shutil.which("setpriv") is None:
        return []
    return ["setpriv", f"--pdeathsig={number.name.removeprefix('SIG')}"]
