"""A lock that one process of the machine holds on a file.

Place: below checkpoints and outputs that keep files. Guarantee: the kernel releases it when the process ends, however
it ends. The error for a lock that another process holds is the caller's, who knows what it protects.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class FileLock:
    """An exclusive lock on ``path``, which is created if missing and stays."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def acquire(self) -> bool:
        """Take the lock; return False if another process holds it. Raises OSError."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                return False
            raise
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Release the lock; do nothing without it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
