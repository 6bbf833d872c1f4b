"""Where a subscription keeps its checkpoint: a file, or a node in ZooKeeper.

Place: beside ``subscription``. Guarantee: a checkpoint is replaced durably as a whole, and only by the process that
opened the store: a second process with the same checkpoint is rejected.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from dblake.base.core.errors import ConfigError
from dblake.base.core.zookeeper_url import ZookeeperUrl
from dblake.serve.consume.file_checkpoint import FileCheckpoint

FILE, ZOOKEEPER = "file:", "zookeeper://"


class CheckpointStore(Protocol):
    """A store of one checkpoint. ``where`` names it for messages."""

    where: str

    def open(self) -> str | None:
        """Take the store; return its checkpoint, None if there is none. Raises Fenced if another process holds it."""

    def save(self, checkpoint: str) -> None:
        """Replace the checkpoint; durable on return. Raises Fenced if another process has taken the store."""

    def is_held(self) -> bool:
        """Return False while another process may have taken the store. Raises Fenced once it is lost for good."""

    def close(self) -> None:
        """Release what the store holds open."""


def open_store(url: str, standby: threading.Event | None = None) -> CheckpointStore:
    """Return the store at ``file:PATH`` or ``zookeeper://host:port/path``. Raises ConfigError for another URL.

    With ``standby``, opening one in ZooKeeper waits while another process holds it, until that event is set. Then the
    store is not held, and must not be used. A file's lock does not reach another machine, so nothing waits for it.
    """
    if url.startswith(FILE) and len(url) > len(FILE):
        return FileCheckpoint(Path(url.removeprefix(FILE)))
    if url.startswith(ZOOKEEPER):
        # Imported here, because subscriptions with a local checkpoint do not need ZooKeeper's client.
        from dblake.serve.consume.zookeeper.checkpoint import ZookeeperCheckpoint
        from dblake.serve.consume.zookeeper.membership import ZookeeperMembership

        try:
            server = ZookeeperUrl.parse(url)
            lease = ZookeeperMembership(replace(server, root=f"{server.root}/lease"))
            return ZookeeperCheckpoint(server, lease, standby)
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
