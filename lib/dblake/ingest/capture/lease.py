"""The lease: the right to be the one capture of a source.

Without a coordinator it is a file lock among the processes of one machine (``local_lease``). With progress in ZooKeeper
it is won in an election (``zookeeper.lease``), and other captures may stand by. Either prevents a second process from
starting. What prevents a second process from *writing* is Delta's transaction identifier in landing.
"""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from dblake.base.core.zookeeper_url import ZookeeperUrl
from dblake.ingest.capture.local_lease import LocalLease

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


def open_lease(url: str, source: str, *, standby: bool, stop: threading.Event) -> Lease:
    """Return the lease of one source at a ``progress`` URL; entering it takes it.

    In ZooKeeper, a capture that finds another leader waits until it leads or ``stop`` is set if it may stand by;
    otherwise entering raises Fenced after a session's time-out. A lease on one machine raises Fenced at once.
    """
    if not url.startswith(ZOOKEEPER):
        return LocalLease(Path(url.removeprefix("file:")), source)
    # Imported here, because captures with local progress do not need ZooKeeper's client.
    from dblake.ingest.capture.zookeeper.lease import ZookeeperLease

    return ZookeeperLease(ZookeeperUrl.parse(url), source, standby=standby, stop=stop)
