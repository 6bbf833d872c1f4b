"""Where a subscription keeps its checkpoint: a file, or a node in ZooKeeper.

Place: beside ``subscription``. Guarantee: a checkpoint is replaced durably as a whole, and only by the process that
opened the store: a second process with the same checkpoint is rejected.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from dblake.core.errors import ConfigError, Fenced, ProgressUnavailable
from dblake.core.zookeeper_url import ZookeeperUrl

FILE, ZOOKEEPER = "file:", "zookeeper://"


class CheckpointStore(Protocol):
    """A store of one checkpoint. ``where`` names it for messages."""

    where: str

    def open(self) -> str | None:
        """Take the store; return its checkpoint, None if there is none. Raises Fenced if another process holds it."""

    def save(self, checkpoint: str) -> None:
        """Replace the checkpoint; durable on return. Raises Fenced if another process has taken the store."""

    def close(self) -> None:
        """Release the store."""


def open_store(url: str) -> CheckpointStore:
    """Return the store at ``file:PATH`` or ``zookeeper://host:port/path``. Raises ConfigError for another URL."""
    if url.startswith(FILE) and len(url) > len(FILE):
        return FileCheckpoint(Path(url.removeprefix(FILE)))
    if url.startswith(ZOOKEEPER):
        # Imported here, because subscriptions with a local checkpoint do not need ZooKeeper's client.
        from dblake.consume.zookeeper import ZookeeperCheckpoint

        try:
            return ZookeeperCheckpoint(ZookeeperUrl.parse(url))
        except ValueError as error:
            raise ConfigError(f"checkpoint: {error}", next_step="correct the URL") from None
    raise ConfigError(
        "checkpoint: must be file:PATH or zookeeper://host:port/path", next_step="correct the checkpoint's URL"
    )


def checkpoint_url(progress: str, source: str, output: str) -> str:
    """Return where the checkpoint of an output is kept, given the ``progress`` URL."""
    place = f"{source}/outputs/{output}"
    if progress.startswith(ZOOKEEPER):
        server = ZookeeperUrl.parse(progress)
        return str(replace(server, root=f"{server.root}/{place}"))
    return f"{progress}/{place}.json"


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
            descriptor, part = tempfile.mkstemp(prefix=f".{self._path.name}.", dir=self._path.parent)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(checkpoint)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, self._path)
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
