"""The lease without a coordinator: a lock on a file next to the progress documents.

Place: behind ``lease.open_lease``. Guarantee: one process of the machine holds it, and the kernel releases it when the
process ends, however it ends.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from dblake.base.core.errors import ConfigError, Fenced

CAPTURE = "capture"


class LocalLease:
    """A lease of one job among the processes of one machine."""

    coordinated = False

    def __init__(self, directory: Path, source: str, job: str = CAPTURE) -> None:
        self._path = directory / (f"{source}.lease" if job == CAPTURE else f"{source}.{job}.lease")
        self._source, self._job = source, job
        self._file: int | None = None

    def __enter__(self) -> Self:
        """Take the lock. Raises Fenced if another process holds it, ConfigError if the directory is not writable."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise ConfigError(
                f"progress: the directory cannot be written: {error.strerror}",
                next_step="set `progress` to a directory this user may write to",
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(self._file, 20).decode(errors="replace").strip()
            os.close(self._file)
            self._file = None
            raise Fenced(
                f"source {self._source}: another {self._job} holds the lease (process {holder or 'unknown'})",
                next_step="stop that process, or leave the source to it",
            ) from error
        # The process id is for messages only: on a full disk the lock holds without it.
        with suppress(OSError):
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def held(self) -> bool:
        """Return True inside the ``with`` block."""
        return self._file is not None

    def lost(self) -> str | None:
        """Return None: the kernel never takes a file lock away."""
        return None
