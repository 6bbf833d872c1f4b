"""A subscription's checkpoint in ZooKeeper.

Place: behind ``checkpoints.open_store``, the twin of ``file_checkpoint``. Guarantee: a checkpoint is replaced only by
the process that opened it last: opening fences earlier ones, because the node's version is part of each write. Who may
open it is decided by a lease: the checkpoint's own, or a group's lease on the partition.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from typing import Any

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from dblake.base.core.errors import Fenced, ProgressUnavailable
from dblake.base.core.zookeeper_url import ZookeeperUrl
from dblake.base.zookeeper.session import Session
from dblake.serve.consume.zookeeper.membership import ZookeeperMembership

_LEASE, _PAUSE_SECONDS, _STANDBY_PAUSE_SECONDS = 0, 0.2, 1.0

logger = logging.getLogger(__name__)


class ZookeeperCheckpoint:
    """A checkpoint in the node ``<root>/checkpoint``; see CheckpointStore. ``lease`` is None for one of a group.

    With ``standby``, ``open`` waits while another process holds the lease, until that event is set.
    """

    def __init__(
        self, server: ZookeeperUrl, lease: ZookeeperMembership | None = None, standby: threading.Event | None = None
    ) -> None:
        self._session, self._lease, self._standby = Session(server), lease, standby
        self._node = f"{server.root}/checkpoint"
        self._version = -1
        self.where = f"node {self._node}"

    def open(self) -> str | None:
        """Take the lease and read the checkpoint; see CheckpointStore."""
        try:
            if self._lease is not None and not self._take(self._lease):
                return None
            return self._read()
        except BaseException:
            self.close()
            raise

    def is_held(self) -> bool:
        """Return whether the lease is certain; see CheckpointStore."""
        if self._lease is None:
            return True
        if self._lease.lost():
            raise Fenced(
                f"the ZooKeeper session that held the checkpoint {self.where} has ended",
                next_step="start this again; raise `session_timeout` if this recurs",
            )
        return self._lease.held()

    def _take(self, lease: ZookeeperMembership) -> bool:
        """Wait until the session of a process that has died ends; as a standby, until its owner ends.

        Return False if the standby is over. Raises Fenced if the owner lives and this process may not stand by.
        """
        standby, is_waiting = self._standby, False
        lease.join()
        while standby is None or not standby.is_set():
            try:
                if lease.lost():
                    lease.join()
                # Asked first: an owner that was known to be gone then cannot be in the way.
                is_settled = lease.is_settled()
                if lease.acquire(_LEASE):
                    return True
            except ProgressUnavailable as error:
                if not is_waiting:
                    raise
                logger.warning("%s; still on standby", error.what)
                is_settled = False
            if is_settled and standby is None:
                raise self._fenced()
            if is_settled and not is_waiting:
                is_waiting = True
                logger.info("on standby: another process holds the checkpoint %s", self.where)
            if standby is None:
                time.sleep(_PAUSE_SECONDS)
            else:
                standby.wait(_STANDBY_PAUSE_SECONDS if is_waiting else _PAUSE_SECONDS)
        return False

    def _read(self) -> str | None:
        while True:
            try:
                text, facts = self._session.request(lambda client: client.get_async(self._node))
                self._version = facts.version
                self._version = self._set(text).version
                return str(text.decode()) or None
            except BadVersionError:
                continue
            except NoNodeError:
                pass
            with suppress(NodeExistsError):
                self._session.request(lambda client: client.create_async(self._node, b"", makepath=True))

    def save(self, checkpoint: str) -> None:
        """Replace the checkpoint; see CheckpointStore."""
        text = checkpoint.encode()
        try:
            self._version = self._set(text).version
        except (BadVersionError, NoNodeError):
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
            raise self._fenced()
        self._version = facts.version

    def _fenced(self) -> Fenced:
        return Fenced(
            f"another process uses the checkpoint {self.where}", next_step="stop it, or leave the work to it"
        )

    def close(self) -> None:
        """Close the sessions; see CheckpointStore."""
        self._session.close()
        if self._lease is not None:
            self._lease.leave()
