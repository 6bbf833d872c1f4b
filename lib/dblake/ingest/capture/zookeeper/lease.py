"""The lease among the processes of one job on several machines: an election in ZooKeeper.

Each process that wants to lead creates a node that lives as long as its session, numbered by ZooKeeper; the lowest
number leads, the others are on standby in their order. Captures poll; no watch has to arrive.

Guarantee: ``held`` is True only while the session is certainly alive, by this process's own clock. The servers expire a
session after its time-out without a request. The lease therefore counts from the last answered request, as of when it
was *sent*, and ends a third of the time-out early: a follower reports the sessions of its clients to the leader only at
intervals, and two clocks drift. A process that was frozen sees the elapsed time when it resumes. What it had already
passed to landing is rejected there, by Delta.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from types import TracebackType
from typing import Self
from uuid import uuid4

from kazoo.exceptions import NoNodeError

from dblake.base.core.errors import Fenced, ProgressUnavailable
from dblake.base.core.zookeeper_url import ZookeeperUrl
from dblake.base.zookeeper.session import Session
from dblake.ingest.capture.local_lease import CAPTURE

_HELD_FRACTION = 2 / 3
"""Of the session's time-out: how long after an answered request the lease counts as held."""
_POLL_FRACTION = 1 / 6
"""Of the session's time-out: the interval between requests."""
_REFUSAL_FRACTION = 1.5
"""Of the session's time-out: how long a capture without standby waits for the session of one that died to expire."""
# Includes the time that the machine is suspended, where there is such a clock.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

logger = logging.getLogger(__name__)


class ZookeeperLease:
    """See Lease for the methods. Without ``standby`` entering raises Fenced if another process of the job leads."""

    coordinated = True

    def __init__(
        self, server: ZookeeperUrl, source: str, *, standby: bool, stop: threading.Event, job: str = CAPTURE
    ) -> None:
        self._folder = f"{server.root}/{source}/lease" if job == CAPTURE else f"{server.root}/{source}/{job}/lease"
        self._source, self._job, self._standby, self._stop = source, job, standby, stop
        self._session = Session(server)
        self._token = uuid4().hex
        self.node = f"{self._folder}/{self._token}-"
        """This process's node; ZooKeeper appends its number when it creates the node."""
        self._answered_at = self._held_until = float("-inf")
        self._lost: str | None = None
        self._closed = threading.Event()
        self._keeper = threading.Thread(target=self._keep_alive, name="lease", daemon=True)

    def __enter__(self) -> Self:
        """Return once this process leads, or ``stop`` is set.

        Raises Fenced if another one leads and this one may not stand by, ProgressUnavailable if ZooKeeper does not
        answer.
        """
        try:
            if self._wait():
                self._keeper.start()
        except BaseException:
            self._session.close()
            raise
        return self

    def _wait(self) -> bool:
        """Return True once this process leads, False if ``stop`` is set before that."""
        began, known_leader = _now(), ""
        while not self._stop.is_set():
            sent = _now()
            try:
                leader = self._find_leader()
            except ProgressUnavailable as error:
                if not known_leader:
                    raise
                logger.warning("%s; still on standby", error.what)
                leader = known_leader
            if leader is None:
                self._renew(sent)
                logger.info("%s of %s leads", self._job, self._source)
                return True
            # A process that died keeps its node until its session has expired.
            if not self._standby and _now() - began > _REFUSAL_FRACTION * self._session.timeout:
                raise Fenced(
                    f"source {self._source}: another {self._job} leads ({leader})",
                    next_step="leave the source to it; for standby, start without --until-caught-up and --seconds",
                )
            if leader != known_leader:
                logger.info("%s of %s is on standby: %s leads", self._job, self._source, leader)
                known_leader = leader
            self._stop.wait(_POLL_FRACTION * self._session.timeout)
        return False

    def _find_leader(self) -> str | None:
        """Return who leads, or None if it is this process; create its node if it does not exist."""
        names = self._candidates()
        if not any(name.startswith(self._token) for name in names):
            owner = json.dumps({"host": socket.gethostname(), "process": os.getpid()}).encode()
            self._session.request(lambda client: client.create_async(
                f"{self._folder}/{self._token}-", owner, ephemeral=True, sequence=True, makepath=True
            ))
            names = self._candidates()
        # There are two nodes of ours if the response to the first creation was lost; both end with the session.
        first, *_ = sorted(names, key=lambda name: name[-10:])
        if first.startswith(self._token):
            self.node = f"{self._folder}/{first}"
            return None
        return self._owner_of(first)

    def _candidates(self) -> list[str]:
        try:
            names: list[str] = self._session.request(lambda client: client.get_children_async(self._folder))
        except NoNodeError:
            return []
        return names

    def _owner_of(self, candidate: str) -> str:
        try:
            text, _ = self._session.request(lambda client: client.get_async(f"{self._folder}/{candidate}"))
            owner = json.loads(text)
            return f"process {owner['process']} on {owner['host']}"
        except (NoNodeError, ValueError, KeyError, TypeError):
            return "an unknown process"

    def _keep_alive(self) -> None:
        """Check at intervals that the node exists, which keeps the session alive; runs on its own thread."""
        while not self._closed.wait(_POLL_FRACTION * self._session.timeout):
            sent = _now()
            try:
                self._session.request(lambda client: client.sync_async(self.node), once=True)
                node = self._session.request(lambda client: client.exists_async(self.node), once=True)
            except ProgressUnavailable:
                continue
            except Exception:
                logger.exception("lease keep-alive thread died")
                return
            if node is None:
                self._lost = "its ZooKeeper session has ended"
                return
            self._renew(sent)

    def _renew(self, sent: float) -> None:
        """Count the lease as held from when an answered request was sent."""
        self._answered_at, self._held_until = sent, sent + _HELD_FRACTION * self._session.timeout

    def held(self) -> bool:
        """Return True while the session is certainly alive."""
        return self._lost is None and _now() < self._held_until

    def lost(self) -> str | None:
        """Return why the lease is lost: its node is gone, or ZooKeeper has not answered for three time-outs."""
        is_silent = self._held_until > 0 and _now() - self._answered_at > self._session.patience_seconds
        if self._lost is None and is_silent:
            return f"ZooKeeper has not answered for {self._session.patience_seconds:.0f} s"
        return self._lost

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        if self._keeper.is_alive():
            self._keeper.join(timeout=self._session.timeout)
        self._held_until = float("-inf")
        self._session.close()


def _now() -> float:
    return time.clock_gettime(_CLOCK)
