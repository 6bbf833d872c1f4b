"""Named points in the code where a test may kill or freeze the process.

Inert unless the environment variable ``DBLAKE_FAILPOINT`` names one. ``landing.committed`` kills the process the first
time it is reached, ``landing.committed:3`` the third time: SIGKILL, so that no handler runs and nothing is flushed.
``landing.committed:3:freeze`` sends SIGSTOP instead: all threads stop until SIGCONT.
"""

from __future__ import annotations

import os
import signal

_NAME, _COUNT, _MODE, *_ = [*os.environ.get("DBLAKE_FAILPOINT", "").split(":"), "", ""]
_SIGNAL = signal.SIGSTOP if _MODE == "freeze" else signal.SIGKILL
_remaining = int(_COUNT or 1)


def failpoint(name: str) -> None:
    """Kill or freeze the process if ``name`` is the active failpoint and has been reached often enough."""
    global _remaining
    if name != _NAME:
        return
    _remaining -= 1
    if _remaining == 0:
        os.kill(os.getpid(), _SIGNAL)
