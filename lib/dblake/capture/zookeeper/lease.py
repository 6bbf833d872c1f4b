"""The lease among captures on several machines: an election in ZooKeeper.

Each capture that wants to lead makes a node that lives as long as its session, numbered by ZooKeeper; the lowest
number leads, the others stand by in their order. Whether one leads, and goes on leading, is found by looking.

Promise: ``held`` is true only while the session is surely alive, by this process's own clock. The servers end a
session when they have heard nothing for its time-out; so the lease counts from the last request that was answered, as
of when it was *sent*, and ends a third of the time-out early. A server that follows tells the one that leads only now
and then whom it has heard from; the third is more than that and two clocks' drift take. A process that was frozen
finds the time gone by when it goes on. What it had already handed to landing when it froze is refused there, by Delta.
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

from dblake.capture.zookeeper.session import Session
from dblake.core.errors import Fenced, LandingUnavailable
from dblake.core.zookeeper_url import ZookeeperUrl

_SURE = 2 / 3
_BEAT = 1 / 6
# Goes on while the machine sleeps, where there is such a clock.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

logger = logging.getLogger(__name__)


class ZookeeperLease:
    """See Lease for the methods. Without ``standby`` it is refused when another capture leads, and goes on to."""

    coordinated = True

    def __init__(self, place: ZookeeperUrl, source: str, *, standby: bool, stop: threading.Event) -> None:
        self._folder = f"{place.root}/{source}/lease"
        self._source, self._standby, self._stop = source, standby, stop
        self._session = Session(place)
        self._token = uuid4().hex
        self.node = f"{self._folder}/{self._token}-"
        """This capture's node, whose number ZooKeeper adds when it is made."""
        self._answered = self._sure_until = float("-inf")
        self._lost: str | None = None
        self._closed = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="lease", daemon=True)

    def __enter__(self) -> Self:
        """Returns once this capture leads, or ``stop`` is set. Raises Fenced if it may not wait so long."""
        try:
            if self._wait():
                self._keeper.start()
        except BaseException:
            self._session.close()
            raise
        return self

    def _wait(self) -> bool:
        began, told = _now(), ""
        while not self._stop.is_set():
            sent = _now()
            try:
                leader = self._look()
            except LandingUnavailable as error:
                if not told:
                    raise
                logger.warning("%s; still standing by", error.what)
                leader = told
            if leader is None:
                self._answered, self._sure_until = sent, sent + _SURE * self._session.timeout
                logger.info("capture of %s leads", self._source)
                return True
            # A capture that died seems to lead until its session has ended, which may take a little longer still.
            if not self._standby and _now() - began > 1.5 * self._session.timeout:
                raise Fenced(
                    f"source {self._source}: another capture leads ({leader})",
                    next_step="let it do the work; without --until-caught-up and --seconds this one stands by",
                )
            if leader != told:
                logger.info("capture of %s stands by: %s leads", self._source, leader)
                told = leader
            self._stop.wait(_BEAT * self._session.timeout)
        return False

    def _look(self) -> str | None:
        """Who leads; None if it is this capture. Makes its node if there is none, or none any more."""
        names = self._candidates()
        if not any(name.startswith(self._token) for name in names):
            me = json.dumps({"host": socket.gethostname(), "process": os.getpid()}).encode()
            self._session.ask(lambda client: client.create_async(
                f"{self._folder}/{self._token}-", me, ephemeral=True, sequence=True, makepath=True
            ))
            names = self._candidates()
        # Two of ours, if the answer to the first creation was lost: they live and die together.
        first, *_ = sorted(names, key=lambda name: name[-10:])
        if first.startswith(self._token):
            self.node = f"{self._folder}/{first}"
            return None
        return self._name(first)

    def _candidates(self) -> list[str]:
        try:
            names: list[str] = self._session.ask(lambda client: client.get_children_async(self._folder))
        except NoNodeError:
            return []
        return names

    def _name(self, candidate: str) -> str:
        try:
            text, _ = self._session.ask(lambda client: client.get_async(f"{self._folder}/{candidate}"))
            who = json.loads(text)
            return f"process {who['process']} on {who['host']}"
        except (NoNodeError, ValueError, KeyError, TypeError):
            return "a process that does not say which"

    def _keep(self) -> None:
        """Looks again and again whether the node is there, and so keeps the session alive."""
        while not self._closed.wait(_BEAT * self._session.timeout):
            sent = _now()
            try:
                self._session.ask(lambda client: client.sync_async(self.node), once=True)
                there = self._session.ask(lambda client: client.exists_async(self.node), once=True)
            except LandingUnavailable:
                continue
            except Exception:
                logger.exception("the lease is no longer looked after")
                return
            if there is None:
                self._lost = "its ZooKeeper session has ended"
                return
            self._answered, self._sure_until = sent, sent + _SURE * self._session.timeout

    def held(self) -> bool:
        return self._lost is None and _now() < self._sure_until

    def lost(self) -> str | None:
        if self._lost is None and self._sure_until > 0 and _now() - self._answered > self._session.patience:
            return f"ZooKeeper has not answered for {self._session.patience:.0f} s"
        return self._lost

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        if self._keeper.is_alive():
            self._keeper.join(timeout=self._session.timeout)
        self._sure_until = float("-inf")
        self._session.close()


def _now() -> float:
    return time.clock_gettime(_CLOCK)
