"""The job ``subscribe`` as the members of a group: processes that join, are killed and end while events arrive."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dblake.base.core.zookeeper_url import ZookeeperUrl
from dblake.config import load_config
from pipelines.status import read_status
from tests.integration.outputs.ledger import read_ledger
from tests.support.consumers import Shop
from tests.support.zookeeper import ZookeeperServer

HOME = Path(__file__).parents[3]
PARTITIONS = 6


class Members:
    """Processes of one output's group, and what they have written."""

    def __init__(self, folder: Path, progress: str) -> None:
        self._conf, self._ledger = folder / "shop.yaml", folder / "ledger"
        self.processes: list[subprocess.Popen[str]] = []
        self._conf.write_text(json.dumps({
            "warehouse": "./warehouse", "progress": progress,
            "source": {"name": "shop", "type": "postgres", "host": "h", "database": "d", "user": "u",
                       "password": "${env:NONE}", "tables": ["public.*"]},
            "outputs": {"all": {
                "class": "tests.integration.outputs.ledger:Ledger", "settings": {"path": str(self._ledger)},
                "start": "1/0", "max_events": 2, "group": {"partitions": PARTITIONS},
            }},
        }), encoding="utf-8")

    def start(self, *options: str) -> subprocess.Popen[str]:
        self.processes.append(subprocess.Popen(
            [sys.executable, str(HOME / "jobs/subscribe.py"), "--conf", str(self._conf), "--output", "all", *options],
            env=os.environ | {"PYTHONPATH": f"{HOME / 'lib'}:{HOME}"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        ))
        return self.processes[-1]

    def status(self) -> dict[str, Any]:
        """Return what ``status`` shows of the output."""
        (entry,) = read_status(load_config(self._conf), ask_source=False)["outputs"]
        return dict(entry)

    def lines(self) -> list[dict[str, Any]]:
        return read_ledger(self._ledger)

    def writers(self, newest: int) -> set[int]:
        """Return the members that the newest lines are of."""
        return {line["member"] for line in self.lines()[-newest:]}

    def events(self) -> dict[tuple[str, str], list[str]]:
        """Return the positions written of each key, in order, without repetitions."""
        found: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
        for line in self.lines():
            for table, key, position in line.get("events", ()):
                found[table, key][position] = None
        return {key: list(positions) for key, positions in found.items()}

    def wait_until(self, condition: Callable[[], bool], seconds: float = 90) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.lines()[-20:]
            time.sleep(0.1)


@pytest.fixture
def members(tmp_path: Path, zookeeper_url: str) -> Iterator[Members]:
    # A killed member is listed for longer than its successor needs to start.
    members = Members(tmp_path, zookeeper_url.replace("session_timeout=4", "session_timeout=8"))
    yield members
    for process in members.processes:
        process.kill()
        process.communicate()


def expected_events(shop: Shop) -> dict[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    with shop.subscribe(start="1/0") as subscription:
        for event in (event for one in subscription for event in one.events):
            found[event.table, str((event.key or {})["id"])].append(str(event.position))
    return dict(found)


@contextmanager
def arriving_events(shop: Shop) -> Iterator[None]:
    """Let transactions arrive in events, some every tenth of a second, on a thread."""
    has_ended = threading.Event()

    def arrive() -> None:
        while not has_ended.wait(0.1):
            shop.move(8)
            shop.land()
            shop.reconcile()

    thread = threading.Thread(target=arrive)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()


def count_moves(lines: list[dict[str, Any]]) -> dict[int, int]:
    """Return how often a partition was written to by another member than before."""
    writers: dict[int, list[int]] = defaultdict(list)
    for line in lines:
        if writers[line["partition"]][-1:] != [line["member"]]:
            writers[line["partition"]].append(line["member"])
    return {partition: len(members) - 1 for partition, members in writers.items()}


def find_shared_writes(lines: list[dict[str, Any]], killed: int) -> list[dict[str, Any]]:
    """Return lines of a member that wrote to a partition while another one did."""
    writing: dict[int, int] = {}
    found = []
    for line in lines:
        partition, member = line["partition"], line["member"]
        if writing.get(partition, member) not in (member, killed):
            found.append(line)
        if "events" in line:
            writing.pop(partition, None)
        else:
            writing[partition] = member
    return found


def test_group_of_processes_delivers_every_event_in_order(
    tmp_path: Path, members: Members, zookeeper: ZookeeperServer, zookeeper_url: str
) -> None:
    """Three members share the partitions; one is killed and one joins, both while events arrive."""
    shop = Shop(tmp_path)
    with arriving_events(shop):
        for _ in range(3):
            members.start()
        members.wait_until(lambda: len(members.writers(100)) == 3)
        killed = members.processes[0]
        killed.send_signal(signal.SIGKILL)
        added = members.start()
        members.wait_until(lambda: added.pid in members.writers(100) and killed.pid not in members.writers(100))
    expected = expected_events(shop)
    members.wait_until(lambda: members.events() == expected)
    members.wait_until(lambda: members.status()["state"] == "running" and members.status()["lag_seconds"] == 0.0)

    lines = members.lines()
    assert find_shared_writes(lines, killed.pid) == []
    assert {line["partition"] for line in lines} == set(range(PARTITIONS))
    # Three joined, one was killed, one joined: no partition moves more often.
    assert max(count_moves(lines).values()) <= 5
    for process in members.processes[1:]:
        process.send_signal(signal.SIGTERM)
    for process in members.processes[1:]:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    entry = members.status()
    assert (entry["state"], entry["lag_bytes"], entry["last_error"]) == ("stopped", 0, None)
    client = zookeeper.client()
    root = f"{ZookeeperUrl.parse(zookeeper_url).root}/shop/outputs/all"
    assert (client.get_children(f"{root}/owners"), client.get_children(f"{root}/members")) == ([], [])
    client.stop()
    out, errors = members.start("--until-caught-up", "--json").communicate(timeout=60)
    assert json.loads(out)["events"] == 0, errors


def test_bounded_run_takes_over_from_killed_member(tmp_path: Path, members: Members) -> None:
    """A scheduler repeats a killed run before the session of the first has ended: nothing is left for later."""
    shop = Shop(tmp_path)
    shop.move(20)
    shop.land()
    shop.reconcile()
    first = members.start()
    members.wait_until(lambda: members.events() == expected_events(shop))
    first.send_signal(signal.SIGKILL)
    shop.move(20)
    shop.land()
    shop.reconcile()
    second = members.start("--until-caught-up")
    _, errors = second.communicate(timeout=90)
    assert second.returncode == 0, errors
    assert members.events() == expected_events(shop)
