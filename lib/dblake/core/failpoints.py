"""Named places where a process may be made to die, so that tests can kill it where it hurts.

Inert unless ``DBLAKE_FAILPOINT`` names one: ``landing.committed`` dies the first time it is reached,
``landing.committed:3`` the third time. Dying is SIGKILL of the process itself: no handler, no flush, no goodbye.
"""

from __future__ import annotations

import os
import signal

_NAME, _, _TIMES = os.environ.get("DBLAKE_FAILPOINT", "").partition(":")
_left = int(_TIMES or 1)


def failpoint(name: str) -> None:
    """Dies here if this is the failpoint asked for and it has been reached often enough."""
    global _left
    if name != _NAME:
        return
    _left -= 1
    if _left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
