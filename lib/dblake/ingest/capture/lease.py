"""The lease: the right to be the one capture of a source, or the one continuous ``run``.

Without a coordinator it is a file lock among the processes of one machine (``local_lease``). With progress in ZooKeeper
it is won in an election (``zookeeper.lease``), and other processes of the job may stand by. Either keeps a second one
from starting. What keeps a second one from *writing* is Delta's transaction identifier in the table.
"""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from dblake.base.core.errors import Fenced
from dblake.base.core.zookeeper_url import ZookeeperUrl
from dblake.ingest.capture.local_lease import CAPTURE, LocalLease

ZOOKEEPER = "zookeeper://"


class Lease(Protocol):
    """Held while the job runs. ``coordinated``: no process on any machine can hold it at the same time."""

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


def open_lease(url: str, source: str, *, standby: bool, stop: threading.Event, job: str = CAPTURE) -> Lease:
    """Return the lease of one job of a source at a ``progress`` URL; entering it takes it.

    In ZooKeeper, a process that finds another leader waits until it leads or ``stop`` is set if it may stand by;
    otherwise entering raises Fenced after a session's time-out. A lease on one machine raises Fenced at once.
    """
    if not url.startswith(ZOOKEEPER):
        return LocalLease(Path(url.removeprefix("file:")), source, job)
    # Imported here, because captures with local progress do not need ZooKeeper's client.
    from dblake.ingest.capture.zookeeper.lease import ZookeeperLease

    return ZookeeperLease(ZookeeperUrl.parse(url), source, standby=standby, stop=stop, job=job)


def require_lease(lease: Lease, source: str, job: str = CAPTURE) -> None:
    """Raise Fenced if the lease is lost for good."""
    if reason := lease.lost():
        raise Fenced(
            f"{job} of {source} lost its lease: {reason}",
            next_step=f"another {job} takes over; start this one again if it is to stand by",
        )
