"""A subscription's checkpoint in ZooKeeper.

Place: behind ``checkpoints.open_store``, the twin of ``file_checkpoint``. Guarantee: a checkpoint is replaced only by
the process that read or wrote it last: the node's version is part of the write. So of two processes with the same
checkpoint one is fenced at its first save.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from dblake.core.errors import Fenced
from dblake.core.zookeeper_url import ZookeeperUrl
from dblake.zookeeper.session import Session


class ZookeeperCheckpoint:
    """A checkpoint in the node ``<root>/checkpoint``; see CheckpointStore.

    With ``takes_over`` opening it fences the process that opened it before.
    """

    def __init__(self, server: ZookeeperUrl, *, takes_over: bool = False) -> None:
        self._session = Session(server)
        self._takes_over = takes_over
        self._node = f"{server.root}/checkpoint"
        self._version = -1
        self.where = f"node {self._node}"

    def open(self) -> str | None:
        """Read the checkpoint; see CheckpointStore."""
        while True:
            try:
                text, facts = self._session.request(lambda client: client.get_async(self._node))
                self._version = facts.version
                if self._takes_over:
                    self._version = self._set(text).version
                return str(text.decode()) or None
            except BadVersionError:
                continue
            except NoNodeError:
                self._version = -1
            if not self._takes_over:
                return None
            with suppress(NodeExistsError):
                self._session.request(lambda client: client.create_async(self._node, b"", makepath=True))

    def save(self, checkpoint: str) -> None:
        """Replace the checkpoint; see CheckpointStore."""
        text = checkpoint.encode()
        try:
            if self._version < 0:
                self._session.request(lambda client: client.create_async(self._node, text, makepath=True))
                self._version = 0
            else:
                self._version = self._set(text).version
        except (NodeExistsError, BadVersionError, NoNodeError):
            self._require_own(text)

    def _set(self, text: bytes) -> Any:
        return self._session.request(lambda client: client.set_async(self._node, text, self._version))

    def _require_own(self, text: bytes) -> None:
        """Raise Fenced unless the node holds what was to be written: the response to the write was lost."""
        try:
            found, facts = self._session.request(lambda client: client.get_async(self._node))
        except NoNodeError:
            found = None
        if found != text:
            raise Fenced(
                f"another process uses the checkpoint {self.where}", next_step="stop it, or leave the work to it"
            )
        self._version = facts.version

    def close(self) -> None:
        """Close the session; see CheckpointStore."""
        self._session.close()
