"""Membership of groups in ZooKeeper.

Place: behind ``membership``. Guarantee: a partition's owner is a node that lives as long as its session. A member
counts as one for only two thirds of the session's time-out, from the time when it sent its last answered request. The
clock for this also runs while the process is suspended.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError, NoNodeError

from dblake.base.core.errors import ProgressUnavailable
from dblake.base.core.zookeeper_url import ZookeeperUrl
from dblake.base.zookeeper.session import Session

_HELD_FRACTION = 2 / 3
_POLL_FRACTION = 1 / 6
"""Of the session's time-out: how long an answer counts, and the interval between requests."""
_SETTLED_TIMEOUTS = 2
"""Servers expire a session up to one tick, half of the time-out, late."""
_ANY_VERSION = -1
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

logger = logging.getLogger(__name__)


class ZookeeperMembership:
    """Membership in the group ``<root>``; see ``consume.membership.Membership``.

    ``members/NAME`` and ``owners/PARTITION`` are ephemeral nodes.
    """

    def __init__(self, server: ZookeeperUrl) -> None:
        self._session = Session(server)
        self._root = server.root
        self.name = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
        self._known: Sequence[str] = ()
        self._lost = True
        self._joined = self._held_until = float("-inf")
        self._closed = threading.Event()
        self._keeper = self._new_keeper()

    def join(self) -> None:
        """Create the member's node; see Membership."""
        sent = _now()
        # The node exists already if the response to our own request was lost.
        with suppress(NodeExistsError):
            self._session.request(
                lambda client: client.create_async(self._member, b"", ephemeral=True, makepath=True)
            )
        self._refresh(sent)
        self._joined, self._lost = sent, False
        if not self._keeper.is_alive():
            self._closed.clear()
            self._keeper = self._new_keeper()
            self._keeper.start()

    def members(self) -> Sequence[str]:
        """Return the members as of the last answer."""
        return self._known

    def held(self) -> bool:
        """Return True while the session is certainly alive."""
        return not self._lost and _now() < self._held_until

    def lost(self) -> bool:
        """Return True if the member's node is gone."""
        return self._lost

    def is_settled(self) -> bool:
        """Return True if this member is alone, or was one long enough for the servers to expire others."""
        return list(self._known) == [self.name] or _now() - self._joined > _SETTLED_TIMEOUTS * self._session.timeout

    def acquire(self, partition: int) -> bool:
        """Create the owner's node; see Membership."""
        node, name = self._owner(partition), self.name.encode()
        try:
            self._session.request(lambda client: client.create_async(node, name, ephemeral=True, makepath=True))
        except NodeExistsError:
            try:
                owner, _ = self._session.request(lambda client: client.get_async(node))
            except NoNodeError:
                return False
            return bool(owner == name)
        return True

    def release(self, partition: int) -> None:
        """Delete the owner's node; see Membership."""
        node = self._owner(partition)

        def delete(client: KazooClient) -> Any:
            # The member's node ends with the session: then the owner's node is another member's.
            transaction = client.transaction()
            transaction.check(self._member, _ANY_VERSION)
            transaction.delete(node)
            return transaction.commit_async()

        with suppress(NoNodeError):
            owner, _ = self._session.request(lambda client: client.get_async(node))
            if owner == self.name.encode():
                self._session.request(delete)

    def leave(self) -> None:
        """Close the session, and its nodes with it."""
        self._closed.set()
        self._lost = True
        if self._keeper.is_alive():
            self._keeper.join(timeout=self._session.timeout)
        self._session.close()

    def _new_keeper(self) -> threading.Thread:
        return threading.Thread(target=self._keep_alive, name="group", daemon=True)

    @property
    def _member(self) -> str:
        return f"{self._root}/members/{self.name}"

    def _owner(self, partition: int) -> str:
        return f"{self._root}/owners/{partition}"

    def _refresh(self, sent: float) -> None:
        names: Sequence[str] = self._session.request(
            lambda client: client.get_children_async(f"{self._root}/members"), once=True
        )
        self._known = sorted(names)
        if self.name in names:
            self._held_until = sent + _HELD_FRACTION * self._session.timeout

    def _keep_alive(self) -> None:
        """Ask at intervals who the members are; runs on its own thread."""
        while not self._closed.wait(_POLL_FRACTION * self._session.timeout):
            if self._lost:
                continue
            sent = _now()
            try:
                self._session.request(lambda client: client.sync_async(self._member), once=True)
                self._refresh(sent)
            except ProgressUnavailable:
                continue
            except Exception:
                logger.exception("group membership ended")
                self._lost = True
                continue
            if self.name not in self._known:
                logger.warning("group member %s: its ZooKeeper session has ended", self.name)
                self._lost = True


def _now() -> float:
    return time.clock_gettime(_CLOCK)
