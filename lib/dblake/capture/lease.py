"""The lease: the right to be the one capture of a source.

Without a coordinator it is a lock on a file next to the progress documents: the kernel releases it when the process
ends, however it ends. With progress in ZooKeeper it is won in an election (``zookeeper.lease``), and other captures
may stand by. Either prevents a second process from starting. What prevents a second process from *writing* is Delta's
transaction identifier in landing.
"""

from __future__ import annotations

import fcntl
import os
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from dblake.core.errors import ConfigError, Fenced
from dblake.core.zookeeper_url import ZookeeperUrl

ZOOKEEPER = "zookeeper://"


class Lease(Protocol):
    """Held while capture runs. ``coordinated``: no process on any machine can hold it at the same time."""

    @property
    def coordinated(self) -> bool: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def held(self) -> bool:
        """Return False as soon as another process may hold the lease; nothing may be written until it is True again."""

    def lost(self) -> str | None:
        """Return why the lease is lost for good, or None; a process that lost it has to end."""


class LocalLease:
    """A lease among the processes of one machine."""

    coordinated = False

    def __init__(self, directory: Path, source: str) -> None:
        self._path = directory / f"{source}.lease"
        self._source = source
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
                f"source {self._source}: another capture holds the lease (process {holder or 'unknown'})",
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


def open_lease(url: str, source: str, *, standby: bool, stop: threading.Event) -> Lease:
    """Return the lease of one source at a ``progress`` URL; entering it takes it.

    In ZooKeeper, a capture that finds another leader waits until it leads or ``stop`` is set if it may stand by;
    otherwise entering raises Fenced after a session's time-out. A lease on one machine raises Fenced at once.
    """
    if not url.startswith(ZOOKEEPER):
        return LocalLease(Path(url.removeprefix("file:")), source)
    # Imported here, because captures with local progress do not need ZooKeeper's client.
    from dblake.capture.zookeeper.lease import ZookeeperLease

    return ZookeeperLease(ZookeeperUrl.parse(url), source, standby=standby, stop=stop)
