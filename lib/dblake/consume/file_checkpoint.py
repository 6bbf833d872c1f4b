"""A subscription's checkpoint in a file, with a lock beside it.

Place: behind ``checkpoints.open_store``, the twin of ``zookeeper.checkpoint``. Guarantee: the file is replaced durably
as a whole, by the one process that holds the lock.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from dblake.core.durable_file import replace_file
from dblake.core.errors import ConfigError, Fenced, ProgressUnavailable


class FileCheckpoint:
    """A checkpoint in a file, with a lock beside it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock: int | None = None
        self.where = f"file {path}"

    def open(self) -> str | None:
        """Take the store; see CheckpointStore."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self._path.with_name(f"{self._path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o644)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return self._path.read_text(encoding="utf-8") if self._path.exists() else None
        except BlockingIOError:
            self.close()
            raise Fenced(
                f"another process uses the checkpoint {self.where}", next_step="stop it, or leave the work to it"
            ) from None
        except OSError as error:
            raise self._unusable(error) from error

    def save(self, checkpoint: str) -> None:
        """Replace the checkpoint; see CheckpointStore."""
        try:
            replace_file(self._path, checkpoint.encode())
        except OSError as error:
            raise self._unusable(error) from error

    def close(self) -> None:
        """Release the store; see CheckpointStore."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _unusable(self, error: OSError) -> ConfigError | ProgressUnavailable:
        what = f"checkpoint: {self.where} cannot be used: {error.strerror}"
        if isinstance(error, (PermissionError, NotADirectoryError, IsADirectoryError)):
            return ConfigError(what, next_step="name a file in a folder that this user may write to")
        return ProgressUnavailable(what, next_step="check the disk that holds it; then run this again")
