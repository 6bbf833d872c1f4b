"""The right to be the one capture of a source.

Without a coordinator a lock on a file next to the progress documents holds it: the kernel frees it when the process
dies, however it dies. Where the documents are in ZooKeeper an election there holds it (``zookeeper.lease``), and other
captures may stand by. Either keeps a second process from starting; what keeps it from *writing*, whatever it believes,
is Delta's transaction identifier in landing.
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
    """Held while capture runs. ``coordinated`` if no process of any machine can hold it beside this one."""

    @property
    def coordinated(self) -> bool: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def held(self) -> bool:
        """False as soon as somebody else may hold it; nothing may be written then, for the time being."""

    def lost(self) -> str | None:
        """Why it will not be held again, once that is known; the process has to end."""


class LocalLease:
    """A lease among the processes of one machine."""

    coordinated = False

    def __init__(self, directory: Path, source: str) -> None:
        self._path = directory / f"{source}.lease"
        self._source = source
        self._file: int | None = None

    def __enter__(self) -> Self:
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
                next_step="stop that process, or let it do the work",
            ) from error
        # Only for others to be told who holds it: on a full disk the lock is as good.
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
        return self._file is not None

    def lost(self) -> str | None:
        return None


def open_lease(url: str, source: str, *, standby: bool, stop: threading.Event) -> Lease:
    """The lease of one source at a ``progress`` URL; entering it takes it.

    In ZooKeeper, a capture that finds another leading waits for its turn until ``stop`` is set if it may stand by, and
    is refused after a session's time-out if not. On one machine it is refused at once.
    """
    if not url.startswith(ZOOKEEPER):
        return LocalLease(Path(url.removeprefix("file:")), source)
    # Here, because files need none of it.
    from dblake.capture.zookeeper.lease import ZookeeperLease

    return ZookeeperLease(ZookeeperUrl.parse(url), source, standby=standby, stop=stop)
