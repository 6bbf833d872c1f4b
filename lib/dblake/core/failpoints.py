"""Named places where a process may be made to die or to freeze, so that tests can stop it where it hurts.

Inert unless ``DBLAKE_FAILPOINT`` names one: ``landing.committed`` dies the first time it is reached,
``landing.committed:3`` the third time. Dying is SIGKILL of the process itself: no handler, no flush, no goodbye.
``landing.committed:3:freeze`` is SIGSTOP instead: every thread stands still until somebody sends SIGCONT.
"""

from __future__ import annotations

import os
import signal

_NAME, _TIMES, _HOW, *_ = [*os.environ.get("DBLAKE_FAILPOINT", "").split(":"), "", ""]
_SIGNAL = signal.SIGSTOP if _HOW == "freeze" else signal.SIGKILL
_left = int(_TIMES or 1)


def failpoint(name: str) -> None:
    """Dies, or freezes, here if this is the failpoint asked for and it has been reached often enough."""
    global _left
    if name != _NAME:
        return
    _left -= 1
    if _left == 0:
        os.kill(os.getpid(), _SIGNAL)
