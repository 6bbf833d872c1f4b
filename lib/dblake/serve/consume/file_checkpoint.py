"""A subscription's checkpoint in a file, with a lock beside it.

Place: behind ``checkpoints.open_store``, the twin of ``zookeeper.checkpoint``. Guarantee: the file is replaced durably
as a whole, by the one process that holds the lock.
"""

from __future__ import annotations

from pathlib import Path

from dblake.base.core.durable_file import replace_file
from dblake.base.core.errors import ConfigError, Fenced, ProgressUnavailable
from dblake.base.core.file_lock import FileLock


class FileCheckpoint:
    """A checkpoint in a file, with a lock beside it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = FileLock(path.with_name(f"{path.name}.lock"))
        self.where = f"file {path}"

    def open(self) -> str | None:
        """Take the store; see CheckpointStore."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if not self._lock.acquire():
                raise Fenced(
                    f"another process uses the checkpoint {self.where}", next_step="stop it, or leave the work to it"
                )
            return self._path.read_text(encoding="utf-8") if self._path.exists() else None
        except OSError as error:
            raise self._unusable(error) from error

    def save(self, checkpoint: str) -> None:
        """Replace the checkpoint; see CheckpointStore."""
        try:
            replace_file(self._path, checkpoint.encode())
        except OSError as error:
            raise self._unusable(error) from error

    def is_held(self) -> bool:
        """Return True: the kernel never takes a file lock away."""
        return True

    def close(self) -> None:
        """Release the store; see CheckpointStore."""
        self._lock.release()

    def _unusable(self, error: OSError) -> ConfigError | ProgressUnavailable:
        what = f"checkpoint: {self.where} cannot be used: {error.strerror}"
        if isinstance(error, (PermissionError, NotADirectoryError, IsADirectoryError)):
            return ConfigError(what, next_step="name a file in a folder that this user may write to")
        return ProgressUnavailable(what, next_step="check the disk that holds it; then run this again")
